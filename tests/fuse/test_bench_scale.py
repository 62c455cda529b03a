# SPDX-License-Identifier: Apache-2.0
"""The scale benchmark in small: that it measures reconciles at their work. How long they take is no matter here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bench import scale
from tests.kernel.inside import REAL_ROOT

pytestmark = pytest.mark.slow

SMALL = scale.Sizes(members=8, processes=60, adopted=3, rounds=1, keys=200)


@pytest.fixture(autouse=True)
def _ready() -> None:
    if os.geteuid() != 0 or not Path("/dev/fuse").exists() or REAL_ROOT is not None:
        pytest.skip("needs root, /dev/fuse and the model")


def test_every_table_has_its_figures() -> None:
    costs, growth, scrapes = scale.measure(SMALL)
    assert {it.row for it in costs.figures} == set(scale.TARGETS)
    assert {it.row for it in growth.figures} == {"nothing to do", "after a wipe"}
    assert {it.row for it in scrapes.figures} == set(scale.SCRAPES)
    found = [*costs.figures, *growth.figures, *scrapes.figures]
    assert min(it.median for it in found) > 0
    by_column = {(it.row, it.column): it.median for it in costs.figures}
    assert by_column["--adopt", "CPU s without children"] <= by_column["--adopt", "CPU s"]
