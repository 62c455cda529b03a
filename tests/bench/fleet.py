# SPDX-License-Identifier: Apache-2.0
"""What a cluster's bill costs: the lines of many nodes,
loaded and added up in each way of docs/fleet.md.

    python3 build.py bench fleet [--lines N...] [--nodes N] [--directory DIR]

The lines are made up (tests/support/fleet.py), 11 events in each, with torn ones and ones with one
id among them, in a file for each node. A bill that is not the truth is an error. CPU seconds and
peak memory are those of the process that loads or adds up, its start included.

A year of many nodes follows by arithmetic: 2,640 lines a day and node (110 pods that live an hour),
and what a line takes of those that were measured, without the start of the process.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fetch import provision
from tests.bench import common
from tests.bench.common import CannotMeasure, Figure, NotReady, Table
from tests.support import fleet
from tests.support.clickhouse import ClickHouse
from tests.support.hook import shipped
from tests.unit.documents import blocks, page

MIB = 1 << 20
GIB = 1 << 30
LINES_A_DAY = 110 * 24
CLUSTERS = (10, 1000, 10_000)
DUCKDB = """\
import duckdb, sys
duckdb.sql("SET enable_progress_bar = false")  # it is shown on stdout
for row in duckdb.sql(sys.stdin.read()).fetchall():
    print(*row, sep=chr(9))
"""
START = "ClickHouse: start and end"
BY = ("namespace", "user", "node", "day")
"""What the queries of the page bill by, in their order there."""


class FleetPlan(NamedTuple):
    lines: tuple[int, ...] = (1_000_000,)
    nodes: int = 100
    directory: str = tempfile.gettempdir()  # with 2 KiB for each line


class Cost(NamedTuple):
    seconds: float
    cpu: float
    memory: float
    output: str


def measure(plan: FleetPlan) -> Iterator[Table]:
    try:
        provision.clickhouse()
        for lines in plan.lines:
            with tempfile.TemporaryDirectory(dir=plan.directory) as name:
                yield from _measure(Path(name), plan.nodes, lines)
    except provision.CannotProvision as error:
        raise NotReady(str(error)) from error
    except OSError as error:
        raise CannotMeasure(str(error)) from error


def _measure(directory: Path, nodes: int, lines: int) -> Iterator[Table]:
    files = directory / "bills"
    files.mkdir()
    truth = fleet.write_files(files, nodes, lines, seed=1)
    database = ClickHouse(directory / "database")
    tables, load, *queries = blocks(page("docs/fleet.md", "ClickHouse"))
    database.run(*(statement for statement in tables.split(";\n") if statement.strip()))
    costs = {START: _run(database.command, "SELECT 1")}
    costs["ClickHouse: load"] = _run(database.command, _here(load, files))
    for by, query in zip(BY, queries):
        costs[f"ClickHouse: by {by}"] = cost = _run(database.command, query)
        _check(by, _read_rows(cost), truth)
    (query,) = blocks(page("docs/fleet.md", "DuckDB"))
    costs["DuckDB: by namespace"] = cost = _run([sys.executable, "-c", DUCKDB], _here(query, files))
    _check("namespace", _read_rows(cost), truth)
    command = [str(shipped()), "history", f"--history={files}", "--by=namespace", "--json"]
    costs["history: by namespace"] = cost = _run(command, "")
    sums = {row["name"] or "": row["use"]["core_energy"] for row in json.loads(cost.output)["sums"]}
    _check("namespace", sums, truth)
    stored = sum(
        path.stat().st_size for path in (directory / "database").rglob("*") if path.is_file()
    )
    figures = [
        Figure(row, column, [value], digits=digits, beside=None)
        for row, cost in costs.items()
        for column, value, digits in (
            ("s", cost.seconds, 1),
            ("CPU s", cost.cpu, 1),
            ("MiB", cost.memory, 0),
        )
    ]
    figures.append(Figure("the files", "MiB on disk", [truth.size / MIB], digits=0, beside=None))
    figures.append(
        Figure("ClickHouse: its tables", "MiB on disk", [stored / MIB], digits=0, beside=None)
    )
    yield Table(f"{lines} lines of {nodes} nodes", figures)
    yield _carry_on(costs, truth, stored)


def _carry_on(costs: dict[str, Cost], truth: fleet.Truth, stored: int) -> Table:
    """What a year comes to, if each line takes what one of those took that were measured."""
    figures = []
    load, bill = (
        costs[row].cpu - costs[START].cpu
        for row in ("ClickHouse: load", "ClickHouse: by namespace")
    )
    for nodes in CLUSTERS:
        many = nodes * 365 * LINES_A_DAY / truth.lines
        shown = {
            "million lines": (many * truth.lines / 1e6, 0),
            "GiB of files": (many * truth.size / GIB, 1),
            "GiB in ClickHouse": (many * stored / GIB, 1),
            "load, CPU s a day": (many / 365 * load, 1),
            "by namespace, CPU s": (many * bill, 0),
        }
        row = f"{nodes} nodes"
        figures += [
            Figure(row, column, [value], digits=digits, beside=None)
            for column, (value, digits) in shown.items()
        ]
    return Table(f"a year, carried on from {truth.lines} lines", figures)


def _here(statement: str, files: Path) -> str:
    return statement.replace("/srv/bills", str(files))


def _run(command: list[str], text: str) -> Cost:
    begin = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output)
        assert process.stdin is not None
        process.stdin.write(text.encode())
        process.stdin.close()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise CannotMeasure(f"{command[0]}: exit status {process.returncode}")
        output.seek(0)
        shown = output.read().decode()
    return Cost(
        time.monotonic() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, shown
    )


def _read_rows(cost: Cost) -> dict[str, float]:
    return {
        row[0]: float(row[2]) for row in (line.split("\t") for line in cost.output.splitlines())
    }


def _check(by: str, bill: dict[str, float], truth: fleet.Truth) -> None:
    expected = truth.joules(by)
    if bill.keys() != expected.keys() or any(
        not math.isclose(joules, expected[name], rel_tol=1e-9) for name, joules in bill.items()
    ):
        raise CannotMeasure(f"the bill by {by} is wrong")


if __name__ == "__main__":
    sys.exit(common.run("fleet", __doc__, FleetPlan(), measure))
