# SPDX-License-Identifier: Apache-2.0
"""Whatever a restricted pod's author writes, the pod is monitored, and as its own: docs/security.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Callable

import pytest

from tests.cluster.pods import container, live_containers, pod
from tests.support import tenant
from tests.support.tenants import LARGE

if TYPE_CHECKING:
    from tests.cluster.kube import Object
    from tests.cluster.pods import Pods
    from tests.cluster.release import Release

WIDE = "<"  # of which runc makes six bytes
HUGE = {"preStop": {"exec": {"command": ["true", WIDE * 900_000]}}}
TRICKS: dict[str, Callable[[str], Object]] = {
    "spoils the restart count": lambda _: claim("io.kubernetes.container.restartCount", "no"),
    "claims to be another pod of CRI-O": lambda victim: pod(
        annotations={"io.container.manager": "cri-o", "io.kubernetes.pod.uid": victim}
    ),
    "claims to be Podman's": lambda victim: pod(
        annotations={"io.container.manager": "libpod", "io.kubernetes.cri-o.SandboxID": victim}
    ),
    "claims to be another pod of containerd": lambda victim: pod(
        annotations={f"io.kubernetes.cri.{key}": victim for key in ("sandbox-uid", "sandbox-id", "sandbox-name")}
    ),
    "claims to be a sandbox": lambda _: claim("io.kubernetes.cri.container-type", "sandbox"),
    "opts out": lambda _: claim("monitor.resctrl-mon.io", "false"),
    "has a large annotation": lambda _: claim("note", WIDE * 250_000),
    "has a huge preStop command": lambda _: pod(container(lifecycle=HUGE)),
}
NAMES = {"containerd": "/etc/containerd/config.toml", "crio": "/etc/crio/crio.conf", "hook-injector": "/tmp/x.json"}
"""What a process of a tenant's names itself, and a FIFO where a program of that name has its configuration."""
PROCESS = Path(tenant.__file__).read_text(encoding="utf-8")
SHOW = """
import json, os, sys, time
scope = {"__name__": "tenant"}
exec(sys.argv[1], scope)
name, fifo, size = json.loads(sys.argv[2])
os.mkfifo(fifo)
scope["call"]("prctl", scope["PR_SET_NAME"], name.encode())
scope["show"](scope["put"]([name], size), scope["put"]([name], size))
time.sleep(86400)
"""


def claim(key: str, value: str) -> Object:
    return pod(annotations={key: value})


@pytest.mark.parametrize("trick", TRICKS)
def test_restricted_pod_is_monitored_as_its_own_though_it(release: Release, pods: Pods, trick: str) -> None:
    (victim,) = pods.start(pod())
    found = pods.start(TRICKS[trick](victim["metadata"]["uid"]))
    release.assert_monitored([victim, *found])
    assert release.show(victim)["members"].keys() == live_containers(victim).keys()


def test_reconcile_is_not_held_up_by_what_processes_of_a_pod_show(release: Release, pods: Pods) -> None:
    shown = [
        container(
            name,
            ["python3", "-c", SHOW, PROCESS, json.dumps([name, fifo, size])],
            volumeMounts=[{"name": "own", "mountPath": fifo.rpartition("/")[0]}],
        )
        for (name, fifo), size in zip(NAMES.items(), (0, LARGE, LARGE))
    ]
    (found,) = pods.start(pod(*shown, volumes=[{"name": "own", "emptyDir": {}}]))
    node = found["spec"]["nodeName"]
    before = count_restarts(release, node)
    release.await_reconcile(node)
    release.assert_monitored([found])
    assert release.metric(node, "resctrl_mon_reconcile_undone", kind="failed") == 0
    assert count_restarts(release, node) == before


def count_restarts(release: Release, node: str) -> dict[str, int]:
    return {it["name"]: it["restartCount"] for it in release.daemon(node)["status"]["containerStatuses"]}
