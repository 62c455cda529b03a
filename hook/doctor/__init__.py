# SPDX-License-Identifier: Apache-2.0
"""`doctor`: checks a node and suggests fixes.

No check changes anything. The table of all checks is in `checks`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from hook.show.findings import FAILURE, LEVELS, OK, WARNING, Finding
from hook.words import format_count


def format_findings(findings: Sequence[Finding]) -> list[str]:
    """Return a line for each finding and one for its remedy, and a count:
    a terminal ends with what is worst.
    """
    lines = []
    for level, subject, found, remedy in sorted(
        findings, key=lambda finding: LEVELS.index(finding.level)
    ):
        lines += [f"{level:<8} {subject}: {found}", *([f"           {remedy}"] if remedy else [])]
    counts = Counter(finding.level for finding in findings)
    problems = (
        format_count(counts[level], noun)
        for level, noun in ((FAILURE, "failure"), (WARNING, "warning"))
    )
    return [*lines, f"{', '.join(problems)}, {counts[OK]} ok"]


def to_objects(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return the objects that `doctor --json` prints."""
    return [
        {**found._asdict(), "level": found.level.lower(), "remedy": found.remedy or None}
        for found in findings
    ]
