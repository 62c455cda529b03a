# SPDX-License-Identifier: Apache-2.0
"""Checks of the kernel: resctrl, its RMIDs and who else uses them, what is counted, /proc and cgroups."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from hook import identity, procfs, resctrl, system
from hook.doctor import Finding, Site, failure, ok, warning
from hook.errors import HookError, Reason
from hook.explain import format_count, name_first
from hook.node import files, programs
from hook.node.paths import NAME
from hook.show import hardware

# What to do where something is missing: on x86, on Arm.
_NO_RESCTRL = (
    "resctrl needs Intel RDT or AMD QoS, and CONFIG_X86_CPU_RESCTRL; most VMs have none",
    "resctrl needs MPAM in the CPU and in the firmware (ACPI table MPAM), CONFIG_ARM64_MPAM and CONFIG_RESCTRL_FS, and "
    "no arm64.nompam on the kernel command line; most VMs have none",
)
_NO_MONITORING = (
    "use a CPU with CMT, MBM or AET; look for rdt= and clearcpuid= on the kernel command line",
    "use a machine with MPAM monitors on the L3 cache (CSU) or behind it (MBWU); why the kernel uses none: boot with "
    '`dyndbg="file mpam_resctrl.c +pl"`, and see its Documentation/arch/arm64/mpam.rst',
)
_NO_TRAFFIC = (
    "needs a CPU with MBM; look for rdt= and clearcpuid= on the kernel command line",
    "needs MPAM bandwidth monitors (MBWU) on or behind the L3 cache, and a kernel that uses them: "
    "Documentation/arch/arm64/mpam.rst",
)
# Other programs that make or remove mon_groups: the name of the process, and its effect and remedy.
_OTHER_TOOLS = {
    "nri-resctrl-mon": "it makes groups for the same pods, and a process is in the last one only: stop one of the two",
    "resctrl-mon": "it makes groups for the same pods, and a process is in the last one only: stop one of the two",
    "kepler": "use passive mode with base-path={run_dir}: in active mode it makes groups for the same pods",
    "pqos": "its reset (-R) removes every group on the machine; reconcile then makes ours again",
    "cadvisor": "with resctrl enabled it makes its own groups, which take RMIDs",
}
_TRAFFIC = "memory traffic"
_FEW_TRACKED = "use fewer groups; an AMD CPU with ABMC, under Linux 6.18 or newer, has counters that stay with a group"
_LIMIT = 16 << 20  # bytes of a file of the kernel's: /proc/self/mounts has a line for each mount


def check_root(_site: Site) -> Iterator[Finding]:
    if procfs.in_user_namespace():
        remedy = "run it as root on the host: rootless containers cannot be monitored"
        yield failure("root", "only inside a user namespace (rootless)", remedy)
    elif system.user_id() != 0:
        yield failure("root", "not running as root", "run doctor as root: most other checks need it")
    else:
        yield ok("root", "yes")


def check_resctrl(site: Site) -> Iterator[Finding]:
    root = site.options.resctrl_root
    kernel = resctrl.Resctrl(root)
    if not kernel.exists():
        found = f"no {root}: the kernel or the CPU does not support resctrl"
        yield failure("resctrl", found, _NO_RESCTRL[hardware.is_arm64()])
    elif not kernel.is_mounted():
        yield _find_mount_problem(root)
    else:
        yield ok("resctrl", f"mounted on {root}")
        if os.statvfs(root).f_flag & os.ST_RDONLY:
            yield failure("resctrl", "mounted read-only", f"mount -o remount,rw {root}")
        kinds = [name for name in system.list_directory(root + "/info") if name.endswith("_MON")]
        if "PERF_PKG_MON" in kinds:
            yield ok("counters", ", ".join(kinds))
        else:
            remedy = f"energy needs an Intel CPU with AET, and kernel support for it; {_name_counted(root)} without it"
            yield warning("counters", f"{', '.join(kinds) or 'none'}; no energy (PERF_PKG_MON)", remedy)
        threshold = root + "/info/L3_MON/max_threshold_occupancy"
        if (system.try_call(system.read_file, threshold, 64) or "").strip() == "0":
            found = f"{threshold} is 0: the kernel never reuses a freed RMID"
            yield warning("limbo", found, f"echo 65536 > {threshold}")


def _find_mount_problem(root: str) -> Finding:
    if system.find_directory(root + "/info"):
        found = f"{root} is mounted but does not support monitoring: no mon_groups"
        return failure("resctrl", found, _NO_MONITORING[hardware.is_arm64()])
    if procfs.resctrl_groups(system.process_id()) is not None:
        remedy = "stop the processes of that namespace (lsns -t mnt; a container with the mount), then mount it here"
        return failure("resctrl", "mounted in another mount namespace, not in this one", remedy)
    remedy = f"mount -t resctrl resctrl {root}; for each boot: `resctrl {root} resctrl defaults 0 0` in /etc/fstab"
    return failure("resctrl", f"not mounted on {root}", remedy)


def _name_counted(root: str) -> str:
    """The counted kinds besides energy, for people. MPAM and some CPUs count only one of cache and traffic."""
    events = hardware.list_events(root)
    traffic = f"{_TRAFFIC} (in part)" if hardware.tracks_few(root) else _TRAFFIC
    has = {"cache": hardware.OCCUPANCY in events, traffic: not events.isdisjoint(hardware.TRAFFIC)}
    counted = [name for name, there in has.items() if there]
    return f"{' and '.join(counted) or 'nothing'} {'are' if len(counted) > 1 else 'is'} counted"


def check_rmids(site: Site) -> Iterator[Finding]:
    seen = site.snapshot
    if seen.rmids is None:
        return
    limit, ours, others = seen.rmids.limit, seen.rmids.ours, seen.rmids.others
    used = ours + others
    found = f"{used} in use of {limit or '?'} ({ours} ours, {others} of others)"
    fewer = "pods or ctrl_groups" if seen.rmids.each is None else "pods in each ctrl_group"
    remedy = f"use fewer {fewer}, or remove groups of other tools; `{NAME} reconcile` frees those of dead pods"
    if seen.limbo is not None:
        yield failure("RMIDs", f"{found}: {seen.limbo[0]}", seen.limbo[1])
    elif limit is not None and used >= limit:
        yield failure("RMIDs", f"{found}: none left", remedy)
    elif limit is not None and (limit - used) * 10 < limit:
        yield warning("RMIDs", f"{found}: few left", remedy)
    else:
        yield ok("RMIDs", found)
    if (full := hardware.explain_full(seen.rmids)) is not None:
        yield failure("RMIDs", *full)
    if seen.orphans:
        yield warning("RMIDs", f"orphaned groups (no live container): {name_first(seen.orphans)}", f"{NAME} reconcile")
    by_owner: dict[str, list[str]] = {}
    for path in resctrl.list_mon_groups(site.options.resctrl_root):
        if not os.path.basename(path).startswith(site.options.group_prefix):
            by_owner.setdefault(_guess_owner(os.path.basename(path)), []).append(path)
    for owner, paths in by_owner.items():
        remedy = "each group takes an RMID; remove unused ones with rmdir"
        yield warning("RMIDs", f"{format_count(len(paths), 'group')} {owner}: {name_first(paths)}", remedy)


def _guess_owner(name: str) -> str:
    """The other owner of an RMID, by the name of its group."""
    if identity.canonical_uid(name) is not None:
        return "of pods (nri-resctrl-mon, or Kepler in active mode?)"
    is_container = len(name) == 64 and not name.strip("0123456789abcdef")
    return "of containers (linux.intelRdt.enableMonitoring of runc or crun?)" if is_container else "of other tools"


def check_other_tools(site: Site) -> Iterator[Finding]:
    """Report other resctrl tools that run on the host itself. `check_rmids` reports the groups of all tools."""
    running = programs.find_processes(lambda words: _find_tool(words) is not None)
    for name in sorted({_find_tool(words) or "" for words in running.words.values()}):
        remedy = _OTHER_TOOLS[name].format(run_dir=site.options.run_dir)
        yield warning("other resctrl tools", f"{name} runs", remedy)


def _find_tool(words: Sequence[str]) -> str | None:
    """The tool that a command line starts: its program, or what an interpreter runs."""
    started = [os.path.basename(word) for word in words[:2]]
    return next((it for it in _OTHER_TOOLS for name in started if name == it or name.endswith("-" + it)), None)


def check_processes(site: Site) -> Iterator[Finding]:
    if not os.path.isdir("/proc/1"):
        yield failure("/proc", "process information is not readable", "mount /proc without hidepid=")
    elif not procfs.in_host_pid_namespace():
        yield failure("/proc", procfs.NOT_HOST_PIDS, procfs.PID_HINT)
    elif procfs.resctrl_groups(system.process_id()) is None and resctrl.Resctrl(site.options.resctrl_root).is_mounted():
        found = "no /proc/PID/cpu_resctrl_groups"
        remedy = "without it the hook takes a container's ctrl_group from its config.json"
        yield warning("/proc", found, f"needs CONFIG_PROC_CPU_RESCTRL; {remedy}")
    else:
        yield ok("/proc", "process information is readable")
    mounts = files.read("/proc/self/mounts", _LIMIT).decode("utf-8", "replace").splitlines()
    kinds = {line.split(" ")[2] for line in mounts} & {"cgroup", "cgroup2"}
    if kinds:
        yield ok("cgroups", " and ".join("v2" if kind == "cgroup2" else "v1" for kind in sorted(kinds)))
    else:
        remedy = "mount cgroups: they show which processes and which pod belong to a container"
        yield failure("cgroups", "not mounted", remedy)


def has_process_connector() -> bool:
    """Whether the kernel reports execs here: with CONFIG_PROC_EVENTS, in the host's network namespace."""
    return "cn_proc" in (system.try_call(files.read_text, "/proc/net/connector", _LIMIT) or "")


