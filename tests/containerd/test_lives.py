# SPDX-License-Identifier: Apache-2.0
"""The lives that pods have under containerd, which has the hook from its base_runtime_spec,
or from an NRI plugin.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.containerd.conftest import CONTAINERDS, StartNode
from tests.containerd.node import PLAIN, RUNTIMES, UID, ContainerdNode, Pod
from tests.support.containers import REPOSITORY
from tests.support.hook import PYZ, shipped
from tests.support.observed import with_hooks_file

pytestmark = pytest.mark.both_forms

GROUP = f"oci-{UID}"


def hard_limit_on_files(pid: int) -> str:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(line for line in lines if line.startswith("Max open files")).split()[4]


@pytest.fixture(params=itertools.product(CONTAINERDS, RUNTIMES), ids="-".join)
def node(start_node: StartNode, request: pytest.FixtureRequest) -> ContainerdNode:
    return start_node(*request.param)


def test_pod_from_its_init_container_to_its_end(node: ContainerdNode) -> None:
    """No container of the pod runs between its init container and its app:
    the group, and its RMID, stay.

    A container may open as many files as containerd itself:
    a base_runtime_spec with the limits that ctr prints would take it to 1024.
    """
    pod = node.pod()
    assert node.groups() == {}, "the sandbox's own container is none of the pod's"
    first = pod.start("init")
    node.assert_placed(first)
    assert f":{pod.cgroup}/{first.id}\n" in Path(f"/proc/{first.init().pid}/cgroup").read_text()
    assert hard_limit_on_files(first.init().pid) == hard_limit_on_files(node.containerd.pid)
    rmid = node.rmid(GROUP)
    first.end()
    assert node.groups() == {GROUP: []}

    apps = [pod.start("web"), pod.start("sidecar")]
    for app in apps:
        node.assert_placed(app)
    assert node.groups() == {GROUP: sorted(app.init().pid for app in apps)}
    for app in apps:
        app.stop()
    pod.remove()
    node.reconcile()
    assert node.groups() == {GROUP: []}, "its cgroup is there: a container of it may start again"
    node.containerd.cgroups.end()
    node.reconcile()
    assert node.history(GROUP).count("mkdir") == 1
    assert rmid
    node.assert_clean()
    (line,) = node.lines()
    named = [line[name] for name in ("node", "key", "namespace", "pod", "runs")]
    assert named == [os.uname().nodename, UID, "default", "pod", 2]


def test_containerd_is_killed_and_comes_back(node: ContainerdNode) -> None:
    """Containers live on without it, and it goes on with them, and with their hooks."""
    pod = node.pod()
    web, brief = pod.start("web"), pod.start("brief")
    node.containerd.kill()
    brief.gate.open()
    node.containerd.start_again()
    node.containerd.watch.wait("poststop", brief.id)
    assert node.groups() == {GROUP: [web.init().pid]}
    later = pod.start("later")
    node.assert_placed(later)
    for container in (web, later):
        container.stop()
    pod.remove()
    node.containerd.cgroups.end()
    node.reconcile()
    node.assert_clean()


def test_container_that_no_injector_hooked_is_counted_and_its_sandbox_is_not(
    start_node: StartNode, tmp_path: Path
) -> None:
    """containerd reads no hooks.d itself: without the injector the hook was never called,
    and nothing said so.
    """
    node = start_node("base-spec", "runc")
    pod = Pod(node.containerd, UID, PLAIN)
    container = pod.start("app")
    hooks_file = json.loads(
        (REPOSITORY / "oci-hooks/10-resctrl-mon-hook-kubernetes.json").read_text()
    )
    # As both forms are installed: containers' hooks are known by that.
    program = tmp_path / PYZ.name
    program.symlink_to(shipped())
    hooks_file["hook"] |= {
        "path": str(program),
        "args": ["resctrl-mon-hook", "hook", *node.directories],
    }
    path = tmp_path / "10-resctrl-mon-hook-kubernetes.json"
    path.write_text(json.dumps(hooks_file))

    def ask(*words: str) -> Any:  # noqa: ANN401  JSON
        command = [*with_hooks_file(path), str(shipped()), *words, "--json", *node.directories]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        assert done.stderr == ""
        return json.loads(done.stdout)

    name = f"default/pod app ({container.id[:12]})"
    assert any(name in line for line in ask("reconcile")["left"])
    mine = {
        "container": container.id,
        "namespace": "default",
        "pod": "pod",
        "name": "app",
        "uid": None,
    }
    unhooked = ask("list")["unhooked"]["containers"]
    assert mine in unhooked
    assert pod.id not in {container["container"] for container in unhooked}, "the sandbox"
    container.gate.open()
    pod.remove()
