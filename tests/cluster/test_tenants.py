# SPDX-License-Identifier: Apache-2.0
"""Whatever a restricted pod's author writes, the pod is monitored,
and as its own: docs/security.md.
"""

from __future__ import annotations

from typing import Callable

import pytest

from tests.cluster.kube import Object, nodes
from tests.cluster.pods import Pods, RefusedByNri, container, live_containers, pod
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
        annotations={
            f"io.kubernetes.cri.{key}": victim
            for key in ("sandbox-uid", "sandbox-id", "sandbox-name")
        }
    ),
    "claims to be a sandbox": lambda _: claim("io.kubernetes.cri.container-type", "sandbox"),
    "opts out": lambda _: claim("monitor.resctrl-mon.io", "false"),
    "has a large annotation": lambda _: claim("note", WIDE * 250_000),
    "has a huge preStop command": lambda _: pod(container(lifecycle=HUGE)),
}


def claim(key: str, value: str) -> Object:
    return pod(annotations={key: value})


@pytest.mark.parametrize("trick", TRICKS)
def test_restricted_pod_is_monitored_as_its_own_though_it(
    release: Release, pods: Pods, trick: str
) -> None:
    (victim,) = pods.start(pod())
    try:
        tricksters = pods.start(TRICKS[trick](victim["metadata"]["uid"]))
    except RefusedByNri as error:
        if not any(
            node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://")
            for node in nodes()
        ):
            raise
        pytest.skip(f"NRI refuses the pod, which does not start: {error}")
    release.assert_monitored([victim, *tricksters])
    assert release.show(victim)["members"].keys() == live_containers(victim).keys()
