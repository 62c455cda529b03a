# SPDX-License-Identifier: Apache-2.0
"""Text for people and logs: what tenants wrote, made safe to print."""

from __future__ import annotations

_LONGEST_LINE = 1000
_ID_LENGTH = 64  # of the IDs that container engines make
_SHORT_LENGTH = 12  # of such an ID where people read it, as Podman and crictl print it


def printable(text: str) -> str:
    """`text` as one line of printable ASCII of bounded length: tenants' words must not forge log lines."""
    short = text if len(text) <= _LONGEST_LINE else text[:_LONGEST_LINE] + "..."
    return "".join(c if " " <= c <= "~" else c.encode("unicode_escape", "replace").decode() for c in short)


def short_id(container: str) -> str:
    """The first 12 digits of a container ID; another name is printed whole."""
    return container[:_SHORT_LENGTH] if len(container) == _ID_LENGTH else container


def who(container: str, namespace: str | None = None, pod: str | None = None, name: str | None = None) -> str:
    """Name a container for people, as far as it is known: `namespace/pod container (12 digits of the ID)`."""
    known = ([f"{namespace or '?'}/{pod}"] if pod else []) + ([name] if name else [])
    return printable(" ".join([*known, f"({short_id(container)})"]) if known else short_id(container))
