# SPDX-License-Identifier: Apache-2.0
"""What list, show and top print, and what a wrong command line is answered."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hook.base import system
from hook.base.models import Options
from hook.cli import commands, output, top_command
from hook.doctor.finding import FAILURE, OK, WARNING
from hook.doctor.records import check_records
from hook.doctor.site import Site
from hook.node import config
from hook.node.place import Places
from hook.observe import screens, snapshot, table
from hook.observe.table import Screen
from hook.state.records import Records
from tests.unit.nodes import BEGIN, NOW, NodeFiles, alive, dead

UID = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"
Run = Callable[..., str]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeFiles:
    monkeypatch.setattr(system, "boottime", lambda: 1000.0)
    found = NodeFiles(tmp_path)
    found.run.mkdir()
    return found


def listed(seen: snapshot.Inventory, screen: Screen) -> list[str]:
    return screens.format_list(seen, screens.select_keys(seen.keys, [], [], "energy"), None, screen)


@pytest.fixture
def run(node: NodeFiles, capsys: pytest.CaptureFixture[str]) -> Run:
    """A verb that succeeds; what it printed."""

    def run(*arguments: str) -> str:
        assert commands.main([arguments[0], *node.places, *arguments[1:]]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return run


def columns(text: str) -> list[dict[str, str]]:
    """The rows of the only table in a text, by the names of its columns."""
    lines = text.splitlines()
    at = next(at for at, line in enumerate(lines) if re.match(r" *(NAME|COUNTER) ", line))
    rows = []
    for line in lines[at + 1 :]:
        cells = re.split(r"  +", line.strip())
        if len(cells) != len(lines[at].split()):
            break
        rows.append(dict(zip(lines[at].split(), cells)))
    return rows


# --- list


def test_list_has_a_row_for_each_key(node: NodeFiles, run: Run) -> None:
    node.live("c1", created_boottime=400.0)
    node.completed(UID, kind="pod", pod_namespace="default", pod_name="web", created_boottime=700.0)
    node.record("back", recovering=True)
    path = str(node.path("oci-lost", "gold"))
    lost = {"path": path, "ctrl_group": "gold", "begin": BEGIN}
    node.record("lost", groups=[lost], members={"a": alive(path), "b": dead(path)})
    live, done, back, missing = sorted(
        columns(run("list")), key=lambda row: ["c1", UID, "back", "lost"].index(row["KEY"])
    )
    rest = {"NAME": "-", "CTRL_GROUPS": "/", "ALIVE": "1/1", "ENERGY(J)": "3.25", "MEMORY(B)": "3.91Ki"}
    assert live == {"KEY": "c1", "STATE": "live", **rest, "AGE": "10m"}
    over = {"STATE": "completed", "NAME": "default/web", "ALIVE": "0/0", "AGE": "5m"}
    assert done == {"KEY": UID, **rest, **over}
    assert (back["STATE"], back["AGE"], back["ENERGY(J)"], back["CTRL_GROUPS"]) == ("recovering", "?", "-", "-")
    assert (missing["STATE"], missing["ALIVE"], missing["ENERGY(J)"]) == ("group missing", "1/2", "?")


def test_list_marks_partial_sums(node: NodeFiles, run: Run) -> None:
    node.live("c1")
    assert "*" not in run("list")
    node.live("c2", begin={"mon_PERF_PKG_00/core_energy": "Unavailable"})
    text = run("list")
    assert {row["KEY"]: row["ENERGY(J)"] for row in columns(text)} == {"c1": "3.25", "c2": "8.75*"}
    assert "*   counted from 0, without an initial value" in text


WIPED = {"before": {"mon_PERF_PKG_00/core_energy": "Unavailable"}, "known": {"mon_PERF_PKG_00/core_energy": "1.5"}}


def test_a_sum_of_which_a_part_is_unknown_is_shown_as_at_least_that_much(node: NodeFiles, run: Run) -> None:
    path = node.live("c1").groups[0].path
    node.record("c1", groups=[{"path": path, "ctrl_group": "/", "begin": BEGIN, **WIPED}], members={"c1": alive(path)})
    legend = ">=  at least that much: a part is unknown"
    (row,) = columns(text := run("list"))
    assert (row["ENERGY(J)"], row["MEMORY(B)"], legend in text) == (">=4.75", "3.91Ki", True)
    assert ">=4.75" in run("show", "c1")
    text = run("show", "c1", "-o", "wide")
    rows = {it["COUNTER"]: it["USE"] for it in columns(text)}
    assert (rows["mon_PERF_PKG_00/core_energy"], legend in text) == (">=4.750000", True)
    use = json.loads(run("list", "--json"))["keys"][0]["use"]
    assert [(it["value"], it["at_least"]) for it in use.values()] == [(4.75, True), (4000, False)]
    counter = json.loads(run("show", "c1", "--json"))["groups"][0]["counters"]["mon_PERF_PKG_00/core_energy"]
    assert (counter["use"], counter["known"]) == (None, 4.75)


def test_list_shows_the_rmids_in_use(node: NodeFiles, run: Run) -> None:
    node.live("c1")
    node.make("theirs", "gold")
    assert run("list").splitlines()[0] == "RMIDs: 4 in use of 8 (1 ours, 3 of others)"
    node.make("oci-lone")
    assert run("list").splitlines()[0].endswith("; orphans: 1")


def test_list_shows_unmonitored_containers_and_why(node: NodeFiles, run: Run) -> None:
    node.fail("c1", kernel="No free RMIDs", tried="mkdir /x: ENOSPC", hint="fewer pods")
    node.fail("c2", "usage", problem="unknown option", monitored=True)
    lines = run("list").splitlines()
    at = lines.index("not monitored (see list unmonitored):")
    assert lines[at:] == [
        "not monitored (see list unmonitored):",
        "  no_rmids: 1 container: c1",
        "",
        "monitored, with problems (see list unmonitored):",
        "  usage: 1 container: c2",
    ]
    assert run("list", "unmonitored").splitlines() == [
        "c1: no_rmids: no RMID is left (createRuntime, 2026-01-02T03:04:05Z)",
        "  tried: mkdir /x: ENOSPC",
        "  kernel: No free RMIDs",
        "  hint: fewer pods",
        "c2: usage: unknown option (createRuntime, 2026-01-02T03:04:05Z, but monitored)",
    ]


def test_many_failures_of_one_cause_are_one_line(node: NodeFiles, run: Run) -> None:
    for at in range(236):
        node.fail(f"{at:064x}", namespace="shop", pod=f"cart-{at:03}", name="app")
    (line,) = [line for line in run("list").splitlines() if "no_rmids" in line]
    assert line.startswith("  no_rmids: 236 containers: shop/cart-000 app (000000000000), shop/cart-001 app (")
    assert line.endswith(", and 216 more")
    each = run("list", "unmonitored").splitlines()
    assert len(each) == 236
    assert each[235].startswith("shop/cart-235 app (000000000000): no_rmids: no RMID is left (")


def test_list_unmonitored_has_containers_without_the_hook(node: NodeFiles, run: Run) -> None:
    assert run("list", "unmonitored") == "none\n"
    node.unhooked("c3")
    assert run("list", "unmonitored").splitlines()[1] == "  shop/web-0 app (c3)"


ROOM = {"f_blocks": 1000, "f_bavail": 500, "f_frsize": 4096, "f_files": 5000, "f_favail": 4000}
FULL = "more containers may be unmonitored: the file system of the run directory is full; free space or inodes there"


@pytest.mark.parametrize(
    ("change", "is_full"),
    [
        ({}, False),
        ({"f_bavail": 255}, True),
        ({"f_favail": 999}, True),
        ({"f_blocks": 0, "f_bavail": 0}, False),  # a tmpfs without a limit
        ({"f_files": 0, "f_favail": 0}, False),
    ],
    ids=str,
)
def test_list_does_not_say_none_while_the_run_directory_is_full(
    node: NodeFiles, run: Run, monkeypatch: pytest.MonkeyPatch, change: dict[str, int], is_full: bool
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**{**ROOM, **change}))
    line = f"{FULL} (df -h /run, df -i /run)\n"
    assert run("list", "unmonitored") == (line if is_full else "none\n")
    assert (line in run("list")) is is_full
    assert json.loads(run("list", "--json"))["run_dir_full"] is is_full
    assert f"resctrl_mon_run_directory_full {is_full:d}\n" in run("metrics")
    node.run.rmdir()
    assert Records(str(node.run)).is_full() is is_full


def test_list_says_that_failures_could_not_be_recorded(node: NodeFiles, run: Run) -> None:
    node.write("runs", "unrecorded", "")
    line = "at least 1 failure since boot could not be recorded: see journalctl -t resctrl-mon-hook\n"
    assert run("list", "unmonitored") == line
    node.write("runs", "unrecorded", "..")
    assert line.replace("1 failure", "2 failures") in run("list")
    assert json.loads(run("list", "--json"))["unrecorded"] == 2
    assert "resctrl_mon_unrecorded_failures 2\n" in run("metrics")


def test_doctor_says_that_records_may_be_missing(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(Places("/usr", "/h"), node.options, ())
    assert [it.level for it in check_records(site)] == [OK]
    node.write("runs", "unrecorded", "...")
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**{**ROOM, "f_bavail": 0}))
    full, keys, unrecorded = check_records(site)
    assert (full.level, full.found, keys.level) == (FAILURE, f"the file system of {node.run} is full", OK)
    assert (unrecorded.level, unrecorded.found) == (WARNING, "at least 3 failures since boot could not be recorded")


# --- Which keys, and in which order


def test_what_runs_comes_before_what_is_over_and_the_most_energy_first(node: NodeFiles, run: Run) -> None:
    for name, energy in (("a", "7.0"), ("b", "9.0"), ("over", "9.5")):
        node.live(name)
        node.count(f"oci-{name}", {"mon_PERF_PKG_00/core_energy": energy})
    node.completed("over")
    assert [row["KEY"] for row in columns(run("list"))] == ["b", "a", "over"]
    assert [row["KEY"] for row in columns(run("list", "--limit=1"))] == ["b"]
    assert "\n1 of 3 shown\n" in run("list", "--limit=1")


@pytest.mark.parametrize(("sort", "expected"), [("energy", "acb"), ("memory", "bca"), ("age", "bac"), ("name", "cab")])
def test_a_list_can_be_sorted(node: NodeFiles, run: Run, sort: str, expected: str) -> None:
    facts = {"a": ("9", "1001", 900.0, "n/b"), "b": ("7", "9000", 990.0, "n/c"), "c": ("8", "5000", 100.0, "n/a")}
    for name, (energy, memory, born, pod) in facts.items():
        node.live(name, pod_namespace=pod[0], pod_name=pod[2], created_boottime=born)
        node.count(f"oci-{name}", {"mon_PERF_PKG_00/core_energy": energy, "mon_L3_00/mbm_total_bytes": memory})
    assert "".join(row["KEY"] for row in columns(run("list", f"--sort={sort}"))) == expected


def test_a_list_can_be_of_some_namespaces_and_states(node: NodeFiles, run: Run) -> None:
    node.live("a", pod_namespace="shop", pod_name="x")
    node.live("b", pod_namespace="batch", pod_name="y")
    node.completed("c", pod_namespace="shop", pod_name="z")

    def listed(*words: str) -> set[str]:
        found = {row["KEY"] for row in columns(run("list", *words))}
        assert found == {key["key"] for key in json.loads(run("list", "--json", *words))["keys"]}
        return found

    assert listed("--namespace=shop") == {"a", "c"}
    assert listed("--namespace=shop", "--namespace=batch") == {"a", "b", "c"}
    assert listed("--state=live") == {"a", "b"}
    assert listed("--state=completed", "--namespace=batch") == set()


def test_the_total_is_that_of_all_that_match(node: NodeFiles, run: Run) -> None:
    for name in "abc":
        node.live(name)
    (total,) = [line for line in run("list", "--limit=2").splitlines() if line.startswith("total")]
    assert total.split() == ["total", "9.75", "11.7Ki"]


# --- Terminals


def test_on_a_narrow_terminal_names_are_cut_and_numbers_are_not(node: NodeFiles) -> None:
    pod = "checkout-service-with-a-long-name-7c9f6d5b8-x2x4k"
    node.live(UID, kind="pod", pod_namespace="observability", pod_name=pod)
    seen = snapshot.take_snapshot(node.options)
    narrow, wide = (listed(seen, Screen(width)) for width in (80, 200))
    assert max(map(len, narrow)) <= 80
    assert narrow[3].split() == ["observ...name-7c9f6d5b8-x2x4k", UID[:8], "live", "1/1", "?", "3.25", "3.91Ki"]
    assert wide[3].split() == [f"observability/{pod}", UID, "live", "/", "1/1", "?", "3.25", "3.91Ki"]


def test_a_line_of_failures_fits_the_terminal(node: NodeFiles) -> None:
    for at in range(30):
        node.fail(f"c{at}", namespace="shop", pod=f"cart-{at:03}", name="app")
    seen = snapshot.take_snapshot(node.options)
    for width in (20, 60, 80, 200):
        (line,) = [it for it in listed(seen, Screen(width)) if "no_rmids" in it]
        assert len(line) <= max(width, len("  no_rmids: 30 containers"))
        assert line.startswith("  no_rmids: 30 containers")


def test_colour_is_for_terminals_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert output.get_screen().colour is False
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1, raising=False)
    monkeypatch.setattr(os, "get_terminal_size", lambda _fd: os.terminal_size((80, 24)))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert output.get_screen() == Screen(80, 24, colour=True)
    assert output.get_screen(is_wide=True) == Screen(None, 24, colour=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert output.get_screen().colour is False


def test_list_reports_unreadable_records(node: NodeFiles, run: Run) -> None:
    path = node.write("groups", "torn.json", "{")
    other = node.write("unmonitored", "c2.json", "[]")
    lines = [line for line in run("list").splitlines() if line.startswith("unreadable: ")]
    assert [line.split(": ")[1] for line in lines] == [str(path), str(other)]


def test_list_without_resctrl_says_so(node: NodeFiles, run: Run, tmp_path: Path) -> None:
    node.live("c1")
    assert "not mounted" in run("list", f"--resctrl-root={tmp_path}").splitlines()[0]


@pytest.mark.parametrize("option", ["--resctrl-root", "--run-dir"])
@pytest.mark.parametrize("verb", [["list"], ["show", "x"], ["top"]])
def test_a_directory_that_is_named_has_to_be_there(
    node: NodeFiles, complaints: list[str], verb: list[str], option: str
) -> None:
    node.live("c1")
    assert commands.main([*verb, *node.places, f"{option}=/nowhere"]) == 2
    assert complaints == [f"{option}=/nowhere: there is no such directory"]


def test_list_says_what_reconcile_left_outside_of_its_group(node: NodeFiles, run: Run) -> None:
    node.live("c1", pod_namespace="n", pod_name="p")
    node.reconciled(failed=2)
    assert "outside" not in run("list")
    node.reconciled(failed=2, outside={"c1": 17, "c2": 1}, outside_total=18)
    lines = run("list").splitlines()
    head = lines.index("outside of their group, as of the last reconcile:")
    assert lines[head + 1] == "  18 threads: 2 containers: n/p (c1): 17, c2: 1"
    assert json.loads(run("list", "--json"))["outside"] == {"c1": 17, "c2": 1}


def test_list_as_json(node: NodeFiles, run: Run) -> None:
    node.live("c1", pod_namespace="n", pod_name="p", created_at="2026-01-02T03:00:00Z", created_boottime=900.0)
    failure = node.fail("c2")
    path = node.write("groups", "torn.json", "")
    node.unhooked("c3", unchecked=2)
    found = json.loads(run("list", "--json"))
    (key,) = found.pop("keys")
    assert found == {
        "mounted": True,
        "rmids": {"limit": 8, "ours": 1, "others": 1},
        "unreadable": [{"file": str(path), "problem": "not JSON: no value at character 0"}],
        "unmonitored": [failure.model_dump()],
        "unhooked": {
            "since": "2026-01-02T03:04:05Z",
            "unchecked": 2,
            "containers": [{"container": "c3", "namespace": "shop", "pod": "web-0", "name": "app"}],
        },
        "outside": {},
        "unassigned": [],
        "run_dir_full": False,
        "unrecorded": 0,
    }
    assert key == {
        "key": "c1",
        "kind": "container",
        "namespace": "n",
        "pod": "p",
        "name": None,
        "state": "live",
        "created_at": "2026-01-02T03:00:00Z",
        "completed_at": None,
        "age_seconds": 100.0,
        "members_alive": 1,
        "members_dead": 0,
        "ctrl_groups": ["/"],
        "use": {
            "core_energy": {"value": 3.25, "at_least": False, "unit": "joules", "unknown": 0, "from_nothing": 0},
            "mbm_total_bytes": {"value": 4000, "at_least": False, "unit": "bytes", "unknown": 0, "from_nothing": 0},
        },
    }
    assert json.loads(run("list", "--json", f"--resctrl-root={node.run}"))["rmids"] is None
    assert run("list", "-o", "json") == run("list", "--json")


# --- show


def shown(node: NodeFiles, **fields: Any) -> None:  # noqa: ANN401
    path = node.live(UID, kind="pod", pod_namespace="default", pod_name="web").groups[0].path
    before = {"mon_PERF_PKG_00/core_energy": "1.5"}
    member = alive(path, cgroup=":/kubepods/x", taken_from="theirs", name="app")
    group = {"path": path, "ctrl_group": "/", "begin": BEGIN, "before": before}
    timeline = {"created_at": "2026-01-02T03:00:00Z", "created_boottime": 900.0, "generation": 4}
    pod = {"kind": "pod", "pod_namespace": "default", "pod_name": "web"}
    node.record(
        UID,
        **{**pod, "groups": [group], "members": {"c1": member, "c2": dead(path)}, **timeline, **fields},
    )
    node.index("c1", UID)


def test_show_sums_up_a_key_and_tells_its_life(node: NodeFiles, run: Run) -> None:
    shown(node)
    node.fail("c9", key=UID, kernel="No free RMIDs")
    node.fail("c2", "task_gone")
    node.fail("stranger", "denied")
    text = run("show", UID)
    lines = text.splitlines()
    assert "age         100s" in lines
    assert "generation  4" in lines
    assert f"  app (c1): alive, pid {os.getpid()}" in lines
    assert f"  c2: dead, pid {os.getpid()}" in lines
    assert "    cgroup     :/kubepods/x" in lines
    assert "    taken from theirs" in lines
    assert f"ctrl_group /: {node.path('oci-' + UID)} (there)" in lines
    assert "  2026-01-02T03:00:00Z  created" in lines
    assert any(line.endswith("Z  app (c1) started") for line in lines)
    assert "kernel: No free RMIDs" in text
    assert "c2: task_gone" in text
    assert "stranger" not in text
    at = lines.index("EVENT               USE  UNIT")
    assert [line.split() for line in lines[at + 1 : at + 4]] == [
        ["llc_occupancy", "4.00Ki", "B"],
        ["mbm_total_bytes", "3.91Ki", "B"],
        ["core_energy", "4.75", "J"],
    ]
    assert "COUNTER" not in text


def test_show_wide_has_the_values_of_each_counter(node: NodeFiles, run: Run) -> None:
    shown(node)
    rows = {row["COUNTER"]: row for row in columns(run("show", UID, "-o", "wide"))}
    energy = {"UNIT": "joules", "BEGIN": "5.500000", "NOW": "8.750000", "BEFORE": "1.5", "USE": "4.750000"}
    assert rows["mon_PERF_PKG_00/core_energy"] == {"COUNTER": "mon_PERF_PKG_00/core_energy", **energy}
    cache = {"UNIT": "bytes", "BEGIN": "-", "NOW": "4096", "BEFORE": "-", "USE": "-"}
    assert rows["mon_L3_00/llc_occupancy"] == {"COUNTER": "mon_L3_00/llc_occupancy", **cache}


def test_show_sums_over_domains_and_ctrl_groups(node: NodeFiles, run: Run) -> None:
    path = node.live("c1").groups[0].path
    node.count("oci-c1", {"mon_PERF_PKG_01/core_energy": "2.0"})
    begin = {**BEGIN, "mon_PERF_PKG_01/core_energy": "1.0"}
    other = node.make("oci-c1", "gold", {"mon_PERF_PKG_00/core_energy": "40"})
    groups = [{"path": path, "ctrl_group": "/", "begin": begin}]
    groups.append({"path": other, "ctrl_group": "gold", "begin": {"mon_PERF_PKG_00/core_energy": "0"}})
    node.record("c1", groups=groups, members={"c1": alive(path)})
    (line,) = [line for line in run("show", "c1").splitlines() if line.startswith("core_energy")]
    assert line.split() == ["core_energy", "44.2", "J"]


def test_show_of_a_completed_key_has_its_end(node: NodeFiles, run: Run) -> None:
    node.completed("c1")
    text = run("show", "c1", "--output=wide")
    assert "  2026-01-02T03:04:05Z  completed" in text
    assert "(over)" in text
    assert {row["END"] for row in columns(text)} == set(NOW.values())


def test_show_of_a_missing_group_without_snapshots_has_no_use(node: NodeFiles, run: Run) -> None:
    node.record("c1", groups=[{"path": str(node.path("oci-c1")), "ctrl_group": "/"}])
    text = run("show", "c1", "-o", "wide")
    assert "(missing)" in text
    assert "no initial counters" in text
    assert "COUNTER" not in text


def test_show_marks_unknown_use_and_use_counted_from_0(node: NodeFiles, run: Run) -> None:
    node.live("c1", begin={"mon_PERF_PKG_00/core_energy": "Unavailable", "mon_L3_00/mbm_total_bytes": "Unavailable"})
    node.count("oci-c1", {"mon_L3_00/later_event": "7"})
    rows = {row["COUNTER"].rpartition("/")[2]: row for row in columns(run("show", "c1", "-o", "wide"))}
    assert (rows["core_energy"]["USE"], rows["mbm_total_bytes"]["USE"]) == ("8.750000*", "?")
    assert (rows["later_event"]["UNIT"], rows["later_event"]["USE"]) == ("?", "-")


def test_show_as_json(node: NodeFiles, run: Run) -> None:
    shown(node)
    failure = node.fail("c9", key=UID)
    found = json.loads(run("show", UID, "--json"))
    assert (found["key"], found["state"], found["generation"]) == (UID, "live", 4)
    assert {name: member["alive"] for name, member in found["members"].items()} == {"c1": True, "c2": False}
    assert found["members"]["c1"]["taken_from"] == "theirs"
    assert found["failures"] == [failure.model_dump()]
    (group,) = found["groups"]
    assert (group["path"], group["over"], group["exists"]) == (str(node.path("oci-" + UID)), False, True)
    assert group["counters"]["mon_PERF_PKG_00/core_energy"] == {
        "begin": "5.500000",
        "now": "8.750000",
        "before": "1.5",
        "use": 4.75,
        "known": 4.75,
        "from_nothing": False,
        "unit": "joules",
    }


@pytest.mark.parametrize("name", [UID, UID[:3], "c1", "web", "default/web", "default/we", "app", "ap"])
def test_show_finds_a_key_by_any_of_its_names_or_how_it_begins(node: NodeFiles, run: Run, name: str) -> None:
    shown(node)
    node.record("other", pod_namespace="kube-system", pod_name="dns")
    assert json.loads(run("show", "--json", name))["key"] == UID


def test_a_whole_name_comes_before_one_that_begins_so(node: NodeFiles, run: Run) -> None:
    node.record("k1", kind="pod", pod_namespace="shop", pod_name="web")
    node.record("k2", kind="pod", pod_namespace="shop", pod_name="web-2")
    assert json.loads(run("show", "--json", "shop/web"))["key"] == "k1"


def test_a_name_of_two_pods_is_told_with_both(node: NodeFiles, complaints: list[str]) -> None:
    node.record("k1", kind="pod", pod_namespace="shop", pod_name="web")
    node.record("k2", kind="pod", pod_namespace="test", pod_name="web")
    assert commands.main(["show", *node.places, "web"]) == 2
    assert complaints == ["2 keys match 'web': shop/web (k1), test/web (k2)"]


@pytest.fixture
def podman(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The names of Podman's containers, by ID."""
    names: dict[str, str] = {}
    monkeypatch.setattr(config, "read_podman_names", lambda: names)
    return names


