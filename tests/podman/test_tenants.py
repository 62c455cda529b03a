# SPDX-License-Identifier: Apache-2.0
"""A container of Podman's may call itself what it likes, and go where it likes: it is billed to itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.podman.node import PodmanNode, list_actions
from tests.support import machine
from tests.support.containers import DEADLINE
from tests.support.machine import ScratchMachine
from tests.support.tenants import CONFIG, VICTIM, fifo, limited, release
from tests.support.waiting import wait

LIMITED = limited(2048)
"""runc is written in Go, which reserves much."""
PROGRAMS = [f"--volume={path}:{path}:ro" for path in ("/usr", "/lib", "/lib64") if os.path.isdir(path)]
BECOME = 'ln -sf /usr/bin/sleep "/tmp/$0"; exec -a "$0" "/tmp/$0" infinity'
"""For bash: has its first argument for its name."""
MOVE = f"""\
while IFS=: read -r number names path; do
    case $names in name=systemd) own=/sys/fs/cgroup/systemd$path ;; "") own=${{own:-/sys/fs/cgroup$path}} ;; esac
done </proc/self/cgroup
/bin/busybox mkdir $own/pod{VICTIM} && echo $$ >$own/pod{VICTIM}/cgroup.procs
"""
"""As the init of a container with systemd may: its own cgroup is writable."""
VOLATILE = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+Z|\d+(\.\d+)? (seconds|minutes|s)\b")
VICTIMS = "d" * 64
"""The container of the pod VICTIM."""


# --- By its name


def test_a_container_that_is_called_containerd_changes_nothing(node: PodmanNode, tmp_path: Path) -> None:
    """Though its configuration, as containerd's, is a FIFO."""
    if reason := machine.missing():
        pytest.skip(reason)
    (node.lab.hooks_dir / "10-resctrl-mon-hook.json").unlink()
    fifo(CONFIG)(node.lab.rootfs)
    try:
        ordinary, tenant = (
            list(run_commands(node, ScratchMachine(tmp_path / name), name)) for name in ("sleeper", "containerd")
        )
    finally:
        release(node.lab.rootfs)
    assert [it[:2] for it in ordinary] == [(0, "")] * 4
    assert tenant == ordinary


def run_commands(node: PodmanNode, scratch: ScratchMachine, name: str) -> Iterator[tuple[int, str, Any]]:
    """The exit status, stderr and stdout of each, while a container of this name runs that was never hooked."""
    become = ["/usr/bin/bash", "-c", BECOME, name]
    node.lab.podman("run", "-d", *node.lab.options(name), *PROGRAMS, "--rootfs", str(node.lab.rootfs), *become)
    wait(lambda: node.lab.init(name).cmdline == [name, "infinity"])
    container = node.lab.container_id(name)
    # The runtime's state of this container alone
    shutil.copytree(f"/run/runc/{container}", scratch.path(f"/run/runc/{container}"))
    assert scratch.run("install", "--for=podman", *node.directories).returncode == 0
    for words in (["reconcile"], ["reconcile", "--adopt"], ["doctor", "--json"], ["uninstall"]):
        done = scratch.run(*words, *node.directories, before=LIMITED, timeout=None)
        text = VOLATILE.sub("TIME", done.stdout.replace(container, "ID").replace(container[:12], "ID"))
        # uninstall speaks of containerd, where that is installed.
        shown = find_verdicts(text) if "doctor" in words else re.sub("sleeper|containerd", "NAME", text)
        yield done.returncode, done.stderr, shown
    node.lab.podman("rm", "-f", "-t", "0", name)
    reconcile(node)
    shutil.rmtree(node.run_dir)


def find_verdicts(text: str) -> list[tuple[str, str]]:
    """What doctor finds, but for what the machine that it runs on has to do with, and others' processes there."""
    findings = json.loads(text)["findings"] if text else []
    about_us = [it for it in findings if it["subject"] not in ("syslog", "lost", "/proc")]
    return [(it["level"], it["found"]) for it in about_us if "has the name of a hook-injector" not in it["found"]]


# --- By its cgroup


@pytest.fixture
def victim(node: PodmanNode) -> dict[str, list[int]]:
    """The group of a pod, and who is in it."""
    container = node.lab.runc(VICTIMS, {"io.kubernetes.pod.uid": VICTIM})
    found = {f"oci-{VICTIM}": [container.init().pid]}
    assert node.groups() == found
    return found


