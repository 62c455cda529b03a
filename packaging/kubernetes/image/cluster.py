# SPDX-License-Identifier: Apache-2.0
"""Removes the hook from all nodes: by Jobs on each node that has a pod of the DaemonSet when this starts.

Each step ends before the next one begins. Started again after a failure, this goes on where it was.

1. make two suspended Jobs for each node, which record the list of nodes
2. delete the DaemonSet with its pods, so that it installs nothing again
3. start the first Jobs, which remove the JSON, so that no new container gets the hook
4. start the second Jobs, which wait until no container calls the program, end the groups that linger, and remove it.
   They outlive the release, since containers may run for months, and vanish once done (ttlSecondsAfterFinished)
5. delete the first Jobs, whose own containers had the hook
"""

from __future__ import annotations

import hashlib
import json
import os
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PLAN = Path("/plan/plan.json")
"""From the chart: `namespace`, `daemonset`, `selector` of its pods, and the Jobs `remove-json`, `remove-program`."""
POLL = 2.0  # seconds between two looks; activeDeadlineSeconds of the uninstall Job limits the whole

_CONFLICT, _NOT_FOUND = 409, 404
_WITH_PODS = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
_RESUME = {"spec": {"suspend": False}}


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
        """Make a request; `{}`: the object does not exist, or exists already. Raises Failed."""
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

    def items(self, kind: str, selector: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("GET", kind, selector=selector).get("items", [])
        return found


def uninstall() -> None:
    """See above. Failed."""
    plan = json.loads(PLAN.read_text(encoding="utf-8"))
    url = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    run(Api(url, plan["namespace"], (ACCOUNT / "token").read_text(encoding="ascii"), context), plan)


def run(api: Api, plan: dict[str, Any]) -> None:
    """See above. Failed."""
    first, second = plan["remove-json"], plan["remove-program"]
    for pod in filter(_node, api.items("pods", plan["selector"])):
        for job in [first, second] if _has_reconciled(pod) else [first]:
            api.call("POST", "jobs", body=_job(job, _node(pod)))
    print(f"taking the hook off {len(_jobs(api, first))} nodes")
    api.call("DELETE", "daemonsets", plan["daemonset"], body=_WITH_PODS)
    while left := api.items("pods", plan["selector"]):
        _wait("pods of the DaemonSet", left)
    _resume(api, first)
    while left := [it["spec"]["template"] for it in _jobs(api, first) if not it.get("status", {}).get("succeeded")]:
        _wait("the JSON", left)
    _resume(api, second)
    api.call("DELETE", "jobs", selector=_selector(first), body=_WITH_PODS)
    print("no container gets the hook any more; a Job on each node removes the program once no container calls it")


def _has_reconciled(pod: dict[str, Any]) -> bool:
    """Whether a pod's containers ever ran: if not, the DaemonSet has installed nothing on its node."""
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return any(it["name"] == "reconcile" and it.get("containerID") for it in statuses)


def _resume(api: Api, job: dict[str, Any]) -> None:
    for it in _jobs(api, job):
        api.call("PATCH", "jobs", it["metadata"]["name"], body=_RESUME)


def _wait(what: str, pods: list[dict[str, Any]]) -> None:
    print(f"there are still {what} on {' '.join(sorted(map(_node, pods)))}")
    time.sleep(POLL)


def _jobs(api: Api, job: dict[str, Any]) -> list[dict[str, Any]]:
    return api.items("jobs", _selector(job))


def _selector(job: dict[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in job["metadata"]["labels"].items())


def _node(pod: dict[str, Any]) -> str:
    """The node of a pod; empty if it is not scheduled yet."""
    return pod["spec"].get("nodeName") or ""


def _job(job: dict[str, Any], node: str) -> dict[str, Any]:
    """The Job for a node, under a name that depends on the node only."""
    made: dict[str, Any] = json.loads(json.dumps(job))
    digest = hashlib.sha256(node.encode()).hexdigest()[:10]  # a node's name may be longer than that of a Job
    made["metadata"]["name"] = f"{job['metadata']['name']}-{digest}"
    made["spec"]["template"]["spec"]["nodeName"] = node
    return made
