# SPDX-License-Identifier: Apache-2.0
"""Whatever a pod's author writes, containerd's pod is monitored, and as its own:
the kubelet's cgroup says whose it is.

containerd hands the annotations on, or none of them with the NRI plugin's other runtime handler.
"""

from __future__ import annotations

import grpc
import pytest

from tests.cluster.pods import TOO_LARGE
from tests.containerd.conftest import StartNode
from tests.containerd.injecting import OPEN, PODMAN, Injecting
from tests.containerd.node import COMM, UID
from tests.support.observed import assert_runtime_init

GROUP = f"oci-{UID}"
VICTIM = "5b1d2c1e-0c55-4c7c-9d6b-2f3f8a1e9a70"
CLAIMS = {
    # Files of hooks.d match the pod's value in place of the kubelet's
    "of no restart count": {"io.kubernetes.container.restartCount": "no"},
    "of a pod of CRI-O": {
        "io.container.manager": "cri-o",
        "io.kubernetes.pod.uid": VICTIM,
        "io.kubernetes.cri.sandbox-uid": VICTIM,
    },
    # It gets the hook of Podman's file as well, whose options may be others
    "of a container of Podman's": {
        "io.container.manager": "libpod",
        "io.kubernetes.cri-o.SandboxID": VICTIM,
    },
}
NODES = [
    ("base-spec", "runc"),
    ("base-spec", "crun"),
    ("injected", "runc"),
    ("injected", "runc" + OPEN),
]


@pytest.mark.parametrize(("kind", "runtime"), NODES)
def test_pod_is_in_its_own_group_alone_whatever_its_claim(
    start_node: StartNode, kind: str, runtime: str
) -> None:
    """From before its first instruction on. The hook may be called twice, and move it twice."""
    node = start_node(kind, runtime)
    if isinstance(node.containerd, Injecting):
        node.containerd.add_option(PODMAN, "--key=sandbox")
    victim = {f"oci-{VICTIM}": [node.pod(VICTIM).start("victim").init().pid]}
    for attempt, (claim, written) in enumerate(CLAIMS.items()):
        pod = node.pod(**written)
        container = pod.start("web", attempt)
        init = container.init()
        assert node.groups() == {GROUP: [init.pid], **victim}, claim
        moves = node.moves(init)
        assert {event.path for event, _ in moves} == {f"/mon_groups/{GROUP}/tasks"}, claim
        for _, process in moves:
            assert_runtime_init(process, COMM[runtime.partition("-")[0]])
        container.stop()
        pod.remove()
        assert node.groups().pop(GROUP, []) == [], claim
        assert f"oci-{VICTIM}" in node.groups(), claim


def test_nri_refuses_a_container_above_its_limit_and_the_next_one_has_the_hook(
    start_node: StartNode,
) -> None:
    """So does it refuse a pod of the tests in tests/cluster, which know it by these words."""
    node = start_node("injected", "runc")
    with pytest.raises(grpc.RpcError, match=f"NRI adjustment for container: .*{TOO_LARGE}"):
        node.pod(VICTIM, note="<" * (5 << 20)).start("large")
    assert node.groups() == {}
    container = node.pod().start("web")
    assert node.groups() == {GROUP: [container.init().pid]}
