# SPDX-License-Identifier: Apache-2.0
"""Removes the hook from all nodes: by Jobs on each node that has a pod of the
DaemonSet when this starts.

Each step ends before the next one begins. Started again after a failure, this goes on where it was.

1. remove the Jobs of an earlier removal, and make two suspended Jobs for each node, which record
   the list of nodes
2. delete the DaemonSet with its pods, so that it installs nothing again
3. start the first Jobs, which remove the JSON, so that no new container gets the hook
4. start the second Jobs, which end all keys, and put a stub into the place of the program. They end
   at once, and vanish then (ttlSecondsAfterFinished)
5. delete the first Jobs, whose own containers had the hook
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kubernetes.client import ApiClient, AppsV1Api, BatchV1Api, Configuration, CoreV1Api
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException, load_incluster_config
from kubernetes.stream import stream
from kubernetes.stream.ws_client import ERROR_CHANNEL, WSClient
from urllib3.exceptions import HTTPError
from websocket import WebSocketException

from hook.install.install import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    Object = dict[str, Any]

PLAN = Path("/plan/plan.json")
"""From the chart: `namespace`, `daemonset`, `selector` of its pods,
and the Jobs `remove-json`, `remove-program`.
"""
POLL = 2.0  # seconds between two looks; activeDeadlineSeconds of the uninstall Job limits the whole
_PATIENCE = 30  # seconds for an answer, and for the end of a command

_CONFLICT, _NOT_FOUND = 409, 404
_WITH_PODS = {"propagation_policy": "Background"}
SINCE = "resctrl-mon.io/removed-at"
"""The annotation of a Job's pod: the Unix time at which its step began.

