# SPDX-License-Identifier: Apache-2.0
"""Metrics: what Prometheus' own parser makes of them is what the node is like,
whatever tenants call their pods.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as open_metrics
from prometheus_client.parser import text_string_to_metric_families
from pyfakefs.fake_filesystem import FakeFilesystem

from hook import __version__, life_turns, rare, system
from hook.cli import command_line as cli
from hook.counters import MILLION
from hook.errors import HookError, Reason
from hook.models import KeyState, MonGroup
from hook.show import prometheus
from hook.show.prometheus import make_families
from hook.show.snapshot import EVENTS, Group, SeenKey, take_snapshot
from hook.validation import replace
from hook.words import explain, printable
from tests.unit.metrics import EVERYTHING, FAMILIES, OF_EVENTS, make_inventory
from tests.unit.nodes import BEGIN, NOW, NodeFiles

ENERGY, OCCUPANCY = "mon_PERF_PKG_00/core_energy", "mon_L3_00/llc_occupancy"
REASONS = {value for name, value in vars(Reason).items() if name.isupper()}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Samples:
    """What Prometheus' parser reads; no series comes twice."""
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series = (sample.name, frozenset(sample.labels.items()))
            assert series not in samples, series
            samples[series] = sample.value
    return samples


def text_of(node: NodeFiles) -> str:
    return prometheus.format_text(make_families(take_snapshot(node.options, has_uncharged=True)))


def scraped(node: NodeFiles) -> Samples:
    return parsed(text_of(node))


def values(samples: Samples, name: str, **labels: str) -> list[float]:
    """Those of the series of this name with these labels among its own, in order."""
    wanted = set(labels.items())
    return sorted(
        value
        for (metric, labels), value in samples.items()
        if metric == "resctrl_mon_" + name and wanted <= labels
    )


def value(samples: Samples, name: str, **labels: str) -> float | None:
    """The value of the only such series; None: there is none."""
    matching = values(samples, name, **labels)
    assert len(matching) <= 1
    return matching[0] if matching else None


# --- Use


OVER = {"path": "/r/mon_groups/old", "ctrl_group": "/", "begin": BEGIN, "end": NOW}
HERE: dict[str, Any] = {
    "path": "/sys/fs/resctrl/mon_groups/oci-c1",
    "ctrl_group": "/",
    "begin": BEGIN,
}


@pytest.mark.parametrize(
    ("groups", "now", "energy", "unknown", "occupancy"),
    [
        ([HERE], {}, 3.25, None, 4096),
        ([{**HERE, "before": {ENERGY: "100.000001"}}], {}, 103.250001, None, 4096),
        ([HERE], {ENERGY: "Error", OCCUPANCY: "Unavailable"}, None, 1, None),
        ([{**HERE, "begin": {ENERGY: "Unavailable"}}], {ENERGY: "Unavailable"}, 0, None, 4096),
        (
            [{**OVER, "begin": {ENERGY: "Unavailable"}, "end": {ENERGY: "Unavailable"}}],
            {},
            0,
            None,
            None,
        ),
        ([HERE], {ENERGY: "Unavailable"}, None, 1, 4096),
        ([{**HERE, "begin": None}], {}, None, None, 4096),
        ([OVER], {}, 3.25, None, None),
        ([OVER, HERE], {}, 6.5, None, 4096),  # the mount was elsewhere when the first one was made
        ([{**OVER, "end": {}}, HERE], {}, None, 1, 4096),
    ],
    ids=[
        "live",
        "again",
        "no numbers",
        "no data yet",
        "never any data",
        "no data any more",
        "no begin",
        "over",
        "two groups with equal labels",
        "two, and one is unknown",
    ],
)
def test_what_is_known_of_a_use_has_a_sample_and_the_rest_is_counted(
    node: NodeFiles,
    groups: list[dict[str, Any]],
    now: dict[str, str],
    energy: float | None,
    unknown: int | None,
    occupancy: float | None,
) -> None:
    node.make("oci-c1", counters={**NOW, **now})
    node.record("c1", groups=groups)
    samples = scraped(node)
    assert value(samples, "core_energy_joules_total", key="c1") == energy
    assert (
        value(samples, "use_unknown", key="c1", domain="mon_PERF_PKG_00", event="core_energy")
        == unknown
    )
    assert value(samples, "llc_occupancy_bytes") == occupancy


