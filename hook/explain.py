# SPDX-License-Identifier: Apache-2.0
"""Words each failure for an operator, and makes text safe to print. Imported only after a failure, or by commands.

Source of what errnos of resctrl mean: Documentation/filesystems/resctrl.rst and fs/resctrl/rdtgroup.c of the kernel.
"""

from __future__ import annotations

import errno

from hook import procfs, system
from hook.errors import HookError, Reason
from hook.models import ValidationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from hook.resctrl import Resctrl

_DENIED_HINTS = {
    errno.EROFS: "resctrl is mounted read-only",
    errno.EACCES: "the hook needs root with CAP_DAC_OVERRIDE; look for SELinux or AppArmor denials as well",
    errno.EPERM: "this machine's resctrl may do allocation only, without monitoring",
}
_RUN_DIR_HINTS = {
    errno.ENOSPC: "the file system of the run directory is full, or out of inodes",
    errno.EROFS: "the file system of the run directory is read-only",
    errno.EMFILE: "the runtime left the hook no free descriptor",
}
_WITHOUT = "--key=container works without it"
_LONGEST_LINE = 1000
_MOST_NAMED = 5
_ID_LENGTH = 64  # of the IDs that container engines make
_SHORT_LENGTH = 12  # of such an ID where people read it, as Podman and crictl print it


class GroupGone(HookError):
    """Another program removed the mon_group, or the ctrl_group above it (ENOENT, ENODEV): another try may help."""


class WrongCtrlGroup(HookError):
    """The task is not in the ctrl_group that the mon_group belongs to (EINVAL on `tasks`)."""


class InLimbo(HookError):
    """No RMID is free yet, but some were given back a moment ago (EBUSY on mkdir): waiting may help."""


# --- Texts of tenants, made safe to print


def printable(text: str) -> str:
    """Return `text` as one line of printable ASCII of bounded length, so that no tenant can forge log lines."""
    short = text if len(text) <= _LONGEST_LINE else text[:_LONGEST_LINE] + "..."
    return "".join(c if " " <= c <= "~" else c.encode("unicode_escape", "replace").decode() for c in short)


def short_id(container: str) -> str:
    """The first 12 digits of a container ID of 64 hex digits; another name is returned whole."""
    return container[:_SHORT_LENGTH] if len(container) == _ID_LENGTH else container


def who(container: str, namespace: str | None = None, pod: str | None = None, name: str | None = None) -> str:
    """Name a container for people: `namespace/pod container (12 digits of the ID)`, less what is unknown.

    Podman's pods have no namespace.
    """
    known = [*filter(None, (name_pod(namespace, pod), name))]
    return printable(" ".join([*known, f"({short_id(container)})"]) if known else short_id(container))


def name_pod(namespace: str | None, pod: str | None) -> str:
    """`namespace/pod`, or the name of a pod without a namespace, as Podman's are; empty: it is unknown."""
    return f"{namespace}/{pod}" if namespace and pod else pod or ""


def list_pod_names(namespace: str | None, pod: str | None) -> list[str]:
    """The names by which a pod can be found: its own, and `namespace/pod`."""
    return [*filter(None, (pod, name_pod(namespace, pod)))]


def errno_name(error: OSError) -> str:
    """The symbol of an errno, such as ENOSPC, which an operator can look up."""
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


def explain_invalid(errors: Sequence[Mapping[str, Any]]) -> str:
    """The place and message of the first error that a model found in its input."""
    first = errors[0]
    return f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}"


def explain_exception(error: Exception) -> str:
    """An exception's text in one line: of a ValidationError the first error, of a system call its path and errno."""
    if isinstance(error, ValidationError):
        return explain_invalid(error.errors())
    if not isinstance(error, OSError):
        return str(error)
    path, code = error.filename, errno_name(error)
    if isinstance(path, bytes):  # as `system` passes it
        path = path.decode("utf-8", "surrogateescape")
    name = f" {path!r}" if path is not None else ""
    return f"{error.strerror or error}{name}" + (f": {code}" if code != error.strerror else "")