def test_containers_of_podman_have_their_names(node: NodeFiles, run: Run, podman: dict[str, str]) -> None:
    podman.update(c1="db", other="else")
    node.live("c1")
    assert columns(run("list"))[0]["NAME"] == "db"
    assert json.loads(run("list", "--json"))["keys"][0]["name"] == "db"
    lines = run("show", "db").splitlines()
    assert "name        db" in lines
    assert f"  db (c1): alive, pid {os.getpid()}" in lines


def test_show_prefers_the_exact_name(node: NodeFiles, run: Run) -> None:
    node.record("ab")
    node.record("abc")
    node.record("else")
    assert json.loads(run("show", "--json", "ab"))["key"] == "ab"
    node.index("abcd", "else")
    node.record("abcde")
    assert json.loads(run("show", "--json", "abcd"))["key"] == "else"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("none", "no key, pod or container"),
        ("", "no key"),
        ("../groups/ab", "no key"),
        ("a", "2 keys match 'a': ab, abc"),
        ("torn", "torn.json: not JSON"),
        ("c9", "container c9 has no key: no_rmids"),
        ("gone", "no key"),
        ("-", "no key"),
    ],
)
def test_show_of_an_unknown_key_fails(node: NodeFiles, complaints: list[str], name: str, problem: str) -> None:
    node.record("ab")
    node.record("abc")
    node.write("groups", "torn.json", "")
    node.index("gone", "went")
    node.fail("c9")
    assert commands.main(["show", *node.places, name]) == 2
    (line,) = complaints
    assert problem in line


