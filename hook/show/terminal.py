# SPDX-License-Identifier: Apache-2.0
"""The output of commands: lines, tables or JSON on stdout, the terminal that it may be, how far long work is on stderr.

A table is whole for a pipe or file, and has shortened names if a terminal is too narrow for it. The unit of a column is
in its head.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from hook import jsontext
from hook.explain import printable

_ELLIPSIS = "\u2026"
PATIENCE = 1.0  # seconds before a line of progress
_INTERVAL = 0.2  # seconds between two
_ERASE = "\r\x1b[K"  # to the beginning of the line, and all of it erased: ECMA-48 EL
_GAP = "  "
_CUT = "..."
_LEAST_POD = 10  # characters of a pod's name, before its namespace is cut, too
_END = 5  # characters of a name's end, in which replicas differ: the length of Kubernetes' random suffix
_STYLES, _PLAIN = {"bold": "\x1b[1m", "faint": "\x1b[2m", "red": "\x1b[31m"}, "\x1b[m"  # ECMA-48 SGR


@dataclass(frozen=True)
class Screen:
    """The device that output goes to. `width`, `height`: of a terminal, in characters; None: not limited.

    `cut`: the mark of a cut in a name.
    """

    width: int | None = None
    height: int | None = None
    colour: bool = False
    cut: str = _CUT

    def paint(self, style: str, text: str) -> str:
        """A text in this style (of _STYLES), if the device has colours."""
        return f"{_STYLES[style]}{text}{_PLAIN}" if self.colour and text else text


def is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def get_screen(*, is_wide: bool = False) -> Screen:
    """The terminal on stdout; a pipe or a file has no limits. `is_wide`: no limits on a terminal, either.

    Colours only on a terminal that has them, and not with NO_COLOR (no-color.org).
    """
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


# --- Tables


@dataclass(frozen=True)
class Column:
    """A column. If a terminal is too narrow for all columns, it shows its `short` cells, or is left out (`is_extra`).

    One with fewer cells than the others is empty below them. `least`: the number of characters to which its cells
    may be cut on such a terminal; 0: they are never cut.
    """

    head: str
    cells: Sequence[str]
    short: Sequence[str] | None = None
    is_number: bool = False
    is_extra: bool = False
    least: int = 0

    @property
    def width(self) -> int:
        return max(map(len, [self.head, *self.cells]))


def numbers(head: str, cells: Sequence[str]) -> Column:
    """A column of numbers, aligned to the right."""
    return Column(head, cells, is_number=True)


def lay_out(columns: Sequence[Column], screen: Screen) -> list[str]:
    """The lines of a table, the heads first."""
    if screen.width is None or _sum_widths(columns) <= screen.width:
        return _align(columns, screen)
    narrow = [replace(it, cells=it.short or it.cells) for it in columns if not it.is_extra]
    too_wide = _sum_widths(narrow) - screen.width
    cut = []
    for it in narrow:
        width = max(it.least, it.width - max(0, too_wide)) if it.least else it.width
        too_wide -= it.width - width
        cut.append(replace(it, head=it.head[:width], cells=[cut_name(cell, width, screen.cut) for cell in it.cells]))
    return _align(cut, screen)


def cut_name(name: str, width: int, mark: str = _CUT) -> str:
    """Shorten a pod, `namespace/pod` or `namespace/pod/container` to a width: the pod first, in its middle.

    The namespace and the container stay whole, as long as there is room for both ends of the pod.
    """
    if len(name) <= width:
        return name
    parts = name.split("/", 2)
    pod = parts.pop(min(1, len(parts) - 1))
    room = max(0, width - len(parts))  # without the slashes
    left = room - min(len(pod), _LEAST_POD, room // 2)
    if sum(map(len, parts)) > left:
        parts = [_cut_middle(part, left // len(parts), mark) for part in parts]
    parts.insert(1, _cut_middle(pod, room - sum(map(len, parts)), mark))
    return "/".join(parts)[:width]


def _cut_middle(text: str, width: int, mark: str) -> str:
    if len(text) <= width:
        return text
    left = max(0, width - len(mark))
    end = min(_END, left - left // 4)
    return (text[: left - end] + mark + text[len(text) - end :])[: max(0, width)]


def _sum_widths(columns: Sequence[Column]) -> int:
    return sum(it.width for it in columns) + len(_GAP) * (len(columns) - 1)


def _align(columns: Sequence[Column], screen: Screen) -> list[str]:
    layouts = [f"{{:{'>' if it.is_number else '<'}{it.width}}}" for it in columns]
    rows = zip_longest(*([it.head, *it.cells] for it in columns), fillvalue="")
    head, *lines = (_GAP.join(layouts).format(*row).rstrip() for row in rows)
    return [screen.paint("bold", head), *lines]


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
