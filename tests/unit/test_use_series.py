# SPDX-License-Identifier: Apache-2.0
"""The samples of use: whose they are, which there are, and what Prometheus makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hook.base.counters import MILLION
from hook.observe import prometheus
from hook.observe.prometheus import Choice, Former, parse_former, sum_series
from hook.observe.snapshot import take_snapshot
from tests.unit.nodes import BEGIN, NOW, NodeFiles, alive

ENERGY = "core_energy"
UID = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"


@pytest.fixture
def node(tmp_path: Path) -> NodeFiles:
    return NodeFiles(tmp_path)


def use(node: NodeFiles, event: str = ENERGY, **choice: Any) -> dict[tuple[tuple[str, str], ...], int]:  # noqa: ANN401
    used, _ = sum_series(take_snapshot(node.options).keys, Choice(**choice), Former())
    return used.get(event, {})


def labels_of(node: NodeFiles) -> dict[str, str]:
    (labels,) = use(node)
    return {name: text for name, text in labels if name not in ("ctrl_group", "domain")}


# --- Labels


def test_a_pod_has_the_labels_of_kube_state_metrics(node: NodeFiles) -> None:
    node.live(UID, kind="pod", pod_namespace="shop", pod_name="web-0")
    assert labels_of(node) == {"namespace": "shop", "pod": "web-0", "container": "", "uid": UID}


@pytest.mark.parametrize("kind", ["container", "sandbox"])
def test_a_key_without_a_pod_has_the_label_key(node: NodeFiles, kind: str) -> None:
    """The empty ones stay: else Prometheus would give the series those of the exporter's own pod."""
    node.live("c1", kind=kind)
    assert labels_of(node) == {"namespace": "", "pod": "", "container": "", "key": "c1"}


def test_a_key_that_is_one_container_of_a_pod_names_it(node: NodeFiles) -> None:
    path = node.live("c1").groups[0].path
    members = {"c1": alive(path, name="app")}
    group = {"path": path, "ctrl_group": "/", "begin": BEGIN}
    node.record("c1", pod_namespace="shop", pod_name="web-0", members=members, groups=[group])
    expected = {"namespace": "shop", "pod": "web-0", "container": "app", "container_id": "c1"}
    assert labels_of(node) == expected


def test_a_container_keeps_its_series_when_its_key_has_no_member_any_more(node: NodeFiles) -> None:
    """The records name members only."""
    name = 'a"p\\p'
    pod = {"pod_namespace": "shop", "pod_name": "web-0"}
    path = node.live("c1").groups[0].path
    group = {"path": path, "ctrl_group": "/", "begin": BEGIN}
    node.record("c1", members={"c1": alive(path, name=name)}, groups=[group], **pod)
    text = prometheus.format_text(prometheus.make_families(take_snapshot(node.options)))
    node.completed("c1", **pod)
    used, _ = sum_series(take_snapshot(node.options).keys, Choice(), parse_former(text, 1.0))
    assert [dict(labels)["container"] for labels in used[ENERGY]] == [name]
    assert labels_of(node)["container"] == ""


# --- Events


def test_an_event_that_is_not_known_has_its_own_name(node: NodeFiles) -> None:
    path = node.make("oci-c1", counters={"mon_L3_00/stalls_memrd": "17", "mon_L3_00/new": "Error"})
    group = {"path": path, "ctrl_group": "/", "begin": {"mon_L3_00/stalls_memrd": "5", "mon_L3_00/new": "1"}}
    node.record("c1", groups=[group])
    node.count_whole({"mon_L3_00/stalls_memrd": "40"})
    families = prometheus.make_families(take_snapshot(node.options, has_uncharged=True))
    found = {it.name: (it.kind, [*it.samples.values()]) for it in families if "stalls" in it.name or "new" in it.name}
    assert found == {
        "resctrl_mon_stalls_memrd_total": ("counter", [12 * MILLION]),
        "resctrl_mon_node_stalls_memrd_total": ("counter", [23 * MILLION]),
    }


def test_events_can_be_chosen(node: NodeFiles) -> None:
    node.live("c1")
    node.count("oci-c1", {"mon_PERF_PKG_00/core_energy": "Error", "mon_L3_00/mbm_total_bytes": "Error"})
    node.count_whole(NOW)
    choice = Choice(events=frozenset({"llc_occupancy", ENERGY}))
    families = prometheus.make_families(take_snapshot(node.options, has_uncharged=True), None, choice)
    samples = {it.name: it.samples for it in families}
    of_use = {name for name in samples if "bytes" in name or "joules" in name}
    expected = {"llc_occupancy_bytes", "node_llc_occupancy_bytes", "node_core_energy_joules_total"}
    assert of_use == {"resctrl_mon_" + name for name in expected}
    assert [dict(labels)["event"] for labels in samples["resctrl_mon_use_unknown"]] == [ENERGY]


# --- Domains


def two_domains(node: NodeFiles, before: dict[str, str], now: tuple[str, str] = ("20", "300")) -> None:
    counts = {f"mon_PERF_PKG_0{at}/core_energy": text for at, text in enumerate(now)}
    path = str(node.path("oci-c1"))
    if not node.path("oci-c1").exists():
        node.make("oci-c1")
    node.count("oci-c1", counts)
    begin = dict.fromkeys(counts, "10")
    node.record("c1", groups=[{"path": path, "ctrl_group": "/", "begin": begin, "before": before}])


def test_domains_can_be_summed(node: NodeFiles) -> None:
    two_domains(node, {})
    assert [*use(node).values()] == [10 * MILLION, 290 * MILLION]
    ((labels, value),) = use(node, sum_domains=True).items()
    assert (value, "domain" in dict(labels)) == (300 * MILLION, False)


def test_a_sum_starts_again_from_0_if_one_of_its_domains_does(node: NodeFiles) -> None:
    """Prometheus adds all of a smaller sample: what the other domains had counted would be there twice."""
    before = {"mon_PERF_PKG_00/core_energy": "Unavailable", "mon_PERF_PKG_01/core_energy": "1000"}
    two_domains(node, before, ("10", "10"))
    assert [*use(node, sum_domains=True).values()] == [0]
    assert [*use(node).values()] == [0, 1000 * MILLION]


def test_a_sum_with_an_unknown_part_has_no_sample(node: NodeFiles) -> None:
    two_domains(node, {}, ("Error", "300"))
    assert use(node, sum_domains=True) == {}
    assert [*use(node).values()] == [290 * MILLION]
