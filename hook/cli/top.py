# SPDX-License-Identifier: Apache-2.0
"""Runs `top`: on a terminal a screen that keys control, which is drawn again and again; elsewhere tables or JSON."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace

from hook import system
from hook.cli.options import Top
from hook.cli.verbs import Request
from hook.show.lists import TOP_SORTS, format_rates, rates_to_json
from hook.show.snapshot import Inventory, Rates, compare, take_snapshot
from hook.show.terminal import get_screen, is_terminal, print_answer, write

_FIRST = 1.0  # seconds until a terminal shows the first rates, even if the interval is longer
_CLEAR = "\x1b[H\x1b[2J"  # the cursor home, and the screen erased: ECMA-48 CUP and ED
_NOTES = "q quit  sort: e energy  t traffic  c cache  n name"


def show_top(given: Top, request: Request) -> None:
    """Print until an interrupt, the usual end, or until `--count` is reached."""
    is_screen = is_terminal() and not request.is_json
    with suppress(KeyboardInterrupt), _read_keys() if is_screen else nullcontext(_sleep) as wait_for_key:
        _show_tables(given, request, wait_for_key, is_screen=is_screen)


def _show_tables(given: Top, request: Request, wait_for_key: Callable[[float], str], *, is_screen: bool) -> None:
    count = given.count if given.count is not None or is_terminal() else 1
    sort: str = given.sort
    tables = 0
    former = take_snapshot(request.hook, has_uncharged=True)
    table = _compare(former, former, given)  # names, and no rates yet: on a screen at once
    while True:
        screen = get_screen(is_wide=given.output == "wide")
        if is_screen:
            lines = format_rates(table, sort, screen, _NOTES)
            write(_CLEAR + "\n".join(lines[: screen.height - 1 if screen.height else None]) + "\n")
        elif tables and request.is_json:
            print_answer(rates_to_json(table))
        elif tables:
            print_answer(format_rates(table, sort, screen) + [""] * (tables != count))
        if tables and tables == count:
            return
        pressed = wait_for_key(min(_FIRST, given.interval) if is_screen and not tables else given.interval)
        if pressed == "q":
            return
        if pressed:
            sort = next((name for name in TOP_SORTS if name.startswith(pressed)), sort)
            continue
        seen = take_snapshot(request.hook, has_uncharged=True)
        table = _compare(former, seen, given)
        former = seen
        tables += 1


def _compare(former: Inventory, seen: Inventory, given: Top) -> Rates:
    """The rates of the keys in the requested namespaces (none: all). The node's total is of all keys."""
    table = compare(former, seen, system.now_utc())
    if not given.namespace:
        return table
    return replace(table, keys=[it for it in table.keys if it.key.state.pod_namespace in given.namespace])


def _sleep(seconds: float) -> str:
    system.sleep(seconds)
    return ""


@contextmanager
def _read_keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits so many seconds for a pressed key; it returns "" if none is.

    Sets the terminal on stdin, if it is one, to give each key at once without printing it, and restores it at the end,
    also after SIGTERM.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if sys.stdin is None or not sys.stdin.isatty():
        yield _sleep
        return
    terminal = sys.stdin.fileno()

    def wait(seconds: float) -> str:
        if not select.select([terminal], [], [], seconds)[0]:
            return ""
        return os.read(terminal, 1).decode("ascii", "replace") or _sleep(seconds)  # its other end is closed

    former = termios.tcgetattr(terminal)
    tty.setcbreak(terminal, termios.TCSADRAIN)
    try:
        yield wait
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, former)
