# SPDX-License-Identifier: Apache-2.0
"""What `helm test` does and says: against an API server of few words whose nodes meter,
or fail to in every way.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import ssl
import struct
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes.config import incluster_config

from tests.unit.documents import anchors, page
from tests.unit.test_kubernetes_cluster import TOKEN, ApiHandler, Object, make_api, serving

import cluster
import trial
from ready import SUPPORTED, UNCALLED

ACCEPTED = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # by a server: RFC 6455, section 1.3
CLOSE = b"\x88\x00"
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
            "initContainerStatuses": [
                {"name": "check", "ready": True, "state": {"terminated": {"message": check}}}
            ],
        },
    }


class TrialCluster:
    """Nodes that meter; `ill`: what is wrong with them all.

    `pods`: those that were made, by name.
    """

    def __init__(self) -> None:
        self.daemons = [daemon("a"), daemon("b")]
        self.pods: dict[str, Object] = {}
        self.made: list[Object] = []
        self.patched: list[Object] = []
        self.ill: set[str] = set()
        self.reads = 0
        self.inside: set[str] = set()  # the nodes on which exec has started a process
        self.events: list[Object] = []  # of the DaemonSet

    def get_pods(self, name: str, _body: object) -> tuple[int, Object]:
        if not name:
            return 200, {"items": self.daemons}
        pods = {pod["metadata"]["name"]: pod for pod in self.daemons} | self.pods
        return (200, pods[name]) if name in pods else (404, {})

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
        return 200, {}

    def patch_pods(self, _name: str, body: Object) -> tuple[int, Object]:
        self.patched.append(body)
        return 200, {}

    def execute(self, pod: str, command: list[str]) -> tuple[int, str]:
        """What a command prints in a container of the DaemonSet's, and its exit status."""
        assert pod.startswith("hook-"), pod
        if "show" in command:
            state = "live" if self.pods or "reconcile" in self.ill else "completed"
            return (
                (2, "")
                if "unhooked" in self.ill
                else (0, json.dumps({"state": state, "members": {CONTAINER: {}}}))
            )
        if "ready.py" in command:
            return (
                1,
                "reconcile has not ended a run"
                if "stopped" in self.ill
                else f"{UNCALLED}: 1 containers",
            )
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
        if url.path.endswith("/namespaces/ns/events"):
            (selector,) = parse_qs(url.query)["fieldSelector"]
            assert (
                selector
                == "involvedObject.kind=DaemonSet,involvedObject.name=hook,reason=FailedCreate"
            )
            return self.send(200, {"items": self.kube.events})
        name = url.path.partition("/namespaces/ns/pods")[2].strip("/")
        if name.endswith("/exec"):
            assert self.headers["Authorization"] == TOKEN
            return self.execute(name.removesuffix("/exec"), parse_qs(url.query))
        return self.send(
            *getattr(self.kube, f"{self.command.lower()}_pods")(name, self.read_body())
        )

    def execute(self, pod: str, query: dict[str, list[str]]) -> None:
        if self.kube.get_pods(pod, None)[0] != 200:
            return self.send(404, "")
        key = hashlib.sha1(
            self.headers["Sec-WebSocket-Key"].encode() + ACCEPTED, usedforsecurity=False
        )
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", b64encode(key.digest()).decode())
        self.send_header(
            "Sec-WebSocket-Protocol", self.headers["Sec-WebSocket-Protocol"].split(",")[0]
        )
        self.end_headers()
        self.frame(1, b"")  # as the API server begins
        if query["container"] == ["load"]:
            self.kube.inside.add(self.kube.pods[pod]["spec"]["nodeName"])
            self.frame(1, b"in\n")
            self.rfile.read(1)  # until the client closes the connection
            return None
        if "connection" not in self.kube.ill:
            status, text = self.kube.execute(pod, query["command"])
            for piece in (text[:1], text[1:]):
                self.frame(1, piece.encode())
            causes = {"causes": [{"reason": "ExitCode", "message": str(status)}]}
            ended = {"status": "Failure", "details": causes} if status else {"status": "Success"}
            if "program" in self.kube.ill:
                ended = {"status": "Failure", "message": "no such file"}
            self.frame(3, json.dumps(ended).encode())
        self.wfile.write(CLOSE)
        self.rfile.read(8)  # the client's answer
        return None

    def frame(self, channel: int, data: bytes) -> None:
        size = len(data) + 1
        length = struct.pack("!BH", 126, size) if size > 125 else bytes([size])
        self.wfile.write(b"\x82" + length + bytes([channel]) + data)


