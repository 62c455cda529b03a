# SPDX-License-Identifier: Apache-2.0
"""containerd 2, in a root of Debian's newest suite,
with an NRI plugin that gives containers the hooks of hooks.d.

The hook lies there as it is shipped: program, hooks.d files and directories in their usual places.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from hook.node.paths import HISTORY
from tests.containerd.node import RUNTIMES, Containerd
from tests.support import newest
from tests.support.containers import ALWAYS, REPOSITORY, STAGES
from tests.support.hook import shipped
from tests.support.observed import Observed
from tests.support.root import Root

PROGRAM = "/usr/libexec/oci/hooks.d/resctrl-mon-hook.pyz"
HOOKS_D = "/usr/share/containers/oci/hooks.d"
KUBERNETES = "10-resctrl-mon-hook-kubernetes.json"
PODMAN = "10-resctrl-mon-hook-podman.json"
# A plugin that does not answer in time is given up for good, by default after 2 seconds.
CONFIGURATION = """\
version = 3
root = "{base}/root"
state = "{base}/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "{base}/containerd.sock"
{timeouts}
[plugins."io.containerd.nri.v1.nri"]
  socket_path = "{base}/nri.sock"
  plugin_path = "{base}/nri"
  plugin_registration_timeout = "5m"
  plugin_request_timeout = "5m"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "native"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{image}"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    conf_dir = "{base}/cni"
"""
OPEN = "-open"
"""Behind a runtime's name: all that a pod's author writes gets into the specification."""


class Injecting(Containerd):
    """For the machine that has this resctrl and this run directory."""

    def __init__(self, machine: Observed) -> None:
        self._machine = machine
        super().__init__()

    def program(self) -> Path:
        return self._root.at("/usr/bin/containerd")

    def enter(self) -> list[str]:
        return self._root.enter()

    def hook(self, *words: str) -> None:
        super().hook(PROGRAM, *words)

    def history(self) -> Path:
        return self._root.at(HISTORY)

    def _configure(self) -> None:
        run_dir, work = self._machine.run_dir, self._machine.run_dir.with_name("root")
        for path in (run_dir, work):
            path.mkdir()
        binds = {
            str(self.base): self.base,
            "/sys/fs/resctrl": self._machine.resctrl.root,
            "/run/resctrl-mon-hook": run_dir,
        }
        self._root = Root(newest.ready(), work, binds)
        self._install()
        plugins = self.base / "nri"
        plugins.mkdir()
        shutil.copy(newest.program("hook-injector"), plugins / "10-hook-injector")
        settings = dict.fromkeys(RUNTIMES, "pod_annotations = []")
        settings |= {name + OPEN: 'pod_annotations = ["*"]' for name in RUNTIMES}
        self._write_configuration(CONFIGURATION, "io.containerd.cri.v1.runtime", settings)

    def _install(self) -> None:
        program, hooks_d = self._root.at(PROGRAM), self._root.at(HOOKS_D)
        program.parent.mkdir(parents=True)
        shutil.copy(shipped(), program)
        shutil.copytree(REPOSITORY / "oci-hooks", hooks_d)
        self.history().parent.mkdir(mode=0o750)
        hook = {"path": str(self.watch.program), "args": ["watch"], "timeout": 60}
        watch = {"version": "1.0.0", "hook": hook, "when": ALWAYS, "stages": STAGES}
        (hooks_d / "99-watch.json").write_text(json.dumps(watch))

    def add_option(self, file: str, option: str) -> None:
        """Have a file of hooks.d call our hook with it."""
        path = self._root.at(f"{HOOKS_D}/{file}")
        content = json.loads(path.read_text())
        content["hook"]["args"].append(option)
        path.write_text(json.dumps(content))

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._root.close()
