# SPDX-License-Identifier: Apache-2.0
"""The alert rules: promtool accepts them, and each is raised by an ill node and by no other."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Any

import pytest
import yaml

from tests.support import prometheus
from tests.unit.documents import ROOT, anchors, page, rows
from tests.unit.metrics import FAMILIES

PLACE = ROOT / "packaging/prometheus"
EVERY_RULE: list[dict[str, Any]] = yaml.safe_load(
    (PLACE / "rules.yaml").read_text(encoding="utf-8")
)["groups"][0]["rules"]
RECORDED = {rule["record"]: rule["expr"] for rule in EVERY_RULE if "record" in rule}
RULES = [rule for rule in EVERY_RULE if "alert" in rule]
TESTS = sorted(PLACE.glob("rules_test*.yaml"))
CASES: list[dict[str, Any]] = [
    case
    for path in TESTS
    for case in yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)["tests"]  # noqa: S506  0x60 is a text
]
ALERTS = [rule["alert"] for rule in RULES]
OTHER_LABELS = {
    "job",
    "instance",
    "exported_namespace",
    "exported_pod",
    "file",
    "container_id",
    "sandbox_id",
}
"""Of the target, of node_exporter, and of keys of other kinds than those of FAMILIES."""
PROMTOOL = prometheus.program("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool (Debian: prometheus) is not installed"
)


def promtool(
    *arguments: object, program: str | None = PROMTOOL
) -> subprocess.CompletedProcess[str]:
    words = [str(program), *map(str, arguments)]
    rarely = {**os.environ, "GOGC": "400"}  # garbage is collected
    return subprocess.run(
        words, env=rarely, capture_output=True, text=True, check=False, timeout=300
    )


@needs_promtool
def test_promtool_accepts_them() -> None:
    done = promtool("check", "rules", PLACE / "rules.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@needs_promtool
def test_each_is_raised_when_it_should_be_and_not_before() -> None:
    done = promtool("test", "rules", *TESTS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_in_both_ways() -> None:
    tried = [trial for case in CASES for trial in case["alert_rule_test"]]
    assert {trial["alertname"] for trial in tried if trial["exp_alerts"]} == set(ALERTS)
    assert {trial["alertname"] for trial in tried if not trial["exp_alerts"]} == set(ALERTS)


def test_an_alert_is_about_what_exists_and_its_runbook_url_leads_to_its_heading() -> None:
    for rule in RULES:
        expression = re.sub("|".join(RECORDED), lambda name: RECORDED[name[0]], rule["expr"])
        metrics = set(re.findall(r"\b(?:resctrl_mon|node_textfile)_\w+", expression))
        assert metrics
        assert metrics <= {*FAMILIES, "node_textfile_mtime_seconds"}
        has = {
            label
            for name in metrics & FAMILIES.keys()
            for labels in FAMILIES[name].samples
            for label, _ in labels
        }
        asked = {
            label
            for group in re.findall(r"\b(?:by|on) \(([^)]+)\)", expression)
            for label in group.split(", ")
        }
        asked |= set(re.findall(r"[{,](\w+)=", expression))
        assert asked <= has | OTHER_LABELS
        assert rule["for"]
        assert rule["labels"]["severity"] in ("warning", "info")
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        assert (
            rule["annotations"]["runbook_url"] == f"docs/troubleshooting.md#{rule['alert'].lower()}"
        )
        assert rule["alert"].lower() in anchors(page("docs/troubleshooting.md"))
        assert "`" in page("docs/troubleshooting.md", rule["alert"]), (
            "a command or a file to look at"
        )


def test_the_units_write_the_file_whose_age_is_watched() -> None:
    unit = (ROOT / "packaging/systemd/resctrl-mon-hook-textfile.service").read_text(
        encoding="ascii"
    )
    (watched,) = {
        pattern for rule in EVERY_RULE for pattern in re.findall(r'file=~"([^"]+)"', rule["expr"])
    }
    written = re.findall(r"TEXTFILE=(/\S+)", unit)
    assert len(written) == 2
    assert all(re.fullmatch(watched, path) for path in written)


def test_the_document_has_every_alert_with_its_time_and_no_other() -> None:
    shown = [
        (row[0].strip("`"), row[2]) for row in rows(page("docs/metrics.md", "Alerts"), "alert")
    ]
    assert shown == [
        (rule["alert"], rule["for"].replace("m", " min").replace("h", " h")) for rule in RULES
    ]
