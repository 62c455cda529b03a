# SPDX-License-Identifier: Apache-2.0
"""What a run of the tests has left on the machine: mounts, cgroups, processes, files.

Others use the machine as well. So of processes those count that have MARK in their environment, or this checkout in
their command line; of cgroups those in which no other process is; of mounts those below the run's own directory for
temporary files, or below one of pytest's; of files those in /run.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
MARK = "RESCTRL_MON_HOOK_TESTS"
"""In the environment of a run: its own value, which its processes inherit."""
RUNTIMES = ("/run/runc", "/run/crun", "/run/containerd/runc/default", "/run/containerd/runc/k8s.io")
"""They keep a directory for each container."""
OF_THE_SYSTEM = ("init.scope", "system.slice", "user.slice", "machine.slice", "user", "docker", "machine")
KEPT = ("runc", "crun", "containers", "containerd", "libpod", "netns", "cni", "blkid", "lock", "mount", "udev")
"""What container runtimes and mount(8) keep in /run."""
SECONDS = 30.0
"""That what was killed has to end."""


class MachineState(NamedTuple):
    """What there is on the machine. `processes`: by pid and start time."""

    mounts: frozenset[str]
    cgroups: frozenset[str]
    processes: frozenset[tuple[str, str]]
    files: frozenset[str]

    @classmethod
    def now(cls) -> MachineState:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
        return cls(
            frozenset(path for path in (line.split()[1] for line in mounts) if _may_be_ours(path)),
            frozenset(_cgroups()),
            frozenset(_processes()),
            frozenset(_files()),
        )

    def left(self) -> list[str]:
        """A line for each thing that there is now, and was not then; what is about to end has a moment to do so."""
        until = time.monotonic() + SECONDS
        while (left := self._left()) and time.monotonic() < until:
            time.sleep(0.5)
        return left

    def _left(self) -> list[str]:
        now = MachineState.now()
        processes = [(pid, _describe(pid)) for pid, _ in sorted(now.processes - self.processes)]
        return [
            *(f"mount: {path}" for path in sorted(now.mounts - self.mounts) if not _is_in_others_run(path)),
            *(f"cgroup: {path}" for path in sorted(now.cgroups - self.cgroups) if not _is_used(path)),
            *(f"process: {pid} {command}" for pid, command in processes if command),
            *(f"file: {path}" for path in sorted(now.files - self.files)),
        ]


def _cgroups() -> Iterator[str]:
    for top, below, _ in os.walk("/sys/fs/cgroup"):
        below[:] = [name for name in below if name not in OF_THE_SYSTEM]
        yield from (os.path.join(top, name) for name in below)


def _is_used(cgroup: str) -> bool:
    """Whether a process is in it, or has made it and given it its pid, that is not ours."""
    pids = re.findall(r"/[a-z-]+-(\d+)(?=[-/]|$)", cgroup)
    for top, _, _ in os.walk(cgroup):  # rglob would raise if one below is removed meanwhile
        with suppress(OSError):
            pids += Path(top, "cgroup.procs").read_text(encoding="ascii").split()
    return any(map(_is_others, pids))


def _is_in_others_run(mount: str) -> bool:
    """Whether it is in the directory of a run that goes on; pytest keeps its pid there."""
    run = re.match(r".*/pytest-of-[^/]+/pytest-\d+/", mount)
    with suppress(OSError):
        return run is not None and _is_others(Path(run[0], ".lock").read_text(encoding="ascii"))
    return False


def _is_others(pid: str) -> bool:
    """Whether it is a process that is not ours."""
    with suppress(OSError):
        return not _is_ours(pid)
    return False


def _processes() -> Iterator[tuple[str, str]]:
    """Those that may be ours, but for this process and those above it."""
    above = _above(os.getpid())
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] not in "ZX" and int(pid) not in above and _is_ours(pid):
                yield pid, fields[19]


def _above(pid: int) -> set[int]:
    found = set()
    while pid:
        found.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return found


def _is_ours(pid: str) -> bool:
    mark = f"{MARK}={os.environ.get(MARK, '')}\0".encode()
    has_mark = mark in Path(f"/proc/{pid}/environ").read_bytes()
    return has_mark or os.fsencode(ROOT) in Path(f"/proc/{pid}/cmdline").read_bytes()


def _describe(pid: str) -> str:
    """Its command line; empty if it has ended by now."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def _may_be_ours(mount: str) -> bool:
    return mount.startswith(f"{os.path.realpath(tempfile.gettempdir())}/") or "/pytest-of-" in mount


def _files() -> Iterator[str]:
    for place in (*RUNTIMES, "/run"):
        with suppress(OSError):
            yield from (os.path.join(place, name) for name in os.listdir(place) if place != "/run" or name not in KEPT)
