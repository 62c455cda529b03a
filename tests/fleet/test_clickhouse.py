# SPDX-License-Identifier: Apache-2.0
"""The statements of docs/fleet.md on ClickHouse itself,
with files of many nodes of which the truth is known.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fetch import provision
from tests.support import fleet
from tests.support.clickhouse import ClickHouse
from tests.unit.documents import blocks, page

TABLES, LOAD, *QUERIES = blocks(page("docs/fleet.md", "ClickHouse"))
BY = ("namespace", "user", "node", "day", "key")
"""What the queries bill by, in their order on the page."""
(SENT,) = re.findall(r"query=(\S+?)&(\S+)", page("docs/fleet.md", "Fluent Bit"))
(HAND_ON,) = [
    block for block in blocks(page("docs/fleet.md", "OpenTelemetry Collector")) if "CREATE" in block
]


class Bills:
    """A database with the tables of the page, and files in `bills`."""

    def __init__(self, directory: Path) -> None:
        self.files = directory / "bills"
        self.files.mkdir()
        self.database = ClickHouse(directory / "database")
        self.database.run(*TABLES.split(";\n"))

    def load(self) -> None:
        assert "'/srv/bills/" in LOAD
        self.database.run(LOAD.replace("/srv/bills", str(self.files)))

    def bill(self, name: str) -> dict[str, float]:
        """Return the joules by that, and no value twice."""
        rows = self.database.run(QUERIES[BY.index(name)])
        joules = {row[0]: float(row[2]) for row in rows}
        assert len(joules) == len(rows)
        return joules


def open_bills(directory: Path) -> Bills:
    try:
        return Bills(directory)
    except provision.CannotProvision as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bills, fleet.Truth]:
    bills = open_bills(tmp_path_factory.mktemp("fleet"))
    truth = fleet.write_files(
        bills.files, nodes=10, lines=30_000, seed=1, names=("", ".1", ".2.gz")
    )
    bills.load()
    return bills, truth


@pytest.mark.parametrize("name", BY)
def test_bill_is_the_truth_over_torn_lines_zeros_and_lines_with_one_id(
    name: str, loaded: tuple[Bills, fleet.Truth]
) -> None:
    bills, truth = loaded
    assert bills.bill(name) == pytest.approx(truth.joules(name), rel=1e-12)


def test_files_that_are_loaded_twice_count_once(loaded: tuple[Bills, fleet.Truth]) -> None:
    bills, truth = loaded
    bills.load()
    assert bills.bill("node") == pytest.approx(truth.joules("node"), rel=1e-12)
    assert sum(int(row[1]) for row in bills.database.run(QUERIES[0])) == truth.lines


def test_lines_of_the_collectors_table_reach_the_bills(tmp_path: Path) -> None:
    """The table is that of its exporter, as far as it matters here."""
    bills = open_bills(tmp_path)
    truth = fleet.write_files(bills.files, nodes=2, lines=100, seed=2)
    made = (
        "CREATE TABLE otel_logs (Timestamp DateTime64(9), Body String) ENGINE = MergeTree ORDER "
        "BY Timestamp"
    )
    load = LOAD.replace("/srv/bills", str(bills.files)).replace(
        "INSERT INTO bill_lines SELECT line", "SELECT now(), line"
    )
    bills.database.run(made, HAND_ON, f"INSERT INTO otel_logs {load}")
    assert bills.bill("namespace") == pytest.approx(truth.joules("namespace"), rel=1e-12)


def test_lines_that_collectors_send_as_objects_reach_the_bills(tmp_path: Path) -> None:
    """Vector's and Fluent Bit's, with a field that is not of the table."""
    bills = open_bills(tmp_path)
    truth = fleet.write_files(bills.files, nodes=2, lines=100, seed=3)
    texts = [
        line for path in bills.files.iterdir() for line in path.read_text("utf-8").splitlines()
    ]
    objects = "\n".join(json.dumps({"line": text, "stream": "stdout"}) for text in texts)
    statement, setting = SENT
    bills.database.run(f"SET {setting}", f"{statement.replace('+', ' ')}\n{objects}")
    assert bills.bill("namespace") == pytest.approx(truth.joules("namespace"), rel=1e-12)
