# SPDX-License-Identifier: Apache-2.0
"""How the hook is taken off all nodes: the client of PyPI speaks to an API server of few
words, with pods and Jobs.
"""

from __future__ import annotations

import json
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes.client import Configuration

from tests.unit.files import ROOT, start

import cluster

Object = dict[str, Any]
NODES = ["a", "b", "node.with.a.name-" + "x" * 60]


LIMITED = {"name": "hook", "resources": {"limits": {"cpu": 1}}}
"""A number, as a user of the chart writes it. Kubernetes takes it, and so must the client."""


def job(kind: str, **spec: object) -> Object:
    labels = {"component": kind}
    return {
        "metadata": {"name": f"hook-{kind}", "labels": labels},
        "spec": {
            **spec,
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [LIMITED]}},
        },
    }


PLAN = {
    "namespace": "ns",
    "daemonset": "hook",
    "selector": "component=node",
    "remove-json": job("remove-json", suspend=True),
    "remove-program": job("remove-program", suspend=True),
}


def node_pod(node: str) -> Object:
    statuses = [
        {"name": "install", "containerID": "cri-o://1"},
        {"name": "reconcile", "containerID": "cri-o://2"},
    ]
    metadata = {"labels": {"component": "node"}}
    return {
        "metadata": metadata,
        "spec": {"nodeName": node},
        "status": {"containerStatuses": statuses},
    }


class Cluster:
    """Nodes with the hook on them, and what happened, in order.

    `refuses`: a request that is answered by 403.

    Nothing happens at once: what is asked for is under way at the first look at it,
    and is done at the second.
    """

    def __init__(self, nodes: list[str]) -> None:
        self.events: list[str] = []
        self.pods = [node_pod(name) for name in nodes]
        self.jobs: dict[str, Object] = {}
        self.refuses = ""
        self.is_going = False
        self.paths: set[str] = set()

    def answer(self, method: str, url: str, body: Any) -> tuple[int, Object]:  # noqa: ANN401  JSON
        parts = urlsplit(url)
        self.paths.add(parts.path)
        kind, _, name = parts.path.partition("/namespaces/ns/")[2].partition("/")
        labels = parse_qs(parts.query).get("labelSelector", [""])[0].split(",")
        selector = dict(label.split("=", 1) for label in labels if label)
        if method == "DELETE":
            assert parse_qs(parts.query)["propagationPolicy"] == ["Background"]
        if f"{method} {kind}" == self.refuses:
            return 403, {"message": "forbidden"}
        return getattr(self, f"{method.lower()}_{kind}")(name, selector, body)  # type: ignore[no-any-return]

    def get_pods(self, _name: str, selector: Object, _body: object) -> tuple[int, Object]:
        pods = select(self.pods, selector)
        if self.is_going and self.pods:
            self.pods = []
            self.events.append("pods gone")
        return 200, {"items": pods}

    def get_daemonsets(self, name: str, _selector: Object, _body: object) -> tuple[int, Object]:
        return (404, {}) if self.is_going else (200, {"metadata": {"name": name}})

    def delete_daemonsets(self, name: str, _selector: Object, _body: object) -> tuple[int, Object]:
        assert name == "hook"
        was_going, self.is_going = self.is_going, True
        self.events += [] if was_going else ["daemonset gone"]
        return (404, {}) if was_going else (200, {})

    def get_jobs(self, _name: str, selector: Object, _body: object) -> tuple[int, Object]:
        jobs = select(list(self.jobs.values()), selector)
        answer = json.loads(json.dumps(jobs))
        for item in jobs:
            if item.get("status") == {"active": 1}:
                item["status"] = {"succeeded": 1}
                self.events.append(f"{component_of(item)} ran on {node_of(item)}")
            elif not item["spec"]["suspend"]:
                item.setdefault("status", {"active": 1})
        return 200, {"items": answer}

    def post_jobs(self, _name: str, _selector: Object, body: Object) -> tuple[int, Object]:
        name = body["metadata"]["name"]
        if name in self.jobs:
            return 409, {}
        assert body["spec"]["template"]["spec"]["containers"] == [LIMITED]
        self.jobs[name] = body
        self.events.append(f"{component_of(body)} is to run on {node_of(body)}")
        return 201, body

    def patch_jobs(self, name: str, _selector: Object, body: Object) -> tuple[int, Object]:
        patched = self.jobs[name]
        (since,) = body["spec"].pop("template")["metadata"]["annotations"].items()
        assert since[0] == "resctrl-mon.io/removed-at"
        assert float(since[1]) > 0
        assert body == {"spec": {"suspend": False}}
        assert patched["spec"]["suspend"], (
            "the annotations of the pods of a Job that has started cannot change"
        )
        patched["spec"]["suspend"] = False
        self.events.append(f"{component_of(patched)} starts on {node_of(patched)}")
        return 200, patched

    def delete_jobs(self, _name: str, selector: Object, _body: object) -> tuple[int, Object]:
        gone = select(list(self.jobs.values()), selector)
        self.jobs = {name: job for name, job in self.jobs.items() if job not in gone}
        self.events += [f"{len(gone)} Jobs gone"] if gone else []
        return 200, {}


def select(objects: list[Object], selector: Object) -> list[Object]:
    return [thing for thing in objects if selector.items() <= thing["metadata"]["labels"].items()]


def node_of(job: Object) -> str:
    name: str = job["spec"]["template"]["spec"]["nodeName"]
    return name


