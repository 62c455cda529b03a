# SPDX-License-Identifier: Apache-2.0
"""The namespaces that we run in, and where cgroups are. A key that may linger asks, and tools."""

from __future__ import annotations

from hook import system

NOT_HOST_NAMESPACES = (
    "this is not the host's pid and time namespace: which processes are dead and which groups "
    "empty is unknown here"
)
NAMESPACES_HINT = (
    "run it in the host's namespaces (hostPID: true; podman run --pid=host; without unshare --time)"
)
_HOST_PID_NAMESPACE, _HOST_TIME_NAMESPACE = "pid:[4026531836]", "time:[4026531834]"
_CGROUPS = "/sys/fs/cgroup"


def in_host_namespaces() -> bool:
    """Whether every process of the machine has its pid and start time here;
    False where /proc cannot tell.

    In any other pid namespace a process outside of it has no pid: it looks dead, and the kernel
    leaves it out of `tasks`. In any other time namespace all start times and CLOCK_BOOTTIME are
    shifted (time_namespaces(7)): a member looks like another process. So nothing there may judge
    members dead or groups empty. Source: PROC_PID_INIT_INO, PROC_TIME_INIT_INO in
    include/linux/proc_ns.h.
    """
    if system.try_call(link_target, "/proc/self/ns/pid") != _HOST_PID_NAMESPACE:
        return False
    try:
        return link_target("/proc/self/ns/time") == _HOST_TIME_NAMESPACE
    except FileNotFoundError:  # a kernel without time namespaces
        return True
    except OSError:
        return False


def link_target(path: str) -> str:
    """The target of a symbolic link, which need not exist."""
    return system.posix.readlink(system.encoded(path)).decode("utf-8", "surrogateescape")


def cgroup_directory(cgroup: str) -> str | None:
    """The directory of a cgroup below /sys/fs/cgroup; None if it is gone,
    or its hierarchy is mounted elsewhere.

    Raises OSError if that cannot be found out.
    """
    controllers, _, path = cgroup.partition(":")
    if not path.startswith("/") or ".." in path.split("/"):
        return None
    name = controllers.partition("name=")[2] or controllers
    places = (name, name.partition(",")[0]) if name else ("", "unified")
    directories = (f"{_CGROUPS}/{place}{path}".replace("//", "/") for place in places)
    return next((path for path in directories if system.find_directory(path)), None)
