# SPDX-License-Identifier: Apache-2.0
"""Metrics: what Prometheus' own parser makes of them is what the node is like, whatever tenants call their pods."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from hook import __version__
from hook.base import jsontext, system
from hook.base.counters import EVENTS, MILLION
from hook.base.models import MonGroup, Options
from hook.base.reasons import Reason
from hook.cli import commands
from hook.observe import prometheus
from hook.observe.prometheus import Choice
from hook.observe.snapshot import Group, take_snapshot
from hook.state import lives as state_lives
from tests.unit.nodes import BEGIN, NOW, NodeFiles, alive, dead

REASONS = {value for name, value in vars(Reason).items() if name.isupper()}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def node(tmp_path: Path) -> NodeFiles:
    return NodeFiles(tmp_path)


def parsed(text: str) -> Samples:
    """What Prometheus' parser reads; no series comes twice."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series = (sample.name, frozenset(sample.labels.items()))
            assert series not in found, series
            found[series] = sample.value
    return found


def families_of(node: NodeFiles, choice: Choice | None = None) -> list[prometheus.Family]:
    return prometheus.make_families(take_snapshot(node.options, has_uncharged=True), None, choice)


def text_of(node: NodeFiles, choice: Choice | None = None) -> str:
    return prometheus.format_text(families_of(node, choice))


def scraped(options: Options) -> Samples:
    return parsed(prometheus.format_text(prometheus.make_families(take_snapshot(options))))


def value(samples: Samples, name: str, **labels: str) -> float | None:
    """The value of the only series of this name with these labels among its own; None: there is none."""
    wanted = set(labels.items())
    values = [it for (found, own), it in samples.items() if found == "resctrl_mon_" + name and wanted <= own]
    assert len(values) <= 1
    return values[0] if values else None


# --- Use


def test_a_live_key_has_its_lifetime_use(node: NodeFiles) -> None:
    before = {"mon_PERF_PKG_00/core_energy": "100.000001"}
    path = node.make("oci-c1", counters=NOW)
    node.record(
        "c1",
        kind="pod",
        pod_namespace="default",
        pod_name="web",
        groups=[{"path": path, "ctrl_group": "/", "begin": BEGIN, "before": before}],
        members={"m": alive(path)},
    )
    labels = {"uid": "c1", "namespace": "default", "pod": "web", "container": "", "ctrl_group": "/"}
    package, cache = frozenset({**labels, "domain": "mon_PERF_PKG_00"}.items()), {**labels, "domain": "mon_L3_00"}
    found = scraped(node.options)
    assert found["resctrl_mon_core_energy_joules_total", package] == 103.250001
    assert found["resctrl_mon_memory_bytes_total", frozenset(cache.items())] == 4000
    assert found["resctrl_mon_llc_occupancy_bytes", frozenset(cache.items())] == 4096
    assert "103.250001\n" in text_of(node)


def test_a_completed_key_keeps_its_use_and_has_no_occupancy(node: NodeFiles) -> None:
    node.completed("c1")
    found = scraped(node.options)
    assert value(found, "core_energy_joules_total", key="c1") == 3.25
    assert value(found, "llc_occupancy_bytes") is None


def test_an_unknown_use_has_no_sample_but_is_counted(node: NodeFiles) -> None:
    node.live("c1")
    node.count("oci-c1", {"mon_PERF_PKG_00/core_energy": "Error", "mon_L3_00/llc_occupancy": "Unavailable"})
    found = scraped(node.options)
    assert value(found, "core_energy_joules_total") is None
    assert value(found, "llc_occupancy_bytes") is None
    assert value(found, "use_unknown", key="c1", domain="mon_PERF_PKG_00", event="core_energy") == 1
    assert value(found, "use_unknown", event="mbm_total_bytes") is None
    assert value(found, "memory_bytes_total") == 4000


