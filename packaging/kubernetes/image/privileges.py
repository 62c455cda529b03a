# SPDX-License-Identifier: Apache-2.0
"""Into the host's cgroup namespace, and down to the capabilities that are needed from then on.

Kubernetes gives each container a cgroup namespace of its own, and only a privileged one the host's. In one of its own
/proc/PID/cgroup counts from the reader's place (`/../../kubepods.slice/...`): reconcile could not tell a container's
tasks from strangers', and would move them out of their group.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

DAC_OVERRIDE, NET_ADMIN, SYS_PTRACE = 1, 12, 19
"""Their numbers in linux/capability.h."""

_CLONE_NEWCGROUP = 0x02000000
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38

_libc = ctypes.CDLL(None, use_errno=True)


def is_in_hosts_cgroups() -> bool:
    """Whether cgroups are named as the host names them: of init's, in another namespace the path leads upwards."""
    return "/.." not in Path("/proc/1/cgroup").read_text(encoding="ascii", errors="replace")


def join_hosts_cgroups() -> None:
    """Into the namespace of our parent, conmon or containerd's shim: a process of the host's, and in sight. OSError.

    setns(2) takes CAP_SYS_ADMIN, and to open a namespace of a process that may do more CAP_SYS_PTRACE.
    """
    descriptor = os.open(f"/proc/{os.getppid()}/ns/cgroup", os.O_RDONLY)
    try:
        _call("setns", descriptor, _CLONE_NEWCGROUP)
    finally:
        os.close(descriptor)


def keep(*capabilities: int) -> None:
    """From the next execve on there are no others, and none can come back. Takes CAP_SETPCAP. OSError."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text(encoding="ascii"))
    for capability in set(range(last + 1)) - set(capabilities):
        _call("prctl", _PR_CAPBSET_DROP, capability, 0, 0, 0)
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _call(function: str, *arguments: int) -> None:
    if getattr(_libc, function)(*map(ctypes.c_ulong, arguments)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{function}{arguments}: {os.strerror(error)}")
