# SPDX-License-Identifier: Apache-2.0
"""The screens in the documents are what the program prints: a node is made of each, and shown again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hook.base import procfs, system
from hook.cli import commands
from tests.unit.documents import page, screen
from tests.unit.nodes import FakeNode, alive

KERNEL = "/sys/fs/resctrl"
ENERGY, TOTAL, LOCAL, CACHE = (
    "mon_PERF_PKG_00/core_energy",
    "mon_L3_00/mbm_total_bytes",
    "mon_L3_00/mbm_local_bytes",
    "mon_L3_00/llc_occupancy",
)
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
KEY = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"
LIST, SHOW, TOP = ("resctrl-mon-hook list", f"resctrl-mon-hook show {KEY[:8]}", "resctrl-mon-hook top")
Run = Callable[..., str]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    monkeypatch.setattr(system, "boottime", lambda: 1000.0)
    monkeypatch.setattr(procfs, "in_host_pid_namespace", lambda: True)
    return FakeNode(tmp_path)


@pytest.fixture
def run(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> Run:
    """What a command prints, as if resctrl were where it usually is."""

    def run(*arguments: str) -> str:
        assert commands.main([arguments[0], *node.places, *arguments[1:]]) == 0
        return capsys.readouterr().out.replace(str(node.root), KERNEL)

    return run


def table(text: str, head: str) -> list[dict[str, str]]:
    """The rows of the table on a screen whose first column has this head."""
    lines = text[text.index(head) :].partition("\n\n")[0].rstrip().splitlines()
    names = re.split(r"  +", lines[0])
    return [dict(zip(names, re.split(r"  +", line.strip()))) for line in lines[1:]]


def seconds(age: str) -> int:
    return int(age[:-1]) * {"s": 1, "m": 60}[age[-1]]


def number(size: str) -> int:
    value, unit = size.strip("*").split()
    return round(float(value) * UNITS[unit])


def pod(row: dict[str, str]) -> dict[str, Any]:
    namespace, _, name = row["POD"].partition("/")
    return {"kind": "pod", "pod_namespace": namespace, "pod_name": name}


# --- list


def record_row(node: FakeNode, row: dict[str, str]) -> None:
    name = "oci-" + row["KEY"]
    from_nothing = row["ENERGY"].endswith("*")
    begin = {ENERGY: "Unavailable" if from_nothing else "0", TOTAL: "Unavailable" if "*" in row["MEMORY"] else "0"}
    now = {ENERGY: row["ENERGY"].split()[0], TOTAL: str(number(row["MEMORY"]))}
    path = str(node.path(name, row["CTRL_GROUPS"]))
    group: dict[str, Any] = {"path": path, "ctrl_group": row["CTRL_GROUPS"], "begin": begin}
    times: dict[str, Any] = {"created_boottime": 1000.0 - seconds(row["AGE"])}
    if row["STATE"] == "completed":
        group["end"] = now
        times.update(completed_at="2026-11-21T08:31:38Z", completed_boottime=999.0)
    else:
        node.make(name, row["CTRL_GROUPS"], now)
    members = {f"{row['KEY'][:8]}-{at}": alive(path) for at in range(int(row["ALIVE"]))}
    node.record(row["KEY"], **pod(row), **times, groups=[group], members=members)


def record_failure(node: FakeNode, text: str) -> None:
    head, *more = text.splitlines()
    found = re.fullmatch(r"  (\S+): (\S+): (.*) \((\w+), (\S+)\)", head)
    assert found is not None
    container, reason, problem, stage, time = found.groups()
    facts = dict(line.strip().split(": ", 1) for line in more)
    facts["tried"] = facts["tried"].replace(KERNEL, str(node.root))
    node.fail(container, reason, problem=problem, stage=stage, time=time, **facts)


def record_list(node: FakeNode) -> str:
    """Make a node of the screen of `list`; returns that."""
    text = screen("README.md", LIST)
    _in_use, limit, _ours, others = map(int, re.findall(r"\d+", text.splitlines()[0]))
    for info in node.root.glob("info/*/num_rmids"):
        info.write_text(f"{limit}\n")
    listed = table(text, "KEY ")
    for row in listed:
        record_row(node, row)
    ctrl_groups = {row["CTRL_GROUPS"] for row in listed if row["STATE"] != "completed"} | {"/"}
    for at in range(others - len(ctrl_groups)):
        node.make(f"of-others-{at}")
    record_failure(node, text[text.index("\n  c4") + 1 :])
    return text


def test_readme_shows_what_list_prints(node: FakeNode, run: Run) -> None:
    text = record_list(node)
    assert run("list") == text


# --- show


def record_show(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a node of the screen of `show`; returns that."""
    text = screen("docs/commands.md", SHOW)
    monkeypatch.setattr(procfs, "is_dead", lambda _pid, _starttime=None: False)
    facts = dict(re.findall(r"^(\w+) {2,}(.+)$", text, re.MULTILINE))
    shown = table(text, "COUNTER ")
    begin = {row["COUNTER"]: row["BEGIN"] for row in shown}
    path = node.make("oci-" + facts["key"], counters={row["COUNTER"]: row["NOW"] for row in shown})
    members = re.findall(r"^member (\w+): pid (\d+), starttime (\d+), alive\n.*\n  cgroup +(\S+)", text, re.MULTILINE)
    node.record(
        facts["key"],
        **pod({"POD": facts["pod"]}),
        created_at=facts["created"].split()[0],
        created_boottime=1000.0 - seconds(facts["created"].split()[2].rstrip(")")),
        generation=int(facts["generation"]),
        groups=[{"path": path, "ctrl_group": "/", "begin": begin}],
        members={
            name: {"pid": int(pid), "starttime": int(start), "group": path, "cgroup": cgroup}
            for name, pid, start, cgroup in members
        },
    )
    return text


