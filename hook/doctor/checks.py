# SPDX-License-Identifier: Apache-2.0
"""The table of all checks, and the checks of the kernel and of the records in the run directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from hook import procfs, resctrl, system
from hook.doctor import Check, Facts, Site
from hook.doctor import installation as its
from hook.errors import Reason
from hook.node.paths import RUNTIMES
from hook.node.records import name_unhooked
from hook.report import format_count, who
from hook.show import hardware
from hook.show.terminal import name_first

_OVERDUE = 300.0  # seconds: timers run reconcile and the textfile every minute, and watch renews its record as often
_RECENT = 180.0  # seconds: reconcile tries each container again every minute
_LEAST_THRESHOLD = 65536  # bytes
_TEXTFILE = "/var/lib/prometheus/node-exporter/resctrl.prom"


def _name_all(names: Iterable[str], noun: str) -> list[Facts]:
    """Return one case with these names and their number, or none if there is no name."""
    found = [*names]
    return [{"count": format_count(len(found), noun), "names": name_first(found)}] if found else []


# --- resctrl, and what the CPU counts: not every one counts memory traffic, and some have fewer counters than groups


def _is_mounted(site: Site) -> bool:
    return resctrl.Resctrl(site.options.resctrl_root).is_mounted()


def _has_info(site: Site) -> bool:
    return system.find_directory(site.options.resctrl_root + "/info")


def _list_kinds(site: Site, *, has_energy: bool) -> Iterator[Facts]:
    """Yield the kinds of counters, and those besides energy: MPAM and some CPUs count only cache or traffic."""
    root = site.options.resctrl_root
    kinds = [name for name in system.try_call(system.list_directory, root + "/info") or () if name.endswith("_MON")]
    if _is_mounted(site) and ("PERF_PKG_MON" in kinds) is has_energy:
        events = hardware.list_events(root)
        traffic = "memory traffic (in part)" if hardware.tracks_few(root) else "memory traffic"
        has = {"cache": hardware.OCCUPANCY in events, traffic: not events.isdisjoint(hardware.TRAFFIC)}
        counted = " and ".join(name for name, there in has.items() if there)
        yield {"kinds": ", ".join(kinds) or "none", "counted": counted or "nothing"}


def _find_no_traffic(site: Site) -> Iterator[Facts]:
    events = hardware.list_events(site.options.resctrl_root) if _is_mounted(site) else set()
    if events and events.isdisjoint(hardware.TRAFFIC):
        yield {"events": ", ".join(sorted(events))}


def _is_in_part(site: Site) -> bool:
    root = site.options.resctrl_root
    counts = not hardware.list_events(root).isdisjoint(hardware.TRAFFIC)
    return counts and hardware.read_assignable(root) is None and hardware.tracks_few(root)


def _judge_counters(site: Site, *, verdict: str) -> Iterator[Facts]:
    """Yield the hardware counters that the kernel assigns to groups, if this is the verdict on them."""
    found = hardware.read_assignable(site.options.resctrl_root)
    if found is not None and found.events:
        free = ", ".join(f"{free} of {found.limits.get(cache, '?')} (L3 {cache})" for cache, free in found.free.items())
        verdicts = {
            "default": not found.enabled,
            "off": not found.on_mkdir,
            "few": any(free < len(found.events) for free in found.free.values()),
            "well": True,
        }
        if verdict == next(name for name, holds in verdicts.items() if holds):
            yield {"free": free, "needed": len(found.events), "directory": found.directory}


# --- RMIDs


def _judge_rmids(site: Site, *, verdict: str) -> Iterator[Facts]:
    """Yield how many RMIDs are in use, if this is the verdict on it, and the ctrl_groups without any."""
    found = site.snapshot.rmids
    if found is not None:
        used = found.ours + found.others
        limit = found.limit or used + 1
        few = "few" if (limit - used) * 10 < limit and found.limit else "well"
        facts = {"used": used, "limit": found.limit or "?", "ours": found.ours, "others": found.others}
        if verdict == ("none" if used >= limit else few) or (verdict == "full" and found.full):
            yield {**facts, "full": ", ".join(found.full), "each": found.each}


def _find_limbo(site: Site) -> Iterator[Facts]:
    """Yield the containers that the kernel has just refused an RMID though it has free ones.

    Only a new group shows that, so it is known from the failures on record.
    """
    now, path = system.boottime(), f"{site.options.resctrl_root}/info/L3_MON/max_threshold_occupancy"
    failures = [failure for failure in site.snapshot.failures if failure.reason == Reason.RMIDS_IN_LIMBO]
    refused = [failure for failure in failures if now - (failure.boottime or 0.0) < _RECENT]
    if refused:
        minutes = max(now - (failure.starttime or 0) / procfs.TICKS for failure in refused) / 60
        text = (system.try_call(system.read_file, path, 64) or "").strip()
        size = int(text) if text.isdecimal() else 0
        facts = {"count": format_count(len(refused), "container"), "minutes": f"{minutes:.0f}", "path": path}
        yield {**facts, "size": size, "more": max(_LEAST_THRESHOLD, 2 * size)}


def _find_others(site: Site) -> list[Facts]:
    recorded = {group.record.path for key in site.snapshot.keys for group in key.groups}
    found = {path: os.path.basename(path) for path in resctrl.list_mon_groups(site.options.resctrl_root)}
    prefix = site.options.group_prefix
    return _name_all(
        (path for path, name in found.items() if not name.startswith(prefix) and path not in recorded), "group"
    )


# --- Records


def _has_records(site: Site) -> bool:
    return os.path.isdir(site.options.run_dir)


def _count(number: int, noun: str) -> list[Facts]:
    return [{"count": format_count(number, noun)}] if number else []


def _list_owed(site: Site) -> Iterator[Facts]:
    for waiting in site.snapshot.list_owed():
        yield {"count": format_count(waiting.lines, "line"), "file": waiting.file, "why": waiting.why}


def _list_failures(site: Site) -> Iterator[Facts]:
    by_reason: dict[str, list[str]] = {}
    for found in site.snapshot.failures:
        by_reason.setdefault(found.reason, []).append(who(found.container, found.namespace, found.pod, found.name))
    for reason, names in by_reason.items():
        yield {"reason": reason, **_name_all(names, "container")[0]}


def _find_unhooked(site: Site) -> Iterator[Facts]:
    if (seen := site.snapshot.unhooked) is not None:
        yield from ({"since": seen.since, **facts} for facts in _name_all(name_unhooked(seen), "running container"))


def _find_unchecked(site: Site) -> Iterator[Facts]:
    if (seen := site.snapshot.unhooked) is not None and seen.unchecked:
        yield {"since": seen.since, "count": format_count(seen.unchecked, "container")}


# --- reconcile, watch and the textfile


def _judge_reconcile(site: Site, *, is_well: bool) -> Iterator[Facts]:
    seen, why = site.snapshot.reconciled, ""
    age = 0.0 if seen is None else system.unix_time() - (seen.ended_at or 0)
    if seen is None:
        why = "it has not run since boot" if _has_records(site) else ""
    elif seen.ended_at is None:
        why = "it has started since boot, but not ended"
    elif age > _OVERDUE:
        why = f"it last ended {age:.0f} s ago"
    elif seen.failed:
        why = f"{seen.failed} of its actions failed"
    elif seen.unread:
        why = f"it could not read {seen.unread} of the keys, cgroups and processes: exec may be outside its group"
    if is_well and seen is not None and not why:
        yield {"age": f"{age:.0f}", "took": f"{seen.seconds:.1f}"}
    elif why and not is_well:
        yield {"why": why}


def _find_old(read_time: Callable[[Site], float | None]) -> Callable[[Site], Iterator[Facts]]:
    """Return a check of a file that should be new, by the time at which it was written."""

    def find(site: Site) -> Iterator[Facts]:
        written = read_time(site)
        if written is not None and system.unix_time() - written > _OVERDUE:
            yield {"age": f"{system.unix_time() - written:.0f}"}

    return find


# --- The table, in the order of the output

_AGAIN = "run resctrl-mon-hook reconcile"
_TIMER = (
    f"{_AGAIN}; with systemd: systemctl enable --now resctrl-mon-hook-reconcile.timer, and journalctl of its service"
)
_FEWER = "use fewer pods or ctrl_groups (on arm64: in each ctrl_group), or remove groups of other tools"
_USED = "{used} in use of {limit} ({ours} ours, {others} of others)"

CHECKS = [
    Check(find, text, remedy)
    for find, text, remedy in (
        (
            lambda _site: system.user_id() != 0 or procfs.in_user_namespace(),
            "FAIL root: not running as root, or only inside a user namespace (rootless)",
            "run it as root on the host: rootless containers cannot be monitored",
        ),
        (lambda _site: not procfs.in_host_pid_namespace(), f"FAIL root: {procfs.NOT_HOST_PIDS}", procfs.PID_HINT),
        (
            lambda site: site.snapshot.is_full,
            "FAIL records: the file system of {run_dir} is full",
            "free space or inodes there (df -h {run_dir}, df -i {run_dir}): until then containers run unmonitored",
        ),
        (
            lambda site: not resctrl.Resctrl(site.options.resctrl_root).exists(),
            "FAIL resctrl: no {root}: the kernel or the CPU does not support resctrl",
            "it needs Intel RDT or AMD QoS, or MPAM in an Arm CPU and its firmware; CONFIG_X86_CPU_RESCTRL, or "
            "CONFIG_ARM64_MPAM and CONFIG_RESCTRL_FS, and no arm64.nompam at boot; most VMs have none",
        ),
        (
            lambda site: _has_info(site) and not _is_mounted(site),
            "FAIL resctrl: {root} is mounted but does not support monitoring: no mon_groups",
            "use a CPU with CMT, MBM, AET or MPAM monitors; look for rdt= and clearcpuid= on the kernel command line",
        ),
        (
            lambda site: resctrl.Resctrl(site.options.resctrl_root).exists() and not _has_info(site),
            "FAIL resctrl: not mounted on {root}",
            "mount -t resctrl resctrl {root}; for each boot: `resctrl {root} resctrl defaults 0 0` in /etc/fstab; if "
            "that is busy, a process in another mount namespace has it (lsns -t mnt)",
        ),
        (_is_mounted, "ok resctrl: mounted on {root}", ""),
        (partial(_list_kinds, has_energy=True), "ok counters: {kinds}", ""),
        (
            partial(_list_kinds, has_energy=False),
            "warning counters: {kinds}; no energy (PERF_PKG_MON)",
            "energy needs an Intel CPU with AET, and kernel support for it; counted without it: {counted}",
        ),
        (
            _find_no_traffic,
            "warning memory traffic: not counted: the kernel offers {events}",
            "use a CPU with MBM, or MPAM bandwidth monitors on or behind the L3 cache; look for rdt= at boot",
        ),
        (
            _is_in_part,
            "warning memory traffic: counted in part: this CPU says Unavailable of groups that it does not track, and "
            "use is a lower bound (>=)",
            "use fewer groups; an AMD CPU with ABMC, under Linux 6.18 or newer, has counters that stay with a group",
        ),
        (
            lambda site: _name_all(site.snapshot.unassigned, "group"),
            "warning memory traffic: memory traffic is not counted in {count} without a hardware counter: {names}",
            "free some counters (see the documentation on hardware), then restart their pods",
        ),
        (
            partial(_judge_counters, verdict="default"),
            "warning memory traffic: mbm_assign_mode is default: the CPU takes counters from groups between reads, and "
            "their use is lost",
            "at boot, before pods start: echo mbm_event > {directory}/mbm_assign_mode",
        ),
        (
            partial(_judge_counters, verdict="off"),
            "warning memory traffic: new groups get no hardware counter",
            "echo 1 > {directory}/mbm_assign_on_mkdir",
        ),
        (
            partial(_judge_counters, verdict="few"),
            "warning memory traffic: free hardware counters: {free}; the next group needs {needed} in each",
            "use fewer pods, or take counters from groups that do not need them, such as the root ctrl_group: "
            "echo 'mbm_total_bytes:*=_' > {root}/mbm_L3_assignments",
        ),
        (partial(_judge_counters, verdict="well"), "ok memory traffic: free hardware counters: {free}", ""),
        (partial(_judge_rmids, verdict="well"), f"ok RMIDs: {_USED}", ""),
        (partial(_judge_rmids, verdict="few"), f"warning RMIDs: {_USED}: few left", _FEWER),
        (partial(_judge_rmids, verdict="none"), f"FAIL RMIDs: {_USED}: none left", _FEWER),
        (
            partial(_judge_rmids, verdict="full"),
            "FAIL RMIDs: no RMID is left in ctrl_group {full}: each has {each} (MPAM: the PMGs of its PARTID), one of "
            "them for itself",
            "use fewer pods in it, or remove groups of other tools",
        ),
        (
            _find_limbo,
            "FAIL RMIDs: no RMID is free: the freed ones are in limbo; without one: {count} for up to {minutes} min",
            "echo {more} > {path} (the kernel reuses a freed RMID once it has less of the cache, now {size} bytes)",
        ),
        (
            _find_others,
            "warning RMIDs: {count} of other tools: {names}",
            "each takes an RMID, and a process is in one group only: remove unused ones with rmdir, and have other "
            "monitors leave containers alone (Kepler: passive mode with base-path={run_dir})",
        ),
        (lambda site: [{"owner": site.origin.name}], "ok installed by: {owner}", ""),
        (
            its.find_stubs,
            "FAIL program: {path} is what a removal leaves, and does nothing: no container is monitored",
            "{again}",
        ),
        (
            its.find_writable,
            "FAIL program: {path} is not owned by root, or is writable by others",
            "chown root {path}; chmod 755 {path} (runtimes run it as root)",
        ),
        (
            lambda site: ({"path": path} for path, why in site.verdicts.items() if not why),
            "ok program: {path} runs",
            "",
        ),
        (
            its.find_broken,
            "FAIL program: {why}",
            "fix this first, or: {again}; containers with the hook do not start",
        ),
        (its.list_directories, "ok {path}: {number}; read by {readers}", ""),
        (
            lambda site: (
                {"path": file.path, "why": file.problem} for file in site.entries if file.problem is not None
            ),
            "FAIL {path}: invalid: CRI-O, Podman and the NRI hook-injector reject it: {why}",
            "fix or remove it: Podman starts no container, CRI-O and the hook-injector do not start",
        ),
        (
            lambda site: [] if site.ours else [{"dirs": " or ".join(site.hooks_dirs), "again": site.origin.again}],
            "FAIL hooks.d: no hooks.d file in {dirs} calls resctrl-mon-hook",
            "{again}",
        ),
        (
            its.find_doubles,
            "FAIL hooks.d: several files call the hook: {paths}",
            "remove all but one: programs that read both directories call the hook twice",
        ),
        (its.judge_own, "warning {path}: {why}", "edit {path}: {change}"),
        (lambda _site: [{"names": names} for names in [its.list_runtimes()] if names], "ok runtimes: {names}", ""),
        (
            lambda _site: not its.list_runtimes(),
            f"warning runtimes: found none of {', '.join(RUNTIMES)}",
            "install CRI-O, Podman or containerd: Docker does not support OCI hooks",
        ),
        (partial(its.compare_directories, reads_ours=True), "ok {engine}: reads {reads}", ""),
        (
            partial(its.compare_directories, reads_ours=False),
            "FAIL {engine}: reads {reads}, and not {wanted}, where our file is",
            "append {wanted} to its hooks_dir",
        ),
        (
            partial(its.compare_directories, reads_ours=None),
            "warning {engine}: unclear which hooks directories it reads: {why}",
            "see for yourself that its hooks_dir names {wanted}",
        ),
        (partial(its.find_specs, is_in_force=True), "ok containerd: {path} names the hook", ""),
        (
            partial(its.find_specs, is_in_force=False),
            "FAIL containerd: {path} names the hook, but its base_runtime_spec is in a table that containerd ignores",
            "with version = 3, use the table plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes",
        ),
        (
            its.find_rejecting,
            "FAIL containerd: {path}: NRI's default_validator has reject_oci_hook_adjustment = true",
            "set it to false, or remove the hook: containers that get the hook from the hook-injector do not start",
        ),
        (
            lambda site: [{"why": line} for line in (site.containerd.unclear if site.containerd is not None else ())],
            "warning containerd: {why}",
            "fix this file: it may name the hook",
        ),
        (lambda site: not _has_records(site), "ok records: no {run_dir}: no hook has run since boot", ""),
        (lambda site: _name_all((key.state.key for key in site.snapshot.keys), "key"), "ok records: {count}", ""),
        (
            lambda site: _count(site.snapshot.unrecorded, "failure"),
            "warning failures: at least {count} since boot could not be recorded",
            "see journalctl -t resctrl-mon-hook; some of these containers may still run",
        ),
        (
            _list_owed,
            "warning history: {count} wait to be written to {file}: {why}",
            f"its directory must exist, be writable and have room; then {_AGAIN}",
        ),
        (
            lambda site: _count(site.snapshot.dropped_lines, "line"),
            "warning history: at least {count} dropped since boot: too many waited",
            "what those jobs used is lost: their use was in the metrics while they ran",
        ),
        (
            lambda site: ({"file": found.file, "why": found.problem} for found in site.snapshot.list_unreadable()),
            "warning {file}: {why}",
            _AGAIN,
        ),
        (
            lambda site: _name_all(
                (f"{key.name_member(it)} in {path}" for key, it, path in site.snapshot.list_taken()), "container"
            ),
            "warning taken: {count} in groups of other tools: {names}",
            "have that tool leave containers alone; after a rmdir of its group reconcile brings them back",
        ),
        (_list_failures, "warning failures: {count}: {reason}: {names}", "see resctrl-mon-hook list for details"),
        (
            _find_unhooked,
            "FAIL unhooked: {count} never got the hook, as of {since}: {names}",
            "see what doctor finds in hooks.d, runtimes and containerd: does the NRI hook-injector run, does the "
            "runtime read our JSON? For containers older than the installation: resctrl-mon-hook reconcile --adopt",
        ),
        (
            _find_unchecked,
            "warning unhooked: could not check {count} without a record, as of {since}",
            "their runtime did not answer, is not supported (see reconcile --adopt), or is not visible from here",
        ),
        (partial(_judge_reconcile, is_well=True), "ok reconcile: it last ended {age} s ago, after {took} s", ""),
        (partial(_judge_reconcile, is_well=False), "warning reconcile: {why}", _TIMER),
        (
            lambda site: [{"path": site.places.conf}] if os.path.lexists(site.places.conf) else [],
            "warning reconcile: {path} is not read any more",
            "put its options into the hooks.d file (install does), then remove it",
        ),
        (
            _find_old(lambda site: site.snapshot.watched.alive_at if site.snapshot.watched is not None else None),
            "warning watch: it last wrote its record {age} s ago",
            "journalctl -u resctrl-mon-hook-watch.service",
        ),
        (
            _find_old(lambda _site: system.try_call(os.path.getmtime, _TEXTFILE)),
            f"warning textfile: {_TEXTFILE} is {{age}} s old",
            "see journalctl -u resctrl-mon-hook-textfile.service, or remove the file",
        ),
    )
]
"""What doctor looks at. An ok row has no remedy."""
