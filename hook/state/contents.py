# SPDX-License-Identifier: Apache-2.0
"""What the run directory holds in all: for reconcile and reclaim, which may look at every key.

It grows with the node, so nothing here is for a start that succeeds. People's view, without a lock: `records`.
"""

from __future__ import annotations

import os

from hook.base import jsontext, names, system
from hook.base.models import KeyState
from hook.base.reasons import UNNAMED
from hook.state.damage import ASIDE
from hook.state.rundir import STATE_LIMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.state.rundir import RunDir

_KEPT = 86400.0  # seconds that people have to look at what we can do nothing with
_KEPT_UNNAMED = 3600.0  # the same for a failure of no known container: a tenant can make one with each restart
_STEP = 0.05  # seconds: file times advance in steps of up to 10 ms, those of the kernel's clock


def recorded_keys(run: RunDir) -> list[str]:
    """List the keys that something is recorded of."""
    return ids_of(_names(run, "groups"))


def ids_of(files: list[str]) -> list[str]:
    """The keys or containers of the records among these files. A file whose name is no ID is none of ours."""
    found = [name[: -len(".json")] for name in files if name.endswith(".json")]
    return [name for name in found if _is_id(name)]


def glance(run: RunDir, key: str) -> KeyState | None:
    """Read what is recorded of a key without its lock: it may have changed already. None: nothing readable."""
    try:
        text = system.read_file(f"groups/{names.container_id(key)}.json", STATE_LIMIT, run.descriptor)
        return KeyState.model_validate(jsontext.loads(text))
    except (OSError, ValueError):
        return None


def version(run: RunDir) -> int:
    """A number that changes with each commit to a key, if the last one was a while ago (`is_settled`); 0: no keys."""
    try:
        return os.stat("groups", dir_fd=run.descriptor, follow_symlinks=False).st_mtime_ns
    except FileNotFoundError:
        return 0


def is_settled(run: RunDir) -> bool:
    """Whether a commit from now on changes the version: the last one was not within the same step of the clock."""
    try:
        return system.age("groups", run.descriptor) > _STEP
    except FileNotFoundError:
        return False


def find_leftovers(run: RunDir, live: set[str]) -> list[str]:
    """Find the keys that a killed hook left files of: half-written ones, locks of keys that are not `live`."""
    found = {name[1 : -len(".tmp")] for part in ("groups", "members") for name in _names(run, part) if _is_tmp(name)}
    found |= {name[: -len(".old")] if name.endswith(".old") else name for name in _names(run, "building")}
    found |= {name for name in _names(run, "locks") if name not in live}
    return sorted(name for name in found if _is_id(name))


def has_leftovers(run: RunDir, state: KeyState) -> bool:
    """Whether a killed hook left files of a key that goes on, or a view that it does not need."""
    key = state.key
    places = [f"groups/.{key}.tmp", f"members/.{key}.tmp", f"building/{key}", f"building/{key}.old"]
    if not state.generation:
        places.append(f"mon_groups/{key}")
    return any(_is_there(run, place) for place in places)


def tidy(run: RunDir, key: str) -> None:
    """Remove the half-written files of a key. Under its lock."""
    for part in ("groups", "members"):
        system.unlink(f"{part}/.{key}.tmp", run.descriptor)


def find_old_asides(run: RunDir) -> list[tuple[str, str]]:
    """Find the unreadable files that were set aside a day ago: the key of each, and its path."""
    found = [(name.partition(ASIDE)[0], f"groups/{name}") for name in _names(run, "groups") if ASIDE in name]
    return [(key, path) for key, path in found if _is_id(key) and _is_old(run, path)]


def find_half_failures(run: RunDir) -> list[str]:
    """Find the containers whose failure record is half written."""
    found = [name[1 : -len(".tmp")] for name in _names(run, "unmonitored") if _is_tmp(name)]
    return [name for name in found if _is_id(name)]


def remove_half_failure(run: RunDir, container: str) -> None:
    """Remove a half-written failure record. A hook that is writing it begins once more."""
    system.unlink(f"unmonitored/.{container}.tmp", run.descriptor)


def has_old_failure(run: RunDir, container: str) -> bool:
    """Whether a failure was recorded a day ago, or an hour ago if of no known container; readable or not."""
    return _is_old(run, f"unmonitored/{container}.json", _KEPT_UNNAMED if container.startswith(UNNAMED) else _KEPT)


def _is_old(run: RunDir, path: str, kept: float = _KEPT) -> bool:
    try:
        return system.age(path, run.descriptor) >= kept
    except OSError:
        return False


def _is_there(run: RunDir, path: str) -> bool:
    try:
        system.inode(path, run.descriptor)
    except FileNotFoundError:
        return False
    return True


def _names(run: RunDir, part: str) -> list[str]:
    try:
        return system.list_directory(part, run.descriptor)
    except FileNotFoundError:
        return []


def _is_tmp(name: str) -> bool:
    return name.startswith(".") and name.endswith(".tmp")


def _is_id(name: str) -> bool:
    try:
        return names.container_id(name) == name
    except ValueError:
        return False
