# SPDX-License-Identifier: Apache-2.0
"""Runs reconcile for a person or a timer, and prints each action when it is done.

The journal of the timer gets what has changed since its last run: what fails again for the same reason is counted, and
the count is printed when it is another one. A terminal gets all of it, and --json one object at the end.
"""

from __future__ import annotations

import gc
import signal
import sys

from hook.base import system
from hook.base.text import printable
from hook.host import oci_runtimes
from hook.reconcile import reconcile, repeated
from hook.reconcile.outcome import Follower, Result, format_left, format_outcome
from hook.reconcile.repeated import LeftUndone

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection
    from types import FrameType

    from hook.base.models import Options
    from hook.reconcile.outcome import Outcome
    from hook.reconcile.plan import Action

_ERASE = "\r\x1b[K"  # to the beginning of the line, and all of it erased: ECMA-48 EL
_PATIENCE = 1.0  # seconds before a line of progress
_INTERVAL = 0.2  # seconds between two


def plan(options: Options, given: argparse.Namespace, live: Collection[str] | None, longest: int | None) -> Result:
    """What `run` would do first. Raises HookError, OSError."""
    result = reconcile.plan_actions(options, live, longest_linger=longest)
    return result + _adopt(options, given, Follower()) if given.adopt else result


def run(options: Options, given: argparse.Namespace, live: Collection[str] | None, longest: int | None) -> Result:
    """Do all actions, and print them unless they are to be JSON. Raises HookError, OSError."""
    gc.disable()  # to look for cycles among tens of thousands of records takes a quarter of the time, and finds none
    for_log = not (given.json or (sys.stdout is not None and sys.stdout.isatty()))
    output = Output(repeated.read(options.run_dir) if for_log else LeftUndone(), is_quiet=given.json)
    result = reconcile.run(options, live, longest_linger=longest, follower=output)
    if given.adopt and not output.is_over:
        result += _adopt(options, given, output)
    output.finish(result)
    if for_log and not output.is_over:  # what was not begun is not known to work
        repeated.write(options.run_dir, output.now)
    return result


def _adopt(options: Options, given: argparse.Namespace, follower: Follower) -> Result:
    states, problems = oci_runtimes.list_states(further=given.runtime_root)
    return reconcile.adopt(options, states, dry_run=given.dry_run, follower=follower) + Result(left=problems)


class Output(Follower):
    """Prints what a run does. SIGTERM and SIGINT end it after the action in hand; a second one ends it at once.

    `last`: what failed in the last run, and is counted only. `is_quiet`: prints nothing, for JSON.
    """

    def __init__(self, last: LeftUndone, *, is_quiet: bool) -> None:
        self.now = LeftUndone()
        self._signal = ""
        self._last = last
        self._is_quiet = is_quiet
        self._done = 0
        self._drawn = system.monotonic() + _PATIENCE - _INTERVAL
        self._shows_progress = sys.stderr is not None and sys.stderr.isatty()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end_run)

    def _end_run(self, number: int, _frame: FrameType | None) -> None:
        self.is_over = True
        self._signal = signal.Signals(number).name
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)

    def begin(self, action: Action, number: int, total: int) -> None:
        """Show on a terminal how far it is."""
        if self._shows_progress and system.monotonic() - self._drawn >= _INTERVAL:
            self._drawn = system.monotonic()
            self._draw(f"{_ERASE}{number} of {total}: {action.verb}")

    def end(self, outcome: Outcome) -> None:
        """Print an action, unless it failed as in the last run."""
        self._done += outcome.problem is None
        self.now.add(outcome)
        if not self._last.has(outcome):
            self._print(format_outcome(outcome))

    def finish(self, result: Result) -> None:
        """Print what stays as it is, if that has changed since the last run, and what was not begun."""
        self.now.left.extend(result.left)
        self._print([format_left(line) for line in result.left if line not in self._last.left])
        if self.is_over:
            self._print([f"ended by {self._signal}: {self._done} actions done, {result.undone} left for the next run"])
        else:
            self._print(repeated.format_changes(self._last, self.now))
        self._draw(_ERASE)

    def _print(self, lines: list[str]) -> None:
        """Print lines without control characters, and flush them. A closed pipe stops the output, but no action."""
        if self._is_quiet or not lines or sys.stdout is None:
            return
        self._draw(_ERASE)
        try:
            sys.stdout.write("".join(printable(line) + "\n" for line in lines))
            sys.stdout.flush()
        except BrokenPipeError:
            self._is_quiet = True

    def _draw(self, text: str) -> None:
        if self._shows_progress:
            sys.stderr.write(text)
            sys.stderr.flush()
