# SPDX-License-Identifier: Apache-2.0
"""Prints a snapshot as metrics in Prometheus' text format or as JSON: the use of each key, and the hook's health.

Source of the format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from hook import __version__
from hook.base import counters
from hook.base.counters import MILLION
from hook.base.reasons import Reason
from hook.base.text import printable
from hook.node import files
from hook.observe.hold import Former
from hook.observe.snapshot import to_number
from hook.observe.use_series import (
    NODE,
    PREFIX,
    SERIES,
    Choice,
    describe_event,
    format_series,
    is_gauge,
    name_event,
    sum_uncharged,
    sum_use,
)
from hook.reconcile.plan import VERBS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from hook.base.models import ReconcileRecord, WatchRecord
    from hook.observe.node_counters import Uncharged
    from hook.observe.snapshot import Inventory
    from hook.observe.use_series import Values

HEALTH = {
    "use_unknown": ("gauge", "1 for each use of which a part, or all, is unknown"),
    "keys": ("gauge", "Keys on record, by state; unreadable counts records whose key is unknown"),
    "members": ("gauge", "Containers that are members of a key"),
    "members_taken_from_others": ("gauge", "Members that were in a mon_group of another tool before"),
    "rmids": ("gauge", "RMIDs of the machine: the smallest of info/*/num_rmids"),
    "rmids_in_use": ("gauge", "RMIDs in use, one for each group; ours are the mon_groups of keys"),
    "orphan_groups": ("gauge", "mon_groups with our prefix, but without a record and a live member"),
    "unmonitored_containers": ("gauge", "Containers on record as not monitored, by reason"),
    "unrecorded_failures": ("gauge", "Failures since boot that could not be recorded: at least so many"),
    "run_directory_full": ("gauge", "Whether the file system of the run directory is full: records may be missing"),
    "unhooked_containers": ("gauge", "Running containers that never got the hook, as of the last reconcile"),
    "unchecked_containers": ("gauge", "Containers without a record that the last reconcile could not check"),
    "hook_runs_total": ("counter", "Runs of the hook, by stage and result"),
    "reconcile_start_timestamp_seconds": ("gauge", "Unix time at which reconcile last started"),
    "reconcile_end_timestamp_seconds": ("gauge", "Unix time at which reconcile last ended without an error"),
    "reconcile_duration_seconds": ("gauge", "Duration of the reconcile that last ended"),
    "reconcile_undone": ("gauge", "What the reconcile that last ended left: failed actions, and problems of others"),
    "outside_threads": ("gauge", "Threads of monitored containers that the last reconcile left outside their group"),
    "reconcile_actions_total": ("counter", "Actions of reconcile that were done, by verb"),
    "reconcile_failures_total": ("counter", "Actions of reconcile that failed, by verb"),
    "late_cpu_seconds_total": ("counter", "CPU time that tasks used before reconcile or watch moved them in"),
    "watch_start_timestamp_seconds": ("gauge", "Unix time at which the watch that runs started"),
    "watch_alive_timestamp_seconds": ("gauge", "Unix time at which watch last wrote its record, once a minute"),
    "watch_moved_tasks_total": ("counter", "Tasks that watch moved in, since its start"),
    "watch_failures_total": ("counter", "Processes that watch could not move in, since its start"),
    "watch_overflows_total": ("counter", "Times that watch lost execs, since its start"),
    "mounted": ("gauge", "Whether resctrl is mounted and supports monitoring"),
    "build_info": ("gauge", "1, with the version of resctrl-mon-hook"),
}
ENDPOINT = {
    "endpoint_dropped_connections_total": ("counter", "Connections that the endpoint cut off, by reason"),
}
"""What `metrics --listen` counts itself, since its start: in its own answers only."""
_REASONS = tuple(value for name, value in vars(Reason).items() if name.isupper())


@dataclass(frozen=True)
class Family:
    """The samples of one metric by their labels. Values are in millionths, as in `counters`."""

    name: str
    kind: str
    meaning: str
    samples: Values


def make_families(
    seen: Inventory,
    former: Former | None = None,
    choice: Choice | None = None,
    uncharged: Uncharged | None = None,
) -> list[Family]:
    """All metrics with samples, in the order of the tables.

    `former`: what was exported before. `choice`: of the series of use. `uncharged`: what tasks outside of all
    mon_groups used; None: it is not exported.
    """
    former, choice = former or Former(), choice or Choice()
    used, unknown = sum_use(seen.keys, choice, former)
    health = {"use_unknown": unknown, **_measure_health(seen)}
    found = [*_make_event_families(used, PREFIX)]
    found += _make_event_families(sum_uncharged(uncharged or {}, choice, former), NODE)
    found += [Family(PREFIX + name, *HEALTH[name], health.get(name, {})) for name in HEALTH]
    return [family for family in found if family.samples]


def count_dropped(counts: dict[str, int]) -> Family:
    """The metric of the connections that the endpoint cut off, by reason."""
    name = "endpoint_dropped_connections_total"
    return Family(PREFIX + name, *ENDPOINT[name], _make_labelled("reason", counts))


def list_names() -> list[str]:
    """The names of all metrics."""
    own = (PREFIX + name for name in (*HEALTH, *ENDPOINT))
    return [*map(name_event, SERIES), *(name_event(event, NODE) for event in SERIES), *own]


def format_text(families: list[Family]) -> str:
    """The metrics in Prometheus' text format, in a stable order."""
    return "".join(line + "\n" for family in families for line in _format_family(family))


def to_json(families: list[Family]) -> dict[str, Any]:
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
            for family in families
        ]
    }


def write_textfile(path: str, text: str) -> None:
    """Replace a file that node_exporter may read at any time. Raises OSError; `path` is unchanged then.

    The temporary name does not end in .prom, so node_exporter ignores it.
    """
    directory, name = os.path.split(path)
    with files.replace(path, os.path.join(directory, f".{name}.{os.getpid()}.tmp")) as temporary:
        files.write_new(temporary, text.encode("ascii"), 0o644)  # readable by the exporter's own user


def _make_event_families(used: dict[str, Values], prefix: str) -> Iterator[Family]:
    """The metrics of events: the known ones in the order of their table, then the others."""
    for event in (*SERIES, *sorted(used.keys() - SERIES.keys())):
        kind, meaning = "gauge" if is_gauge(event) else "counter", describe_event(event)
        meaning += ", of tasks in no mon_group" if prefix == NODE else ""
        yield Family(name_event(event, prefix), kind, meaning, used.get(event, {}))


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
        "unrecorded_failures": _make_single(seen.unrecorded),
        "run_directory_full": _make_single(seen.is_full),
        "mounted": _make_single(seen.rmids is not None),
        "build_info": {(("version", __version__),): MILLION},
    }
    if seen.reconciled is not None:
        found.update(_measure_reconcile(seen.reconciled))
    if seen.watched is not None:
        found.update(_measure_watch(seen.watched))
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
        "outside_threads": _make_single(record.outside_total),
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


def _measure_watch(record: WatchRecord) -> dict[str, Values]:
    return {
        "watch_start_timestamp_seconds": {(): round(record.started_at * MILLION)},
        "watch_alive_timestamp_seconds": {(): round(record.alive_at * MILLION)},
        "watch_moved_tasks_total": _make_single(record.moved),
        "watch_failures_total": _make_single(record.failed),
        "watch_overflows_total": _make_single(record.overflows),
    }


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
        yield f"{format_series(family.name, labels)} {counters.text_of(value)}"
