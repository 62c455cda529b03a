"""How the hook is taken off all nodes: against an API server of few words, with pods and Jobs as the real one has."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

import cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

Object = dict[str, Any]
NODES = ["a", "b", "node.with.a.name-" + "x" * 60]


def job(kind: str, **spec: object) -> Object:
    labels = {"component": kind}
    return {
        "metadata": {"name": f"hook-{kind}", "labels": labels},
        "spec": {**spec, "template": {"metadata": {"labels": labels}, "spec": {"containers": []}}},
    }


PLAN = {
    "namespace": "ns",
    "daemonset": "hook",
    "selector": "component=node",
    "remove-json": job("remove-json", suspend=True),
    "remove-program": job("remove-program"),
}


class Cluster:
    """Nodes with the hook on them, and what happened, in order. `refuses`: a request that is answered by 403."""

    def __init__(self, nodes: list[str]) -> None:
        self.events: list[str] = []
        labels = {"component": "node"}
        self.pods: list[Object] = [{"metadata": {"labels": labels}, "spec": {"nodeName": name}} for name in nodes]
        self.jobs: dict[str, Object] = {}
        self.refuses = ""
        self.paths: set[str] = set()

    def answer(self, method: str, url: str, body: Any) -> tuple[int, Object]:  # noqa: ANN401  JSON
        parts = urlsplit(url)
        self.paths.add(parts.path)
        kind, _, name = parts.path.partition("/namespaces/ns/")[2].partition("/")
        selector = dict(it.split("=", 1) for it in parse_qs(parts.query).get("labelSelector", [""])[0].split(",") if it)
        if f"{method} {kind}" == self.refuses:
            return 403, {"message": "forbidden"}
        return getattr(self, f"{method.lower()}_{kind}")(name, selector, body)  # type: ignore[no-any-return]

    def get_pods(self, _name: str, selector: Object, _body: object) -> tuple[int, Object]:
        return 200, {"items": chosen(self.pods, selector)}

    def delete_daemonsets(self, name: str, _selector: Object, body: Object) -> tuple[int, Object]:
        assert body["propagationPolicy"] == "Background"
        assert name == "hook"
        self.events.append("daemonset gone")
        there, self.pods = bool(self.pods), []
        return (200, {}) if there else (404, {})

    def get_jobs(self, _name: str, selector: Object, _body: object) -> tuple[int, Object]:
        return 200, {"items": chosen(list(self.jobs.values()), selector)}

    def post_jobs(self, _name: str, _selector: Object, body: Object) -> tuple[int, Object]:
        name = body["metadata"]["name"]
        if name in self.jobs:
            return 409, {}
        self.jobs[name] = body
        self.events.append(f"{body['metadata']['labels']['component']} on {node_of(body)}")
        return 201, body

    def patch_jobs(self, name: str, _selector: Object, body: Object) -> tuple[int, Object]:
        found = self.jobs[name]
        found["spec"].update(body["spec"])
        if not found["spec"]["suspend"] and not self.pods:
            found["status"] = {"succeeded": 1}
            self.events.append(f"JSON off {node_of(found)}")
        return 200, found

    def delete_jobs(self, _name: str, selector: Object, _body: object) -> tuple[int, Object]:
        gone = chosen(list(self.jobs.values()), selector)
        self.jobs = {name: it for name, it in self.jobs.items() if it not in gone}
        self.events.append(f"{len(gone)} Jobs gone")
        return 200, {}


def chosen(objects: list[Object], selector: Object) -> list[Object]:
    return [it for it in objects if selector.items() <= it["metadata"]["labels"].items()]


def node_of(job: Object) -> str:
    name: str = job["spec"]["template"]["spec"]["nodeName"]
    return name


@pytest.fixture
def kube() -> Cluster:
    return Cluster(NODES)


@pytest.fixture
def api(kube: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[cluster.Api]:
    monkeypatch.setattr(cluster, "POLL", 0.0)

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            assert self.headers["Authorization"] == "Bearer secret"
            merges = self.headers["Content-Type"] == "application/merge-patch+json"
            assert merges is (self.command == "PATCH")
            length = int(self.headers.get("Content-Length") or 0)
            status, found = kube.answer(self.command, self.path, json.loads(self.rfile.read(length) or b"null"))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815  the library's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the library's name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield cluster.Api(f"http://127.0.0.1:{server.server_port}", "ns", "secret")
        server.shutdown()
        thread.join()


def test_each_step_is_over_on_all_nodes_before_the_next_begins(api: cluster.Api, kube: Cluster) -> None:
    cluster.run(api, PLAN)
    assert kube.events == [
        *(f"remove-json on {name}" for name in NODES),
        "daemonset gone",
        *(f"JSON off {name}" for name in NODES),
        *(f"remove-program on {name}" for name in NODES),
        "3 Jobs gone",
    ]
    assert [node_of(it) for it in kube.jobs.values()] == NODES
    assert all(len(name) <= 63 for name in kube.jobs)


def test_it_stays_in_its_namespace(api: cluster.Api, kube: Cluster) -> None:
    cluster.run(api, PLAN)
    assert {path.split("/namespaces/")[1].split("/")[0] for path in kube.paths} == {"ns"}


def test_the_plan_is_not_changed_by_it(api: cluster.Api) -> None:
    before = json.dumps(PLAN)
    cluster.run(api, PLAN)
    assert json.dumps(PLAN) == before


@pytest.mark.parametrize("request_", ["DELETE daemonsets", "PATCH jobs", "DELETE jobs"])
def test_after_a_failure_it_goes_on_with_all_nodes(api: cluster.Api, kube: Cluster, request_: str) -> None:
    """Also when the DaemonSet is gone, by whose pods the nodes were known."""
    kube.refuses = request_
    with pytest.raises(cluster.Failed, match=r"403 .*forbidden"):
        cluster.run(api, PLAN)
    kube.refuses = ""
    cluster.run(api, PLAN)
    assert [node_of(it) for it in kube.jobs.values()] == NODES
    assert kube.events[-1] == "3 Jobs gone"
    assert len({event for event in kube.events if event.startswith("JSON off")}) == len(NODES)


def test_a_pod_that_is_on_no_node_yet_is_nobodys(api: cluster.Api, kube: Cluster) -> None:
    del kube.pods[0]["spec"]["nodeName"]
    cluster.run(api, PLAN)
    assert [node_of(it) for it in kube.jobs.values()] == NODES[1:]


def test_no_node_at_all(api: cluster.Api, kube: Cluster) -> None:
    kube.pods = []
    cluster.run(api, PLAN)
    assert kube.jobs == {}


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "POLL", 0.0)
    with pytest.raises(cluster.Failed, match="GET /api/v1/namespaces/ns/pods: "):
        cluster.run(cluster.Api("http://127.0.0.1:1", "ns"), PLAN)
