# SPDX-License-Identifier: Apache-2.0
"""The output of `list`, `show` and `top`: a snapshot of the node as text and as objects for JSON.

Text that a tenant can write (pod names, text quoted in a failure) is escaped by `printable`, and in a table it is one
word, so that it never spans two cells.
"""

from __future__ import annotations

from hook.base import counters, names, procfs
from hook.base.counters import EVENTS
from hook.base.text import printable
from hook.observe.cells import (
    NOTHING,
    UNKNOWN,
    align,
    explain_marks,
    format_age,
    format_pod,
    format_sum,
    mark,
    to_word,
)
from hook.observe.snapshot import sum_by_event, to_number
from hook.observe.uncounted import format_uncounted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from hook.base.models import Failure
    from hook.observe.rates import Rate, Rates
    from hook.observe.snapshot import Group, Inventory, Key, Total
    from hook.state.records import Unhooked, Unreadable


# --- list


def format_list(seen: Inventory) -> list[str]:
    """The lines of `list`."""
    head = ("KEY", "POD", "STATE", "CTRL_GROUPS", "ALIVE", "DEAD", "AGE", "ENERGY", "MEMORY")
    lines = [_format_rmids(seen), *([] if seen.host_pids else [procfs.NOT_HOST_PIDS]), ""]
    rows = [*map(_format_row, seen.keys)]
    lines += align([head, *rows], words=4)
    lines += [f"unreadable: {printable(f'{it.file}: {it.problem}')}" for it in _list_unreadable(seen)]
    lines += explain_marks(cell for row in rows for cell in row[-2:])
    lines += format_uncounted(seen)
    if seen.failures:
        lines += ["", "not monitored, or monitored with problems:"]
    lines += [line for failure in seen.failures for line in _format_failure(failure)]
    return lines + (_format_unhooked(seen.unhooked) if seen.unhooked is not None else [])


def _format_unhooked(seen: Unhooked) -> list[str]:
    names = seen.names()
    lines = ["", f"without the hook, as of {seen.since} (see doctor):"] if names else []
    lines += [f"  {name}" for name in names]
    if seen.unchecked:
        lines += ["", f"could not check {seen.unchecked} containers without a record, as of {seen.since}"]
    return lines


def list_to_json(seen: Inventory) -> dict[str, Any]:
    """`list --json`."""
    rmids = seen.rmids
    return {
        "mounted": rmids is not None,
        "rmids": rmids and {"limit": rmids.limit, "ours": rmids.ours, "others": rmids.others},
        "keys": [_summary_to_json(key) for key in seen.keys],
        "unreadable": [{"file": it.file, "problem": it.problem} for it in _list_unreadable(seen)],
        "unmonitored": [failure.model_dump() for failure in seen.failures],
        "unhooked": seen.unhooked and _unhooked_to_json(seen.unhooked),
    }


def _unhooked_to_json(seen: Unhooked) -> dict[str, Any]:
    containers = [{"container": container, **pod} for container, pod in sorted(seen.containers.items())]
    return {"since": seen.since, "unchecked": seen.unchecked, "containers": containers}


def _format_rmids(seen: Inventory) -> str:
    if seen.rmids is None:
        return "resctrl is not mounted, or does not support monitoring"
    in_use = seen.rmids.ours + seen.rmids.others
    limit = UNKNOWN if seen.rmids.limit is None else seen.rmids.limit
    orphans = f"; orphans: {len(seen.orphans)}" if seen.orphans else ""
    return f"RMIDs: {in_use} in use of {limit} ({seen.rmids.ours} ours, {seen.rmids.others} of others){orphans}"


def _format_row(key: Key) -> tuple[str, ...]:
    use = sum_by_event(key.groups)
    return (
        key.state.key,
        format_pod(key),
        key.condition,
        to_word(",".join(group.record.ctrl_group for group in key.groups)) or NOTHING,
        *(UNKNOWN if number is None else str(number) for number in _count_members(key)),
        format_age(key.age),
        format_sum(use.get("core_energy"), "core_energy"),
        format_sum(use.get("mbm_total_bytes"), "mbm_total_bytes"),
    )


def _count_members(key: Key) -> tuple[int | None, int | None]:
    """The numbers of live and dead members; None if unknown for any member."""
    if None in key.dead.values():
        return None, None
    return len(key.list_alive()), len(key.dead) - len(key.list_alive())


def _list_unreadable(seen: Inventory) -> list[Unreadable]:
    return [*seen.unreadable, *seen.unreadable_failures]


def _format_failure(failure: Failure) -> list[str]:
    """A line with the problem and its time, and one for each further detail."""
    but = ", but monitored" if failure.monitored else ""
    head = f"{failure.container}: {failure.reason}: {failure.problem} ({failure.stage}, {failure.time or '?'}{but})"
    more = {"tried": failure.tried, "kernel": failure.kernel, "hint": failure.hint}
    return ["  " + printable(head)] + [f"    {name}: {printable(text)}" for name, text in more.items() if text]


# --- show


def format_key(key: Key, failures: Iterable[Failure]) -> list[str]:
    """The lines of `show`: the lifetime of a key, its members, and each counter of each group."""
    state = key.state
    facts = {
        "key": state.key,
        "kind": state.kind,
        "pod": format_pod(key),
        "state": key.condition,
        "created": f"{state.created_at or UNKNOWN} (age {format_age(key.age)})",
        "completed": state.completed_at or NOTHING,
        "generation": str(state.generation),
        "late CPU": f"{state.late_cpu:.2f} s before its tasks were in its groups",
    }
    lines = [f"{name:<11} {printable(value)}" for name, value in facts.items()]
    lines += [line for container in state.members for line in _format_member(key, container)]
    lines += [line for group in key.groups for line in _format_group(group)]
    lines += explain_marks(_format_use(group, counter) for group in key.groups for counter in group.use)
    return lines + [line for failure in failures for line in ("", "failure:", *_format_failure(failure))]


