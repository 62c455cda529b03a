# SPDX-License-Identifier: Apache-2.0
"""containerd 2 of Debian's newest suite, whose containers' cgroups systemd makes: `SystemdCgroup = true`."""

from __future__ import annotations

from pathlib import Path

from tests.containerd.node import OfBaseSpec
from tests.kernel.inside import systemctl
from tests.support import newest
from tests.support.hook import Hook
from tests.support.root import Root

ALL_PODS = "kubepods.slice"


class OnSystemd(OfBaseSpec):
    """It gives containers this hook, whose run directory has a directory of its own.

    The machine has cgroup v2 alone, and systemd is PID 1 and answers on D-Bus.
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
        own = self._work / "root"
        own.mkdir()
        seen = (self.base, self._work, Path("/run/dbus"), Path("/run/systemd"))
        self._root = Root(newest.ready(), own, {str(path): path for path in seen})
        super()._configure()

    def close(self) -> None:
        try:
            super().close()
            systemctl("stop", ALL_PODS)
        finally:
            self._root.close()


def _slice(uid: str) -> str:
    return f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