def test_after_a_wipe_the_counter_starts_again_from_0(node: NodeFiles) -> None:
    """What Prometheus adds up over all scrapes is never more than what was used:
    it adds what a counter starts from.
    """
    path = node.make("oci-c1", counters={ENERGY: "8"})
    samples = []
    for before, known, begin in (
        ("100", {}, "5"),
        ("Unavailable", {ENERGY: "100"}, "8"),
        ("Unavailable", {}, "50"),
    ):
        group = {
            "path": path,
            "ctrl_group": "/",
            "begin": {ENERGY: begin},
            "before": {ENERGY: before},
            "known": known,
        }
        node.record("c1", groups=[group])
        scrape = scraped(node)
        samples.append(
            (
                value(scrape, "core_energy_joules_total"),
                value(scrape, "use_unknown", event="core_energy"),
            )
        )
    assert samples == [(103, None), (0, 1), (None, 1)]


def test_each_event_has_a_metric_of_its_kind_and_unit(node: NodeFiles) -> None:
    every = {f"mon_PERF_PKG_00/{event}": "1" for event in EVENTS}
    path = node.make("oci-c1", counters=dict.fromkeys(every, "3"))
    node.record("c1", groups=[{"path": path, "ctrl_group": "/", "begin": every}])
    node.count_whole(dict.fromkeys(every, "7"))
    samples = scraped(node)
    for event in EVENTS.values():
        assert event.metric.endswith("_total") is not event.gauge
        assert re.search(rf"{event.unit}|uops", event.metric), "the unit is part of the name"
        assert value(samples, event.metric) == (3 if event.gauge else 2)
        assert value(samples, f"node_{event.metric}") == 4


def test_an_event_that_is_not_known_has_its_own_name(node: NodeFiles) -> None:
    path = node.make("oci-c1", counters={"mon_L3_00/stalls_memrd": "17", "mon_L3_00/new": "Error"})
    group = {
        "path": path,
        "ctrl_group": "/",
        "begin": {"mon_L3_00/stalls_memrd": "5", "mon_L3_00/new": "1"},
    }
    node.record("c1", groups=[group])
    node.count_whole({"mon_L3_00/stalls_memrd": "40"})
    samples = {
        name: number
        for (name, _), number in scraped(node).items()
        if "stalls" in name or "new" in name
    }
    assert samples == {
        "resctrl_mon_stalls_memrd_total": 12,
        "resctrl_mon_node_stalls_memrd_total": 23,
    }
    assert "# TYPE resctrl_mon_stalls_memrd_total counter" in text_of(node)


# --- Labels


@pytest.mark.parametrize(
    ("fields", "labels"),
    [
        ({"kind": "pod", "pod_namespace": "shop", "pod_name": "web-0"}, {"uid": "c1"}),
        # The empty ones stay: see prometheus._identify.
        ({"kind": "container"}, {"key": "c1", "container": "app"}),
        ({"kind": "sandbox"}, {"key": "c1"}),
        ({"pod_name": "stack", "name": "db"}, {"key": "c1", "container": "db"}),
        ({"kind": "sandbox", "pod_name": "stack"}, {"key": "c1"}),
        (
            {"pod_namespace": "shop", "pod_name": "web-0"},
            {"container_id": "c1", "container": "app"},
        ),
    ],
    ids=[
        "as of kube-state-metrics",
        "no pod",
        "no pod's sandbox",
        "in a pod of Podman's",
        "a pod of Podman's",
        "one container of a pod",
    ],
)
def test_a_key_has_labels(node: NodeFiles, fields: dict[str, str], labels: dict[str, str]) -> None:
    groups = [
        {**HERE, "path": node.make("oci-c1", path, NOW), "ctrl_group": path}
        for path in ("/", "gold")
    ]
    node.record("c1", groups=groups, members={"c1": node.alive(HERE["path"], name="app")}, **fields)
    pod = {
        "namespace": fields.get("pod_namespace", ""),
        "pod": fields.get("pod_name", ""),
        "container": "",
    }
    of_use = [
        dict(pairs)
        for name, pairs in scraped(node)
        if name == "resctrl_mon_core_energy_joules_total"
    ]
    expected = [
        {**pod, **labels, "ctrl_group": path, "domain": "mon_PERF_PKG_00"} for path in ("/", "gold")
    ]
    assert sorted(of_use, key=lambda labels: labels["ctrl_group"]) == expected


