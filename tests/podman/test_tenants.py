# SPDX-License-Identifier: Apache-2.0
"""Whose a process is, as Podman makes containers:
that of the container in whose own cgroup it is, or below.

A container may move to any cgroup below its own, of whatever name: it is charged to itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.podman.conftest import PodmanNode

VICTIM = "5b1d2c1e-0c55-4c7c-9d6b-2f3f8a1e9a70"
MOVE = f"""\
while IFS=: read -r number names path; do
    case $names in
    name=systemd) own=/sys/fs/cgroup/systemd$path ;;
    "") own=${{own:-/sys/fs/cgroup$path}} ;;
    esac
done </proc/self/cgroup
/bin/busybox mkdir $own/pod{VICTIM} && echo $$ >$own/pod{VICTIM}/cgroup.procs
"""
"""As the init of a container with systemd may: its own cgroup is writable."""
VICTIMS = "d" * 64
"""The container of the pod VICTIM."""


@pytest.fixture
def victim(node: PodmanNode) -> dict[str, list[int]]:
    """The group of a pod, and who is in it."""
    container = node.lab.runc(VICTIMS, {"io.kubernetes.pod.uid": VICTIM})
    groups = {f"oci-{VICTIM}": [container.init().pid]}
    assert node.groups() == groups
    return groups


def run_thief(node: PodmanNode) -> dict[str, list[int]]:
    """Start a container that moves its init below its own cgroup;
    the group that it is to be in, and who is in it.
    """
    gate = node.lab.gate("thief")
    command = [*gate.command[:2], MOVE + gate.command[2]]
    options = [*node.lab.options("thief"), "--systemd=always"]
    node.lab.podman("run", "-d", *options, "--rootfs", str(node.lab.rootfs), *command)
    gate.wait_up()
    pid = node.lab.init("thief").pid
    assert f"/pod{VICTIM}\n" in Path(f"/proc/{pid}/cgroup").read_text(), "it is where it went"
    return {f"oci-{node.lab.container_id('thief')}": [pid]}


def reconcile(node: PodmanNode, *options: str) -> None:
    known = {
        VICTIM,
        VICTIMS,
        *node.lab.podman("ps", "--all", "--quiet", "--no-trunc").stdout.split(),
    }
    node.reconcile("--snapshot-ttl=0", *options, of=known if "--adopt" in options else None)


def groups_of(node: PodmanNode, *expected: dict[str, list[int]]) -> dict[str, list[int]]:
    """Those of these, and whatever else these processes are in:
    this machine may run containers of others.
    """
    pids = {pid for groups in expected for tasks in groups.values() for pid in tasks}
    groups = {name: [pid for pid in tasks if pid in pids] for name, tasks in node.groups().items()}
    return {name: tasks for name, tasks in groups.items() if tasks}


def test_a_hooked_container_that_moves_into_a_cgroup_of_a_pods_name_stays_in_its_group(
    node: PodmanNode, victim: dict[str, list[int]]
) -> None:
    """Also when its record, its group, or all records are lost."""
    thief = run_thief(node)
    (name,) = thief
    record = node.run_dir / "groups" / f"{name[4:]}.json"
    for lost in ("nothing", "its record", "its record and its group", "all records"):
        if lost == "all records":
            shutil.rmtree(node.run_dir)
        elif lost != "nothing":
            record.write_text("{")
        if "group" in lost:
            (node.resctrl.root / "mon_groups" / name).rmdir()
        for _ in range(2):
            reconcile(node, "--adopt", f"--runtime-root={node.lab.base}/runc")
        assert groups_of(node, victim, thief) == {**victim, **thief}, lost
        assert set(node.left()["groups"]) >= {record.name, f"{VICTIM}.json"}
    node.lab.podman("rm", "-f", "-t", "0", "thief")
    assert groups_of(node, victim, thief) == victim


BEFORE: dict[str, Callable[[PodmanNode], object]] = {
    "no hook": lambda node: (node.lab.hooks_dir / "10-resctrl-mon-hook.json").unlink(),
    "no group can be made": lambda node: node.resctrl.control(
        do="inject", op="mkdir", error="EIO", times=1
    ),
    # The record names no key then.
    "resctrl is not mounted": lambda node: node.resctrl.control(do="unmount"),
}


@pytest.mark.parametrize("why", BEFORE)
def test_a_container_that_moved_is_brought_in_as_itself_after_it_began_while(
    node: PodmanNode, victim: dict[str, list[int]], why: str
) -> None:
    BEFORE[why](node)
    thief = run_thief(node)
    if "mounted" in why:
        node.resctrl.control(do="mount")
    else:
        assert groups_of(node, victim, thief) == victim
    reconcile(node, *(["--adopt"] if "hook" in why else []))
    assert groups_of(node, victim, thief) == {**victim, **thief}


# --- Processes that are no init

WORKER = "(/bin/sleep 100000 </dev/null >/dev/null 2>&1 &); "
"""What a container's command begins with, to have an orphan."""


def children(pid: int) -> set[int]:
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def test_an_orphan_in_a_shared_pid_namespace_stays_with_its_own_container(node: PodmanNode) -> None:
    """It is a child of the other container's init, which is pid 1 there:
    each of the two took it from the other.
    """
    node.lab.run("first")
    gate = node.lab.gate("second")
    command = [*gate.command[:2], WORKER + gate.command[2]]
    options = [*node.lab.options("second"), "--pid=container:first"]
    node.lab.podman("run", "-d", *options, "--rootfs", str(node.lab.rootfs), *command)
    gate.wait_up()
    groups = {name: f"oci-{node.lab.container_id(name)}" for name in ("first", "second")}
    inits = {name: node.lab.init(name).pid for name in groups}
    (worker,) = children(inits["first"])
    # Of a child whose parent is gone the model knows no better than that it is init's.
    node.reconcile()
    assert node.groups() == {
        groups["first"]: [inits["first"]],
        groups["second"]: sorted([inits["second"], worker]),
    }
    assert node.reconcile() == []


def test_a_container_in_a_pod_of_podmans_is_known_by_its_own_cgroup(node: PodmanNode) -> None:
    """With the cgroupfs driver that is in one which is called like a container:
    by the pod's ID alone.
    """
    place = [f"--cgroup-parent={node.lab.cgroups.path}", "--name=pod", "--network=none"]
    node.lab.import_image("localhost/wait")
    node.lab.podman("pod", "create", *place, "--infra-image=localhost/wait")
    gate = node.lab.run("web", pod="pod")
    container, init = node.lab.container_id("web"), node.lab.init("web").pid
    inside = node.lab.gate("inside")
    node.lab.podman("exec", "-d", "web", *inside.command)
    inside.wait_up()
    assert [(action["action"], action["container"]) for action in node.reconcile()] == [
        ("adopt", container)
    ]
    tasks = node.groups()[f"oci-{container}"]
    assert (init in tasks, len(tasks)) == (True, 2)
    shutil.rmtree(node.run_dir)
    assert "rebuild" in {action["action"] for action in node.reconcile()}
    assert {path.stem for path in (node.run_dir / "members").iterdir()} >= {container}
    assert node.groups()[f"oci-{container}"] == tasks
    gate.open()
    node.lab.remove_pod("pod")
    assert node.groups() == {}
