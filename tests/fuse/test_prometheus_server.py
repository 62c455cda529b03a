# SPDX-License-Identifier: Apache-2.0
"""What an operator sees: every expression of the dashboard, evaluated by a real Prometheus over ten minutes of churn,
against what is true, with the labels of a target that Prometheus Operator attaches.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hook import __version__
from tests.kernel.inside import REAL_ROOT
from tests.resctrlfs import mounted
from tests.support import prometheus, ten_minutes, waiting
from tests.support.hook import PYZ
from tests.support.prometheus import TARGET, Labels, Prometheus, attach
from tests.support.ten_minutes import (
    BATCH_WATTS,
    BYTES,
    CONTAINER_WATTS,
    GOLD_WATTS,
    OCCUPANCY,
    ROOT_WATTS,
    STEP,
    STEPS,
    WATTS,
    TenMinutes,
)

pytestmark = pytest.mark.slow

ROOT = PYZ.parents[1]
PANELS: list[dict[str, Any]] = json.loads((ROOT / "packaging/grafana/resctrl-mon-hook.json").read_text())["panels"]
VARIABLES: dict[str, str] = {
    "job": TARGET["job"],
    "instance": ".*",
    "namespace": ".*",
    "__rate_interval": "60s",
    "__range": "600s",
}
EXPRESSIONS: dict[tuple[str, str], str] = {
    (panel["title"], target["refId"]): target["expr"] for panel in PANELS for target in panel.get("targets", [])
}
LOOKBACK = f"{STEP - 1}s"
"""A series that is not scraped any more is over at once, as if its end had been marked."""

PODS = {**WATTS, ("batch", f"batch-{STEPS - 4}"): BATCH_WATTS}
COMPLETED = {("batch", f"batch-{step}"): 0 for step in range(8, STEPS - 4, 4)}
"""Still on record: reconcile has forgotten those before them."""
ALL = sum(PODS.values()) + CONTAINER_WATTS
IN_NO_POD: dict[str, float] = {"/": ROOT_WATTS, "gold": GOLD_WATTS}


@pytest.fixture(scope="module", autouse=True)
def _ready() -> None:
    prometheus.provide()
    if (reason := prometheus.missing()) is not None:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TenMinutes]:
    if REAL_ROOT is not None:
        pytest.skip("needs the model, and this resctrl is real")
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("needs root and /dev/fuse")
    directory = tmp_path_factory.mktemp("ten-minutes")
    with ExitStack() as stack:
        model = stack.enter_context(mounted(directory, rmids=ten_minutes.RMIDS, decay_ms=0, perf=False))
        told = TenMinutes(directory, model, stack)
        told.live()
        yield told


def target_of(node: str) -> Labels:
    return {**TARGET, "instance": f"10.0.0.{ord(node) - ord('a') + 1}:9753"}


@pytest.fixture(scope="module")
def server(story: TenMinutes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    directory = tmp_path_factory.mktemp("prometheus")
    data = prometheus.backfill(directory, story.samples(lambda labels, node: attach(labels, target_of(node))))
    with prometheus.serving(directory, data, LOOKBACK) as served:
        yield served


def fill_in(expression: str, **variables: str) -> str:
    """An expression of the dashboard as Grafana sends it."""
    values = {**VARIABLES, **variables}
    return re.sub(r"\$([a-z_]\w*)", lambda found: values[found[1]], expression)


def of(label: str, values: dict[str, float]) -> dict[frozenset[tuple[str, str]], float]:
    return {frozenset({(label, name)}): value for name, value in values.items()}


def of_pods(factor: float, pods: dict[tuple[str, str], int] = PODS) -> dict[frozenset[tuple[str, str]], float]:
    return {frozenset({("namespace", ns), ("pod", pod)}): it * factor for (ns, pod), it in pods.items()}


def of_node(value: float, node: str = "a", **labels: str) -> dict[frozenset[tuple[str, str]], float]:
    return {frozenset({("instance", target_of(node)["instance"]), *labels.items()}): value}


TRUTH: dict[tuple[str, str], dict[frozenset[tuple[str, str]], float]] = {
    ("Power by namespace (rate)", "A"): of("namespace", {"shop": sum(WATTS.values()), "batch": BATCH_WATTS}),
    ("Power by pod (rate)", "A"): of_pods(1, {**PODS, **COMPLETED}),
    ("What is charged to no pod (rate)", "A"): of("ctrl_group", IN_NO_POD),
    ("What is charged to no pod (rate)", "B"): {frozenset(): ALL},
    ("Energy that is charged (rate)", "A"): of_node(ALL / (ALL + sum(IN_NO_POD.values()))),
    ("Nodes that lack counters", "A"): {frozenset(): 1},
    ("Nodes that lack counters", "B"): {frozenset(): 1},
    ("Nodes that lack counters", "C"): {frozenset(): 1},
    ("Power of containers without a pod (rate)", "A"): of_node(CONTAINER_WATTS, key="c4"),
    ("Memory traffic by pod (rate)", "A"): of_pods(BYTES, {**PODS, **COMPLETED}),
    ("Local memory traffic by pod (rate)", "A"): of_pods(0.4 * BYTES, {**PODS, **COMPLETED}),
    ("Memory traffic that is charged to no pod (rate)", "A"): of(
        "ctrl_group", {name: it * BYTES for name, it in IN_NO_POD.items()}
    ),
    ("Memory traffic that is charged to no pod (rate)", "B"): of(
        "ctrl_group", {name: it * 0.4 * BYTES for name, it in IN_NO_POD.items()}
    ),
    ("Last level cache by pod", "A"): {
        **of_pods(0),
        **of_pods(OCCUPANCY, dict.fromkeys(set(PODS) - {("shop", "lost")}, 1)),
    },
    ("Last level cache of tasks without a group", "A"): of("ctrl_group", {"/": 0, "gold": 0}),
    ("RMIDs in use", "A"): {
        **of_node(5, owner="ours"),
        **of_node(3, owner="others"),
        **of_node(0, "c", owner="ours"),
        **of_node(1, "c", owner="others"),
    },
    ("RMIDs in use", "B"): of_node(8),
    ("RMIDs in use of limit", "A"): of_node(1),
    ("Orphans", "A"): {**of_node(0), **of_node(0, "c")},
    ("Unmonitored containers by reason", "A"): of("reason", {"no_rmids": 1}),
    ("Unmonitored containers by reason", "B"): {frozenset(): 2},
    ("Unmonitored containers by reason", "C"): {frozenset(): 1},
    ("Unmonitored containers by reason", "D"): {frozenset(): 0},
    ("Unmonitored containers by reason", "E"): {frozenset(): 0},
    ("Keys by state", "A"): of(
        "state", {"live": 5, "taken": 0, "completed": len(COMPLETED), "lingering": 0, "recovering": 0, "unreadable": 0}
    ),
    ("Uses that are unknown", "A"): {frozenset(): 8},
    ("Nodes without resctrl", "A"): {frozenset(): 1},
    ("Nodes without resctrl", "B"): {frozenset(): 0},
    ("Members", "A"): of("state", {"alive": 5, "dead": 0}),
    ("Members", "B"): {frozenset(): 0},
    ("Versions", "A"): of("version", {__version__: 3}),
    ("Since the last reconcile", "A"): {frozenset(): (STEPS - 16) * STEP},
    ("Since the last reconcile", "B"): {frozenset(): (STEPS - 16) * STEP},
    ("What watch did (rate)", "A"): {frozenset(): 0},
    ("Since watch last wrote its record", "A"): {frozenset(): (STEPS - ten_minutes.KILLED) * STEP},
    ("Since watch last wrote its record", "B"): {frozenset(): STEPS * STEP},
    ("CPU time before tasks were in their groups (rate)", "A"): {**of_node(0), **of_node(ten_minutes.LATE / STEP, "c")},
}
"""At the end of the ten minutes. What is not here has a test of its own."""


@pytest.mark.parametrize("asked", TRUTH, ids=" ".join)
def test_a_panel_shows_what_is_true(server: Prometheus, story: TenMinutes, asked: tuple[str, str]) -> None:
    found = server.ask(fill_in(EXPRESSIONS[asked]), story.at(STEPS))
    assert found.keys() == TRUTH[asked].keys()
    assert found == {series: pytest.approx(value, rel=1e-9, abs=1e-9) for series, value in TRUTH[asked].items()}


def test_power_is_true_at_each_moment(server: Prometheus, story: TenMinutes) -> None:
    """Whatever comes and goes: no spike, and no gap."""
    start, end = story.at(5), story.at(STEPS)
    power = server.ask_range(fill_in(EXPRESSIONS["Power by pod (rate)", "A"]), start, end, STEP)
    for namespace, pod in (("shop", "web"), ("shop", "db")):
        values = power[frozenset({("namespace", namespace), ("pod", pod)})]
        assert len(values) == STEPS - 4
        assert [*values.values()] == pytest.approx([WATTS[namespace, pod]] * (STEPS - 4))
    batch = server.ask_range(fill_in(EXPRESSIONS["Power by namespace (rate)", "A"]), start, end, STEP)
    assert max(batch[frozenset({("namespace", "batch")})].values()) <= 2 * BATCH_WATTS
    nobody = server.ask_range(fill_in(EXPRESSIONS["What is charged to no pod (rate)", "A"]), start, end, STEP)
    within = 4 if prometheus.version() < (3,) else 3  # from 3.0 on a range lacks a sample at its very beginning
    for at, value in nobody[frozenset({("ctrl_group", "/")})].items():
        step = (at - story.at(0)) // STEP
        assert value == pytest.approx(sum(story.nobody[step - within : step]) / within), step
    assert [*nobody[frozenset({("ctrl_group", "gold")})].values()] == pytest.approx([GOLD_WATTS] * (STEPS - 4))


def test_what_watch_did_is_true_until_it_is_killed(server: Prometheus, story: TenMinutes) -> None:
    for ref, each in (("A", ten_minutes.MOVED), ("B", 1), ("C", 1)):
        found = server.ask(fill_in(EXPRESSIONS["What watch did (rate)", ref]), story.at(ten_minutes.KILLED))
        assert found == {frozenset(): pytest.approx(each / STEP)}


def test_the_energy_of_the_whole_time_is_what_was_used(server: Prometheus, story: TenMinutes) -> None:
    """To the joule, but for the pod whose group was made again: of that one `increase` makes an estimate."""
    found = server.ask(fill_in(EXPRESSIONS["Energy by pod", "A"], __range="601s"), story.at(STEPS))
    names = {(dict(series)["namespace"], dict(series)["pod"]): value for series, value in found.items()}
    assert names.pop(("shop", "lost")) == pytest.approx(story.joules["shop", "lost"], rel=0.4)
    assert names == {pod: pytest.approx(story.joules[pod]) for pod in story.joules if pod[1] not in ("", "lost")}
    by_namespace = server.ask(fill_in(EXPRESSIONS["Energy by namespace", "A"], __range="601s"), story.at(STEPS))
    batch = sum(value for (namespace, _), value in names.items() if namespace == "batch")
    assert by_namespace[frozenset({("namespace", "batch")})] == pytest.approx(batch)
    alone = server.ask(fill_in(EXPRESSIONS["Energy of containers without a pod", "A"], __range="601s"), story.at(STEPS))
    assert alone == pytest.approx(of_node(CONTAINER_WATTS * STEP * STEPS, key="c4"))


def test_what_is_on_record_adds_up_to_all_that_was_used(server: Prometheus, story: TenMinutes) -> None:
    """The last value of each series that was ever scraped: nothing was used twice, nothing is missing."""
    last = "last_over_time(resctrl_mon_core_energy_joules_total[601s])"
    total = server.ask(f"sum({last})", story.at(STEPS))[frozenset()]
    lost = story.joules["shop", "lost"]
    kept = [joules for (_, pod), joules in story.joules.items() if pod != "lost"]
    after = WATTS["shop", "lost"] * STEP * (STEPS - ten_minutes.REMADE)
    assert total == pytest.approx(sum(kept) + after)
    assert lost > after


def test_a_namespace_can_be_chosen(server: Prometheus, story: TenMinutes) -> None:
    for title in ("Power by pod (rate)", "Memory traffic by pod (rate)", "Last level cache by pod"):
        found = server.ask(fill_in(EXPRESSIONS[title, "A"], namespace="shop"), story.at(STEPS))
        assert {dict(series)["namespace"] for series in found} == {"shop"}
        assert len(found) == len(WATTS)


def test_the_namespaces_to_choose_from_are_those_of_the_pods(server: Prometheus, story: TenMinutes) -> None:
    document = json.loads((ROOT / "packaging/grafana/resctrl-mon-hook.json").read_text())
    (variable,) = (it for it in document["templating"]["list"] if it["name"] == "namespace")
    query = re.fullmatch(r"query_result\((.*)\)", variable["query"]["query"])
    assert query is not None
    found = server.ask(fill_in(query[1]), story.at(STEPS))
    assert {dict(series)["namespace"] for series in found} == {"shop", "batch"}


# --- Labels


def test_the_labels_of_a_target_are_attached_as_here(story: TenMinutes, tmp_path: Path) -> None:
    """The samples above have them from `attach`; this Prometheus scrapes."""
    target = {name: text for name, text in target_of("a").items() if name != "job"}
    job = {
        "job_name": TARGET["job"],
        "scrape_interval": "1s",
        "scrape_timeout": "1s",
        "static_configs": [{"targets": [story.urls["a"].split("/")[2]], "labels": target}],
    }
    config = json.dumps({"scrape_configs": [job]})
    with prometheus.serving(tmp_path, tmp_path / "data", config=config) as served:
        waiting.wait(lambda: bool(served.ask("max_over_time(up[1h]) == 1")))  # a scrape is complete
        found = served.list_series('{__name__=~"resctrl_mon_.*"}')
    (_, _, samples) = [it for it in story.scrapes if it[0] == "a"][-1]
    expected = [{"__name__": name, **attach(labels, target_of("a"))} for name, labels, _ in samples]
    assert sorted(map(sorted, (it.items() for it in found))) == sorted(map(sorted, (it.items() for it in expected)))
