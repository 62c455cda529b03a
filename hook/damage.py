# SPDX-License-Identifier: Apache-2.0
"""Deals with damage in the run directory (unreadable or misplaced files) and with want of room in it or in the history.

It also limits how many failures are logged.

    logged-<reason>.<key>-<minute>  as many bytes as there were failures of this key (minutes on CLOCK_BOOTTIME)
    logged-<minute>               as many bytes as were logged
    logged-<reason>-<minute>      as many bytes as were not

Imported only after a failure, and by reconcile.
"""

from __future__ import annotations

import errno

from hook import jsontext, system
from hook.errors import HookError, Reason
from hook.explain import errno_name, explain_exception, format_count
from hook.models import KeyState, Owed
from hook.store import DROPPED_LINES, DROPPED_SNAPSHOTS, LIMIT, replace
from hook.view import View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.models import Kind
    from hook.store import RunDir

ASIDE = ".json.unreadable-"
"""In the name of an unreadable state file that was set aside, between its key and its inode."""
IN_THE_WAY = (errno.ELOOP, errno.EISDIR, errno.EFBIG, errno.ENXIO)
"""The errnos of a read of a link, a directory, too large a file and a socket in the place of a record."""
MOST = 10
"""Lines a minute, for each key and reason."""
MOST_OF_NODE = 200
"""Lines a minute, for all of them."""
MOST_CHARACTERS = 1 << 20
"""Of the lines that one key owes: some 1,500, so that its record stays far below the limit of a read."""
_MOST_MADE = 8
_FEW = 2  # the count of what was removed may take the first one's room
_SECONDS = 1.0
_LOGGED = "logged-"
_MINUTE = 60.0


def make_way(run: RunDir, path: str, error: OSError, *, drops_lines: bool = True) -> None:
    """Remove the obstacle to a write of a record, for another try. Raises the error if no try can help.

    ENOENT: the hook that made the run directory was killed before it had made its parts, or another writer took the
    temporary file. ENOSPC: completed keys make room; `drops_lines`: as in make_room.
    """
    if isinstance(error, FileNotFoundError):
        run.make_parts()
    elif error.errno == errno.ENOSPC:
        if not make_room(run, drops_lines=drops_lines):
            raise error
    elif error.errno not in IN_THE_WAY:
        raise error
    elif isinstance(error, IsADirectoryError):
        system.remove_tree(path, run.descriptor)


# --- Room for who starts: what is kept of completed keys goes, the oldest first


def make_room(run: RunDir, *, drops_lines: bool) -> bool:
    """Remove what is kept of the oldest completed keys, _MOST_MADE at most, in about _SECONDS; returns whether any was.

    First go the snapshots, those of keys that owe lines of history last. The lines go only if there is nothing else,
    and if the caller `drops_lines`. The caller may hold the lock of a key. Others are taken without waiting.
    """
    if not run.may_make_room:
        return False
    run.may_make_room = False  # for the writes in here; and for further ones, if nothing could be removed
    deadline, removed = system.monotonic() + _SECONDS, 0
    found = []
    for key in system.try_call(run.names, KeyState) or []:
        state = run.glance(KeyState, key)
        if state is not None and state.completed_at is not None:
            found.append(state)
        if system.monotonic() >= deadline:
            break
    for state in sorted(found, key=rank):
        is_last = state.owed is not None and not state.groups
        if removed == _MOST_MADE or (removed and system.monotonic() >= deadline):
            break
        if is_last and (removed >= _FEW or not drops_lines):
            break
        removed += _drop_completed(run, state.key)
    run.may_make_room = removed > 0
    return run.may_make_room


def rank(state: KeyState) -> tuple[bool, bool, float]:
    """The place of a completed key in the order in which they make room."""
    return state.owed is not None, not state.groups, state.completed_boottime or 0.0


def _drop_completed(run: RunDir, key: str, *, is_again: bool = False) -> bool:
    """Remove the snapshot of a completed key or, if there is none, the lines that it owes; returns whether it did."""
    view = View(run, "")
    try:
        with run.lock(key, system.monotonic()) as locked:
            state = locked.state
            if state is None or state.completed_at is None:
                return False
            if state.owed is not None and not state.groups:
                locked.clear()
                owe(run, [], "no room in the run directory", len(state.owed.lines))
            else:
                view.forget(locked)
                run.count_run(DROPPED_SNAPSHOTS)
    except HookError:  # another process holds its lock
        return False
    except OSError as error:
        if error.errno != errno.ENOSPC:
            return False
        # There is no inode for its lock. Its view can go without: if the key has just come back, reconcile makes that
        # view again.
        system.try_call(view.remove, key)
        return is_again or _drop_completed(run, key, is_again=True)
    return True


# --- Lines of history that cannot be written


def keep_lines(run: RunDir, path: str, state: KeyState, lines: list[str], error: OSError) -> KeyState:
    """Keep the lines of a completed key, which could not be written; returns its state with them."""
    why = explain_write(error)
    run.complaints.append(unwritten_error(f"what key {state.key} used", path, why))
    return replace(state, history_file=path, owed=owe(run, lines, why))


