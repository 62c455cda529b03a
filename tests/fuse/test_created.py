# SPDX-License-Identifier: Apache-2.0
"""Jobs that begin and end between two scrapes of a real Prometheus: what queries of docs/metrics.md count of them."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pytest

from tests.fuse.test_metrics import ENERGY, listening
from tests.support import prometheus
from tests.support.hook import DEADLINE, Hook, created, stopped, task
from tests.support.waiting import wait
from tests.unit.documents import blocks, page

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.resctrlfs import Mounted
    from tests.support.prometheus import Prometheus

JOULES = "resctrl_mon_core_energy_joules_total"
BEGUN = "resctrl_mon_core_energy_joules_created"
JOBS = {f"job-{number}": 10.5 * number for number in range(1, 6)}
FLAG = "--enable-feature=created-timestamp-zero-ingestion"


IN_LIFE = threading.Lock()
"""Held while a job lives, so that no scrape sees it, and while a scrape is answered."""


@contextmanager
def between_lives(url: str) -> Iterator[str]:
    """The address of a target that passes scrapes on to `url`, and refuses them while a job lives."""

    class Target(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not IN_LIFE.acquire(blocking=False):
                self.send_error(503)
                return
            try:
                headers = {name: self.headers[name] for name in ("Accept", "Accept-Encoding")}
                with urlopen(Request(url, headers=headers), timeout=DEADLINE) as answer:  # noqa: S310  our own
                    body, kinds = answer.read(), answer.headers
            finally:
                IN_LIFE.release()
            self.send_response(200)
            for name in ("Content-Type", "Content-Encoding"):
                self.send_header(name, kinds[name])
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Target) as proxy:
        threading.Thread(target=proxy.serve_forever).start()
        try:
            yield f"127.0.0.1:{proxy.server_port}"
        finally:
            proxy.shutdown()


@pytest.fixture
def server(resctrl: Mounted, hook: Hook, tmp_path: Path) -> Iterator[Prometheus]:
    """A Prometheus with the flag, which has scraped the node with --created (`job="created"`) and without (`plain`)."""
    prometheus.provide()
    if (reason := prometheus.missing()) is not None:
        pytest.skip(reason)
    if prometheus.version() < (3,):
        pytest.skip("Prometheus is older than 3.0, and Debian's newest cannot be had")
    with ExitStack() as stack:
        urls = {"created": stack.enter_context(listening(hook, "--created"))[1]}
        urls["plain"] = stack.enter_context(listening(hook))[1]
        targets = {job: stack.enter_context(between_lives(url)) for job, url in urls.items()}
        config = json.dumps({"scrape_configs": [scrape(job, address) for job, address in targets.items()]})
        served = stack.enter_context(prometheus.serving(tmp_path, tmp_path / "data", config=config, options=(FLAG,)))
        wait(lambda: len(served.list_series("resctrl_mon_build_info")) == len(urls))
        for number, (name, joules) in enumerate(JOBS.items()):
            with IN_LIFE:
                run(hook, resctrl, name, number, joules)
        wait(lambda: len(served.list_series(JOULES)) == 2 * 2 * len(JOBS))  # two packages each
        yield served


def scrape(job: str, address: str) -> dict[str, object]:
    times = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    return {"job_name": job, "honor_labels": True, "static_configs": [{"targets": [address]}], **times}


def run(hook: Hook, resctrl: Mounted, name: str, number: int, joules: float) -> None:
    """The whole life of a job."""
    uid = f"87a3fb58-4084-4186-9c0e-{number:012x}"
    pod = {"pod_uid": uid, "io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": "batch"}
    with task() as init:
        hook(created(f"c{number}", init.pid, **pod))
        resctrl.control(do="add", group=f"/mon_groups/oci-{uid}", amount=str(joules), **ENERGY)
    hook(stopped(f"c{number}", **pod))


def of_jobs(found: dict[frozenset[tuple[str, str]], float]) -> dict[str, float]:
    return {dict(labels)["pod"]: value for labels, value in found.items()}


def test_queries_count_all_that_short_jobs_used(server: Prometheus) -> None:
    at = server.find_last_scrape(f'{JOULES}{{job="created"}}')
    found = server.ask(f'sum by (pod) (increase({JOULES}{{job="created"}}[1h]))', at)
    assert of_jobs(found) == pytest.approx(JOBS, rel=1e-9)
    assert server.list_series(BEGUN) == [], "with the flag they are no series of their own"

    at = server.find_last_scrape(f'{JOULES}{{job="plain"}}')
    lost = server.ask(f'sum by (pod) (increase({JOULES}{{job="plain"}}[1h]))', at)
    assert sum(lost.values()) == 0
    (query,) = [it for it in blocks(page("docs/metrics.md", "Jobs that are shorter than a scrape")) if "sum by" in it]
    highest = server.ask(query.replace(JOULES, f'{JOULES}{{job="plain"}}'), at)
    assert of_jobs(highest) == pytest.approx(JOBS, rel=1e-9)
