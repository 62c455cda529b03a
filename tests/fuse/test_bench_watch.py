# SPDX-License-Identifier: Apache-2.0
"""The benchmark of watch, reduced: that it measures what it says. Its limits are for the whole one."""

from __future__ import annotations

import os

import pytest

from tests.bench import watch
from tests.kernel.inside import REAL_ROOT
from tests.support import watching

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        REAL_ROOT is not None or os.geteuid() != 0 or watching.missing() is not None,
        reason=watching.missing() or "needs root, and the model",
    ),
]


def test_each_rate_and_the_memory_are_measured() -> None:
    figures = {(it.row, it.column): it.median for it in watch.measure_use(0.5).figures}
    assert [row for row, column in figures if column == "reached"] == [f"{it} execs a second" for it in watch.RATES]
    assert min(figures.values()) > 0
    assert figures["memory", "MiB"] <= watch.MOST_MEMORY
