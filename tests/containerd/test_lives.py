# SPDX-License-Identifier: Apache-2.0
"""The lives that pods have under containerd, which has the hook from its base_runtime_spec, or from an NRI plugin."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hook.node.paths import STUB
from tests.containerd.conftest import CONTAINERDS
from tests.containerd.node import PLAIN, RUNTIMES, UID, Pod
from tests.support import machine
from tests.support.containers import HOOK
from tests.support.observed import with_hooks_file

if TYPE_CHECKING:
    from tests.containerd.conftest import StartNode
    from tests.containerd.node import ContainerdNode

GROUP = f"oci-{UID}"


def hard_limit_on_files(pid: int) -> str:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(line for line in lines if line.startswith("Max open files")).split()[4]


@pytest.fixture(params=itertools.product(CONTAINERDS, RUNTIMES), ids="-".join)
def node(start_node: StartNode, request: pytest.FixtureRequest) -> ContainerdNode:
    return start_node(*request.param)


def test_pod_from_its_init_container_to_its_end(node: ContainerdNode) -> None:
    """No container of the pod runs between its init container and its app: the group, and its RMID, stay."""
    pod = node.pod()
    assert node.groups() == {}, "the sandbox's own container is none of the pod's"
    first = pod.start("init")
    node.assert_placed(first)
    assert f":{pod.cgroup}/{first.id}\n" in Path(f"/proc/{first.init().pid}/cgroup").read_text()
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


def test_after_an_uninstallation_containers_end_and_start_with_the_stub(start_node: StartNode, tmp_path: Path) -> None:
    """containerd goes on to give them the hook, and starts none whose program is missing."""
    if reason := machine.missing():
        pytest.skip(reason)
    node = start_node("base-spec", "runc")
    program = node.containerd.base / "libexec/oci/hooks.d" / HOOK.name
    program.unlink()
    shutil.copy(HOOK, program)
    pod = node.pod()
    before = pod.start("web")
    node.assert_placed(before)
    scratch = machine.ScratchMachine(tmp_path / "scratch", has_run=False)
    places = [f"--prefix={node.containerd.base}", f"--hooks-dir={tmp_path}", *node.directories]
    done = scratch.run("uninstall", *places)
    assert (done.returncode, done.stderr) == (0, "")
    assert (program.read_bytes(), node.groups()) == (STUB, {})
    after = pod.start("later")
    assert after.init().pid
    for container in (before, after):
        container.end()
    assert node.groups() == {}


def test_a_container_may_open_as_many_files_as_without_the_hook(node: ContainerdNode) -> None:
    """That is what containerd itself may: a base_runtime_spec with the limits that ctr prints would take it to 1024."""
    container = node.pod().start("web")
    assert hard_limit_on_files(container.init().pid) == hard_limit_on_files(node.containerd.pid)


def test_container_that_is_killed_and_started_again(node: ContainerdNode) -> None:
    pod = node.pod()
    before = pod.start("web")
    rmid = node.rmid(GROUP)
    os.kill(before.init().pid, signal.SIGKILL)
    node.containerd.watch.wait("poststop", before.id)
    after = pod.start("web", attempt=1)
    node.assert_placed(after)
    assert node.rmid(GROUP) == rmid
    assert node.groups() == {GROUP: [after.init().pid]}
    assert node.left()["members"] == [f"{after.id}.json"]


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


def test_containers_that_no_injector_hooked_are_counted_until_adopted(start_node: StartNode, tmp_path: Path) -> None:
    """containerd reads no hooks.d itself: without the injector the hook was never called, and nothing said so."""
    node = start_node("base-spec", "runc")
    pod = Pod(node.containerd, UID, PLAIN)
    container = pod.start("app")
    hook = {"path": str(HOOK), "args": ["resctrl-mon-hook", "hook", *node.directories]}
    when = {"annotations": {r"^io\.kubernetes\.container\.restartCount$": ".*"}}
    path = tmp_path / "10-resctrl-mon-hook-kubernetes.json"
    path.write_text(
        json.dumps({"version": "1.0.0", "hook": hook, "when": when, "stages": ["createRuntime", "poststop"]})
    )

    def ask(*words: str) -> Any:  # noqa: ANN401  JSON
        command = [*with_hooks_file(path), str(HOOK), *words, "--json", *node.directories]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        assert done.stderr == ""
        return json.loads(done.stdout)

    name = f"default/pod app ({container.id[:12]})"
    assert any(name in line for line in ask("reconcile")["left"])
    mine = {"container": container.id, "namespace": "default", "pod": "pod", "name": "app"}
    assert mine in ask("list")["unhooked"]["containers"]
    assert pod.id not in {it["container"] for it in ask("list")["unhooked"]["containers"]}, "the sandbox"
    (finding,) = [it for it in ask("doctor")["findings"] if it["subject"] == "unhooked" and it["level"] != "warning"]
    assert (finding["level"], name in finding["found"]) == ("fail", True)
    ask("reconcile", "--adopt")
    assert mine not in ask("list")["unhooked"]["containers"]
    container.gate.open()
    pod.remove()


VICTIM = "00000000-0000-4000-8000-000000000001"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_pods_own_annotations_do_not_put_it_into_another_pod(start_node: StartNode, runtime: str) -> None:
    """containerd is told to pass them on here; the kubelet's cgroup says whose pod it is."""
    node = start_node("base-spec", runtime)
    forged = {"io.container.manager": "cri-o", "io.kubernetes.pod.uid": VICTIM, "io.kubernetes.cri.sandbox-uid": VICTIM}
    web = node.pod(**forged).start("web")
    assert node.groups() == {GROUP: [web.init().pid]}
    node.assert_placed(web)
    (record,) = [json.loads(path.read_text()) for path in (node.run_dir / "unmonitored").glob("*.json")]
    assert (record["container"], record["reason"], record["monitored"]) == (web.id, "bad_key", True)
    web.end()
    assert list((node.run_dir / "unmonitored").glob("*.json")) == []
