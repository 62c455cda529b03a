# SPDX-License-Identifier: Apache-2.0
"""What a check reports, and how findings are printed."""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_MOST_NAMED = 5
OK, WARNING, FAILURE = "ok", "warning", "FAIL"


@dataclass(frozen=True)
class Finding:
    """The result of a check. `subject`: the thing that was checked; `remedy`: what to do, empty if the level is ok."""

    level: str
    subject: str
    found: str
    remedy: str = ""


def format_findings(findings: Iterable[Finding]) -> list[str]:
    """A line for each finding, and one for its remedy."""
    lines = []
    for it in findings:
        lines.append(f"{it.level:<8} {it.subject}: {it.found}")
        lines += [f"{'':<8}   {it.remedy}"] if it.remedy and it.level != OK else []
    return lines


def to_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """The same as objects for JSON."""
    return [
        {"level": it.level.lower(), "subject": it.subject, "found": it.found, "remedy": it.remedy or None}
        for it in findings
    ]


def name_first(names: Iterable[str]) -> str:
    """The first few of these names, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return ", ".join(found[:_MOST_NAMED]) + more