# --- top


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch, node: NodeFiles) -> list[float]:
    """Time goes on only where top waits; meanwhile `oci-busy` uses 5 joules. The waits."""
    waits: list[float] = []
    monkeypatch.setattr(system, "monotonic", lambda: 50.0 + sum(waits))
    monkeypatch.setattr(system, "now_utc", lambda: "2026-01-02T03:04:05Z")

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if node.path("oci-busy").exists():
            node.count("oci-busy", {"mon_PERF_PKG_00/core_energy": f"{10 + 5 * len(waits)}"})

    monkeypatch.setattr(system, "sleep", sleep)
    return waits


def keys_of(text: str) -> list[dict[str, str]]:
    """The rows of `top` but those of the node."""
    lines = [line for line in text.splitlines() if not line.startswith(("node ", "no pod "))]
    return columns("\n".join(lines))


@pytest.mark.parametrize(
    ("option", "keys"), [("--sort=energy", [["shop/cart", "busy", "3.12"]]), ("--namespace=batch", [])]
)
def test_top_shows_the_whole_node_and_what_is_charged_to_no_pod(
    node: NodeFiles, run: Run, pace: list[float], monkeypatch: pytest.MonkeyPatch, option: str, keys: list[list[str]]
) -> None:
    node.live("busy", pod_namespace="shop", pod_name="cart")
    counter = node.root / "mon_data" / "mon_PERF_PKG_00" / "core_energy"
    counter.parent.mkdir()
    counter.write_text("18.75\n")  # 10 of its own, and 8.75 of the group
    wait = system.sleep

    def sleep(seconds: float) -> None:
        wait(seconds)  # oci-busy: 15, which is 6.25 more
        counter.write_text("28.0\n")  # 3 more of its own, too

    monkeypatch.setattr(system, "sleep", sleep)
    rows = [line.split()[:3] for line in run("top", option).splitlines()[3:]]
    assert pace == [2.0]
    assert rows == [["node", "4.62", "0"], ["no", "pod", "1.50"], *keys]


