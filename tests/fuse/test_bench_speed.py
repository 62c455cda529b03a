# SPDX-License-Identifier: Apache-2.0
"""The speed benchmark in small: that it measures hooks at their work, and tells when they do none."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests import provision
from tests.bench import plain_node, speed
from tests.bench.common import CannotMeasure
from tests.bench.figures import Figure
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
    found = figures("starts", "groups", "crowds")
    assert all(len(it.values) == 1 for it in found.values())
    version = "{}.{}".format(*sys.version_info)
    assert [column for _, column in found].count(version) == len(TARGETS) + 1
    times = [it.median for (row, _), it in found.items() if "wall time" in row or "exit floors" in row]
    assert len(times) == 4 + 4 + 4
    assert min(times) > 0
    lost = [it.median for (row, _), it in found.items() if "lost" in row]
    assert lost == [0] * 4


def test_a_hook_that_does_nothing_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hook, "command", lambda _self, _verb: ["/bin/true"])
    with pytest.raises(CannotMeasure, match="the hook does not work"):
        figures("starts")


def test_a_node_has_as_many_groups_as_it_is_to_have_and_mounts_nothing_here() -> None:
    with plain_node.plain_node(groups=5) as node:
        assert len(node.hook().groups()) == 5
        assert len(list((node.run_dir / "groups").glob("*.json"))) == 5
        assert node.left() == set()
        key = node.new_key()
        group = node.root / "mon_groups" / f"oci-{key}"
        assert len(list(group.glob("mon_data/*/*"))) == plain_node.COUNTERS
        assert str(node.run_dir.parent) not in Path("/proc/self/mounts").read_text()
        group.rmdir()
        assert node.left() == set()
    assert not node.run_dir.exists()
