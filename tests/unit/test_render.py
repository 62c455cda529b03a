# SPDX-License-Identifier: Apache-2.0
"""What list, show and top print, and what a wrong command line is answered."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hook.base import system
from hook.base.models import Options
from hook.base.text import printable
from hook.cli import commands
from hook.observe import cells, render, snapshot
from hook.stages import failures
from tests.unit.nodes import BEGIN, NOW, FakeNode, alive, dead

UID = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"
Run = Callable[..., str]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    monkeypatch.setattr(system, "boottime", lambda: 1000.0)
    return FakeNode(tmp_path)


@pytest.fixture
def complaints(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What people are told on stderr, line by line."""
    lines: list[str] = []

    def say(text: str, *, to_syslog: bool) -> None:
        assert not to_syslog
        lines.append(printable(text))

    monkeypatch.setattr(failures, "say", say)
    return lines


@pytest.fixture
def run(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> Run:
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
    at = next(at for at, line in enumerate(lines) if re.match(r" *(KEY|COUNTER) ", line))
    rows = []
    for line in lines[at + 1 :]:
        cells = re.split(r"  +", line.strip())
        if len(cells) != len(lines[at].split()):
            break
        rows.append(dict(zip(lines[at].split(), cells)))
    return rows


# --- list


def test_list_has_a_row_for_each_key(node: FakeNode, run: Run) -> None:
    node.live("c1", created_boottime=400.0)
    node.completed(UID, kind="pod", pod_namespace="default", pod_name="web", created_boottime=700.0)
    node.record("back", recovering=True)
    path = str(node.path("oci-lost", "gold"))
    lost = {"path": path, "ctrl_group": "gold", "begin": BEGIN}
    node.record("lost", groups=[lost], members={"a": alive(path), "b": dead(path)})
    live, done, back, missing = sorted(
        columns(run("list")), key=lambda row: ["c1", UID, "back", "lost"].index(row["KEY"])
    )
    rest = {"POD": "-", "CTRL_GROUPS": "/", "ALIVE": "1", "DEAD": "0", "ENERGY": "3.2 J", "MEMORY": "3.9 KiB"}
    assert live == {"KEY": "c1", "STATE": "live", **rest, "AGE": "10m"}
    over = {"STATE": "completed", "POD": "default/web", "ALIVE": "0", "AGE": "5m"}
    assert done == {"KEY": UID, **rest, **over}
    assert (back["STATE"], back["AGE"], back["ENERGY"], back["CTRL_GROUPS"]) == ("recovering", "?", "-", "-")
    assert (missing["STATE"], missing["ALIVE"], missing["DEAD"], missing["ENERGY"]) == ("group missing", "1", "1", "?")


def test_list_marks_partial_sums(node: FakeNode, run: Run) -> None:
    node.live("c1")
    assert "*" not in run("list")
    node.live("c2", begin={"mon_PERF_PKG_00/core_energy": "Unavailable"})
    two = columns(text := run("list"))[1]
    assert two["ENERGY"] == "8.8 J*"
    assert "*   counted from 0, without an initial value" in text
    assert ">=" not in text


WIPED = {"before": {"mon_PERF_PKG_00/core_energy": "Unavailable"}, "known": {"mon_PERF_PKG_00/core_energy": "1.5"}}


def test_a_sum_of_which_a_part_is_unknown_is_shown_as_at_least_that_much(node: FakeNode, run: Run) -> None:
    path = node.live("c1").groups[0].path
    node.record("c1", groups=[{"path": path, "ctrl_group": "/", "begin": BEGIN, **WIPED}], members={"c1": alive(path)})
    legend = ">=  at least that much: a part is unknown"
    (row,) = columns(text := run("list"))
    assert (row["ENERGY"], row["MEMORY"], legend in text) == (">=4.8 J", "3.9 KiB", True)
    text = run("show", "c1")
    rows = {it["COUNTER"]: it["USE"] for it in columns(text)}
    assert (rows["mon_PERF_PKG_00/core_energy"], legend in text) == (">=4.750000", True)
    use = json.loads(run("list", "--json"))["keys"][0]["use"]
    assert [(it["value"], it["at_least"]) for it in use.values()] == [(4.75, True), (4000, False)]
    counter = json.loads(run("show", "c1", "--json"))["groups"][0]["counters"]["mon_PERF_PKG_00/core_energy"]
    assert (counter["use"], counter["known"]) == (None, 4.75)


def test_list_shows_the_rmids_in_use(node: FakeNode, run: Run) -> None:
    node.live("c1")
    node.make("theirs", "gold")
    assert run("list").splitlines()[0] == "RMIDs: 4 in use of 8 (1 ours, 3 of others)"
    node.make("oci-lone")
    assert run("list").splitlines()[0].endswith("; orphans: 1")


def test_list_shows_unmonitored_containers_and_why(node: FakeNode, run: Run) -> None:
    node.fail("c1", kernel="No free RMIDs", tried="mkdir /x: ENOSPC", hint="fewer pods")
    node.fail("c2", "usage", problem="unknown option", monitored=True)
    lines = run("list").splitlines()
    at = lines.index("not monitored, or monitored with problems:")
    assert lines[at + 1 :] == [
        "  c1: no_rmids: no RMID is left (createRuntime, 2026-01-02T03:04:05Z)",
        "    tried: mkdir /x: ENOSPC",
        "    kernel: No free RMIDs",
        "    hint: fewer pods",
        "  c2: usage: unknown option (createRuntime, 2026-01-02T03:04:05Z, but monitored)",
    ]


def test_list_reports_unreadable_records(node: FakeNode, run: Run) -> None:
    path = node.write("groups", "torn.json", "{")
    other = node.write("unmonitored", "c2.json", "[]")
    lines = [line for line in run("list").splitlines() if line.startswith("unreadable: ")]
    assert [line.split(": ")[1] for line in lines] == [str(path), str(other)]


def test_list_without_resctrl_says_so(node: FakeNode, run: Run) -> None:
    node.live("c1")
    assert "not mounted" in run("list", "--resctrl-root=/nowhere").splitlines()[0]


def test_list_as_json(node: FakeNode, run: Run) -> None:
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
    }
    assert key == {
        "key": "c1",
        "kind": "container",
        "namespace": "n",
        "pod": "p",
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
    assert json.loads(run("list", "--json", "--resctrl-root=/nowhere"))["rmids"] is None


# --- show


def shown(node: FakeNode, **fields: Any) -> None:  # noqa: ANN401
    path = node.live(UID, kind="pod", pod_namespace="default", pod_name="web").groups[0].path
    before = {"mon_PERF_PKG_00/core_energy": "1.5"}
    member = alive(path, cgroup=":/kubepods/x", taken_from="theirs")
    group = {"path": path, "ctrl_group": "/", "begin": BEGIN, "before": before}
    timeline = {"created_at": "2026-01-02T03:00:00Z", "created_boottime": 900.0, "generation": 4}
    node.record(
        UID,
        **{"kind": "pod", "groups": [group], "members": {"c1": member, "c2": dead(path)}, **timeline, **fields},
    )
    node.index("c1", UID)


def test_show_prints_the_lifetime_of_a_key(node: FakeNode, run: Run) -> None:
    shown(node)
    node.fail("c9", key=UID, kernel="No free RMIDs")
    node.fail("c2", "task_gone")
    node.fail("stranger", "denied")
    text = run("show", UID)
    lines = text.splitlines()
    assert "created     2026-01-02T03:00:00Z (age 100s)" in lines
    assert "generation  4" in lines
    assert f"member c1: pid {os.getpid()}, starttime {alive('')['starttime']}, alive" in lines
    assert f"member c2: pid {os.getpid()}, starttime 1, dead" in lines
    assert "  cgroup     :/kubepods/x" in lines
    assert "  taken from theirs" in lines
    assert f"ctrl_group /: {node.path('oci-' + UID)} (there)" in lines
    assert "kernel: No free RMIDs" in text
    assert "c2: task_gone" in text
    assert "stranger" not in text
    rows = {row["COUNTER"]: row for row in columns(text)}
    energy = {"UNIT": "joules", "BEGIN": "5.500000", "NOW": "8.750000", "BEFORE": "1.5", "USE": "4.750000"}
    assert rows["mon_PERF_PKG_00/core_energy"] == {"COUNTER": "mon_PERF_PKG_00/core_energy", **energy}
    cache = {"UNIT": "bytes", "BEGIN": "-", "NOW": "4096", "BEFORE": "-", "USE": "-"}
    assert rows["mon_L3_00/llc_occupancy"] == {"COUNTER": "mon_L3_00/llc_occupancy", **cache}


def test_show_of_a_completed_key_has_its_end(node: FakeNode, run: Run) -> None:
    node.completed("c1")
    text = run("show", "c1")
    assert "completed   2026-01-02T03:04:05Z" in text
    assert "(over)" in text
    assert {row["END"] for row in columns(text)} == set(NOW.values())


def test_show_of_a_missing_group_without_snapshots_has_no_use(node: FakeNode, run: Run) -> None:
    node.record("c1", groups=[{"path": str(node.path("oci-c1")), "ctrl_group": "/"}])
    text = run("show", "c1")
    assert "(missing)" in text
    assert "no initial counters" in text
    assert "COUNTER" not in text


def test_show_marks_unknown_use_and_use_counted_from_0(node: FakeNode, run: Run) -> None:
    node.live("c1", begin={"mon_PERF_PKG_00/core_energy": "Unavailable", "mon_L3_00/mbm_total_bytes": "Unavailable"})
    node.count("oci-c1", {"mon_L3_00/later_event": "7"})
    rows = {row["COUNTER"].rpartition("/")[2]: row for row in columns(run("show", "c1"))}
    assert (rows["core_energy"]["USE"], rows["mbm_total_bytes"]["USE"]) == ("8.750000*", "?")
    assert (rows["later_event"]["UNIT"], rows["later_event"]["USE"]) == ("?", "-")


def test_show_as_json(node: FakeNode, run: Run) -> None:
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


@pytest.mark.parametrize("name", [UID, UID[:3], "c1"])
def test_show_finds_a_key_by_its_name_its_beginning_or_a_container(node: FakeNode, run: Run, name: str) -> None:
    shown(node)
    node.record("other")
    assert json.loads(run("show", "--json", name))["key"] == UID


def test_show_prefers_the_exact_name(node: FakeNode, run: Run) -> None:
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
        ("none", "no key"),
        ("", "no key"),
        ("../groups/ab", "no key"),
        ("a", "2 keys begin with 'a': ab, abc"),
        ("torn", "torn.json: not JSON"),
        ("c9", "container c9 has no key: no_rmids"),
        ("gone", "no key"),
        ("-", "no key"),
    ],
)
def test_show_of_an_unknown_key_fails(node: FakeNode, complaints: list[str], name: str, problem: str) -> None:
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
def pace(monkeypatch: pytest.MonkeyPatch, node: FakeNode) -> list[float]:
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


