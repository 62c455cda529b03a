# SPDX-License-Identifier: Apache-2.0
"""The dashboard's panels against what is true;
those of power and energy at every scrape interval from 5 to 60 seconds.

A real Prometheus evaluates them over samples of the endpoint, which measures when it is scraped,
and of node_exporter, which shows the last file that the textfile timer had written. The timer's
period and the queries' Min step are those that the project ships.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import pytest

from hook import __version__
from hook.models import KeyState
from hook.reconcile.diagnose import VERBS
from hook.show.prometheus import make_families
from tests.support import prometheus
from tests.support.chart import ROOT
from tests.support.prometheus import TARGET, Labels, Prometheus, attach
from tests.unit.documents import blocks, page
from tests.unit.metrics import BILL, EVERYTHING, FAMILIES, make_inventory, make_key

PANELS: list[dict[str, Any]] = json.loads(
    (ROOT / "packaging/grafana/resctrl-mon-hook.json").read_text()
)["panels"]
TARGETS: dict[str, dict[str, Any]] = {
    panel["title"]: panel["targets"][0] for panel in PANELS if panel.get("targets") is not None
}
TIMER = (ROOT / "packaging/systemd/resctrl-mon-hook-textfile.timer").read_text(encoding="utf-8")
START = 1_700_000_000
HOUR = 3600
INTERVALS = (5, 7, 15, 29, 30, 60)
WATTS = 3988.0
ENERGY = "resctrl_mon_core_energy_joules_total"
TTL = 300
"""`--snapshot-ttl`: how long the counters of a job stay after its end."""
LIVES = (1, 2, 7, 20, 45, 90, 200)
"""Seconds that jobs last."""
AGE = 100_000
"""Seconds for which what runs at the start has run."""
Sample = tuple[str, "Labels", float, int]


def period() -> int:
    (seconds,) = re.findall(r"^OnUnitActiveSec=(\d+)s$", TIMER, re.MULTILINE)
    return int(seconds)


def written(seconds: int) -> Iterator[float]:
    """When a timer of so many seconds writes its file: up to a second late,
    so that it meets scrapes in each phase.
    """
    at, number = START - 2.0 * seconds, 0
    while at < START + HOUR:
        yield at
        number += 1
        at += seconds + number * 0.37 % 1


def scrape(
    job: str, interval: int, see: Callable[[int], float | None], **labels: str
) -> Iterator[Sample]:
    """What a scrape every `interval` seconds sees."""
    target = {"job": job, "instance": f"{job}:{interval}", "domain": "PKG_00", "ctrl_group": "/"}
    for at in range(START, START + HOUR + 1, interval):
        value = see(at)
        if value is not None:
            yield ENERGY, {**target, "namespace": f"every-{interval}", **labels}, value, at


def see_endpoint(at: int) -> float:
    return WATTS * (at - START + AGE)


def see_textfile(seconds: int) -> Callable[[int], float]:
    times = [*written(seconds)]
    return lambda at: WATTS * (max(time for time in times if time <= at) - START + AGE)


def see_job(begin: int, seconds: int) -> Callable[[int], float | None]:
    def see(at: int) -> float | None:
        return WATTS * min(at - begin, seconds) if begin <= at < begin + seconds + TTL else None

    return see


def see_restarted(at: int) -> float:
    """A pod whose group was made again half an hour before the end of the hour, less a quarter."""
    again = START + HOUR - 900
    return WATTS * (at - again) if at >= again else see_endpoint(at)


def begin_of(number: int) -> int:
    """Jobs begin in the last half of the hour, in another phase of the scrapes each."""
    return START + HOUR // 2 + 61 + 137 * number


def list_jobs() -> list[tuple[str, int, int]]:
    """The name, begin and duration of each."""
    return [(f"job-{number}", begin_of(number), seconds) for number, seconds in enumerate(LIVES)]


def make_samples() -> Iterator[Sample]:
    ways = {"endpoint": see_endpoint, "textfile": see_textfile(period())}
    for (job, see), interval in product(ways.items(), INTERVALS):
        yield from scrape(job, interval, see, pod="steady")
    for interval in INTERVALS:
        for name, begin, seconds in list_jobs():
            yield from scrape("jobs", interval, see_job(begin, seconds), pod=name)
        yield from scrape("jobs", interval, see_endpoint, pod="steady")
        yield from scrape("jobs", interval, see_restarted, pod="restarted")
    yield from make_node_samples()
    yield from make_podman_samples()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    prometheus.provide()
    if (reason := prometheus.missing()) is not None:
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("dashboard")
    with prometheus.serving(directory, prometheus.backfill(directory, [*make_samples()])) as served:
        yield served


def fill_in(target: dict[str, Any], job: str, namespace: str = ".*", window: str = "") -> str:
    """What Grafana sends: $__rate_interval is at least four times the Min step of the query."""
    values = {"job": job, "instance": ".*", "namespace": namespace, "__range": f"{HOUR // 2}s"}
    values["__rate_interval"] = window or f"{4 * int(target.get('interval', '0s')[:-1])}s"
    return re.sub(r"\$([a-z_]\w*)", lambda match: values[match[1]], target["expr"])


def ask_power(server: Prometheus, job: str, window: str = "") -> dict[str, list[float]]:
    """The points of a graph by namespace, which is one for each scrape interval.

    They meet scrapes in all phases.
    """
    asked = fill_in(TARGETS["Power by namespace (rate)"], job, window=window)
    answer = server.ask_range(asked, START + 600, START + HOUR, 7)
    return {dict(series)["namespace"]: [*values.values()] for series, values in answer.items()}


@pytest.mark.parametrize(
    ("job", "low", "high"), [("endpoint", 0.99, 1.01), ("textfile", 0.75, 1.25)]
)
def test_power_is_true_at_every_scrape_interval(
    server: Prometheus, job: str, low: float, high: float
) -> None:
    power = ask_power(server, job)
    assert power.keys() == {f"every-{interval}" for interval in INTERVALS}
    for name, values in power.items():
        assert len(values) == (HOUR - 600) // 7 + 1, "no gap"
        assert low * WATTS < min(values) <= max(values) < high * WATTS, name


def test_the_energy_of_jobs_shorter_than_a_scrape_is_what_they_used(server: Prometheus) -> None:
    for interval in INTERVALS:
        asked = fill_in(
            TARGETS["Energy by pod or container"], "jobs", namespace=f"every-{interval}"
        )
        by_pod = {
            dict(series)["pod"]: value for series, value in server.ask(asked, START + HOUR).items()
        }
        steady, restarted = by_pod.pop("steady"), by_pod.pop("restarted")
        assert by_pod == {name: pytest.approx(WATTS * seconds) for name, _, seconds in list_jobs()}
        assert HOUR // 2 - 2 * interval <= steady / WATTS <= HOUR // 2
        assert restarted / WATTS == pytest.approx(HOUR // 2, abs=2 * interval)


def test_the_query_of_the_documents_for_short_jobs_is_right_too(server: Prometheus) -> None:
    (text,) = blocks(page("docs/metrics.md", "Jobs that are shorter than a scrape"))
    asked = text.replace("1h", "30m").replace(ENERGY, f'{ENERGY}{{instance="jobs:15"}}')
    shown = {
        dict(series)["pod"]: value for series, value in server.ask(asked, START + HOUR).items()
    }
    used = {name: pytest.approx(WATTS * seconds) for name, _, seconds in list_jobs()}
    assert {name: shown[name] for name in used} == used


# --- Every panel, of a node that has each metric: each counter grows by RATE a second

RATE = 100.0
EXPRESSIONS: dict[tuple[str, str], str] = {
    (panel["title"], target["refId"]): target["expr"]
    for panel in PANELS
    for target in panel.get("targets", [])
}
Series = dict[frozenset[tuple[str, str]], float]


def make_node_samples() -> Iterator[Sample]:
    """The program's own metrics with the labels that Prometheus attaches to them."""
    for name, family in FAMILIES.items():
        for (labels, constant), at in product(
            family.samples.items(), range(START, START + HOUR + 1, 15)
        ):
            value = RATE * (at - START) if name.endswith("_total") else constant
            yield name, attach(dict(labels), {**TARGET, "instance": "a"}), value, at


