"""Checks of the kernel: resctrl, its RMIDs, /proc and cgroups."""

from __future__ import annotations

import os

from hook.base import names, procfs, system
from hook.base.resctrl import Resctrl
from hook.doctor.finding import FAILURE, OK, WARNING, Finding, name_first
from hook.host import machine
from hook.host.paths import NAME
from hook.observe import snapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hook.doctor.site import Site


def check_root(_site: Site) -> Iterator[Finding]:
    if procfs.in_user_namespace():
        yield Finding(FAILURE, "root", "of a user namespace only (rootless)", "nothing can be monitored from in here")
    elif system.user_id() != 0:
        yield Finding(FAILURE, "root", "this is somebody else", "run it as root: most of the rest cannot be seen")
    else:
        yield Finding(OK, "root", "yes")


def check_resctrl(site: Site) -> Iterator[Finding]:
    root = site.options.resctrl_root
    kernel = Resctrl(root)
    if not kernel.exists():
        found = f"no {root}: this kernel or this CPU has no resctrl"
        yield Finding(FAILURE, "resctrl", found, "Intel RDT or AMD QoS, and CONFIG_X86_CPU_RESCTRL; not in most VMs")
    elif not kernel.is_mounted():
        yield _find_mount_problem(root)
    else:
        yield Finding(OK, "resctrl", f"mounted on {root}")
        if os.statvfs(root).f_flag & os.ST_RDONLY:
            yield Finding(FAILURE, "resctrl", "it is mounted read-only", f"mount -o remount,rw {root}")
        yield from _check_counters(root)
        yield from _check_limbo(root)


def _find_mount_problem(root: str) -> Finding:
    if system.is_directory(root + "/info"):
        remedy = "a CPU that monitors (CMT, MBM, AET); look for rdt= and clearcpuid= on the kernel's command line"
        return Finding(FAILURE, "resctrl", f"{root} is mounted, and cannot monitor: no mon_groups", remedy)
    if procfs.resctrl_groups(system.process_id()) is not None:
        remedy = "end whatever keeps it (lsns -t mnt; a container that has it mounted), then mount it"
        return Finding(FAILURE, "resctrl", "not mounted here, but in another mount namespace, which keeps it", remedy)
    remedy = f"mount -t resctrl resctrl {root}; for each boot: `resctrl {root} resctrl defaults 0 0` in /etc/fstab"
    return Finding(FAILURE, "resctrl", f"not mounted on {root}", remedy)


def _check_counters(root: str) -> Iterator[Finding]:
    kinds = [name for name in system.list_directory(root + "/info") if name.endswith("_MON")]
    if "PERF_PKG_MON" in kinds:
        yield Finding(OK, "counters", ", ".join(kinds))
    else:
        remedy = (
            "energy needs a CPU with AET, and a kernel that reads it; cache and memory traffic are counted all the same"
        )
        yield Finding(WARNING, "counters", f"{', '.join(kinds) or 'none'}; no energy (PERF_PKG_MON)", remedy)


def _check_limbo(root: str) -> Iterator[Finding]:
    path = f"{root}/info/L3_MON/max_threshold_occupancy"
    try:
        threshold = int(system.read_file(path, 64))
    except (OSError, ValueError):
        return
    if threshold == 0:
        yield Finding(WARNING, "limbo", f"{path} is 0: an RMID that was used never comes back", f"echo 65536 > {path}")


def check_rmids(site: Site) -> Iterator[Finding]:
    seen = snapshot.look(site.options)
    if seen.rmids is None:
        return
    limit, ours, others = seen.rmids.limit, seen.rmids.ours, seen.rmids.others
    found = f"{ours + others} in use of {limit or '?'} ({ours} ours, {others} of others)"
    free = None if limit is None else limit - ours - others
    remedy = "fewer pods or ctrl_groups on this node, or end what others hold; reconcile takes back those of the dead"
    if free is not None and free <= 0:
        yield Finding(FAILURE, "RMIDs", f"{found}: none is left", remedy)
    elif free is not None and free * 10 < (limit or 0):
        yield Finding(WARNING, "RMIDs", f"{found}: few are left", remedy)
    else:
        yield Finding(OK, "RMIDs", found)
    if seen.orphans:
        yield Finding(
            WARNING, "RMIDs", f"groups that nobody is behind: {name_first(seen.orphans)}", f"{NAME} reconcile"
        )
    yield from _check_other_groups(site)


def _check_other_groups(site: Site) -> Iterator[Finding]:
    """Who holds RMIDs besides us, as far as names tell."""
    found: dict[str, list[str]] = {}
    for path in Resctrl(site.options.resctrl_root).mon_groups():
        name = os.path.basename(path)
        if not name.startswith(site.options.group_prefix):
            found.setdefault(_guess_owner(name), []).append(path)
    for maker, paths in found.items():
        remedy = "each takes an RMID; what nobody needs any more: rmdir"
        yield Finding(WARNING, "RMIDs", f"{len(paths)} groups {maker}: {name_first(paths)}", remedy)


def _guess_owner(name: str) -> str:
    try:
        names.pod_uid(name)
    except ValueError:
        is_container = len(name) == 64 and not name.strip("0123456789abcdef")
        return "of containers (linux.intelRdt.enableMonitoring of runc or crun?)" if is_container else "of others"
    return "of pods (nri-resctrl-mon, or Kepler in active mode?)"


def check_processes(site: Site) -> Iterator[Finding]:
    """What is looked at of processes."""
    if not machine.shows_processes():
        yield Finding(FAILURE, "processes", "/proc does not show them", "mount it, without hidepid= for root")
    elif not procfs.in_host_pid_namespace():
        yield Finding(FAILURE, "processes", procfs.NOT_HOST_PIDS, procfs.PID_HINT)
    elif procfs.resctrl_groups(system.process_id()) is None and Resctrl(site.options.resctrl_root).is_mounted():
        remedy = "CONFIG_PROC_CPU_RESCTRL; without it the class of a container is taken from its config.json"
        yield Finding(WARNING, "processes", "the kernel does not tell their ctrl_groups (cpu_resctrl_groups)", remedy)
    else:
        yield Finding(OK, "processes", "are shown")
    version = machine.cgroup_version()
    if version is None:
        remedy = "mount them: what exec brings into a container, and whether a pod is there, is told by cgroups"
        yield Finding(FAILURE, "cgroups", "none are mounted", remedy)
    else:
        yield Finding(OK, "cgroups", version)
