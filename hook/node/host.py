# SPDX-License-Identifier: Apache-2.0
"""Finds the processes of the host itself, whose names, command lines, root and current directories can be trusted.

The author of a container names its processes, fills their command lines, and makes their root directory. A process of
the host has the pid, mount and user namespaces of pid 1, and is in no cgroup of a container or pod. Of all others we
use only facts of the kernel: pid, parent, start time, cgroups, threads, counters.

Comparing namespaces needs CAP_SYS_PTRACE, which the units and the chart's DaemonSet do not have: without it no process
is trusted. Source: namespaces(7), and "Ptrace access mode checking" of ptrace(2).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

from hook.base import cgroups, container_tasks, procfs, system
from hook.base.container_tasks import Process
from hook.node import door
from hook.node.door import Tree
from hook.stages import identity

_NAMESPACES = ("pid", "mnt", "user")
_HEAD = 4096  # bytes: a process can make its command line of any length
_LIMIT = 16 << 20  # bytes of a file of the kernel's: /proc/stat has a line for each CPU
_INJECTOR = "hook-injector"
_IN_AN_IMAGE = "plugin"  # the name of every plugin's program in upstream's images


class Found(NamedTuple):
    """Processes of the host, by pid, with the words of their command lines.

    `unclear`: a line for each further process that may be one of them.
    """

    words: dict[int, list[str]]
    unclear: list[str]


def find_processes(is_wanted: Callable[[list[str]], bool]) -> Found:
    """Find the processes of the host whose command lines `is_wanted` accepts."""
    found = Found({}, [])
    for it in container_tasks.table().values():
        if _is_in_container(it.cgroups) or not is_wanted(words := _read_words(it.pid)):
            continue
        is_hosts = _is_of_host(it)
        if is_hosts:
            found.words[it.pid] = words
        elif is_hosts is None:
            name = os.path.basename(words[0])
            why = "its namespaces cannot be compared with the host's (needs CAP_SYS_PTRACE)"
            found.unclear.append(f"process {it.pid} calls itself {name}, and {why}: nothing of it was read")
    return found


def _is_of_host(process: Process) -> bool | None:
    """Whether a process outside of containers is the host's own; None if its namespaces cannot be read."""
    try:
        return all(os.path.samefile(f"/proc/{process.pid}/ns/{it}", f"/proc/1/ns/{it}") for it in _NAMESPACES)
    except OSError:  # also for a process that is just ending
        now = container_tasks.look_at(process.pid)
        return None if now is not None and now.starttime == process.starttime else False


def _is_in_container(places: Iterable[str]) -> bool:
    """Whether one of these cgroups is a container's or a pod's. `places`: as procfs.cgroups returns them."""
    return any(cgroups.find_container_id(it) is not None or identity.pod_uid(it) is not None for it in places)


def _read_words(pid: int) -> list[str]:
    """The words in the first _HEAD bytes of a process's command line; one empty word if it has none.

    Never for a process of a container: reading the page with its words may block for ever (userfaultfd, FUSE).
    """
    # None: it has ended, or is a process of the kernel
    head = system.try_call(door.read_head, f"/proc/{pid}/cmdline", _HEAD) or b""
    return head.decode("utf-8", "surrogateescape").split("\0")[:-1] or [""]


def see_files(pid: int) -> Tree:
    """The files as a process of the host sees them. Raises OSError."""
    root, cwd = f"/proc/{pid}/root", os.readlink(f"/proc/{pid}/cwd")
    is_ours = os.path.samefile(root, "/") and os.path.samefile(f"/proc/{pid}/ns/mnt", "/proc/self/ns/mnt")
    return Tree("" if is_ours else root, cwd)


def is_running(pid: int) -> bool:
    """Whether the process exists."""
    return os.path.isdir(f"/proc/{pid}")


def read_start_time(pid: int) -> float:
    """When a process started, by the clock of file times. Raises OSError."""
    born = procfs.starttime(pid)
    if born is None:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    lines = door.read_text("/proc/stat", _LIMIT).split("\n")
    booted = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
    return booted + born / procfs.TICKS


# --- NRI's hook-injector
#
# Upstream deploys it as a pod, and any pod can look like it: such a process is a claim, and none of its files is read.
# Source: contrib/kustomize/hook-injector and plugins/hook-injector of containerd/nri.


def find_injectors() -> list[int]:
    """The pids of injectors that run on the host itself."""
    return sorted(find_processes(lambda words: os.path.basename(words[0]).endswith(_INJECTOR)).words)


def find_injector_claims() -> list[int]:
    """The pids of processes in pods that have an injector's name, which proves nothing."""
    processes = container_tasks.table().values()
    named = [it for it in processes if it.name.endswith(_INJECTOR) or it.name == _IN_AN_IMAGE]
    return sorted(it.pid for it in named if _is_in_container(it.cgroups))