def one(value: float, **labels: str) -> Series:
    return {frozenset(labels.items()): value}


def each(label: str, values: Mapping[str, float]) -> Series:
    return {frozenset({(label, name)}): value for name, value in values.items()}


POD = one(RATE, namespace="n", pod="p")
ALONE = {"instance": "a", "name": "p"}
STATES = {
    "live": 1,
    "taken": 1,
    **dict.fromkeys(("completed", "lingering", "recovering", "unreadable"), 0),
}
REASONS = [
    dict(labels)["reason"] for labels in FAMILIES["resctrl_mon_unmonitored_runs_total"].samples
]
UNKNOWN = sum(FAMILIES["resctrl_mon_use_unknown"].samples.values())
TRUTH: dict[tuple[str, str], Series] = {
    ("Power by namespace (rate)", "A"): one(RATE, namespace="n"),
    ("Power by namespace (rate)", "B"): one(RATE),
    ("Power by pod or container (rate)", "A"): POD,
    ("Power by pod or container (rate)", "B"): one(RATE, **ALONE),
    ("Energy by namespace", "A"): one(RATE * HOUR / 2, namespace="n"),
    ("Energy by namespace", "B"): one(RATE * HOUR / 2),
    ("Energy by label of jobs", "A"): {
        frozenset({("label", "user"), ("value", "ann")}): RATE * HOUR / 2
    },
    ("Runs of which a part is unknown", "A"): one(RATE * HOUR / 2, namespace="n"),
    ("Runs of which a part is unknown", "B"): one(RATE * HOUR / 2),
    ("Energy by pod or container", "A"): one(RATE * HOUR / 2, namespace="n", pod="p"),
    ("Energy by pod or container", "B"): one(RATE * HOUR / 2, **ALONE),
    ("What is charged to no pod (rate)", "A"): one(RATE, ctrl_group="/"),
    ("What is charged to no pod (rate)", "B"): one(2 * RATE),
    ("Energy that is charged (rate)", "A"): one(2 / 3, instance="a"),
    **{("Nodes that lack counters", ref): one(0) for ref in "ABC"},
    ("Memory traffic by pod or container (rate)", "A"): POD,
    ("Memory traffic by pod or container (rate)", "B"): one(RATE, **ALONE),
    ("Local memory traffic by pod or container (rate)", "A"): POD,
    ("Local memory traffic by pod or container (rate)", "B"): one(RATE, **ALONE),
    **{
        ("Memory traffic that is charged to no pod (rate)", ref): one(RATE, ctrl_group="/")
        for ref in "AB"
    },
    ("Last level cache by pod or container", "A"): one(1, namespace="n", pod="p"),
    ("Last level cache by pod or container", "B"): one(1, **ALONE),
    ("Last level cache of tasks without a group", "A"): one(1, ctrl_group="/"),
    ("RMIDs in use", "A"): {
        **one(1, instance="a", owner="ours"),
        **one(1, instance="a", owner="others"),
    },
    ("RMIDs in use", "B"): one(8, instance="a"),
    ("RMIDs in use of limit", "A"): one(2 / 8, instance="a"),
    ("Orphans", "A"): one(0, instance="a"),
    ("Unmonitored containers by reason", "A"): one(1, reason="io"),
    **{("Unmonitored containers by reason", ref): {} for ref in "BC"},
    ("Unmonitored containers by reason", "I"): each(
        "reason", dict.fromkeys(REASONS, RATE * HOUR / 2)
    ),
    **{("Unmonitored containers by reason", ref): one(0) for ref in "DEF"},
    **{("Unmonitored containers by reason", ref): one(1) for ref in "GH"},
    ("Keys by state", "A"): each("state", STATES),
    ("Uses that are unknown", "A"): one(UNKNOWN),
    **{("Nodes without resctrl", ref): one(0) for ref in "AB"},
    ("Hook runs by stage and result (rate)", "A"): one(RATE, result="ok", stage="poststop"),
    ("Members", "A"): each("state", {"alive": 0, "dead": 0}),
    ("Members", "B"): one(0),
    ("Versions", "A"): one(1, version=__version__),
    **{
        ("Actions of reconcile by verb (rate)", ref): each("verb", dict.fromkeys(VERBS, RATE))
        for ref in "AB"
    },
    ("Duration of reconcile, and what it left", "A"): one(0, instance="a"),
    ("Duration of reconcile, and what it left", "B"): {},
    ("Since the last reconcile", "A"): one(START + HOUR - 2),
    ("Since the last reconcile", "B"): one(START + HOUR - 1),
    ("CPU time before tasks were in their groups (rate)", "A"): one(RATE, instance="a"),
    **{("What watch did (rate)", ref): one(RATE) for ref in "ABCD"},
    **{("Since watch last wrote its record", ref): one(START + HOUR) for ref in "AB"},
    ("Lines of history that wait", "A"): {},
    **{("Lines and snapshots that were dropped (rate)", ref): one(RATE) for ref in "AB"},
}
"""At the end of the hour, of the node of tests.unit.metrics."""


