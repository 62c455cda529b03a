# SPDX-License-Identifier: Apache-2.0
"""Lays out a table: whole where it goes into a pipe, and with shortened names where a terminal is too narrow for it.

The unit of a column is in its head.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hook.base.counters import EVENTS, MILLION
from hook.base.text import printable
from hook.observe.snapshot import Key
from hook.observe.use import Total

_GAP = "  "
_CUT = "..."
_BOLD, _FAINT, _RED, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[m"  # ECMA-48 SGR
NOTHING = "-"
UNKNOWN = "?"
SHORT_KEY = 8
"""How many characters of a key a row shows beside its name."""
LEAST_NAME = 12
"""A name is never cut to fewer characters."""
_AT_LEAST = ">="
_FROM_NOTHING = "*"
_LONGEST_WORD = 253
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_SYMBOLS = {"bytes": "B", "joules": "J", "farads": "F"}


@dataclass(frozen=True)
class Screen:
    """Where output goes. `width`, `height`: of a terminal, in characters; None: not limited."""

    width: int | None = None
    height: int | None = None
    colour: bool = False

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
    """A column. `short`: the cells for a terminal that is too narrow for all columns; None: there it is left out.

    `least`: to how many characters its cells may be cut there; 0: never.
    """

    head: str
    cells: Sequence[str]
    short: Sequence[str] | None
    is_number: bool = False
    least: int = 0

    @property
    def width(self) -> int:
        return max(map(len, [self.head, *self.cells]))


def words(head: str, cells: Sequence[str], *, least: int = 0) -> Column:
    """A column of words, to the left."""
    return Column(head, cells, cells, least=least)


def numbers(head: str, cells: Sequence[str]) -> Column:
    """A column of numbers, to the right: they always show."""
    return Column(head, cells, cells, is_number=True)


def lay_out(columns: Sequence[Column], screen: Screen) -> list[str]:
    """The lines of a table, the heads first."""
    if screen.width is None or _sum_widths(columns) <= screen.width:
        return _align(columns, screen)
    narrow = [Column(it.head, it.short, it.short, it.is_number, it.least) for it in columns if it.short is not None]
    too_wide = _sum_widths(narrow) - screen.width
    cut = []
    for it in narrow:
        width = max(it.least, it.width - max(0, too_wide)) if it.least else it.width
        too_wide -= it.width - width
        cells = [cut_middle(cell, width) for cell in it.cells]
        cut.append(Column(it.head[:width], cells, cells, it.is_number))
    return _align(cut, screen)


def cut_middle(text: str, width: int) -> str:
    """Shorten a text to a width: of `namespace/pod` the end tells most, for replicas differ there."""
    if len(text) <= width:
        return text
    left = max(0, width - len(_CUT))
    end = left - left // 4
    return (text[: left - end] + _CUT + text[len(text) - end :])[:width]


def _sum_widths(columns: Sequence[Column]) -> int:
    return sum(it.width for it in columns) + len(_GAP) * (len(columns) - 1)


def _align(columns: Sequence[Column], screen: Screen) -> list[str]:
    aligned = []
    for it in columns:
        width = it.width
        aligned.append([text.rjust(width) if it.is_number else text.ljust(width) for text in [it.head, *it.cells]])
    head, *lines = (_GAP.join(row).rstrip() for row in zip(*aligned))
    return [screen.bold(head), *lines]


# --- Cells: how words, numbers and ages are printed


def format_name(key: Key) -> str:
    """`namespace/pod`, with the container where the key is one; a name that Podman has given; `-`: neither is known."""
    state = key.state
    if state.pod_namespace is None and state.pod_name is None:
        return to_word(key.name) if key.name else NOTHING
    name = f"{to_word(state.pod_namespace)}/{to_word(state.pod_name)}"
    members = {member.name for member in state.members.values() if member.name}
    return f"{name}/{to_word(members.pop())}" if state.kind == "container" and len(members) == 1 else name


def to_word(text: str | None) -> str:
    """Any text as one escaped word of bounded length."""
    safe = printable(text or "").replace(" ", "\\x20")
    return safe if len(safe) <= _LONGEST_WORD else safe[:_LONGEST_WORD] + "..."


def unit_of(event: str) -> str:
    """The symbol of an event's unit, or its name."""
    unit = EVENTS[event].unit
    return _SYMBOLS.get(unit, unit)


def format_sum(total: Total | None, event: str) -> str:
    """`-`: no counter; `?`: no value is known; `>=`: a part is unknown; `*`: a part is counted from 0."""
    if total is None:
        return NOTHING
    if total.value is None:
        return UNKNOWN
    text = format_number(total.value / MILLION, binary=EVENTS[event].unit == "bytes")
    return mark(text, at_least=total.at_least, from_nothing=bool(total.from_nothing))


def mark(text: str, *, at_least: bool, from_nothing: bool) -> str:
    return (_AT_LEAST if at_least else "") + text + (_FROM_NOTHING if from_nothing else "")


def explain_marks(cells: Iterable[str]) -> list[str]:
    """The legend of the marks in these cells, after an empty line; none without marks."""
    found = list(cells)
    legend = [""]
    if any(cell.startswith(_AT_LEAST) for cell in found):
        legend.append(f"{_AT_LEAST}  at least that much: a part is unknown")
    if any(cell.endswith(_FROM_NOTHING) for cell in found):
        legend.append(f"{_FROM_NOTHING}   counted from 0, without an initial value")
    return legend if len(legend) > 1 else []


def format_number(value: float, *, binary: bool = False) -> str:
    """A number with three digits and the prefix of its unit: `22.3`, `1.50k`; `binary`: `45.3Gi`."""
    base, prefixes = (1024, _BINARY) if binary else (1000, _DECIMAL)
    power = 0
    while value >= base - 0.5 and power < len(prefixes) - 1:
        value /= base
        power += 1
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    whole = power == 0 and (binary or value == 0)
    return f"{value:.{0 if whole else digits}f}{prefixes[power]}"


def format_age(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"
