# SPDX-License-Identifier: Apache-2.0
"""Formats the output of `list`, `show` and `top`: lines for people, and objects for JSON.

`printable` escapes the text that a tenant can write (names of pods, text quoted in a failure). In a
table such a text is one word, so it never spans two cells.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hook import counters, formats, host, names, show, system
from hook.counters import MILLION
from hook.models import Failure
from hook.node import paths
from hook.node.models import UnhookedContainer
from hook.node.records import name_unhooked
from hook.show import NOTHING, Column, Screen, lay_out, numbers, snapshot, to_word
from hook.show.findings import list_findings, list_missing, name_failed
from hook.show.snapshot import (
    EVENTS,
    Group,
    Inventory,
    KeyUse,
    Rates,
    Rmids,
    SeenKey,
    Total,
    Uses,
    to_number,
)
from hook.words import format_count, printable, who

STATES = ("live", "taken", "missing", "recovering", "lingering", "completed")
"""SeenKey.condition, in the order in which keys are shown: running ones first."""
ORDERS = {"energy": "core_energy", "traffic": "mbm_total_bytes", "cache": "llc_occupancy"}
"""The event by which --sort sorts, if not by age or name."""
LIST_HEADS = {"core_energy": "ENERGY(J)", "mbm_total_bytes": "TRAFFIC(B)"}
"""The columns of use in `list` and `history`, by event."""
_TOP_HEADS = {  # in the table, and in JSON
    "core_energy": ("POWER(W)", "watts"),
    "mbm_total_bytes": ("TRAFFIC(B/s)", "traffic_bytes_per_second"),
    "mbm_local_bytes": ("LOCAL(B/s)", "traffic_local_bytes_per_second"),
    "llc_occupancy": ("CACHE(B)", "llc_occupancy_bytes"),
}
# Around the keys of `top`: title, heads, the node, no pod, the legend of marks, the cursor's.
_OTHER_LINES = 9
# Of these, the lines of text, which may wrap on a terminal of fewer columns.
_TEXTS, _TEXT_WIDTH = 3, 50
_UNKNOWN = "?"
_SHORT_KEY = 8  # digits of a UID or an ID on a terminal; another key has twice as many characters
_AT_LEAST = ">="
_FROM_NOTHING = "*"
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


# --- list


def select_keys(
    keys: Iterable[SeenKey], namespaces: Sequence[str], states: Sequence[str], sort: str
) -> list[KeyUse]:
    """Choose the keys of these namespaces and states, or all, and sort them, with their use."""
    of_state = (key for key in keys if key.condition in (states or STATES))
    selected = (key for key in of_state if not namespaces or key.state.pod_namespace in namespaces)
    rows = ((key, snapshot.sum_key(key)) for key in selected)
    return sorted(rows, key=lambda row: (STATES.index(row[0].condition), *_rank(row, sort)))


def _rank(row: KeyUse, sort: str) -> tuple[Any, ...]:
    """Return what sorts a key, as `--sort` says."""
    key, use = row
    name = key.title, key.state.key
    if sort == "age":
        return (key.age if key.age is not None else float("inf"), *name)
    return name if sort == "name" else (*rank_use(use, sort), *name)


def rank_use(use: Uses, sort: str) -> tuple[int, int]:
    """Return what sorts a use, of which the most comes first.

    An equal energy is often no energy at all, on a CPU without AET: then the traffic decides.
    """
    most, second = (use.get(event, Total()).known for event in (ORDERS[sort], ORDERS["traffic"]))
    return -most, -second


def format_list(answer: dict[str, Any], screen: Screen) -> list[str]:
    """Format the object of `list --json`: RMIDs, keys, their total, and what is wrong."""
    keys = answer["keys"]
    ctrl_groups = [to_word(",".join(key["ctrl_groups"])) or NOTHING for key in keys]
    labels = [",".join(map(to_word, map("=".join, key["labels"].items()))) for key in keys]
    columns = [
        Column("STATE", [key["state"] for key in keys]),
        *([Column("CTRL_GROUPS", ctrl_groups)] if screen.width is None else []),
        *(
            [Column("LABELS", [text or NOTHING for text in labels])]
            if screen.width is None and any(labels)
            else []
        ),
        numbers("ALIVE", [_format_members(key) for key in keys]),
        numbers("AGE", [format_age(key["age_seconds"]) for key in keys]),
    ]
    rows = [(key["title"], key["key"], _read_uses(key["use"])) for key in keys]
    if answer["matching"] > 1:
        rows.append(("total", "", _read_uses(answer["total"])))
    lines = [
        _format_rmids(answer),
        *([] if answer["host_namespaces"] else [host.NOT_HOST_NAMESPACES]),
        "",
    ]
    lines += _lay_out_keys(rows, columns, LIST_HEADS, screen)
    if len(keys) < answer["on_record"]:
        lines += ["", f"{len(keys)} of {answer['on_record']} shown"]
    problems = [printable(problem) for problem in answer["problems"]]
    return [*lines, "", *problems] if problems else lines


def format_unmonitored(answer: dict[str, Any]) -> list[str]:
    """Format the object of `list --json` as `list unmonitored`: which containers, and why."""
    failures = sorted(
        map(Failure.model_validate, answer["unmonitored"]),
        key=lambda each: (each.reason, name_failed(each)),
    )
    lines = [line for failure in failures for line in _format_failure(failure)]
    unhooked = answer["unhooked"]
    if unhooked is not None:
        containers = {
            row["container"]: UnhookedContainer.model_validate(row)
            for row in unhooked["containers"]
        }
        why = f"without the hook, as of {unhooked['since']}"
        lines += [f"{name}: {why}" for name in name_unhooked(containers)]
    missing = list_missing(is_full=answer["run_dir_full"], unrecorded=answer["unrecorded"])
    return [*lines, *(finding.found for finding in missing)] or ["none"]


def _format_failure(failure: Failure) -> list[str]:
    """Format a line with the problem and its time, and one for each further detail."""
    but = ", but monitored" if failure.monitored else ""
    about = f"({failure.stage}, {failure.time or '?'}{but})"
    head = f"{name_failed(failure)}: {failure.reason}: {failure.problem} {about}"
    more = {"tried": failure.tried, "kernel": failure.kernel, "hint": failure.hint}
    return [printable(head)] + [
        f"  {name}: {printable(text)}" for name, text in more.items() if text
    ]


def _format_rmids(answer: dict[str, Any]) -> str:
    if answer["rmids"] is None:
        return "resctrl is not mounted, or does not support monitoring"
    orphans = len(answer["orphans"])
    return f"RMIDs: {Rmids(**answer['rmids'])}" + (f"; orphans: {orphans}" if orphans else "")


def _lay_out_keys(
    rows: Sequence[tuple[str, str, Uses]],
    columns: Sequence[Column],
    heads: dict[str, str],
    screen: Screen,
) -> list[str]:
    """Lay out a table of keys or sums: their names, keys, these columns, and their use.

    A terminal gets short keys, and none that is the name, or in its place,
    so that a row has one without this column.
    """
    titles, keys = [title for title, _, _ in rows], [key for _, key, _ in rows]
    if screen.width is not None:
        short = [*map(_shorten_key, keys)]
        titles = [key if title == NOTHING else title for title, key in zip(titles, short)]
        keys = ["" if title in (key, cut) else cut for title, key, cut in zip(titles, keys, short)]
    first = [Column("NAME", titles), Column("KEY", keys)]
    return lay_out_uses([*first, *columns], [use for *_, use in rows], heads, screen)


def _shorten_key(key: str) -> str:
    """Shorten a key: a UID's 32 digits, or more, to the first ones,
    and another text to both of its ends.
    """
    is_random = len(key) >= 32 and names.is_hex(key.replace("-", ""))
    return key[:_SHORT_KEY] if is_random else show.cut_name(key, 2 * _SHORT_KEY)


def lay_out_uses(
    columns: Sequence[Column], uses: Sequence[Uses], heads: dict[str, str], screen: Screen
) -> list[str]:
    """Lay out a table of these columns and of use (`heads` by event),
    and the legend of its marks.
    """
    sums = [
        numbers(head, [format_sum(use.get(event), event) for use in uses])
        for event, head in heads.items()
    ]
    marks = explain_marks(use[event] for use in uses for event in heads if event in use)
    return [*lay_out([*columns, *sums], screen), *marks]


def _format_members(key: dict[str, Any]) -> str:
    """Format the number of live members and of all, `2/3`, or `?` if that is unknown."""
    alive = key["members_alive"]
    return _UNKNOWN if alive is None else f"{alive}/{alive + key['members_dead']}"


def _read_uses(use: dict[str, dict[str, Any]]) -> Uses:
    """Read the totals of a use of JSON."""
    return {
        event: _to_total(row, row["value"], in_part=row["unknown"] > 0)
        for event, row in use.items()
    }


# --- show


def format_key(answer: dict[str, Any]) -> list[str]:
    """Format the object of `show --json`: a key, its total use, its containers,
    and each counter's values.
    """
    lingering, file = answer["lingering_since"], answer["history_file"]
    facts = {
        "key": answer["key"],
        "kind": answer["kind"],
        "pod" if answer["kind"] == "pod" else "name": answer["title"],
        **{f"label {name}": text for name, text in answer["labels"].items()},
        "state": answer["state"],
        "age": format_age(answer["age_seconds"]),
        "created": answer["created_at"],
        "completed": answer["completed_at"],
        "lingering": lingering and f"since {lingering}",
        "late CPU": f"{answer['late_cpu_seconds']:.2f} s before its tasks were in its groups",
        "history": file and format_command(file, answer["key"]),
    }
    lines = [f"{name:<11} {printable(value)}" for name, value in facts.items() if value]
    use = answer["use"]
    if events := [event for event in EVENTS if event in use]:  # over all domains and ctrl_groups
        totals = [*map(_read_uses(use).__getitem__, events)]
        columns = [
            Column("EVENT", events),
            numbers("USE", list(map(format_sum, totals, events))),
            Column("UNIT", [use[event]["unit"] for event in events]),
        ]
        lines += ["", *lay_out(columns, Screen()), *explain_marks(totals)]
    for container, member in answer["members"].items():
        lines += ["", *_format_member(container, member)]
    for group in answer["groups"]:
        lines += ["", *_format_group(group)]
    lines += explain_marks(
        total for group in answer["groups"] for total in _list_totals(group).values()
    )
    for failure in answer["failures"]:
        lines += [
            "",
            "failure:",
            *("  " + line for line in _format_failure(Failure.model_validate(failure))),
        ]
    return lines


def _to_total(row: dict[str, Any], value: float | None, *, in_part: bool) -> Total:
    """Return the total of a row of JSON."""
    millionths = None if value is None else round(value * MILLION)
    return snapshot.make_total(millionths, in_part=in_part, from_nothing=row["from_nothing"] > 0)


def format_command(path: str, name: str) -> str:
    """Format the command that shows a job in a file of the history."""
    return shlex.join(
        [paths.NAME, "history", name, *([] if path == paths.HISTORY else [f"--history={path}"])]
    )


def _format_member(container: str, member: dict[str, Any]) -> list[str]:
    states = {True: "alive", False: "dead", None: "alive or dead is unknown in this namespace"}
    facts = {
        "ID": container,
        "earlier": "a new container has the same ID"
        if names.get_container_id(container) != container
        else None,
        "group": member["group"],
        "cgroup": member["cgroup"],
        "taken from": member["taken_from"],
        "taken by": member["taken_by"],
    }
    name = who(names.get_container_id(container), name=member["name"])
    head = (
        f"container {name}: {states[member['alive']]}, pid {member['pid']}, started "
        f"{member['started_at']}"
    )
    return [head, *(f"  {name:<10} {printable(text)}" for name, text in facts.items() if text)]


def _list_totals(group: dict[str, Any]) -> dict[str, Total]:
    """List the use of the cumulative counters of a group."""
    cumulative = (
        (name, row) for name, row in group["counters"].items() if counters.is_cumulative(name)
    )
    return {
        name: _to_total(row, row["known"], in_part=row["use"] is None) for name, row in cumulative
    }


def _format_group(group: dict[str, Any]) -> list[str]:
    status = "over" if group["over"] else "there" if group["exists"] else "missing"
    unknown = "" if group["has_begin"] else "; no initial counters: its use is unknown"
    head = printable(f"ctrl_group {group['ctrl_group']}: {group['path']} ({status}{unknown})")
    counted, totals = group["counters"], _list_totals(group)
    if not counted:
        return [head]
    rows, last = [*counted.values()], "end" if group["over"] else "now"
    columns = [
        Column("  COUNTER", ["  " + to_word(counter) for counter in counted]),
        Column("UNIT", [row["unit"] or _UNKNOWN for row in rows]),
        *(
            numbers(name.upper(), [to_word(row[name] or NOTHING) for row in rows])
            for name in ("begin", last, "before")
        ),
        numbers(
            "USE",
            [format_total(totals.get(counter), counters.format_number) for counter in counted],
        ),
    ]
    return [head, *lay_out(columns, Screen())]


# --- top


def format_rates(answer: dict[str, Any], screen: Screen) -> list[str]:
    """Format the object of `top --json`: the node, the tasks in no pod, and keys that fit."""
    keys = answer["keys"]
    others = _OTHER_LINES + _TEXTS * (screen.width is not None and screen.width < _TEXT_WIDTH)
    shown = keys if screen.height is None else keys[: max(1, screen.height - others)]
    of_all = f"{len(shown)} of " * (len(shown) < len(keys)) + format_count(len(keys), "key")
    heads = {event: head for event, (head, _) in _TOP_HEADS.items()}
    rows = [
        ("node", "", _read_speeds(answer["node"])),
        ("no pod", "", _read_speeds(answer["no_pod"])),
    ]
    rows += [(key["title"], key["key"], _read_speeds(key)) for key in shown]
    title = f"{answer['time']}  over {answer['seconds']:.1f} s, {of_all}"
    return [title, "", *_lay_out_keys(rows, [], heads, screen)]


def _read_speeds(row: dict[str, Any]) -> Uses:
    """Read the totals of a row of `top --json`; an event without a counter has none."""
    speeds = {}
    for event, (_, name) in _TOP_HEADS.items():
        if row[name] is not None or name in row["partial"]:
            marks = {"from_nothing": name in row["from_nothing"]}
            speeds[event] = _to_total(marks, row[name], in_part=name in row["at_least"])
    return speeds


# --- The same with --json


def list_to_json(
    node: Inventory, selected: Sequence[KeyUse], limit: int | None = None
) -> dict[str, Any]:
    """Make the object of `list --json`, with at most `limit` of the selected keys."""
    rmids, unhooked, reconciled = node.rmids, node.unhooked, node.reconciled
    return {
        "mounted": rmids is not None,
        "host_namespaces": node.host_pids,
        "rmids": rmids and rmids._asdict(),
        "orphans": sorted(node.orphans),
        "keys": [
            {**_describe_key(key), "use": _uses_to_json(use)} for key, use in selected[:limit]
        ],
        "matching": len(selected),
        "on_record": len(node.keys),
        "total": _uses_to_json(snapshot.sum_uses(use for _, use in selected)),
        "problems": [finding.found for finding in list_findings(node)],
        "unreadable": [
            {"file": broken.file, "problem": broken.problem} for broken in node.unreadable
        ],
        "unmonitored": [failure_to_json(failure) for failure in node.failures],
        "unhooked": unhooked
        and {
            "since": unhooked.since,
            "unchecked": unhooked.unchecked,
            "containers": [
                {"container": name, **dict(pod)}
                for name, pod in sorted(unhooked.containers.items())
            ],
        },
        "outside": dict(reconciled.outside) if reconciled is not None else {},
        "elsewhere": dict(reconciled.elsewhere) if reconciled is not None else {},
        "unassigned": node.unassigned,
        "run_dir_full": node.is_full,
        "unrecorded": node.unrecorded,
        "history": {
            "owed": [waiting._asdict() for waiting in node.list_owed()],
            "dropped": node.dropped_lines,
        },
        "dropped_snapshots": node.dropped_snapshots,
    }


def failure_to_json(failure: Failure) -> dict[str, Any]:
    """Make the JSON of a failure: its record, with a job's labels called as in that of a key."""
    record = failure.model_dump()
    labels = record.pop("job_labels")
    return {**record, "labels": labels}