NAMES = ("namespace", "pod", "container")
POD = "0d174e60a699"


def labels_of(node: NodeFiles) -> dict[str, str]:
    """The labels of the only series of a counter."""
    (labels,) = [
        dict(labels)
        for name, labels in scraped(node)
        if name == "resctrl_mon_core_energy_joules_total"
    ]
    return {name: text for name, text in labels.items() if name not in ("ctrl_group", "domain")}


def test_a_container_keeps_its_series_when_its_key_has_no_member_any_more(node: NodeFiles) -> None:
    pod = {"pod_namespace": "shop", "pod_name": "web-0", "name": "app"}
    path = node.make("oci-c1", counters=NOW)
    node.record("c1", members={"c1": node.alive(path, name="app")}, groups=[HERE], **pod)
    before = labels_of(node)
    node.completed("c1", **pod)
    assert (
        labels_of(node)
        == before
        == {**dict(zip(NAMES, ("shop", "web-0", "app"))), "container_id": "c1"}
    )


def test_a_key_that_got_another_name_keeps_its_series_and_has_an_info(node: NodeFiles) -> None:
    state = node.live("c1", pod_name=POD, name="app")
    expected = {"namespace": "", "pod": POD, "container": "app", "key": "c1"}
    assert labels_of(node) == expected
    labelled = life_turns.keep_metric_labels(state, replace(state, pod_name="keep"))
    for again in (
        state,
        labelled,
        life_turns.keep_metric_labels(labelled, replace(labelled, pod_name="kept", name="new")),
    ):
        node.record(**again.model_dump())
        assert labels_of(node) == expected
        infos = {series for series in scraped(node) if series[0] == "resctrl_mon_key_info"}
        shown = {**expected, "name": f"{again.pod_name}/{again.name}"}
        assert infos == {("resctrl_mon_key_info", frozenset(shown.items()))}


def test_a_job_has_an_info_with_its_labels(node: NodeFiles) -> None:
    """They are in no other series: a counter stays one series whatever a later run is labelled."""
    text = 'C:\\x "J\u00f6rg"\n'
    node.live("nightly", kind="job", job_labels={"user": "alice", "name": text})
    node.live("plain", kind="job")
    none = dict.fromkeys(NAMES, "")
    labelled = {
        **none,
        "key": "nightly",
        "name": "nightly",
        "label_user": "alice",
        "label_name": printable(text),
    }
    plain = {**none, "key": "plain", "name": "plain"}
    infos = {labels for name, labels in scraped(node) if name == "resctrl_mon_key_info"}
    assert infos == {frozenset(labelled.items()), frozenset(plain.items())}
    assert text_of(node).count("label_user=") == 1


@pytest.mark.parametrize(
    ("fields", "is_exported"),
    [({}, True), ({"recovering": True}, False), ({"recovering": True, "pod_name": POD}, True)],
)
def test_a_key_whose_names_reconcile_will_look_for_is_not_exported_until_then(
    node: NodeFiles, fields: dict[str, Any], is_exported: bool
) -> None:
    """Its series would have other labels afterwards, and Prometheus two series."""
    node.live("c1", **fields)
    assert bool(values(scraped(node), "core_energy_joules_total")) is is_exported


# --- How the hook is


def test_a_node_has_health_metrics(node: NodeFiles) -> None:
    path = node.live("live").groups[0].path
    node.completed("done")
    node.record("back", recovering=True, members={"x": node.dead(path)})
    node.record("between", lingering_since=1.0, lingering_until=2.0)
    node.record("lost", groups=[{"path": str(node.path("oci-lost")), "ctrl_group": "/"}])
    node.record("taken", members={"y": node.alive(path, taken_from="theirs")})
    node.write("groups", "torn.json", "{")
    node.make("oci-lone")
    node.make("theirs")
    node.make("theirs", "gold")
    for container in ("c7", "c8"):
        node.fail(container, Reason.NO_RMIDS)
    node.fail("c6", 'new"\n')
    node.fail("c9", Reason.USAGE, monitored=True)
    node.write("runs", "createRuntime-ok", "....")
    samples = scraped(node)
    names = ("live", "taken", "lingering", "completed", "recovering", "unreadable")
    assert [value(samples, "keys", state=state) for state in names] == [3, 0, 1, 1, 1, 1]
    assert [value(samples, "members", state=state) for state in ("alive", "dead")] == [2, 1]
    assert [value(samples, "rmids_in_use", owner=owner) for owner in ("ours", "others")] == [2, 4]
    unmonitored = {
        reason: value(samples, "unmonitored_containers", reason=reason)
        for reason in (*REASONS, 'new"\\n')
    }
    assert unmonitored == {**dict.fromkeys(REASONS, 0), "no_rmids": 2, 'new"\\n': 1}
    assert value(samples, "hook_runs_total", stage="createRuntime", result="ok") == 4
    assert value(samples, "build_info", version=__version__) == 1
    single = {
        "members_taken_from_others": 1,
        "rmids": 8,
        "orphan_groups": 1,
        "mounted": 1,
        "node_supported": 1,
    }
    assert {name: value(samples, name) for name in single} == single


