# SPDX-License-Identifier: Apache-2.0
"""Prints the output of commands: lines, tables or JSON on stdout, which may be a terminal.

A pipe or a file gets a whole table; a terminal that is too narrow for it gets shortened names. The head of a column has
its unit.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from hook import system
from hook.report import name_pod, printable

_MOST_NAMED = 5  # in one line
_ELLIPSIS = "\u2026"
_GAP = "  "
_CUT = "..."
_LEAST_POD = 10  # characters of a pod's name, before its namespace is cut, too
_END = 5  # characters of a name's end, in which replicas differ: the length of Kubernetes' random suffix
_STYLES, _PLAIN = {"bold": "\x1b[1m", "faint": "\x1b[2m", "red": "\x1b[31m"}, "\x1b[m"  # ECMA-48 SGR


@dataclass(frozen=True)
class Screen:
    """The device that output goes to."""

    width: int | None = None  # of a terminal, in characters; None is no limit
    height: int | None = None
    colour: bool = False
    cut: str = _CUT  # the mark of a cut in a name

    def paint(self, style: str, text: str) -> str:
        """Give a text this style (of _STYLES), if the device has colours."""
        return f"{_STYLES[style]}{text}{_PLAIN}" if self.colour and text else text


def is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def get_screen(*, is_wide: bool = False) -> Screen:
    """Return the terminal on stdout, whose width is no limit if `is_wide`; a pipe or a file has no limits.

    Only a terminal that has colours gets them, and not with NO_COLOR (no-color.org).
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
    """Choose the mark of a cut in a name. LC_CTYPE does not count, since Python sets it in a C locale (PEP 538)."""
    words = os.environ.get("LC_ALL") or os.environ.get("LANG") or "", sys.stdout.encoding or ""
    return _ELLIPSIS if all("utf8" in word.lower().replace("-", "") for word in words) else "..."


def print_answer(answer: dict[str, Any] | list[str]) -> None:
    """Print lines, or an object as one line of JSON."""
    write("".join(line + "\n" for line in answer) if isinstance(answer, list) else system.dumps(answer) + "\n")


def write(text: str) -> None:
    """Write text, in ASCII but for the mark of a cut; flush it, because the process ends without Python's clean-up."""
    if sys.stdout is not None:  # None: closed by the parent process
        parts = (part.encode("ascii", "backslashreplace").decode() for part in text.split(_ELLIPSIS))
        sys.stdout.write(_ELLIPSIS.join(parts))
        sys.stdout.flush()


def print_printable(lines: list[str], *, dry_run: bool = False) -> None:
    """Print lines with texts that other users may have chosen as printable text; with `dry_run` as a plan."""
    if dry_run:
        done = ["would do:", *("  " + line for line in lines), "nothing was changed (--dry-run)"]
        lines = done if lines else ["nothing to do"]
    print_answer([printable(line) for line in lines])


# --- Tables


@dataclass(frozen=True)
class Column:
    """A column of a table. If it has fewer cells than the others, it is empty below them."""

    head: str
    cells: Sequence[str]
    short: Sequence[str] | None = None  # its cells on a terminal that is too narrow for all columns
    is_number: bool = False  # it is aligned to the right
    is_extra: bool = False  # such a terminal does not show it
    least: int = 0  # the number of characters to which its cells may be cut there; 0 is not at all

    @property
    def width(self) -> int:
        return max(map(len, [self.head, *self.cells]))


def numbers(head: str, cells: Sequence[str]) -> Column:
    """Make a column of numbers, aligned to the right."""
    return Column(head, cells, is_number=True)


def lay_out(columns: Sequence[Column], screen: Screen) -> list[str]:
    """Lay out a table, its heads first."""
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


def list_pod_names(namespace: str | None, pod: str | None) -> list[str]:
    """List the names by which a pod can be found: its own, and `namespace/pod`."""
    return [*filter(None, (pod, name_pod(namespace, pod)))]


def name_first(names: Iterable[str]) -> str:
    """Join the first few of these names, and say how many more there are."""
    found = list(names)
    more = [f"and {len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else []
    return ", ".join([*found[:_MOST_NAMED], *more])
