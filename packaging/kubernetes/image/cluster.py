# SPDX-License-Identifier: Apache-2.0
"""Removes the hook from all nodes: by Jobs on each node that has a pod of the DaemonSet when this starts.

Each step ends before the next one begins. Started again after a failure, this goes on where it was.

1. remove the Jobs of an earlier removal, and make two suspended Jobs for each node, which record the list of nodes
2. delete the DaemonSet with its pods, so that it installs nothing again
3. start the first Jobs, which remove the JSON, so that no new container gets the hook
4. start the second Jobs, which end all keys, and put a stub into the place of the program. They end at once, and vanish
   then (ttlSecondsAfterFinished)
5. delete the first Jobs, whose own containers had the hook
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import ssl
import struct
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PLAN = Path("/plan/plan.json")
"""From the chart: `namespace`, `daemonset`, `selector` of its pods, and the Jobs `remove-json`, `remove-program`."""
_PATIENCE = 30.0  # seconds in which the server sends a part of what a command prints
POLL = 2.0  # seconds between two looks; activeDeadlineSeconds of the uninstall Job limits the whole

_CONFLICT, _NOT_FOUND = 409, 404
_WITH_PODS = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
SINCE = "resctrl-mon.io/removed-at"
"""The annotation of a Job's pod: the Unix time at which its step began. It leaves alone what was installed later."""


class Failed(Exception):
    """A request that the API server refused or did not answer, in a line."""


