# SPDX-License-Identifier: Apache-2.0
"""reconcile beside containers as Podman and runc make them: whose a process is, and in which ctrl_group."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.podman.node import PodmanNode, list_actions
from tests.support.containers import ALWAYS, DEADLINE

WORKER = "(/bin/sleep 100000 </dev/null >/dev/null 2>&1 &); "
"""What a container's command begins with, to have an orphan."""
INTO_GOLD = """\
read -r state
case $state in *'"pid":'*) echo "$state" | sed 's/.*"pid":\\([0-9]*\\).*/\\1/' >ROOT/gold/tasks;; esac
"""
"""A hook that sorts after ours, as that of a CDI device does."""


def reconcile(node: PodmanNode) -> list[Any]:
    command = [str(node.lab.hook), "reconcile", *node.directories, "--json"]
    return list_actions(subprocess.run(command, capture_output=True, text=True, check=False, timeout=10 * DEADLINE))


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
    reconcile(node)  # of a child whose parent is gone the model knows no better than that it is init's
    assert node.groups() == {groups["first"]: [inits["first"]], groups["second"]: sorted([inits["second"], worker])}
    assert reconcile(node) == []


def test_a_container_moved_to_another_ctrl_group_gets_a_group_there(node: PodmanNode) -> None:
    gold = node.resctrl.root / "gold"
    gold.mkdir()
    script = INTO_GOLD.replace("ROOT", str(node.resctrl.root))
    node.lab.add_hook("50-cdi.json", ALWAYS, path=Path("/bin/sh"), args=["sh", "-c", script])
    gate = node.lab.run("web")
    init, container = node.lab.init("web").pid, node.lab.container_id("web")
    assert node.groups() == {f"oci-{container}": []}
    assert reconcile(node)
    found = node.resctrl.groups()
    assert node.groups() == {}
    assert found[f"/gold/mon_groups/oci-{container}"]["tasks"] == [init]
    assert reconcile(node) == []
    gate.open()
    node.lab.watch.wait("poststop", container)
    assert not [path for path in node.resctrl.groups() if "/mon_groups/" in path]
    assert node.left()["groups"] == []


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
    assert [(it["action"], it["container"]) for it in reconcile(node)] == [("adopt", container)]
    tasks = node.groups()[f"oci-{container}"]
    assert (init in tasks, len(tasks)) == (True, 2)
    shutil.rmtree(node.run_dir)
    assert "rebuild" in {it["action"] for it in reconcile(node)}
    assert {path.stem for path in (node.run_dir / "members").iterdir()} >= {container}
    assert node.groups()[f"oci-{container}"] == tasks
    gate.open()
    node.lab.remove_pod("pod")
    assert node.groups() == {}
