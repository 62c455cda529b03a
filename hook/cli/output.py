# SPDX-License-Identifier: Apache-2.0
"""Prints answers, as lines or as JSON, and finds out what screen they go to."""

from __future__ import annotations

import os
import sys

from hook.base import jsontext
from hook.observe.table import Screen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CLEAR = "\x1b[H\x1b[2J"  # the cursor home, and the screen erased: ECMA-48 CUP and ED


def is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def get_screen(*, is_wide: bool = False) -> Screen:
    """The terminal on stdout; what goes into a pipe or a file is not limited. `is_wide`: no limit on a terminal, too.

    Colours only on a terminal, and not with NO_COLOR (no-color.org) or on a terminal without.
    """
    if not is_terminal():
        return Screen()
    has_colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return Screen(colour=has_colour)
    return Screen(None if is_wide else size.columns or None, size.lines or None, has_colour)


def print_answer(answer: list[str] | dict[str, Any]) -> None:
    """Print lines, or an object as one line of JSON."""
    write("".join(line + "\n" for line in answer) if isinstance(answer, list) else jsontext.dumps(answer) + "\n")


def format_plan(steps: list[str]) -> list[str]:
    """What --dry-run prints of the lines of what would be done."""
    if not steps:
        return ["nothing to do"]
    return ["would do:", *("  " + line for line in steps), "nothing was changed (--dry-run)"]


def print_screen(lines: list[str], screen: Screen) -> None:
    """Clear the terminal and print as many lines as fit."""
    write(_CLEAR + "\n".join(lines[: screen.height - 1 if screen.height else None]) + "\n")


def write(text: str) -> None:
    """Write text, in ASCII, and flush it, because the process ends without Python's clean-up."""
    if sys.stdout is not None:  # None: closed by the parent process
        sys.stdout.write(text.encode("ascii", "backslashreplace").decode())
        sys.stdout.flush()