It leaves alone what was installed later.
"""


class Failed(Refused):
    """The API server refused a request, or did not answer it: a line says so."""


class Api:
    """A client of the API server for a pod in the namespace of the release."""

    def __init__(self, namespace: str, configuration: Configuration) -> None:
        self._namespace = namespace
        self._configuration = configuration
        client = ApiClient(configuration)
        self.apps, self.batch, self.core = AppsV1Api(client), BatchV1Api(client), CoreV1Api(client)

    def call(self, request: Callable[..., Any], *name: str, **options: object) -> Object:
        """Make a request; the answer is empty if the object does not exist, or exists already.

        Raises Failed.

        The answer is the server's JSON: the client's models would refuse what a
        later Kubernetes leaves out.
        """
        options |= {
            "namespace": self._namespace,
            "_request_timeout": _PATIENCE,
            "_preload_content": False,
        }
        what = " ".join((request.__name__, *name))
        try:
            answer: Object = json.loads(request(*name, **options).data)
        except ApiException as error:
            if error.status in (_CONFLICT, _NOT_FOUND):
                return {}
            raise Failed(f"{what}: {error.status} {str(error.body)[:300]}") from None
        except (HTTPError, OSError, ValueError) as error:
            raise Failed(f"{what}: {error}") from None
        return answer

    def select(self, request: Callable[..., Any], selector: str) -> list[Object]:
        items: list[Object] = self.call(request, label_selector=selector).get("items", [])
        return items

    def execute(self, pod: str, container: str, command: list[str]) -> tuple[int, str]:
        """Run a command in a container; returns its exit status and what it printed.

        Raises Failed.
        """
        process = self.start(pod, container, command)
        try:
            process.run_forever(timeout=_PATIENCE)
            if process.is_open():
                raise OSError(f"{command[0]} does not end within {_PATIENCE} s")
            status = _find_exit_status(json.loads(process.read_channel(ERROR_CHANNEL) or "{}"))
            return status, process.read_all()
        except (OSError, ValueError, WebSocketException) as error:
            raise Failed(f"exec in {pod} {container}: {error}") from None
        finally:
            process.sock.shutdown()  # `close` does nothing after the server's

    def start(self, pod: str, container: str, command: list[str]) -> WSClient:
        """Start a command in a container; returns its streams.

        The caller shuts `sock` down. Raises Failed.
        """
        # A client of its own: `stream` puts another function into its place
        # until the command has started.
        request = CoreV1Api(ApiClient(self._configuration)).connect_get_namespaced_pod_exec
        options = {"container": container, "command": command, "stdout": True, "stderr": True}
        try:
            return stream(request, pod, self._namespace, **options, _preload_content=False)
        except (
            AttributeError
        ) as error:  # as version 36 fails on each refusal: it decodes a body that is None
            raise Failed(
                f"exec in {pod} {container}: {getattr(error.__context__, 'reason', error)}"
            ) from None


def _find_exit_status(status: Object) -> int:
    """Return the exit status in the Status with which an exec ends.

    Raises OSError if the command did not start.
    """
    if status.get("status") == "Success":
        return 0
    causes = status.get("details", {}).get("causes") or []
    code = next((cause["message"] for cause in causes if cause.get("reason") == "ExitCode"), None)
    if code is None:
        raise OSError(status.get("message") or "the connection ended before the command did")
    return int(code)


def connect(namespace: str) -> Api:
    """Return a client of the API server, as a pod with a token reaches it. Raises Failed."""
    configuration = Configuration()
    try:
        load_incluster_config(configuration)
    except ConfigException as error:
        raise Failed(f"this pod cannot reach the API server: {error}") from None
    return Api(namespace, configuration)


def uninstall() -> None:
    """Remove the hook from all nodes. Raises Failed."""
    plan = json.loads(PLAN.read_text(encoding="utf-8"))
    run(connect(plan["namespace"]), plan)


def run(api: Api, plan: Object) -> None:
    """Take the steps above. Raises Failed."""
    first, second = plan["remove-json"], plan["remove-program"]
    # None of this removal's Jobs has started.
    if api.call(api.apps.read_namespaced_daemon_set, plan["daemonset"]):
        for job in (first, second):
            _delete(api, job)
            while left := _select_jobs(api, job):
                _wait("Jobs of an earlier removal", [job["spec"]["template"] for job in left])
    for pod in filter(_get_node, api.select(api.core.list_namespaced_pod, plan["selector"])):
        for job in [first, second] if _has_reconciled(pod) else [first]:
            api.call(api.batch.create_namespaced_job, body=_make_job(job, _get_node(pod)))
    print(f"taking the hook off {len(_select_jobs(api, first))} nodes")
    api.call(api.apps.delete_namespaced_daemon_set, plan["daemonset"], **_WITH_PODS)
    while left := api.select(api.core.list_namespaced_pod, plan["selector"]):
        _wait("pods of the DaemonSet", left)
    _resume(api, first)
    while left := [
        job for job in _select_jobs(api, first) if not job.get("status", {}).get("succeeded")
    ]:
        _wait("the JSON", [job["spec"]["template"] for job in left])
    _resume(api, second)
    _delete(api, first)
    print(
        "no container gets the hook any more; a Job on each node ends all keys and takes the "
        "program away"
    )


def _has_reconciled(pod: Object) -> bool:
    """Return whether a pod's containers ever ran: if not,
    the DaemonSet has installed nothing on its node.
    """
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return any(status["name"] == "reconcile" and status.get("containerID") for status in statuses)


def _resume(api: Api, job: Object) -> None:
    """Start the Jobs that have not started. Until then the annotations of their pods may change."""
    began = {"metadata": {"annotations": {SINCE: f"{time.time():.3f}"}}}
    for left in _select_jobs(api, job):
        if left["spec"].get("suspend"):
            body = {"spec": {"suspend": False, "template": began}}
            api.call(api.batch.patch_namespaced_job, left["metadata"]["name"], body=body)


def _wait(what: str, pods: list[Object]) -> None:
    print(f"there are still {what} on {' '.join(sorted(map(_get_node, pods)))}")
    time.sleep(POLL)


def _select_jobs(api: Api, job: Object) -> list[Object]:
    return api.select(api.batch.list_namespaced_job, _make_selector(job))


def _delete(api: Api, job: Object) -> None:
    """Delete the Jobs with the labels of this one, and their pods."""
    api.call(
        api.batch.delete_collection_namespaced_job, label_selector=_make_selector(job), **_WITH_PODS
    )


def _make_selector(job: Object) -> str:
    return ",".join(f"{name}={value}" for name, value in job["metadata"]["labels"].items())


def _get_node(pod: Object) -> str:
    """Return the node of a pod; empty if it is not scheduled yet."""
    return pod["spec"].get("nodeName") or ""


def _make_job(job: Object, node: str) -> Object:
    """Return the Job for a node, under a name that depends on the node only."""
    made: Object = json.loads(json.dumps(job))
    # A node's name may be longer than that of a Job.
    digest = hashlib.sha256(node.encode()).hexdigest()[:10]
    made["metadata"]["name"] = f"{job['metadata']['name']}-{digest}"
    made["spec"]["template"]["spec"]["nodeName"] = node
    return made