@pytest.fixture
def kube() -> TrialCluster:
    return TrialCluster()


@pytest.fixture
def plan() -> Object:
    pod = {
        "metadata": {"name": "hook-tested", "annotations": {}},
        "spec": {"containers": [{"name": "load"}]},
    }
    options = ["--resctrl-root=/r", "--linger=600"]
    names = {
        "namespace": "ns",
        "daemonset": "hook",
        "selector": "component=node",
        "hooksDir": "/hooks.d",
    }
    return {
        **names,
        "everyNode": True,
        "watch": True,
        "metrics": True,
        "options": options,
        "pod": pod,
    }


@pytest.fixture
def api(kube: TrialCluster, plan: Object, monkeypatch: pytest.MonkeyPatch) -> Iterator[cluster.Api]:
    monkeypatch.setattr(trial, "POLL", 0.001)
    with serving(kube, TrialHandler) as plan["port"]:
        yield make_api(plan["port"])


def test_every_node_is_tried_and_nothing_is_left(
    api: cluster.Api, kube: TrialCluster, plan: Object, capsys: pytest.CaptureFixture[str]
) -> None:
    trial.run(api, plan, "hook-test")
    lines = capsys.readouterr().out.splitlines()
    said = (
        f"meters: {UID} was a member, resctrl_mon_core_energy_joules_total grew, exec was "
        "charged, at once"
    )
    assert lines[:2] == [f"{name}: {said}, and it was completed" for name in "ab"]
    assert lines[2:] == ["nodes that meter: 2 of 2 tried"]
    assert [pod["spec"]["nodeName"] for pod in kube.made] in (["a", "b"], ["b", "a"])
    assert kube.pods == {}
    assert [pod["metadata"]["ownerReferences"] for pod in [*kube.made, *kube.patched]] == [
        [OWNER]
    ] * 3


def test_one_node_is_tried_if_not_every_one_is_to_be_and_a_ready_one_first(
    api: cluster.Api, kube: TrialCluster, plan: Object
) -> None:
    kube.daemons[0]["status"]["conditions"] = []
    trial.run(api, {**plan, "everyNode": False, "watch": False}, "hook-test")
    assert [pod["spec"]["nodeName"] for pod in kube.made] == ["b"]


@pytest.mark.parametrize("ill", [set(), {"stopped"}], ids=["calls none", "stopped"])
def test_a_node_whose_probe_saw_no_hook_called_is_tried_and_another_one_that_is_not_ready_fails(
    api: cluster.Api,
    kube: TrialCluster,
    plan: Object,
    monkeypatch: pytest.MonkeyPatch,
    ill: set[str],
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
    "nothing is monitored and nothing is recorded: no hook was called for a container. Does the "
    "runtime read hooksDir="
)