def test_containers_that_another_tool_has_taken_are_counted_by_key_and_by_its_group(
    node: NodeFiles,
) -> None:
    """What is known of their use goes on as it is, and is marked."""
    node.live("c1", kind="pod", pod_namespace="shop", pod_name="web")
    before = scraped(node)
    assert not [
        name for name, _ in before if "taken_containers" in name or name.endswith("use_unknown")
    ]
    theirs = node.take('th"eirs')
    samples = scraped(node)
    assert (value(samples, "keys", state="taken"), value(samples, "keys", state="live")) == (1, 0)
    labels = {"namespace": "shop", "pod": "web", "container": "", "uid": "c1"}
    assert value(samples, "taken_containers", **labels, group=theirs) == 1
    assert (
        value(
            samples,
            "use_unknown",
            **labels,
            ctrl_group="/",
            domain="mon_PERF_PKG_00",
            event="core_energy",
        )
        == 1
    )
    energy = "core_energy_joules_total"
    place = {**labels, "ctrl_group": "/", "domain": "mon_PERF_PKG_00"}
    assert value(samples, energy, **place) == value(before, energy, **place) == 3.25


RUN: dict[str, Any] = {
    "started_at": 1e9,
    "ended_at": 1e9 - 60,
    "seconds": 0.25,
    "failed": 1,
    "left": 2,
    "late_cpu": 1.5,
}
RUN |= {"outside": {"c1": 17, "c2": 1}, "outside_total": 20}
WATCH = {
    "started_at": 1e9,
    "alive_at": 1e9 + 60,
    "moved": 7,
    "failed": 2,
    "overflows": 1,
    "followed": 3,
}
WATCHED = {
    "alive_timestamp_seconds": 1e9 + 60,
    "moved_tasks_total": 7,
    "failures_total": 2,
    "overflows_total": 1,
}
WATCHED["followed_containers_total"] = 3
NO_END = {"reconcile_end_timestamp_seconds": None, "reconcile_duration_seconds": None}
NO_WATCH = dict.fromkeys(
    ("watch_start_timestamp_seconds", "watch_moved_tasks_total", "watch_failures_total")
)


@pytest.mark.parametrize(
    ("record", "content", "expected"),
    [
        (
            "reconcile",
            RUN,
            {"reconcile_end_timestamp_seconds": 1e9 - 60, "reconcile_duration_seconds": 0.25},
        ),
        (
            "reconcile",
            RUN,
            {"late_cpu_seconds_total": 1.5, "outside_threads": 20, "elsewhere_threads": None},
        ),
        ("reconcile", {"started_at": 1e9}, {"reconcile_start_timestamp_seconds": 1e9, **NO_END}),
        ("watch", WATCH, {f"watch_{name}": number for name, number in WATCHED.items()}),
        ("watch", {"moved": -1}, NO_WATCH),
        ("none", {}, {**NO_WATCH, **NO_END, "unhooked_containers": None}),
    ],
)
def test_reconcile_and_watch_are_seen(
    node: NodeFiles, record: str, content: dict[str, Any], expected: dict[str, float | None]
) -> None:
    node.write("", f"{record}.json", json.dumps({"version": 1, **content}))
    samples = scraped(node)
    assert {name: value(samples, name) for name in expected} == expected


