# SPDX-License-Identifier: Apache-2.0
"""A containerd of its own, whose containers get the hook,
driven through the CRI as kubelet does it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable

import grpc

from tests.containerd.cri import Cri, Service
from tests.resctrlfs import Mounted, Seen
from tests.resctrlfs.events import look
from tests.support.cgroups import Cgroup, enter_cgroup
from tests.support.containers import (
    DEADLINE,
    IMAGE_COMMAND,
    Cgroups,
    Gate,
    Watch,
    make_rootfs,
    remove,
    short_scratch,
    users,
)
from tests.support.hook import PYZ, shipped
from tests.support.leftovers import make_directory
from tests.support.observed import Observed
from tests.support.waiting import wait

Hooks = dict[str, list[dict[str, Any]]]
"""By stage, as a specification has them."""
IMAGE = "localhost/gate:1"
UID = "0f9c3a52-6a0e-4a9f-9d43-5f5c1d3c7b11"
COMM = {"runc": "runc:[2:INIT]", "crun": "crun"}
RUNTIMES = tuple(COMM)
HOST_NETWORK = {"network": 2}  # NamespaceMode.NODE: no CNI plugin is asked for
# crun refuses cgroup v1 and v2 side by side: in its mount namespace there is but v2. And what a
# small VM has no controllers for, nor the right to load BPF programs for, it is not asked to limit.
CRUN = """\
#!/usr/bin/python3 -IS
import json, os, sys
if "--bundle" in sys.argv:
    path = sys.argv[sys.argv.index("--bundle") + 1] + "/config.json"
    config = json.load(open(path))
    config["linux"].pop("resources", None)
    json.dump(config, open(path, "w"))
script = "test -e /sys/fs/cgroup/cgroup.controllers || mount -t cgroup2 none /sys/fs/cgroup"
script += ' && exec crun "$@"'
os.execvp("unshare", ["unshare", "-m", "sh", "-c", script, "sh", *sys.argv[1:]])
"""
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
CONFIGURATION = """\
version = 2
root = "{base}/root"
state = "{base}/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
imports = ["{base}/conf.d/*.toml"]
[grpc]
  address = "{base}/containerd.sock"
{timeouts}
"""
# What names the hook is imported: as k3s has it, and containerd 2.2.
IMPORTED = """\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "{base}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"""
# By default 2 and 5 seconds, behind which containers are given up: a busy machine may take longer.
TIMEOUTS = """\
[timeouts]
  "io.containerd.timeout.shim.cleanup" = "5m"
  "io.containerd.timeout.shim.load" = "5m"
  "io.containerd.timeout.task.state" = "5m"
"""
PLAIN = "plain"
"""The runtime whose containers do not have the hook."""
RUNTIME = """\
    [plugins."{table}".containerd.runtimes.{name}]
      runtime_type = "io.containerd.runc.v2"
      {setting}
      [plugins."{table}".containerd.runtimes.{name}.options]
        BinaryName = "{binary}"
        {options}
"""