@pytest.mark.parametrize(
    ("ill", "patience", "said"),
    [
        ({"unhooked"}, "MEMBER", NEVER),
        (
            {"unhooked", "no_rmids"},
            "MEMBER",
            "a container is not monitored: no_rmids: no RMID is left",
        ),
        ({"metrics"}, "MEMBER", f"metrics have no series with the uid {UID}"),
        ({"counter"}, "GROWTH", f"no counter of {UID} grew within 0 s"),
        ({"watch"}, "AT_ONCE", "a process of exec is not in its pod's group within 0 s"),
        ({"reconcile"}, "COMPLETION", f"its key {UID} is not completed 0 s after the pod"),
        (
            {"image"},
            "START",
            "a pod does not start on the node: {'waiting': {'reason': 'ErrImagePull'}}",
        ),
    ],
    ids=lambda value: "+".join(sorted(value)) if isinstance(value, set) else None,
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
    headings = re.findall(r"docs/troubleshooting\.md#([a-z-]+)", printed)
    assert set(headings) <= anchors(page("docs/troubleshooting.md"))
    assert headings or ill <= {"metrics", "counter", "image"}
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


def test_a_daemonset_without_a_pod_is_explained_by_its_last_event(
    api: cluster.Api, kube: TrialCluster, plan: Object
) -> None:
    """As in a namespace of Pod Security `baseline`, or with a quota on the priority class."""
    kube.daemons = []
    with pytest.raises(
        cluster.Failed, match="the DaemonSet has no pod: does its nodeSelector leave out all nodes"
    ):
        trial.run(api, plan, "hook-test")
    refused = (
        'Error creating: pods "hook-x" is forbidden: violates PodSecurity "baseline:latest": host '
        "namespaces"
    )
    kube.events = [
        {"message": refused + "\n" + "x" * 9999, "lastTimestamp": "2026-11-29T10:00:01Z"},
        {"message": "a quota", "lastTimestamp": None, "eventTime": "2026-11-29T10:00:00.000000Z"},
    ]
    with pytest.raises(cluster.Failed) as caught:
        trial.run(api, plan, "hook-test")
    said, _, link = str(caught.value).partition("; docs/troubleshooting.md#")
    assert said == f"the DaemonSet can make no pod: FailedCreate: {refused}"
    assert link in anchors(page("docs/troubleshooting.md"))


def test_filters_of_the_hook_are_met_or_named(
    api: cluster.Api, kube: TrialCluster, plan: Object
) -> None:
    plan["options"] = ["--annotation=meter=yes", "--namespace=ns", "--monitor=opt-in"]
    trial.run(api, {**plan, "everyNode": False}, "hook-test")
    assert kube.made[0]["metadata"]["annotations"] == {"meter": "yes"}
    plan["options"] = ["--namespace=other"]
    with pytest.raises(cluster.Failed, match="--namespace leaves out ns"):
        trial.run(api, plan, "hook-test")


def test_without_metrics_there_is_nothing_to_ask(api: cluster.Api, plan: Object) -> None:
    with pytest.raises(cluster.Failed, match=r"metrics\.enabled=false"):
        trial.run(api, {**plan, "metrics": False}, "hook-test")


def test_an_exec_that_is_refused_or_starts_nothing_or_does_not_end_has_failed(
    api: cluster.Api, kube: TrialCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(cluster.Failed, match=r"exec in gone load: .* 404 "):
        api.execute("gone", "load", ["true"])
    kube.ill = {"program"}
    with pytest.raises(cluster.Failed, match="exec in hook-a reconcile: no such file"):
        api.execute("hook-a", "reconcile", ["true"])
    kube.ill = {"connection"}
    with pytest.raises(
        cluster.Failed,
        match="exec in hook-a reconcile: the connection ended before the command did",
    ):
        api.execute("hook-a", "reconcile", ["true"])
    kube.pods = {"pod": {"spec": {"nodeName": "a"}}}
    monkeypatch.setattr(cluster, "_PATIENCE", 0.01)
    with pytest.raises(cluster.Failed, match="exec in pod load: sleep does not end within"):
        api.execute("pod", "load", ["sleep"])


CERTIFICATE = [
    "openssl",
    "req",
    "-x509",
    "-newkey",
    "ec",
    "-pkeyopt",
    "ec_paramgen_curve:prime256v1",
    "-nodes",
]
CERTIFICATE += ["-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1"]
CERTIFICATE += ["-addext", "keyUsage=critical,digitalSignature,keyCertSign"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="not installed: openssl")
def test_a_pod_has_the_token_and_the_authority_of_its_cluster_and_only_there(
    kube: TrialCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, authority, key = (tmp_path / name for name in ("token", "ca.crt", "key"))
    token.write_text("secret")
    subprocess.run(
        [*CERTIFICATE, "-keyout", key, "-out", authority], check=True, capture_output=True
    )
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    with pytest.raises(
        cluster.Failed, match="cannot reach the API server: Service host/port is not set"
    ):
        cluster.connect("ns")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority, key)
    with serving(kube, TrialHandler, context) as port:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
        api = cluster.connect("ns")
        assert api.select(api.core.list_namespaced_pod, "component=node") == kube.daemons
        assert api.execute("hook-a", "reconcile", ["list"]) == (0, '{"unmonitored": []}')
