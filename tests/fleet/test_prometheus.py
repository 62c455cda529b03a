# SPDX-License-Identifier: Apache-2.0
"""What Prometheus bills of many nodes is what the models of their resctrl
have counted, joule by joule.

Each node is the shipped file on a model: hooks of pods that come and go, reconcile twice a minute,
and an endpoint that is killed and started again. One history is so large that reconcile rotates it.
VictoriaMetrics has by remote write what Prometheus has scraped.

increase() estimates what was used between the edges of its window and the scrapes beside them. So
all pods use as much at both edges as in between, and both are moments at which no scrape failed.

`RESCTRL_MON_WINDOW=3600/15` has the window of an hour with scrapes every 15 s.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from fetch import provision
from tests.bench.nodes import TMPFS
from tests.resctrlfs import mounted
from tests.support import prometheus
from tests.support.hook import DEADLINE, Hook, Task, created, end, stopped
from tests.support.leftovers import own_mark
from tests.support.prometheus import Prometheus
from tests.support.waiting import wait
from tests.unit.documents import blocks, page

NODES = 20
WINDOW, SCRAPE = map(int, os.environ.get("RESCTRL_MON_WINDOW", "120/2").split("/"))
"""Seconds that are billed, and seconds between two scrapes."""
ERROR = 0.001
LATE_ERROR = 2 * SCRAPE / WINDOW
"""What begins in the window is late by a scrape at its end,
and no such part is at its beginning.
"""
PROMPT = 0.5
"""Seconds of a scrape, beside an edge: a sample is from its beginning to its end."""
PAUSE = 30
"""Seconds between two runs of reconcile."""
RESTART = 2
"""After so many of them the endpoint is killed, and started again: on each node at another time."""
METRIC = "resctrl_mon_namespace_core_energy_joules_total"
DOMAIN = {"do": "let_grow", "domain": "mon_PERF_PKG_00", "event": "core_energy"}
LONG_MS = 60_000
"""How long a model's answer about names and tasks counts. It looks for a task that it lacks."""
FOR_EVER = float("inf")
LATE = "late"
"""A namespace that is new in the window."""
TENANTS: dict[str, tuple[float, Sequence[float]]] = {
    "web": (3.0, [FOR_EVER]),
    "batch": (40.0, [25.0, 60.0, 8.0]),
    "ci": (11.0, [0.2, 12.0, 1.0, 0.2, 30.0, 4.0]),
    LATE: (7.0, [FOR_EVER]),
}
"""The power of each namespace on a node, in watts, and how many seconds its pods live,
one after the other.
"""
LARGE = 64 << 20
_numbers = itertools.count(1)
_cgroups = threading.Lock()  # of pods: the tests' list of them is for one thread


