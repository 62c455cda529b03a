# SPDX-License-Identifier: Apache-2.0
"""What `helm test` does and says: against an API server of few words whose nodes meter, or fail to in every way."""

from __future__ import annotations

import json
import re
import struct
import threading
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.unit.documents import anchors, page
from tests.unit.test_kubernetes_cluster import ApiHandler, Object, serving

import cluster
import trial
from ready import SUPPORTED, UNCALLED

EXEC = ("Bearer secret", "v4.channel.k8s.io")
UID, CONTAINER = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce", "c1" * 32
OWNER = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "hook", "uid": "d"}


def daemon(node: str, check: str = SUPPORTED) -> Object:
    """A ready pod of the DaemonSet."""
    return {
        "metadata": {"name": f"hook-{node}", "ownerReferences": [{**OWNER, "controller": True}]},
        "spec": {"nodeName": node},
        "status": {
            "podIP": "127.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
            "initContainerStatuses": [{"name": "check", "ready": True, "state": {"terminated": {"message": check}}}],
        },
    }


class TrialCluster:
    """Nodes that meter; `ill`: what is wrong with them all. `pods`: those that were made, by name."""

    def __init__(self) -> None:
        self.daemons = [daemon("a"), daemon("b")]
        self.pods: dict[str, Object] = {}
        self.made: list[Object] = []
        self.patched: list[Object] = []
        self.ill: set[str] = set()
        self.reads = 0
        self.inside: set[str] = set()  # the nodes on which exec has started a process
        self.is_over = threading.Event()

    def get_pods(self, name: str, _body: object) -> tuple[int, Object]:
        if not name:
            return 200, {"items": self.daemons}
        found = {item["metadata"]["name"]: item for item in self.daemons} | self.pods
        return (200, found[name]) if name in found else (404, {})

    def post_pods(self, _name: str, body: Object) -> tuple[int, Object]:
        state = {"waiting": {"reason": "ErrImagePull"}} if "image" in self.ill else {"running": {}}
        phase = "Pending" if "image" in self.ill else "Running"
        status = {"name": "load", "state": state, "containerID": f"cri-o://{CONTAINER}"}
        made = {**body, "status": {"phase": phase, "containerStatuses": [status]}}
        made["metadata"]["uid"] = UID
        self.pods[body["metadata"]["name"]] = made
        self.made.append(made)
        return 201, made

    def delete_pods(self, name: str, _body: object) -> tuple[int, Object]:
        self.pods.pop(name, None)
        self.is_over.set()
        return 200, {}

    def patch_pods(self, _name: str, body: Object) -> tuple[int, Object]:
        self.patched.append(body)
        return 200, {}

    def execute(self, pod: str, command: list[str]) -> tuple[int, str]:
        """What a command prints in a container of the DaemonSet's, and its exit status."""
        assert pod.startswith("hook-"), pod
        if "show" in command:
            state = "live" if self.pods or "reconcile" in self.ill else "completed"
            return (2, "") if "unhooked" in self.ill else (0, json.dumps({"state": state, "members": {CONTAINER: {}}}))
        if "ready.py" in command:
            return 1, "reconcile has not ended a run" if "stopped" in self.ill else f"{UNCALLED}: 1 containers"
        if "list" in command:
            failure = {"container": CONTAINER, "reason": "no_rmids", "problem": "no RMID is left"}
            return 0, json.dumps({"unmonitored": [failure] if "no_rmids" in self.ill else []})
        return 0, f"{1 + (pod.removeprefix('hook-') in self.inside and 'watch' not in self.ill)}\n"

    def measure(self) -> str:
        self.reads += "counter" not in self.ill
        series = f'resctrl_mon_core_energy_joules_total{{uid="{UID}",domain="0"}} {self.reads}\n'
        return "resctrl_mon_mounted 1\n" + ("" if "metrics" in self.ill else series)


