# SPDX-License-Identifier: Apache-2.0
"""Deals with damage in the run directory (unreadable or misplaced files), and limits how many failures are logged.

    logged-<reason>.<key>-<minute>  as many bytes as there were failures of this key (minutes on CLOCK_BOOTTIME)
    logged-<minute>               as many bytes as were logged
    logged-<reason>-<minute>      as many bytes as were not

Imported only after a failure, and by reconcile.
"""

from __future__ import annotations

import errno

from hook.base import system
from hook.base.errors import HookError, Reason
from hook.base.explain import explain_exception
from hook.base.models import KeyState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.base.models import Kind
    from hook.state.store import RunDir

ASIDE = ".json.unreadable-"
"""In the name of an unreadable state file that was set aside, between its key and its inode."""
IN_THE_WAY = (errno.ELOOP, errno.EISDIR, errno.EFBIG, errno.ENXIO)
"""The errnos of a read of a link, a directory, too large a file and a socket in the place of a record."""
MOST = 10
"""Lines a minute, for each key and reason."""
MOST_OF_NODE = 200
"""Lines a minute, for all of them."""
_LOGGED = "logged-"
_MINUTE = 60.0


def make_way(run: RunDir, path: str, error: OSError) -> None:
    """Remove the obstacle to a write of a record, for another try. Raises the error if no try can help.

    ENOENT: the hook that made the run directory was killed before it had made its parts, or another writer took the
    temporary file.
    """
    if isinstance(error, FileNotFoundError):
        run.make_parts()
    elif error.errno not in IN_THE_WAY:
        raise error
    elif isinstance(error, IsADirectoryError):
        system.remove_tree(path, run.descriptor)


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
    state = unknown_state(key)
    run.write(KeyState, key, state)
    problem = f"the state of key {key} cannot be read ({explain_exception(error)})"
    hint = f"it is kept for a day as {run.path}/{aside}; `reconcile` rebuilds the key"
    run.complaints.append(HookError(Reason.IO, problem, hint=hint))
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