class Api:
    """A client of the API server for a pod in the namespace of the release."""

    def __init__(self, url: str, namespace: str, token: str = "", context: ssl.SSLContext | None = None) -> None:
        self._url = url
        self._namespace = namespace
        self._token = token
        self._context = context

    def call(self, method: str, kind: str, name: str = "", selector: str = "", body: Any = None) -> dict[str, Any]:  # noqa: ANN401  JSON
        """Make a request. The answer is empty if the object does not exist, or exists already. Raises Failed."""
        group = {"daemonsets": "apis/apps", "jobs": "apis/batch", "pods": "api"}[kind]
        path = f"/{group}/v1/namespaces/{self._namespace}/{kind}{'/' if name else ''}{name}"
        query = f"?{urllib.parse.urlencode({'labelSelector': selector})}" if selector else ""
        data = None if body is None else json.dumps(body).encode()
        form = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": form}
        request = urllib.request.Request(self._url + path + query, data, headers, method=method)  # noqa: S310  https
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._context) as answer:  # noqa: S310  as above
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            if error.code in (_CONFLICT, _NOT_FOUND):
                return {}
            raise Failed(f"{method} {path}: {error.code} {error.read().decode(errors='replace')[:300]}") from None
        except (OSError, ValueError) as error:
            raise Failed(f"{method} {path}: {error}") from None

    def execute(
        self, pod: str, container: str, command: list[str], follow: Callable[[str], None] | None = None
    ) -> tuple[int, str]:
        """Run a command in a container; returns its exit status and what it printed. Raises Failed.

        `follow`: gets each piece that it prints. Source: the API server's subprotocol v4.channel.k8s.io of RFC 6455.
        """
        words = [("container", container), ("stdout", "true"), ("stderr", "true")]
        words += [("command", word) for word in command]
        path = f"/api/v1/namespaces/{self._namespace}/pods/{pod}/exec?{urllib.parse.urlencode(words)}"
        printed: list[str] = []
        try:
            with self._connect(path) as stream:
                while True:
                    channel, data = _read_message(stream)
                    if channel == _STATUS:
                        return _find_exit_status(json.loads(data)), "".join(printed)
                    printed.append(data.decode(errors="replace"))
                    if follow is not None and data:
                        follow(printed[-1])
        except (OSError, ValueError, EOFError) as error:
            raise Failed(f"exec in {pod} {container}: {error}") from None

    def _connect(self, path: str) -> BinaryIO:
        """Open a WebSocket; returns what the server sends. Raises OSError."""
        url = urllib.parse.urlsplit(self._url)
        head = [
            f"GET {path} HTTP/1.1",
            f"Host: {url.netloc}",
            f"Authorization: Bearer {self._token}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
            "Sec-WebSocket-Protocol: v4.channel.k8s.io",
        ]
        with socket.create_connection((url.hostname or "", url.port or 443), timeout=_PATIENCE) as plain:
            client = self._context.wrap_socket(plain, server_hostname=url.hostname) if self._context else plain
            with client:
                client.sendall("".join(f"{line}\r\n" for line in [*head, ""]).encode())
                stream = client.makefile("rb")
        status = stream.readline().decode(errors="replace").strip()
        while stream.readline().strip():
            pass
        if " 101 " not in status:
            stream.close()
            raise OSError(f"{path}: {status}")
        return stream

    def items(self, kind: str, selector: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("GET", kind, selector=selector).get("items", [])
        return found


_STATUS = 3  # the channel of how the command ended; 1 and 2 are its stdout and stderr
_CLOSE, _SHORT, _LONG = 8, 126, 127  # RFC 6455, section 5.2: an opcode, and two lengths that more bytes follow


def _read_message(stream: BinaryIO) -> tuple[int, bytes]:
    """Read a message of a WebSocket: its channel, and its data. Raises EOFError, OSError."""
    message = b""
    while True:
        first, second = _read(stream, 2)
        length = second
        if length in (_SHORT, _LONG):
            (length,) = struct.unpack("!H" if length == _SHORT else "!Q", _read(stream, 2 if length == _SHORT else 8))
        data = _read(stream, length)
        if first & 15 == _CLOSE:
            raise EOFError("the connection was closed before the command ended")
        if first & 15 > _CLOSE:
            continue  # a ping
        message += data
        if first & 128 and message:
            return message[0], message[1:]


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the connection ended before the command did")
    return data


def _find_exit_status(status: dict[str, Any]) -> int:
    """Return the exit status in the Status with which an exec ends. Raises OSError if the command did not start."""
    if status.get("status") == "Success":
        return 0
    causes = status.get("details", {}).get("causes") or []
    found = next((cause["message"] for cause in causes if cause.get("reason") == "ExitCode"), None)
    if found is None:
        raise OSError(str(status.get("message")))
    return int(found)


def connect(namespace: str) -> Api:
    """Return a client of the API server, as a pod with a token reaches it."""
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    url = f"https://{f'[{host}]' if ':' in host else host}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    return Api(url, namespace, (ACCOUNT / "token").read_text(encoding="ascii"), context)


def uninstall() -> None:
    """Remove the hook from all nodes. Raises Failed."""
    plan = json.loads(PLAN.read_text(encoding="utf-8"))
    run(connect(plan["namespace"]), plan)


def run(api: Api, plan: dict[str, Any]) -> None:
    """Take the steps above. Raises Failed."""
    first, second = plan["remove-json"], plan["remove-program"]
    if api.call("GET", "daemonsets", plan["daemonset"]):  # none of this removal's Jobs has started
        for job in (first, second):
            api.call("DELETE", "jobs", selector=_selector(job), body=_WITH_PODS)
            while left := [found["spec"]["template"] for found in _jobs(api, job)]:
                _wait("Jobs of an earlier removal", left)
    for pod in filter(_node, api.items("pods", plan["selector"])):
        for job in [first, second] if _has_reconciled(pod) else [first]:
            api.call("POST", "jobs", body=_job(job, _node(pod)))
    print(f"taking the hook off {len(_jobs(api, first))} nodes")
    api.call("DELETE", "daemonsets", plan["daemonset"], body=_WITH_PODS)
    while left := api.items("pods", plan["selector"]):
        _wait("pods of the DaemonSet", left)
    _resume(api, first)
    while left := [found for found in _jobs(api, first) if not found.get("status", {}).get("succeeded")]:
        _wait("the JSON", [found["spec"]["template"] for found in left])
    _resume(api, second)
    api.call("DELETE", "jobs", selector=_selector(first), body=_WITH_PODS)
    print("no container gets the hook any more; a Job on each node ends all keys and takes the program away")


def _has_reconciled(pod: dict[str, Any]) -> bool:
    """Return whether a pod's containers ever ran: if not, the DaemonSet has installed nothing on its node."""
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return any(status["name"] == "reconcile" and status.get("containerID") for status in statuses)


def _resume(api: Api, job: dict[str, Any]) -> None:
    """Start the Jobs that have not started. Until then the annotations of their pods may change."""
    began = {"metadata": {"annotations": {SINCE: f"{time.time():.3f}"}}}
    for found in _jobs(api, job):
        if found["spec"].get("suspend"):
            api.call("PATCH", "jobs", found["metadata"]["name"], body={"spec": {"suspend": False, "template": began}})


def _wait(what: str, pods: list[dict[str, Any]]) -> None:
    print(f"there are still {what} on {' '.join(sorted(map(_node, pods)))}")
    time.sleep(POLL)


def _jobs(api: Api, job: dict[str, Any]) -> list[dict[str, Any]]:
    return api.items("jobs", _selector(job))


def _selector(job: dict[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in job["metadata"]["labels"].items())


def _node(pod: dict[str, Any]) -> str:
    """Return the node of a pod; empty if it is not scheduled yet."""
    return pod["spec"].get("nodeName") or ""


def _job(job: dict[str, Any], node: str) -> dict[str, Any]:
    """Return the Job for a node, under a name that depends on the node only."""
    made: dict[str, Any] = json.loads(json.dumps(job))
    digest = hashlib.sha256(node.encode()).hexdigest()[:10]  # a node's name may be longer than that of a Job
    made["metadata"]["name"] = f"{job['metadata']['name']}-{digest}"
    made["spec"]["template"]["spec"]["nodeName"] = node
    return made
