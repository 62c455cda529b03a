# SPDX-License-Identifier: Apache-2.0
"""containerd, driven through the CRI as kubelet does it: what the kernel says of a pod's containers."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.containerd.node import RUNTIMES, OfBaseSpec, Pod, RunningContainer
from tests.support.hook import UID, Hook

GROUP = f"oci-{UID}"


@pytest.fixture
def lingering(hook: Hook) -> Hook:
    return hook.with_options("--linger=60")


@pytest.fixture(params=RUNTIMES)
def pod(lingering: Hook, request: pytest.FixtureRequest) -> Iterator[Pod]:
    _, _, *options = lingering.command("hook")
    with closing(OfBaseSpec(options)) as containerd:
        yield Pod(containerd, UID, request.param)


def groups_of(container: RunningContainer) -> str:
    return Path(f"/proc/{container.init().pid}/cpu_resctrl_groups").read_text()


def test_a_pod_has_one_group_from_its_init_container_to_its_end(lingering: Hook, pod: Pod) -> None:
    assert lingering.groups() == set(), "the sandbox's own container is none of the pod's"
    first = pod.start("init")
    assert groups_of(first) == f"res:/\nmon:{GROUP}\n"
    first.end()
    assert lingering.groups() == {GROUP}, "the pod's next container will be in it"
    web, sidecar = pod.start("web"), pod.start("sidecar")
    assert groups_of(web) == groups_of(sidecar) == f"res:/\nmon:{GROUP}\n"
    os.kill(web.init().pid, signal.SIGKILL)
    pod.node.watch.wait("poststop", web.id)
    again = pod.start("web", attempt=1)
    assert lingering.tasks(GROUP) == {sidecar.init().pid, again.init().pid}
    for container in (sidecar, again):
        container.stop()
    pod.remove()
    assert lingering.groups() == {GROUP}, "it lingers as long as the pod's cgroup is there"
    pod.node.cgroups.end()
    subprocess.run(lingering.command("reconcile"), check=True)
    lingering.assert_clean()
