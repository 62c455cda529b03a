# SPDX-License-Identifier: Apache-2.0
"""Prints a snapshot as metrics in Prometheus' text format or as JSON: the use of each key, and the hook's health.

Source of the format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import chain

from hook import __version__
from hook.base import counters
from hook.base.counters import EVENTS, MILLION
from hook.base.reasons import Reason
from hook.base.text import printable
from hook.host import files
from hook.observe.hold import Former
from hook.observe.snapshot import to_number
from hook.reconcile.plan import VERBS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from hook.base.models import ReconcileRecord
    from hook.observe.snapshot import Group, Inventory, Key

    Labels = tuple[tuple[str, str], ...]
    Values = dict[Labels, int]

PREFIX = "resctrl_mon_"
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
HEALTH = {
    "use_unknown": ("gauge", "1 for each use of which a part, or all, is unknown"),
    "keys": ("gauge", "Keys on record, by state; unreadable counts records whose key is unknown"),
    "members": ("gauge", "Containers that are members of a key"),
    "members_taken_from_others": ("gauge", "Members that were in a mon_group of another tool before"),
    "rmids": ("gauge", "RMIDs of the machine: the smallest of info/*/num_rmids"),
    "rmids_in_use": ("gauge", "RMIDs in use, one for each group; ours are the mon_groups of keys"),
    "orphan_groups": ("gauge", "mon_groups with our prefix, but without a record and a live member"),
    "unmonitored_containers": ("gauge", "Containers on record as not monitored, by reason"),
    "unhooked_containers": ("gauge", "Running containers that never got the hook, as of the last reconcile"),
    "unchecked_containers": ("gauge", "Containers without a record that the last reconcile could not check"),
    "hook_runs_total": ("counter", "Runs of the hook, by stage and result"),
    "reconcile_start_timestamp_seconds": ("gauge", "Unix time at which reconcile last started"),
    "reconcile_end_timestamp_seconds": ("gauge", "Unix time at which reconcile last ended without an error"),
    "reconcile_duration_seconds": ("gauge", "Duration of the reconcile that last ended"),
    "reconcile_undone": ("gauge", "What the reconcile that last ended left: failed actions, and problems of others"),
    "reconcile_actions_total": ("counter", "Actions of reconcile that were done, by verb"),
    "reconcile_failures_total": ("counter", "Actions of reconcile that failed, by verb"),
    "late_cpu_seconds_total": ("counter", "CPU time that tasks used before reconcile or watch moved them in"),
    "mounted": ("gauge", "Whether resctrl is mounted and supports monitoring"),
    "build_info": ("gauge", "1, with the version of resctrl-mon-hook"),
}
_REASONS = tuple(value for name, value in vars(Reason).items() if name.isupper())


@dataclass(frozen=True)
class Family:
    """The samples of one metric by their labels. Values are in millionths, as in `counters`."""

    name: str
    kind: str
    meaning: str
    samples: Values


def make_families(seen: Inventory, former: Former | None = None) -> list[Family]:
    """All metrics with samples, in the order of the tables. `former`: what was exported before."""
    used, unknown = _sum_use(seen.keys, former or Former())
    health = {"use_unknown": unknown, **_measure_health(seen)}
    found = [_make_event_family(event, used.get(event, {})) for event in SERIES]
    found += [Family(PREFIX + name, *HEALTH[name], health.get(name, {})) for name in HEALTH]
    return [family for family in found if family.samples]


def list_names() -> list[str]:
    """The names of all metrics."""
    return [PREFIX + name for name in (*SERIES.values(), *HEALTH)]


def format_text(seen: Inventory, former: Former | None = None) -> str:
    """The metrics in Prometheus' text format, in a stable order."""
    return "".join(line + "\n" for family in make_families(seen, former) for line in _format_family(family))


def to_json(seen: Inventory) -> dict[str, Any]:
    """The metrics as an object for JSON."""
    return {
        "metrics": [
            {
                "name": family.name,
                "type": family.kind,
                "help": family.meaning,
                "samples": [
                    {"labels": dict(labels), "value": to_number(value)}
                    for labels, value in sorted(family.samples.items())
                ],
            }
            for family in make_families(seen)
        ]
    }


def write_textfile(path: str, text: str) -> None:
    """Replace a file that node_exporter may read at any time. Raises OSError; `path` is unchanged then.

    The temporary name does not end in .prom, so node_exporter ignores it.
    """
    directory, name = os.path.split(path)
    with files.replace(path, os.path.join(directory, f".{name}.{os.getpid()}.tmp")) as temporary:
        files.write_new(temporary, text.encode("ascii"), 0o644)  # readable by the exporter's own user


def _make_event_family(event: str, samples: Values) -> Family:
    kind = "gauge" if EVENTS[event].gauge else "counter"
    meaning = EVENTS[event].meaning
    return Family(PREFIX + SERIES[event], kind, f"{meaning[0].upper()}{meaning[1:]}, in {EVENTS[event].unit}", samples)


def _sum_use(keys: Iterable[Key], former: Former) -> tuple[dict[str, Values], Values]:
    """The use by event and labels, as far as it is a counter, and the uses that are unknown in part.

    A key can have two groups with equal labels (after a change of the mount point): they are summed up.
    """
    sums: dict[str, dict[Labels, int | None]] = {event: {} for event in SERIES}
    unknown: Values = {}
    ages: dict[Labels, float | None] = {}
    for key in keys:
        for group in key.groups:
            for counter, value in chain(_list_counted(group), _read_gauges(group)):
                domain, _, event = counter.rpartition("/")
                if event in sums:
                    labels = _make_labels(key, group, domain)
                    ages[labels] = key.age
                    others = sums[event].get(labels, 0)
                    sums[event][labels] = None if others is None or value is None else others + value
                    if group.use.get(counter, 0) is None:
                        marked = (*labels, ("event", event))
                        unknown[marked] = MILLION
    if former.samples:
        _hold(sums, unknown, ages, former)
    known = {event: {at: value for at, value in of.items() if value is not None} for event, of in sums.items()}
    return known, unknown