def test_top_without_a_terminal_prints_one_table(node: FakeNode, run: Run, pace: list[float]) -> None:
    node.live("busy")
    node.count("oci-busy", {"mon_PERF_PKG_00/core_energy": "10"})
    node.live("idle")
    node.completed("done")
    text = run("top")
    assert pace == [2.0]
    assert text.splitlines()[0] == "2026-01-02T03:04:05Z  over 2.0 s, 2 keys"
    same = {"POD": "-", "MEMORY/S": "0 B", "LOCAL/S": "-", "CACHE": "4.0 KiB"}
    assert columns(text) == [{"KEY": "busy", "WATTS": "2.5 W", **same}, {"KEY": "idle", "WATTS": "0.0 W", **same}]


@pytest.mark.usefixtures("pace")
def test_top_marks_a_rate_of_which_a_part_is_unknown(node: FakeNode, run: Run) -> None:
    node.live("busy")
    node.count("oci-busy", {"mon_PERF_PKG_00/core_energy": "10", "mon_PERF_PKG_01/core_energy": "Error"})
    text = run("top")
    assert (columns(text)[0]["WATTS"], ">=  at least that much" in text) == (">=2.5 W", True)
    (key,) = json.loads(run("top", "--json"))["keys"]
    assert (key["watts"], key["partial"], key["at_least"]) == (2.5, ["watts"], ["watts"])