def test_each_panel_shows_what_is_true(server: Prometheus) -> None:
    assert EXPRESSIONS.keys() == TRUTH.keys()
    for asked, expression in EXPRESSIONS.items():
        shown = server.ask(fill_in({"expr": expression}, TARGET["job"], window="60s"), START + HOUR)
        assert shown == {
            series: pytest.approx(value, rel=0.01) for series, value in TRUTH[asked].items()
        }, asked


# --- A node with Podman alone, and the jobs of one hour

UNNAMED = "f" * 64
PODMAN: list[tuple[str, str | None, int, int]] = [
    ("0" * 64, "db", 0, HOUR + TTL),
    (UNNAMED, None, 0, HOUR + TTL),
    ("1" * 64, "job-17", 600, 200),  # its counters have gone before the last half of the hour
    ("2" * 64, "job-17", 2100, 200),
    ("3" * 64, "job-17", HOUR - 90, 200),
]
"""The key, name, begin and duration of each container."""
WHEN_WELL = {
    "Duration of reconcile, and what it left",
    "Lines of history that wait",
    "Unmonitored containers by reason",
}
"""Panels with parts that show a problem only while it lasts."""


def make_podman_samples() -> Iterator[Sample]:
    """Each counter of a container grows by RATE a second while it runs, and stays for TTL;
    the node's always grow.
    """
    for number, (key, name, begin, seconds) in enumerate(PODMAN):
        state = KeyState(key=key, kind="container", name=name or "")
        inventory = make_inventory(
            **{**vars(EVERYTHING), "keys": [make_key(state)], "failures": []}
        )
        for family in make_families(
            inventory, None, BILL._replace(namespaces={"": BILL.namespaces[""]})
        ):
            for labels, value in family.samples.items():
                is_own = dict(labels).get("key") == key
                if not is_own and number:
                    continue
                first, life = (begin, seconds) if is_own else (0, HOUR)
                stay = 0 if family.name.endswith("_llc_occupancy_bytes") else TTL
                for at in range(first, min(first + life + stay, HOUR) + 1, 15):
                    grown = (
                        RATE * min(at - first, life) if family.name.endswith("_total") else value
                    )
                    yield (
                        family.name,
                        {**dict(labels), "job": "podman", "instance": "p"},
                        grown,
                        START + at,
                    )


