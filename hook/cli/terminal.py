# SPDX-License-Identifier: Apache-2.0
"""The output of commands: lines or JSON on stdout, the terminal that it may be, and how far long work is on stderr."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from hook.base import jsontext
from hook.base.explain import printable

if TYPE_CHECKING:
    from hook.observe.table import Screen

_ELLIPSIS = "\u2026"
PATIENCE = 1.0  # seconds before a line of progress
_INTERVAL = 0.2  # seconds between two
_ERASE = "\r\x1b[K"  # to the beginning of the line, and all of it erased: ECMA-48 EL


def is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def get_screen(*, is_wide: bool = False) -> Screen:
    """The terminal on stdout; a pipe or a file has no limits. `is_wide`: no limits on a terminal, either.

    Colours only on a terminal that has them, and not with NO_COLOR (no-color.org).
    """
    from hook.observe.table import Screen

    if not is_terminal():
        return Screen()
    has_colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return Screen(colour=has_colour)
    return Screen(None if is_wide else size.columns or None, size.lines or None, has_colour, _choose_mark())


def _choose_mark() -> str:
    """The mark of a cut in a name. LC_CTYPE does not count, since Python sets it in a C locale (PEP 538)."""
    words = os.environ.get("LC_ALL") or os.environ.get("LANG") or "", sys.stdout.encoding or ""
    return _ELLIPSIS if all("utf8" in word.lower().replace("-", "") for word in words) else "..."


def print_answer(answer: dict[str, Any] | list[str]) -> None:
    """Print lines, or an object as one line of JSON."""
    write("".join(line + "\n" for line in answer) if isinstance(answer, list) else jsontext.dumps(answer) + "\n")


def write(text: str) -> None:
    """Write text, in ASCII but for the mark of a cut; flush it, because the process ends without Python's clean-up."""
    if sys.stdout is not None:  # None: closed by the parent process
        parts = (part.encode("ascii", "backslashreplace").decode() for part in text.split(_ELLIPSIS))
        sys.stdout.write(_ELLIPSIS.join(parts))
        sys.stdout.flush()


def print_printable(lines: list[str], *, dry_run: bool = False) -> None:
    """Print lines with texts that other users may have chosen, as printable text. `dry_run`: they are a plan."""
    if dry_run:
        done = ["would do:", *("  " + line for line in lines), "nothing was changed (--dry-run)"]
        lines = done if lines else ["nothing to do"]
    print_answer([printable(line) for line in lines])


# --- The progress of long work


class Meter:
    """A line of progress on stderr, if that is a terminal: it comes after PATIENCE, and is erased at the end.

    A thread draws it, so that it also comes while one step takes long.
    """

    def __init__(self) -> None:
        self._text = self._drawn = ""
        self._lock = threading.Lock()
        self._is_over = threading.Event()

    def __enter__(self) -> Meter:
        if sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            with suppress(RuntimeError):  # too many threads: the work goes on without a line
                threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._is_over.set()
        with self.hide():
            pass

    def show(self, text: str) -> None:
        """Note what the work is at."""
        self._text = text

    @contextmanager
    def hide(self) -> Iterator[None]:
        """Keep the line away while something else is printed."""
        with self._lock:
            if self._drawn:
                self._draw("")
            yield

    def _run(self) -> None:
        seconds = PATIENCE
        while not self._is_over.wait(seconds):
            seconds = _INTERVAL
            with self._lock:
                if not self._is_over.is_set() and self._text != self._drawn:
                    self._draw(self._text)

    def _draw(self, text: str) -> None:
        """Replace the line, cut to one row: a line of two rows could not be erased."""
        with suppress(OSError, ValueError):  # the terminal is gone
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            sys.stderr.write(_ERASE + printable(text)[: columns - 1])
            sys.stderr.flush()
        self._drawn = text
