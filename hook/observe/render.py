"""What `list`, `show` and `top` print: an inventory as text, and as objects for JSON.

Texts that tenants can have written (names of pods, what a failure quotes) are printed as `printable` has them,
and in a table as one word, so that they are never more than one cell.
"""

from __future__ import annotations

from hook.base import counters, names, procfs
from hook.base.counters import EVENTS, MILLION
from hook.base.text import printable
from hook.observe.snapshot import plain_number, totals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from hook.base.models import Failure
    from hook.observe.rates import Rate, Rates
    from hook.observe.snapshot import Group, Inventory, Key, Total
    from hook.reconcile.reconcile import Outcome
    from hook.state.records import Unhooked, Unreadable

_LONGEST_WORD = 48
_NOTHING = "-"
_UNKNOWN = "?"
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


# --- list


def listing(seen: Inventory) -> list[str]:
    """The lines of `list`."""
    head = ("KEY", "POD", "STATE", "CTRL_GROUPS", "ALIVE", "DEAD", "AGE", "ENERGY", "MEMORY")
    lines = [_rmids(seen), *([] if seen.host_pids else [procfs.NOT_HOST_PIDS]), ""]
    lines += _table([head, *map(_row, seen.keys)], words=4)
    lines += [f"unreadable: {printable(f'{it.file}: {it.problem}')}" for it in _all_unreadable(seen)]
    if any(_is_partial(total) for key in seen.keys for total in totals(key.groups).values()):
        lines += ["", "*  a part of it is unknown, or was counted from nothing: see show KEY"]
    if seen.failures:
        lines += ["", "unmonitored, or not monitored as it was meant:"]
    lines += [line for failure in seen.failures for line in _failure(failure)]
    return lines + (_unhooked(seen.unhooked) if seen.unhooked is not None else [])


def _unhooked(seen: Unhooked) -> list[str]:
    names = seen.names()
    lines = ["", f"never hooked, as of {seen.since} (see doctor):"] if names else []
    lines += [f"  {name}" for name in names]
    if seen.unchecked:
        lines += ["", f"{seen.unchecked} containers without a record could not be checked, as of {seen.since}"]
    return lines


def listed(seen: Inventory) -> dict[str, Any]:
    """`list --json`."""
    rmids = seen.rmids
    return {
        "mounted": rmids is not None,
        "rmids": rmids and {"limit": rmids.limit, "ours": rmids.ours, "others": rmids.others},
        "keys": [_key(key) for key in seen.keys],
        "unreadable": [{"file": it.file, "problem": it.problem} for it in _all_unreadable(seen)],
        "unmonitored": [failure.model_dump() for failure in seen.failures],
        "unhooked": seen.unhooked and _unhooked_object(seen.unhooked),
    }


def _unhooked_object(seen: Unhooked) -> dict[str, Any]:
    containers = [{"container": container, **pod} for container, pod in sorted(seen.containers.items())]
    return {"since": seen.since, "unchecked": seen.unchecked, "containers": containers}


def _rmids(seen: Inventory) -> str:
    if seen.rmids is None:
        return "resctrl is not mounted, or cannot monitor"
    in_use = seen.rmids.ours + seen.rmids.others
    limit = _UNKNOWN if seen.rmids.limit is None else seen.rmids.limit
    orphans = f"; orphans: {len(seen.orphans)}" if seen.orphans else ""
    return f"RMIDs: {in_use} in use of {limit} ({seen.rmids.ours} ours, {seen.rmids.others} of others){orphans}"


def _row(key: Key) -> tuple[str, ...]:
    use = totals(key.groups)
    return (
        key.state.key,
        _pod(key),
        key.condition,
        _word(",".join(group.record.ctrl_group for group in key.groups)) or _NOTHING,
        *(_UNKNOWN if number is None else str(number) for number in _counts(key)),
        _age(key.age),
        _sum(use.get("core_energy"), "core_energy"),
        _sum(use.get("mbm_total_bytes"), "mbm_total_bytes"),
    )


def _counts(key: Key) -> tuple[int | None, int | None]:
    """How many members live, and how many are dead; None where that is not known of all."""
    if None in key.dead.values():
        return None, None
    return len(key.alive()), len(key.dead) - len(key.alive())


def _all_unreadable(seen: Inventory) -> list[Unreadable]:
    return [*seen.unreadable, *seen.unreadable_failures]


def _failure(failure: Failure) -> list[str]:
    """A line of what is wrong and when, and one for each thing that is known besides."""
    but = ", monitored all the same" if failure.monitored else ""
    head = f"{failure.container}: {failure.reason}: {failure.problem} ({failure.stage}, {failure.time or '?'}{but})"
    more = {"tried": failure.tried, "kernel": failure.kernel, "hint": failure.hint}
    return ["  " + printable(head)] + [f"    {name}: {printable(text)}" for name, text in more.items() if text]