class TrialHandler(ApiHandler):
    """Answers for the API server and for the nodes' metrics."""

    def answer(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/metrics":
            return self.send(200, self.kube.measure())
        name = url.path.partition("/namespaces/ns/pods")[2].strip("/")
        if name.endswith("/exec"):
            assert (self.headers["Authorization"], self.headers["Sec-WebSocket-Protocol"]) == EXEC
            return self.execute(name.removesuffix("/exec"), parse_qs(url.query))
        return self.send(*getattr(self.kube, f"{self.command.lower()}_pods")(name, self.read_body()))

    def execute(self, pod: str, query: dict[str, list[str]]) -> None:
        if pod not in {**self.kube.pods, **{found["metadata"]["name"]: found for found in self.kube.daemons}}:
            return self.send(404, "")
        self.send_response(101)
        self.end_headers()
        self.frame(1, b"")  # as the API server begins
        if query["container"] == ["load"]:
            self.kube.inside.add(self.kube.pods[pod]["spec"]["nodeName"])
            self.frame(1, b"in\n")
            self.kube.is_over.wait()
            return None
        status, text = self.kube.execute(pod, query["command"])
        for piece in (text[:1], text[1:]):
            self.frame(1, piece.encode())
        causes = {"causes": [{"reason": "ExitCode", "message": str(status)}]}
        ended = {"status": "Failure", "details": causes} if status else {"status": "Success"}
        return self.frame(3, json.dumps(ended).encode())

    def frame(self, channel: int, data: bytes) -> None:
        size = len(data) + 1
        length = struct.pack("!BH", 126, size) if size > 125 else bytes([size])
        self.wfile.write(b"\x89\x00")  # a ping
        self.wfile.write(b"\x82" + length + bytes([channel]) + data)


@pytest.fixture
def kube() -> TrialCluster:
    return TrialCluster()


@pytest.fixture
def plan() -> Object:
    pod = {"metadata": {"name": "hook-tested", "annotations": {}}, "spec": {"containers": [{"name": "load"}]}}
    options = ["--resctrl-root=/r", "--linger=600"]
    found = {"namespace": "ns", "selector": "component=node", "everyNode": True, "watch": True, "metrics": True}
    return {**found, "hooksDir": "/hooks.d", "options": options, "pod": pod}


@pytest.fixture
def api(kube: TrialCluster, plan: Object, monkeypatch: pytest.MonkeyPatch) -> Iterator[cluster.Api]:
    monkeypatch.setattr(trial, "POLL", 0.001)
    with serving(kube, TrialHandler) as plan["port"]:
        yield cluster.Api(f"http://127.0.0.1:{plan['port']}", "ns", "secret")
        kube.is_over.set()


def test_every_node_is_tried_and_nothing_is_left(
    api: cluster.Api, kube: TrialCluster, plan: Object, capsys: pytest.CaptureFixture[str]
) -> None:
    trial.run(api, plan, "hook-test")
    lines = capsys.readouterr().out.splitlines()
    seen = f"meters: {UID} was a member, resctrl_mon_core_energy_joules_total grew, exec was charged, at once"
    assert lines[:2] == [f"{name}: {seen}, and it was completed" for name in "ab"]
    assert lines[2:] == ["nodes that meter: 2 of 2 tried"]
    assert [found["spec"]["nodeName"] for found in kube.made] in (["a", "b"], ["b", "a"])
    assert kube.pods == {}
    assert [found["metadata"]["ownerReferences"] for found in [*kube.made, *kube.patched]] == [[OWNER]] * 3


def test_one_node_is_tried_if_not_every_one_is_to_be_and_a_ready_one_first(
    api: cluster.Api, kube: TrialCluster, plan: Object
) -> None:
    kube.daemons[0]["status"]["conditions"] = []
    trial.run(api, {**plan, "everyNode": False, "watch": False}, "hook-test")
    assert [found["spec"]["nodeName"] for found in kube.made] == ["b"]


@pytest.mark.parametrize("ill", [set(), {"stopped"}], ids=["calls none", "stopped"])
def test_a_node_whose_probe_saw_no_hook_called_is_tried_and_another_one_that_is_not_ready_fails(
    api: cluster.Api, kube: TrialCluster, plan: Object, monkeypatch: pytest.MonkeyPatch, ill: set[str]
) -> None:
    kube.ill, kube.daemons = ill, kube.daemons[:1]
    probe = {"exec": {"command": ["ready.py"]}}
    kube.daemons[0]["spec"]["containers"] = [{"name": "reconcile", "readinessProbe": probe}]
    status = {"name": "reconcile", "ready": False, "state": {"running": {}}}
    kube.daemons[0]["status"] |= {"conditions": [], "containerStatuses": [status]}
    monkeypatch.setattr(trial, "READY", 0.0)
    if ill:
        with pytest.raises(cluster.Failed, match="1 of 1 nodes tried do not meter"):
            trial.run(api, plan, "hook-test")
    else:
        trial.run(api, plan, "hook-test")
    assert len(kube.made) == (not ill)


NEVER = (
    "nothing is monitored and nothing is recorded: no hook was called for a container. Does the runtime read hooksDir="
)


@pytest.mark.parametrize(
    ("ill", "patience", "said"),
    [
        ({"unhooked"}, "MEMBER", NEVER),
        ({"unhooked", "no_rmids"}, "MEMBER", "a container is not monitored: no_rmids: no RMID is left"),
        ({"metrics"}, "MEMBER", f"metrics have no series with the uid {UID}"),
        ({"counter"}, "GROWTH", f"no counter of {UID} grew within 0 s"),
        ({"watch"}, "AT_ONCE", "a process of exec is not in its pod's group within 0 s"),
        ({"reconcile"}, "COMPLETION", f"its key {UID} is not completed 0 s after the pod"),
        ({"image"}, "START", "a pod does not start on the node: {'waiting': {'reason': 'ErrImagePull'}}"),
    ],
    ids=lambda found: "+".join(sorted(found)) if isinstance(found, set) else None,
)
def test_a_node_that_fails_is_named_with_the_reason(
    api: cluster.Api,
    kube: TrialCluster,
    plan: Object,
    ill: set[str],
    patience: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kube.ill, kube.daemons = ill, kube.daemons[:1]
    monkeypatch.setattr(trial, patience, 0.0)
    with pytest.raises(cluster.Failed, match="1 of 1 nodes tried do not meter: a"):
        trial.run(api, plan, "hook-test")
    printed = capsys.readouterr().out
    assert printed.startswith(f"a: FAILED: {said}")
    named = re.findall(r"docs/troubleshooting\.md#([a-z-]+)", printed)
    assert set(named) <= anchors(page("docs/troubleshooting.md"))
    assert named or ill <= {"metrics", "counter", "image"}
    assert kube.pods == {}


def test_a_node_that_cannot_monitor_is_left_out(
    api: cluster.Api, kube: TrialCluster, plan: Object, capsys: pytest.CaptureFixture[str]
) -> None:
    kube.daemons[0] = daemon("a", "Some Linux 12 has no /usr/bin/python3")
    trial.run(api, plan, "hook-test")
    assert "a: not tried: Some Linux 12 has no /usr/bin/python3" in capsys.readouterr().out
    kube.daemons = kube.daemons[:1]
    with pytest.raises(cluster.Failed, match="no node can monitor"):
        trial.run(api, plan, "hook-test")
    kube.daemons = []
    with pytest.raises(cluster.Failed, match="the DaemonSet has no pod"):
        trial.run(api, plan, "hook-test")


def test_filters_of_the_hook_are_met_or_named(api: cluster.Api, kube: TrialCluster, plan: Object) -> None:
    plan["options"] = ["--annotation=meter=yes", "--namespace=ns", "--monitor=opt-in"]
    trial.run(api, {**plan, "everyNode": False}, "hook-test")
    assert kube.made[0]["metadata"]["annotations"] == {"meter": "yes"}
    plan["options"] = ["--namespace=other"]
    with pytest.raises(cluster.Failed, match="--namespace leaves out ns"):
        trial.run(api, plan, "hook-test")


def test_without_metrics_there_is_nothing_to_ask(api: cluster.Api, plan: Object) -> None:
    with pytest.raises(cluster.Failed, match=r"metrics\.enabled=false"):
        trial.run(api, {**plan, "metrics": False}, "hook-test")


def test_an_exec_that_is_refused_or_starts_nothing_has_failed(api: cluster.Api) -> None:
    with pytest.raises(cluster.Failed, match=r"exec in gone load: .* 404 "):
        api.execute("gone", "load", ["true"])
    with pytest.raises(OSError, match="no such file"):
        cluster._find_exit_status({"status": "Failure", "message": "no such file"})