def test_after_a_wipe_the_counter_starts_again_from_0(node: NodeFiles) -> None:
    """What Prometheus adds up over all scrapes is never more than what was used: it adds what a counter starts from."""
    energy = "mon_PERF_PKG_00/core_energy"
    path = node.make("oci-c1", counters={energy: "8"})
    samples = []
    for before, known, begin in (("100", {}, "5"), ("Unavailable", {energy: "100"}, "8"), ("Unavailable", {}, "50")):
        group = {"path": path, "ctrl_group": "/", "begin": {energy: begin}, "before": {energy: before}, "known": known}
        node.record("c1", groups=[group], members={"c1": alive(path)})
        found = scraped(node.options)
        samples.append((value(found, "core_energy_joules_total"), value(found, "use_unknown", event="core_energy")))
    assert samples == [(103, None), (0, 1), (None, 1)]


def added_up(samples: list[int]) -> int:
    """What Prometheus' increase() makes of these: a smaller sample is a new start, and counts whole."""
    pairs = zip([0, *samples], samples)
    return sum(later if later < earlier else later - earlier for earlier, later in pairs)


@given(lives=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.booleans()), min_size=1, max_size=7))
def test_prometheus_never_adds_up_more_than_was_used(lives: list[tuple[int, int, bool]]) -> None:
    """Of each life of a group: what was used until a scrape, what after it, and whether its end was read."""
    counter, samples = "mon_PERF_PKG_00/core_energy", list[int]()
    here = MonGroup(path="/r/mon_groups/x", ctrl_group="/")
    for at, (until, after, is_read) in enumerate(lives):
        base = 1000 * at
        begun = MonGroup(**{**dict(here), "begin": {counter: str(base)}})
        now = {counter: str(base + until)}
        ((_, sample),) = prometheus.list_counted(Group(begun, exists=True, read_at=0.0, now=now))
        assert sample is not None
        samples.append(sample // MILLION)
        over = state_lives.end_group(begun, {counter: str(base + until + after)} if is_read else {})
        here = state_lives.inherit(MonGroup(path=here.path, ctrl_group="/"), [over])
    used = sum(until + after for until, after, _ in lives)
    assert added_up(samples) <= used
    assert added_up(samples) == used - lives[-1][1] or not all(is_read for _, _, is_read in lives[:-1])


def test_without_snapshots_there_is_no_use(node: NodeFiles) -> None:
    path = node.make("oci-c1", counters=NOW)
    node.record("c1", groups=[{"path": path, "ctrl_group": "/"}])
    found = scraped(node.options)
    assert [value(found, name) for name in ("core_energy_joules_total", "use_unknown")] == [None, None]
    assert value(found, "llc_occupancy_bytes") == 4096


def test_two_groups_with_equal_labels_are_one_series(node: NodeFiles, tmp_path: Path) -> None:
    """The mount was elsewhere when the first one was made."""
    over = {"path": str(tmp_path / "mon_groups" / "old"), "ctrl_group": "/", "begin": BEGIN, "end": NOW}
    path = node.make("oci-c1", counters=NOW)
    here = {"path": path, "ctrl_group": "/", "begin": BEGIN}
    node.record("c1", groups=[over, here])
    assert value(scraped(node.options), "core_energy_joules_total") == 6.5
    node.record("c1", groups=[{**over, "end": {}}, here])
    assert value(scraped(node.options), "core_energy_joules_total") is None
    assert value(scraped(node.options), "use_unknown", event="core_energy") == 1


def test_each_ctrl_group_has_its_series(node: NodeFiles) -> None:
    groups = [
        {"path": node.make("oci-c1", ctrl_group, NOW), "ctrl_group": ctrl_group, "begin": BEGIN}
        for ctrl_group in ("/", "gold")
    ]
    node.record("c1", groups=groups)
    found = scraped(node.options)
    assert [value(found, "core_energy_joules_total", ctrl_group=name) for name in ("/", "gold")] == [3.25, 3.25]


def test_each_event_has_a_metric_of_its_kind_and_unit() -> None:
    for event in EVENTS.values():
        assert event.metric.endswith("_total") is not event.gauge
        assert re.search(rf"{event.unit}|uops", event.metric), "the unit is part of the name"
    names = prometheus.list_names()
    assert len(set(names)) == len(names) == 2 * len(EVENTS) + len(prometheus.HEALTH) + 2


def test_each_event_metric_has_a_sample(node: NodeFiles) -> None:
    every = {f"mon_PERF_PKG_00/{event}": "1" for event in EVENTS}
    path = node.make("oci-c1", counters=dict.fromkeys(every, "3"))
    node.record("c1", groups=[{"path": path, "ctrl_group": "/", "begin": every}])
    found = scraped(node.options)
    got = {event: value(found, it.metric) for event, it in EVENTS.items()}
    assert got == {event: 3 if EVENTS[event].gauge else 2 for event in EVENTS}


# --- How the hook is


def test_a_node_has_health_metrics(node: NodeFiles) -> None:
    path = node.live("live").groups[0].path
    node.completed("done")
    node.record("back", recovering=True, members={"x": dead(path)})
    node.record("between", lingering_since=1.0, lingering_until=2.0)
    node.record("lost", groups=[{"path": str(node.path("oci-lost")), "ctrl_group": "/"}])
    node.record("taken", members={"y": alive(path, taken_from="theirs")})
    node.write("groups", "torn.json", "{")
    node.make("oci-lone")
    node.make("theirs")
    node.make("theirs", "gold")
    node.fail("c7", Reason.NO_RMIDS)
    node.fail("c8", Reason.NO_RMIDS)
    node.fail("c9", Reason.USAGE, monitored=True)
    node.write("runs", "createRuntime-ok", "....")
    found = scraped(node.options)
    names = ("live", "lingering", "completed", "recovering", "unreadable")
    states = {state: value(found, "keys", state=state) for state in names}
    assert states == {"live": 3, "lingering": 1, "completed": 1, "recovering": 1, "unreadable": 1}
    assert [value(found, "members", state=state) for state in ("alive", "dead")] == [2, 1]
    assert value(found, "members_taken_from_others") == 1
    assert value(found, "rmids") == 8
    assert [value(found, "rmids_in_use", owner=owner) for owner in ("ours", "others")] == [2, 4]
    assert value(found, "orphan_groups") == 1
    unmonitored = {reason: value(found, "unmonitored_containers", reason=reason) for reason in REASONS}
    assert unmonitored == {**dict.fromkeys(REASONS, 0), "no_rmids": 2}
    assert value(found, "hook_runs_total", stage="createRuntime", result="ok") == 4
    assert value(found, "mounted") == 1
    assert value(found, "build_info", version=__version__) == 1


def test_reconcile_is_seen(node: NodeFiles) -> None:
    run = {"started_at": 1e9, "ended_at": 1e9 - 60, "seconds": 0.25, "failed": 1, "left": 2}
    node.reconciled(**run, actions={"adopt": 7}, failures={"evict": 3}, late_cpu=1.5)
    found = scraped(node.options)
    assert value(found, "reconcile_start_timestamp_seconds") == 1e9
    assert value(found, "reconcile_end_timestamp_seconds") == 1e9 - 60
    assert value(found, "reconcile_duration_seconds") == 0.25
    assert [value(found, "reconcile_undone", kind=kind) for kind in ("failed", "left")] == [1, 2]
    assert [value(found, "reconcile_actions_total", verb=verb) for verb in ("adopt", "evict")] == [7, 0]
    assert [value(found, "reconcile_failures_total", verb=verb) for verb in ("adopt", "evict")] == [0, 3]
    assert value(found, "late_cpu_seconds_total") == 1.5
    assert value(found, "outside_threads") == 0
    node.reconciled(**run, outside={"c1": 17, "c2": 1}, outside_total=20)
    assert value(scraped(node.options), "outside_threads") == 20


def test_watch_is_seen_where_it_runs(node: NodeFiles) -> None:
    parts = (
        "start_timestamp_seconds",
        "alive_timestamp_seconds",
        "moved_tasks_total",
        "failures_total",
        "overflows_total",
    )
    names = [f"watch_{it}" for it in parts]
    assert [value(scraped(node.options), name) for name in names] == [None] * 5
    node.watched(started_at=1e9, alive_at=1e9 + 60, moved=7, failed=2, overflows=1)
    assert [value(scraped(node.options), name) for name in names] == [1e9, 1e9 + 60, 7, 2, 1]
    node.write("", "watch.json", '{"version": 1, "moved": -1}')
    assert [value(scraped(node.options), name) for name in names] == [None] * 5


def test_a_reconcile_that_never_ended_has_a_start_alone(node: NodeFiles) -> None:
    node.reconciled(started_at=1e9)
    found = scraped(node.options)
    assert value(found, "reconcile_start_timestamp_seconds") == 1e9
    assert value(found, "reconcile_end_timestamp_seconds") is None
    assert value(found, "reconcile_duration_seconds") is None


@pytest.mark.parametrize("text", ["", "{", '{"version": 1, "actions": {"x": -1}}', "[]", "9" * 9999])
def test_a_torn_record_of_reconcile_is_as_none(node: NodeFiles, text: str) -> None:
    node.write("", "reconcile.json", text)
    assert value(scraped(node.options), "reconcile_start_timestamp_seconds") is None


def test_a_machine_without_resctrl_has_health_metrics(node: NodeFiles) -> None:
    shutil.rmtree(node.root)
    found = scraped(node.options)
    assert value(found, "mounted") == 0
    assert {value(found, "unmonitored_containers", reason=reason) for reason in REASONS} == {0}
    for absent in ("rmids", "rmids_in_use", "orphan_groups", "hook_runs_total", "unhooked_containers"):
        assert value(found, absent) is None


def test_an_unknown_reason_is_counted(node: NodeFiles) -> None:
    node.fail("c1", 'new"\n')
    assert value(scraped(node.options), "unmonitored_containers", reason='new"\\n') == 1


# --- The format


def populated(node: NodeFiles) -> NodeFiles:
    for key in ("b", "a"):
        node.live(key, pod_namespace="n", pod_name=key)
    node.completed("z")
    node.unhooked("u1", "u2", unchecked=3)
    node.reconciled(started_at=2.0, ended_at=2.5)
    node.watched()
    node.count("oci-b", {"mon_PERF_PKG_00/core_energy": "Error"})
    node.write("runs", "poststop-ok", "..")
    node.count_whole(dict.fromkeys(NOW, "99999"))
    return node


def test_every_metric_has_one_header_followed_by_its_samples(node: NodeFiles) -> None:
    lines = text_of(populated(node)).splitlines()
    types: dict[str, str] = {}
    for at, line in enumerate(lines):
        if line.startswith("# HELP "):
            name = line.split()[2]
            assert name not in types
            assert lines[at + 1].split()[:3] == ["#", "TYPE", name]
            types[name] = lines[at + 1].split()[3]
            assert len(line.split()) > 5
        elif not line.startswith("#"):
            assert re.split(r"[ {]", line)[0] == list(types)[-1]
    assert set(types) == set(prometheus.list_names()) - {"resctrl_mon_" + it for it in absent_names()}
    assert all((kind == "counter") is name.endswith("_total") for name, kind in types.items())


def absent_names() -> set[str]:
    had = {counter.split("/")[1] for counter in NOW}
    absent = {it.metric for event, it in EVENTS.items() if event not in had}
    return absent | {f"node_{name}" for name in absent} | {prometheus.DROPPED[0]}


def test_the_text_is_in_a_stable_order(node: NodeFiles) -> None:
    seen = take_snapshot(populated(node).options)
    seen.keys.sort(key=lambda key: key.state.key)
    first = prometheus.format_text(prometheus.make_families(seen))
    seen.keys.reverse()
    assert prometheus.format_text(prometheus.make_families(seen)) == first


def test_json_has_the_same_numbers(node: NodeFiles) -> None:
    seen = take_snapshot(populated(node).options)
    document = json.loads(jsontext.dumps(prometheus.to_json(prometheus.make_families(seen))))
    found = {
        (metric["name"], frozenset(sample["labels"].items())): sample["value"]
        for metric in document["metrics"]
        for sample in metric["samples"]
    }
    assert found == parsed(prometheus.format_text(prometheus.make_families(seen)))
    assert {metric["type"] for metric in document["metrics"]} == {"counter", "gauge"}


HOSTILE = st.text(max_size=30) | st.sampled_from(
    ['"} 1\nresctrl_mon_keys 9', "\\", '\\"', "\x1b[2J", "a\u2028b\x85c", "\ud800", "{}", "'", "# HELP", "x" * 2000]
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(namespace=HOSTILE, pod=HOSTILE, domain=HOSTILE, reason=HOSTILE)
@example(namespace='"', pod="\\n", domain="\\\\", reason="\r\n")
def test_text_of_a_tenant_stays_inside_a_label_value(
    tmp_path_factory: pytest.TempPathFactory, namespace: str, pod: str, domain: str, reason: str
) -> None:
    node = NodeFiles(tmp_path_factory.mktemp("hostile"))
    counted = {"begin": {f"{domain}/core_energy": "1"}, "end": {f"{domain}/core_energy": "2"}}
    groups: list[dict[str, Any]] = [{"path": "/r/mon_groups/x", "ctrl_group": "/", **counted}]
    node.record("c1", pod_namespace=namespace, pod_name=pod, groups=groups)
    node.fail("c2", reason)
    text = text_of(node)
    plain = NodeFiles(tmp_path_factory.mktemp("plain"))
    plain.record("c1", pod_namespace="n", pod_name="p", groups=groups)
    plain.fail("c2", "new")
    assert text.isascii()
    assert all(line.isprintable() for line in text.splitlines())
    lines = len(text_of(plain).splitlines())
    assert len(text.splitlines()) == lines - (reason in REASONS)
    found = parsed(text)
    ((_, labels),) = [it for it in found if it[0] == "resctrl_mon_core_energy_joules_total"]
    assert {name for name, _ in labels} - {"container_id", "key"} == {
        *("namespace", "pod", "container", "ctrl_group", "domain")
    }
    if pod.isascii() and pod.isprintable() and len(pod) <= 1000:
        assert ("pod", pod) in labels


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
def test_promtool_reports_nothing(node: NodeFiles) -> None:
    every = {f"mon_PERF_PKG_00/{event}": "1" for event in EVENTS}
    path = populated(node).make("oci-c1", counters=dict.fromkeys(every, "3"))
    node.record("c1", pod_name='we"b\\', groups=[{"path": path, "ctrl_group": "/", "begin": every}])
    text = text_of(node)
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=text.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert (done.returncode, done.stdout.decode()) == (0, "")


# --- The textfile


def test_the_textfile_replaces_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "resctrl.prom"
    path.write_text("old")
    former = path.stat().st_ino
    prometheus.write_textfile(str(path), "new\n")
    assert (path.read_text(), os.listdir(tmp_path)) == ("new\n", ["resctrl.prom"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert path.stat().st_ino != former, "a reader has the whole of the one or the other"


ENERGY = "mon_PERF_PKG_00/core_energy"


@pytest.mark.parametrize(
    ("now", "before", "age", "held"),
    [
        ("105.5", "0", 100.0, 100.0),
        ("95", "0", 100.0, 90.0),
        ("Error", "0", 100.0, 90.0),
        ("4", "0", 100.0, 90.0),
        ("95", "0", 1.0, 89.5),
        ("Error", "0", 1.0, None),
        ("25.5", "Unavailable", 100.0, 20.0),
        ("Error", "Unavailable", 100.0, 90.0),
    ],
    ids=["more", "dips", "no number", "ran backwards", "another key", "another key without a number", "wiped", "gone"],
)
def test_a_counter_in_the_textfile_does_not_dip(
    node: NodeFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    now: str,
    before: str,
    age: float,
    held: float | None,
) -> None:
    """But it starts again with another incarnation that is counted alone, and with another key of that name."""
    path = node.make("oci-c1", counters={ENERGY: "95.5"})
    group = {"path": path, "ctrl_group": "/", "begin": {ENERGY: "5.5"}, "before": {ENERGY: "0"}}
    monkeypatch.setattr(system, "boottime", lambda: 1000.0)
    node.record("c1", groups=[group], created_boottime=900.0)
    place = tmp_path / "x.prom"
    arguments = ["metrics", *node.places, f"--textfile={place}"]
    assert commands.main(arguments) == 0
    assert value(parsed(place.read_text()), "core_energy_joules_total") == 90
    monkeypatch.setattr(system, "age", lambda _path: 10.0)
    node.count("oci-c1", {ENERGY: now})
    node.record("c1", groups=[{**group, "before": {ENERGY: before}}], created_boottime=1000.0 - age)
    assert commands.main(arguments) == 0
    assert value(parsed(place.read_text()), "core_energy_joules_total") == held


def test_a_textfile_of_others_is_replaced(node: NodeFiles, tmp_path: Path) -> None:
    node.live("c1", created_boottime=0.0)
    for content in (b"\xff\x00", b"resctrl_mon_core_energy_joules_total x\n\n 1", b"# HELP"):
        (tmp_path / "x.prom").write_bytes(content)
        assert commands.main(["metrics", *node.places, f"--textfile={tmp_path / 'x.prom'}"]) == 0
        assert value(parsed((tmp_path / "x.prom").read_text()), "core_energy_joules_total") == 3.25


def test_the_textfile_ignores_the_umask(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        prometheus.write_textfile(str(tmp_path / "x.prom"), "")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "x.prom").stat().st_mode) == 0o644


def test_the_textfile_can_be_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prometheus.write_textfile("x.prom", "text\n")
    assert (tmp_path / "x.prom").read_text() == "text\n"


@pytest.mark.parametrize("call", ["rename", "fchmod", "fsync"])
def test_a_failed_write_keeps_the_old_textfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    path = tmp_path / "x.prom"
    path.write_text("old")

    def fail(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space"):
        prometheus.write_textfile(str(path), "new\n")
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["x.prom"])


def test_the_temporary_textfile_does_not_end_in_prom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads what ends in .prom."""
    there: list[str] = []
    monkeypatch.setattr(os, "rename", lambda _old, _new: there.extend(os.listdir(tmp_path)))
    prometheus.write_textfile(str(tmp_path / "x.prom"), "new\n")
    assert len(there) == 1
    assert not there[0].endswith(".prom")


# --- The command


def test_events_can_be_chosen_by_the_kernels_names(node: NodeFiles, capsys: pytest.CaptureFixture[str]) -> None:
    populated(node).count_whole({"mon_L3_00/stalls_memrd": "1"})
    assert commands.main(["metrics", *node.places, "--events=core_energy,c1_res,stalls_memrd", "--sum-domains"]) == 0
    found = parsed(capsys.readouterr().out)
    assert value(found, "node_stalls_memrd_total", ctrl_group="/") == 1
    assert value(found, "core_energy_joules_total", container_id="a") == 3.25
    assert not [name for name, labels in found if "memory" in name or "domain" in dict(labels)]


def test_a_misspelt_event_is_an_error(node: NodeFiles, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["metrics", *node.places, "--events=core_enrgy"]
    assert commands.main(arguments) == 0, "it is not known which events there are"
    capfd.readouterr()
    populated(node)
    assert commands.main(arguments) == 2
    found = capfd.readouterr()
    assert (found.out, found.err.count("\n")) == ("", 1)
    assert "core_enrgy" in found.err
    assert "core_energy" in found.err


@pytest.mark.parametrize("words", [["--events="], ["--events=a b"], ["--events=a,,b"], ["--listen=1", "--json"]])
def test_wrong_arguments_are_refused(node: NodeFiles, words: list[str]) -> None:
    assert commands.main(["metrics", *node.places, *words]) == 2
