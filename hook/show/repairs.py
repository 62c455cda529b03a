# SPDX-License-Identifier: Apache-2.0
"""The output of reconcile: each action when it is done, and at most ten failures a run. JSON has all."""

from __future__ import annotations

from typing import Any

from hook.reconcile.run import Outcome, Repairs
from hook.report import format_count
from hook.show import print_printable

MOST_FAILURES = 10
"""Failures that a run prints, and problems that it leaves: `list` and the metrics have them all, and a timer's run
prints them once a minute."""
_ABOUT = ("key", "container", "path", "namespace", "pod", "name", "why")


class RepairLog:
    """Prints the actions of a run, also if it is ended early. A closed pipe stops the output, but no action."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet  # for JSON
        self._done = self._failed = 0

    def note(self, outcome: Outcome) -> None:
        """Print an action that has ended."""
        self._done += outcome.problem is None
        self._failed += outcome.problem is not None
        if outcome.problem is None or self._failed <= MOST_FAILURES:
            self._print(format_outcome(outcome))

    def end(self, result: Repairs) -> None:
        """Print what the run leaves."""
        lines = format_left(result)
        if self._failed > MOST_FAILURES:
            lines.append(f"{format_count(self._failed - MOST_FAILURES, 'further action')} failed: see list")
        if result.ended is not None:
            at = f"it was at: {result.at}" if result.at is not None else "it was looking for more"
            done = format_count(self._done, "action")
            lines.append(f"ended {result.ended}: {done} done, {result.undone} left for the next run; {at}")
        self._print(lines)

    def _print(self, lines: list[str]) -> None:
        if self._is_quiet or not lines:
            return
        try:
            print_printable(lines)
        except BrokenPipeError:
            self._is_quiet = True


def format_outcome(outcome: Outcome) -> list[str]:
    """Format an action: a line, and one each for its problem and its remark."""
    problem = [f"  failed: {outcome.problem}"] if outcome.problem is not None else []
    return [str(outcome.action), *problem, *([f"  {outcome.remark}"] if outcome.remark is not None else [])]


def format_left(result: Repairs) -> list[str]:
    """Format the problems that reconcile may not change, a line each."""
    more = len(result.left) - MOST_FAILURES
    lines = [f"left: {line}" for line in result.left[:MOST_FAILURES]]
    return [*lines, f"left: {format_count(more, 'further problem')} (see reconcile --json)"] if more > 0 else lines


def result_to_json(result: Repairs, *, dry_run: bool) -> dict[str, Any]:
    """Make the object that `reconcile --json` prints."""
    actions = []
    for outcome in result.outcomes:
        about = {name: getattr(outcome.action, name) or None for name in _ABOUT}
        problems = {"problem": outcome.problem, "remark": outcome.remark}
        actions.append({"action": outcome.action.verb, **about, **problems})
    return {"dry_run": dry_run, "actions": actions, "left": result.left, "ended": result.ended, "undone": result.undone}
