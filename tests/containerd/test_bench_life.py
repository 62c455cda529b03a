# SPDX-License-Identifier: Apache-2.0
"""The benchmark of a container's life, with two rounds."""

from __future__ import annotations

import pytest

from tests.bench import life
from tests.bench.common import NotReady
from tests.bench.figures import interval
from tests.support.containers import STAGES


def test_each_part_of_a_life_is_measured_with_each_hook() -> None:
    try:
        (table,) = life.measure(2, 1)
    except NotReady as reason:
        pytest.skip(str(reason))
    found = {(it.row, it.column): it.values for it in table.figures}
    assert {len(values) for (_, column), values in found.items() if column.endswith(", ms")} == {2, 1}
    assert {(row, column) for row, column in found if column.startswith("CPU")} == {
        (way, f"CPU at {stage}, ms") for way in (life.TRUE, life.PYTHON, life.HOOK) for stage in STAGES
    }
    for way in life.WAYS:
        create, remove, whole = (found[way, f"{part}, ms"] for part in ("create", "remove", "whole"))
        assert whole == pytest.approx([sum(parts) for parts in zip(create, remove)])
    ratio = found[life.HOOK, f"whole / {life.PYTHON}"]
    assert ratio[0] == pytest.approx(found[life.HOOK, "whole, ms"][0] / found[life.PYTHON, "whole, ms"][0])
    assert min(min(values) for values in found.values()) > 0


def test_interval_of_a_median_is_that_of_the_binomial_distribution() -> None:
    """Its ranks as in tables of the sign test, such as 40 and 61 of 100 values."""
    assert interval(range(100, 0, -1)) == (40, 61)
    assert interval(range(1, 11)) == (2, 9)
    assert interval([3, 1, 2]) == (1, 3), "three values are too few"
