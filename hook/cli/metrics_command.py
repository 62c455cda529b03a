# SPDX-License-Identifier: Apache-2.0
"""The command `metrics`: what it measures, and what it remembers of its last answer."""

from __future__ import annotations

from hook.base import system
from hook.base.counters import EVENTS
from hook.base.errors import HookError
from hook.base.reasons import Reason
from hook.observe import prometheus, snapshot
from hook.observe.prometheus import Choice

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from hook.base.models import Options
    from hook.observe.prometheus import Family, Former
    from hook.observe.snapshot import Uncharged


def measure(options: Options, given: argparse.Namespace, former: Former | None = None) -> list[Family]:
    """The metrics of this moment. `former`: what was exported before.

    Raises HookError, as take_snapshot, and `usage` for an event that this machine does not have.
    """
    choice = Choice(given.events, given.sum_domains)
    seen = snapshot.take_snapshot(options, has_uncharged=True)
    _check_events(choice, seen.uncharged)
    return prometheus.make_families(seen, former, choice)


def _check_events(choice: Choice, uncharged: Uncharged) -> None:
    """Raise HookError for a misspelt event; an event that is known may be missing on this machine."""
    shown = {counter.rpartition("/")[2] for values in uncharged.values() for counter in values}
    if unknown := sorted((choice.events or frozenset()) - shown - EVENTS.keys()) if shown else []:
        there = f"the kernel has {', '.join(sorted(shown))}"
        raise HookError(Reason.USAGE, f"--events: no such event: {', '.join(unknown)}", hint=there)


def write_textfile(options: Options, given: argparse.Namespace) -> None:
    """Replace the file of --textfile. Raises HookError; OSError, and the file is unchanged then."""
    text = prometheus.format_text(measure(options, given, prometheus.read_former(given.textfile)))
    prometheus.write_textfile(given.textfile, text)


def make_answers(options: Options, given: argparse.Namespace) -> Callable[[], str]:
    """A function that measures at each call, and lets no counter dip from one call to the next."""
    former, at = prometheus.Former(), 0.0

    def answer() -> str:
        nonlocal former, at
        now = system.monotonic()
        age = prometheus.Former(now - at, former.samples, former.containers)
        text = prometheus.format_text(measure(options, given, age))
        former, at = prometheus.parse_former(text, 0.0), now
        return text

    return answer
