# SPDX-License-Identifier: Apache-2.0
"""The screens in the documents are what the program prints, of one node,
on a terminal of 80 columns.

With RECORD_SCREENS=1 in the environment these tests write the screens into the documents
instead of comparing them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem
from pyfakefs.fake_filesystem_unittest import Pause

from hook import formats, rare, show, system
from hook.cli import command_line as cli
from hook.show import Screen
from tests.unit.documents import page, record, screen
from tests.unit.lines import line, make, write_lines
from tests.unit.nodes import NodeFiles, add_process

ENERGY, TOTAL, LOCAL, CACHE = (
    "mon_PERF_PKG_00/core_energy",
    "mon_L3_00/mbm_total_bytes",
    "mon_L3_00/mbm_local_bytes",
    "mon_L3_00/llc_occupancy",
)
KEY = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"
DATABASE = "5f3c9d0b7e21" + 52 * "a"
WEB, LOGS = ("3c1f9ad0b7e2" + 52 * "b", "77b0de41f5a9" + 52 * "c")
BEGUN = 1_795_000_000.0
"""The time of day when the node booted."""
Run = Callable[..., str]


def pod(namespace: str, name: str) -> dict[str, Any]:
    return {"kind": "pod", "pod_namespace": namespace, "pod_name": name}


def member(
    path: str, pid: int, name: str | None = None, cgroup: str | None = None
) -> dict[str, Any]:
    return {"pid": pid, "starttime": 92000 + pid, "group": path, "name": name, "cgroup": cgroup}


@pytest.fixture
def node(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> NodeFiles:
    """A pod with two containers, one in a ctrl_group, one that is over,
    one of Podman's containers, and a failure.
    """
    monkeypatch.setattr(system, "boottime", lambda: 1000.0)
    monkeypatch.setattr(system, "unix_time", lambda: BEGUN + 1000.0)
    for pid in (33, 60, 62, 71):
        add_process(pid, starttime=92000 + pid)
    used = {ENERGY: "22.313000", TOTAL: "48640000000", LOCAL: "36480000000", CACHE: "3145728"}
    nothing = {ENERGY: "Unavailable", TOTAL: "0", LOCAL: "0"}
    path = node.make("oci-" + KEY, counters=used)
    members = {
        WEB: member(
            path, 60, "web", f":/kubepods.slice/kubepods-pod87a3fb58.slice/crio-{WEB[:12]}.scope"
        ),
        LOGS: member(path, 62, "logs"),
    }
    groups = [{"path": path, "ctrl_group": "/", "begin": nothing}]
    times = {"created_at": formats.format_utc(BEGUN + 920.0), "created_boottime": 920.0}
    node.record(KEY, **pod("shop", "web-7c9f6d5b8-x2x4k"), **times, groups=groups, members=members)
    job = node.make(
        "oci-1f0d3a52-9c1b-4f6e-8a57-2b1c6f0e9d44", "gold", {ENERGY: "6.5", TOTAL: "14280000000"}
    )
    node.record(
        "1f0d3a52-9c1b-4f6e-8a57-2b1c6f0e9d44",
        **pod("batch", "report-28914-jw5sn"),
        created_boottime=992.0,
        groups=[{"path": job, "ctrl_group": "gold", "begin": {ENERGY: "0", TOTAL: "0"}}],
        members={"d" * 64: member(job, 71, "report")},
    )
    node.completed(
        "5b6cb0a4-51b6-4fd0-8a3e-0d9f3f2f7a11",
        **pod("batch", "report-28913-8kq2m"),
        created_boottime=700.0,
    )
    path = node.make("oci-" + DATABASE, counters={ENERGY: "310.25", TOTAL: "912000000"})
    groups = [{"path": path, "ctrl_group": "/", "begin": {ENERGY: "0", TOTAL: "0"}}]
    node.record(
        DATABASE,
        name="db",
        created_boottime=10.0,
        groups=groups,
        members={DATABASE: member(path, 33, "db")},
    )
    tried = "mkdir /sys/fs/resctrl/mon_groups/oci-c41d8cd9-8f00-4b20-9980-0998ecf8427e: ENOSPC"
    few = "info/*/num_rmids; on arm64 the PMGs of one ctrl_group"
    hint = f"more groups than RMIDs ({few}), or groups that others leaked"
    why = {
        "problem": "no RMID is left for this key",
        "tried": tried,
        "kernel": "Out of RMIDs",
        "hint": hint,
    }
    node.fail("9e107d9d372b" + 52 * "e", namespace="shop", pod="cart-0", name="app", **why)
    node.fail("e4d909c290d0" + 52 * "f", namespace="shop", pod="cart-1", name="app", **why)
    return node


@pytest.fixture
def ended(node: NodeFiles) -> None:
    """What Podman's jobs used: of last night, and of the month before;
    one line was torn by a crash.
    """
    assert node is not None
    lines = [
        make(
            1,
            "job-17",
            **of("2026-11-16T22:00:00Z", "2026-11-16T22:41:07Z", 2467.2, 5230.5, 812_345_000_000),
        ),
        make(
            2, "job-18", **of("2026-11-16T22:41:09Z", "2026-11-16T22:41:10Z", 0.5, 0.84, 5_300_000)
        ),
        make(
            3,
            "job-17",
            **of("2026-11-17T22:00:00Z", "2026-11-17T22:40:51Z", 2451.0, 5198.25, 809_000_000_000),
        ),
        make(
            4,
            "db",
            runs=3,
            pod="stack",
            **of("2026-11-10T08:00:00Z", "2026-11-18T02:11:00Z", 669_060.0, 91_310.0),
        ),
        make(
            5,
            "etl",
            unknown=["core_energy"],
            **of("2026-11-18T02:00:00Z", "2026-11-18T02:30:12Z", 1812.4, 940.0),
        ),
    ]
    month = make(
        6,
        "job-16",
        **of("2026-10-16T22:00:00Z", "2026-10-16T22:39:40Z", 2380.1, 5109.75, 799_000_000_000),
    )
    write_lines("history.jsonl.1", line(month), at=BEGUN - 1e6)
    write_lines("history.jsonl", b"".join(map(line, lines)) + line(make(7))[:99] + b"\n", at=BEGUN)


def of(
    begin: str, end: str, seconds: float, joules: float, traffic: int = 12_000_000_000
) -> dict[str, Any]:
    """The times and the use of a job."""
    return {
        "begin": begin,
        "end": end,
        "seconds": seconds,
        "use": {"core_energy": joules, "mbm_total_bytes": traffic},
    }


@pytest.fixture
def run(
    node: NodeFiles, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """What a command prints, on a terminal of 80 columns."""
    monkeypatch.setattr(
        show, "get_screen", lambda *, is_wide=False: Screen(None if is_wide else 80)
    )

    def run(*arguments: str) -> str:
        assert cli.main([arguments[0], *node.places, *arguments[1:]]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def while_top_waits(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node uses something while `top` waits for 2 seconds."""
    waits: list[float] = []

    def count(energy: float, traffic: int) -> None:
        node.count_whole(
            {ENERGY: f"{energy}", TOTAL: str(traffic), LOCAL: str(traffic), CACHE: "9000000"}
        )

    def sleep(interval: float) -> None:
        waits.append(interval)
        node.count("oci-" + KEY, {ENERGY: "27.913", TOTAL: "60900000000", LOCAL: "45670000000"})
        node.count("oci-" + DATABASE, {ENERGY: "310.45", TOTAL: "930000000"})
        count(1030.0, 80_000_000_000)

    count(1000.0, 66_000_000_000)
    monkeypatch.setattr(system, "monotonic", lambda: 50.0 + sum(waits))
    monkeypatch.setattr(rare, "now_utc", lambda: formats.format_utc(BEGUN + 1000.0))
    monkeypatch.setattr(system, "sleep", sleep)