def ask_podman(server: Prometheus, title: str, ref: str) -> Series:
    expression = {"expr": EXPRESSIONS[title, ref]}
    return server.ask(fill_in(expression, "podman", window="60s"), START + HOUR)


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("Power by pod or container (rate)", dict.fromkeys(("db", "job-17", UNNAMED[:12]), RATE)),
        (
            "Memory traffic by pod or container (rate)",
            dict.fromkeys(("db", "job-17", UNNAMED[:12]), RATE),
        ),
        (
            "Local memory traffic by pod or container (rate)",
            dict.fromkeys(("db", "job-17", UNNAMED[:12]), RATE),
        ),
        (
            "Last level cache by pod or container",
            dict.fromkeys(("db", "job-17", UNNAMED[:12]), 1.0),
        ),
        (
            "Energy by pod or container",
            {"db": RATE * HOUR / 2, UNNAMED[:12]: RATE * HOUR / 2, "job-17": RATE * (200 + 90)},
        ),
    ],
)
def test_podmans_containers_are_shown_by_their_names(
    server: Prometheus, title: str, shown: dict[str, float]
) -> None:
    """Jobs of one name are one series, and what they used in the last half hour is added up."""
    answer = {
        tuple(sorted(dict(labels).items())): value
        for labels, value in ask_podman(server, title, "B").items()
    }
    truth = {(("instance", "p"), ("name", name)): value for name, value in shown.items()}
    assert answer == pytest.approx(truth, rel=0.01)
    assert ask_podman(server, title, "A") == {}


def test_no_panel_is_empty_on_a_node_with_podman_alone(server: Prometheus) -> None:
    by_title: dict[str, Series] = {}
    for title, ref in EXPRESSIONS:
        by_title.setdefault(title, {}).update(ask_podman(server, title, ref))
    assert {title for title, series in by_title.items() if not series} <= WHEN_WELL