class Fleet:
    """What all nodes have in common: whether it goes on, and what was used."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.is_late = threading.Event()
        self.changes = threading.Event()
        """While it is not set use goes on, and nothing else begins or ends."""
        self.used: list[tuple[float, float, str, float]] = []
        """Since when and until when, by which namespace, and how many joules:
        of each pod that has ended.
        """
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def sum_up(self, since: float = 0.0, until: float = FOR_EVER) -> dict[str, float]:
        """What each namespace has used in this time. All pods have ended."""
        sums = dict.fromkeys(TENANTS, 0.0)
        for begun, ended, namespace, joules in self.used:
            within = max(0.0, min(until, ended) - max(since, begun))
            sums[namespace] += joules * within / (ended - begun)
        return sums

    def start(self, work: Callable[..., None], *arguments: str) -> None:
        """Do something in a thread, until the end."""
        self._threads.append(threading.Thread(target=self._run, args=(work, *arguments)))
        self._threads[-1].start()

    def _run(self, work: Callable[..., None], *arguments: str) -> None:
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001  `wait` and `end` raise it
            self._errors.append(error)
            self.stop.set()

    def wait(self, condition: Callable[[], bool]) -> None:
        wait(lambda: self.stop.wait(1) or condition())
        assert not self._errors, self._errors

    def wait_for_use(self, server: Prometheus, namespaces: int) -> None:
        """Wait until each node shows use of so many namespaces."""
        shown = float(NODES * namespaces)
        self.wait(lambda: [*server.ask(f"count({METRIC} > 0)").values()] == [shown])

    def find_edge(self, server: Prometheus, at: float) -> float:
        """Find the first moment, by whole scrapes from this one on,
        beside which all were prompt.
        """
        while at < time.time() + 4 * SCRAPE:
            at += SCRAPE
        self.stop.wait(at - 3 * SCRAPE - time.time())
        self.changes.clear()
        span = f"{4 * SCRAPE}s"
        prompt = (
            f"count(sum_over_time(up[{span}]) >= 4 and min_over_time(up[{span}]) == 1"
            f" and max_over_time(scrape_duration_seconds[{span}]) < {PROMPT})"
        )
        deadline = at + DEADLINE
        while True:
            until = at + 2 * SCRAPE
            self.stop.wait(until + PROMPT - time.time())
            assert not self._errors, self._errors
            if server.ask(prompt, until) == {frozenset(): NODES}:
                self.changes.set()
                return at
            at += SCRAPE
            assert at < deadline, "no moment at which all scrapes were prompt"

    def end(self) -> None:
        """End all pods, and wait until all is done."""
        self.stop.set()
        self.is_late.set()
        self.changes.set()
        for thread in self._threads:
            thread.join()
        assert not self._errors, self._errors


class Node:
    """A node with its endpoint."""

    def __init__(self, fleet: Fleet, directory: Path, resources: ExitStack, number: int) -> None:
        directory.mkdir()
        # Cache and memory traffic would be read at each scrape, and nothing here is about them.
        knobs: dict[str, object] = {
            "l3_domains": 0,
            "packages": 1,
            "perf": False,
            "decay_ms": 0,
            "look_ms": LONG_MS,
            "names_ms": LONG_MS,
        }
        self._model = resources.enter_context(mounted(directory, **knobs))
        self._fleet = fleet
        self._history = directory / "log/history.jsonl"
        self._history.parent.mkdir()
        self._option = f"--history={self._history}"
        self._hook = Hook(self._model.root, directory / "run").with_options(self._option)
        self._number, self._is_large = number, number == 0
        self.address = ""
        self._endpoint = self._listen("0")
        resources.callback(self.close)

    def _listen(self, port: str) -> Task:
        endpoint = self._hook.open("metrics", f"--listen={port}", self._option)
        assert endpoint.stdout is not None
        line = endpoint.stdout.readline().decode()
        assert line.startswith("listening on http://"), line
        self.address = line.split("/")[2]
        return endpoint

    def close(self) -> None:
        self._endpoint.kill()
        self._endpoint.communicate()

    def shows_use(self) -> bool:
        with urlopen(f"http://{self.address}/metrics", timeout=DEADLINE) as answer:
            lines = answer.read().decode().splitlines()
        return any(float(line.split()[-1]) > 0 for line in lines if line.startswith(METRIC))

    def run_tenant(self, namespace: str) -> None:
        """Run one pod after the other.

        What they use is this power, also for the time in which none is there.
        """
        watts, lives = TENANTS[namespace]
        if namespace == LATE:
            self._fleet.is_late.wait()
            # One node after the other: all at once they make scrapes time out.
            self._fleet.stop.wait(self._number)
        billed = time.time()
        for seconds in itertools.cycle(lives):
            number = next(_numbers)
            container, uid = f"{number:064x}", f"{number:08x}-4084-4186-9c0e-93cf8c32e2ce"
            names = {
                "io.kubernetes.pod.namespace": namespace,
                "io.kubernetes.pod.name": f"{namespace}-{number}",
            }
            init = subprocess.Popen(["sleep", "infinity"], stdin=subprocess.DEVNULL)
            try:
                with _cgroups:
                    state = created(container, init.pid, pod_uid=uid, **names)
                assert self._hook(state).status == 0
                counter = {**DOMAIN, "group": f"/mon_groups/oci-{uid}"}
                self._model.control(**counter, rate=watts, since=billed)
                self._fleet.stop.wait(min(seconds, threading.TIMEOUT_MAX))
                self._fleet.changes.wait()
                joules = float(self._model.control(**counter, rate=0))
                begun, billed = billed, time.time()
                self._fleet.used.append((begun, billed, namespace, joules))
            finally:
                with _cgroups:
                    end(init)
            assert self._hook(stopped(container, pod_uid=uid)).status == 0
            if self._fleet.stop.is_set():
                return

    def keep(self) -> None:
        """Run reconcile, and start the endpoint again, until the end:
        on each node at its own time.
        """
        pods = self._hook.run_dir / "groups"
        wait(lambda: self._fleet.stop.is_set() or len([*pods.glob("*.json")]) >= len(TENANTS) - 1)
        self.reconcile()  # it sees the first series
        begun = time.monotonic() + PAUSE * self._number / NODES
        for turn in itertools.count():
            if self._fleet.stop.wait(max(0.0, begun + turn * PAUSE - time.monotonic())):
                return
            if not self._fleet.changes.is_set():
                continue
            self.reconcile()
            if (turn + self._number) % RESTART == 0:
                self.close()
                self._endpoint = self._listen(self.address.rpartition(":")[2])
            if self._is_large and self._fleet.is_late.is_set():
                self._is_large = False
                with self._history.open("ab", buffering=0) as file:
                    file.write(b" " * LARGE + b"\n")

    def reconcile(self) -> None:
        """Run it.

        On a busy machine its time may be over before all is done; the next run goes on.
        """
        outcome = self._hook.ask("reconcile", self._option)
        assert outcome.status in (0, 1), outcome

    def list_files(self) -> set[str]:
        return {path.name for path in self._history.parent.glob("history.jsonl*")}


@contextmanager
def victoria_metrics(directory: Path) -> Iterator[str]:
    """A server without data; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = [
        "victoria-metrics",
        f"-httpListenAddr={address}",
        f"-storageDataPath={directory / 'victoria'}",
    ]
    words += ["-search.latencyOffset=1s", "-search.disableCache"]
    with (
        (directory / "victoria.log").open("wb") as log,
        subprocess.Popen(words, stdout=log, stderr=log) as process,
    ):
        try:
            wait(lambda: is_healthy(f"http://{address}/health"))
            yield f"http://{address}"
        finally:
            process.kill()


