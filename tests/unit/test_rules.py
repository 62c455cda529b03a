# SPDX-License-Identifier: Apache-2.0
"""The alert rules: promtool accepts them, and each is raised by an ill node and by no other."""

from __future__ import annotations

import json
import re
import shutil
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
OTHER_LABELS = {"job", "instance", "exported_namespace", "exported_pod", "file", "container_id", "sandbox_id"}
"""Of the target, of node_exporter, and of keys of other kinds than those of FAMILIES."""
PROMTOOL = prometheus.program("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool (Debian: prometheus) is not installed")


def promtool(*arguments: object, program: str | None = PROMTOOL) -> subprocess.CompletedProcess[str]:
    words = [str(program), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)


@needs_promtool
def test_promtool_accepts_them() -> None:
    done = promtool("check", "rules", PLACE / "rules.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


WRONG = [
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
    ('unless on (job, instance) resctrl_mon_unmonitored_containers{reason=~"no_rmids|rmids_in_limbo"} > 0', ""),
    ('{reason=~"no_rmids|rmids_in_limbo"}', '{reason="io"}'),
    ("(job, instance, group)", "(job, instance)"),
    ("unless on (job, instance, uid, key, container_id, sandbox_id) resctrl_mon_taken_containers", ""),
    ("resctrl_mon_history_owed) > 0", "resctrl_mon_history_owed) > 20"),
]


@pytest.mark.slow
@needs_promtool
def test_each_is_raised_when_it_should_be_and_not_before() -> None:
    done = promtool("test", "rules", PLACE / "rules_test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@needs_promtool
def test_wrong_rules_are_noticed(tmp_path: Path) -> None:
    """The tests of their alerts notice them. This machine's promtool is asked first: 2.x takes a tenth of the time."""
    for old, new in WRONG:
        rules = {it["alert"]: {**it, "expr": it["expr"].replace(old, new)} for it in RULES if old in it["expr"]}
        tests = []
        for case in CASES:
            tried = [it for it in case["alert_rule_test"] if it["alertname"] in rules]
            tests += [{**case, "alert_rule_test": tried}] if tried else []
        groups = [{"name": "wrong", "rules": [*rules.values()]}]
        (tmp_path / "rules.yaml").write_text(json.dumps({"groups": groups}))  # JSON is YAML
        (tmp_path / "test.yaml").write_text(json.dumps({"rule_files": ["rules.yaml"], "tests": tests}))
        done = promtool("test", "rules", tmp_path / "test.yaml", program=shutil.which("promtool") or PROMTOOL)
        assert (done.returncode, "got:" in done.stdout + done.stderr) == (1, True), (old, new)


def test_every_alert_is_tested_in_both_ways() -> None:
    tried = [it for case in CASES for it in case["alert_rule_test"]]
    assert {it["alertname"] for it in tried if it["exp_alerts"]} == set(ALERTS)
    assert {it["alertname"] for it in tried if not it["exp_alerts"]} == set(ALERTS)


def test_an_alert_is_about_metrics_and_labels_that_exist_and_its_runbook_url_leads_to_its_heading() -> None:
    for rule in RULES:
        named = set(re.findall(r"\b(?:resctrl_mon|node_textfile)_\w+", rule["expr"]))
        assert named
        assert named <= {*FAMILIES, "node_textfile_mtime_seconds"}
        has = {label for name in named & FAMILIES.keys() for labels in FAMILIES[name].samples for label, _ in labels}
        asked = {it for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", rule["expr"]) for it in group.split(", ")}
        asked |= set(re.findall(r"[{,](\w+)=", rule["expr"]))
        assert asked <= has | OTHER_LABELS
        assert rule["for"]
        assert rule["labels"]["severity"] in ("warning", "info")
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == f"docs/troubleshooting.md#{rule['alert'].lower()}"
        assert rule["alert"].lower() in anchors(page("docs/troubleshooting.md"))
        assert "`" in page("docs/troubleshooting.md", rule["alert"]), "a command or a file to look at"


def test_the_units_write_the_file_whose_age_is_watched() -> None:
    unit = (ROOT / "packaging/systemd/resctrl-mon-hook-textfile.service").read_text(encoding="ascii")
    (watched,) = {it for rule in RULES for it in re.findall(r'file=~"([^"]+)"', rule["expr"])}
    written = re.findall(r"TEXTFILE=(/\S+)", unit)
    assert len(written) == 2
    assert all(re.fullmatch(watched, path) for path in written)


def test_the_document_names_every_alert_and_no_other() -> None:
    assert first_words(page("docs/metrics.md", "Alerts"), "alert") == ALERTS
