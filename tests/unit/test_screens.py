# SPDX-License-Identifier: Apache-2.0
"""What list, show and top print where the screens in the documents show nothing:
`test_docs_screens` has those.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook import rare, show, system
from hook.cli import command_line as cli
from hook.node.records import Records
from hook.show import Screen, history, lists, snapshot
from tests.unit.lines import FILE, line, make, write_lines
from tests.unit.nodes import BEGIN, NOW, PID, NodeFiles
from tests.unit.simulated import UID, fails

ENERGY, TRAFFIC, CACHE = (
    "mon_PERF_PKG_00/core_energy",
    "mon_L3_00/mbm_total_bytes",
    "mon_L3_00/llc_occupancy",
)
HERE = {"path": "/sys/fs/resctrl/mon_groups/oci-c1", "ctrl_group": "/", "begin": BEGIN}
WIPED = {**HERE, "before": {ENERGY: "Unavailable"}, "known": {ENERGY: "1.5"}}
FULL = (
    "more containers may be unmonitored: the file system of the run directory is full (see df -h "
    "/run, df -i /run)"
)
LOST = "since boot could not be recorded: see journalctl -t resctrl-mon-hook"
AT_LEAST, FROM_0 = (
    ">= at least that much: a part is unknown",
    "* counted from 0, without an initial value",
)
SHOP: dict[str, Any] = {"pod_namespace": "shop", "pod_name": "x"}
Run = Callable[..., str]


@pytest.fixture
def node(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> NodeFiles:
    node.run.mkdir()
    monkeypatch.setattr(system, "boottime", lambda: 1000.0)
    monkeypatch.setattr(system, "unix_time", lambda: 1_795_001_000.0)
    return node


@pytest.fixture
def run(node: NodeFiles, capsys: pytest.CaptureFixture[str], complaints: list[str]) -> Run:
    """A verb that succeeds; what it printed."""

    def run(*words: str) -> str:
        assert cli.main([words[0], *node.places, *words[1:]]) == 0
        assert complaints == []
        return capsys.readouterr().out

    return run


def keys_of(text: str) -> list[str]:
    """The keys of the rows of a table."""
    head, *rows = [
        line.split() for line in text.splitlines()[text.splitlines().index("") :] if line
    ]
    return [row[head.index("KEY")] for row in rows if len(row) == len(head)]


def make_groups(node: NodeFiles) -> None:
    """One of ours, one of others in a ctrl_group, and a key whose group is missing there."""
    node.live("c1", created_boottime=400.0)
    node.make("theirs", "gold")
    lost = str(node.path("oci-lost", "gold"))
    members = {"a": node.alive(lost), "b": node.dead(lost)}
    node.record(
        "lost", groups=[{"path": lost, "ctrl_group": "gold", "begin": BEGIN}], members=members
    )
    node.record("back", recovering=True)


def make_problems(node: NodeFiles) -> None:
    """Of each kind of what is not monitored one."""
    node.fail("c1", kernel="No free RMIDs", tried="mkdir /x: ENOSPC", hint="fewer pods")
    node.fail("c2", "usage", problem="unknown option", monitored=True)
    node.live("c3", **SHOP)
    node.unhooked("c4", unchecked=2)
    node.reconciled(
        failed=2,
        outside={"c3": 17, "c5": 1},
        outside_total=18,
        elsewhere={"/r/gold": 1, "/r/b \n": 7},
    )
    node.write("runs", "unrecorded", "..")
    node.write("groups", "torn.json", "{")
    node.write("unmonitored", "odd.json", "[]")


def make_taken(node: NodeFiles) -> None:
    node.live("c1", **SHOP)
    node.take()
    node.live("c2", taken=True, members={})


def make_wiped(node: NodeFiles) -> None:
    node.make("oci-c1", counters=NOW)
    node.record("c1", groups=[WIPED])


def make_whole(node: NodeFiles) -> None:
    """A pod of which all is known, two domains and two ctrl_groups included."""
    counts = {**NOW, "mon_PERF_PKG_01/core_energy": "2.0", "mon_L3_00/later": "7"}
    path, gold = node.make("oci-c1", counters=counts), node.make("oci-c1", "gold", {ENERGY: "40"})
    groups = [
        {
            **HERE,
            "begin": {**BEGIN, "mon_PERF_PKG_01/core_energy": "1.0"},
            "before": {ENERGY: "1.5"},
        },
        {"path": gold, "ctrl_group": "gold", "begin": {ENERGY: "Unavailable"}},
    ]
    members = {
        "c1": node.alive(path, cgroup=":/x", taken_from="theirs", name="app"),
        "c2": node.dead(path),
    }
    times = {"created_at": "2026-11-18T12:00:00Z", "created_boottime": 900.0}
    node.record(UID, kind="pod", **SHOP, groups=groups, members=members, **times)
    node.index("c1", UID)
    node.fail("c9", key=UID, kernel="No free RMIDs")
    node.fail("c2", "task_gone")
    node.fail("stranger", "denied")


def make_unknown(node: NodeFiles) -> None:
    node.live("c1", begin={ENERGY: "Unavailable", TRAFFIC: "Unavailable"})


def make_one_package(node: NodeFiles) -> None:
    """A pod that runs on one of two packages."""
    second = ENERGY.replace("00", "01")
    node.make("oci-c1", counters={**NOW, second: "Unavailable"})
    node.record("c1", groups=[{**HERE, "begin": {**BEGIN, second: "Unavailable"}}])


def make_job(node: NodeFiles) -> None:
    """A job with labels, and a key without."""
    node.live("nightly", kind="job", job_labels={"user": "alice", "project": "a b,J\u00f6rg\n"})
    node.record("c1")


def make_no_begin(node: NodeFiles) -> None:
    node.record("c1", groups=[{**HERE, "begin": None}])


SCREENS: list[tuple[Callable[[NodeFiles], object], str, list[str], str]] = [
    (
        make_groups,
        "list",
        [
            "RMIDs: 4 in use of 8 (1 ours, 3 of others)",
            "- back recovering - 0/0 ? - -",
            "- lost missing gold 1/2 ? ? ?",
            "total >=3.25 >=3.91Ki",
            AT_LEAST,
        ],
        "orphans",
    ),
    (make_groups, "list --limit=1", ["total >=3.25 >=3.91Ki", "1 of 3 shown"], "lost"),
    (
        make_problems,
        "list",
        [
            "not monitored: no_rmids: 1 container: c1",
            "monitored, with problems: usage: 1 container: c2",
            "never hooked, as of 2026-01-02T03:04:05Z (see list unmonitored): 1 container: "
            "shop/web-0 app",
            f"at least 2 failures {LOST}",
            "18 threads outside of their group, as of reconcile: shop/x (c3): 17, c5: 1",
            "unreadable: /run/resctrl-mon-hook/groups/torn.json: Expecting property name",
            "unreadable: /run/resctrl-mon-hook/unmonitored/odd.json:",
            "threads in groups of other tools or in other ctrl_groups, as of reconcile: "
            "/r/b\\x20\\n: 7, /r/gold: 1",
        ],
        "taken",
    ),
    (
        make_taken,
        "list",
        [
            "shop/x c1 taken / 1/1 ? >=3.25 >=3.91Ki",
            "- c2 live / 0/0 ? >=3.25 >=3.91Ki",
            "taken by other tools, which count what they use: 1 container: shop/x (c1) in",
        ],
        "reconcile",
    ),
    (
        make_taken,
        "show c1",
        [
            "state taken",
            "core_energy >=3.25 joules",
            "taken by /sys/fs/resctrl/mon_groups/theirs",
            AT_LEAST,
        ],
        "taken from",
    ),
    (
        make_problems,
        "list unmonitored",
        [
            "c2: usage: unknown option (createRuntime, 2026-01-02T03:04:05Z, but monitored)",
            "shop/web-0 app (c4): without the hook, as of 2026-01-02T03:04:05Z",
        ],
        "outside",
    ),
    (lambda _: None, "list unmonitored", ["none"], "!"),
    (
        lambda files: files.live("c1"),
        "list --resctrl-root=/run",
        ["resctrl is not mounted, or does not support"],
        "!",
    ),
    (make_unknown, "show c1", [f"{TRAFFIC} bytes Unavailable 5000 - 5000*"], "no initial"),
    (
        make_one_package,
        "show c1",
        [
            "core_energy 3.25 joules",
            "mon_PERF_PKG_01/core_energy joules Unavailable Unavailable - 0",
        ],
        "*",
    ),
    (make_wiped, "list", ["- c1 live / 0/0 ? >=4.75 3.91Ki", AT_LEAST], "counted from 0"),
    (
        make_wiped,
        "show c1",
        [f"{ENERGY} joules 5.500000 8.750000 Unavailable >=4.750000", AT_LEAST],
        "!",
    ),
    (
        make_whole,
        "show shop/x",
        [
            "core_energy 45.8* joules",
            "taken from theirs",
            f"container app (c1): alive, pid {PID}, started 2026-11-18T11:06:41Z",
            f"container c2: dead, pid {PID}, started",
            "kernel: No free RMIDs",
            "ctrl_group gold: /sys/fs/resctrl/gold/mon_groups/oci-c1 (there)",
            "mon_L3_00/later ? - 7 - -",
        ],
        "stranger",
    ),
    (
        make_job,
        "list -o wide",
        [
            "NAME KEY STATE CTRL_GROUPS LABELS ALIVE AGE",
            r"nightly nightly live / user=alice,project=a\x20b,J\xf6rg\n 1/1",
            "- c1 live - - 0/0",
        ],
        "J\u00f6rg",
    ),
    (make_job, "show nightly", ["label user alice", r"label project a b,J\xf6rg\n"], "J\u00f6rg"),
    (lambda files: files.completed("c1"), "show c1", [f"{TRAFFIC} bytes 1000 5000 - 4000"], "NOW"),
    (
        make_no_begin,
        "show c1",
        [f"ctrl_group /: {HERE['path']} (missing; no initial counters: its use is unknown)"],
        "EVENT",
    ),
]
"""How a node is made, a command, lines that it prints, and a text that it does not print."""


@pytest.mark.parametrize(("make", "command", "lines", "absent"), SCREENS)
def test_a_screen_has_these_lines(
    node: NodeFiles,
    run: Run,
    make: Callable[[NodeFiles], object],
    command: str,
    lines: list[str],
    absent: str,
) -> None:
    make(node)
    text = run(*command.split())
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert [
        line for line in lines if not any(row == line or row.startswith(f"{line} ") for row in rows)
    ] == []
    assert absent not in text


def test_orphans_and_podmans_names_are_shown(node: NodeFiles, run: Run) -> None:
    node.make("oci-lone")
    node.live("c1", name="db", members={"c1": node.alive("/x/mon_groups/oci-c1", name="db")})
    lines = run("list").splitlines()
    assert (lines[0].endswith("; orphans: 1"), lines[3].split()[:2]) == (True, ["db", "c1"])
    assert json.loads(run("list", "--json"))["keys"][0]["name"] == "db"
    shown = run("show", "db")
    assert (
        "name        db\n" in shown,
        f"\ncontainer db (c1): alive, pid {PID}, started " in shown,
    ) == (True, True)


def test_many_failures_of_one_cause_are_summed_up(node: NodeFiles, run: Run) -> None:
    for at in range(236):
        node.fail(f"{at:064x}", namespace="shop", pod=f"cart-{at:03}", name="app")
    (line,) = [line for line in run("list").splitlines() if "no_rmids" in line]
    assert ": 236 containers: shop/cart-000 app (000000000000), shop/cart-001 app (" in line
    assert line.endswith(", and 231 more")
    each = run("list", "unmonitored").splitlines()
    assert len(each) == 236
    assert each[235].startswith("shop/cart-235 app (000000000000): no_rmids: no RMID is left (")


ROOM = {"f_blocks": 1000, "f_bavail": 500, "f_frsize": 4096, "f_files": 5000, "f_favail": 4000}


@pytest.mark.parametrize(
    ("change", "is_full"),
    [
        ({}, False),
        ({"f_bavail": 255}, True),
        ({"f_favail": 999}, True),
        # A tmpfs without a limit.
        ({"f_blocks": 0, "f_bavail": 0, "f_files": 0, "f_favail": 0}, False),
    ],
    ids=str,
)
def test_list_does_not_say_none_while_the_run_directory_is_full(
    node: NodeFiles,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, int],
    is_full: bool,
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**{**ROOM, **change}))
    line = f"{FULL}\n"
    assert run("list", "unmonitored") == (line if is_full else "none\n")
    assert (line in run("list")) is is_full
    assert json.loads(run("list", "--json"))["run_dir_full"] is is_full
    assert f"resctrl_mon_run_directory_full {is_full:d}\n" in run("metrics")
    node.run.rmdir()
    assert Records(str(node.run)).is_full() is is_full


def test_lines_that_wait_are_named_with_their_file_and_why(node: NodeFiles, run: Run) -> None:
    why = "No space left on device: ENOSPC"
    for name, file, number in (("c1", "/a", 2), ("c2", "/a", 1), ("c3", "/b\x1b[2J", 1)):
        owed = {"lines": ["{}"] * number, "why": why}
        state = {
            "key": name,
            "kind": "container",
            "completed_at": "then",
            "history_file": file,
            "owed": owed,
        }
        node.write("groups", f"{name}.json", json.dumps(state))
    node.write("runs", "dropped_lines", "....")
    node.write("runs", "dropped_snapshots", ".")
    said = run("list")
    assert f"not in the history yet: 3 lines for /a: {why}\n" in said
    assert f"not in the history yet: 1 line for /b\\x1b[2J: {why}\n" in said
    assert "at least 4 lines of history dropped since boot" in said
    shown = json.loads(run("list", "--json"))
    assert shown["history"]["owed"][0] == {"file": "/a", "why": why, "lines": 3}
    assert (shown["history"]["dropped"], shown["dropped_snapshots"]) == (4, 1)
    metrics = run("metrics").splitlines()
    for sample in (
        'history_owed{reason="ENOSPC"} 4',
        "history_dropped_total 4",
        "snapshots_dropped_total 1",
    ):
        assert f"resctrl_mon_{sample}" in metrics


# --- Which keys, and in which order


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", "acbo"),  # what runs comes before what is over
        ("--sort=traffic", "bcao"),
        ("--sort=age", "baco"),
        ("--sort=name", "cabo"),
        ("--namespace=shop --namespace=n", "acbo"),
        ("--state=live --state=missing", "acb"),
        ("--state=completed --namespace=n", ""),
    ],
)
def test_a_list_can_be_sorted_and_selected(
    node: NodeFiles, run: Run, words: str, expected: str
) -> None:
    facts = {
        "a": ("9", "1001", 900.0, "b"),
        "b": ("7", "9000", 990.0, "c"),
        "c": ("8", "5000", 100.0, "a"),
    }
    for name, (energy, memory, born, pod) in facts.items():
        node.live(name, pod_namespace="n", pod_name=pod, created_boottime=born)
        node.count(f"oci-{name}", {ENERGY: energy, TRAFFIC: memory})
    node.completed("o", **SHOP)
    assert "".join(keys_of(run("list", *words.split()))) == expected
    assert (
        "".join(key["key"] for key in json.loads(run("list", "--json", *words.split()))["keys"])
        == expected
    )


@pytest.mark.parametrize("name", [UID, UID[:3], "c1", "shop/x", "x", "shop/", "app", "ap"])
def test_show_finds_a_key_by_any_of_its_names_or_how_it_begins(
    node: NodeFiles, run: Run, name: str
) -> None:
    make_whole(node)
    node.record("other", pod_namespace="kube-system", pod_name="dns")
    assert json.loads(run("show", "--json", name))["key"] == UID


def test_a_name_that_was_given_again_is_of_the_container_that_exists(
    node: NodeFiles, run: Run, capsys: pytest.CaptureFixture[str], complaints: list[str]
) -> None:
    """As Podman's names are: of a container that has ended, of one that runs,
    of one that is not monitored.
    """
    node.completed("c1", name="job")
    assert json.loads(run("show", "--json", "job"))["key"] == "c1"
    node.fail("c2", name="job", pod="stack")
    for name in ("job", "stack", "sta", "c2"):
        assert cli.main(["show", *node.places, name]) == 2
        assert (
            "container stack job (c2) is not monitored: no_rmids: no RMID is left"
            in complaints.pop()
        )
    node.live("c3", name="job")
    assert cli.main(["show", *node.places, "job"]) == 2
    assert "'job' is ambiguous: job (c3), stack job (c2)" in complaints.pop()
    node.write("unmonitored", "c2.json", "{")
    assert json.loads(run("show", "--json", "job"))["key"] == "c3"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("ab", "ab"),
        ("abcd", "abcde"),
        ("shop/x", "k1"),
        ("none", "no key, pod or container"),
        ("", "no key"),
        ("../groups/ab", "no key"),
        ("a", "'a' is ambiguous: a-1, ab, abc, abcde"),
        ("x", "'x' is ambiguous: shop/x (k1), test/x (k2)"),
        ("keep/app-", "k4"),  # as `list` shows it
        ("keep/a", "k4"),
        ("torn", "torn.json: not JSON"),
        ("c9", "container c9 is not monitored: no_rmids"),
        ("-", "no key"),
    ],
)
def test_a_whole_name_comes_first_and_one_of_none_or_several_is_an_error(
    node: NodeFiles,
    capsys: pytest.CaptureFixture[str],
    complaints: list[str],
    name: str,
    shown: str,
) -> None:
    for key in ("ab", "abc", "abcde", "a-1", "else"):
        node.record(key)
    for key, pod in {"k1": "shop x", "k2": "test x", "k3": "shop x-2"}.items():
        node.record(key, kind="pod", **dict(zip(("pod_namespace", "pod_name"), pod.split())))
    node.record("k4", pod_name="keep", name="app-")
    node.write("groups", "torn.json", "")
    node.fail("c9")
    status = cli.main(["show", "--json", *node.places, name])
    if status == 0:
        assert json.loads(capsys.readouterr().out)["key"] == shown
    else:
        assert status == 2
        assert shown in "".join(complaints)


def test_show_of_a_key_that_has_ended_names_the_command_that_shows_its_line(
    node: NodeFiles, capsys: pytest.CaptureFixture[str], complaints: list[str]
) -> None:
    node.record("job-1")
    for name, key in (("job-17", "job-17"), ("job-17's", "job-17's"), ("000000000001", "job-17")):
        write_lines(
            "history.jsonl", line(make(1, key)) + line(make(1, key, end="2026-11-18T01:02:03Z"))
        )
        assert cli.main(["show", *node.places, name]) == 2
        said = complaints.pop()
        assert (
            f"; it ended {history.to_local('2026-11-18T01:02:03Z')}: resctrl-mon-hook history "
            in said
        )
        assert cli.main(shlex.split(said.partition(": resctrl-mon-hook ")[2])) == 0
        assert key in capsys.readouterr().out
    assert cli.main(["show", *node.places, "job-18"]) == 2
    assert "it ended" not in complaints[-1]


@pytest.mark.parametrize(
    ("file", "more"), [("", None), (str(FILE), ""), ("/x/y.jsonl", " --history=/x/y.jsonl")]
)
def test_show_of_a_completed_key_names_that_command_once_its_line_is_written(
    node: NodeFiles, run: Run, file: str, more: str | None
) -> None:
    for owed in ({}, {"owed": {"lines": ["{}"], "why": "no room"}}):
        node.completed("c1", history_file=file, **owed)
        names = [
            row.split(maxsplit=1)[1]
            for row in run("show", "c1").splitlines()
            if row.startswith("history ")
        ]
        assert names == ([] if more is None or owed else [f"resctrl-mon-hook history c1{more}"])
    node.live("c2", history_file=file)
    assert "resctrl-mon-hook history" not in run("show", "c2")


# --- JSON


def test_list_as_json(node: NodeFiles, run: Run) -> None:
    node.live("c1", **SHOP, created_at="2026-01-02T03:00:00Z", created_boottime=900.0)
    failure = node.fail("c2")
    path = node.write("groups", "torn.json", "")
    node.unhooked("c3", unchecked=2)
    node.write("runs", "unrecorded", "..")
    node.reconciled(outside={"c1": 17}, outside_total=17)
    answer = json.loads(run("list", "--json"))
    (key,) = answer.pop("keys")
    problems = answer.pop("problems")
    assert run("list").splitlines()[-len(problems) :] == problems
    of_failure = failure.model_dump(exclude={"job_labels"})
    assert answer == {
        "mounted": True,
        "host_namespaces": True,
        "rmids": {"limit": 8, "ours": 1, "others": 1},
        "orphans": [],
        **{"matching": 1, "on_record": 1, "total": key["use"]},
        "unreadable": [{"file": str(path), "problem": "not JSON: no value at character 0"}],
        "unmonitored": [{**of_failure, "labels": {}}],
        "unhooked": {
            "since": "2026-01-02T03:04:05Z",
            "unchecked": 2,
            "containers": [
                {"container": "c3", "namespace": "shop", "pod": "web-0", "name": "app", "uid": None}
            ],
        },
        "outside": {"c1": 17},
        "elsewhere": {},
        "unassigned": [],
        "run_dir_full": False,
        "unrecorded": 2,
        "history": {"owed": [], "dropped": 0},
        "dropped_snapshots": 0,
    }
    assert key == {
        **{
            "key": "c1",
            "kind": "container",
            "namespace": "shop",
            "pod": "x",
            "name": None,
            "labels": {},
        },
        **{"title": "shop/x", "state": "live"},
        **{"created_at": "2026-01-02T03:00:00Z", "completed_at": None, "age_seconds": 100.0},
        **{"members_alive": 1, "members_dead": 0, "taken": {}, "ctrl_groups": ["/"]},
        "use": {
            "core_energy": {
                "value": 3.25,
                "at_least": False,
                "unit": "joules",
                "unknown": 0,
                "from_nothing": 0,
            },
            "mbm_total_bytes": {
                "value": 4000,
                "at_least": False,
                "unit": "bytes",
                "unknown": 0,
                "from_nothing": 0,
            },
        },
    }
    assert json.loads(run("list", "--json", f"--resctrl-root={node.run}"))["rmids"] is None
    assert run("list", "-o", "json") == run("list", "--json")


def test_what_is_taken_is_in_json_with_the_group_that_has_it(node: NodeFiles, run: Run) -> None:
    make_taken(node)
    node.reconciled(elsewhere={"/r/gold": 1})
    answer = json.loads(run("list", "--json"))
    theirs = "/sys/fs/resctrl/mon_groups/theirs"
    assert [(key["state"], key["taken"]) for key in answer["keys"]] == [
        ("live", {}),
        ("taken", {"c1": theirs}),
    ]
    assert [key["use"]["core_energy"]["at_least"] for key in answer["keys"]] == [True, True]
    assert answer["elsewhere"] == {"/r/gold": 1}
    shown = json.loads(run("show", "c1", "--json"))
    assert (shown["state"], shown["members"]["c1"]["taken_by"]) == ("taken", theirs)
    assert shown["groups"][0]["counters"][ENERGY]["use"] == 3.25, (
        "the group has counted that, whatever it lacks"
    )


def test_show_as_json(node: NodeFiles, run: Run) -> None:
    make_whole(node)
    answer = json.loads(run("show", UID, "--json"))
    assert (answer["key"], answer["state"], answer["late_cpu_seconds"]) == (UID, "live", 0)
    assert {name: member["alive"] for name, member in answer["members"].items()} == {
        "c1": True,
        "c2": False,
    }
    assert answer["members"]["c1"]["taken_from"] == "theirs"
    assert answer["members"]["c1"]["started_at"] == "2026-11-18T11:06:41Z"
    assert (answer["title"], answer["lingering_since"], answer["history_file"]) == (
        "shop/x",
        None,
        None,
    )
    assert [failure["container"] for failure in answer["failures"]] == ["c2", "c9"]
    group, gold = answer["groups"]
    assert (group["path"], group["over"], group["exists"], gold["ctrl_group"]) == (
        HERE["path"],
        False,
        True,
        "gold",
    )
    values = {"begin": "5.500000", "now": "8.750000", "before": "1.5", "use": 4.75, "known": 4.75}
    assert group["counters"][ENERGY] == {**values, "from_nothing": False, "unit": "joules"}
    node.record(UID, kind="pod", groups=[WIPED])
    counter = json.loads(run("show", UID, "--json"))["groups"][0]["counters"][ENERGY]
    assert (counter["use"], counter["known"]) == (None, 4.75)


def test_a_level_has_a_value_now_and_none_on_record(node: NodeFiles, run: Run) -> None:
    """A record has it as Unavailable, as if the machine could not count it."""
    level = {CACHE: "Unavailable"}
    node.live("c1", begin={**BEGIN, **level})
    node.completed("c2", groups=[{**WIPED, "begin": {**BEGIN, **level}, "end": {**NOW, **level}}])
    for key, shown in (
        ("c1", {"begin": None, "now": "4096"}),
        ("c2", {"begin": None, "end": None}),
    ):
        counter = json.loads(run("show", key, "--json"))["groups"][0]["counters"][CACHE]
        assert counter.items() >= shown.items()


# --- top


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch, node: NodeFiles) -> list[float]:
    """Time goes on only where top waits; meanwhile `oci-busy` uses 5 joules. The waits."""
    waits: list[float] = []
    monkeypatch.setattr(system, "monotonic", lambda: 50.0 + sum(waits))
    monkeypatch.setattr(rare, "now_utc", lambda: "2026-01-02T03:04:05Z")

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if node.path("oci-busy").exists():
            node.count("oci-busy", {ENERGY: f"{10 + 5 * len(waits)}"})
            node.count_whole({ENERGY: f"{18.75 + 9.25 * len(waits)}"})

    monkeypatch.setattr(system, "sleep", sleep)
    return waits


@pytest.mark.parametrize(
    ("option", "keys"),
    [
        ("--sort=traffic", ["idle", "busy"]),
        ("--sort=energy", ["busy", "idle"]),
        ("--namespace=batch", []),
    ],
)
def test_top_without_a_terminal_prints_one_table(
    node: NodeFiles, run: Run, pace: list[float], option: str, keys: list[str]
) -> None:
    node.live("busy", **SHOP)
    node.count("oci-busy", {ENERGY: "10", "mon_PERF_PKG_01/core_energy": "Error"})
    node.live("idle")
    node.count("oci-idle", {CACHE: "8192"})
    node.completed("done")
    node.count_whole({ENERGY: "18.75"})
    first, _, _, *lines = [" ".join(line.split()) for line in run("top", option).splitlines()]
    assert (pace, first[:32]) == ([2.0], "2026-01-02T03:04:05Z over 2.0 s,")
    rows = {"busy": "shop/x busy >=2.50 0 - 4.00Ki", "idle": "- idle 0 0 - 8.00Ki"}
    assert lines == [
        "node >=4.62 0 - 12.0Ki",
        "no pod 2.12 - - -",
        *map(rows.get, keys),
        "",
        AT_LEAST,
    ]
    assert [key["key"] for key in json.loads(run("top", option, "--json"))["keys"]] == keys


def test_top_as_json_prints_an_object_a_line_and_describes_keys_as_list_does(
    node: NodeFiles, run: Run, pace: list[float]
) -> None:
    node.live("busy", **SHOP)
    node.count("oci-busy", {ENERGY: "10", TRAFFIC: "Error"})
    node.count_whole({ENERGY: "18.75"})
    first, second = map(json.loads, run("top", "--json", "--count=2").splitlines())
    assert len(pace) == 2
    nothing: dict[str, Any] = {
        "watts": None,
        "traffic_bytes_per_second": None,
        "traffic_local_bytes_per_second": None,
    }
    nothing |= {"llc_occupancy_bytes": None, "partial": [], "at_least": [], "from_nothing": []}
    use = {
        **nothing,
        "watts": 2.5,
        "llc_occupancy_bytes": 4096,
        "partial": ["traffic_bytes_per_second"],
    }
    (key,) = json.loads(run("list", "--json"))["keys"]
    del key["use"]
    key.update(use)
    expected = {
        "time": "2026-01-02T03:04:05Z",
        "seconds": 2.0,
        "node": {**use, "watts": 4.625},
        "keys": [key],
    }
    assert first == second == {**expected, "no_pod": {**nothing, "watts": 2.125}}


# --- Terminals, and what tenants call their things


def test_on_a_terminal_keys_are_short_and_names_are_cut_if_they_are_too_long_and_numbers_are_not(
    node: NodeFiles,
) -> None:
    pod = "checkout-service-with-a-long-name-7c9f6d5b8-x2x4k"
    node.live(UID, kind="pod", pod_namespace="observability", pod_name=pod)
    inventory = snapshot.take_snapshot(node.options)
    answer = lists.list_to_json(inventory, lists.select_keys(inventory.keys, [], [], "energy"))
    narrow, wide, pipe = (lists.format_list(answer, Screen(width)) for width in (80, 200, None))
    assert max(map(len, narrow)) == 80
    rest = [UID[:8], "live", "1/1", "?", "3.25", "3.91Ki"]
    cut = "observability/checko...x2x4k"
    assert narrow[3].split() == [cut, *rest]
    assert wide[3].split() == [f"observability/{pod}", *rest]
    assert pipe[3].split() == [
        f"observability/{pod}",
        UID,
        "live",
        "/",
        "1/1",
        "?",
        "3.25",
        "3.91Ki",
    ]


@pytest.mark.usefixtures("pace")
@pytest.mark.parametrize("width", [40, 55])
def test_on_a_narrow_terminal_columns_go_before_lines_wrap(node: NodeFiles, width: int) -> None:
    node.live(
        UID, kind="pod", pod_namespace="observability", pod_name="checkout-service-7c9f6d5b8-x2x4k"
    )
    inventory = snapshot.take_snapshot(node.options)
    narrow, wide = Screen(width), Screen(200)
    answer = lists.list_to_json(inventory, lists.select_keys(inventory.keys, [], [], "energy"))
    rates = lists.rates_to_json(snapshot.compare(inventory, inventory, "now"))

    def lay_out(screen: Screen) -> list[list[str]]:
        return [lists.format_list(answer, screen)[2:], lists.format_rates(rates, screen)[2:]]

    for table, whole, kept in zip(lay_out(narrow), lay_out(wide), ("ENERGY(J)", "POWER(W)")):
        assert max(map(len, table)) <= width
        heads = table[0].split()
        assert {"NAME", kept} <= {*heads} < {*whole[0].split()}
        assert heads == [head for head in whole[0].split() if head in heads]


JOBS = ["slurm-1000001", "slurm-1000002", *(f"{'x' * 58}-part{at}" for at in (1, 2))]


def test_job_has_its_key_as_its_name_and_jobs_whose_keys_begin_alike_differ_on_a_terminal(
    node: NodeFiles, run: Run
) -> None:
    for key in JOBS:
        node.live(key, kind="job")
    node.live("backup-of-the-database-1")
    node.take()
    inventory = snapshot.take_snapshot(node.options)
    answer = lists.list_to_json(inventory, lists.select_keys(inventory.keys, [], [], "name"))
    wide, narrow = (lists.format_list(answer, Screen(width))[2:8] for width in (80, 40))
    for width, table in ((80, wide), (40, narrow)):
        assert max(map(len, table)) <= width
        names = [row.split()[0] for row in table[1:]]
        assert names[:3] == ["backup-o...ase-1", *JOBS[:2]], "also without the column KEY"
        assert [re.sub(r"^x+\.\.\.", "", name) for name in names[3:]] == ["part1", "part2"]
    assert inventory.keys[1].name_member(JOBS[0]) == f"{JOBS[0]} ({JOBS[0]})"
    assert f"name        {JOBS[1]}" in run("show", JOBS[1]).splitlines()


# --- Command lines


@pytest.mark.parametrize("option", ["--resctrl-root", "--run-dir"])
@pytest.mark.parametrize("verb", [["list"], ["show", "x"], ["top"]])
def test_a_directory_that_is_named_has_to_be_there(
    node: NodeFiles, complaints: list[str], verb: list[str], option: str
) -> None:
    assert cli.main([*verb, *node.places, f"{option}=/nowhere"]) == 2
    assert complaints == [f"{option}=/nowhere: there is no such directory"]


@pytest.mark.parametrize("verb", [["list"], ["top"], ["metrics"], ["show", "x"]])
def test_an_unreadable_run_directory_is_one_line_on_stderr(
    node: NodeFiles, complaints: list[str], capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    node.run.rmdir()
    node.run.write_text("")
    assert cli.main([*verb, *node.places]) == 2
    assert capsys.readouterr().out == ""
    (line,) = complaints
    assert "run directory" in line


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (BrokenPipeError(), 0, ""),
        (KeyboardInterrupt(), 2, "interrupted"),
        (OSError(28, "No space left on device"), 2, "ENOSPC"),
        (ZeroDivisionError("oh"), 2, "unforeseen ZeroDivisionError: oh"),
    ],
)
def test_a_failed_command_is_one_line_on_stderr(
    monkeypatch: pytest.MonkeyPatch,
    complaints: list[str],
    error: BaseException,
    status: int,
    said: str,
) -> None:
    monkeypatch.setattr(snapshot, "take_snapshot", fails(error))
    assert cli.main(["list"]) == status
    assert len(complaints) == bool(said)
    assert said in "".join(complaints)


@pytest.mark.parametrize("path", ["/srv/file/x.prom", "/srv/directory"])
def test_an_unwritable_textfile_is_one_line_on_stderr(
    node: NodeFiles, complaints: list[str], path: str
) -> None:
    os.makedirs("/srv/directory")
    Path("/srv/file").touch()
    assert cli.main(["metrics", *node.places, "--textfile", path]) == 2
    (line,) = complaints
    assert line.startswith("cannot write the metrics; tried: ")
    assert path in line
    assert sorted(os.listdir("/srv")) == ["directory", "file"]


def test_the_missing_directory_of_a_textfile_is_made(node: NodeFiles) -> None:
    assert cli.main(["metrics", *node.places, "--textfile=/srv/node-exporter/textfile/x.prom"]) == 0
    assert os.listdir("/srv/node-exporter/textfile") == ["x.prom"]


# --- Cells


NUMBERS = {
    0: "0",
    0.004: "0.00",
    3.25: "3.25",
    9.995: "10.0",
    99.96: "100",
    999.4: "999",
    999.6: "1.00k",
    2.5e6: "2.50M",
}
AGES = {0.4: "0s", 119: "119s", 120: "2m", 7199: "120m", 7200: "2h", 172800: "2d"}
OF_BYTES = {1023: "1023", 1024: "1.00Ki", 45.3 * 2**30: "45.3Gi", 2**80: "1048576Ei"}


def test_numbers_have_three_digits_and_a_prefix_and_ages_one_unit() -> None:
    assert {value: lists.format_number(value) for value in NUMBERS} == NUMBERS
    assert {value: lists.format_number(value, binary=True) for value in OF_BYTES} == OF_BYTES
    assert {seconds: lists.format_age(seconds) for seconds in AGES} == AGES


@given(name=st.text("ab/-", max_size=40), width=st.integers(8, 50))
def test_of_a_cut_name_both_ends_stay(name: str, width: int) -> None:
    cut = show.cut_name(name, width)
    assert (cut == name) if len(name) <= width else (len(cut) == width and name.endswith(cut[-5:]))
    assert name.startswith(cut[: width - 8])
