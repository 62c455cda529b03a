# SPDX-License-Identifier: Apache-2.0
"""Tables for people."""

from __future__ import annotations

from collections.abc import Sequence


def as_text(lines: Sequence[Sequence[str]]) -> str:
    """A table in columns; the first line is its head."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    padded = (zip(line, widths) for line in lines)
    return "\n".join("  ".join(cell.ljust(width) for cell, width in line).rstrip() for line in padded)


def as_markdown(lines: Sequence[Sequence[str]], names: int = 1) -> str:
    """The same for a document; the first `names` columns hold no figures."""
    head, *body = ("| " + " | ".join(line) + " |" for line in lines)
    rule = "|" + "|".join("---" if index < names else "---:" for index in range(len(lines[0]))) + "|"
    return "\n".join([head, rule, *body])
