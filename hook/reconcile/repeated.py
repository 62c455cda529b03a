# SPDX-License-Identifier: Apache-2.0
"""What the last run of reconcile left undone, so that the next one counts it instead of printing it again.

A container without an RMID fails each minute, for the same reason. The file holds what is needed to tell that: written
whole and renamed; unreadable is as if it were not there, and then everything is printed once more.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hook.base import jsontext, system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.reconcile.outcome import Outcome

_FILE = "left-undone.json"
_TEMPORARY = f".{_FILE}.tmp"
_LIMIT = 16 << 20


@dataclass(frozen=True)
class LeftUndone:
    """What a run left undone. `failures`: the reason of each action that failed; `left`: as in outcome.Result."""

    failures: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    def has(self, outcome: Outcome) -> bool:
        """Whether an action has failed for the same reason: in this run, or when the failure was recorded."""
        reason = outcome.reason or ""
        return outcome.has_failed and reason in (outcome.action.reason, self.failures.get(outcome.action.id))

    def add(self, outcome: Outcome) -> None:
        """Note an action that failed."""
        if outcome.has_failed:
            self.failures[outcome.action.id] = outcome.reason or ""

    def count(self) -> Counter[tuple[str, str]]:
        """How many actions failed, by verb and reason."""
        return Counter((name.partition(" ")[0], reason) for name, reason in self.failures.items())


def format_changes(last: LeftUndone, now: LeftUndone) -> list[str]:
    """A line for each verb and reason of which another number of actions fails than in the last run."""
    before, after = last.count(), now.count()
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
        descriptor = system.open_directory(run_dir)
    except OSError:
        return LeftUndone()
    try:
        found = jsontext.loads(system.read_file(_FILE, _LIMIT, descriptor))
        failures = {str(name): str(reason) for name, reason in found["failures"].items()}
        return LeftUndone(failures, list(map(str, found["left"])))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return LeftUndone()
    finally:
        system.close(descriptor)


def write(run_dir: str, now: LeftUndone) -> None:
    """Replace what the last run left undone: a reader, or a crash, sees the old or the new content.

    If it cannot be written, the next run prints more than it has to.
    """
    try:
        descriptor = system.open_directory(run_dir)
    except OSError:
        return
    try:
        system.write_new(_TEMPORARY, jsontext.dumps({"failures": now.failures, "left": now.left}) + "\n", descriptor)
        system.rename(_TEMPORARY, _FILE, descriptor)
    except OSError:
        pass
    finally:
        system.close(descriptor)
