# SPDX-License-Identifier: Apache-2.0
"""The chart on the cluster, by helm, and what its nodes say of the pods."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.cluster.kube import (
    DEADLINE,
    IMAGE,
    RESCTRL_ROOT,
    Object,
    apply,
    get,
    items,
    kubectl,
    list_names,
    run,
    settings,
    wait,
)
from tests.cluster.pods import live_containers

NAME = NAMESPACE = "resctrl-mon-hook-test"
CHART = Path(__file__).resolve().parents[2] / "packaging" / "kubernetes" / "chart"
IN_POD, BILL_IN_POD = (
    Path(__file__).with_name(name).read_text(encoding="utf-8")
    for name in ("in_pod.py", "bill_in_pod.py")
)
RESCTRL = os.environ.get(RESCTRL_ROOT, "/sys/fs/resctrl")
FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO in linux/proc_ns.h
OURS = "app.kubernetes.io/name=resctrl-mon-hook"
KINDS = (
    "daemonsets,deployments,jobs,pods,configmaps,serviceaccounts,roles,rolebindings,networkpolicies"
)


class Release:
    """The chart's release of the tests."""

    def install(self, *words: str, chart: Path = CHART, image: str = IMAGE) -> None:
        """Install it, or upgrade it to this chart and these values,
        and wait until it is on every node.
        """
        helm("upgrade", "--install", NAME, str(chart), *settings(image), *words)
        kubectl(
            "rollout",
            "status",
            f"daemonset/{NAME}",
            f"--namespace={NAMESPACE}",
            f"--timeout={DEADLINE:.0f}s",
        )

    def is_installed(self) -> bool:
        return NAME in list_names(items("daemonsets", f"--namespace={NAMESPACE}"))

    def remove(self) -> None:
        """Uninstall it, and wait for the Jobs that end all keys and take the program away."""
        helm("uninstall", NAME)
        wait("the end of the removal", lambda: not self.objects())

    def objects(self) -> list[str]:
        """What the cluster has of it."""
        objects = items(KINDS, f"--namespace={NAMESPACE}", f"--selector={OURS}")
        return sorted(f"{item['kind']} {item['metadata']['name']}" for item in objects)

    def daemons(self) -> dict[str, Object]:
        """The DaemonSet's pod of each node, ready or not, all of whose containers run."""
        pods = items(
            "pods",
            f"--namespace={NAMESPACE}",
            f"--selector={OURS},app.kubernetes.io/component=node",
        )
        staying = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        running = [
            pod for pod in staying if len(live_containers(pod)) >= len(pod["spec"]["containers"])
        ]
        return {pod["spec"]["nodeName"]: pod for pod in running}

    def daemon(self, node: str) -> Object:
        """That of a node, once there is one."""
        return wait(f"the chart's pod on {node}", lambda: self.daemons().get(node))

    def places(self) -> list[str]:
        """The directories on the nodes of the program, of the JSON and of the groups."""
        containers = get("daemonset", NAME, f"--namespace={NAMESPACE}")["spec"]["template"]["spec"][
            "containers"
        ]
        given = dict(word.split("=", 1) for word in containers[0]["args"] if "=" in word)
        return [f"{given['--prefix']}/libexec/oci/hooks.d", given["--hooks-dir"], RESCTRL]

    def look(self, node: str, *keys: str) -> Object:
        """What a node has, by `list` and `show`, and the tasks of these keys: see in_pod."""
        # Named, it has to exist.
        options = [f"--resctrl-root={RESCTRL}"] if RESCTRL_ROOT in os.environ else []
        wanted = {"options": options, "keys": keys}
        return self._ask(node, "reconcile", IN_POD, json.dumps(wanted))

    def bill(self, node: str, namespace: str) -> Object:
        """What a node bills a namespace: see bill_in_pod."""
        return self._ask(node, "metrics", BILL_IN_POD, namespace)

    def _ask(self, node: str, container: str, program: str, argument: str) -> Object:
        """What a Python program prints as JSON in a container of the chart's pod on a node."""
        name = self.daemon(node)["metadata"]["name"]
        words = ("exec", f"--namespace={NAMESPACE}", name, f"--container={container}", "--")
        answer: Object = json.loads(kubectl(*words, "python3", "-c", program, argument))
        return answer

    def show(self, pod: Object) -> Object:
        """What `show` says of a pod, and its `tasks`; `state` None: nothing."""
        uid = pod["metadata"]["uid"]
        answer = self.look(pod["spec"]["nodeName"], uid)
        return {
            "state": None,
            **answer["shown"].get(uid, {}),
            "tasks": answer["tasks"].get(uid, []),
        }

    def assert_monitored(self, pods: Iterable[Object]) -> None:
        """Each container that runs is a member of its pod's key,
        and its first process in the group.
        """
        by_node: dict[str, dict[str, Object]] = defaultdict(dict)
        for pod in pods:
            by_node[pod["spec"]["nodeName"]][pod["metadata"]["uid"]] = pod
        for node, wanted in by_node.items():
            answer = self.look(node, *wanted)
            problems = {
                problem["container"]: problem
                for problem in answer["list"]["unmonitored"]
                if not problem["monitored"]
            }
            for uid, pod in wanted.items():
                members = answer["shown"].get(uid, {}).get("members", {})
                for container, name in live_containers(pod).items():
                    what = f"{pod['metadata']['name']} {name} ({container[:12]}) on {node}"
                    assert container not in problems, f"{what}: {problems[container]}"
                    assert container in members, f"{what} is no member: {members or 'no such key'}"
                    assert members[container]["pid"] in answer["tasks"][uid], (
                        f"{what} is not in the group: {members}"
                    )

    def on_node(self, node: str, program: str, *arguments: str) -> str:
        """What a Python program prints that sees a node's root directory as /host, as root."""
        name = "on-node"
        container = {
            "name": name,
            "image": os.environ[IMAGE],
            "command": ["python3", "-c", program, *arguments],
            "securityContext": {"runAsUser": 0, "seLinuxOptions": {"type": "spc_t"}},
            "volumeMounts": [
                {"name": "root", "mountPath": "/host", "mountPropagation": "HostToContainer"}
            ],
        }
        spec: dict[str, Any] = {
            "nodeName": node,
            "containers": [container],
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "volumes": [{"name": "root", "hostPath": {"path": "/"}}],
        }
        meta = {"name": name, "namespace": NAMESPACE}
        apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        place = f"--namespace={NAMESPACE}"

        def ended() -> str | None:
            phase: str = get("pod", place, name)["status"]["phase"]
            return phase if phase in {"Succeeded", "Failed"} else None

        phase, printed = wait(f"a program on {node}", ended), kubectl("logs", place, name)
        kubectl("delete", place, "--wait", "pod", name)
        assert phase == "Succeeded", printed
        return printed


def helm(*words: str, check: bool = True) -> str:
    return run("helm", *words, f"--namespace={NAMESPACE}", check=check)
