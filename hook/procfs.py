# SPDX-License-Identifier: Apache-2.0
"""Reads /proc about one process: whether it is alive, its cgroups and resctrl groups, and the namespaces we run in."""

from __future__ import annotations

from hook import system

NOT_HOST_PIDS = "this is not the host's pid namespace: which processes are dead and which groups empty is unknown here"
PID_HINT = "run it in the host's pid namespace (hostPID: true; podman run --pid=host)"
_HOST_PID_NAMESPACE = "pid:[4026531836]"
_CGROUPS = "/sys/fs/cgroup"
TICKS = 100  # of /proc, a second: USER_HZ, the same on each kernel that has resctrl
_HOST_UID_MAP = ["0", "0", "4294967295"]


def in_user_namespace() -> bool:
    """Whether we are root in a user namespace only (rootless Podman), and so cannot use resctrl.

    Source: user_namespaces(7). False if /proc/self/uid_map cannot be read: the failures that follow are visible.
    """
    text = system.try_call(system.read_file, "/proc/self/uid_map")
    return text is not None and text.split() != _HOST_UID_MAP


def in_host_pid_namespace() -> bool:
    """Whether every process of the machine has a pid here; False where /proc cannot tell.

    In any other pid namespace a process outside of it has none: it looks dead, and the kernel leaves it out of `tasks`.
    So nothing there may judge members dead or groups empty. Source: PROC_PID_INIT_INO in include/linux/proc_ns.h.
    """
    return system.try_call(system.link_target, "/proc/self/ns/pid") == _HOST_PID_NAMESPACE


def _stat_fields(pid: int | str) -> list[str]:
    """The fields of /proc/PID/stat from the third on; the second, the name, may hold spaces and parentheses."""
    return system.read_file(f"/proc/{pid}/stat").rpartition(")")[2].split()


def stat_fields(pid: int | str) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third (state) on, or None without such a process or such a /proc.

    `pid` is a process, or PID/task/TID for a single thread.
    """
    return system.try_call(_stat_fields, pid)


def starttime(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot. Pid and start time name one process for ever.

    Without such a process this is None. Raises OSError if /proc cannot tell. Source: proc_pid_stat(5), field 22.
    """
    try:
        return int(_stat_fields(pid)[19])
    except (FileNotFoundError, ProcessLookupError):
        if system.is_directory("/proc/1"):  # else /proc shows no process at all, and an absent pid means nothing
            return None
        raise


def is_dead(pid: int, born: int | None = None) -> bool | None:
    """Whether the process `pid` (that started at `born`, where that is known) is dead; None where /proc cannot tell.

    Dead: no such process, another start time, or a zombie with at most one thread. A leader that left its threads
    running is a zombie as well (state Z or X, field 3; num_threads, field 20).
    """
    try:
        fields = _stat_fields(pid)
        reused = born is not None and int(fields[19]) != born
        return reused or is_over(fields)
    except (FileNotFoundError, ProcessLookupError):
        return True if system.is_directory("/proc/1") else None  # as in starttime
    except (OSError, ValueError, IndexError):
        return None


def is_over(fields: list[str]) -> bool:
    """Whether the process with these `stat_fields` has ended: a zombie whose other threads have ended, too."""
    return fields[0] in "ZX" and int(fields[17]) <= 1


def resctrl_groups(pid: int | str) -> tuple[str, str] | None:
    """Return the ctrl_group (`/` is the root one) and the mon_group, if any, of a task, as the kernel shows them.

    Returns None if the task has ended, or the kernel does not say: without CONFIG_PROC_CPU_RESCTRL there is no such
    file, and `res:` is empty while resctrl is not mounted. Raises OSError if the file cannot be read. Source:
    Documentation/filesystems/resctrl.rst, kernel/fs/resctrl proc_resctrl_show().
    """
    try:
        lines = "\n" + system.read_file(f"/proc/{pid}/cpu_resctrl_groups")
    except (FileNotFoundError, ProcessLookupError):
        return None
    ctrl_group = lines.partition("\nres:")[2].partition("\n")[0]
    return (ctrl_group, lines.partition("\nmon:")[2].partition("\n")[0]) if ctrl_group else None


def cgroups(pid: int) -> list[str]:
    """The cgroups of a process as `<controllers>:<path>`, one for each hierarchy; none where /proc cannot tell."""
    text = system.try_call(system.read_file, f"/proc/{pid}/cgroup") or ""
    return [line.partition(":")[2] for line in text.split("\n") if line]  # a cgroup's name may have blanks


def cgroup_directory(cgroup: str) -> str | None:
    """The directory of a cgroup below /sys/fs/cgroup; None if it is gone, or its hierarchy is mounted elsewhere.

    Raises OSError if that cannot be found out.
    """
    controllers, _, path = cgroup.partition(":")
    if not path.startswith("/") or ".." in path.split("/"):
        return None
    name = controllers.partition("name=")[2] or controllers
    places = (name, name.partition(",")[0]) if name else ("", "unified")
    directories = (f"{_CGROUPS}/{place}{path}".replace("//", "/") for place in places)
    return next((path for path in directories if system.find_directory(path)), None)