# --- Memory traffic: not every CPU counts it, and some have fewer counters than groups


def check_traffic(site: Site) -> Iterator[Finding]:
    root = site.options.resctrl_root
    events = hardware.list_events(root) if resctrl.Resctrl(root).is_mounted() else set()
    if not events:
        return
    if not events & set(hardware.TRAFFIC):
        found = f"not counted: the kernel offers {', '.join(sorted(events))}"
        yield warning(_TRAFFIC, found, _NO_TRAFFIC[hardware.is_arm64()])
    elif (counters := hardware.read_assignable(root)) is not None:
        unassigned = hardware.explain_unassigned(site.snapshot.unassigned, counters)
        problems = [*filter(None, (unassigned, hardware.explain_shortage(counters)))]
        for found, remedy in problems:
            yield warning(_TRAFFIC, found, remedy)
        if not problems:
            yield ok(_TRAFFIC, hardware.format_free(counters))
    elif hardware.tracks_few(root):
        found = (
            "counted in part: this CPU says Unavailable of groups that it does not track, and use is a lower bound (>=)"
        )
        yield warning(_TRAFFIC, found, _FEW_TRACKED)


# --- `doctor --self-test`: makes a group, moves a child into it, reads its counters and removes it

_PREFIX = "self-test-of-resctrl-mon-hook-"  # not the prefix of our groups: reconcile must ignore it
_SECONDS = 1.0
# What a child does, which uses CPU and memory until it is killed.
_LOAD = "import signal; signal.alarm(60)\nwhile True: bytearray(1 << 22)"


