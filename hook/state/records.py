# SPDX-License-Identifier: Apache-2.0
"""The run directory as people see it: opened to be read, by those who hold no lock. Its owner is `rundir`.

Nothing is written, made or renamed here. A file is replaced whole by its writers, so that one read of it is consistent;
what vanished is None, and what cannot be understood is `Unreadable`, which stays where it is.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace

from hook.base import jsontext, names, system
from hook.base.errors import HookError
from hook.base.explain import explain, refused
from hook.base.models import Failure, Index, KeyState, ReconcileRecord, ValidationError, WatchRecord
from hook.base.reasons import Reason
from hook.base.text import who
from hook.state.contents import ids_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import TypeVar

    from hook.base.models import Model

    _Model = TypeVar("_Model", bound=Model)

UNHOOKED = "unhooked.json"
"""The file in the run directory that Records.unhooked reads."""
RECONCILED = "reconcile.json"
"""The file in the run directory that Records.reconciled reads."""
WATCHED = "watch.json"
"""The file in the run directory that Records.watched reads."""
UNRECORDED = "runs/unrecorded"
"""In the run directory: as many bytes as there were failures that could not be recorded (failures.record)."""
_STATE_LIMIT = 16 << 20
_LEAST_ROOM, _LEAST_FILES = 1 << 20, 1000


@dataclass(frozen=True)
class Unreadable:
    """A record that is there and cannot be understood. `name`: the key or the container that it should be of."""

    name: str
    file: str
    problem: str


@dataclass(frozen=True)
class Unhooked:
    """What reconcile last found of containers that run and were never hooked: see the module of that name.

    `since`: when it looked. `containers`: what is known of each (`namespace`, `pod`, `name`), by ID. `unchecked`: how
    many it could not ask a runtime about. `others`: those that are not meant to be hooked, by the `rules` of then.
    """

    since: str
    containers: dict[str, dict[str, str | None]]
    unchecked: int
    rules: str
    others: frozenset[str]

    def without(self, recorded: Collection[str]) -> Unhooked:
        """The same without those that are on record by now."""
        return replace(self, containers={it: pod for it, pod in self.containers.items() if it not in recorded})

    def names(self) -> list[str]:
        """Who they are, for people."""
        found = []
        for container, pod in sorted(self.containers.items(), key=lambda it: [str(text) for text in it[1].values()]):
            found.append(who(container, pod["namespace"], pod["pod"], pod["name"]))
        return found


class Records:
    """The run directory, opened to be read, for `with`. One that is not there is empty.

    Raises HookError `io` where it cannot be read or, as for the hook itself, not be trusted.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._dir: int | None = None
        try:
            self._dir = system.open_directory(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise refused("the run directory cannot be read", error) from error
        owner, mode = system.owner_and_mode(self._dir)
        if owner not in (0, system.user_id()) or mode & 0o022:
            self.__exit__()
            hint = f"remove it, or make it root's with mode 0755 (it is uid {owner}'s, mode {mode & 0o7777:04o})"
            raise HookError(Reason.IO, f"the run directory {path} is not root's alone", hint=hint)

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._dir is not None:
            system.close(self._dir)
            self._dir = None

    def recorded(self) -> list[str]:
        """The keys that something is recorded of."""
        return self._names("groups")

    def failed(self) -> list[str]:
        """The containers that a failure is recorded of."""
        return self._names("unmonitored")

    def indexed(self) -> list[str]:
        """The containers that a key is noted for."""
        return self._names("members")

    def file(self, key: str) -> str:
        """Where a key is recorded, for people."""
        return self._file("groups", key)

    def state(self, key: str) -> KeyState | Unreadable | None:
        """What is recorded of a key; None: nothing."""
        found = self._record(KeyState, "groups", key)
        if isinstance(found, KeyState) and found.key != key:
            return Unreadable(key, self.file(key), f"it is of {found.key!r}")
        return found

    def failure(self, container: str) -> Failure | Unreadable | None:
        """Why a container is not monitored; None: nothing is recorded."""
        return self._record(Failure, "unmonitored", container)

    def key_of(self, container: str) -> str | None:
        """The key that a container is indexed under, if any."""
        found = self._record(Index, "members", container)
        return found.key if isinstance(found, Index) else None

    def unhooked(self) -> Unhooked | None:
        """What reconcile found of containers that were never hooked; None: it has not looked, or not readably."""
        if self._dir is None:
            return None
        try:
            found = jsontext.loads(system.read_file(UNHOOKED, _STATE_LIMIT, self._dir))
            containers = {it: _named(found["containers"][it]) for it in map(names.container_id, found["containers"])}
            others = frozenset(map(str, found["others"]))
            return Unhooked(str(found["since"]), containers, int(found["unchecked"]), str(found["rules"]), others)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def reconciled(self) -> ReconcileRecord | None:
        """What reconcile has done since boot; None: it has not run, or its record is unreadable."""
        return self._totals(ReconcileRecord, RECONCILED)

    def watched(self) -> WatchRecord | None:
        """What the watch that runs has done; None: none runs, or its record is unreadable."""
        return self._totals(WatchRecord, WATCHED)

    def is_full(self) -> bool:
        """Whether its file system has next to no room: hooks may be unable to record what goes wrong."""
        try:
            room = os.statvfs(os.path.dirname(self.path) or "." if self._dir is None else self._dir)
        except OSError:
            return False
        has_space = not room.f_blocks or room.f_bavail * room.f_frsize >= _LEAST_ROOM  # 0: it has no limit
        return not (has_space and (not room.f_files or room.f_favail >= _LEAST_FILES))

    def unrecorded(self) -> int:
        """At least so many failures since boot have no record. Without room the count may lack some, too."""
        size = None if self._dir is None else self._size(UNRECORDED)
        return 0 if size is None else max(size, 1)  # an empty file has been made where no byte could be added

    def runs(self) -> dict[tuple[str, str], int]:
        """How often which stage had which result: files named `<stage>-<result>`, as many bytes long."""
        counts = {}
        for name in self._list("runs"):
            stage, dash, result = name.partition("-")
            size = self._size("runs/" + name)
            if dash and size is not None and not name.startswith("."):
                counts[stage, result] = size
        return counts

    def _file(self, part: str, name: str) -> str:
        return f"{self.path}/{part}/{name}.json"

    def _names(self, part: str) -> list[str]:
        return ids_of(self._list(part))

    def _list(self, part: str) -> list[str]:
        if self._dir is None:
            return []
        try:
            return system.list_directory(part, self._dir)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise refused(f"{self.path}/{part} cannot be read", error) from error

    def _size(self, path: str) -> int | None:
        try:
            found = os.stat(path, dir_fd=self._dir, follow_symlinks=False)
        except OSError:
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def _totals(self, model: type[_Model], name: str) -> _Model | None:
        """A record that is of no key; None: there is none, or it is unreadable."""
        if self._dir is None:
            return None
        try:
            return model.model_validate(jsontext.loads(system.read_file(name, _STATE_LIMIT, self._dir)))
        except (OSError, ValueError):
            return None

    def _record(self, model: type[_Model], part: str, name: str) -> _Model | Unreadable | None:
        if self._dir is None:
            return None
        try:
            path = f"{part}/{names.container_id(name)}.json"
            return model.model_validate(jsontext.loads(system.read_file(path, _STATE_LIMIT, self._dir)))
        except FileNotFoundError:
            return None
        except ValidationError as error:
            why = explain(error.errors())
        except (OSError, ValueError) as error:
            why = str(error)
        return Unreadable(name, self._file(part, name), why)


def _named(found: dict[str, object]) -> dict[str, str | None]:
    texts = {name: found[name] for name in ("namespace", "pod", "name")}
    return {name: text if isinstance(text, str) else None for name, text in texts.items()}
