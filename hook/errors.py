# SPDX-License-Identifier: Apache-2.0
"""The failures of the program, each as a kind with its facts.

`words.explain` words them for an operator.

A start of a container loads this module, so kinds are names, not classes: each class more costs
every start half a hundredth of Python's own.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GONE = ("unmounted", "no ctrl_group", "group gone")
"""The kinds by which another program removed the mon_group, or what it is in:
another try may help (ENOENT, ENODEV).
"""
WRONG_CTRL_GROUP = "wrong ctrl_group"
"""The kind of a task that is not in the ctrl_group which the mon_group
belongs to (EINVAL on `tasks`).
"""
UNNAMED = "bad-"
"""The name of a failure record begins so if the state on stdin names no
container; a hash follows.
"""


class HookError(Exception):
    """A failure, for one of these reasons.

    Tools raise kinds of their own: the problem in words, `hint` and `tried`.
    """

    # The reasons in records, metrics and messages; other programs match on these words.
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

    def __init__(self, reason: str, kind: str, **facts: Any) -> None:  # noqa: ANN401  as the kind needs them
        super().__init__(reason, kind, facts)
        self.reason = reason
        self.kind = kind  # a name in words.PROBLEMS, or the problem in words
        self.facts = facts


Reason = HookError
"""The class that has the reasons.

Another one would take a start as long as to load forty functions.
"""