def key_to_json(key: SeenKey, failures: Iterable[Failure]) -> dict[str, Any]:
    """Make the object of `show --json`, which has the fields of `list --json` and more."""
    state, booted = key.state, system.unix_time() - system.boottime()
    has_line = state.completed_at is not None and not state.owed
    members = {
        container: {
            **member.model_dump(),
            "started_at": formats.format_utc(booted + member.starttime / system.TICKS),
            "alive": key.alive[container],
            "taken_by": key.taken.get(container),
        }
        for container, member in state.members.items()
    }
    groups = [
        {
            "path": group.record.path,
            "ctrl_group": group.record.ctrl_group,
            "over": group.has_ended,
            "exists": group.exists,
            "has_begin": group.record.begin is not None,
            "counters": {
                counter: _counter_to_json(group, counter) for counter in group.list_counters()
            },
        }
        for group in key.groups
    ]
    since = state.lingering_since
    return {
        **_describe_key(key),
        "lingering_since": None if since is None else formats.format_utc(booted + since),
        "history_file": (has_line and state.history_file) or None,
        "use": _uses_to_json(snapshot.sum_key(key, has_gauges=True)),
        "late_cpu_seconds": state.late_cpu,
        "members": members,
        "groups": groups,
        "failures": [failure_to_json(failure) for failure in failures],
    }


