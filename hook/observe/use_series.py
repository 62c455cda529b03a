# SPDX-License-Identifier: Apache-2.0
"""The use of keys, and of tasks that are in no key's group, as samples for Prometheus by event and labels.

Prometheus adds whatever a counter starts from, and takes each smaller sample for a new start. So a counter here never
counts a use twice: where a part of the use is unknown it starts again from 0, and what merely dips is held.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hook.base import counters
from hook.base.counters import EVENTS, MILLION
from hook.base.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hook.observe.hold import Former
    from hook.observe.node_counters import Uncharged
    from hook.observe.snapshot import Group, Key

    Labels = tuple[tuple[str, str], ...]
    Values = dict[Labels, int]
    Sums = dict[str, dict[Labels, "int | None"]]

PREFIX = "resctrl_mon_"
NODE = PREFIX + "node_"
"""Of what is charged to no pod."""
SERIES = {
    "core_energy": "core_energy_joules_total",
    "activity": "activity_farads_total",
    "mbm_total_bytes": "memory_bytes_total",
    "mbm_local_bytes": "memory_local_bytes_total",
    "llc_occupancy": "llc_occupancy_bytes",
    "stalls_llc_hit": "stalls_llc_hit_cycles_total",
    "stalls_llc_miss": "stalls_llc_miss_cycles_total",
    "c1_res": "c1_residency_cycles_total",
    "c6_res": "c6_residency_cycles_total",
    "unhalted_core_cycles": "unhalted_core_cycles_total",
    "unhalted_ref_cycles": "unhalted_ref_cycles_total",
    "uops_retired": "uops_retired_total",
}


@dataclass(frozen=True)
class Choice:
    """Which series are exported. `events`: these, by the kernel's names; None: all. `sum_domains`: one for all domains.

    A pod has a series for each event, domain and ctrl_group.
    """

    events: frozenset[str] | None = None
    sum_domains: bool = False

    def has(self, event: str) -> bool:
        return self.events is None or event in self.events


def sum_use(keys: Iterable[Key], choice: Choice, former: Former) -> tuple[dict[str, Values], Values]:
    """The use by event and labels, as far as it is known, and the uses that are unknown in part. In millionths.

    A key can have two groups with equal labels (after a change of the mount point): they are summed up.
    """
    sums: Sums = {}
    unknown: Values = {}
    ages: dict[Labels, float | None] = {}
    for key in keys:
        identity = _identify(key, former)
        for group in key.groups:
            place = (*identity, ("ctrl_group", printable(group.record.ctrl_group)))
            for counter, value in _list_samples(group, choice):
                domain, _, event = counter.rpartition("/")
                labels: Labels = place if choice.sum_domains else (*place, ("domain", printable(domain)))
                ages[labels] = key.age
                _add(sums, event, labels, value)
                if group.use.get(counter, 0) is None:
                    marked = (*labels, ("event", event))
                    unknown[marked] = MILLION
    for event, of in sums.items():
        for labels, value in [] if is_gauge(event) or not former.samples else of.items():
            in_part = (*labels, ("event", event)) in unknown or event not in EVENTS
            series = format_series(name_event(event), labels)
            of[labels] = former.hold(series, value, ages[labels], may_start_again=in_part)
    return _drop_unknown(sums), unknown


def sum_uncharged(uncharged: Uncharged, choice: Choice, former: Former) -> dict[str, Values]:
    """What tasks outside of all mon_groups used, by event and labels, in millionths."""
    sums: Sums = {}
    for ctrl_group, values in uncharged.items():
        place: Labels = (("ctrl_group", printable(ctrl_group)),)
        for counter, value in values.items():
            domain, _, event = counter.rpartition("/")
            if choice.has(event):
                labels = place if choice.sum_domains else (*place, ("domain", printable(domain)))
                _add(sums, event, labels, value)
    for event, of in sums.items():
        for labels, value in [] if is_gauge(event) else of.items():
            of[labels] = former.hold_difference(format_series(name_event(event, NODE), labels), value)
    return _drop_unknown(sums)


def _add(sums: Sums, event: str, labels: Labels, value: int | None) -> None:
    """Add a value; a sum with an unknown part is unknown."""
    of = sums.setdefault(event, {})
    others = of.get(labels, 0)
    of[labels] = None if others is None or value is None else others + value


def _drop_unknown(sums: Sums) -> dict[str, Values]:
    return {event: {at: value for at, value in of.items() if value is not None} for event, of in sums.items()}


def _list_samples(group: Group, choice: Choice) -> Iterator[tuple[str, int | None]]:
    """What is exported of a group, by counter; None: no sample."""
    for found in (list_counted(group, together=choice.sum_domains), _read_gauges(group), _list_unlisted(group)):
        for counter, value in found:
            if choice.has(counter.rpartition("/")[2]):
                yield counter, value


def list_counted(group: Group, *, together: bool = False) -> Iterator[tuple[str, int | None]]:
    """The cumulative counters of a group as Prometheus can add them up; None: no sample.

    Where earlier use is unknown in part, the use of the present incarnation: a counter that starts again has to start
    from 0, because Prometheus adds whatever it starts from. While that is unknown, too (the counter cannot be read, or
    ran backwards), a gap is right: any lower sample would be one more start. `together`: if one domain's counter starts
    again, those of the other domains do, because their sum has to start from 0.
    """
    own = counters.own_use(group.record, group.now)
    again = {counter.rpartition("/")[2] for counter, whole in group.use.items() if whole is None and together}
    for counter, whole in group.use.items():
        starts_again = whole is None or counter.rpartition("/")[2] in again
        yield counter, own[counter] if starts_again else whole


def _read_gauges(group: Group) -> Iterator[tuple[str, int]]:
    """The gauges of an existing group."""
    for counter, text in group.now.items():
        event, value = counters.event_of(counter), counters.number(text)
        if event is not None and event.gauge and value is not None and not group.is_over:
            yield counter, value


def _list_unlisted(group: Group) -> Iterator[tuple[str, int | None]]:
    """The counters of events that are not in EVENTS: the use of the present incarnation, if it is a number."""
    begin = group.record.begin or {}
    for counter, text in group.now.items():
        if counters.event_of(counter) is None and counter in begin:
            yield counter, counters.used(counter, begin[counter], text)


def _identify(key: Key, former: Former) -> Labels:
    """The labels of a key. `namespace`, `pod` and `container` are always there, empty if need be.

    Without them Prometheus would give the series those of the pod in which the exporter runs.
    """
    state = key.state
    name = _name_container(key, former) if state.kind == "container" and state.pod_name else ""
    kind = "uid" if state.kind == "pod" else f"{state.kind}_id" if state.pod_name else "key"
    return (
        ("namespace", printable(state.pod_namespace or "")),
        ("pod", printable(state.pod_name or "")),
        ("container", name),
        (kind, state.key),
    )


def _name_container(key: Key, former: Former) -> str:
    """The container's name in its pod. A key without members has it from the samples before: one series stays one."""
    names = (member.name for member in key.state.members.values() if member.name)
    name = next(names, None)
    return former.containers.get(key.state.key, "") if name is None else printable(name)


# --- How metrics and their series are named


def is_gauge(event: str) -> bool:
    """Whether a value means something by itself. An unknown event is taken for a counter, as most are."""
    return event in EVENTS and EVENTS[event].gauge


def name_event(event: str, prefix: str = PREFIX) -> str:
    """The metric of an event; an unknown one has the kernel's own name."""
    return prefix + (SERIES.get(event) or f"{re.sub('[^A-Za-z0-9_]', '_', event)}_total")


def describe_event(event: str) -> str:
    """What the metric of an event is, with its unit."""
    if event not in EVENTS:
        return f"Event {re.sub('[^A-Za-z0-9_]', '_', event)} of the kernel, in its own unit"
    meaning = EVENTS[event].meaning
    return f"{meaning[0].upper()}{meaning[1:]}, in {EVENTS[event].unit}"


def format_series(name: str, labels: Labels) -> str:
    """A series as the text format has it. The values of labels are printable."""
    inside = ",".join(f'{label}="{_escape(text)}"' for label, text in labels)
    return f"{name}{{{inside}}}" if inside else name


def _escape(text: str) -> str:
    """Escape a printable label value for quotes."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
