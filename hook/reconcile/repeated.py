# SPDX-License-Identifier: Apache-2.0
"""What the last run of reconcile left undone, so that the next one counts it instead of printing it again.

A container without an RMID fails each minute, for the same reason. The record holds what is needed to tell that;
unreadable is as if it were not there, and then everything is printed once more.
"""

from __future__ import annotations

from collections import Counter

from hook.base import system
from hook.base.errors import HookError
from hook.base.models import LeftUndone
from hook.state.records import Records
from hook.state.store import RunDir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.reconcile.run import Outcome


def is_known(last: LeftUndone, outcome: Outcome) -> bool:
    """Whether an action has failed for the same reason: in the last run, or when the failure was recorded."""
    reason = outcome.reason or ""
    return outcome.has_failed and reason in (outcome.action.reason, last.failures.get(outcome.action.id))


def _count(undone: LeftUndone) -> Counter[tuple[str, str]]:
    """How many actions failed, by verb and reason."""
    return Counter((name.partition(" ")[0], reason) for name, reason in undone.failures.items())


def format_changes(last: LeftUndone, now: LeftUndone) -> list[str]:
    """A line for each verb and reason of which another number of actions fails than in the last run."""
    before, after = _count(last), _count(now)
    return [
        f"{after[verb, reason]} containers still not monitored: {reason} (see list)"
        if verb == "retry"
        else f"{after[verb, reason]} actions still fail: {verb}, {reason} (see reconcile --json)"
        for verb, reason in sorted({*before, *after})
        if after[verb, reason] != before[verb, reason]
    ]


def read(run_dir: str) -> LeftUndone:
    """Read what the last run left undone."""
    try:
        with Records(run_dir) as records:
            return records.glance(LeftUndone) or LeftUndone()
    except HookError:
        return LeftUndone()


def write(run_dir: str, now: LeftUndone) -> None:
    """Replace what the last run left undone. If it cannot be written, the next run prints more than it has to."""
    try:
        if system.is_directory(run_dir):
            RunDir(run_dir).write(LeftUndone, "", now)
    except (HookError, OSError):
        pass
