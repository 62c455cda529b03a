# SPDX-License-Identifier: Apache-2.0
"""The cells of a table: how words, numbers and ages are printed. The unit of a column is in its head."""

from __future__ import annotations

from hook.base.counters import EVENTS, MILLION
from hook.base.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from hook.observe.snapshot import Key, Total

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
    legend = [f"{_AT_LEAST}  at least that much: a part is unknown"] if any(map(_is_at_least, found)) else []
    if any(cell.endswith(_FROM_NOTHING) for cell in found):
        legend.append(f"{_FROM_NOTHING}   counted from 0, without an initial value")
    return ["", *legend] if legend else []


def _is_at_least(cell: str) -> bool:
    return cell.startswith(_AT_LEAST)


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