def is_healthy(url: str) -> bool:
    try:
        with urlopen(url, timeout=DEADLINE):  # noqa: S310  our own
            return True
    except URLError:
        return False


def ask(server: Prometheus, expression: str, at: float | None = None) -> dict[str, float]:
    """The values by namespace."""
    return {
        dict(labels)["namespace"]: value for labels, value in server.ask(expression, at).items()
    }


@pytest.fixture
def place() -> Iterator[Path]:
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("needs root and /dev/fuse")
    if reasons := provision.install(provision.FLEET):
        pytest.skip("; ".join(reasons))
    prometheus.provide()
    with tempfile.TemporaryDirectory(prefix=own_mark(), dir=TMPFS) as directory:
        yield Path(directory)


def configure(nodes: Sequence[Node], victoria: str) -> str:
    """The configuration of Prometheus."""
    job = {
        "job_name": "nodes",
        "scrape_interval": f"{SCRAPE}s",
        "scrape_timeout": f"{SCRAPE}s",
        "honor_labels": True,
        "static_configs": [{"targets": [node.address for node in nodes]}],
    }
    write = {"url": f"{victoria}/api/v1/write", "queue_config": {"batch_send_deadline": "1s"}}
    return json.dumps({"scrape_configs": [job], "remote_write": [write]})


def test_the_bill_of_a_window_is_what_the_nodes_have_used_in_it(place: Path) -> None:
    fleet = Fleet()
    with ExitStack() as resources:
        nodes = [Node(fleet, place / str(number), resources, number) for number in range(NODES)]
        resources.callback(fleet.end)
        for node in nodes:
            fleet.start(node.keep)
            for namespace in TENANTS:
                fleet.start(node.run_tenant, namespace)

        fleet.wait(nodes[-1].shows_use)  # a new series is 0 for a minute
        url = resources.enter_context(victoria_metrics(place))
        config = configure(nodes, url)
        server = resources.enter_context(prometheus.serving(place, place / "data", config=config))
        fleet.wait_for_use(server, len(TENANTS) - 1)
        since = fleet.find_edge(server, time.time())
        fleet.is_late.set()
        fleet.stop.wait(since + WINDOW - 4 * SCRAPE - time.time())
        fleet.wait_for_use(server, len(TENANTS))
        until = fleet.find_edge(server, since + WINDOW)
        servers = {"Prometheus": server, "VictoriaMetrics": Prometheus(url)}
        fleet.wait(lambda: all(each.find_last_scrape(METRIC) > until for each in servers.values()))
        fleet.end()
        for node in nodes:
            node.reconcile()
        ended = time.time()
        truth = fleet.sum_up(since, until)
        window = f"{until - since:.0f}s"
        energy, *_, exact = blocks(page("docs/fleet.md", "Bill a cluster by namespace"))
        errors = {
            (name, what): {
                namespace: joules / truth[namespace] - 1
                for namespace, joules in ask(each, query.replace("30d", window), until).items()
            }
            for name, each in servers.items()
            for what, query in {"increase()": energy, "the difference": exact}.items()
        }
        for (name, what), by_namespace in errors.items():
            text = ", ".join(
                f"{namespace} {error:+.3%}" for namespace, error in by_namespace.items()
            )
            print(f"{window}, a scrape every {SCRAPE}s: {what} in {name}: {text}")

        wait(lambda: server.find_last_scrape(METRIC) > ended + SCRAPE)
        assert ask(server, f"sum by (namespace) ({METRIC})") == pytest.approx(
            fleet.sum_up(), rel=1e-9
        )
        assert set(
            ask(server, f"sum by (namespace) (resets({METRIC}[{WINDOW + 3600}s]))").values()
        ) == {0.0}
        assert "history.jsonl.1" in nodes[0].list_files()
        for asked, by_namespace in errors.items():
            assert {*by_namespace} == {*TENANTS}, asked
            for namespace, error in by_namespace.items():
                most = LATE_ERROR if namespace == LATE else ERROR
                assert abs(error) < most, (asked, namespace)