def test_what_reconcile_did_is_counted_by_verb_and_by_group(node: NodeFiles) -> None:
    node.reconciled(
        **RUN, actions={"adopt": 7}, failures={"evict": 3}, elsewhere={"/r/gold": 2, "/r/x": 1}
    )
    samples = scraped(node)
    assert [value(samples, "elsewhere_threads", group=path) for path in ("/r/gold", "/r/x")] == [
        2,
        1,
    ]
    assert [value(samples, "reconcile_undone", kind=kind) for kind in ("failed", "left")] == [1, 2]
    assert [
        value(samples, "reconcile_actions_total", verb=verb) for verb in ("adopt", "evict")
    ] == [7, 0]
    assert [
        value(samples, "reconcile_failures_total", verb=verb) for verb in ("adopt", "evict")
    ] == [0, 3]


@pytest.mark.parametrize(("directory", "is_supported"), [(None, 0), ("", 1), ("info", 0)])
def test_a_machine_without_a_mount_has_health_metrics_and_whether_it_could_monitor(
    node: NodeFiles, directory: str | None, is_supported: int
) -> None:
    """Without resctrl; not mounted yet, which the empty directory shows;
    and mounted where nothing can monitor.
    """
    shutil.rmtree(node.root)
    if directory is not None:
        (node.root / directory).mkdir(parents=True)
    samples = scraped(node)
    assert (value(samples, "mounted"), value(samples, "node_supported")) == (0, is_supported)
    assert {value(samples, "unmonitored_containers", reason=reason) for reason in REASONS} == {0}
    assert not [
        name
        for name, _ in samples
        if re.search("rmids|orphan|hook_runs|node_[^s]", name) and "unmon" not in name
    ]


# --- The format


def test_every_metric_has_one_header_followed_by_its_samples() -> None:
    lines = prometheus.format_text(FAMILIES.values()).splitlines()
    types: dict[str, str] = {}
    for line, following in zip(lines, [*lines[1:], ""]):
        if line.startswith("# HELP "):
            name = line.split()[2]
            assert name not in types
            assert following.split()[:3] == ["#", "TYPE", name]
            types[name] = following.split()[3]
        elif not line.startswith("#"):
            assert re.split(r"[ {]", line)[0] == list(types)[-1]
    assert types.keys() == FAMILIES.keys()
    assert types.keys() > OF_EVENTS
    assert all((kind == "counter") is name.endswith("_total") for name, kind in types.items())


def test_json_has_the_same_numbers() -> None:
    samples: Samples = {}
    for metric in json.loads(json.dumps(prometheus.to_json(FAMILIES.values())))["metrics"]:
        assert metric["type"] in ("counter", "gauge")
        samples |= {
            (metric["name"], frozenset(one["labels"].items())): one["value"]
            for one in metric["samples"]
        }
    assert samples == parsed(prometheus.format_text(FAMILIES.values()))


HOSTILE = st.text(max_size=30) | st.sampled_from(
    [
        '"} 1\nresctrl_mon_keys 9',
        "\\",
        '\\"',
        "\x1b[2J",
        "a\u2028b\x85c",
        "\ud800",
        "{}",
        "'",
        "# HELP",
        "x" * 2000,
    ]
)


@settings(max_examples=150)
@given(namespace=HOSTILE, pod=HOSTILE, domain=HOSTILE, reason=HOSTILE)
@example(namespace='"', pod="\\n", domain="\\\\", reason="\r\n")
@example(namespace="n", pod='a"b\\c{d}=e,f # EOF', domain="d", reason="io")
def test_text_of_a_tenant_stays_inside_a_label_value(
    namespace: str, pod: str, domain: str, reason: str
) -> None:
    def make_with(*words: str) -> list[prometheus.Family]:
        record = MonGroup(
            path="/r/mon_groups/x", ctrl_group="/", begin={f"{words[2]}/core_energy": "1"}
        )
        group = Group(record, exists=False, now={f"{words[2]}/core_energy": "2"})
        key = SeenKey(
            KeyState(key="c1", kind="container", pod_namespace=words[0], pod_name=words[1]),
            [group],
            {},
        )
        (failure,) = EVERYTHING.failures
        fields = {
            **vars(EVERYTHING),
            "keys": [key],
            "failures": [failure.model_copy(update={"reason": words[3]})],
        }
        return make_families(make_inventory(**fields))

    families = make_with(namespace, pod, domain, reason)
    text = prometheus.format_text(families)
    assert text.isascii()
    assert all(line.isprintable() for line in text.splitlines())
    plain = prometheus.format_text(make_with("n", "p", "d", "new"))
    info = 0 if namespace else 3  # the lines of key_info
    assert len(text.splitlines()) == len(plain.splitlines()) - (reason in REASONS) + info
    samples = parsed(text)
    assert read_open(families) == samples
    ((_, labels),) = [
        series for series in samples if series[0] == "resctrl_mon_core_energy_joules_total"
    ]
    expected = {"namespace", "pod", "container", "ctrl_group", "domain"}
    assert {name for name, _ in labels} - {"container_id", "key"} == expected
    if pod.isascii() and pod.isprintable() and len(pod) <= 1000:
        assert ("pod", pod) in labels


