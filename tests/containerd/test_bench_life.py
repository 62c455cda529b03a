# SPDX-License-Identifier: Apache-2.0
"""The benchmark of a container's life, with two rounds."""

from __future__ import annotations

import pytest

from tests.bench import life
from tests.bench.common import NotReady


def test_each_part_of_a_life_is_measured_with_each_hook() -> None:
    try:
        (table,) = life.measure(life.LifePlan(rounds=2))
    except NotReady as reason:
        pytest.skip(str(reason))
    figures = {(figure.row, figure.column): figure.values for figure in table.figures}
    assert {row for row, _ in figures} == set(life.WAYS)
    assert all(len(values) == 2 and min(values) > 0 for values in figures.values())
    ratio = figures[life.ELF, f"whole / {life.PYTHON}"]
    assert ratio[0] == pytest.approx(
        figures[life.ELF, "whole, ms"][0] / figures[life.PYTHON, "whole, ms"][0]
    )