def test_top_prints_count_tables(node: FakeNode, run: Run, pace: list[float]) -> None:
    node.live("busy")
    text = run("top", "--count", "3", "--interval=0.5")
    assert pace == [0.5] * 3
    assert text.count("KEY") == 3
    assert "\x1b" not in text


def test_top_as_json_prints_an_object_a_line(node: FakeNode, run: Run, pace: list[float]) -> None:
    node.live("busy", pod_namespace="n", pod_name="p")
    node.count("oci-busy", {"mon_PERF_PKG_00/core_energy": "10", "mon_L3_00/mbm_total_bytes": "Error"})
    first, second = map(json.loads, run("top", "--json", "--count=2").splitlines())
    assert len(pace) == 2
    assert (
        first
        == second
        == {
            "time": "2026-01-02T03:04:05Z",
            "seconds": 2.0,
            "keys": [
                {
                    "key": "busy",
                    "kind": "container",
                    "namespace": "n",
                    "pod": "p",
                    "watts": 2.5,
                    "memory_bytes_per_second": None,
                    "memory_local_bytes_per_second": None,
                    "llc_occupancy_bytes": 4096,
                    "partial": ["memory_bytes_per_second"],
                    "at_least": [],
                }
            ],
        }
    )


def test_top_interrupted_exits_0(node: FakeNode, run: Run, pace: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    node.live("busy")

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(system, "sleep", interrupted)
    assert (run("top"), pace) == ("", [])


def test_top_on_a_terminal_fits_the_screen(
    node: FakeNode, run: Run, pace: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(9):
        node.live(f"busy{at}")
    monkeypatch.setattr(commands, "_is_terminal", lambda: True)
    monkeypatch.setattr(os, "get_terminal_size", lambda _fd: os.terminal_size((20, 6)))
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1, raising=False)
    screens_ = run("top", "--count=2").split("\x1b[H\x1b[2J")
    assert len(pace) == 2
    assert screens_[0] == ""
    assert len(screens_) == 3
    for screen in screens_[1:]:
        assert len(screen.splitlines()) == 5
        assert all(len(line) <= 20 for line in screen.splitlines())
        assert screen.splitlines()[3].startswith("busy0")


def test_top_on_a_terminal_repeats(
    node: FakeNode, run: Run, pace: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    node.live("busy")
    monkeypatch.setattr(commands, "_is_terminal", lambda: True)
    wait = system.sleep

    def until_interrupted(seconds: float) -> None:
        wait(seconds)
        if len(pace) > 20:
            raise KeyboardInterrupt

    monkeypatch.setattr(system, "sleep", until_interrupted)
    assert len(run("top", "--json").splitlines()) == 20


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
        node = FakeNode(tmp_path_factory.mktemp("hostile"))
        member = {**dead("/r/mon_groups/x"), "cgroup": words[3] or "r"}
        groups = [{"path": "/r/mon_groups/x", "ctrl_group": "/", "begin": BEGIN, "end": NOW}]
        node.record("c1", pod_namespace=words[0], pod_name=words[1], members={"c1": member}, groups=groups)
        node.fail("c1", problem=words[2], hint="h")
        seen = snapshot.take_snapshot(node.options)
        texts.append([*render.format_list(seen), *render.format_key(seen.keys[0], seen.failures)])
    hostile, plain = texts
    assert len(hostile) == len(plain)
    assert all(line.isascii() and line.isprintable() for line in hostile)
    (row,) = [line for line in hostile if line.startswith("c1 ")]
    assert len(row.split()) == len(next(line for line in plain if line.startswith("c1 ")).split())
    assert len(row) < 200


# --- Command lines


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["list", "--jsno"], "unrecognized arguments: --jsno"),
        (["list", "--js"], "unrecognized arguments"),
        (["list", "x"], "unrecognized arguments: x"),
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
        (["list", "\x1b[2J\n"], "unrecognized arguments: \\x1b[2J\\n"),
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


def test_options_work_with_and_without_an_equals_sign(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    node.make("odd-lone")
    for places in (node.places, [part for place in node.places for part in place.split("=")]):
        assert commands.main(["list", *places, "--group-prefix", "odd-", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["rmids"]["ours"] == 1


@pytest.mark.parametrize("verb", [["list"], ["top"], ["metrics"], ["show", "x"]])
def test_an_unreadable_run_directory_is_one_line_on_stderr(
    node: FakeNode, complaints: list[str], capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
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


def test_metrics_go_to_stdout_or_to_a_file(node: FakeNode, run: Run, tmp_path: Path) -> None:
    node.live("c1")
    path = tmp_path / "x.prom"
    assert run("metrics", f"--textfile={path}") == ""
    assert run("metrics") == path.read_text()
    assert {it["name"] for it in json.loads(run("metrics", "--json"))["metrics"]} >= {"resctrl_mon_mounted"}


@pytest.mark.parametrize("path", ["missing/x.prom", "."])
def test_an_unwritable_textfile_is_one_line_on_stderr(
    node: FakeNode, complaints: list[str], tmp_path: Path, path: str
) -> None:
    before = sorted(os.listdir(tmp_path))
    assert commands.main(["metrics", *node.places, "--textfile", str(tmp_path / path)]) == 2
    assert len(complaints) == 1
    assert sorted(os.listdir(tmp_path)) == before


def test_without_stdout_nothing_is_printed(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert commands.main(["list", *node.places]) == 0
    assert commands.main(["top", "--interval=0.001", *node.places]) == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (119, "119s"), (120, "2m"), (7199, "120m"), (7200, "2h"), (172800, "2d")]
)
def test_ages_have_one_unit(seconds: float, text: str) -> None:
    assert cells.format_age(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1048575, "1.0 MiB"), (2**80, "1048576.0 EiB")]
)
def test_bytes_have_binary_units(value: float, text: str) -> None:
    assert cells.format_bytes(value) == text
