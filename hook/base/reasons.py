# SPDX-License-Identifier: Apache-2.0
"""Why a container is not monitored: the words that operators see, and the failures that createRuntime tells apart."""

from __future__ import annotations

from hook.base.errors import HookError

UNNAMED = "bad-"
"""The begin of the name of a failure record whose state does not say which container it is of; a hash follows."""


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


class GroupGone(HookError):
    """The mon_group, or the ctrl_group above it, was removed under us (ENOENT, ENODEV): worth another look."""


class WrongCtrlGroup(HookError):
    """The task is not in the ctrl_group that the mon_group belongs to (EINVAL on `tasks`)."""


class InLimbo(HookError):
    """No RMID can be had now, but some were freed a moment ago (EBUSY on mkdir)."""
