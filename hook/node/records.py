# SPDX-License-Identifier: Apache-2.0
"""Reads the whole run directory without locks, for people's commands, reconcile and watch.

Writers replace a file whole, so one read of it is consistent. The cost grows with the node.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, TypeVar

from hook import names, rare, system
from hook.damage import ASIDE
from hook.errors import UNNAMED
from hook.line import count_owed
from hook.models import Failure, Index, KeyState, Model
from hook.node.models import ReconcileRecord, Unhooked, UnhookedContainer
from hook.rare import as_hook_error
from hook.store import PLACES, RunDir, file_of, list_part, list_records, open_run_dir, pick_ids
from hook.validation import replace
from hook.words import explain_exception, who

if TYPE_CHECKING:
    from hook.store import Reader

ModelT = TypeVar("ModelT", bound=Model)

_KEPT = 86400.0  # seconds that people have to look at an unreadable file or a failure
# The same for a failure of an unknown container: a tenant causes one with each restart.
_KEPT_UNNAMED = 3600.0
_PATIENCE = 1.0  # seconds for a lock
_RECONCILE_LOCK = "reconcile.lock"
_STEP = 0.05  # seconds: file times advance in steps of up to 10 ms, those of the kernel's clock
_LEAST_ROOM, _LEAST_FILES = 1 << 20, 1000
MOST_COMPLETED = 1000
"""The completed keys that stay on record: one or two pages each."""
DROPPED_SNAPSHOTS = "dropped_snapshots"
"""A file in the run directory's `runs`:
one byte for each completed key that was forgotten early.
"""
MOST_LINES = 10_000
"""Lines of history that wait on a node."""


@dataclass(frozen=True)
class Broken:
    """A record that cannot be read."""

    name: str  # the key or the container that its file is named after
    file: str
    problem: str


class Records:
    """The run directory, open for reading, for `with`; one that does not exist is empty.

    It reads as a RunDir does, and has nothing to write with. Raises HookError `io` if it cannot be
    read, or if another user could write to it.
    """

    read, read_json, has, glance = RunDir.read, RunDir.read_json, RunDir.has, RunDir.glance

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.descriptor = open_run_dir(path)
        except FileNotFoundError:
            self.descriptor = -1
        except OSError as error:
            raise as_hook_error("the run directory cannot be read", error) from error

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.descriptor >= 0:
            system.close(self.descriptor)

    def list_part(self, part: str) -> list[str]:
        """List a directory as store.list_part does, also without a run directory.

        Raises HookError `io`.
        """
        return _list(self, part) if self.descriptor >= 0 else []

    def list_names(self, model: type[Model]) -> list[str]:
        """List the keys, or containers, that have a record of a model. Raises HookError `io`."""
        return pick_ids(self.list_part(PLACES[model]), "", ".json")

    def is_full(self) -> bool:
        """Whether its file system has next to no room,
        so that hooks may be unable to record failures.
        """
        place = self.descriptor if self.descriptor >= 0 else os.path.dirname(self.path) or "."
        room = system.try_call(os.statvfs, place)
        if room is None:
            return False
        # 0: it has no limit.
        has_space = not room.f_blocks or room.f_bavail * room.f_frsize >= _LEAST_ROOM
        return not (has_space and (not room.f_files or room.f_favail >= _LEAST_FILES))

    def count_events(self) -> dict[str, int]:
        """Return how many events of each name RunDir.count_run has counted:
        too few if the file system was full.
        """
        paths = {
            name: f"runs/{name}" for name in self.list_part("runs") if not name.startswith(".")
        }
        look = partial(os.stat, dir_fd=self.descriptor, follow_symlinks=False)
        statuses = {name: system.try_call(look, path) for name, path in paths.items()}
        # An empty file has been made where no byte could be added.
        return {
            name: max(1, status.st_size)
            for name, status in statuses.items()
            if status and S_ISREG(status.st_mode)
        }


def read_state(run: Reader, key: str) -> KeyState | Broken | None:
    """Read the state of a key without its lock; return None if it has none."""
    state = read_record(run, KeyState, key)
    if isinstance(state, KeyState) and state.key != key:
        return Broken(key, locate_state(run, key), f"it is of {state.key!r}")
    return state


def read_record(run: Reader, model: type[ModelT], name: str) -> ModelT | Broken | None:
    """Read a record, or find out why it cannot be read; return None if there is none."""
    try:
        return run.read(model, names.check_container_id(name))
    except (OSError, ValueError) as error:
        return Broken(name, f"{run.path}/{file_of(model, name)}", explain_exception(error))


def locate_state(run: Reader, key: str) -> str:
    """Return the path of a key's state file, for messages."""
    return f"{run.path}/{file_of(KeyState, key)}"


