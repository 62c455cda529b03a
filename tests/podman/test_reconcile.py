# SPDX-License-Identifier: Apache-2.0
"""reconcile beside containers as Podman and runc make them: whose a process is."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.podman.node import PodmanNode

WORKER = "(/bin/sleep 100000 </dev/null >/dev/null 2>&1 &); "
"""What a container's command begins with, to have an orphan."""


def children(pid: int) -> set[int]:
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def test_an_orphan_in_a_shared_pid_namespace_stays_with_its_own_container(node: PodmanNode) -> None:
    """It is a child of the other container's init, which is pid 1 there: each of the two took it from the other."""
    node.lab.run("first")
    gate = node.lab.gate("second")
    command = [*gate.command[:2], WORKER + gate.command[2]]
    options = [*node.lab.options("second"), "--pid=container:first"]
    node.lab.podman("run", "-d", *options, "--rootfs", str(node.lab.rootfs), *command)
    gate.wait_up()
    groups = {name: f"oci-{node.lab.container_id(name)}" for name in ("first", "second")}
    inits = {name: node.lab.init(name).pid for name in groups}
    (worker,) = children(inits["first"])
    node.reconcile()  # of a child whose parent is gone the model knows no better than that it is init's
    assert node.groups() == {groups["first"]: [inits["first"]], groups["second"]: sorted([inits["second"], worker])}
    assert node.reconcile() == []


def test_a_container_in_a_pod_of_podmans_is_known_by_its_own_cgroup(node: PodmanNode) -> None:
    """With the cgroupfs driver that is in one which is called like a container: by the pod's ID alone."""
    place = [f"--cgroup-parent={node.lab.cgroups.path}", "--name=pod", "--network=none"]
    node.lab.import_image("localhost/wait")
    node.lab.podman("pod", "create", *place, "--infra-image=localhost/wait")
    gate = node.lab.run("web", pod="pod")
    container, init = node.lab.container_id("web"), node.lab.init("web").pid
    inside = node.lab.gate("inside")
    node.lab.podman("exec", "-d", "web", *inside.command)
    inside.wait_up()
    assert [(it["action"], it["container"]) for it in node.reconcile()] == [("adopt", container)]
    tasks = node.groups()[f"oci-{container}"]
    assert (init in tasks, len(tasks)) == (True, 2)
    shutil.rmtree(node.run_dir)
    assert "rebuild" in {it["action"] for it in node.reconcile()}
    assert {path.stem for path in (node.run_dir / "members").iterdir()} >= {container}
    assert node.groups()[f"oci-{container}"] == tasks
    gate.open()
    node.lab.remove_pod("pod")
    assert node.groups() == {}