def format_count(number: int, noun: str) -> str:
    """A number of things: `1 container`, `2 containers`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def name_first(names: Iterable[str]) -> str:
    """The first few of these names, and how many more there are."""
    found = list(names)
    more = [f"and {len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else []
    return ", ".join([*found[:_MOST_NAMED], *more])


# --- Exceptions of any kind


def system_error(problem: str, error: OSError) -> HookError:
    """`io`: a system call of ours failed outside of resctrl."""
    hint = _RUN_DIR_HINTS.get(error.errno or 0, "")
    if error.errno in (errno.EACCES, errno.EPERM) and system.user_id() != 0:
        hint = "run it as root"
    return HookError(Reason.IO, problem, tried=explain_exception(error), hint=hint)


def as_hook_error(problem: str, error: HookError | OSError) -> HookError:
    """Return a HookError as it is; for a failed system call of ours, make one with this problem."""
    return error if isinstance(error, HookError) else system_error(problem, error)


def unforeseen_error(error: BaseException) -> HookError:
    """`io`: a defect of ours. The error has the exception's type and text, and the line that raised it."""
    traceback = error.__traceback__
    place = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        place = f" at {code.co_filename}:{traceback.tb_lineno} in {code.co_name}"
        traceback = traceback.tb_next
    return HookError(
        Reason.IO,
        f"unforeseen {type(error).__name__}: {error}",
        tried="the hook itself" + place,
        hint="a defect of resctrl-mon-hook: please report this line",
    )


# --- The container: its process, its pod, its ctrl_group


def place_error(pid: int) -> HookError:
    """`io`: /proc does not show the cgroups of a process, so its container may be in any pod."""
    hint = "`reconcile` tries again, by the cgroup in the bundle"
    return HookError(Reason.IO, f"the cgroup of process {pid} cannot be read, so its pod is unknown", hint=hint)


def starttime_error(pid: int) -> HookError:
    """The start time of a container's process is unknown: `task_gone`, or `io` if /proc cannot be read."""
    try:
        procfs.starttime(pid)
    except (OSError, ValueError, IndexError) as error:
        return HookError(
            Reason.IO, f"cannot read the container's process {pid} in /proc", tried=explain_exception(error)
        )
    return HookError(Reason.TASK_GONE, f"the container's process {pid} is gone")


def ctrl_group_error(name: str) -> HookError:
    """`no_ctrl_group`: the bundle names a ctrl_group that cannot exist."""
    return HookError(Reason.NO_CTRL_GROUP, f"{name[:80]!r} is not a valid name of a ctrl_group")


def annotations_error(uid: str | None, wrong: set[str]) -> HookError:
    """`bad_key`. `uid`: the pod's, in the path of the cgroup. `wrong`: what the annotations say instead."""
    found = ", ".join(repr(text[:80]) for text in sorted(wrong))
    if uid is not None:
        problem = f"the annotations name another pod ({found}) than the cgroup, whose pod {uid} is charged"
        return HookError(Reason.BAD_KEY, problem, hint="the pod's author may want to bill that other pod")
    if len(wrong) > 1:
        problem = f"the annotations name two pods ({found}), and the cgroup names none"
        return HookError(Reason.BAD_KEY, problem, hint=f"a pod's author may have added one; {_WITHOUT}")
    problem = f"the annotations hold an invalid pod UID: {found}"
    hint = f"a pod UID is 36 characters with dashes, or 32 hex digits; {_WITHOUT}"
    return HookError(Reason.BAD_KEY, problem, hint=hint)


def cgroup_error(bundle: str) -> HookError:
    """`bad_key`: no trustworthy source says which pod a container that runs already belongs to."""
    problem = f"cannot tell which pod it belongs to: {bundle}/config.json has no absolute linux.cgroupsPath"
    return HookError(Reason.BAD_KEY, problem, hint=f"restart the container, so that its hook runs; {_WITHOUT}")


def sandbox_error(sandbox_id: str) -> HookError:
    """`bad_key`: the annotation for `--key=sandbox` (io.kubernetes.cri-o.SandboxID) is no container ID."""
    problem = f"the annotations hold an invalid sandbox ID: {sandbox_id[:80]!r}; its own ID is its key"
    return HookError(Reason.BAD_KEY, problem, hint=_WITHOUT)


# --- The kernel's refusals


def is_gone(error: OSError) -> bool:
    """Whether what a file is in was removed: a group, resctrl itself, a cgroup. ENODEV: while the file was open."""
    return error.errno in (errno.ENOENT, errno.ENODEV)


def mount_error(root: str) -> HookError:
    """`not_mounted`: the resctrl directory exists, but no mon_group can be made in it."""
    hint = f"mount -t resctrl resctrl {root}, then reconcile"
    problem = f"resctrl is not mounted, or cannot monitor: no {root}/mon_groups"
    return HookError(Reason.NOT_MOUNTED, problem, hint=hint)


