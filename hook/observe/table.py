# SPDX-License-Identifier: Apache-2.0
"""Lays out a table: whole for a pipe or file, and with shortened names if a terminal is too narrow for it.

The unit of a column is in its head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

_GAP = "  "
_CUT = "..."
_LEAST_POD = 10  # characters of a pod's name, before its namespace is cut, too
_END = 5  # characters of a name's end, in which replicas differ: the length of Kubernetes' random suffix
_BOLD, _FAINT, _RED, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[m"  # ECMA-48 SGR


@dataclass(frozen=True)
class Screen:
    """The device that output goes to. `width`, `height`: of a terminal, in characters; None: not limited.

    `cut`: the mark of a cut in a name.
    """

    width: int | None = None
    height: int | None = None
    colour: bool = False
    cut: str = _CUT

    def bold(self, text: str) -> str:
        return self._paint(text, _BOLD)

    def faint(self, text: str) -> str:
        return self._paint(text, _FAINT)

    def red(self, text: str) -> str:
        return self._paint(text, _RED)

    def _paint(self, text: str, colour: str) -> str:
        return f"{colour}{text}{_PLAIN}" if self.colour and text else text


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
    return [screen.bold(head), *lines]
