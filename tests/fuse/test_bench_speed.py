# SPDX-License-Identifier: Apache-2.0
"""The speed benchmark in small: that it measures hooks at their work, and tells when they do none."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests import provision
from tests.bench import speed
from tests.bench.common import CannotMeasure
from tests.bench.figures import Figure, Table
from tests.bench.speed_hooks import TARGETS
from tests.support.hook import Hook
from tests.support.interpreters import python_name

PYTHON = Path(sys.base_prefix, "bin", python_name(sys.version_info[:2]))
SMALL = speed.Plan(pythons=[PYTHON], rounds=1, groups=(1, 3), crowd=4, counts_instructions=False)


@pytest.fixture(autouse=True)
def _ready() -> None:
    reasons = provision.missing(("gcc", "libc6-dev"))
    if reasons or os.geteuid() != 0:
        pytest.skip("; ".join(reasons) or "not root")


def figures(*tables: str) -> dict[tuple[str, str], Figure]:
    measured = speed.measure(replace(SMALL, tables=tables))
    return {(it.row, it.column): it for table in measured for it in table.figures}


def test_every_table_has_its_figures() -> None:
    found = figures("starts", "looks", "groups", "crowds")
    assert all(len(it.values) == 1 for it in found.values())
    version = "{}.{}".format(*sys.version_info)
    rows = [row for row, column in found if column == version]
    assert len(rows) == len(TARGETS) + 1 + 1 + 3 + 3  # history; memory; list, show, metrics; milliseconds
    times = [it.median for (row, _), it in found.items() if "wall time" in row or "exit floors" in row]
    assert len(times) == 4 + 1 + 4 + 4
    assert min(it.median for (row, _), it in found.items() if "lost" not in row) > 0
    lost = [it.median for (row, _), it in found.items() if "lost" in row]
    assert lost == [0] * 4


def test_a_hook_that_does_nothing_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hook, "command", lambda _self, _verb: ["/bin/true"])
    with pytest.raises(CannotMeasure, match="the hook does not work"):
        figures("starts")


@pytest.mark.parametrize(("value", "status"), [(1.5, 0), (1.6, 1)])
def test_exit_status_is_1_if_a_target_is_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: float, status: int
) -> None:
    monkeypatch.setattr(speed, "measure", lambda _plan: iter([Table("t", [Figure("r", "c", [value], 1.5)])]))
    assert speed.main([]) == status
    out, err = capsys.readouterr()
    assert ("(!)" in out) == bool(status)
    assert err == ("speed: t: r, c: 1.600, target 1.5\n" if status else "")