def make_error(resctrl: Resctrl, path: str, error: OSError) -> HookError:
    """Why a mon_group was not made: `no_rmids`, `rmids_in_limbo`, `denied`, `io`, or GroupGone."""
    tried, kernel = f"mkdir {path}: {errno_name(error)}", _read_last_status(resctrl)
    if error.errno == errno.ENOSPC:
        few = "info/*/num_rmids; on arm64 the PMGs of one ctrl_group"
        hint = f"more groups than RMIDs ({few}), or groups that others leaked"
        return HookError(Reason.NO_RMIDS, "no RMID is left for this key", tried=tried, kernel=kernel, hint=hint)
    if error.errno == errno.EBUSY:
        problem = "no RMID is left: some were freed, but the kernel cannot reuse them yet (limbo)"
        hint = "they come back as their cache lines go, sooner with a higher info/L3_MON/max_threshold_occupancy"
        return InLimbo(Reason.RMIDS_IN_LIMBO, problem, tried=tried, kernel=kernel, hint=hint)
    return kernel_error(resctrl, path, error, "making the mon_group", f"mkdir {path}")


def put_error(resctrl: Resctrl, path: str, pid: int, error: OSError) -> HookError:
    """Why a thread was not moved: `task_gone`, `denied`, `io`, WrongCtrlGroup or GroupGone."""
    tried, kernel = f"write {pid} to {path}/tasks: {errno_name(error)}", _read_last_status(resctrl)
    if error.errno == errno.ESRCH:
        return HookError(Reason.TASK_GONE, f"the container's process {pid} is gone", tried=tried, kernel=kernel)
    if error.errno == errno.EINVAL:
        problem = "the container's process is in another ctrl_group than the mon_group"
        return WrongCtrlGroup(Reason.NO_CTRL_GROUP, problem, tried=tried, kernel=kernel)
    return kernel_error(
        resctrl, path, error, "moving the container's process into its mon_group", f"write {pid} to {path}/tasks"
    )


def kernel_error(resctrl: Resctrl, path: str, error: OSError, doing: str, tried: str) -> HookError:
    """The reasons for which the kernel can refuse any call on a group: `denied`, `not_mounted`, `io`, GroupGone."""
    tried, kernel = f"{tried}: {errno_name(error)}", _read_last_status(resctrl)
    if not is_gone(error):
        hint = _DENIED_HINTS.get(error.errno or 0, "")
        reason = Reason.DENIED if hint else Reason.IO
        return HookError(reason, f"the kernel refused {doing}", tried=tried, kernel=kernel, hint=hint)
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


def _read_last_status(resctrl: Resctrl) -> str:
    """Read `info/last_cmd_status`: about the last command of any process on the machine, so nothing to decide by."""
    status = (system.try_call(system.read_file, resctrl.root + "/info/last_cmd_status") or "").strip()
    return "" if status == "ok" else status


# --- The run directory


def owner_error(path: str, owner: int, mode: int) -> HookError:
    """`io`: a user other than root could plant files in the run directory, or we do not run as root."""
    if owner == 0 and not mode & 0o022:
        return HookError(Reason.IO, f"the run directory {path} is root's", hint="run it as root")
    hint = f"remove it, or make it root's with mode 0755 (it is uid {owner}'s, mode {mode & 0o7777:04o})"
    problem = f"the run directory {path} is not owned by root, or is writable by others"
    return HookError(Reason.IO, problem, hint=hint)


def lock_error(run_dir: str, key: str) -> HookError:
    """`lock_timeout`: another hook held the key's lock for longer than `--lock-timeout`."""
    return HookError(
        Reason.LOCK_TIMEOUT,
        f"timed out waiting for the lock of key {key}",
        tried=f"flock {run_dir}/locks/{key}",
        hint="another hook of this pod is stuck, or the node is starved: raise --lock-timeout",
    )


def index_error(run_dir: str, container: str, error: Exception) -> HookError:
    """`io`: the record that says which key a container belongs to cannot be read."""
    problem = f"the index of container {container} cannot be read ({explain_exception(error)})"
    hint = f"`reconcile` drops its member once it is dead; the file is {run_dir}/members/{container}.json"
    return HookError(Reason.IO, problem, hint=hint)
