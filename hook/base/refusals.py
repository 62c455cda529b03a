# SPDX-License-Identifier: Apache-2.0
"""What the kernel's refusals mean: each errno of resctrl and /proc as an error that an operator understands.

Imported when something failed. Source: Documentation/filesystems/resctrl.rst and fs/resctrl/rdtgroup.c of the kernel.
"""

from __future__ import annotations

import errno

from hook.base import procfs, system
from hook.base.errors import HookError
from hook.base.explain import errno_name
from hook.base.reasons import GroupGone, InLimbo, Reason, WrongCtrlGroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.base.resctrl import Resctrl

_GONE = (errno.ENOENT, errno.ENODEV)
_DENIED_HINTS = {
    errno.EROFS: "resctrl is mounted read-only",
    errno.EACCES: "the hook needs root with CAP_DAC_OVERRIDE; look for SELinux or AppArmor denials as well",
    errno.EPERM: "this machine's resctrl may do allocation only, without monitoring",
}


def is_gone(error: OSError) -> bool:
    """Whether a group, or resctrl, is not there any more."""
    return error.errno in _GONE


def of_make(resctrl: Resctrl, path: str, error: OSError) -> HookError:
    """Why a mon_group was not made: `no_rmids`, `rmids_in_limbo`, `denied`, `io`, or GroupGone."""
    tried, kernel = _describe("mkdir", path, error), _read_last_status(resctrl)
    if error.errno == errno.ENOSPC:
        few = "info/*/num_rmids; on arm64 the PMGs of one ctrl_group"
        hint = f"more groups than RMIDs ({few}), or groups that others leaked"
        return HookError(Reason.NO_RMIDS, "no RMID is left for this key", tried=tried, kernel=kernel, hint=hint)
    if error.errno == errno.EBUSY:
        problem = "no RMID is left: some were freed a moment ago, but the kernel cannot reuse them yet"
        hint = "more RMIDs in use than the machine has to spare; those in limbo come back within seconds"
        return InLimbo(Reason.RMIDS_IN_LIMBO, problem, tried=tried, kernel=kernel, hint=hint)
    if is_gone(error):
        return _of_missing(resctrl, path, tried, kernel)
    return _of_other("making the mon_group", tried, kernel, error)


def of_put(resctrl: Resctrl, path: str, pid: int, error: OSError) -> HookError:
    """Why a thread was not moved: `task_gone`, `denied`, `io`, WrongCtrlGroup or GroupGone."""
    tried, kernel = _describe(f"write {pid} to", path + "/tasks", error), _read_last_status(resctrl)
    if error.errno == errno.ESRCH:
        return HookError(Reason.TASK_GONE, f"the container's process {pid} is gone", tried=tried, kernel=kernel)
    if error.errno == errno.EINVAL:
        problem = "the container's process is in another ctrl_group than the mon_group"
        return WrongCtrlGroup(Reason.NO_CTRL_GROUP, problem, tried=tried, kernel=kernel)
    if is_gone(error):
        return _of_missing(resctrl, path, tried, kernel)
    return _of_other("moving the container's process into its mon_group", tried, kernel, error)


def of_counters(resctrl: Resctrl, path: str, error: OSError) -> HookError:
    """Why the counters of a mon_group cannot be read."""
    tried, kernel = _describe("read", path + "/mon_data", error), _read_last_status(resctrl)
    if is_gone(error):
        return _of_missing(resctrl, path, tried, kernel)
    return _of_other("reading the counters", tried, kernel, error)


def of_remove(resctrl: Resctrl, path: str, error: OSError) -> HookError:
    """Why a mon_group was not removed: `denied` or `io`."""
    return _of_other("removing the mon_group", _describe("rmdir", path, error), _read_last_status(resctrl), error)


def of_mount(resctrl: Resctrl) -> HookError:
    """`not_mounted`: there is a resctrl directory, but no mon_group can be made in it."""
    hint = f"mount -t resctrl resctrl {resctrl.root}, then reconcile"
    problem = f"resctrl is not mounted, or cannot monitor: no {resctrl.root}/mon_groups"
    return HookError(Reason.NOT_MOUNTED, problem, hint=hint)


def of_starttime(pid: int) -> HookError:
    """Why the start time of a container's process is not known: `task_gone`, or `io` where /proc does not say."""
    try:
        procfs.starttime(pid)
    except (OSError, ValueError, IndexError) as error:
        return HookError(Reason.IO, f"cannot read the container's process {pid} in /proc", tried=str(error))
    return HookError(Reason.TASK_GONE, f"the container's process {pid} is gone")


def of_ctrl_group(name: str) -> HookError:
    """`no_ctrl_group`: what the bundle names cannot be one."""
    return HookError(Reason.NO_CTRL_GROUP, f"{name[:80]!r} is not a valid name of a ctrl_group")


def _of_missing(resctrl: Resctrl, path: str, tried: str, kernel: str) -> GroupGone:
    if not resctrl.is_mounted():
        return GroupGone(Reason.NOT_MOUNTED, "resctrl was unmounted meanwhile", tried=tried, kernel=kernel)
    parent = path.rpartition("/")[0]
    if not system.is_directory(parent):
        problem = f"the ctrl_group does not exist (no {parent})"
        hint = "the class that the container was given must exist before it starts"
        return GroupGone(Reason.NO_CTRL_GROUP, problem, tried=tried, kernel=kernel, hint=hint)
    problem = "the mon_group was removed again and again while it was being used"
    hint = "another tool resets resctrl: pqos, CRI-O starting, or a second monitoring agent"
    return GroupGone(Reason.IO, problem, tried=tried, kernel=kernel, hint=hint)


def _of_other(doing: str, tried: str, kernel: str, error: OSError) -> HookError:
    hint = _DENIED_HINTS.get(error.errno or 0, "")
    reason = Reason.DENIED if hint else Reason.IO
    return HookError(reason, f"the kernel refused {doing}", tried=tried, kernel=kernel, hint=hint)


def _describe(call: str, path: str, error: OSError) -> str:
    return f"{call} {path}: {errno_name(error)}"


def _read_last_status(resctrl: Resctrl) -> str:
    """The kernel's word on the last command of any process on this machine: a hint, nothing to decide by."""
    try:
        status = system.read_file(resctrl.root + "/info/last_cmd_status").strip()
    except OSError:
        return ""
    return "" if status == "ok" else status