def _counter_to_json(group: Group, counter: str) -> dict[str, Any]:
    total, event = group.totals.get(counter, Total()), EVENTS.get(snapshot.get_event(counter))
    # Of a level no record has a value: Resctrl.counters.
    is_on_record = event is None or not event.gauge
    return {
        "begin": group.begin.get(counter) if is_on_record else None,
        "end" if group.has_ended else "now": group.now.get(counter)
        if is_on_record or not group.has_ended
        else None,
        # Of counters.EARLIER.
        "before": (group.record.before.get(counter) or "").partition(" ")[0] or None,
        "use": None if total.unknown else to_number(total.value),
        "known": to_number(total.value),
        "from_nothing": total.from_nothing > 0,
        "unit": event.unit if event else None,
    }


def rates_to_json(rates: Rates, sort: str = "energy") -> dict[str, Any]:
    """Make one object of `top --json`."""
    return {
        "time": rates.time,
        "seconds": round(rates.seconds, 3),
        "node": _speeds_to_json(rates.node),
        "no_pod": _speeds_to_json(rates.rest),
        "keys": [
            {**_describe_key(key), **_speeds_to_json(use)}
            for key, use in sorted(rates.keys, key=lambda row: _rank(row, sort))
        ],
    }


def _speeds_to_json(use: Uses) -> dict[str, Any]:
    totals = {name: use.get(event, Total()) for event, (_, name) in _TOP_HEADS.items()}
    return {
        **{name: to_number(total.value) for name, total in totals.items()},
        "partial": sorted(
            name for name, total in totals.items() if total.unknown or total.from_nothing
        ),
        "at_least": sorted(name for name, total in totals.items() if total.at_least),
        "from_nothing": sorted(name for name, total in totals.items() if total.from_nothing),
    }


