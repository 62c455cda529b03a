# SPDX-License-Identifier: Apache-2.0
"""The benchmarks in small: that they measure the hook at its work.

How long that takes does not matter here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fetch import provision
from fetch.interpreters import python_name
from tests.bench import scale, speed, view, watch
from tests.bench.common import Figure, Table, interval
from tests.kernel.inside import REAL_ROOT
from tests.support import watching

pytestmark = [pytest.mark.slow, pytest.mark.form("pyz")]

PYTHON = Path(sys.base_prefix, "bin", python_name(sys.version_info[:2]))
SPEED = speed.SpeedPlan(python=[str(PYTHON)], rounds=1, groups=(1, 3), crowd=3, instructions=0)
SCALE = scale.Sizes(members=8, processes=60, rounds=1, keys=20, lines=300, day=1500)


@pytest.fixture(autouse=True)
def _ready() -> None:
    if os.geteuid() != 0 or not Path("/dev/fuse").exists() or REAL_ROOT is not None:
        pytest.skip("needs root, /dev/fuse and the model")
    if reasons := provision.missing(("gcc", "libc6-dev")):
        pytest.skip("; ".join(reasons))


def medians(*tables: Table) -> dict[tuple[str, str], float]:
    return {
        (figure.row, figure.column): figure.center(figure.values)
        for table in tables
        for figure in table.figures
    }


def test_speed_measures_every_table() -> None:
    figures = medians(*speed.measure(SPEED))
    forms = {column for _, column in figures} - {*speed.TARGETS}
    assert forms - {speed.ELF} == {"{}.{}".format(*sys.version_info)}
    # memory, milliseconds, three at once; and the table of nodes with groups
    assert len(figures) == len(forms) * (len(speed.TARGETS) + 1 + 3 + 1) + len(speed.TARGETS)
    # In one round on a busy machine the hook may be quicker than the exit floor,
    # so that it takes less than 0 ms more.
    assert min(value for (row, _), value in figures.items() if " more" not in row) > 0


def test_scale_measures_every_table() -> None:
    costs, growth, scrapes, history, longer, minute, made = scale.measure(SCALE)
    assert (
        {figure.row for figure in costs.figures}
        == {figure.row for figure in growth.figures}
        == set(scale.TARGETS)
    )
    assert {figure.row for figure in scrapes.figures} == set(scale.SCRAPES)
    assert {figure.row for figure in history.figures} == {"json.loads", *scale.HISTORIES}
    assert {figure.row for figure in longer.figures} == {"json.loads", scale.HISTORIES[0]}
    assert {figure.column for figure in minute.figures} == {"without a history", "with a history"}
    assert [figure.row for figure in made.figures] == ["reconcile makes the sums"]
    assert (
        min(
            value
            for (_, column), value in medians(costs, growth, scrapes, history, longer).items()
            if column != "CPU s"
        )
        > 0
    )


@pytest.mark.skipif(watching.missing() is not None, reason=watching.missing() or "")
def test_watch_measures_each_rate_and_the_memory() -> None:
    figures = medians(*watch.measure(watch.WatchPlan(0.5)))
    assert [row for row, column in figures if column == "reached"] == [
        f"{rate} execs a second" for rate in watch.RATES
    ]
    assert min(figures.values()) > 0
    assert figures["memory", "MiB"] <= watch.MOST_MEMORY


def test_view_measures_each_state() -> None:
    figures = medians(*view.measure(view.ViewPlan(keys=3, seconds=1.0)))
    assert {row for row, column in figures if column == "CPU s an hour"} == {
        "at rest",
        "a key a second",
    }
    assert min(figures.values()) > 0
    assert figures["its files", "number"] > 3 * 24


def test_figure_marks_a_missed_target() -> None:
    assert str(Figure("row", "column", [1, 2, 3, 4], 2)) == "2.50 ±0.75 (!)"
    assert str(
        Figure(
            "row",
            "column",
            [97, 98],
            98,
            unit=" %",
            digits=0,
            at_least=True,
            center=min,
            beside=None,
        )
    ) == ("97 % (!)")
    assert not Figure("row", "column", [2], 2).is_missed


def test_interval_of_a_median_has_the_ranks_of_the_sign_test() -> None:
    assert interval(range(100, 0, -1)) == (40, 61)
    assert interval([3, 1, 2]) == (1, 3), "three values are too few"
