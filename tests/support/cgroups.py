# SPDX-License-Identifier: Apache-2.0
"""Real cgroups of version 2 for processes that stand for containers,
wherever that hierarchy is mounted.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.leftovers import own_mark

DEADLINE = 300.0
PATH_MAX = 4096
_made_above: set[Path] = set()
"""Cgroups that were made for others to lie in."""


def mount_point() -> Path:
    """Where cgroup v2 is mounted, alone or beside v1."""
    mounts = [
        line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    ]
    return Path(next(mount[1] for mount in mounts if mount[2] == "cgroup2"))


class Cgroup:
    """One cgroup, below one with this run's mark; `path` is as /proc/PID/cgroup has it."""

    def __init__(self, path: str) -> None:
        self.path = path if own_mark() in path else f"/{own_mark()}{os.getpid()}{path}"
        self.directory = mount_point() / self.path.lstrip("/")
        _made_above.update(above for above in self.directory.parents if not above.exists())
        self.directory.mkdir(parents=True)

    def add(self, pid: int) -> None:
        """Move a process in."""
        (self.directory / "cgroup.procs").write_text(str(pid), encoding="ascii")

    def pids(self) -> set[int]:
        """The processes in it."""
        return set(map(int, (self.directory / "cgroup.procs").read_text(encoding="ascii").split()))

    def kill(self) -> None:
        """Kill all that is in it, and wait until nothing is."""
        _kill_below([self.directory], time.monotonic() + DEADLINE)

    def remove(self) -> None:
        """Remove it, with what is below it, and those above it that were made for it;
        what is in it is killed first.
        """
        end_cgroups([self.directory])
        _made_above.difference_update([path for path in _made_above if not path.exists()])
        for above in self.directory.parents:
            if above not in _made_above or any(path.is_dir() for path in above.iterdir()):
                break
            above.rmdir()
            _made_above.remove(above)


def pids_below(roots: Iterable[Path]) -> Iterator[int]:
    """The processes in these cgroups, and in those below them."""
    for root in roots:
        for directory, _, _ in os.walk(root):
            with suppress(OSError):  # it went while we walked
                yield from map(
                    int, Path(directory, "cgroup.procs").read_text(encoding="ascii").split()
                )


def end_cgroups(roots: Sequence[Path]) -> None:
    """End all that is in these cgroups, and what that starts until then; remove them,
    with those below them.
    """
    deadline = time.monotonic() + DEADLINE
    while left := [root for root in roots if root.exists()]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"cgroups cannot be removed: {left}")
        _kill_below(left, deadline)
        for root in left:
            for directory, _, _ in os.walk(root, topdown=False):
                with suppress(OSError):  # a task was born in it, or is just dying
                    os.rmdir(directory)


def _kill_below(roots: Sequence[Path], deadline: float) -> None:
    while pids := set(pids_below(roots)):
        for pid in pids:
            with suppress(ProcessLookupError), os.fdopen(os.pidfd_open(pid)) as process:
                signal.pidfd_send_signal(process.fileno(), signal.SIGKILL)
                select.select([process], [], [], max(0.0, deadline - time.monotonic()))
        if time.monotonic() > deadline:
            raise TimeoutError(f"{roots}: {pids} do not end")


def enter_cgroup(target: Cgroup) -> list[str]:
    """What a program is started by, to be in a cgroup from its first instruction on."""
    return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(target.directory / "cgroup.procs")]


def path_of(top: str, container: str, annotations: Mapping[str, str]) -> str:
    """The path of a container's cgroup: in its pod's, as the kubelet and CRI-O make it,
    if its annotations name one.
    """
    uid = annotations.get("io.kubernetes.pod.uid")
    return f"{top}/{container}" if uid is None else f"{top}/pod{uid}/crio-{container}"


_of_pods: dict[str, Path] = {}
"""Cgroups that place_in_pod has made, in this order,
by their paths as /proc/PID/cgroup has them.
"""


def place_in_pod(pid: int, uid: str, container: str | None = None) -> None:
    """Move a process, unless it is in another cgroup of a pod,
    to where a runtime has a container's init.

    None: in the cgroup of a sandbox, as Kata has it. An invalid UID is in no path. Only a
    descendant of ours is moved: some tests make up a pid.
    """
    try:
        above = pid
        while above not in (0, os.getpid()):
            above = int(
                Path(f"/proc/{above}/stat")
                .read_text(encoding="utf-8")
                .rpartition(")")[2]
                .split()[1]
            )
        text = Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii")
    except OSError:  # there is no such process
        return
    is_ours = any(line.partition("::")[2] in _of_pods for line in text.splitlines())
    if above == 0 or ("pod" in text and not is_ours):
        return
    is_uid = len(uid.replace("-", "")) == 32 and uid.replace("-", "").isalnum()
    top = mount_point()
    pod = (
        top
        / f"{own_mark()}{os.getpid()}-{'pod' + uid.replace('-', '_') if is_uid else 'none'}.slice"
    )
    for path in (pod, pod / f"crio-{container or f'{pid:064x}'}.scope"):
        if not path.exists():
            path.mkdir()
            _of_pods[f"/{path.relative_to(top)}"] = path
    with suppress(ProcessLookupError):
        (path / "cgroup.procs").write_text(str(pid), encoding="ascii")


def remove_of_pods() -> None:
    """Remove those of these cgroups that have no process any more."""
    for name, path in reversed(list(_of_pods.items())):
        with suppress(OSError):
            path.rmdir()
            del _of_pods[name]


@contextmanager
def container_cgroup(pod_uid: str, container: str) -> Iterator[Cgroup]:
    """The cgroup of a container of CRI-O's, in that of its pod."""
    pod = pod_uid.replace("-", "_")
    with (
        cgroup(f"/test-pod{pod}.slice") as above,
        cgroup(f"{above.path}/crio-{container}.scope") as made,
    ):
        yield made


@contextmanager
def cgroup(path: str) -> Iterator[Cgroup]:
    made = Cgroup(path)
    try:
        yield made
    finally:
        made.remove()


@contextmanager
def deep_cgroup(target: Cgroup, pid: int) -> Iterator[int]:
    """A cgroup below another one, with this process in it,
    whose path is too long for any call; yields its length.
    """
    name, path = "x" * 250, str(target.directory)
    way = [os.open(target.directory, os.O_RDONLY)]
    try:
        while len(path) <= PATH_MAX:
            os.mkdir(name, dir_fd=way[-1])
            way.append(os.open(name, os.O_RDONLY, dir_fd=way[-1]))
            path += f"/{name}"
        procs = os.open("cgroup.procs", os.O_WRONLY, dir_fd=way[-1])
        os.write(procs, b"%d" % pid)
        os.close(procs)
        yield len(path)
    finally:
        target.add(pid)
        os.close(way.pop())
        while way:
            with suppress(FileNotFoundError):  # the last one is the cgroup itself
                os.rmdir(name, dir_fd=way[-1])
            os.close(way.pop())
