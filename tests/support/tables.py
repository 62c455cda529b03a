"""Tables for people: lines of cells, of which the first line is the head."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMES = 2
"""How many columns are names; the others are figures."""


def as_text(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines)]
    padded = (zip(line, widths) for line in lines)
    return "\n".join("  ".join(cell.ljust(width) for cell, width in line).rstrip() for line in padded)


def as_markdown(lines: Sequence[Sequence[str]]) -> str:
    head, *body = ("| " + " | ".join(line) + " |" for line in lines)
    rule = "|" + "|".join("---" if index < _NAMES else "---:" for index in range(len(lines[0]))) + "|"
    return "\n".join([head, rule, *body])
