"""The lives that pods have under containerd, which takes the hooks from its base_runtime_spec."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hook import configured
from tests import provision
from tests.containerd.node import RUNTIMES, Containerd, Pod
from tests.resctrlfs import mounted
from tests.support.containers import DEADLINE, HOOK
from tests.support.observed import Observed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.containerd.node import Running
    from tests.resctrlfs import Mounted

UID = "0f9c3a52-6a0e-4a9f-9d43-5f5c1d3c7b11"
GROUP = f"oci-{UID}"
COMM = {"runc": "runc:[2:INIT]", "crun": "crun"}


class Node(Observed):
    """A machine with resctrl (the model), our hook and containerd."""

    def __init__(self, directory: Path, resctrl: Mounted, runtime: str) -> None:
        super().__init__(directory, resctrl)
        self.runtime = runtime
        self.containerd = Containerd([*self.directories, "--linger=60"])

    def pod(self, **annotations: str) -> Pod:
        return Pod(self.containerd, UID, self.runtime, annotations)

    def assert_placed(self, container: Running) -> None:
        self.assert_placed_before_exec(container.init(), GROUP, container.gate.command, comm=COMM[self.runtime])

    def reconcile(self) -> None:
        done = subprocess.run(
            [str(HOOK), "reconcile", *self.directories, "--linger=60", "--snapshot-ttl=0"],
            check=False,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        assert (done.returncode, done.stderr) == (0, "")


def hard_limit_on_files(pid: int) -> str:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(line for line in lines if line.startswith("Max open files")).split()[4]


@pytest.fixture(params=RUNTIMES)
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    if absent := provision.missing(provision.TEST):
        pytest.skip("; ".join(absent))
    with mounted(tmp_path) as resctrl:
        node = Node(tmp_path, resctrl, request.param)
        with closing(node.containerd):
            yield node


def test_pod_from_its_init_container_to_its_end(node: Node) -> None:
    """No container of the pod runs between its init container and its app: the group, and its RMID, stay."""
    pod = node.pod()
    assert node.groups() == {}, "the sandbox's own container is none of the pod's"
    first = pod.start("init")
    node.assert_placed(first)
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


def test_a_container_may_open_as_many_files_as_without_the_hook(node: Node) -> None:
    """That is what containerd itself may: a base_runtime_spec with the limits that ctr prints would take it to 1024."""
    container = node.pod().start("web")
    assert hard_limit_on_files(container.init().pid) == hard_limit_on_files(node.containerd.pid)


def test_container_that_is_killed_and_started_again(node: Node) -> None:
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


def test_containerd_is_killed_and_comes_back(node: Node) -> None:
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


VICTIM = "00000000-0000-4000-8000-000000000001"


def test_pods_own_annotations_do_not_put_it_into_another_pod(node: Node) -> None:
    """containerd is told to pass them on here; the kubelet's cgroup says whose pod it is."""
    forged = {"io.container.manager": "cri-o", "io.kubernetes.pod.uid": VICTIM, "io.kubernetes.cri.sandbox-uid": VICTIM}
    web = node.pod(**forged).start("web")
    assert node.groups() == {GROUP: [web.init().pid]}
    node.assert_placed(web)
    (record,) = [json.loads(path.read_text()) for path in (node.run_dir / "unmonitored").glob("*.json")]
    assert (record["container"], record["reason"], record["monitored"]) == (web.id, "bad_key", True)
    web.end()
    assert list((node.run_dir / "unmonitored").glob("*.json")) == []


def test_annotations_are_passed_on_as_doctor_has_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """`*` stops at a slash."""
    keys = ["monitor.resctrl-mon.io", "monitor.resctrl-mon.io/web", "other.example/x", "plain"]
    web = node.pod(**dict.fromkeys(keys, "true")).start("web")
    base = node.containerd.base
    config = json.loads((base / f"state/io.containerd.runtime.v2.task/k8s.io/{web.id}/config.json").read_text())
    monkeypatch.setattr(configured, "_CONTAINERD", (f"{base}/config.toml",))
    passed = [key for key in keys if key in config["annotations"]]
    assert passed == [key for key in keys if configured.passes_on(key)]
    assert passed == ["monitor.resctrl-mon.io", "monitor.resctrl-mon.io/web", "plain"]