# --- show


def story(key: Key, failures: Iterable[Failure]) -> list[str]:
    """The lines of `show`: the life of a key, its members, and each counter of each of its groups."""
    state = key.state
    facts = {
        "key": state.key,
        "kind": state.kind,
        "pod": _pod(key),
        "state": key.condition,
        "created": f"{state.created_at or _UNKNOWN} (age {_age(key.age)})",
        "completed": state.completed_at or _NOTHING,
        "generation": str(state.generation),
    }
    lines = [f"{name:<11} {printable(value)}" for name, value in facts.items()]
    lines += [line for container in state.members for line in _member(key, container)]
    lines += [line for group in key.groups for line in _group(group)]
    return lines + [line for failure in failures for line in ("", "failure:", *_failure(failure))]


def told(key: Key, failures: Iterable[Failure]) -> dict[str, Any]:
    """`show --json`: what `list --json` has of the key, and more."""
    members = {
        container: {**member.model_dump(), "alive": _alive(key, container)}
        for container, member in key.state.members.items()
    }
    return {
        **_key(key),
        "generation": key.state.generation,
        "members": members,
        "groups": [_group_object(group) for group in key.groups],
        "failures": [failure.model_dump() for failure in failures],
    }


def _member(key: Key, container: str) -> list[str]:
    member = key.state.members[container]
    life = {True: "alive", False: "dead", None: "alive or dead, /proc does not tell"}[_alive(key, container)]
    id_of = names.container_of(container)
    note = f"container {id_of} that still runs; another process has been given its ID" if id_of != container else None
    facts = {"former": note, "group": member.group, "cgroup": member.cgroup, "taken from": member.taken_from}
    head = f"member {container}: pid {member.pid}, starttime {member.starttime}, {life}"
    return ["", head] + [f"  {name:<10} {printable(text)}" for name, text in facts.items() if text]


def _alive(key: Key, container: str) -> bool | None:
    dead = key.dead[container]
    return None if dead is None else not dead


def _group(group: Group) -> list[str]:
    record = group.record
    being = "over" if group.is_over else "there" if group.exists else "missing"
    lines = ["", printable(f"ctrl_group {record.ctrl_group}: {record.path} ({being})")]
    if record.begin is None:
        lines.append("  no snapshot of its begin: what it used is not known")
    head = ("COUNTER", "UNIT", "BEGIN", "END" if group.is_over else "NOW", "BEFORE", "USE")
    rows = [_counter(group, counter) for counter in _counters(group)]
    return lines + ["  " + line for line in _table([head, *rows], words=2)] if rows else lines


def _counter(group: Group, counter: str) -> tuple[str, ...]:
    begin = (group.record.begin or {}).get(counter)
    mark = "*" if counters.starts_from_nothing(counter, begin) else ""
    event = counters.event_of(counter)
    use = _NOTHING
    if counter in group.use:
        value = group.use[counter]
        use = _UNKNOWN if value is None else counters.text_of(value) + mark
    texts = (begin, group.now.get(counter), group.record.before.get(counter))
    values = (_NOTHING if text is None else _word(text) for text in texts)
    return (_word(counter), event.unit if event else _UNKNOWN, *values, use)


def _counters(group: Group) -> list[str]:
    return sorted({**(group.record.begin or {}), **group.now, **group.record.before})


def _group_object(group: Group) -> dict[str, Any]:
    record = group.record
    return {
        "path": record.path,
        "ctrl_group": record.ctrl_group,
        "over": group.is_over,
        "exists": group.exists,
        "counters": {counter: _counter_object(group, counter) for counter in _counters(group)},
    }


def _counter_object(group: Group, counter: str) -> dict[str, Any]:
    begin = (group.record.begin or {}).get(counter)
    event = counters.event_of(counter)
    return {
        "begin": begin,
        "end" if group.is_over else "now": group.now.get(counter),
        "before": group.record.before.get(counter),
        "use": plain_number(group.use.get(counter)),
        "from_nothing": counters.starts_from_nothing(counter, begin),
        "unit": event.unit if event else None,
    }


# --- top


def ranking(rates: Rates) -> list[str]:
    """The lines of one table of `top`."""
    head = ("KEY", "POD", "WATTS", "MEMORY/S", "LOCAL/S", "CACHE")
    rows = [
        (
            rate.key.state.key,
            _pod(rate.key),
            _sum(rate.use.get("core_energy"), "core_energy", unit=" W"),
            _sum(rate.use.get("mbm_total_bytes"), "mbm_total_bytes"),
            _sum(rate.use.get("mbm_local_bytes"), "mbm_local_bytes"),
            _sum(rate.occupancy, "llc_occupancy"),
        )
        for rate in rates.keys
    ]
    return [f"{rates.time}  over {rates.seconds:.1f} s, {len(rows)} keys", "", *_table([head, *rows], words=2)]


