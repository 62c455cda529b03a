"""Why a container is not monitored: the reasons that operators see, and the exception that carries one."""

from __future__ import annotations

import errno

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


class Reason:
    """The reasons as they stand in records, metrics and messages; outsiders match on these words."""

    NO_RMIDS = "no_rmids"
    RMIDS_IN_LIMBO = "rmids_in_limbo"
    BAD_KEY = "bad_key"
    BAD_STATE = "bad_state"
    NO_CTRL_GROUP = "no_ctrl_group"
    DENIED = "denied"
    TASK_GONE = "task_gone"
    LOCK_TIMEOUT = "lock_timeout"
    NOT_MOUNTED = "not_mounted"
    USAGE = "usage"
    IO = "io"


class HookError(Exception):
    """Something that an operator must be able to understand from one line.

    problem: what is wrong, in the operator's terms. tried: the operation that failed, with its errno.
    kernel: `info/last_cmd_status` just after it; one for the whole machine, so a hint and never a proof.
    hint: what to do about it.
    """

    def __init__(self, reason: str, problem: str, *, tried: str = "", kernel: str = "", hint: str = "") -> None:
        super().__init__(problem)
        self.reason = reason
        self.problem = problem
        self.tried = tried
        self.kernel = kernel
        self.hint = hint

    def __str__(self) -> str:
        parts = [self.problem]
        if self.tried:
            parts.append("tried: " + self.tried)
        if self.kernel:
            parts.append("kernel: " + self.kernel)
        if self.hint:
            parts.append("hint: " + self.hint)
        return "; ".join(parts)


class GroupGone(HookError):
    """The mon_group, or the ctrl_group above it, was removed under us (ENOENT, ENODEV): worth another look."""


class WrongCtrlGroup(HookError):
    """The task is not in the ctrl_group that the mon_group belongs to (EINVAL on `tasks`)."""


class InLimbo(HookError):
    """No RMID can be had now, but some were freed a moment ago (EBUSY on mkdir)."""


def errno_name(error: OSError) -> str:
    """`ENOSPC` and the like: what an operator can look up."""
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


def explain(errors: Sequence[Mapping[str, Any]]) -> str:
    """The first of the errors that a model found in what it was given: where, and what."""
    first = errors[0]
    return f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}"


def refused(problem: str, error: OSError) -> HookError:
    """A HookError `io` for a system call of ours that failed outside of resctrl."""
    hints = {
        errno.ENOSPC: "the file system of the run directory is full, or out of inodes",
        errno.EROFS: "the file system of the run directory is read-only",
        errno.EMFILE: "the runtime left the hook no free descriptor",
    }
    name = f" {error.filename!r}" if error.filename is not None else ""
    tried = f"{error.strerror or error}{name}: {errno_name(error)}"
    return HookError(Reason.IO, problem, tried=tried, hint=hints.get(error.errno or 0, ""))


def known(problem: str, error: HookError | OSError) -> HookError:
    """A HookError as it is, or one with this problem for a system call of ours that failed."""
    return error if isinstance(error, HookError) else refused(problem, error)


def unforeseen(error: BaseException) -> HookError:
    """A HookError for an exception that nobody planned for: its type, its text and where it came from."""
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
