# SPDX-License-Identifier: Apache-2.0
"""What no usual start asks of resctrl: which groups there are,
and what it means that it refused one.

Source: Documentation/filesystems/resctrl.rst of the kernel and fs/resctrl/rdtgroup.c.
"""

from __future__ import annotations

from hook import system
from hook.errors import WRONG_CTRL_GROUP, HookError, Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Kernel(Protocol):
        """A Resctrl, whose module imports this one."""

        root: str

        def is_mounted(self) -> bool: ...
        def is_gone(self, path: str) -> bool: ...


_REFUSALS = {
    ("mkdir", system.ENOSPC): (Reason.NO_RMIDS, "no RMIDs"),
    # None is free yet; some were given back a moment ago.
    ("mkdir", system.EBUSY): (Reason.RMIDS_IN_LIMBO, "limbo"),
    ("write", system.ESRCH): (Reason.TASK_GONE, "no process"),
    ("write", system.EINVAL): (Reason.NO_CTRL_GROUP, WRONG_CTRL_GROUP),
}
"""By operation and errno: the reason and the kind."""
_DENIED = (system.EACCES, system.EPERM, system.EROFS)
_NO_CTRL_GROUPS = ("info", "mon_data", "mon_groups")


def explain_refusal(
    kernel: Kernel, operation: str, path: str, error: OSError, pid: int | None
) -> HookError:
    """Make the error of an operation on a group that the kernel refused,
    with the facts of this moment.

    `info/last_cmd_status` is about the last command of any process on the machine,
    so nothing is decided by it.
    """
    status = (
        system.try_call(system.read_file, kernel.root + "/info/last_cmd_status") or ""
    ).strip()
    facts = {
        "operation": operation,
        "path": path,
        "error": error,
        "kernel": "" if status == "ok" else status,
    }
    number = error.errno or 0
    other = (Reason.DENIED if number in _DENIED else Reason.IO, "refused")
    reason, kind = _REFUSALS.get((operation, number), other)
    if system.is_gone(error):
        reason, kind = Reason.IO, "group gone"
        if not kernel.is_mounted():
            reason, kind = Reason.NOT_MOUNTED, "unmounted"
        elif kernel.is_gone(path.rpartition("/")[0]):
            reason, kind = Reason.NO_CTRL_GROUP, "no ctrl_group"
    return HookError(reason, kind, pid=pid, **facts)


def list_ctrl_groups(root: str) -> dict[str, list[str]]:
    """The paths of all ctrl_groups, each with the paths of its mon_groups;
    empty if resctrl is not mounted.

    Raises OSError if one cannot be read: a key whose record is rebuilt would lose the groups in it.
    """
    paths = [root, *(f"{root}/{name}" for name in _list(root) or () if name not in _NO_CTRL_GROUPS)]
    listed = ((path, _list(path + "/mon_groups")) for path in paths)
    return {
        path: [f"{path}/mon_groups/{name}" for name in names]
        for path, names in listed
        if names is not None
    }


def list_mon_groups(root: str) -> list[str]:
    """The paths of the mon_groups of all ctrl_groups. Raises OSError."""
    return [path for paths in list_ctrl_groups(root).values() for path in paths]


def _list(directory: str) -> list[str] | None:
    """The names in a directory; None if it is none, or is gone."""
    try:
        return system.list_directory(directory)
    except NotADirectoryError:
        return None
    except OSError as error:
        if not system.is_gone(error):
            raise
        return None
