# SPDX-License-Identifier: Apache-2.0
"""Takes the hook off all nodes: a Job for each, since a Job's pod runs on one node and a cluster's nodes come and go.

Which nodes is asked when it happens: those that a pod of the DaemonSet is on. In steps, each of which is over before
the next begins; started again after a failure they go on where they were.

1. two Jobs for each node, that do not start yet: from then on it is on record which nodes they are
2. the DaemonSet goes, with its pods: nothing is installed again
3. the first Jobs start, and remove the JSON: no new container gets the hook
4. the second ones start, wait until no container calls the program, end the groups that linger, and remove it. They
   outlive the release, for containers may run on for months, and vanish once done (ttlSecondsAfterFinished)
5. the first ones go, whose own containers had the hook
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
POLL = 2.0  # seconds between two looks; that it all ends is the uninstall Job's activeDeadlineSeconds' affair

_CONFLICT, _NOT_FOUND = 409, 404
_WITH_PODS = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
_RESUME = {"spec": {"suspend": False}}


class Failed(Exception):
    """What the API server did not do, in a line."""


class Api:
    """The API server as a pod reaches it, in the namespace of the release."""

    def __init__(self, url: str, namespace: str, token: str = "", context: ssl.SSLContext | None = None) -> None:
        self._url = url
        self._namespace = namespace
        self._token = token
        self._context = context

    def call(self, method: str, kind: str, name: str = "", selector: str = "", body: Any = None) -> dict[str, Any]:  # noqa: ANN401  JSON
        """One request; `{}` for what is not there, or there already. Failed."""
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
    """Not on a node where the pod's containers could not be made: it has not installed anything there."""
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
    """Empty: it is on none yet."""
    return pod["spec"].get("nodeName") or ""


def _job(job: dict[str, Any], node: str) -> dict[str, Any]:
    """The Job for a node, under a name that is the same each time."""
    made: dict[str, Any] = json.loads(json.dumps(job))
    digest = hashlib.sha256(node.encode()).hexdigest()[:10]  # a node's name may be longer than that of a Job
    made["metadata"]["name"] = f"{job['metadata']['name']}-{digest}"
    made["spec"]["template"]["spec"]["nodeName"] = node
    return made