def run_self_test(root: str) -> Iterator[Finding]:
    """Make a group, move a child into it, read its counters, remove it. A step that fails is the last finding."""
    try:
        for line in _use_a_group(root):
            yield ok("self-test", line)
    except (HookError, OSError) as error:
        yield failure("self-test", str(error), "run doctor without --self-test, which checks the causes")


def _use_a_group(root: str) -> Iterator[str]:
    """Yield a line for each step that worked. HookError, OSError: a step failed. Always cleans up."""
    kernel = resctrl.Resctrl(root)
    if not kernel.is_mounted():
        raise HookError(Reason.NOT_MOUNTED, f"{root} is not mounted, or does not support monitoring")
    path = kernel.path("/", f"{_PREFIX}{system.process_id()}")
    with ExitStack() as at_the_end:
        kernel.make(path)
        at_the_end.callback(kernel.remove, path)
        yield f"made {path}"
        before = kernel.counters(path)
        yield f"read {format_count(len(before), 'counter')}"
        load = at_the_end.enter_context(subprocess.Popen([sys.executable, "-ISc", _LOAD]))
        at_the_end.callback(load.kill)
        kernel.put(path, load.pid)
        if load.pid not in (kernel.tasks(path) or ()):
            raise HookError(Reason.IO, f"moved process {load.pid} to the group, but it is not in it")
        yield f"moved process {load.pid} to it; /proc shows {procfs.resctrl_groups(load.pid)}"
        system.sleep(_SECONDS)
        now = {name: text for name, text in kernel.counters(path).items() if text != before.get(name)}
        growth = ", ".join(f"{name} {before.get(name)} -> {text}" for name, text in now.items())
        yield f"its counters after {_SECONDS:.0f} s: {growth or 'unchanged'}"
    if kernel.exists(path):
        raise HookError(Reason.IO, f"removed {path}, but it still exists")
    yield "removed it"