def run_thief(node: PodmanNode) -> dict[str, list[int]]:
    """Start a container that moves its init below its own cgroup; the group that it is to be in, and who is in it."""
    gate = node.lab.gate("thief")
    command = [*gate.command[:2], MOVE + gate.command[2]]
    options = [*node.lab.options("thief"), "--systemd=always"]
    node.lab.podman("run", "-d", *options, "--rootfs", str(node.lab.rootfs), *command)
    gate.wait_up()
    pid = node.lab.init("thief").pid
    assert f"/pod{VICTIM}\n" in Path(f"/proc/{pid}/cgroup").read_text(), "it is where it went"
    return {f"oci-{node.lab.container_id('thief')}": [pid]}


def reconcile(node: PodmanNode, *options: str) -> None:
    command = [str(node.lab.hook), "reconcile", *node.directories, "--snapshot-ttl=0", "--json", *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=DEADLINE)
    own = {VICTIM, VICTIMS, *node.lab.podman("ps", "--all", "--quiet", "--no-trunc").stdout.split()}
    list_actions(done, own if "--adopt" in options else None)


def groups_of(node: PodmanNode, *expected: dict[str, list[int]]) -> dict[str, list[int]]:
    """Those of these, and whatever else these processes are in: this machine may run containers of others."""
    pids = {pid for it in expected for tasks in it.values() for pid in tasks}
    found = {name: [pid for pid in tasks if pid in pids] for name, tasks in node.groups().items()}
    return {name: tasks for name, tasks in found.items() if tasks}


def test_a_hooked_container_that_moves_into_a_cgroup_of_a_pods_name_stays_in_its_group(
    node: PodmanNode, victim: dict[str, list[int]]
) -> None:
    own = run_thief(node)
    for _ in range(2):
        assert groups_of(node, victim, own) == {**victim, **own}
        reconcile(node, "--adopt")
    node.lab.podman("rm", "-f", "-t", "0", "thief")
    assert groups_of(node, victim, own) == victim


def test_a_container_that_moved_is_adopted_as_itself(node: PodmanNode, victim: dict[str, list[int]]) -> None:
    (node.lab.hooks_dir / "10-resctrl-mon-hook.json").unlink()
    own = run_thief(node)
    assert groups_of(node, victim, own) == victim
    reconcile(node, "--adopt")
    assert groups_of(node, victim, own) == {**victim, **own}


def test_a_container_that_moved_is_tried_again_as_itself(node: PodmanNode, victim: dict[str, list[int]]) -> None:
    node.resctrl.control(do="inject", op="mkdir", error="EIO", times=1)
    own = run_thief(node)
    assert groups_of(node, victim, own) == victim
    reconcile(node)
    assert groups_of(node, victim, own) == {**victim, **own}


def test_a_container_that_moved_before_there_was_resctrl_is_tried_again_as_itself(
    node: PodmanNode, victim: dict[str, list[int]]
) -> None:
    """Its record names no key then."""
    node.resctrl.control(do="unmount")
    own = run_thief(node)
    node.resctrl.control(do="mount")
    reconcile(node)
    assert groups_of(node, victim, own) == {**victim, **own}


@pytest.mark.parametrize("has_group", [True, False])
def test_a_container_that_moved_is_rebuilt_as_itself(
    node: PodmanNode, victim: dict[str, list[int]], has_group: bool
) -> None:
    """After the loss of its record, and of its group as well."""
    own = run_thief(node)
    (name,) = own
    (node.run_dir / "groups" / f"{name[4:]}.json").write_text("{")
    if not has_group:
        (node.resctrl.root / "mon_groups" / name).rmdir()
    for _ in range(2):
        reconcile(node, "--adopt")
    assert groups_of(node, victim, own) == {**victim, **own}
    assert f"{name[4:]}.json" in node.left()["groups"]


def test_after_the_loss_of_all_records_a_container_that_moved_is_found_as_itself(
    node: PodmanNode, victim: dict[str, list[int]]
) -> None:
    own = run_thief(node)
    shutil.rmtree(node.run_dir)
    for _ in range(2):
        reconcile(node, "--adopt", f"--runtime-root={node.lab.base}/runc")
    assert groups_of(node, victim, own) == {**victim, **own}
    (name,) = own
    assert set(node.left()["groups"]) >= {f"{name[4:]}.json", f"{VICTIM}.json"}
