# SPDX-License-Identifier: Apache-2.0
"""Clears what is in the way of a record, and sets unreadable records aside.

The core imports this only in these cases, by `store`; the tools make an unknown state by it.
"""

from __future__ import annotations

from hook import rare, system
from hook.errors import HookError, Reason
from hook.models import KeyState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from hook.models import Kind

    class Directory(Protocol):
        """What is used of store.RunDir, which imports this module."""

        path: str
        descriptor: int
        complaints: list[HookError]

        def read_json(self, model: type[KeyState], name: str) -> Any: ...  # noqa: ANN401  that is what JSON is

        def write(self, model: type[KeyState], name: str, record: KeyState) -> None: ...


ASIDE = ".json.unreadable-"
"""In the name of an unreadable state file that was set aside, between its key and its inode."""
IN_THE_WAY = (system.ELOOP, system.EISDIR, system.EFBIG, system.ENXIO)
"""The errnos of a read of a link, a directory,
too large a file and a socket in the place of a record.
"""


def make_way(run: Directory, path: str, error: OSError) -> None:
    """Remove the obstacle to a write of a record, for another try.

    Raises the error if no try can help.

    ENOENT: the hook that made the run directory was killed before it had made its parts,
    or another writer took the temporary file.
    """
    if isinstance(error, FileNotFoundError):
        rare.make_parts(run.descriptor)
    elif error.errno not in IN_THE_WAY:
        raise error
    elif isinstance(error, IsADirectoryError):
        rare.remove_tree(path, run.descriptor)


def set_aside(run: Directory, name: str, error: Exception) -> KeyState:
    """Set an unreadable state file aside, and return the new state, which is recovering.

    Call it under the key's lock.

    Raises the OSError of a read that failed for another reason than the file itself, such as EIO.
    """
    if isinstance(error, OSError) and error.errno not in IN_THE_WAY:
        raise error
    path = f"groups/{name}.json"
    # No two files have the same inode at a time, so this name is free,
    # or is another name of this very file.
    aside = f"groups/{name}{ASIDE}{system.inode(path, run.descriptor)}"
    # A second name for the old file, then the new state over the first name: killed in between, or
    # with no room for the new state, the next hook finds the key as unreadable as this one did,
    # and never takes it for new.
    try:
        rare.link(path, aside, run.descriptor)
    except FileExistsError:
        pass
    except PermissionError:  # a directory has one name only
        system.rename(path, aside, run.descriptor)
    state = _salvage(run, name)
    run.write(KeyState, name, state)
    run.complaints.append(
        HookError(Reason.IO, "unreadable state", key=name, error=error, kept=f"{run.path}/{aside}")
    )
    return state


def _salvage(run: Directory, name: str) -> KeyState:
    """Make the new state of a key whose record is unreadable,
    with the lines of history that it owes, if they show.

    They do in the record of a newer version.
    """
    state = unknown_state(name)
    try:
        content = run.read_json(KeyState, name)
        kept = {field: content[field] for field in ("history_file", "owed") if field in content}
        return KeyState.model_validate({**state.model_dump(), **kept})
    except (OSError, ValueError, TypeError):
        return state


def unknown_state(name: str) -> KeyState:
    """Make the state of a key of which only the name is known: recovering,
    without members and groups.
    """
    is_uid = len(name) == 36 and name.count("-") == 4 and not name.strip("0123456789abcdef-")
    kind: Kind = "pod" if is_uid else "container"
    now, boottime = rare.now_utc(), system.boottime()
    return KeyState(key=name, kind=kind, recovering=True, created_at=now, created_boottime=boottime)
