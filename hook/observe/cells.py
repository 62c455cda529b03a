# SPDX-License-Identifier: Apache-2.0
"""The cells of a table: how words, sums, sizes and ages are printed."""

from __future__ import annotations

from hook.base.counters import EVENTS, MILLION
from hook.base.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hook.observe.snapshot import Key, Total

NOTHING = "-"
UNKNOWN = "?"
_AT_LEAST = ">="
_FROM_NOTHING = "*"
_LONGEST_WORD = 48
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def format_pod(key: Key) -> str:
    namespace, name = key.state.pod_namespace, key.state.pod_name
    return NOTHING if namespace is None and name is None else f"{to_word(namespace)}/{to_word(name)}"


def to_word(text: str | None) -> str:
    """Any text as one escaped word of bounded length."""
    safe = printable(text or "").replace(" ", "\\x20")
    return safe if len(safe) <= _LONGEST_WORD else safe[:_LONGEST_WORD] + "..."


def format_sum(total: Total | None, event: str, unit: str = "") -> str:
    """`-`: no counter; `?`: no value is known; `>=`: a part is unknown; `*`: a part is counted from 0."""
    if total is None:
        return NOTHING
    if total.value is None:
        return UNKNOWN
    value = total.value / MILLION
    text = format_bytes(value) if EVENTS[event].unit == "bytes" else f"{value:.1f}{unit or ' J'}"
    return mark(text, at_least=total.at_least, from_nothing=bool(total.from_nothing))


def mark(text: str, *, at_least: bool, from_nothing: bool) -> str:
    return (_AT_LEAST if at_least else "") + text + (_FROM_NOTHING if from_nothing else "")


def explain_marks(cells: Iterable[str]) -> list[str]:
    """The legend of the marks in these cells, after an empty line; none without marks."""
    found = list(cells)
    legend = [f"{_AT_LEAST}  at least that much: a part is unknown"] if any(map(_is_at_least, found)) else []
    if any(cell.endswith(_FROM_NOTHING) for cell in found):
        legend.append(f"{_FROM_NOTHING}   counted from 0, without an initial value")
    return ["", *legend] if legend else []


def _is_at_least(cell: str) -> bool:
    return cell.startswith(_AT_LEAST)


def format_bytes(value: float) -> str:
    power = 0
    while value >= 1023.95 and power < len(_BINARY) - 1:
        value /= 1024
        power += 1
    return f"{value:.1f} {_BINARY[power]}B" if power else f"{value:.0f} B"


def format_age(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def align(rows: Sequence[Sequence[str]], words: int) -> list[str]:
    """Rows as lines of aligned columns, two blanks apart: the first `words` to the left, the numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for row in rows:
        left = [text.ljust(width) for text, width in zip(row[:words], widths)]
        right = [text.rjust(width) for text, width in zip(row[words:], widths[words:])]
        lines.append("  ".join(left + right).rstrip())
    return lines