@pytest.mark.parametrize(("sort", "expected"), [("energy", "abc"), ("cache", "cab"), ("name", "bca")])
@pytest.mark.usefixtures("pace")
def test_top_can_be_sorted(node: NodeFiles, run: Run, sort: str, expected: str) -> None:
    for name, cache, pod in (("a", "20", "z"), ("b", "10", "x"), ("c", "30", "y")):
        node.live(name, pod_namespace="n", pod_name=pod)
        node.count(f"oci-{name}", {"mon_L3_00/llc_occupancy": cache})
    assert "".join(row["KEY"] for row in keys_of(run("top", f"--sort={sort}"))) == expected


def test_top_without_a_terminal_prints_one_table(node: NodeFiles, run: Run, pace: list[float]) -> None:
    node.live("busy")
    node.count("oci-busy", {"mon_PERF_PKG_00/core_energy": "10"})
    node.live("idle")
    node.completed("done")
    text = run("top")
    assert pace == [2.0]
    assert text.splitlines()[0] == "2026-01-02T03:04:05Z  over 2.0 s, 2 keys"
    same = {"NAME": "-", "MEMORY(B/s)": "0", "LOCAL(B/s)": "-", "CACHE(B)": "4.00Ki"}
    assert keys_of(text) == [{"KEY": "busy", "POWER(W)": "2.50", **same}, {"KEY": "idle", "POWER(W)": "0", **same}]