def ranked(rates: Rates) -> dict[str, Any]:
    """One object of `top --json`."""
    return {"time": rates.time, "seconds": round(rates.seconds, 3), "keys": [_rate(rate) for rate in rates.keys]}


def _rate(rate: Rate) -> dict[str, Any]:
    sums = {
        "watts": rate.use.get("core_energy"),
        "memory_bytes_per_second": rate.use.get("mbm_total_bytes"),
        "memory_local_bytes_per_second": rate.use.get("mbm_local_bytes"),
        "llc_occupancy_bytes": rate.occupancy,
    }
    partial = sorted(name for name, total in sums.items() if total is not None and _is_partial(total))
    numbers = {name: None if total is None else plain_number(total.value) for name, total in sums.items()}
    return {**_identity(rate.key), **numbers, "partial": partial}


# --- what they share


def _identity(key: Key) -> dict[str, Any]:
    state = key.state
    return {"key": state.key, "kind": state.kind, "namespace": state.pod_namespace, "pod": state.pod_name}


def _key(key: Key) -> dict[str, Any]:
    state = key.state
    alive, dead = _counts(key)
    return {
        **_identity(key),
        "state": key.condition,
        "created_at": state.created_at or None,
        "completed_at": state.completed_at,
        "age_seconds": None if key.age is None else round(key.age, 3),
        "members_alive": alive,
        "members_dead": dead,
        "ctrl_groups": [group.record.ctrl_group for group in key.groups],
        "use": {event: _total(total, event) for event, total in totals(key.groups).items()},
    }


def _total(total: Total, event: str) -> dict[str, Any]:
    return {
        "value": plain_number(total.value),
        "unit": EVENTS[event].unit,
        "unknown": total.unknown,
        "from_nothing": total.from_nothing,
    }


def _pod(key: Key) -> str:
    namespace, name = key.state.pod_namespace, key.state.pod_name
    return _NOTHING if namespace is None and name is None else f"{_word(namespace)}/{_word(name)}"


def _word(text: str | None) -> str:
    """A text of whatever origin as one word of bounded length."""
    safe = printable(text or "").replace(" ", "\\x20")
    return safe if len(safe) <= _LONGEST_WORD else safe[:_LONGEST_WORD] + "..."


def _is_partial(total: Total) -> bool:
    return bool(total.unknown or total.from_nothing)


def _sum(total: Total | None, event: str, unit: str = "") -> str:
    """A sum for people: `-` nothing was kept, `?` nothing of it is known, `*` not all of it is."""
    if total is None:
        return _NOTHING
    if total.value is None:
        return _UNKNOWN
    value = total.value / MILLION
    text = _bytes(value) if EVENTS[event].unit == "bytes" else f"{value:.1f}{unit or ' J'}"
    return text + ("*" if _is_partial(total) else "")


def _bytes(value: float) -> str:
    power = 0
    while value >= 1023.95 and power < len(_BINARY) - 1:
        value /= 1024
        power += 1
    return f"{value:.1f} {_BINARY[power]}B" if power else f"{value:.0f} B"


def _age(seconds: float | None) -> str:
    if seconds is None:
        return _UNKNOWN
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def _table(rows: Sequence[Sequence[str]], words: int) -> list[str]:
    """Rows with their columns below each other, two blanks apart: the first `words` begin there, numbers end there."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for row in rows:
        left = [text.ljust(width) for text, width in zip(row[:words], widths)]
        right = [text.rjust(width) for text, width in zip(row[words:], widths[words:])]
        lines.append("  ".join(left + right).rstrip())
    return lines


# --- reconcile


def deeds(outcomes: list[Outcome], left: list[str]) -> list[str]:
    """What reconcile did, or is going to do, and what it left, a line each."""
    return [*(line for it in outcomes for line in _lines(it)), *(f"left: {line}" for line in left)]


def _lines(it: Outcome) -> list[str]:
    problem = [f"  not done: {it.problem}"] if it.problem is not None else []
    return [str(it.action), *problem, *([f"  {it.remark}"] if it.remark is not None else [])]


def done(outcomes: list[Outcome], left: list[str], *, dry_run: bool) -> dict[str, Any]:
    """The same for programs."""
    return {"dry_run": dry_run, "actions": [_deed(it) for it in outcomes], "left": left}


def _deed(it: Outcome) -> dict[str, Any]:
    names = {"action": it.action.verb, "key": it.action.key, "container": it.action.container, "path": it.action.path}
    return {
        **{name: value or None for name, value in names.items()},
        "why": it.action.why,
        "problem": it.problem,
        "remark": it.remark,
    }
