# SPDX-License-Identifier: Apache-2.0
"""Reads the whole run directory without locks, for people's commands, reconcile and watch.

Writers replace a file whole, so one read of it is consistent. The cost grows with the node.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TypeVar

from hook import jsontext, names, system
from hook.damage import ASIDE, rank
from hook.errors import UNNAMED
from hook.explain import explain_exception, owner_error, system_error, who
from hook.models import Failure, Index, KeyState, Model
from hook.node.models import Unhooked
from hook.store import PARTS, PLACES, RunDir, file_of, replace
from hook.view import count_files

ModelT = TypeVar("ModelT", bound=Model)

_KEPT = 86400.0  # seconds that people have to look at an unreadable file or a failure
_KEPT_UNNAMED = 3600.0  # the same for a failure of an unknown container: a tenant causes one with each restart
_PATIENCE = 1.0  # seconds for a lock
_STEP = 0.05  # seconds: file times advance in steps of up to 10 ms, those of the kernel's clock
_LEAST_ROOM, _LEAST_FILES = 1 << 20, 1000
_SHARE = 4  # what is kept of completed keys takes at most one part in so many of the file system
MOST_LINES = 10_000
"""Lines of history that wait on a node."""


@dataclass(frozen=True)
class Broken:
    """An unreadable record. `name`: the key or container that its file is named after."""

    name: str
    file: str
    problem: str


class Records(RunDir):
    """The run directory, open for reading, for `with`; empty if it does not exist.

    Raises HookError `io` if it cannot be read, or another user could write to it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_there = False
        try:
            self.descriptor = system.open_directory(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise system_error("the run directory cannot be read", error) from error
        self.is_there = True
        owner, mode = system.owner_and_mode(self.descriptor)
        if owner not in (0, system.user_id()) or mode & 0o022:
            self.__exit__()
            raise owner_error(path, owner, mode)

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.is_there:
            system.close(self.descriptor)
            self.is_there = False

    def read(self, model: type[ModelT], name: str) -> ModelT | None:
        """As RunDir.read, also without a run directory."""
        return super().read(model, name) if self.is_there else None

    def list_part(self, part: str) -> list[str]:
        """As RunDir.list_part, also without a run directory. HookError `io`: it cannot be listed."""
        try:
            return super().list_part(part) if self.is_there else []
        except OSError as error:
            raise system_error(f"{self.path}/{part} cannot be read", error) from error

    def state(self, key: str) -> KeyState | Broken | None:
        """Read the state of a key; None: it has none."""
        found = self._examine(KeyState, key)
        if isinstance(found, KeyState) and found.key != key:
            return Broken(key, self.file(key), f"it is of {found.key!r}")
        return found

    def failure(self, container: str) -> Failure | Broken | None:
        """Read why a container is not monitored; None: nothing is recorded."""
        return self._examine(Failure, container)

    def file(self, key: str) -> str:
        """The path of a key's state file, for messages."""
        return f"{self.path}/groups/{key}.json"

    def is_full(self) -> bool:
        """Whether its file system has next to no room, so that hooks may be unable to record failures."""
        room = system.try_call(os.statvfs, self.descriptor if self.is_there else os.path.dirname(self.path) or ".")
        if room is None:
            return False
        has_space = not room.f_blocks or room.f_bavail * room.f_frsize >= _LEAST_ROOM  # 0: it has no limit
        return not (has_space and (not room.f_files or room.f_favail >= _LEAST_FILES))

    def count(self, name: str) -> int:
        """The number of events that RunDir.count_run has counted; fewer than there were if the file system is full."""
        size = self._size("runs/" + name) if self.is_there else None
        return 0 if size is None else max(size, 1)  # an empty file has been made where no byte could be added

    def runs(self) -> dict[tuple[str, str], int]:
        """The number of hooks by stage and result: the sizes of the files `runs/<stage>-<result>`."""
        counts = {}
        for name in self.list_part("runs"):
            stage, dash, result = name.partition("-")
            size = self._size("runs/" + name)
            if dash and size is not None and not name.startswith("."):
                counts[stage, result] = size
        return counts

    def _size(self, path: str) -> int | None:
        found = system.try_call(os.stat, path, dir_fd=self.descriptor, follow_symlinks=False)
        return found.st_size if found is not None and stat.S_ISREG(found.st_mode) else None

    def _examine(self, model: type[ModelT], name: str) -> ModelT | Broken | None:
        try:
            return self.read(model, names.container_id(name))
        except (OSError, ValueError) as error:
            return Broken(name, f"{self.path}/{file_of(model, name)}", explain_exception(error))


def leave_out(seen: Unhooked, recorded: Collection[str]) -> Unhooked:
    """Return `seen` without the containers that were recorded since."""
    return replace(seen, containers={it: names for it, names in seen.containers.items() if it not in recorded})


def name_unhooked(seen: Unhooked) -> list[str]:
    """Name the containers that were never hooked, for people."""
    found = sorted(seen.containers.items(), key=lambda it: (str(it[1].namespace), str(it[1].pod), str(it[1].name)))
    return [who(container, it.namespace, it.pod, it.name) for container, it in found]


def list_recorded(states: Iterable[KeyState]) -> set[str]:
    """The paths of the mon_groups that these keys have; those of a completed one are gone."""
    return {group.path for state in states if state.completed_at is None for group in state.groups}


def glance_index(run: RunDir, container: str) -> str | None:
    """Read a container's key from its index without a lock; None: no index, or an unreadable one."""
    index = run.glance(Index, container)
    return index.key if index is not None else None


def peek(run: RunDir, model: type[ModelT], name: str) -> ModelT | None:
    """As RunDir.glance, but raises OSError if the file cannot be read: it is not taken for absent."""
    try:
        return run.read(model, name)
    except ValueError:
        return None


# --- What is kept of completed keys


@dataclass(frozen=True)
class Surplus:
    """What has to go of completed keys, since they take too much room or owe too many lines of history.

    `snapshots`: the keys whose snapshots go. `lines`: by key, how many of its lines go, the oldest ones.
    """

    snapshots: set[str]
    lines: Counter[str]


def find_surplus(run: RunDir, states: Collection[KeyState]) -> Surplus:
    """Find what has to go: the oldest snapshots first, those of keys that owe lines last, and then lines."""
    owed = {state.key: state.owed.lines for state in states if state.owed is not None}
    snapshots, lines = set[str](), Counter[str]()
    over = sum(map(len, owed.values())) - MOST_LINES
    if over > 0:
        oldest = sorted((_read_end(line), key) for key, own in owed.items() for line in own)[:over]
        lines.update(key for _, key in oldest)
    room = system.try_call(os.statvfs, run.descriptor)
    if room is None or not (_is_over(room, room.f_blocks - room.f_bfree, room.f_files - room.f_ffree)):
        return Surplus(snapshots, lines)
    completed = sorted((state for state in states if state.completed_at is not None), key=rank)
    views = {state.key: count_files(state) for state in completed}
    sizes = {state.key: 1 + sum(map(len, owed.get(state.key, ()))) // room.f_frsize for state in completed}
    blocks = sum(sizes.values()) + sum(of_view for of_view, _ in views.values())
    files = len(sizes) + sum(of_view for _, of_view in views.values())
    for state in completed:
        if state.groups and _is_over(room, blocks, files):
            snapshots.add(state.key)
            is_whole = state.key not in owed
            blocks -= views[state.key][0] + is_whole * sizes[state.key]
            files -= views[state.key][1] + is_whole
    for state in completed:
        if state.key in owed and _is_over(room, blocks, files):
            lines[state.key] = len(owed[state.key])
            blocks, files = blocks - sizes[state.key], files - 1
    return Surplus(snapshots, lines)


def _read_end(line: str) -> str:
    """The time in a line of the history at which its job ended; empty, so the oldest: it shows none."""
    try:
        return str(jsontext.loads(line)["end"])
    except (ValueError, TypeError, KeyError):
        return ""


def _is_over(room: os.statvfs_result, blocks: int, files: int) -> bool:
    """Whether so many blocks or files are more than completed keys may have; 0 of either in all: without a limit."""
    return bool((room.f_blocks and blocks * _SHARE > room.f_blocks) or (room.f_files and files * _SHARE > room.f_files))


# --- Whether anything changes


def version(run: RunDir) -> int:
    """A number that changes with each commit to a key, if the last one was a while ago (`is_settled`); 0: no keys."""
    try:
        return os.stat("groups", dir_fd=run.descriptor, follow_symlinks=False).st_mtime_ns
    except FileNotFoundError:
        return 0


def is_settled(run: RunDir) -> bool:
    """Whether each further commit changes `version`: the last one was not within the present step of the clock."""
    try:
        return system.age("groups", run.descriptor) > _STEP
    except FileNotFoundError:
        return False


# --- Files that killed hooks left behind, and files that are kept only for some time


def find_leftovers(run: RunDir, live: Collection[str]) -> list[str]:
    """Find the keys of which a killed hook left half-written files, or the lock of a key that is not `live`."""
    found = {key for model in (KeyState, Index) for key in find_half_written(run, model)}
    found |= {name.removesuffix(".old") for name in run.list_part("building")}
    found |= {name for name in run.list_part("locks") if name not in live}
    return sorted(filter(names.is_container_id, found))


def find_half_written(run: RunDir, model: type[Model]) -> list[str]:
    """Find the keys, or containers, that have a half-written record."""
    files = run.list_part(PLACES[model])
    found = [name[1 : -len(".tmp")] for name in files if name.startswith(".") and name.endswith(".tmp")]
    return [name for name in found if names.is_container_id(name)]


def has_leftovers(run: RunDir, state: KeyState) -> bool:
    """Whether killed hooks left files of a key that stays on record, or a view that it does not need."""
    places = [*_list_leftovers(state.key), *([] if state.generation else [f"mon_groups/{state.key}"])]
    for place in places:
        try:
            system.inode(place, run.descriptor)
        except FileNotFoundError:
            continue
        return True
    return False


def remove_leftovers(run: RunDir, key: str) -> None:
    """Remove the files of a key that killed hooks left. Under its lock."""
    for place in _list_leftovers(key):
        system.remove_tree(place, run.descriptor)


def _list_leftovers(key: str) -> list[str]:
    return [f"groups/.{key}.tmp", f"members/.{key}.tmp", f"building/{key}", f"building/{key}.old"]


def remove_half_written(run: RunDir, model: type[Model], name: str) -> None:
    """Remove a half-written record; of a key, under its lock. A hook that is just writing a failure tries again."""
    system.unlink(f"{PLACES[model]}/.{name}.tmp", run.descriptor)


def find_old_asides(run: RunDir) -> list[tuple[str, str]]:
    """Find the unreadable files that were set aside more than a day ago; the key and path of each."""
    parts = [name.rpartition(ASIDE) for name in run.list_part("groups")]
    # The inode ends the name: a container's ID may have all of this in it, and its record ends with `.json`.
    found = [(key, f"groups/{key}{ASIDE}{inode}") for key, _, inode in parts if inode.isdecimal()]
    return [(key, path) for key, path in found if names.is_container_id(key) and _is_old(run, path, _KEPT)]


def has_old_failure(run: RunDir, container: str) -> bool:
    """Whether a failure's record, readable or not, is older than a day, or than an hour if its container is unknown."""
    return _is_old(run, f"unmonitored/{container}.json", _KEPT_UNNAMED if container.startswith(UNNAMED) else _KEPT)


def _is_old(run: RunDir, path: str, kept: float) -> bool:
    return (system.try_call(system.age, path, run.descriptor) or 0.0) >= kept


# --- The end of the run directory


def list_asides(run: RunDir) -> list[str]:
    """List the paths of all unreadable states that were set aside."""
    return [f"{run.path}/groups/{name}" for name in run.list_part("groups") if ASIDE in name]


def _remove_locks(run: RunDir) -> None:
    """Remove the lock files, each under its lock: a hook that holds one may be about to make its group.

    OSError: it holds the lock for too long.
    """
    for name in run.list_part("locks"):
        descriptor = system.open_lock(f"locks/{name}", run.descriptor)
        try:
            if not (system.try_flock(descriptor) or system.wait_for_flock(descriptor, system.monotonic() + _PATIENCE)):
                raise OSError(errno.EBUSY, "it holds a lock", f"{run.path}/locks/{name}")
            system.unlink(f"locks/{name}", run.descriptor)
        finally:
            system.close(descriptor)


def remove_all(run: RunDir) -> None:
    """Remove the run directory, unless a key is on record. Another program's directories in it stay.

    OSError: a hook has used it since, and may have begun a key. A mount point stays, without content.
    """
    names = system.list_directory(".", run.descriptor)
    if names and "locks" not in names:  # --run-dir names a directory of others
        return
    for name in run.list_part("groups"):
        if name.startswith("."):  # half-written, by a hook that was killed; one that is writing it tries again
            system.unlink(f"groups/{name}", run.descriptor)
    if "groups" in names:
        system.rmdir("groups", run.descriptor)
    ours = {*PARTS, "mon_groups", "mon_data", "building"} - {"groups"}
    # `locks` last: killed before that, a second call finds a run directory of ours, and goes on.
    for name in sorted({*names} - {"groups"}, key="locks".__eq__):
        if name == "locks":
            _remove_locks(run)
        if name in ours or not system.is_directory(f"{run.path}/{name}"):
            system.remove_tree(name, run.descriptor)
    try:
        system.rmdir(run.path)
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.ENOENT) and "groups" in system.list_directory(".", run.descriptor):
            raise