def component_of(job: Object) -> str:
    name: str = job["metadata"]["labels"]["component"]
    return name


@pytest.fixture
def kube() -> Cluster:
    return Cluster(NODES)


class ApiHandler(BaseHTTPRequestHandler):
    """Answers what the server's `kube` answers."""

    kube: Any

    def answer(self) -> None:
        self.send(*self.kube.answer(self.command, self.path, self.read_body()))

    def read_body(self) -> Any:  # noqa: ANN401  JSON
        """The content of a request.

        It must have the token, and the content type that the API server asks for.
        """
        assert self.headers["Authorization"] == TOKEN
        assert (self.headers["Content-Type"] == "application/strategic-merge-patch+json") is (
            self.command == "PATCH"
        )
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")

    def send(self, status: int, content: object) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write((content if isinstance(content, str) else json.dumps(content)).encode())

    def handle_request(self) -> None:
        self.answer()

    do_GET = do_POST = do_PATCH = do_DELETE = handle_request  # noqa: N815  the library's names

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the library's name
        pass


TOKEN = "bearer secret"  # noqa: S105  of a server that is a test's


def make_api(port: int) -> cluster.Api:
    """A client of the server at this port."""
    return cluster.Api(
        "ns", Configuration(host=f"http://127.0.0.1:{port}", api_key={"BearerToken": TOKEN})
    )


@contextmanager
def serving(
    kube: object, handler: type[ApiHandler] = ApiHandler, context: ssl.SSLContext | None = None
) -> Iterator[int]:
    """An API server; its port."""
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Handler", (handler,), {"kube": kube})
    ) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def api(kube: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[cluster.Api]:
    monkeypatch.setattr(cluster, "POLL", 0.0)
    with serving(kube) as port:
        yield make_api(port)


def test_each_step_is_over_on_all_nodes_before_the_next_begins(
    api: cluster.Api, kube: Cluster
) -> None:
    before = json.dumps(PLAN)
    cluster.run(api, PLAN)
    assert json.dumps(PLAN) == before
    kinds = ("remove-json", "remove-program")
    assert kube.events == [
        *(f"{kind} is to run on {name}" for name in NODES for kind in kinds),
        "daemonset gone",
        "pods gone",
        *(f"remove-json starts on {name}" for name in NODES),
        *(f"remove-json ran on {name}" for name in NODES),
        *(f"remove-program starts on {name}" for name in NODES),
        "3 Jobs gone",
    ]
    assert [node_of(job) for job in kube.jobs.values()] == NODES
    assert all(len(name) <= 63 for name in kube.jobs)
    assert {path.split("/namespaces/")[1].split("/")[0] for path in kube.paths} == {"ns"}


def test_jobs_that_an_earlier_removal_has_left_are_made_again(
    api: cluster.Api, kube: Cluster
) -> None:
    """The release was installed again since: a Job that has succeeded would say nothing of it."""
    cluster.run(api, PLAN)
    kube.is_going, kube.pods, kube.events = False, [node_pod(name) for name in NODES], []
    cluster.run(api, PLAN)
    assert kube.events[0] == "3 Jobs gone"
    for kind in ("remove-json", "remove-program"):
        assert {f"{kind} is to run on {name}" for name in NODES} <= set(kube.events)


@pytest.mark.parametrize("request_", ["DELETE daemonsets", "PATCH jobs"])
def test_after_a_failure_it_goes_on_with_all_nodes(
    api: cluster.Api, kube: Cluster, request_: str
) -> None:
    """Also when the DaemonSet is gone, by whose pods the nodes were known."""
    kube.refuses = request_
    with pytest.raises(cluster.Failed, match=r"403 .*forbidden"):
        cluster.run(api, PLAN)
    kube.refuses = ""
    cluster.run(api, PLAN)
    assert [node_of(job) for job in kube.jobs.values()] == NODES
    assert kube.events[-1] == "3 Jobs gone"
    for kind in ("remove-json", "remove-program"):
        assert {f"{kind} starts on {name}" for name in NODES} <= set(kube.events)


def test_a_node_without_resctrl_has_nothing_installed_and_no_job_could_run_there(
    api: cluster.Api, kube: Cluster
) -> None:
    """Its pod's second container could not be made. A JSON of former times goes all the same."""
    kube.pods[0]["status"]["containerStatuses"][1] = {"name": "reconcile", "state": {"waiting": {}}}
    del kube.pods[1]["status"]
    cluster.run(api, PLAN)
    assert [node_of(job) for job in kube.jobs.values()] == NODES[2:]
    assert {f"remove-json ran on {name}" for name in NODES} <= set(kube.events)


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "POLL", 0.0)
    with pytest.raises(cluster.Failed, match=r"^read_namespaced_daemon_set hook: .* refused"):
        cluster.run(make_api(1), PLAN)


def test_the_containers_of_the_daemonset_do_without_the_client_and_its_memory() -> None:
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]; import node; sys.exit('kubernetes' in "
        "sys.modules)"
    )
    done = start([sys.executable, "-c", program, ROOT, ROOT / "packaging/kubernetes/image"])
    assert (done.returncode, done.stderr) == (0, "")


def test_the_image_has_the_client_that_is_tested_here() -> None:
    requirements = (ROOT / "packaging/kubernetes/image/requirements.txt").read_text(
        encoding="utf-8"
    )
    assert f"\nkubernetes=={metadata.version('kubernetes')} \\\n    --hash=sha256:" in requirements