@pytest.mark.usefixtures("pace")
def test_top_marks_a_rate_of_which_a_part_is_unknown(node: NodeFiles, run: Run) -> None:
    node.live("busy")
    node.count("oci-busy", {"mon_PERF_PKG_00/core_energy": "10", "mon_PERF_PKG_01/core_energy": "Error"})
    text = run("top")
    assert (keys_of(text)[0]["POWER(W)"], ">=  at least that much" in text) == (">=2.50", True)
    (key,) = json.loads(run("top", "--json"))["keys"]
    assert (key["watts"], key["partial"], key["at_least"]) == (2.5, ["watts"], ["watts"])


def test_top_prints_count_tables(node: NodeFiles, run: Run, pace: list[float]) -> None:
    node.live("busy")
    text = run("top", "--count", "3", "--interval=0.5")
    assert pace == [0.5] * 3
    assert text.count("NAME") == 3
    assert "\x1b" not in text


def test_top_as_json_prints_an_object_a_line(node: NodeFiles, run: Run, pace: list[float]) -> None:
    node.live("busy", pod_namespace="n", pod_name="p")
    node.count("oci-busy", {"mon_PERF_PKG_00/core_energy": "10", "mon_L3_00/mbm_total_bytes": "Error"})
    first, second = map(json.loads, run("top", "--json", "--count=2").splitlines())
    assert len(pace) == 2
    use = {
        "watts": 2.5,
        "memory_bytes_per_second": None,
        "memory_local_bytes_per_second": None,
        "llc_occupancy_bytes": 4096,
        "partial": ["memory_bytes_per_second"],
        "at_least": [],
    }
    nothing: dict[str, object] = {**dict.fromkeys(use), "partial": [], "at_least": []}
    key = {"key": "busy", "kind": "container", "namespace": "n", "pod": "p", "name": None, **use}
    when = {"time": "2026-01-02T03:04:05Z", "seconds": 2.0}
    assert first == second == {**when, "node": use, "no_pod": nothing, "keys": [key]}


