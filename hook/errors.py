# SPDX-License-Identifier: Apache-2.0
"""The exception that says why a container is not monitored, and its reasons. `explain` has its kinds and texts."""

from __future__ import annotations

UNNAMED = "bad-"
"""The name of a failure record begins so if the state on stdin names no container; a hash follows."""


class Reason:
    """The reasons in records, metrics and messages; other programs match on these words."""

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
    """A failure as one line that an operator understands.

    problem: in the operator's terms. tried: the operation that failed, with its errno.
    kernel: `info/last_cmd_status` just after it; the machine has only one, so another process may have caused it.
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
        more = (("tried", self.tried), ("kernel", self.kernel), ("hint", self.hint))
        return "; ".join([self.problem, *(f"{name}: {text}" for name, text in more if text)])
