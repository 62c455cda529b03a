# SPDX-License-Identifier: Apache-2.0
"""Runs `top`: on a terminal a screen that keys control, which is drawn again and again; elsewhere tables or JSON."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from hook.base import system
from hook.base.models import Options
from hook.cli.options import Top
from hook.cli.verbs import get_screen, is_terminal, print_answer, wants_json, write
from hook.observe.screens import TOP_SORTS, format_rates, rates_to_json
from hook.observe.snapshot import Inventory, take_snapshot
from hook.observe.use import Rates, compare

_FIRST = 1.0  # seconds until a terminal shows the first rates, even if the interval is longer
_CLEAR = "\x1b[H\x1b[2J"  # the cursor home, and the screen erased: ECMA-48 CUP and ED
_NOTES = "q quit  sort: e energy  m memory  c cache  n name"


def show_top(options: Options, given: Top) -> None:
    """Print until an interrupt, the usual end, or until `--count` is reached."""
    try:
        if is_terminal() and not wants_json(given):
            with _read_keys() as wait_for_key:
                _draw_screens(options, given, wait_for_key)
        else:
            _print_tables(options, given)
    except KeyboardInterrupt:
        return


def _print_tables(options: Options, given: Top) -> None:
    left = given.count if given.count is not None else 0 if is_terminal() else 1
    former = _look(options)
    while True:
        system.sleep(given.interval)
        seen = _look(options)
        table = _compare(former, seen, given)
        if wants_json(given):
            print_answer(rates_to_json(table))
        else:
            lines = format_rates(table, given.sort, get_screen(is_wide=given.output == "wide"))
            print_answer(lines if left <= 1 else [*lines, ""])
        left -= 1
        if left == 0:
            return
        former = seen


def _draw_screens(options: Options, given: Top, wait_for_key: Callable[[float], str]) -> None:
    sort: str = given.sort
    tables = 0
    former = _look(options)
    table = _compare(former, former, given)  # names, and no rates yet: at once
    while True:
        screen = get_screen(is_wide=given.output == "wide")
        lines = format_rates(table, sort, screen, _NOTES)
        write(_CLEAR + "\n".join(lines[: screen.height - 1 if screen.height else None]) + "\n")
        if tables and tables == given.count:
            return
        pressed = wait_for_key(given.interval if tables else min(_FIRST, given.interval))
        if pressed == "q":
            return
        if pressed:
            sort = next((name for name in TOP_SORTS if name.startswith(pressed)), sort)
            continue
        seen = _look(options)
        table = _compare(former, seen, given)
        former = seen
        tables += 1


def _look(options: Options) -> Inventory:
    return take_snapshot(options, has_uncharged=True)


def _compare(former: Inventory, seen: Inventory, given: Top) -> Rates:
    """The rates of the keys in the requested namespaces (none: all). The node's total is of all keys."""
    table = compare(former, seen, system.now_utc())
    if not given.namespace:
        return table
    return replace(table, keys=[it for it in table.keys if it.key.state.pod_namespace in given.namespace])


@contextmanager
def _read_keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits so many seconds for a pressed key; it returns "" if none is.

    Sets the terminal on stdin, if it is one, to give each key at once without printing it, and restores it at the end,
    also after SIGTERM.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    is_open = True
    terminal = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None

    def wait(seconds: float) -> str:
        nonlocal is_open
        if terminal is None or not is_open:
            system.sleep(seconds)
            return ""
        if not select.select([terminal], [], [], seconds)[0]:
            return ""
        text = os.read(terminal, 1).decode("ascii", "replace")
        is_open = bool(text)  # else its other end is closed
        return text or wait(seconds)

    if terminal is None:
        yield wait
        return
    former = termios.tcgetattr(terminal)
    changed = [*former]
    changed[3] &= ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(terminal, termios.TCSADRAIN, changed)
    try:
        yield wait
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, former)
