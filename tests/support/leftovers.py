# SPDX-License-Identifier: Apache-2.0
"""What a run of the tests has left on the machine: mounts, cgroups, processes, files.

Others use the machine as well, with other checkouts of this project too. So what counts has the
run's own mark: in its path, in a process' environment or command line, or in what a container
runtime keeps of a container.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MARK = "RESCTRL_MON_HOOK_TESTS"
"""In the environment of a run: its own value, which its processes inherit."""
PLACES = (
    "/run",
    "/run/runc",
    "/run/crun",
    "/run/containerd/runc/default",
    "/run/containerd/runc/k8s.io",
)
"""Container runtimes keep a directory for each container in these."""
SECONDS = 30.0
"""That what was killed has to end."""
_MOST = 1 << 16  # bytes of a file


def own_mark() -> str:
    """What begins the names of the cgroups and temporary directories that this run makes."""
    return f"rmh-{os.environ.get(MARK) or os.getpid()}-"


def make_directory(parent: str | None = None) -> Path:
    """Make a temporary directory with the mark in its name."""
    return Path(tempfile.mkdtemp(prefix=own_mark(), dir=parent))


def find_left() -> list[str]:
    """What is there of this run, as `KIND: NAME`; what is about to end has a moment to do so."""
    until = time.monotonic() + SECONDS
    while left := sorted(f"{kind}: {name}" for kind, find in FOUND_BY.items() for name in find()):
        if time.monotonic() > until:
            break
        time.sleep(0.5)
    return left


def _mounts() -> Iterator[str]:
    for line in (
        Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    ):
        path = line.split()[1]
        if own_mark() in path:
            yield path


def _cgroups() -> Iterator[str]:
    for top, below, _ in os.walk("/sys/fs/cgroup"):
        yield from (
            path for path in (os.path.join(top, name) for name in below) if own_mark() in path
        )


def _processes() -> Iterator[str]:
    in_environment = f"{MARK}={os.environ.get(MARK, '')}\0".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            is_ours = (
                own_mark().encode() in words
                or in_environment in Path(f"/proc/{pid}/environ").read_bytes()
            )
            if words and is_ours and int(pid) != os.getpid():
                yield f"{pid} {words.replace(bytes(1), b' ').decode(errors='replace').strip()}"


def _files() -> Iterator[str]:
    for place in PLACES:
        with suppress(OSError):
            yield from (
                str(path)
                for path in Path(place).iterdir()
                if own_mark() in path.name or _is_container(path)
            )


def _is_container(directory: Path) -> bool:
    """Whether a runtime's directory is that of a container of this run:
    its state names the bundle and the cgroup.
    """
    for name in ("state.json", "status", "config.json"):
        with suppress(OSError), (directory / name).open("rb") as file:
            if own_mark().encode() in file.read(_MOST):
                return True
    return False


FOUND_BY = {"mount": _mounts, "cgroup": _cgroups, "process": _processes, "file": _files}
