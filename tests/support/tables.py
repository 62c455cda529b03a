# SPDX-License-Identifier: Apache-2.0
"""Tables for people and documents."""

from __future__ import annotations

from collections.abc import Sequence


def as_markdown(lines: Sequence[Sequence[str]], names: int = 1) -> str:
    """A table as Markdown, its head first; the first `names` columns hold no figures."""
    head, *body = ("| " + " | ".join(line) + " |" for line in lines)
    rule = (
        "|" + "|".join("---" if index < names else "---:" for index in range(len(lines[0]))) + "|"
    )
    return "\n".join([head, rule, *body])