def _list(run: Reader, part: str) -> list[str]:
    try:
        return list_part(run, part)
    except OSError as error:
        raise as_hook_error(f"{run.path}/{part} cannot be read", error) from error


def leave_out(unhooked: Unhooked, recorded: Collection[str]) -> Unhooked:
    """Return `unhooked` without the containers that were recorded since."""
    containers = {
        container: pod
        for container, pod in unhooked.containers.items()
        if container not in recorded
    }
    return replace(unhooked, containers=containers)


def name_unhooked(containers: Mapping[str, UnhookedContainer]) -> list[str]:
    """Name the containers that were never hooked, for people."""
    pods = containers.items()
    rows = (
        (pod.namespace, pod.pod or (pod.uid and f"pod {pod.uid}"), pod.name, container)
        for container, pod in pods
    )
    return [
        who(container, *names)
        for *names, container in sorted(rows, key=lambda row: [*map(str, row)])
    ]


def list_recorded(states: Iterable[KeyState]) -> set[str]:
    """List the paths of the mon_groups that these keys have.

    A completed key has none: its groups are gone.
    """
    return {group.path for state in states if state.completed_at is None for group in state.groups}


def glance_index(run: Reader, container: str) -> str | None:
    """Read a container's key from its index without a lock;
    return None if there is no readable index.
    """
    index = run.glance(Index, container)
    return index.key if index is not None else None


# --- What is kept of completed keys


def find_early(states: Iterable[KeyState]) -> set[str]:
    """Find the completed keys beyond the newest MOST_COMPLETED;
    their lines of history that wait stay.
    """
    completed = [state for state in states if state.completed_at is not None and state.groups]
    completed.sort(key=lambda state: state.completed_boottime or 0.0, reverse=True)
    return {state.key for state in completed[MOST_COMPLETED:]}


def find_surplus(states: Iterable[KeyState]) -> Counter[str]:
    """Count the lines of history beyond MOST_LINES that wait, by key: the oldest ones."""
    owing = (state for state in states if state.owed is not None)
    waiting = sorted(
        (state.completed_boottime or 0.0, state.key, count_owed(state)) for state in owing
    )
    excess, surplus = sum(number for _, _, number in waiting) - MOST_LINES, Counter[str]()
    for _, key, number in waiting:
        if excess > 0:
            surplus[key] = min(excess, number)
            excess -= number
    return surplus


def find_free_share(run: Reader) -> float:
    """Find the share of the run directory's file system that is free,
    of its blocks or its inodes: the smaller one.
    """
    room = os.statvfs(run.descriptor)
    shares = ((room.f_bavail, room.f_blocks), (room.f_favail, room.f_files))
    # Size 0: it has no limit.
    return min((free / size for free, size in shares if size), default=1.0)


# --- Whether anything changes


Version = tuple[int, int]
"""The inode and the time of a record, which differ for each commit to its key."""


def read_version(run: Reader, part: str = "groups") -> int | None:
    """Return a number that changes with each further commit to a key,
    or with each change of another directory.

    It is None if there is no such directory,
    or while the last change is so young that another may get the same number.
    """
    try:
        changed = os.stat(part, dir_fd=run.descriptor, follow_symlinks=False).st_mtime_ns
        # The age last: it is of this change.
        return changed if rare.age(part, run.descriptor) > _STEP else None
    except FileNotFoundError:
        return None


def list_versions(run: Reader) -> dict[str, Version]:
    """List the keys with a record.

    A record that is read later has this version, or a later one. Raises OSError.
    """
    versions = {}
    for key in list_records(run, KeyState):
        with suppress(FileNotFoundError):
            status = os.stat(file_of(KeyState, key), dir_fd=run.descriptor, follow_symlinks=False)
            versions[key] = status.st_ino, status.st_mtime_ns
    return versions


# --- All of it, as reconcile surveys it


@dataclass(frozen=True)
class Contents:
    """The records in the run directory, and the files there that should not stay."""

    states: dict[str, KeyState]
    unreadable: set[str]  # the keys with an unreadable state
    index: dict[str, Index | None]  # by container; None if its entry is unreadable
    failed: list[str]  # the containers with a failure record
    # Those whose failure record is incomplete, because the hook was killed.
    half_failures: list[str]
    # By key, the unreadable files that were set aside more than a day ago.
    asides: dict[str, list[str]]
    # The keys of which a killed hook left files, or a lock that they must not have.
    leftovers: set[str]