def test_commands_shows_what_show_prints(node: FakeNode, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    text = record_show(node, monkeypatch)
    assert run("show", KEY[:8]) == text


# --- top


def record_top(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a node of the screen of `top`, whose keys use what that says while it waits; returns that."""
    text = screen("docs/commands.md", TOP)
    rows, waits = table(text, "KEY "), list[float]()
    for row in rows:
        zero = {ENERGY: "0", TOTAL: "0", LOCAL: "0", CACHE: str(number(row["CACHE"]))}
        path = node.make("oci-" + row["KEY"], counters=zero)
        node.record(row["KEY"], **pod(row), groups=[{"path": path, "ctrl_group": "/", "begin": zero}])

    def sleep(interval: float) -> None:
        waits.append(interval)
        for row in rows:
            sizes = {TOTAL: number(row["MEMORY/S"]), LOCAL: number(row["LOCAL/S"])}
            used = {counter: str(round(size * interval)) for counter, size in sizes.items()}
            joules = float(row["WATTS"].split()[0]) * interval
            node.count("oci-" + row["KEY"], {ENERGY: f"{joules:.6f}", **used})

    monkeypatch.setattr(system, "monotonic", lambda: 50.0 + sum(waits))
    monkeypatch.setattr(system, "now_utc", lambda: text.split()[0])
    monkeypatch.setattr(system, "sleep", sleep)
    return text


def test_commands_shows_what_top_prints(node: FakeNode, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    text = record_top(node, monkeypatch)
    assert run("top") == text


# --- JSON


def fields_of(value: object) -> set[str]:
    """The names in an object for JSON, at any depth, except for the labels of metrics."""
    if isinstance(value, list):
        return set().union(*map(fields_of, value))
    if isinstance(value, dict):
        return set(value).union(*(fields_of(it) for name, it in value.items() if name != "labels"))
    return set()


def test_commands_has_every_field_of_the_json(node: FakeNode, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    record_list(node)
    node.fail("c9", key=KEY)
    node.write("groups", "torn.json", "")
    node.unhooked("c3")
    named = set(re.findall(r"`(\w+)`", page("docs/commands.md", "JSON")))
    commands = (["list"], ["show", KEY], ["show", "5b6cb0a4"], ["metrics"])
    lists = [json.loads(run(*command, "--json")) for command in commands]
    monkeypatch.setattr(system, "sleep", lambda _seconds: None)
    found = fields_of([*lists, json.loads(run("top", "--json"))])
    data = {"core_energy", "mbm_total_bytes", ENERGY, TOTAL, *(f"{KEY[:8]}-{at}" for at in range(2))}
    assert {"unhooked", "failures", "watts", "samples", "from_nothing", "end"} <= found
    assert found - data - named == set()