def write_batch() -> None:
    """Last night's jobs of a batch node, of which one was metered in part."""
    of_users = {"alice": (81.5, 43.25, 96.0), "bob": (7.25, 310.5), "carol": (720.0,)}
    jobs = list[dict[str, Any]]()
    for user, hours in of_users.items():
        for minutes in hours:
            number, begin = len(jobs) + 1, BEGUN - 60_000.0
            times = formats.format_utc(begin), formats.format_utc(begin + minutes * 60)
            use = of(*times, minutes * 60, minutes * 131.0, int(minutes * 19e9))
            unknown = ["core_energy"] * (number == 4)
            jobs.append(
                make(
                    number,
                    kind="job",
                    key=f"slurm-{number}",
                    labels={"user": user},
                    unknown=unknown,
                    **use,
                )
            )
    write_lines("history.jsonl", b"".join(map(line, jobs)))


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("README.md", "list"),
        ("README.md", 'history --since "last night" --by=user'),
        ("docs/commands.md", "list unmonitored"),
        ("docs/commands.md", "show shop/web"),
        ("docs/commands.md", "top"),
        ("docs/history.md", "history"),
        ("docs/history.md", "history job-17 --csv"),
    ],
)
@pytest.mark.usefixtures("while_top_waits", "ended")
def test_a_document_shows_what_a_command_prints(
    run: Run, fs: FakeFilesystem, name: str, command: str
) -> None:
    if "--by=user" in command:
        write_batch()
    printed = run(*shlex.split(command))
    with Pause(fs):
        if os.environ.get("RECORD_SCREENS"):
            record(name, f"resctrl-mon-hook {command}", printed)
        shown = screen(name, f"resctrl-mon-hook {command}")
    assert shown == printed
    table = [len(line) for line in printed.splitlines() if "  " in line]
    assert max(table, default=0) <= 80 or command.startswith(("show", "list unmonitored"))


# --- JSON


def fields_of(value: object) -> set[str]:
    """The names in an object for JSON, at any depth, except for the labels of metrics."""
    if isinstance(value, list):
        return set().union(*map(fields_of, value))
    if isinstance(value, dict):
        return set(value).union(
            *(fields_of(field) for name, field in value.items() if name != "labels")
        )
    return set()


@pytest.mark.usefixtures("ended")
def test_commands_has_every_field_of_the_json(
    node: NodeFiles, run: Run, fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.fail("c9", key=KEY)
    node.write("groups", "torn.json", "")
    node.unhooked("c3")
    with Pause(fs):
        text = page("docs/commands.md", "JSON") + page("docs/history.md", "The file")
        names = set(re.findall(r"`(\w+)`", text))
    commands = [["list"], ["show", KEY], ["show", "5b6cb0a4"], ["metrics"]]
    commands += [["history"], ["history", "--by=day"]]
    lists = [json.loads(run(*command, "--json")) for command in commands]
    monkeypatch.setattr(system, "sleep", lambda _seconds: None)
    fields = fields_of([*lists, json.loads(run("top", "--json"))])
    data = {
        "core_energy",
        "mbm_total_bytes",
        "mbm_local_bytes",
        ENERGY,
        TOTAL,
        LOCAL,
        CACHE,
        WEB,
        LOGS,
    }
    assert {"unhooked", "failures", "watts", "samples", "from_nothing", "end"} <= fields
    assert fields - data - names == set()
