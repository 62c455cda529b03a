# SPDX-License-Identifier: Apache-2.0
"""The dashboard's panels of power and energy against what is true, at every scrape interval from 5 to 60 seconds.

A real Prometheus evaluates them over samples of the endpoint, which measures when it is scraped, and of node_exporter,
which shows the last file that the textfile timer had written. The timer's period and the queries' Min step are those
that the project ships.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest

from tests.support import prometheus
from tests.support.chart import ROOT
from tests.support.prometheus import Labels, Prometheus
from tests.unit.documents import blocks, page

PANELS: list[dict[str, Any]] = json.loads((ROOT / "packaging/grafana/resctrl-mon-hook.json").read_text())["panels"]
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
    """When a timer of so many seconds writes its file: up to a second late, so that it meets scrapes in each phase."""
    at, number = START - 2.0 * seconds, 0
    while at < START + HOUR:
        yield at
        number += 1
        at += seconds + number * 0.37 % 1


def scrape(job: str, interval: int, see: Callable[[int], float | None], **labels: str) -> Iterator[Sample]:
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
    return lambda at: WATTS * (max(it for it in times if it <= at) - START + AGE)


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
    seen = {"endpoint": see_endpoint, "textfile": see_textfile(period())}
    for (job, see), interval in product(seen.items(), INTERVALS):
        yield from scrape(job, interval, see, pod="steady")
    for interval in INTERVALS:
        for name, begin, seconds in list_jobs():
            yield from scrape("jobs", interval, see_job(begin, seconds), pod=name)
        yield from scrape("jobs", interval, see_endpoint, pod="steady")
        yield from scrape("jobs", interval, see_restarted, pod="restarted")


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
    return re.sub(r"\$([a-z_]\w*)", lambda found: values[found[1]], target["expr"])


def ask_power(server: Prometheus, job: str, window: str = "") -> dict[str, list[float]]:
    """The points of a graph by namespace, which is one for each scrape interval. They meet scrapes in all phases."""
    asked = fill_in(TARGETS["Power by namespace (rate)"], job, window=window)
    found = server.ask_range(asked, START + 600, START + HOUR, 7)
    return {dict(series)["namespace"]: [*values.values()] for series, values in found.items()}


@pytest.mark.parametrize(("job", "low", "high"), [("endpoint", 0.99, 1.01), ("textfile", 0.75, 1.25)])
def test_power_is_true_at_every_scrape_interval(server: Prometheus, job: str, low: float, high: float) -> None:
    power = ask_power(server, job)
    assert power.keys() == {f"every-{interval}" for interval in INTERVALS}
    for name, values in power.items():
        assert len(values) == (HOUR - 600) // 7 + 1, "no gap"
        assert low * WATTS < min(values) <= max(values) < high * WATTS, name


def test_the_energy_of_jobs_shorter_than_a_scrape_is_what_they_used(server: Prometheus) -> None:
    for interval in INTERVALS:
        asked = fill_in(TARGETS["Energy by pod"], "jobs", namespace=f"every-{interval}")
        found = {dict(it)["pod"]: value for it, value in server.ask(asked, START + HOUR).items()}
        steady, restarted = found.pop("steady"), found.pop("restarted")
        assert found == {name: pytest.approx(WATTS * seconds) for name, _, seconds in list_jobs()}
        assert HOUR // 2 - 2 * interval <= steady / WATTS <= HOUR // 2
        assert restarted / WATTS == pytest.approx(HOUR // 2, abs=2 * interval)


def test_the_queries_of_the_documents_are_right_too(server: Prometheus) -> None:
    """The first one for jobs, the second one for every pod."""
    of_jobs, of_all = (
        text.replace("1h", "30m").replace(ENERGY, f'{ENERGY}{{instance="jobs:15"}}')
        for text in blocks(page("docs/metrics.md", "Jobs that are shorter than a scrape"))
    )
    used = {name: pytest.approx(WATTS * seconds) for name, _, seconds in list_jobs()}
    first, second = (
        {dict(it)["pod"]: value for it, value in server.ask(asked, START + HOUR).items()} for asked in (of_jobs, of_all)
    )
    assert {name: first[name] for name in used} == used
    half = pytest.approx(WATTS * HOUR / 2, abs=WATTS * 30)
    assert second == {**used, "steady": half, "restarted": half}


def test_a_node_that_is_scraped_by_two_jobs_counts_once(server: Prometheus) -> None:
    asked = fill_in(TARGETS["Energy by namespace"], "textfile", namespace="every-15")
    (found,) = server.ask(asked, START + HOUR).values()
    assert found == pytest.approx(WATTS * HOUR / 2, rel=0.05)


# --- A container in a pod of Podman's, whose name reconcile finds while it runs