def test_top_interrupted_exits_0(node: NodeFiles, run: Run, pace: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    node.live("busy")

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(system, "sleep", interrupted)
    assert (run("top"), pace) == ("", [])


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 14 lines on stdout, and none on stdin."""
    monkeypatch.setattr(top_command, "is_terminal", lambda: True)
    monkeypatch.setattr(top_command, "get_screen", lambda **_: Screen(60, 14))
    monkeypatch.setattr(signal, "signal", lambda *_: None)


@pytest.mark.usefixtures("terminal")
def test_top_on_a_terminal_has_a_screen_at_once_and_fits_it(node: NodeFiles, run: Run, pace: list[float]) -> None:
    for at in range(9):
        node.live(f"busy{at}")
    screens = run("top", "--count=2").split("\x1b[H\x1b[2J")
    assert pace == [1.0, 2.0]
    assert screens[0] == ""
    assert len(screens) == 4
    for screen in screens[1:]:
        assert "4 of 9 keys" in screen.splitlines()[0]
        assert len(screen.splitlines()) < 14
        assert all(len(line) <= 60 for line in screen.splitlines())
        assert screen.splitlines()[6].split()[1] == "busy0"
    assert screens[1].splitlines()[6].split()[2] == "-"
    assert screens[2].splitlines()[6].split()[2] == "0"


# --- What tenants call their things

HOSTILE = st.text(max_size=40) | st.sampled_from(
    ["\x1b[2J\x1b]0;x\x07", "a\nb", "a\r", "  c1   live  ", "\u202e", "\ud800", "%s{}", "x" * 3000, "\x9b2J", "-", "*"]
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(namespace=HOSTILE, pod=HOSTILE, problem=HOSTILE, cgroup=HOSTILE)
@example(namespace="\n", pod="a  b", problem="\x1b[31m", cgroup="\x00")
def test_text_of_a_tenant_stays_inside_its_cell_or_line(
    tmp_path_factory: pytest.TempPathFactory, namespace: str, pod: str, problem: str, cgroup: str
) -> None:
    texts = []
    for words in ((namespace, pod, problem, cgroup), ("n", "p", "q", "r")):
        node = NodeFiles(tmp_path_factory.mktemp("hostile"))
        member = {**dead("/r/mon_groups/x"), "cgroup": words[3] or "r"}
        groups = [{"path": "/r/mon_groups/x", "ctrl_group": "/", "begin": BEGIN, "end": NOW}]
        node.record("c1", pod_namespace=words[0], pod_name=words[1], members={"c1": member}, groups=groups)
        node.fail("c1", problem=words[2], hint="h")
        seen = snapshot.take_snapshot(node.options)
        whole = Screen()
        lines = listed(seen, whole) + screens.format_unmonitored(seen)
        texts.append([*lines, *screens.format_key(seen.keys[0], seen.failures, whole, is_wide=True)])
    hostile, plain = texts
    assert len(hostile) == len(plain)
    assert all(line.isascii() and line.isprintable() for line in hostile)
    row, expected = (next(line for line in lines if line.endswith("3.91Ki")) for lines in (hostile, plain))
    assert len(row.split()) == len(expected.split())
    assert len(row) < 700


# --- Command lines


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["list", "--jsno"], "unrecognized arguments: --jsno"),
        (["list", "--js"], "unrecognized arguments"),
        (["list", "x"], "argument unmonitored: invalid choice: 'x'"),
        (["top", "x"], "unrecognized arguments: x"),
        (["list", "--run-dir"], "--run-dir: expected one argument"),
        (["list", "--run-dir=relative"], "--run-dir: 'relative': not an absolute path"),
        (["list", "--group-prefix="], "--group-prefix: '': not a group prefix"),
        (["list", "--linger=1"], "unrecognized arguments"),
        (["show"], "the following arguments are required: KEY"),
        (["show", "a", "b"], "unrecognized arguments: b"),
        (["top", "--interval=0"], "is not a number of seconds"),
        (["top", "--interval=nan"], "is not a number of seconds"),
        (["top", "--interval=1e9"], "is not a number of seconds"),
        (["top", "--count=0"], "is not a number above 0"),
        (["top", "--count=-1"], "is not a number above 0"),
        (["top", "--count=" + "9" * 5000], "is not a number above 0"),
        (["metrics", "--json", "--textfile=x"], "not allowed with argument --json"),
        (["top", "\x1b[2J\n"], "unrecognized arguments: \\x1b[2J\\n"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    complaints: list[str], capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    assert commands.main(arguments) == 2
    assert capsys.readouterr() == ("", "")
    (line,) = complaints
    assert line.startswith(f"{arguments[0]}: ")
    assert problem in line
    assert len(line) < 500


def test_options_work_with_and_without_an_equals_sign(node: NodeFiles, capsys: pytest.CaptureFixture[str]) -> None:
    node.make("odd-lone")
    for places in (node.places, [part for place in node.places for part in place.split("=")]):
        assert commands.main(["list", *places, "--group-prefix", "odd-", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["rmids"]["ours"] == 1


@pytest.mark.parametrize("verb", [["list"], ["top"], ["metrics"], ["show", "x"]])
def test_an_unreadable_run_directory_is_one_line_on_stderr(
    node: NodeFiles, complaints: list[str], capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    node.run.rmdir()
    node.run.write_text("")
    assert commands.main([*verb, *node.places]) == 2
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
    monkeypatch: pytest.MonkeyPatch, complaints: list[str], error: BaseException, status: int, said: str
) -> None:
    def fail(_options: Options) -> None:
        raise error

    monkeypatch.setattr(snapshot, "take_snapshot", fail)
    assert commands.main(["list"]) == status
    assert len(complaints) == bool(said)
    assert said in "".join(complaints)


def test_metrics_go_to_stdout_or_to_a_file(node: NodeFiles, run: Run, tmp_path: Path) -> None:
    node.live("c1")
    path = tmp_path / "x.prom"
    assert run("metrics", f"--textfile={path}") == ""
    assert run("metrics") == path.read_text()
    assert {it["name"] for it in json.loads(run("metrics", "--json"))["metrics"]} >= {"resctrl_mon_mounted"}


@pytest.mark.parametrize("path", ["missing/x.prom", "."])
def test_an_unwritable_textfile_is_one_line_on_stderr(
    node: NodeFiles, complaints: list[str], tmp_path: Path, path: str
) -> None:
    before = sorted(os.listdir(tmp_path))
    assert commands.main(["metrics", *node.places, "--textfile", str(tmp_path / path)]) == 2
    assert len(complaints) == 1
    assert sorted(os.listdir(tmp_path)) == before


def test_without_stdout_nothing_is_printed(node: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert commands.main(["list", *node.places]) == 0
    assert commands.main(["top", "--interval=0.001", *node.places]) == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (119, "119s"), (120, "2m"), (7199, "120m"), (7200, "2h"), (172800, "2d")]
)
def test_ages_have_one_unit(seconds: float, text: str) -> None:
    assert table.format_age(seconds) == text


@pytest.mark.parametrize(
    ("value", "binary", "text"),
    [
        (0, False, "0"),
        (0.004, False, "0.00"),
        (3.25, False, "3.25"),
        (99.96, False, "100"),
        (999.4, False, "999"),
        (999.6, False, "1.00k"),
        (2.5e6, False, "2.50M"),
        (1023, True, "1023"),
        (1024, True, "1.00Ki"),
        (45.3 * 2**30, True, "45.3Gi"),
        (2**80, True, "1048576Ei"),
    ],
)
def test_numbers_have_three_digits_and_a_prefix(value: float, binary: bool, text: str) -> None:
    assert table.format_number(value, binary=binary) == text


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (30, "shop/web-7c9f6d5b8-x2x4k"),
        (24, "shop/web-7c9f6d5b8-x2x4k"),
        (16, "sho...d5b8-x2x4k"),
        (3, "..."),
        (2, ".."),
    ],
)
def test_a_name_is_cut_in_the_middle(width: int, text: str) -> None:
    assert table.cut_middle("shop/web-7c9f6d5b8-x2x4k", width)[:width] == text[:width]
    assert len(table.cut_middle("shop/web-7c9f6d5b8-x2x4k", width)) <= width
