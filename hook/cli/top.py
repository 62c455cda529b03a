# SPDX-License-Identifier: Apache-2.0
"""Runs `top`: a screen that is drawn again and again on a terminal, where keys steer it; elsewhere tables or JSON."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
from dataclasses import replace

from hook.base import system
from hook.cli.verbs import get_screen, is_terminal, print_answer, wants_json, write
from hook.observe.screens import TOP_SORTS, format_rates, rates_to_json
from hook.observe.snapshot import Inventory, take_snapshot
from hook.observe.use import compare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any, NoReturn

    from hook.base.models import Options
    from hook.cli.options import Top
    from hook.observe.use import Rates

_FIRST = 1.0  # seconds until there are rates on a terminal, if the interval is longer
_CLEAR = "\x1b[H\x1b[2J"  # the cursor home, and the screen erased: ECMA-48 CUP and ED
_NOTES = "q quit  sort: e energy  m memory  c cache  n name"


def run(options: Options, given: Top) -> None:
    """Print until it is interrupted, which is the usual way to end it, or `--count` is reached."""
    try:
        if is_terminal() and not wants_json(given):
            with Keys() as keys:
                _run_on_terminal(options, given, keys)
        else:
            _run_in_pipe(options, given)
    except KeyboardInterrupt:
        return


def _run_in_pipe(options: Options, given: Top) -> None:
    left = given.count if given.count is not None else 0 if is_terminal() else 1
    former = _look(options)
    while True:
        system.sleep(given.interval)
        seen = _look(options)
        table = _choose(compare(former, seen, system.now_utc()), given)
        if wants_json(given):
            print_answer(rates_to_json(table))
        else:
            lines = format_rates(table, given.sort, get_screen(is_wide=given.output == "wide"))
            print_answer(lines if left <= 1 else [*lines, ""])
        left -= 1
        if left == 0:
            return
        former = seen


def _run_on_terminal(options: Options, given: Top, keys: Keys) -> None:
    sort: str = given.sort
    tables = 0
    former = _look(options)
    table = _choose(compare(former, former, system.now_utc()), given)  # names, and no rates yet: at once
    while True:
        screen = get_screen(is_wide=given.output == "wide")
        lines = format_rates(table, sort, screen, _NOTES)
        write(_CLEAR + "\n".join(lines[: screen.height - 1 if screen.height else None]) + "\n")
        if tables and tables == given.count:
            return
        pressed = keys.wait(given.interval if tables else min(_FIRST, given.interval))
        if pressed == "q":
            return
        sort = next((name for name in TOP_SORTS if pressed and name.startswith(pressed)), sort)
        if pressed:
            continue
        seen = _look(options)
        table = _choose(compare(former, seen, system.now_utc()), given)
        former = seen
        tables += 1


def _look(options: Options) -> Inventory:
    return take_snapshot(options, has_uncharged=True)


def _choose(table: Rates, given: Top) -> Rates:
    """The same with only the keys of the namespaces that were asked for, if any. The node's total is of all keys."""
    if not given.namespace:
        return table
    return replace(table, keys=[it for it in table.keys if it.key.state.pod_namespace in given.namespace])


# --- Single keys from a terminal, which is in the end as it was


class Keys:
    """The keys that are pressed on the terminal at stdin, for `with`. If there is none, nothing is ever pressed.

    The terminal gives each key at once and does not print it; in the end it is as it was, also after SIGTERM.
    """

    def __init__(self) -> None:
        self._terminal = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._is_open = True
        self._former: list[Any] = []

    def __enter__(self) -> Keys:
        signal.signal(signal.SIGTERM, _interrupt)
        if self._terminal is not None:
            self._former = termios.tcgetattr(self._terminal)
            changed = termios.tcgetattr(self._terminal)
            changed[3] &= ~(termios.ICANON | termios.ECHO)
            termios.tcsetattr(self._terminal, termios.TCSADRAIN, changed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._terminal is not None:
            termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._former)

    def wait(self, seconds: float) -> str:
        """The next key, empty if none is pressed for so long."""
        if self._terminal is None or not self._is_open:
            system.sleep(seconds)
            return ""
        if not select.select([self._terminal], [], [], seconds)[0]:
            return ""
        text = os.read(self._terminal, 1).decode("ascii", "replace")
        if not text:  # its other end is closed
            self._is_open = False
            return self.wait(seconds)
        return text


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
