# SPDX-License-Identifier: Apache-2.0
"""Reads what the hardware counts: its events, its RMIDs, and counters that must be assigned to groups.

Source: Documentation/filesystems/resctrl.rst ("mbm_assign_mode", "num_rmids") and
drivers/resctrl/mpam_resctrl.c of Linux 7.3.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from hook import system

OCCUPANCY, TRAFFIC = "llc_occupancy", ("mbm_total_bytes", "mbm_local_bytes")
UNASSIGNED = "Unassigned"
"""The kernel's word for an event of a group that has no hardware counter."""
_LIMIT = 4096  # bytes: a page, the most that the kernel gives
_ENABLED = ("[mbm_event]", "[mbm_cntr_assign]")  # the same mode; the second is its name in older kernels
_AMD = ("AuthenticAMD", "HygonGenuine")


@dataclass(frozen=True)
class Rmids:
    """The RMIDs of the machine."""

    limit: int | None
    """The smallest of info/*/num_rmids. On arm64 the sum over the existing ctrl_groups. None if it is unknown."""
    ours: int
    """RMIDs in use, one for each group. Ours are mon_groups with our prefix or on record."""
    others: int
    each: int | None = None
    """How many each ctrl_group has, on machines where each has its own RMIDs (arm64)."""
    full: tuple[str, ...] = ()
    """The ctrl_groups that have none left, on the same machines."""


@dataclass(frozen=True)
class AssignableCounters:
    """The hardware counters for memory traffic, if the kernel must assign them: a group needs one for each event."""

    directory: str
    """Where their settings are."""
    events: tuple[str, ...]
    enabled: bool
    """Whether the mode is mbm_event. In the mode `default` the CPU itself moves counters between groups."""
    on_mkdir: bool
    """Whether new groups get counters."""
    limits: dict[str, int]
    """The number of all counters, by domain (the number of an L3 cache)."""
    free: dict[str, int]
    """The number of unassigned counters, by domain."""


def is_arm64() -> bool:
    """Whether this is arm64, where resctrl shows MPAM; no file of resctrl says so."""
    return os.uname().machine in ("aarch64", "aarch64_be")


def list_events(root: str) -> set[str]:
    """Return the events that groups are counted for, from info/*_MON/mon_features."""
    infos = [info for info in _list_infos(root) if info.endswith("_MON")]
    return {event for info in infos for event in _read(f"{info}/mon_features").split()}


def count_rmids(root: str, ctrl_groups: dict[str, list[str]], ours: int) -> Rmids:
    """Count the RMIDs. `ctrl_groups` is as from resctrl.list_ctrl_groups, and `ours` counts those mon_groups in it.

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
    """Read the counters that must be assigned. Return None if each group has its own, as on Intel CPUs."""
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
    """Whether the CPU counts memory traffic for some RMIDs at a time only, and shows `Unavailable` for the others.

    AMD's CPUs do where the kernel does not assign counters. The source is in counters.is_untracked.
    """
    head = system.try_call(system.read_start, "/proc/cpuinfo", _LIMIT) or ""
    mode = _read(f"{root}/info/L3_MON/mbm_assign_mode")
    return any(f": {vendor}\n" in head for vendor in _AMD) and (not mode or "[default]" in mode)


def _read_per_domain(path: str) -> dict[str, int]:
    """Parse a file such as `0=32;1=32`. The result is empty if it is missing, or has another format."""
    pairs = [word.partition("=") for word in _read(path).split(";")]
    return {domain.strip(): _to_number(number) for domain, _, number in pairs if number.strip()}


def _to_number(text: str) -> int:
    """Parse a number of the kernel's. Any other text is 0."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() else 0


def _read(path: str) -> str:
    """Return a file's text, which is empty if it cannot be read, as in a mode that is not enabled (EINVAL)."""
    try:
        return system.read_file(path, _LIMIT)
    except (OSError, ValueError):
        return ""


def _list_infos(root: str) -> list[str]:
    return [f"{root}/info/{name}" for name in system.try_call(system.list_directory, root + "/info") or ()]
