# SPDX-License-Identifier: Apache-2.0
"""Runs reconcile for a person or a timer, and prints each action when it is done.

The timer's journal gets only changes since the last run: actions that fail again for the same reason are counted, and
the count is printed when it changes. A terminal gets everything, and --json one object at the end.
"""

from __future__ import annotations

import gc
from collections.abc import Collection

from hook.cli.deadline import Ended
from hook.explain import format_count
from hook.models import Options
from hook.node.models import LeftUndone
from hook.reconcile import run
from hook.reconcile.diagnose import Action
from hook.reconcile.run import Outcome, Result
from hook.reconcile.survey import ListStates
from hook.show.terminal import Meter, is_terminal, print_printable

_LOOKING = "looking for what is to be repaired"


def repair_and_print(
    options: Options, live: Collection[str] | None, longest: int | None, asks: ListStates | None, *, is_quiet: bool
) -> Result:
    """Do all actions, and print them unless `is_quiet`, for JSON. Raises HookError, OSError."""
    gc.disable()  # the collector takes a quarter of the time on tens of thousands of records, and finds no cycle
    for_log = not (is_quiet or is_terminal())
    with Meter() as meter:
        progress = Progress(meter, is_quiet=is_quiet, for_log=for_log)
        try:
            return run.repair(options, live, longest, asks, progress)
        except Ended as error:
            return progress.end_run(str(error))


class Progress(run.Follower):
    """Prints the actions of a run, also if the run is ended early.

    `is_quiet`: print nothing, for JSON. `for_log`: only count the failures that the last such run has left, too.
    """

    def __init__(self, meter: Meter, *, is_quiet: bool, for_log: bool) -> None:
        self._meter = meter
        self._now = LeftUndone()
        self._last = LeftUndone()
        self._for_log = for_log
        self._is_quiet = is_quiet
        self._outcomes: list[Outcome] = []
        self._action: Action | None = None  # the action that has begun
        self._undone = 0  # planned actions, with the one that has begun

    def start(self, last: LeftUndone) -> None:
        """Note the failures of the last run."""
        self._meter.show(_LOOKING)
        if self._for_log:
            self._last = last

    def begin(self, action: Action, number: int, total: int) -> None:
        """Show the progress on a terminal."""
        self._action, self._undone = action, total - number + 1
        self._meter.show(f"{number} of {total}: {action.verb}")

    def wait(self, number: int) -> None:
        """Show that it waits for threads."""
        self._action, self._undone = None, number
        self._meter.show(f"waiting for threads of {format_count(number, 'container')}" if number else _LOOKING)

    def end(self, outcome: Outcome | None) -> None:
        """Print an action, unless it failed as in the last run."""
        self._undone = max(0, self._undone - 1)
        self._action = None
        if not self._undone:
            self._meter.show(_LOOKING)
        if outcome is None:
            return
        self._outcomes.append(outcome)
        if outcome.has_failed:
            self._now.failures[outcome.action.id] = outcome.reason or ""
        if not run.is_known(self._last, outcome):
            self._print(run.format_outcome(outcome))

    def finish(self, result: Result) -> LeftUndone | None:
        """Print the problems that reconcile leaves, if they have changed since the last run."""
        self._now.left.extend(result.left)
        self._print([run.format_left(line) for line in result.left if line not in self._last.left])
        self._print(run.format_changes(self._last, self._now))
        return self._now if self._for_log else None

    def end_run(self, why: str) -> Result:
        """Print how far a run came that was ended; returns its partial result."""
        done = sum(it.problem is None for it in self._outcomes)
        at = f"; it was at: {self._action}" if self._action is not None else ""
        at = at if self._undone else "; it was looking for more"
        self._print([f"ended {why}: {format_count(done, 'action')} done, {self._undone} left for the next run{at}"])
        return Result(self._outcomes, undone=self._undone, ended=why)

    def _print(self, lines: list[str]) -> None:
        """Print lines. A closed pipe stops the output, but no action."""
        if self._is_quiet or not lines:
            return
        with self._meter.hide():
            try:
                print_printable(lines)
            except BrokenPipeError:
                self._is_quiet = True