class Containerd:
    """The daemon; its containers outlive it, and go with `close`.

    Subclasses: how it gives them the hook.
    """

    runtime_options = ""
    """Of each runtime, in config.toml."""

    def __init__(self) -> None:
        self.base = make_directory(short_scratch())
        self.cgroups = Cgroups(self.base.name)
        # Named like a container's, so that tests which run meanwhile do not take it for the host's.
        self._own = Cgroup(f"{self.cgroups.path}/libpod-{'c0' * 32}.scope")
        self.gates = self.base / "gates"
        self.gates.mkdir()
        (self.base / "cni").mkdir()
        (self.base / "crun").write_text(CRUN)
        (self.base / "crun").chmod(0o755)
        self.watch = Watch(self.base)
        self._gates: list[Gate] = []
        self._configure()
        self._process = self._started()
        self._import_image()

    def _configure(self) -> None:
        """Write config.toml into `base`, and what it names."""
        raise NotImplementedError

    def program(self) -> Path:
        """Where the host sees what it runs."""
        raise NotImplementedError

    def enter(self) -> list[str]:
        """What a program is started by, to see the files that it sees."""
        return []

    def crun(self) -> Path | str:
        """The program that runs containers by crun."""
        return self.base / "crun"

    def pod_cgroup(self, uid: str) -> str:
        """The cgroup of a pod, as kubelet names it to the CRI."""
        return f"{self.cgroups.path}/kubepods/burstable/pod{uid}"

    def hook(self, *words: str) -> None:
        """Run our program with the hook's directories; it must have nothing to complain about."""
        done = subprocess.run(
            [*self.enter(), *words],
            env=ENVIRONMENT,
            check=False,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        assert (done.returncode, done.stderr) == (0, "")

    def history(self) -> Path:
        """Return where the host sees the file of the history."""
        return self.base / "history.jsonl"

    def _write_configuration(
        self, text: str, table: str, runtimes: dict[str, str], name: str = "config.toml"
    ) -> None:
        """`table`: of the CRI's runtimes.

        `runtimes`: a setting of each, by its name. `name`: of the file.
        """
        text = text.format(base=self.base, image=IMAGE, timeouts=TIMEOUTS)
        for runtime, setting in runtimes.items():
            binary = self.crun() if runtime.startswith("crun") else "runc"
            text += RUNTIME.format(
                table=table,
                name=runtime,
                binary=binary,
                setting=setting,
                options=self.runtime_options,
            )
        (self.base / name).write_text(text)

    @property
    def words(self) -> list[str]:
        """The command line of containerd."""
        return ["containerd", f"--config={self.base}/config.toml"]

    def _started(self) -> subprocess.Popen[bytes]:
        with (self.base / "log").open("ab") as log:
            process = subprocess.Popen(
                [*enter_cgroup(self._own), *self.enter(), *self.words],
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.cri = Cri(f"unix://{self.base}/containerd.sock", self.program())
        self._wait_for_cri()
        return process

    def _wait_for_cri(self) -> None:
        """The socket answers before the CRI has read back what runs."""

        def is_ready() -> bool:
            try:
                self.cri.runtime.ListPodSandbox(wait_for_ready=True)
            except grpc.RpcError as error:
                if "not initialized" in str(error):
                    return False
                raise RuntimeError(
                    f"containerd: {(self.base / 'log').read_text()[-2000:]}"
                ) from error
            return True

        wait(is_ready)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """As kill -9 does, which leaves the containers and their shims running."""
        self.cri.close()
        self._process.kill()
        self._process.wait()

    def start_again(self) -> None:
        self._process = self._started()

    def _import_image(self) -> None:
        make_rootfs(self.base / "rootfs")
        archive = self.base / "image.tar"
        _write_image(archive, self.base / "rootfs", IMAGE)
        command = [
            "ctr",
            f"--address={self.base}/containerd.sock",
            "--namespace=k8s.io",
            "images",
            "import",
        ]
        subprocess.run(
            [*self.enter(), *command, str(archive)],
            check=True,
            capture_output=True,
            timeout=DEADLINE,
        )
        # It learns of it by an event.
        wait(lambda: bool(self.cri.image.ImageStatus(image={"image": IMAGE}).image.id))

    def gate(self, name: str, first: str) -> Gate:
        self._gates.append(Gate(name, self.gates, first))
        return self._gates[-1]

    def close(self) -> None:
        """Remove everything, and what runs in it.

        What containerd leaves running, its shims too, is killed.
        """
        with suppress(grpc.RpcError):
            for sandbox in self.cri.runtime.ListPodSandbox().items:
                self._remove(sandbox.id)
        self.cgroups.end()
        self.kill()
        for descriptor in users(self.base):
            with os.fdopen(descriptor), suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        for gate in self._gates:
            gate.close()
        self.watch.close()
        remove(self.base)

    def _remove(self, sandbox: str) -> None:
        """As often as it takes, as kubelet does it:
        while a container of it is just ending, it fails.
        """

        def is_removed() -> bool:
            try:
                self.cri.runtime.RemovePodSandbox(pod_sandbox_id=sandbox)
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.UNAVAILABLE:
                    raise
                return False
            return True

        wait(is_removed)


OPEN = 'pod_annotations = ["*", "monitor.resctrl-mon.io/*"]'
"""Has containerd hand a pod's own annotations on to its containers; `*` stops at a slash."""


class OfBaseSpec(Containerd):
    """This machine's containerd, of version 1.6,
    with the hook in its base_runtime_spec, and these options.
    """

    def __init__(self, options: Sequence[str]) -> None:
        self._options = options
        super().__init__()

    def program(self) -> Path:
        program = shutil.which("containerd")
        assert program is not None
        return Path(program)

    def hook(self, *words: str) -> None:
        super().hook(str(shipped()), *words, *self._hook_options())

    def _hook_options(self) -> list[str]:
        # The usual place is this machine's own.
        return [*self._options, f"--history={self.history()}"]

    def hooks_of(self, printed: Hooks) -> dict[str, Hooks]:
        """The hooks of each runtime's base_runtime_spec, by its name; `printed`:
        those that ours prints.
        """
        watch = {"path": str(self.watch.program), "args": ["watch"], "timeout": 60}
        return {
            name: {stage: [*hooks, watch] for stage, hooks in printed.items()} for name in RUNTIMES
        }

    def _configure(self) -> None:
        program = self.base / "libexec/oci/hooks.d" / PYZ.name  # as `install --prefix` puts it
        program.parent.mkdir(parents=True)
        shutil.copy(shipped(), program)
        make_spec = [*self.enter(), "ctr", "oci", "spec"]
        plain = subprocess.run(make_spec, check=True, capture_output=True, timeout=DEADLINE).stdout
        command = [
            str(program),
            "base-runtime-spec",
            f"--prefix={self.base}",
            *self._hook_options(),
        ]
        printed = subprocess.run(
            command, input=plain, check=True, capture_output=True, timeout=DEADLINE
        ).stdout
        spec = json.loads(printed)
        settings = {PLAIN: ""}
        for name, hooks in self.hooks_of(spec["hooks"]).items():
            path = self.base / f"{name}.json"
            path.write_text(json.dumps({**spec, "hooks": hooks}))
            settings[name] = f'base_runtime_spec = "{path}"\n      {OPEN}'
        table = "io.containerd.grpc.v1.cri"
        (self.base / "conf.d").mkdir()
        self._write_configuration(CONFIGURATION, table, {})
        self._write_configuration(IMPORTED, table, settings, "conf.d/cri.toml")


class ContainerdNode(Observed):
    """A machine with resctrl (the model), our hook and a containerd,
    which runs pods by that runtime.
    """

    def __init__(
        self,
        directory: Path,
        resctrl: Mounted,
        containerd: Callable[[Observed], Containerd],
        runtime: str,
    ) -> None:
        super().__init__(directory, resctrl)
        self.runtime = runtime
        self.containerd = containerd(self)

    def pod(self, uid: str = UID, /, **annotations: str) -> Pod:
        """`annotations`: what its author wrote."""
        return Pod(self.containerd, uid, self.runtime, annotations)

    def assert_placed(self, container: RunningContainer) -> None:
        """It was put into its pod's group before its first instruction."""
        comm = COMM[self.runtime.partition("-")[0]]
        self.assert_placed_before_exec(container.init(), f"oci-{UID}", container.gate.command, comm)

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of the history."""
        return [*map(json.loads, self.containerd.history().read_text().splitlines())]

    def reconcile(self) -> None:
        self.containerd.hook("reconcile", "--linger=60", "--snapshot-ttl=0")


class Pod:
    """A pod sandbox, and containers in it, as kubelet makes them:
    in cgroups below the pod's, which is kubelet's.

    `annotations`: what the pod's author wrote.
    """

    def __init__(
        self, node: Containerd, uid: str, runtime: str, annotations: Mapping[str, str] | None = None
    ) -> None:
        self.node, self.uid = node, uid
        self.cgroup = node.pod_cgroup(uid)
        self._config = {
            "metadata": {"name": "pod", "uid": uid, "namespace": "default", "attempt": 0},
            "labels": {"io.kubernetes.pod.uid": uid},
            "annotations": dict(annotations or {}),
            "log_directory": str(node.base),
            "linux": {
                "cgroup_parent": self.cgroup,
                "security_context": {"namespace_options": HOST_NETWORK},
            },
        }
        response = self._runtime.RunPodSandbox(config=self._config, runtime_handler=runtime)
        self.id: str = response.pod_sandbox_id

    @property
    def _runtime(self) -> Service:
        return self.node.cri.runtime

    def start(self, name: str, attempt: int = 0, first: str = "echo $$") -> RunningContainer:
        """Create and start a container; returns when its command is running.

        `first` is as a Gate has it.
        """
        gate = self.node.gate(f"{name}.{attempt}", first)
        container = self.create(name, gate.command, attempt)
        self._runtime.StartContainer(container_id=container)
        return RunningContainer(self.node, container, gate, gate.wait_up())

    def create(self, name: str, command: Sequence[str], attempt: int = 0) -> str:
        """Create a container; returns its ID."""
        config = {
            "metadata": {"name": name, "attempt": attempt},
            "image": {"image": IMAGE},
            "command": command,
            "annotations": {"io.kubernetes.container.restartCount": str(attempt)},
            "mounts": [{"container_path": "/gates", "host_path": str(self.node.gates)}],
            "log_path": f"{name}.{attempt}.log",
            "linux": {"security_context": {"namespace_options": HOST_NETWORK}},
        }
        response = self._runtime.CreateContainer(
            pod_sandbox_id=self.id, config=config, sandbox_config=self._config
        )
        return str(response.container_id)

    def remove(self) -> None:
        self._runtime.StopPodSandbox(pod_sandbox_id=self.id)
        self._runtime.RemovePodSandbox(pod_sandbox_id=self.id)


class RunningContainer:
    """A container that runs.

    To be ended by its gate, or by one of these. `line`: what its command printed first.
    """

    def __init__(self, node: Containerd, container_id: str, gate: Gate, line: str) -> None:
        self.node, self.id, self.gate, self.line = node, container_id, gate, line

    def init(self) -> Seen:
        info = self.node.cri.runtime.ContainerStatus(container_id=self.id, verbose=True).info
        return look(json.loads(info["info"])["pid"])

    def end(self) -> None:
        """Let its command end, and wait until its poststop hooks are through."""
        self.gate.open()
        self.node.watch.wait("poststop", self.id)

    def stop(self) -> None:
        """As kubelet stops it, and without waiting for it to end by itself."""
        self.node.cri.runtime.StopContainer(container_id=self.id, timeout=0)
        self.node.watch.wait("poststop", self.id)


def _write_image(path: Path, rootfs: Path, name: str) -> None:
    """A file for `ctr images import`: one layer, in the format of `docker save`."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(rootfs, arcname=".")
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    config = {
        "architecture": machine,
        "os": "linux",
        "config": {"Cmd": IMAGE_COMMAND},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    parts = {
        "layer.tar": layer.getvalue(),
        "config.json": json.dumps(config).encode(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    with tarfile.open(path, "w") as tar:
        for part, content in parts.items():
            member = tarfile.TarInfo(part)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
