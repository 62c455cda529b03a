# SPDX-License-Identifier: Apache-2.0
"""The lives that containers have under Podman: who is in which group,
from when on, and until when.
"""

from __future__ import annotations

import shutil

import pytest

from tests.podman.conftest import PodmanNode, StartNode
from tests.support.containers import IMAGE_COMMAND
from tests.support.observed import assert_runtime_init
from tests.support.waiting import wait

pytestmark = pytest.mark.both_forms

needs_crun = pytest.mark.skipif(
    shutil.which("crun", path="/usr/bin:/bin") is None, reason="no crun"
)


def test_plain_container(node: PodmanNode) -> None:
    gate = node.lab.run("web")
    container = node.lab.container_id("web")
    init = node.lab.init("web")
    node.assert_placed_before_exec(init, f"oci-{container}", gate.command)
    assert node.groups() == {f"oci-{container}": [init.pid]}
    assert node.left()["groups"] == [f"{container}.json"]
    gate.open()
    node.lab.watch.wait("poststop", container)
    assert node.history(f"oci-{container}") == ["mkdir", "tasks", "rmdir"]
    node.assert_clean()


@pytest.mark.parametrize("infra", [True, False], ids=["infra container", "no infra container"])
def test_podman_pod_by_sandbox(start_node: StartNode, infra: bool) -> None:
    """Podman's pods have no UID: --key=sandbox goes by the infra container,
    or by the pod where there is none.
    """
    node = start_node("--key=sandbox")
    lab = node.lab
    place = [f"--cgroup-parent={lab.cgroups.path}", "--name=pod"]
    if infra:
        lab.import_image("localhost/wait")
        pod = lab.podman(
            "pod", "create", *place, "--network=none", "--infra-image=localhost/wait"
        ).stdout.strip()
        sandbox = lab.podman("pod", "inspect", "--format={{.InfraContainerID}}", pod).stdout.strip()
    else:
        sandbox = lab.podman("pod", "create", *place, "--infra=false").stdout.strip()
    alone = [] if infra else lab.place
    gates = {name: lab.run(name, *alone, pod="pod") for name in ("first", "second")}
    inits = {name: lab.init(name) for name in gates}
    for name, gate in gates.items():
        node.assert_placed_before_exec(inits[name], f"oci-{sandbox}", gate.command)
    if infra:
        wait(lambda: lab.init(sandbox).cmdline == IMAGE_COMMAND)  # no gate tells of its exec
        inits["infra"] = lab.init(sandbox)
        node.assert_placed_before_exec(inits["infra"], f"oci-{sandbox}", IMAGE_COMMAND)
    assert {name: sorted(tasks) for name, tasks in node.groups().items()} == {
        f"oci-{sandbox}": sorted(init.pid for init in inits.values())
    }
    lab.remove_pod("pod")
    assert node.history(f"oci-{sandbox}").count("rmdir") == 1
    node.assert_clean()


def test_restart(node: PodmanNode) -> None:
    """poststop, then createRuntime with the same container ID: another process, in a new group."""
    gate = node.lab.run("web")
    container = node.lab.container_id("web")
    before = node.lab.init("web")
    node.lab.podman("restart", "-t", "0", "web")
    gate.wait_up()
    assert node.lab.container_id("web") == container
    after = node.lab.init("web")
    assert (after.starttime or 0) > (before.starttime or 0)
    node.assert_placed_before_exec(after, f"oci-{container}", gate.command)
    assert node.groups() == {f"oci-{container}": [after.pid]}
    assert node.history(f"oci-{container}") == ["mkdir", "tasks", "rmdir", "mkdir", "tasks"]
    node.lab.watch.wait("poststop", container)
    node.lab.podman("kill", "web")
    node.lab.watch.wait("poststop", container)
    node.assert_clean()


def test_create_that_fails_leaves_its_group_and_nothing_else(node: PodmanNode) -> None:
    """createRuntime has run when the missing executable is found;
    Podman runs no poststop then, not even at `rm`.

    What is left is a member that is dead, on record: for reclaim and reconcile to end.
    Everybody else goes on as ever.
    """
    lab = node.lab
    neighbour = lab.run("neighbour")
    done = lab.podman(
        "run", "-d", *lab.options("broken"), "--rootfs", str(lab.rootfs), "/bin/nosuch", check=False
    )
    assert done.returncode == 127
    broken = lab.container_id("broken")
    event, process = node.moves()[-1]
    assert event.path == f"/mon_groups/oci-{broken}/tasks"
    assert_runtime_init(process)
    lab.podman("rm", "-f", "broken")
    assert node.groups() == {
        f"oci-{broken}": [],
        f"oci-{lab.container_id('neighbour')}": [lab.init("neighbour").pid],
    }
    neighbour.open()
    lab.watch.wait("poststop", lab.container_id("neighbour"))
    lab.run("later")
    lab.podman("rm", "-f", "-t", "0", "later")
    assert node.groups() == {f"oci-{broken}": []}
    assert node.left() == {
        "groups": [f"{broken}.json"],
        "locks": [broken],
        "members": [f"{broken}.json"],
        "unmonitored": [],
    }
