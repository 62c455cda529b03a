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
from tests.bench.figures import Figure
from tests.bench.speed_hooks import TARGETS
from tests.support.interpreters import python_name

pytestmark = pytest.mark.slow

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
    # In one round on a busy machine the hook may be quicker than the exit floor, so that it takes less than 0 ms more.
    measured = [it.median for (row, _), it in found.items() if "lost" not in row and "ms more" not in row]
    assert min(measured) > 0
    lost = [it.median for (row, _), it in found.items() if "lost" in row]
    assert lost == [0] * 4
