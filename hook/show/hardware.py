# SPDX-License-Identifier: Apache-2.0
"""Reads the limits of the hardware: its events, its RMIDs, and counters that must be assigned to groups.

Source: Documentation/filesystems/resctrl.rst ("mbm_assign_mode", "num_rmids") and
drivers/resctrl/mpam_resctrl.c of Linux 7.3.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from hook import procfs, system
from hook.errors import Reason
from hook.explain import format_count
from hook.models import Failure

OCCUPANCY, TRAFFIC = "llc_occupancy", ("mbm_total_bytes", "mbm_local_bytes")
UNASSIGNED = "Unassigned"
"""The kernel's word for an event of a group that has no hardware counter."""
_LIMIT = 4096  # bytes: a page, the most that the kernel gives
_ENABLED = ("[mbm_event]", "[mbm_cntr_assign]")  # the same mode; the second is its name in older kernels
_RECENT = 180.0  # seconds: reconcile tries each container again every minute
_LEAST_THRESHOLD = 65536  # bytes
_AMD = ("AuthenticAMD", "HygonGenuine")


@dataclass(frozen=True)
class Rmids:
    """The RMIDs of the machine. `limit`: the smallest of info/*/num_rmids, None if there is none.

    `ours`, `others`: RMIDs in use, one for each group. Ours are mon_groups with our prefix or on record. Where each
    ctrl_group has RMIDs of its own (arm64): `each`, their number; `full`, the ctrl_groups that have none left; `limit`,
    the sum over the existing ctrl_groups.
    """

    limit: int | None
    ours: int
    others: int
    each: int | None = None
    full: tuple[str, ...] = ()


@dataclass(frozen=True)
class AssignableCounters:
    """The hardware counters for memory traffic, if they must be assigned: a group needs one for each of `events`.

    `directory`: where their settings are. `enabled`: the mode is mbm_event; in the mode `default` the CPU itself moves
    counters between groups. `on_mkdir`: whether new groups get counters. `limits` and `free`: the numbers of all and of
    unassigned counters, by domain (the number of an L3 cache).
    """

    directory: str
    events: tuple[str, ...]
    enabled: bool
    on_mkdir: bool
    limits: dict[str, int]
    free: dict[str, int]


def is_arm64() -> bool:
    """Whether this is arm64, where resctrl shows MPAM; no file of resctrl says so."""
    return os.uname().machine in ("aarch64", "aarch64_be")


def list_events(root: str) -> set[str]:
    """The events that groups are counted for, from info/*_MON/mon_features."""
    infos = [info for info in _list_infos(root) if info.endswith("_MON")]
    return {event for info in infos for event in _read(f"{info}/mon_features").split()}


def count_rmids(root: str, ctrl_groups: dict[str, list[str]], ours: int) -> Rmids:
    """Count the RMIDs. `ctrl_groups`: as from resctrl.list_ctrl_groups; `ours`: how many of their mon_groups are ours.

    On arm64 an RMID is a pair of PARTID (CLOSID) and PMG, and num_rmids is the number of all pairs. Each ctrl_group,
    which has one PARTID, has as many RMIDs as there are PMGs, for itself and its mon_groups.
    """
    others = len(ctrl_groups) + sum(map(len, ctrl_groups.values())) - ours
    numbers = [_to_number(_read(f"{info}/num_rmids")) for info in _list_infos(root)]
    if not is_arm64():  # a group takes an RMID of each kind of counter
        return Rmids(min(filter(None, numbers), default=None), ours, others)
    partids = [_to_number(_read(f"{info}/num_closids")) for info in _list_infos(root)]
    if not any(numbers) or not any(partids):
        return Rmids(None, ours, others)
    each = max(numbers) // max(partids)
    full = [path for path, mon_groups in ctrl_groups.items() if 1 + len(mon_groups) >= each]
    return Rmids(each * len(ctrl_groups), ours, others, each, tuple(path[len(root) + 1 :] or "/" for path in full))


def read_assignable(root: str) -> AssignableCounters | None:
    """The counters that must be assigned; None if each group has its own, as on Intel CPUs."""
    directory = f"{root}/info/L3_MON"
    limits = _read_per_domain(f"{directory}/num_mbm_cntrs")
    if not any(limits.values()):
        return None
    events = list_events(root)
    return AssignableCounters(
        directory,
        events=tuple(event for event in TRAFFIC if event in events),
        enabled=not {*_read(f"{directory}/mbm_assign_mode").split()}.isdisjoint(_ENABLED),
        on_mkdir=_read(f"{directory}/mbm_assign_on_mkdir").strip() != "0",
        limits=limits,
        free=_read_per_domain(f"{directory}/available_mbm_cntrs"),
    )


