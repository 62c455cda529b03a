# SPDX-License-Identifier: Apache-2.0
"""What this hardware does not count for want of counters or RMIDs, with the remedy: for `list` and `doctor`."""

from __future__ import annotations

from hook.base.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.observe.hardware import AssignableCounters
    from hook.observe.snapshot import Inventory


def format_uncounted(seen: Inventory) -> list[str]:
    """The lines of `list`: none on most machines."""
    found = [it for it in (explain_unassigned(seen), explain_full(seen)) if it is not None]
    return ["", *(printable(f"{problem}; remedy: {remedy}") for problem, remedy in found)] if found else []


def explain_unassigned(seen: Inventory) -> tuple[str, str] | None:
    """Which memory traffic is not counted for want of a hardware counter, and the remedy; None: all is counted."""
    groups, counters = seen.unassigned, seen.assignable
    if not groups:
        return None
    found = f"memory traffic is not counted in {len(groups)} groups, which have no hardware counter: {groups[0]}"
    found += ", ..." if len(groups) > 1 else ""
    if counters is not None and not counters.on_mkdir:
        return found, f"echo 1 > {counters.directory}/mbm_assign_on_mkdir, then restart their pods"
    if counters is not None and 0 in counters.free.values():
        return found, _free_counters(counters)
    return found, "counters are free now: restart their pods"


def explain_full(seen: Inventory) -> tuple[str, str] | None:
    """Which ctrl_groups have no RMID left, where each has its own; None: all have some."""
    if seen.rmids is None or not seen.rmids.full:
        return None
    found = (
        f"no RMID is left in ctrl_group {', '.join(seen.rmids.full)}: each has {seen.rmids.each} (MPAM: the PMGs of "
    )
    return found + "its PARTID), one of them for itself", "use fewer pods in it, or remove groups of other tools"


def explain_shortage(counters: AssignableCounters) -> tuple[str, str] | None:
    """Why the next group would not be counted, or not reliably, and the remedy; None: it would be."""
    if not counters.enabled:
        found = "mbm_assign_mode is default: the CPU takes counters from groups between reads, and their use is lost"
        return found, f"at boot, before pods start: echo mbm_event > {counters.directory}/mbm_assign_mode"
    if not counters.on_mkdir:
        return "new groups get no hardware counter", f"echo 1 > {counters.directory}/mbm_assign_on_mkdir"
    if any(free < len(counters.events) for free in counters.free.values()):
        return f"{format_free(counters)}; the next group needs {len(counters.events)} in each", _free_counters(counters)
    return None


def format_free(counters: AssignableCounters) -> str:
    """How many counters are free."""
    domains = (f"{free} of {counters.limits.get(domain, '?')} (L3 {domain})" for domain, free in counters.free.items())
    return "free hardware counters: " + ", ".join(domains)


def _free_counters(counters: AssignableCounters) -> str:
    root = counters.directory.rpartition("/info/")[0]
    free = "; ".join(f"echo '{event}:*=_' > {root}/mbm_L3_assignments" for event in counters.events)
    return f"use fewer pods, or take counters from groups that do not need them, such as the root ctrl_group: {free}"