# --- What was exported before


@pytest.mark.parametrize(("now", "held"), [(90, 100), (None, 100), (110, 110), (3, 3)])
def test_a_difference_is_held_when_it_dips_but_not_when_it_starts_again(
    now: int | None, held: int
) -> None:
    use = prometheus.Use(None, None if now is None else now * MILLION)
    assert (use.hold(100), use.hold(None)) == (held, now)


PROM = Path("/var/lib/metrics/x.prom")


@pytest.fixture
def textfile(node: NodeFiles) -> list[str]:
    """The words that write PROM."""
    PROM.parent.mkdir(parents=True)
    return ["metrics", *node.places, f"--textfile={PROM}"]


@pytest.mark.parametrize(
    ("now", "before", "age", "held"),
    [
        ("105.5", "0", 100.0, 100.0),
        ("95", "0", 100.0, 90.0),
        ("Error", "0", 100.0, 90.0),
        ("4", "0", 100.0, 90.0),
        ("95", "0", 1.0, 89.5),
        ("25.5", "Unavailable", 100.0, 20.0),
        ("Error", "Unavailable", 100.0, 90.0),
    ],
    ids=["more", "dips", "no number", "ran backwards", "another key", "wiped", "gone"],
)
def test_a_counter_in_the_textfile_does_not_dip(
    node: NodeFiles,
    textfile: list[str],
    monkeypatch: pytest.MonkeyPatch,
    now: str,
    before: str,
    age: float,
    held: float,
) -> None:
    """But it starts again with another directory that is counted alone,
    and with another key of that name.
    """
    monkeypatch.setattr(system, "boottime", lambda: 1000.0)
    path = node.make("oci-c1", counters={ENERGY: "95.5"})
    group = {"path": path, "ctrl_group": "/", "begin": {ENERGY: "5.5"}, "before": {ENERGY: "0"}}
    node.record("c1", groups=[group], created_boottime=900.0)
    assert cli.main(textfile) == 0
    assert value(parsed(PROM.read_text()), "core_energy_joules_total") == 90
    monkeypatch.setattr(rare, "age", lambda _path: 10.0)
    node.count("oci-c1", {ENERGY: now})
    node.record("c1", groups=[{**group, "before": {ENERGY: before}}], created_boottime=1000.0 - age)
    assert cli.main(textfile) == 0
    assert value(parsed(PROM.read_text()), "core_energy_joules_total") == held


@pytest.mark.parametrize(
    ("line", "held", "kept"),
    [
        ("{} 4", 4, 4),
        ("{} 4 1700000000123", 4, 4),
        ("{}  4.0e+0\t-1 ", 4, 4),
        ('{} 4 # {{trace_id="a b}} 9"}} 9 1700000000.5', 4, 4),
        ("{} 6.5", 6.5, 6.5),
        ("{} 6.6", 6.6, 6.6),  # a counter that dips, also by half
        ("{} 9.2e18 1700000000123", 3.25, 9.2e18),
        ("{} 1e300", 3.25, None),
        ("{} NaN", 3.25, None),
        ("{} +Inf", 3.25, None),
        ("{} -5", 3.25, None),
        ("{}", 3.25, None),
        ("# {} 4", 3.25, None),
    ],
)
def test_a_former_sample_is_held_unless_the_counter_has_never_reached_it(
    node: NodeFiles, textfile: list[str], line: str, held: float, kept: float | None
) -> None:
    """`held`: with a use of 3.25. `kept`: if the counter cannot be read."""
    node.live("c1", pod_name='a} 7 "b', created_boottime=0.0)
    assert cli.main(textfile) == 0
    (series,) = re.findall(
        r"^(\w+core_energy_joules_total\{.*\}) 3.25$", PROM.read_text(), re.MULTILINE
    )
    for now, expected in (NOW[ENERGY], held), ("Error", kept):
        PROM.write_text(line.format(series) + "\n")
        node.count("oci-c1", {ENERGY: now})
        assert cli.main(textfile) == 0
        assert value(parsed(PROM.read_text()), "core_energy_joules_total") == expected


