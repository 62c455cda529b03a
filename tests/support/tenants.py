# SPDX-License-Identifier: Apache-2.0
"""Processes as a container's author can make them, for commands to run beside: nothing of them may matter."""

from __future__ import annotations

import hashlib
import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable

from tests.support.cgroups import Cgroup, cgroup, enter_cgroup
from tests.support.machine import HOOKS_DIR, PROGRAM

DEADLINE = 300.0
PYTHON = os.path.realpath("/usr/bin/python3")
PROCESS = Path(__file__).with_name("tenant.py")
ALONE = ("unshare", "--pid", "--mount", "--fork", "--kill-child")
POD = "d34db33f-1c55-4c7c-9d6b-2f3f8a1e9a70"
VICTIM = "5b1d2c1e-0c55-4c7c-9d6b-2f3f8a1e9a70"
MEMORY = 192
"""MiB that a command may take: twice as many as one does."""
LARGE = 2 * MEMORY << 20
CONFIG = "/etc/containerd/config.toml"
CLAIM = "the tenant says that all is well"
"""What is not to be repeated."""


def limited(memory: int) -> list[str]:
    """What a command is started by so that the kernel ends it at so many MiB, or at 300 s of CPU time."""
    return ["timeout", "--signal=KILL", str(DEADLINE), "prlimit", f"--as={memory << 20}", "--cpu=300", "--"]


@dataclass(frozen=True)
class Tenant:
    """What a process shows: its words, of which the first names it, and its environment.

    Zeros fill them up to `words_size` and `environment_size`. `files`: makes its root directory. `cwd`: in that.
    `is_podmans`: its cgroup is that of a container of Podman's instead of one in a pod. `below`: a cgroup below its own
    that it has moved to.
    """

    words: tuple[str, ...]
    files: Callable[[Path], object] = lambda _root: None
    environment: tuple[str, ...] = ()
    words_size: int = 0
    environment_size: int = 0
    cwd: str = "/"
    is_podmans: bool = False
    below: str = ""


def fifo(*paths: str) -> Callable[[Path], object]:
    def make(root: Path) -> None:
        for path in paths:
            os.mkfifo(place(root, path))

    return make


def link(path: str, target: str) -> Callable[[Path], object]:
    return lambda root: place(root, path).symlink_to(target)


def place(root: Path, path: str) -> Path:
    """Where a path of a tenant's lies."""
    found = root / path.lstrip("/")
    found.parent.mkdir(parents=True, exist_ok=True)
    return found


HOOKS = (f"{HOOKS_DIR}/10-resctrl-mon-hook-kubernetes.json", "/etc/containers/oci/hooks.d/50-x.json")
INJECTOR = Tenant(("/bin/plugin",), fifo(*HOOKS), ("NRI_PLUGIN_NAME=hook-injector",))
CONTAINERD = Tenant(("containerd",))
KINDS: dict[str, Tenant] = {
    "containerd whose configuration is a FIFO": replace(CONTAINERD, files=fifo(CONFIG)),
    "containerd whose configuration is a device": replace(CONTAINERD, files=link(CONFIG, "/dev/zero")),
    "containerd with a large command line": replace(CONTAINERD, words_size=LARGE),
    "containerd in a cgroup of a victim's": replace(CONTAINERD, is_podmans=True, below=f"pod{VICTIM}"),
    "crio whose configuration is a FIFO": Tenant(("crio",), fifo("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/x")),
    "conmon whose name is a claim": Tenant(("conmon", "-n", CLAIM, "-b", "/b"), fifo("/b/config.json")),
    "pqos": Tenant(("pqos", "-R")),
    "kepler": Tenant(("/usr/bin/kepler",)),
    "hook-injector whose hooks are FIFOs": replace(INJECTOR, words=("/usr/bin/hook-injector",)),
    "a plugin whose hooks are FIFOs": INJECTOR,
    "a plugin with a large environment": replace(INJECTOR, environment_size=LARGE),
    "our watch": Tenant(("/usr/bin/python3", PROGRAM, "watch"), fifo("/run/resctrl-mon-hook/watch.json")),
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
    """A tenant's process. `directory`: a new one for all that it needs, which is gone in the end."""
    directory.mkdir()
    root = directory / "root"
    program = place(root, f"/usr/bin/{os.path.basename(tenant.words[0])}")
    shutil.copy(PYTHON, program)
    tenant.files(root)
    container = hashlib.sha256(os.fsencode(directory)).hexdigest()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        stack.callback(release, root)
        above = [] if tenant.is_podmans else [f"/tenant-{container[:12]}-pod{POD.replace('-', '_')}.slice"]
        paths = [*above, f"/libpod-{container}.scope" if tenant.is_podmans else f"/cri-containerd-{container}.scope"]
        made = [stack.enter_context(cgroup("".join(paths[: n + 1]))) for n in range(len(paths))]
        own = made[-1]
        below = stack.enter_context(cgroup(f"{own.path}/{tenant.below}")) if tenant.below else None
        wanted = {
            "root": str(root),
            "cwd": tenant.cwd,
            "name": program.name,
            "words": tenant.words,
            "environment": tenant.environment,
            "words_size": tenant.words_size,
            "environment_size": tenant.environment_size,
        }
        # It is in its cgroup before it has its name: never is it to be seen as a process of the host of that name.
        command: list[str | Path] = [*enter_cgroup(own), *ALONE, program, "-IS", PROCESS]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.callback(end, process)
        pid = tell(process, json.dumps(wanted))
        if below is not None:
            below.add(pid)
        yield RunningTenant(pid, container, own)


def tell(process: subprocess.Popen[str], line: str) -> int:
    """Say to a process what to be, and wait until it is that; returns its pid."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    assert select.select([process.stdout], [], [], DEADLINE)[0], "a tenant's process does not get ready"
    return int(process.stdout.readline())


def end(process: subprocess.Popen[str]) -> None:
    """Its end of stdin ends it."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(DEADLINE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def release(root: Path) -> None:
    """End what other programs of this machine began here: an open of a FIFO that waits."""
    for path in root.rglob("*"):
        if path.is_fifo():
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
