# SPDX-License-Identifier: Apache-2.0
"""Processes as a container's author can make them, for commands to run beside:
nothing of them may matter.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable

from tests.bench.common import compile_static
from tests.support.cgroups import Cgroup, cgroup, enter_cgroup, pids_below
from tests.support.machine import HOOKS_DIR, PROGRAM
from tests.support.waiting import wait

DEADLINE = 300.0
ALONE = ("unshare", "--pid", "--mount", "--fork", "--kill-child")
MOUNTS = (
    'mount -t proc proc "$0/proc"; mount -t tmpfs dev "$0/dev"; mknod -m 666 "$0/dev/zero" c 1 5; '
    'exec "$@"'
)
POD = "d34db33f-1c55-4c7c-9d6b-2f3f8a1e9a70"
VICTIM = "5b1d2c1e-0c55-4c7c-9d6b-2f3f8a1e9a70"
MEMORY = 192
"""MiB that a command may take: twice as many as one does."""
LARGE = ["x" * 130_000] * 12
"""Nearly the most that execve(2) takes."""
CONFIG = "/etc/containerd/config.toml"
CLAIM = "the tenant says that all is well"
"""What is not to be repeated."""


def limited(memory: int) -> list[str]:
    """What a command is started by so that the kernel ends it at so many MiB,
    or at 300 s of CPU time.
    """
    return [
        "timeout",
        "--signal=KILL",
        str(DEADLINE),
        "prlimit",
        f"--as={memory << 20}",
        "--cpu=300",
        "--",
    ]


@dataclass(frozen=True)
class Tenant:
    """What a process shows: its words, of which the first names it, and its environment.

    `files`: makes its root directory. `is_podmans`: its cgroup is that of a container of Podman's
    instead of one in a pod. `below`: a cgroup below its own that it has moved to.
    """

    words: tuple[str, ...]
    files: Callable[[Path], object] = lambda _root: None
    environment: tuple[str, ...] = ()
    is_podmans: bool = False
    below: str = ""

    @property
    def name(self) -> str:
        return os.path.basename(self.words[0])


def fifo(*paths: str) -> Callable[[Path], object]:
    def make(root: Path) -> None:
        for path in paths:
            os.mkfifo(place(root, path))

    return make


def link(path: str, target: str) -> Callable[[Path], object]:
    return lambda root: place(root, path).symlink_to(target)


def place(root: Path, path: str) -> Path:
    """Where a path of a tenant's lies."""
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


HOOKS = (
    f"{HOOKS_DIR}/10-resctrl-mon-hook-kubernetes.json",
    "/etc/containers/oci/hooks.d/50-x.json",
)
INJECTOR = Tenant(("/bin/plugin",), fifo(*HOOKS), ("NRI_PLUGIN_NAME=hook-injector",))
CONTAINERD = Tenant(("containerd",))
KINDS: dict[str, Tenant] = {
    "containerd whose configuration is a FIFO": replace(CONTAINERD, files=fifo(CONFIG)),
    "containerd whose configuration is a device": replace(
        CONTAINERD, files=link(CONFIG, "/dev/zero")
    ),
    "containerd with a large command line": replace(CONTAINERD, words=("containerd", *LARGE)),
    "containerd in a cgroup of a victim's": replace(
        CONTAINERD, is_podmans=True, below=f"pod{VICTIM}"
    ),
    "crio whose configuration is a FIFO": Tenant(
        ("crio",), fifo("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/x")
    ),
    "conmon whose name is a claim": Tenant(
        ("conmon", "-n", CLAIM, "-b", "/b"), fifo("/b/config.json")
    ),
    "pqos": Tenant(("pqos", "-R")),
    "kepler": Tenant(("/usr/bin/kepler",)),
    "hook-injector whose hooks are FIFOs": replace(INJECTOR, words=("/usr/bin/hook-injector",)),
    "a plugin whose hooks are FIFOs": INJECTOR,
    "a plugin with a large environment": replace(
        INJECTOR,
        environment=(*INJECTOR.environment, *(f"X{n}={text}" for n, text in enumerate(LARGE))),
    ),
    "our watch": Tenant(
        ("/usr/bin/python3", PROGRAM, "watch"), fifo("/run/resctrl-mon-hook/watch.json")
    ),
    "the chart's reconcile": Tenant(("python3", "/app/node.py", "reconcile")),
}


@dataclass(frozen=True)
class RunningTenant:
    """A tenant that runs. `container`: the ID in the name of its cgroup."""

    pid: int
    container: str
    cgroup: Cgroup


@contextmanager
def running(tenant: Tenant, directory: Path) -> Iterator[RunningTenant]:
    """A tenant's process.

    `directory`: a new one for all that it needs, which is gone in the end.
    """
    directory.mkdir()
    root = directory / "root"
    program = place(root, f"/usr/bin/{tenant.name}")
    compile_static(Path(__file__).with_name("tenant.c"), program)
    for name in ("proc", "dev"):
        (root / name).mkdir()
    tenant.files(root)
    container = hashlib.sha256(os.fsencode(directory)).hexdigest()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        stack.callback(release, root)
        above = (
            []
            if tenant.is_podmans
            else [f"/tenant-{container[:12]}-pod{POD.replace('-', '_')}.slice"]
        )
        paths = [
            *above,
            f"/libpod-{container}.scope"
            if tenant.is_podmans
            else f"/cri-containerd-{container}.scope",
        ]
        made = [stack.enter_context(cgroup("".join(paths[: n + 1]))) for n in range(len(paths))]
        innermost = made[-1]
        below = (
            stack.enter_context(cgroup(f"{innermost.path}/{tenant.below}"))
            if tenant.below
            else None
        )
        # It is in its cgroup before it has its name:
        # never is it to be seen as a process of the host of that name.
        within = [
            *enter_cgroup(innermost),
            *ALONE,
            "sh",
            "-ec",
            MOUNTS,
            str(root),
            "env",
            "-i",
            *tenant.environment,
        ]
        words = [
            *within,
            str(program),
            "--enter",
            str(root),
            f"/usr/bin/{tenant.name}",
            *tenant.words,
        ]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
        stack.callback(end, process, innermost)
        shown = "".join(f"{word}\0" for word in tenant.words).encode()
        wait(lambda: any(read_words(pid) == shown for pid in innermost.pids()))
        pid = next(pid for pid in innermost.pids() if read_words(pid) == shown)
        if below is not None:
            below.add(pid)
        yield RunningTenant(pid, container, innermost)


def end(process: subprocess.Popen[bytes], home: Cgroup) -> None:
    """Kill what `process` has started, so that it reaps that and ends, too."""
    for pid in {*pids_below([home.directory])} - {process.pid} or {process.pid}:
        os.kill(pid, signal.SIGKILL)
    process.wait()


def read_words(pid: int) -> bytes:
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def release(root: Path) -> None:
    """End what other programs of this machine began here: an open of a FIFO that waits."""
    for path in root.rglob("*"):
        if path.is_fifo():
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
