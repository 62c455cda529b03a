# SPDX-License-Identifier: Apache-2.0
"""The screen of `list`: keys and their use, RMIDs, and in short what is not monitored; `list unmonitored` has each.

Text that a tenant can write (pod names, text quoted in a failure) is escaped by `printable`, and in a table it is one
word, so that it never spans two cells.
"""

from __future__ import annotations

from hook.base import procfs
from hook.base.text import printable, who
from hook.observe.hardware import format_uncounted
from hook.observe.selection import STATES
from hook.observe.snapshot import add_up, sum_by_event
from hook.observe.table import (
    LEAST_NAME,
    NOTHING,
    SHORT_KEY,
    UNKNOWN,
    Column,
    explain_marks,
    format_age,
    format_name,
    format_sum,
    lay_out,
    numbers,
    to_word,
    unit_of,
    words,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hook.base.models import Failure
    from hook.observe.selection import Selection
    from hook.observe.snapshot import Inventory, Key
    from hook.observe.table import Screen
    from hook.state.records import Unhooked

_EVENTS = ("core_energy", "mbm_total_bytes")
_HEADS = {"core_energy": "ENERGY", "mbm_total_bytes": "MEMORY"}
_NAMED = 20  # pods, where a line may be as long as it likes
_WORDS = {condition: word for word, condition in STATES.items()}


def format_list(seen: Inventory, selection: Selection, screen: Screen) -> list[str]:
    """The lines of `list`."""
    lines = [_format_rmids(seen), *([] if seen.host_pids else [procfs.NOT_HOST_PIDS]), ""]
    found, shown = selection.choose(seen.keys)
    lines += _format_table(found, shown, screen)
    if len(shown) < len(seen.keys):
        lines += ["", f"{len(shown)} of {len(seen.keys)} shown"]
    lines += [f"unreadable: {printable(f'{it.file}: {it.problem}')}" for it in seen.list_unreadable()]
    lines += format_uncounted(seen)
    lines += _sum_up_failures(seen.failures, screen) + _sum_up_outside(seen, screen)
    missing = ["", *map(screen.red, format_missing(seen))] if seen.is_full or seen.unrecorded else []
    return lines + _sum_up_unhooked(seen.unhooked, screen) + missing


def format_unmonitored(seen: Inventory) -> list[str]:
    """The lines of `list unmonitored`: each container that is not monitored, and why."""
    failures = sorted(seen.failures, key=lambda it: (it.reason, _name_of(it)))
    lines = [line for failure in failures for line in format_failure(failure)]
    unhooked = seen.unhooked.names() if seen.unhooked is not None else []
    if seen.unhooked is not None and unhooked:
        lines += [f"without the hook, as of {seen.unhooked.since} (see doctor):", *(f"  {it}" for it in unhooked)]
    return lines + format_missing(seen) or ["none"]


def format_missing(seen: Inventory) -> list[str]:
    """A line for each reason why records of failures are missing, or may be."""
    lines = []
    if seen.is_full:
        remedy = "free space or inodes there (df -h /run, df -i /run)"
        lines.append(f"more containers may be unmonitored: the file system of the run directory is full; {remedy}")
    if seen.unrecorded:
        count = "1 failure" if seen.unrecorded == 1 else f"{seen.unrecorded} failures"
        lines.append(f"at least {count} since boot could not be recorded: see journalctl -t resctrl-mon-hook")
    return lines


def format_failure(failure: Failure) -> list[str]:
    """A line with the problem and its time, and one for each further detail."""
    but = ", but monitored" if failure.monitored else ""
    about = f"({failure.stage}, {failure.time or '?'}{but})"
    head = f"{_name_of(failure)}: {failure.reason}: {failure.problem} {about}"
    more = {"tried": failure.tried, "kernel": failure.kernel, "hint": failure.hint}
    return [printable(head)] + [f"  {name}: {printable(text)}" for name, text in more.items() if text]


def _name_of(failure: Failure) -> str:
    return who(failure.container, failure.namespace, failure.pod, failure.name)


# --- The table


def _format_table(found: Sequence[Key], shown: Sequence[Key], screen: Screen) -> list[str]:
    """The rows that are shown, and a sum of all that match."""
    use = [sum_by_event(key.groups) for key in shown]
    total = add_up(sum_by_event(key.groups) for key in found)
    has_total = len(found) > 1
    end, none = (["total"], [""]) if has_total else ([], [])
    ids = [key.state.key for key in shown] + none
    states = [key.condition for key in shown] + none
    ctrl_groups = [to_word(",".join(it.record.ctrl_group for it in key.groups)) or NOTHING for key in shown] + none
    columns = [
        words("NAME", [*map(format_name, shown), *end], least=LEAST_NAME),
        Column("KEY", ids, [key[:SHORT_KEY] for key in ids]),
        Column("STATE", states, [_WORDS.get(state, state) for state in states]),
        Column("CTRL_GROUPS", ctrl_groups, None),
        numbers("ALIVE", [*map(_format_members, shown), *none]),
        numbers("AGE", [format_age(key.age) for key in shown] + none),
    ]
    marked: list[str] = []
    for event in _EVENTS:
        cells = [format_sum(it.get(event), event) for it in use]
        cells += [format_sum(total.get(event), event)] if has_total else []
        columns.append(numbers(f"{_HEADS[event]}({unit_of(event)})", cells))
        marked += cells
    lines = lay_out(columns, screen)
    over = [screen.faint(line) if key.state.completed_at else line for line, key in zip(lines[1:], shown)]
    return [lines[0], *over, *lines[1 + len(shown) :], *explain_marks(marked)]


def _format_members(key: Key) -> str:
    """Live members of all."""
    alive, dead = key.count_members()
    return UNKNOWN if alive is None or dead is None else f"{alive}/{alive + dead}"


def _format_rmids(seen: Inventory) -> str:
    if seen.rmids is None:
        return "resctrl is not mounted, or does not support monitoring"
    in_use = seen.rmids.ours + seen.rmids.others
    limit = UNKNOWN if seen.rmids.limit is None else seen.rmids.limit
    orphans = f"; orphans: {len(seen.orphans)}" if seen.orphans else ""
    return f"RMIDs: {in_use} in use of {limit} ({seen.rmids.ours} ours, {seen.rmids.others} of others){orphans}"


# --- What is not monitored


def _sum_up_failures(failures: Iterable[Failure], screen: Screen) -> list[str]:
    """A line for each reason, with the number of containers and their names."""
    lines: list[str] = []
    for is_monitored, head in ((False, "not monitored"), (True, "monitored, with problems")):
        by_reason: dict[str, list[str]] = {}
        for failure in failures:
            if failure.monitored is is_monitored:
                by_reason.setdefault(to_word(failure.reason), []).append(_name_of(failure))
        if by_reason:
            lines += ["", screen.red(f"{head} (see list unmonitored):")]
            lines += [_name_some(f"  {reason}", sorted(names), screen) for reason, names in sorted(by_reason.items())]
    return lines


def _sum_up_outside(seen: Inventory, screen: Screen) -> list[str]:
    """What the last reconcile could not move into its group."""
    record = seen.reconciled
    if record is None or not record.outside_total:
        return []
    names = _name_members(seen)
    found = [f"{names.get(it, who(it))}: {number}" for it, number in record.outside.items()]
    threads = "1 thread" if record.outside_total == 1 else f"{record.outside_total} threads"
    head = screen.red("outside of their group, as of the last reconcile:")
    return ["", head, _name_some(f"  {threads}", found, screen)]


def _name_members(seen: Inventory) -> dict[str, str]:
    states = (key.state for key in seen.keys)
    return {
        container: who(container, state.pod_namespace, state.pod_name, member.name)
        for state in states
        for container, member in state.members.items()
    }


def _sum_up_unhooked(seen: Unhooked | None, screen: Screen) -> list[str]:
    lines: list[str] = []
    names = seen.names() if seen is not None else []
    if seen is not None and names:
        lines += ["", screen.red(f"without the hook, as of {seen.since} (see doctor, and list unmonitored):")]
        lines.append(_name_some("  never hooked", names, screen))
    if seen is not None and seen.unchecked:
        lines += ["", f"could not check {seen.unchecked} containers without a record, as of {seen.since}"]
    return lines


def _name_some(head: str, names: Sequence[str], screen: Screen) -> str:
    """`head: 236 containers: a, b, c, and 233 more`: as many names as fit."""
    count = "1 container" if len(names) == 1 else f"{len(names)} containers"
    for number in range(min(len(names), _NAMED), 0, -1):
        more = f", and {len(names) - number} more" if number < len(names) else ""
        line = f"{head}: {count}: {', '.join(names[:number])}{more}"
        if screen.width is None or len(line) <= screen.width:
            return line
    return f"{head}: {count}"