def _hold(
    sums: dict[str, dict[Labels, int | None]], unknown: Values, ages: dict[Labels, float | None], former: Former
) -> None:
    """Let no counter dip, unless it starts again."""
    for event, of in sums.items():
        for labels, value in [] if EVENTS[event].gauge else of.items():
            in_part = (*labels, ("event", event)) in unknown
            series = _format_series(PREFIX + SERIES[event], labels)
            of[labels] = former.hold(series, value, ages[labels], may_start_again=in_part)


def _list_counted(group: Group) -> Iterator[tuple[str, int | None]]:
    """The cumulative counters of a group as Prometheus can add them up; None: no sample.

    Where earlier use is unknown in part, the use of the present incarnation: a counter that starts again has to start
    from 0, because Prometheus adds whatever it starts from. While that is unknown, too (the counter cannot be read, or
    ran backwards), a gap is right: any lower sample would be one more start.
    """
    own = counters.own_use(group.record, group.now)
    for counter, whole in group.use.items():
        yield counter, own[counter] if whole is None else whole


def _read_gauges(group: Group) -> Iterator[tuple[str, int]]:
    """The gauges of an existing group."""
    for counter, text in group.now.items():
        event, value = counters.event_of(counter), counters.number(text)
        if event is not None and event.gauge and value is not None and not group.is_over:
            yield counter, value


def _make_labels(key: Key, group: Group, domain: str) -> Labels:
    state = key.state
    return (
        ("key", state.key),
        ("kind", state.kind),
        ("namespace", printable(state.pod_namespace or "")),
        ("pod", printable(state.pod_name or "")),
        ("ctrl_group", printable(group.record.ctrl_group)),
        ("domain", printable(domain)),
    )


def _measure_health(seen: Inventory) -> dict[str, Values]:
    """The values of HEALTH by name."""
    members = [member for key in seen.keys for member in key.state.members.values()]
    alive = sum(len(key.list_alive()) for key in seen.keys)
    counted = {"alive": alive, "dead": len(members) - alive}
    found: dict[str, Values] = {
        "keys": _make_labelled("state", _count_states(seen)),
        "members": _make_labelled("state", counted if seen.host_pids else {}),
        "members_taken_from_others": _make_single(sum(member.taken_from is not None for member in members)),
        "unmonitored_containers": _make_labelled("reason", _count_reasons(seen)),
        "hook_runs_total": {
            (("stage", printable(stage)), ("result", printable(result))): count * MILLION
            for (stage, result), count in seen.runs.items()
        },
        "mounted": _make_single(seen.rmids is not None),
        "build_info": {(("version", __version__),): MILLION},
    }
    if seen.reconciled is not None:
        found.update(_measure_reconcile(seen.reconciled))
    if seen.unhooked is not None:
        found["unhooked_containers"] = _make_single(len(seen.unhooked.containers))
        found["unchecked_containers"] = _make_single(seen.unhooked.unchecked)
    if seen.rmids is not None:
        found["rmids"] = {} if seen.rmids.limit is None else _make_single(seen.rmids.limit)
        found["rmids_in_use"] = _make_labelled("owner", {"ours": seen.rmids.ours, "others": seen.rmids.others})
        found["orphan_groups"] = _make_single(len(seen.orphans)) if seen.host_pids else {}
    return found


def _measure_reconcile(record: ReconcileRecord) -> dict[str, Values]:
    every = dict.fromkeys(VERBS, 0)
    found = {
        "reconcile_undone": _make_labelled("kind", {"failed": record.failed, "left": record.left}),
        "reconcile_actions_total": _make_labelled("verb", {**every, **record.actions}),
        "reconcile_failures_total": _make_labelled("verb", {**every, **record.failures}),
    }
    numbers = {
        "reconcile_start_timestamp_seconds": record.started_at,
        "reconcile_end_timestamp_seconds": record.ended_at,
        "reconcile_duration_seconds": record.seconds if record.ended_at is not None else None,
        "late_cpu_seconds_total": record.late_cpu,
    }
    return {**found, **{name: {(): round(it * MILLION)} for name, it in numbers.items() if it is not None}}


def _count_states(seen: Inventory) -> dict[str, int]:
    counts = {"live": 0, "lingering": 0, "completed": 0, "recovering": 0, "unreadable": len(seen.unreadable)}
    for key in seen.keys:
        counts[key.condition if key.condition in counts else "live"] += 1  # a missing group is made again
    return counts


def _count_reasons(seen: Inventory) -> dict[str, int]:
    counts = dict.fromkeys(_REASONS, 0)
    for failure in seen.failures:
        if not failure.monitored:
            reason = printable(failure.reason)
            counts[reason] = counts.get(reason, 0) + 1
    return counts


def _make_single(value: int) -> Values:
    return {(): value * MILLION}


def _make_labelled(label: str, counts: dict[str, int]) -> Values:
    return {((label, printable(name)),): count * MILLION for name, count in counts.items()}


def _format_family(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.meaning}."
    yield f"# TYPE {family.name} {family.kind}"
    for labels, value in sorted(family.samples.items()):
        yield f"{_format_series(family.name, labels)} {counters.text_of(value)}"


def _format_series(name: str, labels: Labels) -> str:
    inside = ",".join(f'{label}="{_escape(text)}"' for label, text in labels)
    return f"{name}{{{inside}}}" if inside else name


def _escape(text: str) -> str:
    """Escape a printable label value for quotes."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
