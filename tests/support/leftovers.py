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

ROOT = Path(__file__).resolve().parents[2]
MARK = "RESCTRL_MON_HOOK_TESTS"
"""In the environment of a run: its own value, which its processes inherit."""
PLACES = ("/run", "/run/runc", "/run/crun", "/run/containerd/runc/default", "/run/containerd/runc/k8s.io")
"""Container runtimes keep a directory for each container in these."""
OF_THE_SYSTEM = ("init.scope", "system.slice", "user.slice", "machine.slice", "user", "docker", "machine")
KEPT = ("runc", "crun", "containers", "containerd", "libpod", "netns", "cni", "blkid", "lock", "mount", "udev")
"""What container runtimes and mount(8) keep in /run."""
SECONDS = 30.0
"""That what was killed has to end."""


def look() -> set[str]:
    """What there is on the machine, as `KIND: NAME`."""
    return {f"{kind}: {name}" for kind, find in FOUND_BY.items() for name in find()}


def find_left(before: set[str]) -> list[str]:
    """What there is now, and was not before; what is about to end has a moment to do so."""
    until = time.monotonic() + SECONDS
    while left := sorted(line for line in look() - before if not _is_of_others(*line.split(": ", 1))):
        if time.monotonic() > until:
            break
        time.sleep(0.5)
    return left


def _mounts() -> Iterator[str]:
    scratch = f"{os.path.realpath(tempfile.gettempdir())}/"
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
        path = line.split()[1]
        if path.startswith(scratch) or "/pytest-of-" in path:
            yield path


def _cgroups() -> Iterator[str]:
    for top, below, _ in os.walk("/sys/fs/cgroup"):
        below[:] = [name for name in below if name not in OF_THE_SYSTEM]
        yield from (os.path.join(top, name) for name in below)


def _processes() -> Iterator[str]:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if words and _is_ours(pid):
                yield f"{pid} {words}"


def _files() -> Iterator[str]:
    for place in PLACES:
        with suppress(OSError):
            yield from (os.path.join(place, name) for name in os.listdir(place) if place != "/run" or name not in KEPT)


FOUND_BY = {"mount": _mounts, "cgroup": _cgroups, "process": _processes, "file": _files}


def _is_ours(pid: str) -> bool:
    mark = f"{MARK}={os.environ.get(MARK, '')}\0".encode()
    has_mark = mark in Path(f"/proc/{pid}/environ").read_bytes()
    return has_mark or os.fsencode(ROOT) in Path(f"/proc/{pid}/cmdline").read_bytes()


def _is_of_others(kind: str, name: str) -> bool:
    """Whether a process that is not ours has it: is in the cgroup, or has made it, or the mount is in its run."""
    pids = []
    if kind == "cgroup":
        pids = re.findall(r"/[a-z-]+-(\d+)(?=[-/]|$)", name)  # who makes one may give it its pid
        for top, _, _ in os.walk(name):  # rglob would raise if one below is removed meanwhile
            with suppress(OSError):
                pids += Path(top, "cgroup.procs").read_text(encoding="ascii").split()
    run = re.match(r".*/pytest-of-[^/]+/pytest-\d+/", name)
    if kind == "mount" and run:
        with suppress(OSError):
            pids = [Path(run[0], ".lock").read_text(encoding="ascii")]  # pytest keeps its pid there
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            try:
                if not _is_ours(pid):
                    return True
            except PermissionError:  # another user's
                return True
    return False
