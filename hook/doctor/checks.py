# SPDX-License-Identifier: Apache-2.0
"""The table of all checks, and the checks of the kernel and of the records in the run directory."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from hook import procfs, resctrl, system
from hook.doctor import FAILURE, OK, WARNING, Finding, Site, installation
from hook.errors import HookError, Reason, as_hook_error
from hook.node import programs
from hook.node.paths import RUNTIMES
from hook.node.records import name_unhooked
from hook.report import explain, format_count, who
from hook.show import name_first, snapshot

_OVERDUE = 300.0  # seconds: timers run reconcile and the textfile every minute, and watch renews its record as often
_RECENT = 180.0  # seconds: reconcile tries each container again every minute
_LEAST_THRESHOLD = 65536  # bytes
_TEXTFILE = "/var/lib/prometheus/node-exporter/resctrl.prom"
_UID = "[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}"
_TOOLS = {
    f"nri-{_UID}": "an NRI plugin",
    _UID: "the NRI plugin resctrl-mon, or Kepler",
    f"pod_{_UID}": "the NRI plugin of unvariance",
    f"pod{_UID}": "kubelet (katalyst)",
    "[0-9a-f]{64}": "the OCI runtime (enableMonitoring)",
    "crio-.*": "CRI-O",
    "cadvisor-.*": "cAdvisor",
    "pqos-.*": "pqos",
    "cri-resmgr[.].*": "CRI Resource Manager",
}
"""The tools by the names that they give to mon_groups."""
_UNKNOWN = "unknown"
_AGAIN = "run resctrl-mon-hook reconcile"


def _check_root(_site: Site) -> Iterator[Finding]:
    if system.user_id() != 0 or procfs.in_user_namespace():
        what = "not running as root, or only inside a user namespace (rootless)"
        yield Finding(FAILURE, "root", what, "run it as root on the host: rootless containers cannot be monitored")
    if not procfs.in_host_pid_namespace():
        yield Finding(FAILURE, "root", procfs.NOT_HOST_PIDS, procfs.PID_HINT)


# --- resctrl, and what the CPU counts: not every one counts memory traffic, and some have fewer counters than groups


def _check_resctrl(site: Site) -> Iterator[Finding]:
    root = site.options.resctrl_root
    kernel = resctrl.Resctrl(root)
    if not kernel.exists():
        what = f"no {root}: the kernel or the CPU does not support resctrl"
        remedy = "use a machine and a kernel with Intel RDT, AMD QoS or Arm MPAM (see the documentation on hardware)"
        yield Finding(FAILURE, "resctrl", what, remedy)
    elif kernel.is_mounted():
        yield Finding(OK, "resctrl", f"mounted on {root}")
    elif system.find_directory(root + "/info"):
        what = f"{root} is mounted but does not support monitoring: no mon_groups"
        remedy = "use a CPU with CMT, MBM, AET or MPAM monitors; look for rdt= and clearcpuid= at boot"
        yield Finding(FAILURE, "resctrl", what, remedy)
    else:
        remedy = f"mount -t resctrl resctrl {root}, or by /etc/fstab; busy: another mount namespace has it (lsns)"
        yield Finding(FAILURE, "resctrl", f"not mounted on {root}", remedy)


def _check_counters(site: Site) -> Iterator[Finding]:
    """Yield the kinds of counters, and what is not counted: MPAM and some CPUs count only cache or traffic."""
    root = site.options.resctrl_root
    if not resctrl.Resctrl(root).is_mounted():
        return
    kinds = [name for name in system.list_directory(root + "/info") if name.endswith("_MON")]
    events, is_in_part = snapshot.list_events(root), snapshot.tracks_few(root)
    counts_traffic = not events.isdisjoint(snapshot.TRAFFIC)
    if "PERF_PKG_MON" in kinds:
        yield Finding(OK, "counters", ", ".join(kinds))
    else:
        remedy = "energy needs an Intel CPU with AET, and a kernel that supports it"
        yield Finding(WARNING, "counters", f"{', '.join(kinds) or 'none'}; no energy (PERF_PKG_MON)", remedy)
    if events and not counts_traffic:
        what = f"not counted: the kernel offers {', '.join(sorted(events))}"
        remedy = "use a CPU with MBM, or MPAM bandwidth monitors on or behind the L3 cache; look for rdt= at boot"
        yield Finding(WARNING, "memory traffic", what, remedy)
    if counts_traffic and is_in_part and snapshot.read_assignable(root) is None:
        what = "counted in part: this CPU says Unavailable of groups that it does not track, so use has the mark >="
        remedy = "use fewer groups, or an AMD CPU with ABMC under Linux 6.18 or newer, whose counters stay with a group"
        yield Finding(WARNING, "memory traffic", what, remedy)


def _check_assignable(site: Site) -> Iterator[Finding]:
    """Yield what is wrong with the hardware counters that the kernel assigns to groups, or how many are free."""
    if site.snapshot.unassigned:
        names = _name_all(site.snapshot.unassigned, "group", " without a hardware counter")
        remedy = "free some counters (see the documentation on hardware), then restart their pods"
        yield Finding(WARNING, "memory traffic", f"memory traffic is not counted in {names}", remedy)
    found = snapshot.read_assignable(site.options.resctrl_root)
    if found is None or not found.events:
        return
    remedy = ""
    if not found.enabled:
        what = "mbm_assign_mode is default: the CPU takes counters from groups between reads, and their use is lost"
        remedy = f"at boot, before pods start: echo mbm_event > {found.directory}/mbm_assign_mode"
    elif not found.on_mkdir:
        what = "new groups get no hardware counter"
        remedy = f"echo 1 > {found.directory}/mbm_assign_on_mkdir"
    else:
        free = [f"{free} of {found.limits.get(cache, '?')} (L3 {cache})" for cache, free in found.free.items()]
        what = f"free hardware counters: {', '.join(free)}"
        if any(free < len(found.events) for free in found.free.values()):
            what = f"{what}; the next group needs {len(found.events)} in each"
            remedy = (
                "use fewer pods, or take counters from groups that do not need them, such as the root ctrl_group: "
                f"echo 'mbm_total_bytes:*=_' > {site.options.resctrl_root}/mbm_L3_assignments"
            )
    yield Finding(WARNING if remedy else OK, "memory traffic", what, remedy)


# --- RMIDs


def _check_rmids(site: Site) -> Iterator[Finding]:
    """Yield how many RMIDs are in use, and the ctrl_groups without any."""
    found = site.snapshot.rmids
    if found is None:
        return
    used = found.ours + found.others
    shown = f"{used} in use of {found.limit or '?'} ({found.ours} ours, {found.others} of others)"
    remedy = "use fewer pods or ctrl_groups (on arm64: in each ctrl_group), or remove groups of other tools"
    if found.limit and used >= found.limit:
        yield Finding(FAILURE, "RMIDs", f"{shown}: none left", remedy)
    elif found.limit and (found.limit - used) * 10 < found.limit:
        yield Finding(WARNING, "RMIDs", f"{shown}: few left", remedy)
    else:
        yield Finding(OK, "RMIDs", shown)
    if found.full:
        each = f"each has {found.each} (MPAM: the PMGs of its PARTID), one of them for itself"
        remedy = "use fewer pods in it, or remove groups of other tools"
        yield Finding(FAILURE, "RMIDs", f"no RMID is left in ctrl_group {', '.join(found.full)}: {each}", remedy)


def _check_limbo(site: Site) -> Iterator[Finding]:
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
        count = format_count(len(refused), "container")
        what = f"no RMID is free: the freed ones are in limbo; without one: {count} for up to {minutes:.0f} min"
        why = f"the kernel reuses a freed RMID once it has less of the cache, now {size} bytes"
        yield Finding(FAILURE, "RMIDs", what, f"echo {max(_LEAST_THRESHOLD, 2 * size)} > {path} ({why})")


def _check_others(site: Site) -> Iterator[Finding]:
    recorded = {group.record.path for key in site.snapshot.keys for group in key.groups}
    found = [path for path in resctrl.list_mon_groups(site.options.resctrl_root) if path not in recorded]
    others = [path for path in found if not os.path.basename(path).startswith(site.options.group_prefix)]
    if others:
        remedy = f"rmdir unused ones; have others leave containers alone (Kepler: base-path={site.options.run_dir})"
        tools = Counter(name_tool(os.path.basename(path)) for path in others)
        by_tool = "; ".join(f"{tool}: {count}" for tool, count in tools.most_common() if tool != _UNKNOWN)
        what = f" of other tools{by_tool and f' ({by_tool})'}"
        yield Finding(WARNING, "RMIDs", _name_all(others, "group", what), remedy)


def name_tool(group: str) -> str:
    """Return the tool that gives mon_groups such a name, as far as the name tells."""
    return next((tool for pattern, tool in _TOOLS.items() if re.fullmatch(pattern, group)), _UNKNOWN)


def _name_all(names: Sequence[str], noun: str, what: str) -> str:
    """Return the number of these names, what is wrong with them, and the first of them."""
    return f"{format_count(len(names), noun)}{what}: {name_first(names)}"


# --- Records


def _check_records(site: Site) -> Iterator[Finding]:
    run_dir = site.options.run_dir
    if site.snapshot.is_full:
        remedy = f"free space or inodes there (df -h {run_dir}, df -i {run_dir}): until then containers run unmonitored"
        yield Finding(FAILURE, "records", f"the file system of {run_dir} is full", remedy)
    if not os.path.isdir(run_dir):
        yield Finding(OK, "records", f"no {run_dir}: no hook has run since boot")
    elif site.snapshot.keys:
        yield Finding(OK, "records", format_count(len(site.snapshot.keys), "key"))
    for broken in site.snapshot.unreadable:
        yield Finding(WARNING, broken.file, broken.problem, _AGAIN)


def _check_history(site: Site) -> Iterator[Finding]:
    for owed in site.snapshot.list_owed():
        what = f"{format_count(owed.lines, 'line')} wait to be written to {owed.file}: {owed.why}"
        remedy = f"its directory must exist, be writable and have room; then {_AGAIN}"
        yield Finding(WARNING, "history", what, remedy)
    if dropped := site.snapshot.dropped_lines:
        what = f"at least {format_count(dropped, 'line')} dropped since boot: too many waited"
        remedy = "what those jobs used is lost: their use was in the metrics while they ran"
        yield Finding(WARNING, "history", what, remedy)


def _check_failures(site: Site) -> Iterator[Finding]:
    """Yield the containers that are not monitored."""
    if unrecorded := site.snapshot.unrecorded:
        what = f"at least {format_count(unrecorded, 'failure')} since boot could not be recorded"
        remedy = "see journalctl -t resctrl-mon-hook; some of these containers may still run"
        yield Finding(WARNING, "failures", what, remedy)
    if taken := [f"{key.name_member(member)} in {path}" for key, member, path in site.snapshot.list_taken()]:
        remedy = "have that tool leave containers alone; after a rmdir of its group reconcile brings them back"
        yield Finding(WARNING, "taken", _name_all(taken, "container", " in groups of other tools"), remedy)
    by_reason: dict[str, list[str]] = {}
    for found in site.snapshot.failures:
        by_reason.setdefault(found.reason, []).append(who(found.container, found.namespace, found.pod, found.name))
    for reason, names in by_reason.items():
        what = _name_all(names, "container", f": {reason}")
        yield Finding(WARNING, "failures", what, "see resctrl-mon-hook list for details")


def _check_unhooked(site: Site) -> Iterator[Finding]:
    seen = site.snapshot.unhooked
    if seen is not None and (names := [*name_unhooked(seen)]):
        remedy = "does the runtime, or its NRI hook-injector, read our JSON? Older containers: reconcile --adopt"
        what = _name_all(names, "running container", f" never got the hook, as of {seen.since}")
        yield Finding(FAILURE, "unhooked", what, remedy)
    if seen is not None and seen.unchecked:
        what = f"could not check {format_count(seen.unchecked, 'container')} without a record, as of {seen.since}"
        remedy = "their runtime did not answer, is not supported (see reconcile --adopt), or is not visible from here"
        yield Finding(WARNING, "unhooked", what, remedy)


# --- The runtimes, and what should run beside them


def _check_runtimes(_site: Site) -> Iterator[Finding]:
    if found := [name for name in RUNTIMES if programs.find_program(name)]:
        yield Finding(OK, "runtimes", ", ".join(found))
    else:
        remedy = "install CRI-O, Podman or containerd: Docker does not support OCI hooks"
        yield Finding(WARNING, "runtimes", f"found none of {', '.join(RUNTIMES)}", remedy)


def _check_reconcile(site: Site) -> Iterator[Finding]:
    seen = site.snapshot.reconciled
    why, age = "", 0.0 if seen is None else system.unix_time() - (seen.ended_at or 0)
    if seen is None:
        why = "it has not run since boot" if os.path.isdir(site.options.run_dir) else ""
    elif seen.ended_at is None:
        why = "it has started since boot, but not ended"
    elif age > _OVERDUE:
        why = f"it last ended {age:.0f} s ago"
    elif seen.failed:
        why = f"{seen.failed} of its actions failed"
    elif seen.unread:
        why = f"it could not read {seen.unread} of the keys, cgroups and processes: exec may be outside its group"
    if why:
        enable = "systemctl enable --now resctrl-mon-hook-reconcile.timer, and journalctl of its service"
        yield Finding(WARNING, "reconcile", why, f"{_AGAIN}; with systemd: {enable}")
    elif seen is not None:
        yield Finding(OK, "reconcile", f"it last ended {age:.0f} s ago, after {seen.seconds:.1f} s")


def _check_services(site: Site) -> Iterator[Finding]:
    """Yield watch and the textfile if they were active, and are so no longer."""
    now, watched = system.unix_time(), site.snapshot.watched
    if watched is not None and now - watched.alive_at > _OVERDUE:
        what = f"it last wrote its record {now - watched.alive_at:.0f} s ago"
        yield Finding(WARNING, "watch", what, "journalctl -u resctrl-mon-hook-watch.service")
    written = system.try_call(os.path.getmtime, _TEXTFILE)
    if written is not None and now - written > _OVERDUE:
        remedy = "see journalctl -u resctrl-mon-hook-textfile.service, or remove the file"
        yield Finding(WARNING, "textfile", f"{_TEXTFILE} is {now - written:.0f} s old", remedy)


CHECKS = [
    ("root", _check_root),
    ("records", _check_records),
    ("resctrl", _check_resctrl),
    ("counters", _check_counters),
    ("memory traffic", _check_assignable),
    ("RMIDs", _check_rmids),
    ("RMIDs", _check_limbo),
    ("RMIDs", _check_others),
    ("program", installation.check_programs),
    ("program", installation.check_namesakes),
    ("hooks.d", installation.check_hooks_dirs),
    ("hooks.d", installation.check_own_files),
    ("runtimes", _check_runtimes),
    ("runtimes", installation.check_engines),
    ("containerd", installation.check_containerd),
    ("history", _check_history),
    ("failures", _check_failures),
    ("unhooked", _check_unhooked),
    ("reconcile", _check_reconcile),
    ("watch", _check_services),
]
"""What doctor looks at, in the order of the output."""


def examine(site: Site) -> Iterator[Finding]:
    """Yield what all checks find. The error that ends a check is a failure, which is reported once."""
    for subject, check in CHECKS:
        site.checking = subject
        try:
            yield from check(site)
        except (HookError, OSError) as error:
            problem, _, hint = str(explain(as_hook_error("a file could not be read", error))).partition("; hint: ")
            if problem not in site.errors:
                site.errors.add(problem)
                yield Finding(FAILURE, subject, f"cannot check: {problem}", hint or "run doctor as root")
