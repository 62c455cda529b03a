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
    """What a check found. `subject`: what it was about; `remedy`: what to do unless all is well."""

    level: str
    subject: str
    found: str
    remedy: str = ""


def format_findings(findings: Iterable[Finding]) -> list[str]:
    """A line on each finding, and one on its remedy."""
    lines = []
    for it in findings:
        lines.append(f"{it.level:<8} {it.subject}: {it.found}")
        lines += [f"{'':<8}   {it.remedy}"] if it.remedy and it.level != OK else []
    return lines


def to_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {"level": it.level.lower(), "subject": it.subject, "found": it.found, "remedy": it.remedy or None}
        for it in findings
    ]


def name_first(things: Iterable[str]) -> str:
    first = list(things)
    more = f" and {len(first) - _MOST_NAMED} more" if len(first) > _MOST_NAMED else ""
    return ", ".join(first[:_MOST_NAMED]) + more
