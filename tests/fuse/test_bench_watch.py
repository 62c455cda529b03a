# SPDX-License-Identifier: Apache-2.0
"""The benchmark of watch, reduced: that it measures what it says. Its limits are for the whole one."""

from __future__ import annotations

import os

import pytest

from tests.bench import watch
from tests.kernel.inside import REAL_ROOT
from tests.support import watching

pytestmark = pytest.mark.skipif(
    REAL_ROOT is not None or os.geteuid() != 0 or watching.missing() is not None,
    reason=watching.missing() or "needs root, and the model",
)


def test_each_rate_and_the_memory_are_measured() -> None:
    rows, memory = watch.measure(0.5)
    assert [row.wanted for row in rows] == list(watch.RATES)
    assert all(row.execs > 0 and row.cpu > 0 for row in rows)
    assert 0 < memory <= watch.MEMORY
