# SPDX-License-Identifier: Apache-2.0
"""The alert rules: promtool accepts them, and each is raised by an ill node and by no other."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import prometheus
from tests.unit.documents import ROOT, anchors, first_words, page
from tests.unit.metrics import FAMILIES

PLACE = ROOT / "packaging/prometheus"
RULES: list[dict[str, Any]] = yaml.safe_load((PLACE / "rules.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
TESTED = (PLACE / "rules_test.yaml").read_text(encoding="utf-8")
CASES: list[dict[str, Any]] = yaml.load(TESTED, yaml.BaseLoader)["tests"]  # noqa: S506  0x60 is a text of promtool's
ALERTS = [rule["alert"] for rule in RULES]
PROMTOOL = prometheus.program("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool (Debian: prometheus) is not installed")


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [str(PROMTOOL), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)


@needs_promtool
def test_promtool_accepts_them() -> None:
    done = promtool("check", "rules", PLACE / "rules.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@needs_promtool
def test_each_is_raised_when_it_should_be_and_not_before() -> None:
    done = promtool("test", "rules", PLACE / "rules_test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@needs_promtool
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("> 0.9", "> 0.96"),
        (">= 1", "> 1"),
        ("> 0.9 < 1", "> 0.9"),
        ('"lingering"', '"completed"'),
        ("> 300", "> 900"),
        ("exported_pod", "no_such_label"),
        ("unless on (job, instance) time() -", "unless on (job, instance) 0 *"),
        ("> 120", "> 600"),
        ('file=~"(.*/)?resctrl[^/]*[.]prom"', 'file=~".*"'),
        ("unless on (job, instance) resctrl_mon_mounted == 0", ""),
        ("unless on (job, instance) resctrl_mon_node_supported == 0", ""),
        ("and on (job, instance) up", ""),
        ("[1d:5m]", "[10m:5m]"),
        (">= time() - 300", "> 0"),
        ("run_directory_full) == 1", "run_directory_full) == 2"),
        ("unless on (job, instance) resctrl_mon_run_directory_full == 1", ""),
        ('unless on (job, instance) resctrl_mon_unmonitored_containers{reason="no_rmids"} > 0', ""),
        ('{reason=~"no_rmids|rmids_in_limbo"}', '{reason="io"}'),
        ("(job, instance, group)", "(job, instance)"),
        ("unless on (job, instance, uid, key, container_id, sandbox_id) resctrl_mon_taken_containers", ""),
        ("resctrl_mon_history_owed) > 0", "resctrl_mon_history_owed) > 20"),
    ],
)
def test_a_wrong_rule_is_noticed(tmp_path: Path, old: str, new: str) -> None:
    """By what is said of its alert: all of it takes promtool six seconds."""
    rules = [{**rule, "expr": rule["expr"].replace(old, new)} for rule in RULES if old in rule["expr"]]
    names = {rule["alert"] for rule in rules}
    cases = [
        {**case, "alert_rule_test": [it for it in case["alert_rule_test"] if it["alertname"] in names]}
        for case in CASES
        if names & {it["alertname"] for it in case["alert_rule_test"]}
    ]
    written = {"groups": [{"name": "wrong", "rules": rules}]}
    (tmp_path / "rules.yaml").write_text(json.dumps(written))  # JSON is YAML
    (tmp_path / "test.yaml").write_text(json.dumps({"rule_files": ["rules.yaml"], "tests": cases}))
    done = promtool("test", "rules", tmp_path / "test.yaml")
    assert done.returncode == 1
    assert "got:" in done.stdout + done.stderr, done


def test_every_alert_is_tested_in_both_ways() -> None:
    tried = [it for case in CASES for it in case["alert_rule_test"]]
    assert {it["alertname"] for it in tried if it["exp_alerts"]} == set(ALERTS)
    assert {it["alertname"] for it in tried if not it["exp_alerts"]} == set(ALERTS)


@pytest.mark.parametrize("rule", RULES, ids=ALERTS)
def test_an_alert_is_about_metrics_that_exist(rule: dict[str, Any]) -> None:
    named = set(re.findall(r"\b(?:resctrl_mon|node_textfile)_\w+", rule["expr"]))
    assert named
    assert named <= {*FAMILIES, "node_textfile_mtime_seconds"}
    assert rule["for"]
    assert rule["labels"]["severity"] in ("warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}


@pytest.mark.parametrize("rule", RULES, ids=ALERTS)
def test_a_runbook_url_leads_to_the_heading_of_its_alert(rule: dict[str, Any]) -> None:
    name, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert name == "docs/troubleshooting.md"
    text = page(name, rule["alert"])
    assert anchor == rule["alert"].lower()
    assert anchor in anchors(page(name))
    assert "`" in text, "a command or a file to look at"


def test_the_units_write_the_file_whose_age_is_watched() -> None:
    unit = (ROOT / "packaging/systemd/resctrl-mon-hook-textfile.service").read_text(encoding="ascii")
    (watched,) = {it for rule in RULES for it in re.findall(r'file=~"([^"]+)"', rule["expr"])}
    written = re.findall(r"TEXTFILE=(/\S+)", unit)
    assert len(written) == 2
    assert all(re.fullmatch(watched, path) for path in written)


def test_the_document_names_every_alert_and_no_other() -> None:
    assert first_words(page("docs/metrics.md", "Alerts"), "alert") == ALERTS
