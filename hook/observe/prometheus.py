"""The node as metrics: what each key used, and how the hook itself is, in Prometheus' text format and as JSON.

Source of the format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import chain

from hook import __version__
from hook.base import counters
from hook.base.counters import EVENTS, MILLION
from hook.base.errors import Reason
from hook.base.text import printable
from hook.host import files
from hook.observe.snapshot import plain_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

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
    "use_unknown": ("gauge", "1 for a use that cannot be known, and that therefore has no sample"),
    "keys": ("gauge", "Keys on record, by state; what an unreadable record is of is not known"),
    "members": ("gauge", "Containers that are members of a key"),
    "members_taken_from_others": ("gauge", "Members that were in a mon_group of somebody else before"),
    "rmids": ("gauge", "RMIDs that the machine has: the smallest of info/*/num_rmids"),
    "rmids_in_use": ("gauge", "RMIDs that groups take; ours are the mon_groups of keys"),
    "orphan_groups": ("gauge", "mon_groups with our prefix that neither a record nor a live member stands behind"),
    "unmonitored_containers": ("gauge", "Containers on record as not monitored, by reason"),
    "unhooked_containers": ("gauge", "Containers that run and were never hooked, as reconcile last found"),
    "unchecked_containers": ("gauge", "Containers without a record that reconcile could not ask a runtime about"),
    "hook_runs_total": ("counter", "Runs of the hook, by stage and result"),
    "mounted": ("gauge", "Whether resctrl is mounted and can monitor"),
    "build_info": ("gauge", "1, with the version of resctrl-mon-hook"),
}
_REASONS = tuple(value for name, value in vars(Reason).items() if name.isupper())


@dataclass(frozen=True)
class Family:
    """The samples of one metric, by their labels. Values are in millionths, as in `counters`."""

    name: str
    kind: str
    meaning: str
    samples: Values


def families(seen: Inventory) -> list[Family]:
    """Every metric that has samples, in the order of the tables."""
    used, unknown = _use(seen.keys)
    health = {"use_unknown": unknown, **_health(seen)}
    found = [_of_event(event, used.get(event, {})) for event in SERIES]
    found += [Family(PREFIX + name, *HEALTH[name], health.get(name, {})) for name in HEALTH]
    return [family for family in found if family.samples]


def names() -> list[str]:
    """What the metrics are called, all of them."""
    return [PREFIX + name for name in (*SERIES.values(), *HEALTH)]


def exposition(seen: Inventory) -> str:
    """The metrics in Prometheus' text format; the same node gives the same text."""
    return "".join(line + "\n" for family in families(seen) for line in _lines(family))


def document(seen: Inventory) -> dict[str, Any]:
    """The metrics as an object for JSON."""
    return {
        "metrics": [
            {
                "name": family.name,
                "type": family.kind,
                "help": family.meaning,
                "samples": [
                    {"labels": dict(labels), "value": plain_number(value)}
                    for labels, value in sorted(family.samples.items())
                ],
            }
            for family in families(seen)
        ]
    }


def write_textfile(path: str, text: str) -> None:
    """Replace a file that node_exporter may read at any time. Raises OSError; `path` is unchanged then.

    The temporary name does not end in .prom, so node_exporter ignores it.
    """
    directory, name = os.path.split(path)
    with files.replace(path, os.path.join(directory, f".{name}.{os.getpid()}.tmp")) as temporary:
        files.write_new(temporary, text.encode("ascii"), 0o644)  # readable by the exporter's own user


def _of_event(event: str, samples: Values) -> Family:
    kind = "gauge" if EVENTS[event].gauge else "counter"
    meaning = EVENTS[event].meaning
    return Family(PREFIX + SERIES[event], kind, f"{meaning[0].upper()}{meaning[1:]}, in {EVENTS[event].unit}", samples)


