# SPDX-License-Identifier: Apache-2.0
"""What `list`, `show` and `top` print with --json: a snapshot of the node as objects."""

from __future__ import annotations

from hook.base import counters
from hook.base.counters import EVENTS
from hook.observe.snapshot import sum_by_event, to_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from hook.base.models import Failure
    from hook.observe.rates import Rates
    from hook.observe.selection import Selection
    from hook.observe.snapshot import Group, Inventory, Key, Total
    from hook.state.records import Unhooked


def list_to_json(seen: Inventory, selection: Selection) -> dict[str, Any]:
    """`list --json`."""
    rmids = seen.rmids
    return {
        "mounted": rmids is not None,
        "rmids": rmids and {"limit": rmids.limit, "ours": rmids.ours, "others": rmids.others},
        "keys": [_summary_to_json(key) for key in selection.choose(seen.keys)[1]],
        "unreadable": [{"file": it.file, "problem": it.problem} for it in seen.list_unreadable()],
        "unmonitored": [failure.model_dump() for failure in seen.failures],
        "unhooked": seen.unhooked and _unhooked_to_json(seen.unhooked),
        "outside": dict(seen.reconciled.outside) if seen.reconciled is not None else {},
        "unassigned": seen.unassigned,
        "run_dir_full": seen.is_full,
        "unrecorded": seen.unrecorded,
    }


def _unhooked_to_json(seen: Unhooked) -> dict[str, Any]:
    containers = [{"container": container, **pod} for container, pod in sorted(seen.containers.items())]
    return {"since": seen.since, "unchecked": seen.unchecked, "containers": containers}


def key_to_json(key: Key, failures: Iterable[Failure]) -> dict[str, Any]:
    """`show --json`: the fields of `list --json`, and more."""
    members = {
        container: {**member.model_dump(), "alive": key.is_alive(container)}
        for container, member in key.state.members.items()
    }
    return {
        **_summary_to_json(key),
        "generation": key.state.generation,
        "late_cpu_seconds": key.state.late_cpu,
        "members": members,
        "groups": [_group_to_json(group) for group in key.groups],
        "failures": [failure.model_dump() for failure in failures],
    }


def _group_to_json(group: Group) -> dict[str, Any]:
    record = group.record
    return {
        "path": record.path,
        "ctrl_group": record.ctrl_group,
        "over": group.is_over,
        "exists": group.exists,
        "counters": {counter: _counter_to_json(group, counter) for counter in group.list_counters()},
    }


def _counter_to_json(group: Group, counter: str) -> dict[str, Any]:
    begin = (group.record.begin or {}).get(counter)
    event = counters.event_of(counter)
    return {
        "begin": begin,
        "end" if group.is_over else "now": group.now.get(counter),
        "before": group.record.before.get(counter),
        "use": to_number(group.use.get(counter)),
        "known": to_number(group.known.get(counter)),
        "from_nothing": counters.starts_from_nothing(counter, begin),
        "unit": event.unit if event else None,
    }


def rates_to_json(rates: Rates) -> dict[str, Any]:
    """One object of `top --json`."""
    return {
        "time": rates.time,
        "seconds": round(rates.seconds, 3),
        "node": _rates_to_json(rates.node),
        "no_pod": _rates_to_json(rates.rest),
        "keys": [{**_identity_to_json(rate.key), **_rates_to_json(rate.use)} for rate in rates.keys],
    }


def _rates_to_json(use: dict[str, Total]) -> dict[str, Any]:
    sums = {
        "watts": use.get("core_energy"),
        "memory_bytes_per_second": use.get("mbm_total_bytes"),
        "memory_local_bytes_per_second": use.get("mbm_local_bytes"),
        "llc_occupancy_bytes": use.get("llc_occupancy"),
    }
    there = {name: total for name, total in sums.items() if total is not None}
    partial = sorted(name for name, total in there.items() if total.unknown or total.from_nothing)
    numbers = {name: to_number(there[name].value) if name in there else None for name in sums}
    at_least = sorted(name for name, total in there.items() if total.at_least)
    return {**numbers, "partial": partial, "at_least": at_least}


def _identity_to_json(key: Key) -> dict[str, Any]:
    state = key.state
    pod = {"namespace": state.pod_namespace, "pod": state.pod_name}
    return {"key": state.key, "kind": state.kind, **pod, "name": key.name}


def _summary_to_json(key: Key) -> dict[str, Any]:
    state = key.state
    alive, dead = key.count_members()
    return {
        **_identity_to_json(key),
        "state": key.condition,
        "created_at": state.created_at or None,
        "completed_at": state.completed_at,
        "age_seconds": None if key.age is None else round(key.age, 3),
        "members_alive": alive,
        "members_dead": dead,
        "ctrl_groups": [group.record.ctrl_group for group in key.groups],
        "use": {event: _total_to_json(total, event) for event, total in sum_by_event(key.groups).items()},
    }


def _total_to_json(total: Total, event: str) -> dict[str, Any]:
    return {
        "value": to_number(total.value),
        "at_least": total.at_least,
        "unit": EVENTS[event].unit,
        "unknown": total.unknown,
        "from_nothing": total.from_nothing,
    }
