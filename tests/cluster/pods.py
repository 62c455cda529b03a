# SPDX-License-Identifier: Apache-2.0
"""Pods of tenants: in a namespace that admits restricted pods only,
from the one image that every node has.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

from tests.cluster.kube import IMAGE, Object, get, items, kubectl, list_names, wait

TENANTS = "resctrl-mon-hook-tenants"
SLEEP = ("sleep", "86400")
_KINDS = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
_numbers = count(1)


def container(name: str = "app", command: Sequence[str] = SLEEP, **more: Any) -> Object:  # noqa: ANN401  of the API
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {
        "name": name,
        "image": os.environ.get(IMAGE),
        "command": list(command),
        "securityContext": security,
        **more,
    }


def pod(*containers: Object, annotations: dict[str, str] | None = None, **more: Any) -> Object:  # noqa: ANN401  as above
    """A pod with a name of its own."""
    spec = {
        "containers": containers or [container()],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65534,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{"operator": "Exists"}],
    }
    meta = {"name": f"pod-{next(_numbers)}", "namespace": TENANTS, "annotations": annotations or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {**spec, **more}}


def controlled(kind: str, version: str, template: Object, **more: Any) -> Object:  # noqa: ANN401  as above
    """A Job or a Deployment of such pods."""
    labels = {"app": template["metadata"]["name"]}
    meta = {"name": template["metadata"]["name"], "namespace": TENANTS}
    inner = {"metadata": {"labels": labels}, "spec": template["spec"]}
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": meta,
        "spec": {"template": inner, **more},
    }


def live_containers(pod: Object) -> dict[str, str]:
    """The names of a pod's containers that run, by their IDs."""
    statuses = [
        status
        for kind in _KINDS
        for status in pod["status"].get(kind, [])
        if "running" in status["state"]
    ]
    return {status["containerID"].partition("://")[2]: status["name"] for status in statuses}


def is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )


TOO_LARGE = "exceed maximum message size"
"""In the kubelet's message of a container that ttrpc,
by which containerd speaks to NRI's plugins, cannot carry.
"""


def find_refusal(pod: Object) -> str | None:
    """What containerd's NRI says of a pod with a container above its limit of 4 MiB,
    which never starts; else None.
    """
    statuses = [status for kind in _KINDS for status in pod["status"].get(kind, [])]
    messages = [status["state"].get("waiting", {}).get("message", "") for status in statuses]
    return next((message for message in messages if TOO_LARGE in message), None)


class RefusedByNri(Exception):
    """NRI refuses a container of a pod, by its size: no plugin,
    the hook-injector included, has a say in that.
    """


class Pods:
    """What a test has made in the tenants' namespace."""

    def create(self, *objects: Object) -> None:
        """As they are: kubectl would write each `<` as six bytes,
        and the API server takes 3 MiB.
        """
        paths = {"Pod": "api/v1", "Job": "apis/batch/v1", "Deployment": "apis/apps/v1"}
        for item in objects:
            path = f"/{paths[item['kind']]}/namespaces/{TENANTS}/{item['kind'].lower()}s"
            kubectl("create", f"--raw={path}", "--filename=-", text=json.dumps(item))

    def start(self, *objects: Object) -> list[Object]:
        """Create pods and wait until they are ready; returns them as the API server has them.

        Raises RefusedByNri.
        """
        self.create(*objects)
        return self.ready(list_names(objects))

    def ready(self, names: Iterable[str]) -> list[Object]:
        def all_ready() -> list[Object] | None:
            by_name = {
                found_pod["metadata"]["name"]: found_pod
                for found_pod in items("pods", f"--namespace={TENANTS}")
            }
            wanted = [by_name[name] for name in names]
            if refusals := [*filter(None, map(find_refusal, wanted))]:
                raise RefusedByNri(refusals[0])
            return wanted if all(map(is_ready, wanted)) else None

        return wait(f"pods {', '.join(names)}", all_ready)

    def of(self, owner: Object, holds: Callable[[Object], object], number: int = 1) -> list[Object]:
        """The pods of a Job or a Deployment, once there are so many of which it holds."""

        def enough() -> list[Object] | None:
            pods = items(
                "pods", f"--namespace={TENANTS}", f"--selector=app={owner['metadata']['name']}"
            )
            held = list(filter(holds, pods))
            return held if len(held) >= number else None

        return wait(f"{number} pods of {owner['metadata']['name']}", enough)

    def find(self, name: str) -> Object:
        pod: Object = get("pod", f"--namespace={TENANTS}", name)
        return pod

    def remove(self, *objects: Object) -> None:
        kubectl("delete", f"--namespace={TENANTS}", "--wait", "pods", *list_names(objects))

    def close(self) -> None:
        kubectl("delete", f"--namespace={TENANTS}", "--wait", "--all", "jobs,deployments,pods")
