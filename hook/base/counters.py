# SPDX-License-Identifier: Apache-2.0
"""What the counters mean: the events of resctrl, and the arithmetic of use. Nothing here touches a file.

A counter is named `<domain>/<event>`, as it lies below mon_data; its value is text, as the kernel gave it. Numbers are
computed in millionths of their unit: AET's have six decimals, and whole numbers of that size stay exact.

Source: Documentation/filesystems/resctrl.rst ("RMID", "mon_data"), and for what is not in it the Intel AET event XML.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.base.models import MonGroup

MILLION = 10**6
UNKNOWN = "Unavailable"
"""In a `before`: a part of the use is unknown for good (MonGroup.known has the rest). The kernel's own word."""
_AET = "mon_PERF_PKG_"  # the domains of application energy telemetry: one for each package
_LONGEST = 30


class Event:
    """What an event counts. `gauge`: its value means something by itself; otherwise only differences do.

    `metric`: what its use is called in Prometheus, without our prefix.
    """

    __slots__ = ("gauge", "meaning", "metric", "unit")

    def __init__(self, unit: str, meaning: str, metric: str, *, gauge: bool = False) -> None:
        self.unit = unit
        self.meaning = meaning
        self.metric = metric
        self.gauge = gauge


EVENTS = {
    "llc_occupancy": Event("bytes", "last level cache that is occupied", "llc_occupancy_bytes", gauge=True),
    "mbm_total_bytes": Event("bytes", "memory traffic of the last level cache", "memory_bytes_total"),
    "mbm_local_bytes": Event(
        "bytes", "memory traffic of the last level cache to memory of its own node", "memory_local_bytes_total"
    ),
    "core_energy": Event("joules", "energy that cores used", "core_energy_joules_total"),
    "activity": Event(
        "farads",
        "dynamic capacitance that cores switched, energy without frequency and voltage",
        "activity_farads_total",
    ),
    "stalls_llc_hit": Event(
        "cycles", "core cycles in which loads that hit the last level cache stalled", "stalls_llc_hit_cycles_total"
    ),
    "stalls_llc_miss": Event(
        "cycles", "core cycles in which loads that missed the last level cache stalled", "stalls_llc_miss_cycles_total"
    ),
    "c1_res": Event("cycles", "cycles in core idle state C1", "c1_residency_cycles_total"),
    "c6_res": Event("cycles", "cycles in core idle state C6", "c6_residency_cycles_total"),
    "unhalted_core_cycles": Event("cycles", "core cycles in which something ran", "unhalted_core_cycles_total"),
    "unhalted_ref_cycles": Event("cycles", "reference cycles in which something ran", "unhalted_ref_cycles_total"),
    "uops_retired": Event("operations", "micro-operations that were completed", "uops_retired_total"),
}


def event_of(counter: str) -> Event | None:
    """The event of a counter; None for an unknown one, whose use is not computed."""
    return EVENTS.get(counter.rpartition("/")[2])


def is_cumulative(counter: str) -> bool:
    """Whether a counter's differences are what it means."""
    event = event_of(counter)
    return event is not None and not event.gauge


def number(text: str | None) -> int | None:
    """A counter's text in millionths; None for what is no number (`Unavailable`, `Error`, `Unassigned`, no file)."""
    if text is None or len(text) > _LONGEST:
        return None
    whole, _, fraction = text.strip().partition(".")
    if not (whole + fraction).isdecimal() or not whole or not (whole + fraction).isascii():
        return None
    return int(whole) * MILLION + int((fraction + "000000")[:6])


def text_of(value: int | None) -> str:
    """Millionths as a counter's text: decimals only if there are any."""
    if value is None:
        return UNKNOWN
    whole, fraction = divmod(value, MILLION)
    return f"{whole}.{fraction:06d}" if fraction else str(whole)


def starts_from_nothing(counter: str, begin: str | None) -> bool:
    """Whether the begin counts as zero though it is no number: the AET counters of an RMID that never had data."""
    return begin == UNKNOWN and counter.startswith(_AET)


def used(counter: str, begin: str | None, now: str | None) -> int | None:
    """What one incarnation used, in millionths: the end, or the live value, less the begin.

    None, which is unknown: one of the two is no number, or the counter ran backwards.
    """
    first = 0 if starts_from_nothing(counter, begin) else number(begin)
    last = number(now)
    return None if first is None or last is None or last < first else last - first


def lifetime(group: MonGroup, now: dict[str, str]) -> dict[str, int | None]:
    """What a key used in one of its ctrl_groups in all: earlier incarnations, and this one up to `now`.

    In millionths, for each cumulative counter that any of them had; None is unknown. So is that of a counter which came
    after the begin was read, when the CPUs of a domain came online.
    """
    found: dict[str, int | None] = {}
    for counter, own in own_use(group, now).items():
        before = number(group.before.get(counter, "0"))
        found[counter] = None if before is None or own is None else before + own
    return found


def at_least(group: MonGroup, now: dict[str, str]) -> dict[str, int | None]:
    """What is known of each of these uses: the sum of all incarnations whose use is known; None: no such one."""
    found: dict[str, int | None] = {}
    for counter, own in own_use(group, now).items():
        before = number(group.before.get(counter))
        parts = [own, number(group.known.get(counter)) if before is None else before]
        known = [part for part in parts if part is not None]
        found[counter] = sum(known) if known else None
    return found


def own_use(group: MonGroup, now: dict[str, str]) -> dict[str, int | None]:
    """What the present incarnation used, of the same counters as lifetime."""
    begin, now = (group.begin, now) if group.begin is not None else ({}, {})
    return {
        counter: used(counter, begin.get(counter), now.get(counter)) if counter in begin or counter in now else 0
        for counter in {**group.before, **begin, **now}
        if is_cumulative(counter)
    }
