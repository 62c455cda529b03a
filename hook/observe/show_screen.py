# SPDX-License-Identifier: Apache-2.0
"""The screen of `show`: one key, its use in all, its containers, its life; and with `-o wide` each counter."""

from __future__ import annotations

from hook.base import counters, names, procfs, system
from hook.base.counters import EVENTS
from hook.base.text import printable, who
from hook.observe.list_screen import format_failure
from hook.observe.snapshot import Total, sum_by_event
from hook.observe.table import (
    NOTHING,
    UNKNOWN,
    Screen,
    explain_marks,
    format_age,
    format_name,
    format_sum,
    lay_out,
    mark,
    numbers,
    to_word,
    unit_of,
    words,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from hook.base.models import Failure
    from hook.observe.snapshot import Group, Key


def format_key(key: Key, failures: Iterable[Failure], screen: Screen, *, is_wide: bool = False) -> list[str]:
    """The lines of `show`. `is_wide`: with the values of each counter, as the kernel gave them."""
    lines = [*_format_facts(key), *_format_sums(key, screen), *_format_members(key), *_format_life(key)]
    for group in key.groups:
        lines += _format_group(group, is_wide=is_wide)
    if is_wide:
        lines += explain_marks(_format_use(group, counter) for group in key.groups for counter in group.use)
    for failure in failures:
        lines += ["", "failure:", *("  " + line for line in format_failure(failure))]
    return lines


def _format_facts(key: Key) -> list[str]:
    state = key.state
    facts = {
        "key": state.key,
        "kind": state.kind,
        "pod" if state.kind == "pod" else "name": format_name(key),
        "state": key.condition,
        "age": format_age(key.age),
        "generation": str(state.generation),
        "late CPU": f"{state.late_cpu:.2f} s before its tasks were in its groups",
    }
    return [f"{name:<11} {printable(value)}" for name, value in facts.items()]


# --- Its use


def _format_sums(key: Key, screen: Screen) -> list[str]:
    """The sum of each event over all domains and ctrl_groups; of a gauge, its present value."""
    sums = {**sum_by_event(key.groups), **_add_gauges(key)}
    events = [event for event in EVENTS if event in sums]
    if not events:
        return []
    cells = [format_sum(sums[event], event) for event in events]
    columns = [words("EVENT", events), numbers("USE", cells), words("UNIT", [unit_of(event) for event in events])]
    return ["", *lay_out(columns, screen), *explain_marks(cells)]


def _add_gauges(key: Key) -> dict[str, Total]:
    found: dict[str, Total] = {}
    for group in key.groups:
        for counter, text in group.now.items():
            event, name = counters.event_of(counter), counter.rpartition("/")[2]
            if event is not None and event.gauge and not group.is_over:
                found[name] = found.get(name, Total()).add(counters.number(text))
    return found


# --- Its containers, and its life


def _format_members(key: Key) -> list[str]:
    lines = [] if not key.state.members else ["", "containers:"]
    for container, member in key.state.members.items():
        life = {True: "alive", False: "dead", None: "alive or dead is unknown in this pid namespace"}
        lines.append(f"  {_name_of(key, container)}: {life[key.is_alive(container)]}, pid {member.pid}")
        facts = {
            "ID": container,
            "earlier": "a new container has the same ID" if names.container_of(container) != container else None,
            "group": member.group,
            "cgroup": member.cgroup,
            "taken from": member.taken_from,
        }
        lines += [f"    {name:<10} {printable(text)}" for name, text in facts.items() if text]
    return lines


def _name_of(key: Key, container: str) -> str:
    name = key.state.members[container].name or key.names.get(container)
    return who(names.container_of(container), name=name)


def _format_life(key: Key) -> list[str]:
    """What happened when, as far as it is on record, the earliest first."""
    state = key.state
    events = [(state.created_at, "created")] if state.created_at else []
    for container, member in state.members.items():
        events.append((_format_time(member.starttime / procfs.TICKS), f"{_name_of(key, container)} started"))
    if state.lingering_since is not None:
        events.append((_format_time(state.lingering_since), "last container gone: lingering"))
    if state.completed_at:
        events.append((state.completed_at, "completed"))
    return ["", "life:", *(f"  {at}  {what}" for at, what in sorted(events))] if events else []


def _format_time(boottime: float) -> str:
    """A time on CLOCK_BOOTTIME in seconds, as a time of day: RFC 3339 in UTC."""
    return system.format_utc(system.unix_time() - system.boottime() + boottime)


# --- Its groups


def _format_group(group: Group, *, is_wide: bool) -> list[str]:
    record = group.record
    status = "over" if group.is_over else "there" if group.exists else "missing"
    lines = ["", printable(f"ctrl_group {record.ctrl_group}: {record.path} ({status})")]
    if record.begin is None:
        lines.append("  no initial counters: its use is unknown")
    listed = group.list_counters()
    if not (is_wide and listed):
        return lines
    begin = record.begin or {}
    texts = {
        "BEGIN": [begin.get(it) for it in listed],
        "END" if group.is_over else "NOW": [group.now.get(it) for it in listed],
        "BEFORE": [record.before.get(it) for it in listed],
    }
    events = [counters.event_of(it) for it in listed]
    columns = [
        words("COUNTER", [to_word(it) for it in listed]),
        words("UNIT", [event.unit if event else UNKNOWN for event in events]),
        *(numbers(head, [NOTHING if text is None else to_word(text) for text in of]) for head, of in texts.items()),
        numbers("USE", [_format_use(group, it) for it in listed]),
    ]
    return lines + ["  " + line for line in lay_out(columns, Screen())]


def _format_use(group: Group, counter: str) -> str:
    if counter not in group.use:
        return NOTHING
    known = group.known[counter]
    if known is None:
        return UNKNOWN
    from_nothing = counters.starts_from_nothing(counter, (group.record.begin or {}).get(counter))
    return mark(counters.text_of(known), at_least=group.use[counter] is None, from_nothing=from_nothing)
