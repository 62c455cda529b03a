# SPDX-License-Identifier: Apache-2.0
"""Whatever a pod's author writes, the pod is monitored, and as its own: on containerd 2, with the NRI plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.containerd.injecting import OPEN, PODMAN, Injecting
from tests.containerd.node import UID
from tests.support.observed import assert_runtime_init

if TYPE_CHECKING:
    from tests.containerd.conftest import StartNode
    from tests.containerd.node import ContainerdNode, RunningContainer

GROUP = f"oci-{UID}"
VICTIM = "5b1d2c1e-0c55-4c7c-9d6b-2f3f8a1e9a70"


@pytest.fixture(params=["runc", "runc" + OPEN])
def node(start_node: StartNode, request: pytest.FixtureRequest) -> ContainerdNode:
    """With containerd passing nothing of the pod's annotations to the hook, or all."""
    return start_node("injected", request.param)


def assert_in_its_own_group(node: ContainerdNode, container: RunningContainer) -> None:
    """From before its first instruction on, and never in another. The hook may be called twice, and move it twice."""
    init = container.init()
    moves = [(event, seen) for event, seen in node.moves() if (seen.pid, seen.starttime) == (init.pid, init.starttime)]
    assert {event.path for event, _ in moves} == {f"/mon_groups/{GROUP}/tasks"}
    for _, seen in moves:
        assert_runtime_init(seen)


def test_pod_that_spoils_the_restart_count_is_monitored(node: ContainerdNode) -> None:
    """Files of hooks.d see the pod's value in place of the kubelet's."""
    container = node.pod(**{"io.kubernetes.container.restartCount": "no"}).start("web")
    node.assert_placed(container)
    container.end()
    assert node.groups() == {GROUP: []}


def test_pod_that_claims_to_be_a_pod_of_cri_o_gets_its_own_group(node: ContainerdNode) -> None:
    victim = node.pod(VICTIM).start("web")
    claims = {"io.container.manager": "cri-o", "io.kubernetes.pod.uid": VICTIM}
    container = node.pod(**claims).start("thief")
    assert_in_its_own_group(node, container)
    assert node.groups() == {GROUP: [container.init().pid], f"oci-{VICTIM}": [victim.init().pid]}
    container.end()
    assert node.groups() == {GROUP: [], f"oci-{VICTIM}": [victim.init().pid]}


def test_pod_that_claims_to_be_podmans_gets_its_own_group(node: ContainerdNode) -> None:
    """It gets the hook of Podman's file as well, whose options may be others."""
    assert isinstance(node.containerd, Injecting)
    node.containerd.add_option(PODMAN, "--key=sandbox")
    claims = {"io.container.manager": "libpod", "io.kubernetes.cri-o.SandboxID": VICTIM}
    container = node.pod(**claims).start("web")
    assert_in_its_own_group(node, container)
    assert node.groups() == {GROUP: [container.init().pid]}
    container.end()
    assert node.groups() == {GROUP: []}