def _describe_key(key: SeenKey) -> dict[str, Any]:
    """Describe a key by the fields that `list`, `show` and `top` have."""
    state, alive = key.state, key.count_alive()
    return {
        "key": state.key,
        "kind": state.kind,
        "namespace": state.pod_namespace,
        "pod": state.pod_name,
        "name": key.name,
        "title": key.title,
        "labels": state.job_labels,
        "state": key.condition,
        "created_at": state.created_at or None,
        "completed_at": state.completed_at,
        "age_seconds": None if key.age is None else round(key.age, 3),
        "members_alive": alive,
        "members_dead": None if alive is None else len(key.alive) - alive,
        "taken": key.taken,
        "ctrl_groups": [group.record.ctrl_group for group in key.groups],
    }


def _uses_to_json(use: Uses) -> dict[str, Any]:
    return {
        event: {
            "value": to_number(total.value),
            "unit": EVENTS[event].unit,
            "at_least": total.at_least,
            "unknown": total.unknown,
            "from_nothing": total.from_nothing,
        }
        for event, total in use.items()
    }


# --- Cells: how numbers and ages are printed, and the names by which a key is found


def list_names(key: SeenKey) -> Iterator[str]:
    """List the names of a key: those of its pod and its containers, and their IDs."""
    state, title = key.state, key.title
    yield from show.list_pod_names(state.pod_namespace, state.pod_name)
    yield from state.members
    named = (
        state.name,
        *(member.name for member in state.members.values()),
        title if title != NOTHING else None,
    )
    yield from filter(None, named)