def owe(run: RunDir, lines: list[str], why: str, drops: int = 0) -> Owed | None:
    """The lines as a key owes them. The oldest, so many as `drops` says or do not fit, are dropped and counted."""
    size = sum(map(len, lines[drops:]))
    while size > MOST_CHARACTERS:
        size -= len(lines[drops])
        drops += 1
    if drops:
        run.count_run(DROPPED_LINES, drops)
        problem = f"{format_count(drops, 'line')} of history dropped: too many wait to be written"
        run.complaints.append(HookError(Reason.IO, problem, tried=why))
    return Owed(lines=lines[drops:], why=why) if lines[drops:] else None


def explain_write(error: OSError) -> str:
    """Why a line could not be written: the kernel's word, and its errno."""
    return f"{error.strerror}: {errno_name(error)}"


def unwritten_error(what: str, path: str, why: str) -> HookError:
    """`io`: lines could not be written to the file of the history."""
    hint = "its directory must exist, be writable and have room; reconcile writes what is kept until then"
    return HookError(Reason.IO, f"could not add {what} to {path}", tried=why, hint=hint)


# --- Unreadable state files


def set_aside(run: RunDir, key: str, error: Exception) -> KeyState:
    """Set an unreadable state file aside, and return the new state, which is recovering. Call it under the key's lock.

    Raises the OSError of a read that failed for another reason than the file itself, such as EIO.
    """
    if isinstance(error, OSError) and error.errno not in IN_THE_WAY:
        raise error
    path = f"groups/{key}.json"
    # No two files have the same inode at a time, so this name is free, or is another name of this very file.
    aside = f"groups/{key}{ASIDE}{system.inode(path, run.descriptor)}"
    # A second name for the old file, then the new state over the first name: killed in between, or with no room for
    # the new state, the next hook finds the key as unreadable as this one did, and never takes it for new.
    try:
        system.link(path, aside, run.descriptor)
    except FileExistsError:
        pass
    except PermissionError:  # a directory has one name only
        system.rename(path, aside, run.descriptor)
    state = _salvage(run, key)
    run.write(KeyState, key, state)
    problem = f"the state of key {key} cannot be read ({explain_exception(error)})"
    hint = f"it is kept for a day as {run.path}/{aside}; `reconcile` rebuilds the key"
    run.complaints.append(HookError(Reason.IO, problem, hint=hint))
    return state


def _salvage(run: RunDir, key: str) -> KeyState:
    """Make the new state of a key whose record is unreadable, with the lines of history that it owes, if they show.

    They do in the record of a newer version.
    """
    state = unknown_state(key)
    try:
        found = jsontext.loads(system.read_file(f"groups/{key}.json", LIMIT, run.descriptor))
        kept = {name: found[name] for name in ("history_file", "owed") if name in found}
        return KeyState.model_validate({**state.model_dump(), **kept})
    except (OSError, ValueError, TypeError):
        return state


def unknown_state(key: str) -> KeyState:
    """Make the state of a key of which only the name is known: recovering, without members and groups."""
    is_uid = len(key) == 36 and key.count("-") == 4 and not key.strip("0123456789abcdef-")
    kind: Kind = "pod" if is_uid else "container"
    now, boottime = system.now_utc(), system.boottime()
    return KeyState(key=key, kind=kind, recovering=True, created_at=now, created_boottime=boottime)


# --- The number of failures in a minute, so that the log gets the first ones of each key and reason, and then a count


def count_failure(run: RunDir, reason: str, key: str) -> tuple[bool, list[str]]:
    """Count a failure. Returns whether to log it, and a line for each count of an earlier minute.

    One key cannot use up the lines of another, and all keys together have a limit, too, which also bounds the number of
    files. A failure is logged, too, if it cannot be counted, or if another process removed the count meanwhile. No lock
    is needed: the position of an append is the failure's number.
    """
    minute = _this_minute()
    try:
        if (system.try_call(system.size, f"{_LOGGED}{minute}", run.descriptor) or 0) < MOST_OF_NODE:
            number, is_kept = system.append(f"{_LOGGED}{reason}.{key}-{minute}", ".", run.descriptor)
            if number <= MOST or not is_kept:
                number, _ = system.append(f"{_LOGGED}{minute}", ".", run.descriptor)
                return True, sum_up_failures(run) if number == 1 else []
        system.append(f"{_LOGGED}{reason}-{minute}", ".", run.descriptor)
    except OSError:
        return True, []
    return False, []


def sum_up_failures(run: RunDir) -> list[str]:
    """Remove the counts of earlier minutes. Returns a line for each reason with failures that were not logged."""
    lines = []
    try:
        for name in system.list_directory(".", run.descriptor):
            what, _, minute = name[len(_LOGGED) :].rpartition("-")
            if name.startswith(_LOGGED) and minute != str(_this_minute()):
                more = system.remove_and_measure(name, run.descriptor)
                if more and what and "." not in what:
                    lines.append(f"{what}: and {more} more failures within a minute; see resctrl-mon-hook list")
    except OSError:
        pass
    return lines


def _this_minute() -> int:
    return int(system.boottime() / _MINUTE)
