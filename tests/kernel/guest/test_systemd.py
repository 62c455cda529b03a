# SPDX-License-Identifier: Apache-2.0
"""Containers whose cgroups systemd makes, on cgroup v2, as OpenShift, Fedora and Debian run them.

systemd is PID 1 and answers on D-Bus; what is asked is the kernel.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.containerd.node import OfBaseSpec, Pod
from tests.kernel.inside import REAL_ROOT, SYSTEMD, systemctl, wait_for_systemd
from tests.support import newest
from tests.support.containers import READ_GROUPS, Lab
from tests.support.hook import PATIENT, UID, Hook
from tests.support.root import Root

GROUP = f"oci-{UID}"
pytestmark = pytest.mark.skipif(not SYSTEMD.exists(), reason=f"no {SYSTEMD}")
ALL_PODS = "kubepods.slice"


class OnSystemd(OfBaseSpec):
    """containerd 2 of Debian's newest suite,
    which has systemd make the cgroups and gives containers this hook.
    """

    runtime_options = "SystemdCgroup = true"

    def __init__(self, hook: Hook) -> None:
        self._work = hook.run_dir.parent
        super().__init__(hook.command("hook")[2:])

    def program(self) -> Path:
        return self._root.at("/usr/bin/containerd")

    def enter(self) -> list[str]:
        return self._root.enter()

    def crun(self) -> str:
        return "crun"

    def pod_cgroup(self, uid: str) -> str:
        """Make it, as kubelet does before it makes the sandbox."""
        assert systemctl("start", _slice(uid)) == ""
        return f"/{ALL_PODS}/kubepods-burstable.slice/{_slice(uid)}"

    def end_pod(self, uid: str) -> None:
        """Remove its cgroup, as kubelet does behind the sandbox."""
        assert systemctl("stop", _slice(uid)) == ""

    def _configure(self) -> None:
        root = self._work / "root"
        root.mkdir()
        shared = (self.base, self._work, Path("/run/dbus"), Path("/run/systemd"))
        self._root = Root(newest.ready(), root, {str(path): path for path in shared})
        super()._configure()

    def close(self) -> None:
        try:
            super().close()
            systemctl("stop", ALL_PODS)
        finally:
            self._root.close()


def _slice(uid: str) -> str:
    return f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"


@pytest.fixture(scope="module", autouse=True)
def booted() -> None:
    wait_for_systemd()


@pytest.fixture(scope="module")
def lingering(tmp_path_factory: pytest.TempPathFactory) -> Hook:
    assert REAL_ROOT is not None
    return Hook(
        REAL_ROOT, tmp_path_factory.mktemp("node") / "run", options=(PATIENT, "--linger=60")
    )


@pytest.fixture(scope="module")
def containerd(lingering: Hook) -> Iterator[OnSystemd]:
    if newest.find() is None:
        pytest.skip("no Debian for containerd 2 could be made")
    with closing(OnSystemd(lingering)) as containerd:
        yield containerd


def groups_of(pid: int) -> str:
    return " ".join(Path(f"/proc/{pid}/cpu_resctrl_groups").read_text().split())


def scope_of(pid: int) -> str:
    """The cgroup that systemd made; crun puts the container into one below."""
    return (
        Path(f"/proc/{pid}/cgroup")
        .read_text()
        .strip()
        .removeprefix("0::")
        .removesuffix("/container")
    )


@pytest.mark.usefixtures("root")
def test_a_pod_of_the_kubelets_is_in_its_group_from_its_first_container_to_its_end(
    lingering: Hook, containerd: OnSystemd
) -> None:
    pod = Pod(containerd, UID, "runc")
    status = containerd.cri.runtime.PodSandboxStatus(pod_sandbox_id=pod.id, verbose=True)
    sandbox = json.loads(status.info["info"])["pid"]
    assert scope_of(sandbox) == f"{pod.cgroup}/cri-containerd-{pod.id}.scope"
    assert (groups_of(sandbox), lingering.groups()) == ("res:/ mon:", set()), (
        "the sandbox is none of the pod's"
    )

    first = pod.start("init", first=READ_GROUPS)
    assert first.line == f"res:/ mon:{GROUP} "
    first.end()
    assert lingering.groups() == {GROUP}, "the pod's next container will be in it"

    web = pod.start("web", first=READ_GROUPS)
    assert web.line == f"res:/ mon:{GROUP} "
    init = web.init()
    assert scope_of(init.pid) == f"{pod.cgroup}/cri-containerd-{web.id}.scope"
    assert lingering.tasks(GROUP) == {init.pid}
    assert set(lingering.key(UID)["members"]) == {web.id}
    web.stop()
    pod.remove()
    assert lingering.groups() == {GROUP}, "it lingers as long as the pod's cgroup is there"
    containerd.end_pod(UID)
    subprocess.run(lingering.command("reconcile"), check=True)
    lingering.assert_clean()


def test_a_container_of_podmans_is_in_its_group_before_it_runs(hook: Hook, lab: Lab) -> None:
    lab.place = ["--network=none"]
    lab.engine = ["--runtime=crun", "--cgroup-manager=systemd"]
    gate = lab.gate("web", READ_GROUPS)
    lab.podman("run", "-d", *lab.options("web"), "--rootfs", str(lab.rootfs), *gate.command)
    container = lab.container_id("web")
    assert gate.wait_up() == f"res:/ mon:oci-{container} "
    init = lab.init("web").pid
    assert scope_of(init) == f"/machine.slice/libpod-{container}.scope"
    assert hook.tasks(f"oci-{container}") == {init}
    gate.open()
    lab.watch.wait("poststop", container)
    hook.assert_clean()