def _use(keys: Iterable[Key]) -> tuple[dict[str, Values], Values]:
    """What is known, by event and labels, and what is not.

    A key can have two groups of the same labels (the mount was elsewhere once): their sum is one series.
    """
    sums: dict[str, dict[Labels, int | None]] = {event: {} for event in SERIES}
    for key in keys:
        for group in key.groups:
            for counter, value in chain(group.use.items(), _gauges(group)):
                domain, _, event = counter.rpartition("/")
                if event in sums:
                    labels = _labels_of(key, group, domain)
                    former = sums[event].get(labels, 0)
                    sums[event][labels] = None if former is None or value is None else former + value
    known = {event: {at: value for at, value in of.items() if value is not None} for event, of in sums.items()}
    unknown = {(*at, ("event", event)): MILLION for event, of in sums.items() for at in of if of[at] is None}
    return known, unknown


def _gauges(group: Group) -> Iterator[tuple[str, int]]:
    """What means something by itself, of a group that is there."""
    for counter, text in group.now.items():
        event, value = counters.event_of(counter), counters.number(text)
        if event is not None and event.gauge and value is not None and not group.is_over:
            yield counter, value


def _labels_of(key: Key, group: Group, domain: str) -> Labels:
    state = key.state
    return (
        ("key", state.key),
        ("kind", state.kind),
        ("namespace", printable(state.pod_namespace or "")),
        ("pod", printable(state.pod_name or "")),
        ("ctrl_group", printable(group.record.ctrl_group)),
        ("domain", printable(domain)),
    )


def _health(seen: Inventory) -> dict[str, Values]:
    """How the hook is, by the names of HEALTH."""
    members = [member for key in seen.keys for member in key.state.members.values()]
    alive = sum(len(key.alive()) for key in seen.keys)
    counted = {"alive": alive, "dead": len(members) - alive}
    found: dict[str, Values] = {
        "keys": _by("state", _states(seen)),
        "members": _by("state", counted if seen.host_pids else {}),
        "members_taken_from_others": _one(sum(member.taken_from is not None for member in members)),
        "unmonitored_containers": _by("reason", _reasons(seen)),
        "hook_runs_total": {
            (("stage", printable(stage)), ("result", printable(result))): count * MILLION
            for (stage, result), count in seen.runs.items()
        },
        "mounted": _one(seen.rmids is not None),
        "build_info": {(("version", __version__),): MILLION},
    }
    if seen.unhooked is not None:
        found["unhooked_containers"] = _one(len(seen.unhooked.containers))
        found["unchecked_containers"] = _one(seen.unhooked.unchecked)
    if seen.rmids is not None:
        found["rmids"] = {} if seen.rmids.limit is None else _one(seen.rmids.limit)
        found["rmids_in_use"] = _by("owner", {"ours": seen.rmids.ours, "others": seen.rmids.others})
        found["orphan_groups"] = _one(len(seen.orphans)) if seen.host_pids else {}
    return found


def _states(seen: Inventory) -> dict[str, int]:
    counts = {"live": 0, "lingering": 0, "completed": 0, "recovering": 0, "unreadable": len(seen.unreadable)}
    for key in seen.keys:
        counts[key.condition if key.condition in counts else "live"] += 1  # a group that is missing is remade
    return counts


def _reasons(seen: Inventory) -> dict[str, int]:
    counts = dict.fromkeys(_REASONS, 0)
    for failure in seen.failures:
        if not failure.monitored:
            reason = printable(failure.reason)
            counts[reason] = counts.get(reason, 0) + 1
    return counts


def _one(value: int) -> Values:
    return {(): value * MILLION}


def _by(label: str, counts: dict[str, int]) -> Values:
    return {((label, name),): count * MILLION for name, count in counts.items()}


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.meaning}."
    yield f"# TYPE {family.name} {family.kind}"
    for labels, value in sorted(family.samples.items()):
        inside = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels)
        braced = "{" + inside + "}" if inside else ""
        yield f"{family.name}{braced} {counters.text_of(value)}"


def _escaped(text: str) -> str:
    """A label's value, which is printable already, between quotes."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