def read_contents(run: Reader) -> Contents:
    """Read all records, and list the files that should not stay. Raises HookError `io`, OSError."""
    groups = _list(run, "groups")
    records = {key: read_state(run, key) for key in pick_ids(groups, "", ".json")}
    failures, members = _list(run, "unmonitored"), _list(run, "members")
    index = {
        container: run.glance(Index, container) for container in pick_ids(members, "", ".json")
    }
    states = {key: state for key, state in records.items() if isinstance(state, KeyState)}
    unreadable = {key for key, state in records.items() if isinstance(state, Broken)}
    asides: dict[str, list[str]] = {}
    for name in groups:
        # The inode ends the name: a container's ID may have all of this in it,
        # and its record ends with `.json`.
        key, _, inode = name.rpartition(ASIDE)
        if (
            inode.isdecimal()
            and names.is_container_id(key)
            and _is_old(run, f"groups/{name}", _KEPT)
        ):
            asides.setdefault(key, []).append(f"groups/{name}")
    half_written = {*pick_ids(groups, ".", ".tmp"), *pick_ids(members, ".", ".tmp")}
    locks = {*_list(run, "locks")} - {
        key for key, state in states.items() if state.completed_at is None
    }
    leftovers = half_written | {name for name in locks if names.is_container_id(name)}
    half_failures = pick_ids(failures, ".", ".tmp")
    return Contents(
        states, unreadable, index, pick_ids(failures, "", ".json"), half_failures, asides, leftovers
    )


def has_leftovers(run: Reader, state: KeyState) -> bool:
    """Whether killed hooks left files of a key that stays on record."""
    places = _list_leftovers(state.key)
    return any(system.try_call(system.inode, place, run.descriptor) is not None for place in places)


def remove_leftovers(run: RunDir, key: str) -> None:
    """Remove the files of a key that killed hooks left. Call it under the key's lock."""
    for place in _list_leftovers(key):
        rare.remove_tree(place, run.descriptor)


def _list_leftovers(key: str) -> list[str]:
    return [f"groups/.{key}.tmp", f"members/.{key}.tmp"]


def remove_half_written(run: RunDir, container: str) -> None:
    """Remove the half-written record of a failure. A hook that is just writing it tries again."""
    system.unlink(f"unmonitored/.{container}.tmp", run.descriptor)


def has_old_failure(run: Reader, container: str) -> bool:
    """Whether a failure's record, readable or not, is older than a day,
    or than an hour if its container is unknown.
    """
    return _is_old(
        run,
        f"unmonitored/{container}.json",
        _KEPT_UNNAMED if container.startswith(UNNAMED) else _KEPT,
    )


def find_job(failure: Failure) -> str | None:
    """Return the key of the job that a process should be in;
    None if it is that of the process, or of a container.
    """
    return failure.key if failure.kind == "job" and failure.key != failure.container else None


def _is_old(run: Reader, path: str, kept: float) -> bool:
    return (system.try_call(rare.age, path, run.descriptor) or 0.0) >= kept


# --- What reconcile has done: reconcile.json


def read_reconciled(run: RunDir) -> ReconcileRecord:
    """Read reconcile.json, or return an empty record if there is none that is readable."""
    return run.glance(ReconcileRecord, "reconcile") or ReconcileRecord()


def change_reconciled(run: RunDir, change: Callable[[ReconcileRecord], dict[str, Any]]) -> None:
    """Set the fields of reconcile.json that `change` returns, under its lock. Raises OSError."""
    descriptor = system.open_lock(_RECONCILE_LOCK, run.descriptor)
    try:
        # Without the lock, counts of another run that ends in this moment may be lost, but not this
        # one's.
        system.try_flock(descriptor) or rare.wait_for_flock(
            descriptor, system.monotonic() + _PATIENCE
        )
        last = read_reconciled(run)
        run.write(ReconcileRecord, "reconcile", replace(last, **change(last)))
    finally:
        system.close(descriptor)


# --- The end of the run directory


def remove_all(run: RunDir) -> None:
    """Remove the run directory, unless a key is on record.

    Another program's directories in it stay.

    A mount point stays, without content. Raises OSError or HookError if a hook uses it,
    and may have begun a key.
    """
    names = system.list_directory(".", run.descriptor)
    if names and "locks" not in names:  # --run-dir names a directory of others
        return
    for name in list_part(run, "groups"):
        # Half-written, by a hook that was killed; one that is writing it tries again.
        if name.startswith("."):
            system.unlink(f"groups/{name}", run.descriptor)
    if "groups" in names:
        system.rmdir("groups", run.descriptor)
    ours = {*rare.PARTS, "mon_groups", "mon_data", "building"}
    # `locks` last: killed before that, a second call finds a run directory of ours, and goes on.
    for name in sorted({*names} - {"groups"}, key="locks".__eq__):
        for key in list_part(run, "locks") if name == "locks" else ():
            # A hook that holds it may be about to make its group.
            with run.lock(key, system.monotonic() + _PATIENCE):
                pass
        if name in ours or not system.is_directory(f"{run.path}/{name}"):
            rare.remove_tree(name, run.descriptor)
    try:
        system.rmdir(run.path)
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.ENOENT) and "groups" in system.list_directory(
            ".", run.descriptor
        ):
            raise
