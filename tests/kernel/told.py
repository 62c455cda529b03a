# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin for the guest: each report goes as one line of JSON to /tmp/share/reports, for the host to read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

REPORTS = Path("/tmp/share/reports")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        tell(report.nodeid, report.outcome, report.longreprtext, report.duration)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        tell(report.nodeid, "failed", report.longreprtext, 0.0)


def tell(nodeid: str, outcome: str, text: str, seconds: float) -> None:
    line = json.dumps({"nodeid": nodeid, "outcome": outcome, "text": text, "seconds": seconds})
    with REPORTS.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
