# SPDX-License-Identifier: Apache-2.0
"""Joins the host's cgroup namespace, and drops all capabilities that are not needed afterwards.

Kubernetes gives each container, unless it is privileged, its private cgroup namespace. There the
paths in /proc/PID/cgroup are relative to the reader's cgroup (`/../../kubepods.slice/...`):
reconcile could not recognize a container's tasks, and would move them out of their group.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

DAC_OVERRIDE, NET_ADMIN, SYS_PTRACE = 1, 12, 19
"""The numbers of capabilities in linux/capability.h."""

_CLONE_NEWCGROUP = 0x02000000
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38

_libc = ctypes.CDLL(None, use_errno=True)


def is_in_hosts_cgroups() -> bool:
    """Return whether this is the host's cgroup namespace:
    elsewhere the path of pid 1's cgroup begins with `/..`.
    """
    return "/.." not in Path("/proc/1/cgroup").read_text(encoding="ascii", errors="replace")


def join_hosts_cgroups() -> None:
    """Join the cgroup namespace of our parent, conmon or containerd's shim, a process of the host.

    Raises OSError.

    setns(2) takes CAP_SYS_ADMIN; opening the namespace of a process with more
    capabilities takes CAP_SYS_PTRACE.
    """
    descriptor = os.open(f"/proc/{os.getppid()}/ns/cgroup", os.O_RDONLY)
    try:
        _call("setns", descriptor, _CLONE_NEWCGROUP)
    finally:
        os.close(descriptor)


def keep(*capabilities: int) -> None:
    """Drop all other capabilities for good, from the next execve on.

    Takes CAP_SETPCAP. Raises OSError.
    """
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text(encoding="ascii"))
    for capability in set(range(last + 1)) - set(capabilities):
        _call("prctl", _PR_CAPBSET_DROP, capability, 0, 0, 0)
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _call(function: str, *arguments: int) -> None:
    if getattr(_libc, function)(*map(ctypes.c_ulong, arguments)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{function}{arguments}: {os.strerror(error)}")