def tracks_few(root: str) -> bool:
    """Whether the CPU counts memory traffic for some of its RMIDs at a time, and says `Unavailable` of the others.

    AMD's do, where the kernel does not assign counters: counters.is_untracked has the source.
    """
    head = system.try_call(system.read_start, "/proc/cpuinfo", _LIMIT) or ""
    mode = _read(f"{root}/info/L3_MON/mbm_assign_mode")
    return any(f": {vendor}\n" in head for vendor in _AMD) and (not mode or "[default]" in mode)


def _read_per_domain(path: str) -> dict[str, int]:
    """Parse a file such as `0=32;1=32`; empty if it is missing, or has another format."""
    pairs = [word.partition("=") for word in _read(path).split(";")]
    return {domain.strip(): _to_number(number) for domain, _, number in pairs if number.strip()}


def _to_number(text: str) -> int:
    """Parse a number of the kernel's; 0 for any other text."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() else 0


def _read(path: str) -> str:
    """A file's text; empty if it cannot be read (files of a mode that is not enabled: EINVAL)."""
    try:
        return system.read_file(path, _LIMIT)
    except (OSError, ValueError):
        return ""


def _list_infos(root: str) -> list[str]:
    return [f"{root}/info/{name}" for name in system.try_call(system.list_directory, root + "/info") or ()]


# --- Lacks of counters or RMIDs, each with its remedy, for `list` and `doctor`; None: there is no lack


def explain_unassigned(groups: list[str], counters: AssignableCounters | None) -> tuple[str, str] | None:
    """Groups whose memory traffic is not counted because they have no hardware counter."""
    if not groups:
        return None
    count = format_count(len(groups), "group")
    found = f"memory traffic is not counted in {count} without a hardware counter: {groups[0]}"
    found += ", ..." if len(groups) > 1 else ""
    if counters is not None and not counters.on_mkdir:
        return found, f"echo 1 > {counters.directory}/mbm_assign_on_mkdir, then restart their pods"
    if counters is not None and 0 in counters.free.values():
        return found, _free_counters(counters)
    return found, "counters are free now: restart their pods"


def explain_full(rmids: Rmids | None) -> tuple[str, str] | None:
    """ctrl_groups without an RMID left, on machines where each has its own RMIDs (arm64)."""
    if rmids is None or not rmids.full:
        return None
    found = f"no RMID is left in ctrl_group {', '.join(rmids.full)}: each has {rmids.each} (MPAM: the PMGs of "
    return found + "its PARTID), one of them for itself", "use fewer pods in it, or remove groups of other tools"


def explain_limbo(failures: Sequence[Failure], root: str) -> tuple[str, str] | None:
    """That no RMID is free although groups have fewer than there are: the kernel has just refused one to a container.

    Only a new group would show this, so it is known from the failures on record.
    """
    now, threshold = system.boottime(), f"{root}/info/L3_MON/max_threshold_occupancy"
    refused = [it for it in failures if it.reason == Reason.RMIDS_IN_LIMBO and now - (it.boottime or 0.0) < _RECENT]
    if not refused:
        return None
    minutes = max(now - (it.starttime or 0) / procfs.TICKS for it in refused) / 60
    waiting = f"{format_count(len(refused), 'container')} for up to {minutes:.0f} min"
    size = _to_number(_read(threshold))
    why = f"the kernel reuses a freed RMID once it has less of the cache than that, now {size} bytes"
    remedy = f"echo {max(_LEAST_THRESHOLD, 2 * size)} > {threshold} ({why})"
    return f"no RMID is free: the freed ones are in limbo; without one: {waiting}", remedy


def explain_shortage(counters: AssignableCounters) -> tuple[str, str] | None:
    """Why the next group will not be counted, or not reliably."""
    if not counters.enabled:
        found = "mbm_assign_mode is default: the CPU takes counters from groups between reads, and their use is lost"
        return found, f"at boot, before pods start: echo mbm_event > {counters.directory}/mbm_assign_mode"
    if not counters.on_mkdir:
        return "new groups get no hardware counter", f"echo 1 > {counters.directory}/mbm_assign_on_mkdir"
    if any(free < len(counters.events) for free in counters.free.values()):
        return f"{format_free(counters)}; the next group needs {len(counters.events)} in each", _free_counters(counters)
    return None


def format_free(counters: AssignableCounters) -> str:
    """The free counters by domain, for people."""
    domains = (f"{free} of {counters.limits.get(domain, '?')} (L3 {domain})" for domain, free in counters.free.items())
    return "free hardware counters: " + ", ".join(domains)


def _free_counters(counters: AssignableCounters) -> str:
    root = counters.directory.rpartition("/info/")[0]
    free = "; ".join(f"echo '{event}:*=_' > {root}/mbm_L3_assignments" for event in counters.events)
    return f"use fewer pods, or take counters from groups that do not need them, such as the root ctrl_group: {free}"