def key_to_json(key: Key, failures: Iterable[Failure]) -> dict[str, Any]:
    """`show --json`: the fields of `list --json`, and more."""
    members = {
        container: {**member.model_dump(), "alive": _is_alive(key, container)}
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


def _format_member(key: Key, container: str) -> list[str]:
    member = key.state.members[container]
    life = {True: "alive", False: "dead", None: "alive or dead is unknown in this pid namespace"}[
        _is_alive(key, container)
    ]
    id_of = names.container_of(container)
    note = (
        f"earlier container {id_of}, which still runs; a new container has the same ID" if id_of != container else None
    )
    facts = {"former": note, "group": member.group, "cgroup": member.cgroup, "taken from": member.taken_from}
    head = f"member {container}: pid {member.pid}, starttime {member.starttime}, {life}"
    return ["", head] + [f"  {name:<10} {printable(text)}" for name, text in facts.items() if text]


def _is_alive(key: Key, container: str) -> bool | None:
    dead = key.dead[container]
    return None if dead is None else not dead


def _format_group(group: Group) -> list[str]:
    record = group.record
    status = "over" if group.is_over else "there" if group.exists else "missing"
    lines = ["", printable(f"ctrl_group {record.ctrl_group}: {record.path} ({status})")]
    if record.begin is None:
        lines.append("  no initial counters: its use is unknown")
    head = ("COUNTER", "UNIT", "BEGIN", "END" if group.is_over else "NOW", "BEFORE", "USE")
    rows = [_format_counter(group, counter) for counter in _list_counters(group)]
    return lines + ["  " + line for line in align([head, *rows], words=2)] if rows else lines


def _format_counter(group: Group, counter: str) -> tuple[str, ...]:
    begin = (group.record.begin or {}).get(counter)
    event = counters.event_of(counter)
    texts = (begin, group.now.get(counter), group.record.before.get(counter))
    values = (NOTHING if text is None else to_word(text) for text in texts)
    return (to_word(counter), event.unit if event else UNKNOWN, *values, _format_use(group, counter))


def _format_use(group: Group, counter: str) -> str:
    if counter not in group.use:
        return NOTHING
    known = group.known[counter]
    if known is None:
        return UNKNOWN
    from_nothing = counters.starts_from_nothing(counter, (group.record.begin or {}).get(counter))
    return mark(counters.text_of(known), at_least=group.use[counter] is None, from_nothing=from_nothing)


def _list_counters(group: Group) -> list[str]:
    return sorted({**(group.record.begin or {}), **group.now, **group.record.before})


def _group_to_json(group: Group) -> dict[str, Any]:
    record = group.record
    return {
        "path": record.path,
        "ctrl_group": record.ctrl_group,
        "over": group.is_over,
        "exists": group.exists,
        "counters": {counter: _counter_to_json(group, counter) for counter in _list_counters(group)},
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


# --- top


def format_rates(rates: Rates) -> list[str]:
    """The lines of one table of `top`."""
    head = ("KEY", "POD", "WATTS", "MEMORY/S", "LOCAL/S", "CACHE")
    rows = [
        (
            rate.key.state.key,
            format_pod(rate.key),
            format_sum(rate.use.get("core_energy"), "core_energy", unit=" W"),
            format_sum(rate.use.get("mbm_total_bytes"), "mbm_total_bytes"),
            format_sum(rate.use.get("mbm_local_bytes"), "mbm_local_bytes"),
            format_sum(rate.occupancy, "llc_occupancy"),
        )
        for rate in rates.keys
    ]
    title = f"{rates.time}  over {rates.seconds:.1f} s, {len(rows)} keys"
    return [title, "", *align([head, *rows], words=2), *explain_marks(cell for row in rows for cell in row[2:])]


def rates_to_json(rates: Rates) -> dict[str, Any]:
    """One object of `top --json`."""
    return {
        "time": rates.time,
        "seconds": round(rates.seconds, 3),
        "keys": [_rate_to_json(rate) for rate in rates.keys],
    }


def _rate_to_json(rate: Rate) -> dict[str, Any]:
    sums = {
        "watts": rate.use.get("core_energy"),
        "memory_bytes_per_second": rate.use.get("mbm_total_bytes"),
        "memory_local_bytes_per_second": rate.use.get("mbm_local_bytes"),
        "llc_occupancy_bytes": rate.occupancy,
    }
    there = {name: total for name, total in sums.items() if total is not None}
    partial = sorted(name for name, total in there.items() if total.unknown or total.from_nothing)
    numbers = {name: to_number(there[name].value) if name in there else None for name in sums}
    at_least = sorted(name for name, total in there.items() if total.at_least)
    return {**_identity_to_json(rate.key), **numbers, "partial": partial, "at_least": at_least}


# --- shared


def _identity_to_json(key: Key) -> dict[str, Any]:
    state = key.state
    return {"key": state.key, "kind": state.kind, "namespace": state.pod_namespace, "pod": state.pod_name}


def _summary_to_json(key: Key) -> dict[str, Any]:
    state = key.state
    alive, dead = _count_members(key)
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