@pytest.mark.parametrize(
    "content", [b"\xff\x00", b"resctrl_mon_core_energy_joules_total x\n\n 1", b"# HELP"]
)
def test_a_textfile_is_replaced_whatever_it_holds(
    node: NodeFiles, textfile: list[str], fs: FakeFilesystem, content: bytes
) -> None:
    node.live("c1", created_boottime=0.0)
    PROM.write_bytes(content)
    former = PROM.stat().st_ino
    os.umask(0o077)
    assert cli.main(textfile) == 0
    assert value(parsed(PROM.read_text()), "core_energy_joules_total") == 3.25
    assert (os.listdir(PROM.parent), fs.get_object(PROM).st_mode & 0o777) == (["x.prom"], 0o644)
    assert PROM.stat().st_ino != former, "a reader has the whole of the one or the other"


@pytest.mark.parametrize("call", ["rename", "fchmod", "fsync"])
@pytest.mark.usefixtures("textfile")
def test_a_failed_write_keeps_the_old_textfile(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    PROM.write_text("old")
    there: list[str] = []

    def fail(*_arguments: object) -> None:
        there.extend(os.listdir(PROM.parent))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(HookError) as caught:
        prometheus.write_textfile(str(PROM), "new\n")
    words = explain(caught.value)
    assert (words.problem, words.hint) == (
        "cannot write the metrics",
        f"the file system of {PROM} is full, or out of inodes",
    )
    assert (PROM.read_text(), os.listdir(PROM.parent)) == ("old", ["x.prom"])
    assert [name for name in there if name.endswith(".prom")] == ["x.prom"], (
        "node_exporter reads what ends so"
    )
    assert len(there) == 2


# --- The command


@pytest.mark.parametrize("words", ["--listen=1; --json", "--listen=x", "--created"])
def test_wrong_arguments_are_refused(node: NodeFiles, words: str) -> None:
    assert cli.main(["metrics", *node.places, *words.split("; ")]) == 2


# --- OpenMetrics


def list_open(families: list[prometheus.Family]) -> list[Any]:
    """What the strict parser of OpenMetrics reads."""
    text = prometheus.format_text(families, is_open=True)
    return [*open_metrics.text_string_to_metric_families(text)]  # type: ignore[no-untyped-call]


def read_open(families: list[prometheus.Family]) -> Samples:
    samples = (sample for family in list_open(families) for sample in family.samples)
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


CREATED_AT = "2026-01-02T03:04:05Z"


@pytest.mark.parametrize(
    ("before", "created_at", "has_created", "created"),
    [
        ({}, CREATED_AT, True, [1767323045.0]),
        # Its counter goes on from what it used before.
        ({ENERGY: "100"}, CREATED_AT, True, [1767323045.0]),
        # It starts again, amid the life of its key.
        ({ENERGY: "Unavailable"}, CREATED_AT, True, []),
        ({}, "", True, []),
        ({}, "yesterday", True, []),
        ({}, CREATED_AT, False, []),
    ],
    ids=[
        "first",
        "another incarnation",
        "a part is unknown",
        "no time",
        "damaged",
        "not asked for",
    ],
)
def test_a_counter_of_a_key_is_created_with_it(
    node: NodeFiles,
    before: dict[str, str],
    created_at: str,
    has_created: bool,
    created: list[float],
) -> None:
    path = node.make("oci-c1", counters=NOW)
    group = {"path": path, "ctrl_group": "/", "begin": BEGIN, "before": before}
    node.record("c1", created_at=created_at, groups=[group])
    families = make_families(
        take_snapshot(node.options, has_uncharged=True), has_created=has_created
    )
    samples = read_open(families)
    assert values(samples, "core_energy_joules_created") == created
    assert not [
        name
        for name, _ in samples
        if name.endswith("_created") and re.search("occupancy|node|runs", name)
    ]
    others = {series for series in samples if not series[0].endswith("_created")}
    assert parsed(prometheus.format_text(families)).keys() == others
