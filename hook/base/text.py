# SPDX-License-Identifier: Apache-2.0
"""Text for people and logs: what tenants wrote, made safe to print."""

from __future__ import annotations

_LONGEST_LINE = 1000


def printable(text: str) -> str:
    """`text` as one line of printable ASCII of bounded length: tenants' words must not forge log lines."""
    short = text if len(text) <= _LONGEST_LINE else text[:_LONGEST_LINE] + "..."
    return "".join(c if " " <= c <= "~" else c.encode("unicode_escape", "replace").decode() for c in short)