def format_sum(total: Total | None, event: str) -> str:
    """Format a total of an event with three digits."""
    is_binary = EVENTS[event].unit == "bytes"
    return format_total(total, lambda value: format_number(value / MILLION, binary=is_binary))


def format_total(total: Total | None, format_value: Callable[[int], str]) -> str:
    """Format a total: `-` without a counter, `?` if no value is known;
    `>=` and `*` as in `explain_marks`.
    """
    if total is None or total.value is None:
        return NOTHING if total is None else _UNKNOWN
    at_least, from_nothing = (
        _AT_LEAST if total.at_least else "",
        _FROM_NOTHING if total.from_nothing else "",
    )
    return f"{at_least}{format_value(total.value)}{from_nothing}"


def explain_marks(totals: Iterable[Total]) -> list[str]:
    """Return the legend of the marks that these totals have, after an empty line."""
    marked, legend = [total for total in totals if total.counted], list[str]()
    if any(total.at_least for total in marked):
        legend.append(f"{_AT_LEAST}  at least that much: a part is unknown")
    if any(total.from_nothing for total in marked):
        legend.append(f"{_FROM_NOTHING}   counted from 0, without an initial value")
    return ["", *legend] if legend else []


def format_number(value: float, *, binary: bool = False) -> str:
    """Format a number with three digits and a unit prefix: `22.3`, `1.50k`,
    or in `binary` ones `45.3Gi`.
    """
    base, prefixes = (1024, _BINARY) if binary else (1000, _DECIMAL)
    power = 0
    while value >= base - 0.5 and power < len(prefixes) - 1:
        value /= base
        power += 1
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    whole = power == 0 and (binary or value == 0)
    return f"{value:.{0 if whole else digits}f}{prefixes[power]}"


def format_age(seconds: float | None) -> str:
    if seconds is None:
        return _UNKNOWN
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"
