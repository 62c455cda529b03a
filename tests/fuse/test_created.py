# SPDX-License-Identifier: Apache-2.0
"""Jobs that begin and end between two scrapes of a real Prometheus:
`increase()` counts all of them with --created.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.fuse.test_metrics import ENERGY, listening
from tests.resctrlfs import Mounted
from tests.support import prometheus
from tests.support.hook import DEADLINE, Hook, created, stopped, task
from tests.support.prometheus import Prometheus
from tests.support.waiting import wait

JOULES = "resctrl_mon_core_energy_joules_total"
BEGUN = "resctrl_mon_core_energy_joules_created"
JOBS = {f"job-{number}": 10.5 * number for number in range(1, 6)}
FLAG = "--enable-feature=created-timestamp-zero-ingestion"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
LAST: list[bytes] = []
"""What was last read of the endpoint: Prometheus gets it at once, though the node is busy."""


class Target(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", OPEN_METRICS)
        self.end_headers()
        self.wfile.write(LAST[0])

    def log_message(self, *_arguments: object) -> None: ...


@contextmanager
def target() -> Iterator[str]:
    """The address at which LAST is."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Target) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def read(url: str) -> bytes:
    """Read the endpoint; Prometheus scrapes that from now on."""
    with urlopen(Request(url, headers={"Accept": OPEN_METRICS}), timeout=DEADLINE) as answer:  # noqa: S310  our own
        LAST[:] = [answer.read()]
    return LAST[0]


@pytest.fixture
def server(resctrl: Mounted, hook: Hook, tmp_path: Path) -> Iterator[Prometheus]:
    """A Prometheus with the flag, which has scraped the node with --created."""
    prometheus.provide()
    if (reason := prometheus.missing()) is not None:
        pytest.skip(reason)
    if prometheus.version() < (3,):
        pytest.skip("Prometheus is older than 3.0, and Debian's newest cannot be had")
    with ExitStack() as stack:
        _, url = stack.enter_context(listening(hook, "--created"))
        read(url)
        job = {
            "job_name": "created",
            "honor_labels": True,
            "scrape_interval": "1s",
            "scrape_timeout": "1s",
        }
        job["static_configs"] = [{"targets": [stack.enter_context(target())]}]
        config = json.dumps({"scrape_configs": [job]})
        served = stack.enter_context(
            prometheus.serving(tmp_path, tmp_path / "data", config=config, options=(FLAG,))
        )
        wait(lambda: bool(served.ask("max_over_time(up[1h]) == 1")))
        for number, (name, joules) in enumerate(JOBS.items()):
            run(hook, resctrl, name, number, joules)
            read(url)
        # That of the last second is shared.
        wait(lambda: all(f'pod="{name}"'.encode() in read(url) for name in JOBS))
        # Two packages each.
        wait(lambda: len(served.ask(f"last_over_time({JOULES}[1h])")) == 2 * len(JOBS))
        yield served


def run(hook: Hook, resctrl: Mounted, name: str, number: int, joules: float) -> None:
    """The whole life of a job."""
    uid = f"87a3fb58-4084-4186-9c0e-{number:012x}"
    pod = {"pod_uid": uid, "io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": "batch"}
    with task() as init:
        hook(created(f"c{number}", init.pid, **pod))
        resctrl.control(do="add", group=f"/mon_groups/oci-{uid}", amount=str(joules), **ENERGY)
    hook(stopped(f"c{number}", **pod))


def of_jobs(answer: dict[frozenset[tuple[str, str]], float]) -> dict[str, float]:
    return {dict(labels)["pod"]: value for labels, value in answer.items()}


def test_queries_count_all_that_short_jobs_used(server: Prometheus) -> None:
    at = server.find_last_scrape(JOULES)
    assert of_jobs(server.ask(f"sum by (pod) (increase({JOULES}[1h]))", at)) == pytest.approx(
        JOBS, rel=1e-9
    )
    assert server.list_series(BEGUN) == [], "with the flag they are no series of their own"
