# SPDX-License-Identifier: Apache-2.0
"""Refuses to work in a namespace that hides processes, or that hides which container a process is in."""

from __future__ import annotations

from hook.base import procfs
from hook.base.errors import HookError
from hook.base.reasons import Reason


def check() -> None:
    """Raise HookError outside of the host's pid namespace, and in a cgroup namespace."""
    if not procfs.in_host_pid_namespace():
        raise HookError(Reason.DENIED, procfs.NOT_HOST_PIDS, hint=procfs.PID_HINT)
    if procfs.sees_other_cgroups():
        problem = "running in a private cgroup namespace, where processes cannot be matched to containers"
        raise HookError(
            Reason.DENIED,
            problem,
            hint="run it in the host's cgroup namespace (nsenter -t 1 -C; podman run --cgroupns=host)",
        )
