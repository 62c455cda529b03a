# SPDX-License-Identifier: Apache-2.0
"""The benchmark of many nodes in small: its bills are the truth, and it has every figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from fetch import provision
from tests.bench import fleet


def test_fleet_measures_each_way_and_carries_it_on(tmp_path: Path) -> None:
    try:
        provision.clickhouse()
    except provision.CannotProvision as error:
        pytest.skip(str(error))
    costs, year = fleet.measure(fleet.FleetPlan((3000,), 3, str(tmp_path)))
    ways = {fleet.START, "ClickHouse: load", *(f"ClickHouse: by {by}" for by in fleet.BY)}
    ways |= {"DuckDB: by namespace", "history: by namespace"}
    assert {figure.row for figure in costs.figures if figure.column == "MiB"} == ways
    assert min(value for figure in costs.figures for value in figure.values) > 0
    assert {figure.row for figure in year.figures} == {f"{nodes} nodes" for nodes in fleet.CLUSTERS}
