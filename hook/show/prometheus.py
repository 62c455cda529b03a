# SPDX-License-Identifier: Apache-2.0
"""Prints a snapshot as metrics, in Prometheus' text format, as OpenMetrics or JSON: the use of keys, the hook's health.

Prometheus counts a counter's first value as growth, and takes each smaller sample for a restart from 0. So that no use
is counted twice, a counter here restarts from 0 if a part of its use is unknown, and keeps its value if it only dips.

Sources of the formats: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4) and
https://prometheus.io/docs/specs/om/open_metrics_spec/ (1.0.0).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from hook import __version__, counters, names, system
from hook.counters import EVENTS, MILLION, Event
from hook.errors import Reason
from hook.node import files
from hook.node.models import ReconcileRecord, WatchRecord
from hook.reconcile.diagnose import VERBS
from hook.report import printable
from hook.show.snapshot import NOTHING, Group, Inventory, SeenKey, add_up, format_name, get_event, make_total, to_number

Labels = tuple[tuple[str, str], ...]
Values = dict[Labels, int]
"""The samples of one metric by their labels, in millionths, as in `counters`; None is unknown."""
Numbers = dict[Labels, "int | float"]
"""The samples of one metric by their labels, in whole units."""
Series = tuple[str, Labels]
"""The name of a metric or of an event, and labels."""
PREFIX = "resctrl_mon_"
NODE = PREFIX + "node_"
"""Prefix of the metrics of tasks that are charged to no pod."""
_NAMES = ("namespace", "pod", "container")
_REASONS = tuple(value for name, value in vars(Reason).items() if name.isupper())
_STATES = ("live", "taken", "lingering", "completed", "recovering")  # a missing group counts as live
_LIMIT = 64 << 20
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_UNITS = ("bytes", "cycles", "farads", "joules", "seconds")
END_OF_OPEN_METRICS = "# EOF\n"


@dataclass(frozen=True)
class Choice:
    """The choice of what is exported: by default a series for each event, domain and ctrl_group of a pod."""

    events: frozenset[str] | None = None  # only these, by the kernel's names
    sum_domains: bool = False  # one series for all domains
    has_created: bool = False  # in OpenMetrics with the time at which each counter of a key was 0

    def has(self, counter: str) -> bool:
        return self.events is None or get_event(counter) in self.events

    def add_domain(self, labels: Labels, counter: str) -> Labels:
        """Add the label of a counter's domain to the labels of its group."""
        return labels if self.sum_domains else (*labels, ("domain", printable(counter.rpartition("/")[0])))


@dataclass(frozen=True)
class Family:
    """A metric with its samples ("metric family" in Prometheus)."""

    name: str
    meaning: str
    samples: Values
    created: dict[Labels, int] = field(default_factory=dict)  # the Unix time at which a sample began with 0

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"


def make_families(seen: Inventory, former: Former | None = None, choice: Choice | None = None) -> list[Family]:
    """Make all metrics. No counter dips below the `former` samples, which were exported before."""
    former, choice = former or Former(), choice or Choice()
    # reconcile looks for the names of a record that was lost: until then its labels could change.
    keys = [key for key in seen.keys if not key.state.recovering or any(names.read_labels(key.state).values())]
    used, unknown, created = _sum_series(keys, choice, former)
    found = [*_make_event_families(used, PREFIX, "", created)]
    found += _make_event_families(_sum_uncharged(seen, choice, former), NODE, ", of tasks in no mon_group", {})
    found.append(Family(PREFIX + "use_unknown", "1 for each use of which a part, or all, is unknown", unknown))
    found.append(Family(PREFIX + "key_info", "1, with the name of a key without a namespace", _name_keys(keys)))
    taken = "Containers whose init is in a mon_group of another tool, which counts what they use, by that group"
    found.append(_make_family("taken_containers", taken, _count_taken(seen)))
    found += [_make_family(name, meaning, numbers) for name, meaning, numbers in _measure_health(seen)]
    return [family for family in found if family.samples]


def count_dropped(counts: dict[str, int]) -> Family:
    """Make the metric of the connections that the endpoint cut off, by reason."""
    name, meaning = "endpoint_dropped_connections_total", "Connections that the endpoint cut off, by reason"
    return _make_family(name, meaning, _by("reason", counts))


def _make_family(name: str, meaning: str, numbers: Numbers | float | None) -> Family:
    """Make a metric of numbers by their labels, of a single number, or without a sample."""
    samples: Numbers = numbers if isinstance(numbers, dict) else {} if numbers is None else {(): numbers}
    return Family(PREFIX + name, meaning, {labels: round(number * MILLION) for labels, number in samples.items()})


def format_text(families: Iterable[Family], *, is_open: bool = False) -> str:
    """Format metrics in Prometheus' text format, or as OpenMetrics, but for END_OF_OPEN_METRICS."""
    return "".join(line + "\n" for family in families for line in _format_family(family, is_open=is_open))


def _format_family(family: Family, *, is_open: bool) -> Iterator[str]:
    """Format a metric. OpenMetrics has units, times of creation, and names of counters without `_total`."""
    name = family.name.removesuffix("_total") if is_open else family.name
    yield f"# HELP {name} {family.meaning}."
    yield f"# TYPE {name} {family.kind}"
    if is_open and (unit := name.rpartition("_")[2]) in _UNITS:
        yield f"# UNIT {name} {unit}"
    for labels, value in sorted(family.samples.items()):
        yield f"{format_series(family.name, labels)} {counters.text_of(value)}"
        if is_open and labels in family.created:
            yield f"{format_series(name + '_created', labels)} {family.created[labels]}"


def format_series(name: str, labels: Labels) -> str:
    """Format a series: `name{label="value"}`. The values of labels must be printable."""
    escaped = [(label, text.replace("\\", "\\\\").replace('"', '\\"')) for label, text in labels]
    inside = ",".join(f'{label}="{text}"' for label, text in escaped)
    return f"{name}{{{inside}}}" if inside else name


def to_json(families: Iterable[Family]) -> dict[str, object]:
    """Make the object that `metrics --json` prints."""
    found = []
    for family in families:
        samples = [
            {"labels": dict(labels), "value": to_number(value)} for labels, value in sorted(family.samples.items())
        ]
        found.append({"name": family.name, "type": family.kind, "help": family.meaning, "samples": samples})
    return {"metrics": found}


def write_textfile(path: str, text: str) -> None:
    """Replace a file that node_exporter may read at any time. Raises OSError; `path` is unchanged then.

    The temporary name does not end in .prom, so node_exporter ignores it.
    """
    directory, name = os.path.split(path)
    with files.replace_file(path, os.path.join(directory, f".{name}.{os.getpid()}.tmp")) as temporary:
        files.write_durably(temporary, text.encode("ascii"), 0o644)  # readable by the exporter's own user


# --- The samples exported before


@dataclass(frozen=True)
class Former:
    """The samples exported before, in millionths, so that no counter dips.

    `metrics --textfile` reads them from the file that it replaces, `metrics --listen` has those of its last reading.
    """

    age: float = 0.0  # seconds since they were exported
    samples: dict[Series, int] = field(default_factory=dict)

    def hold(self, series: Series, value: int | None, age: float | None, *, may_start_again: bool) -> int | None:
        """Return `value`, or the former sample if `value` is unknown, or smaller without a restart.

        The samples of an earlier key of that name do not count: those from before its key was made, `age` seconds ago.
        """
        former = self.samples.get(series)
        if former is None or age is None or age < self.age:
            return value
        if value is None or (value < former and not may_start_again):
            return former
        return value

    def hold_difference(self, series: Series, value: int | None) -> int | None:
        """Choose as `hold` does, for a difference of counters that are read one after the other.

        It dips by the use between the reads. A new mount restarts it, so a value below half of the former is a restart.
        """
        former = self.samples.get(series)
        if former is None or (value is not None and not former // 2 <= value < former):
            return value
        return former


def keep_former(families: Iterable[Family], age: float) -> Former:
    """Keep the samples of metrics that were exported `age` seconds ago."""
    samples = {(family.name, labels): value for family in families for labels, value in family.samples.items()}
    return Former(age, samples)


def read_former(path: str) -> Former:
    """Read the samples in the file that will be replaced; none if it is missing or has another format."""
    text, age = system.try_call(files.read_text, path, _LIMIT), system.try_call(system.age, path)
    if text is None or age is None:
        return Former()
    samples = dict[Series, int]()
    for line in text.splitlines():
        series, _, number = line.rpartition(" ")
        value = None if line.startswith("#") else counters.number(number)
        if value is not None:
            name, _, inside = series.partition("{")
            labels = tuple((label, re.sub(r"\\(.)", r"\1", text)) for label, text in _LABEL.findall(inside))
            samples[name, labels] = value
    return Former(age, samples)


# --- The use of keys, and of tasks that are in no key's group


def _make_event_families(
    used: dict[str, Values], prefix: str, whose: str, created: dict[Series, int]
) -> Iterator[Family]:
    """Make the metrics of events: known events in the order of EVENTS, then the others."""
    for name in (*EVENTS, *sorted(used.keys() - EVENTS.keys())):
        event, values = _describe_event(name), used.get(name, {})
        meaning = f"{event.meaning[0].upper()}{event.meaning[1:]}, in {event.unit}{whose}"
        begun = {labels: created[name, labels] for labels in values if (name, labels) in created}
        yield Family(prefix + event.metric, meaning, values, begun)


def _describe_event(name: str) -> Event:
    """Describe an event. An unknown one keeps the kernel's name, and counts as a counter, as most are."""
    word = re.sub("[^A-Za-z0-9_]", "_", name)
    return EVENTS.get(name) or Event("its own unit", f"event {word} of the kernel", f"{word}_total")


def _sum_series(
    keys: Iterable[SeenKey], choice: Choice, former: Former
) -> tuple[dict[str, Values], Values, dict[Series, int]]:
    """Return the known use by event and labels, the uses of which a part is unknown, and when the other uses were 0.

    A key can have two groups with equal labels (after a change of the mount point): these are added up.
    """
    parts: list[tuple[Series, int | None]] = []
    restarting, untracked, taken = set[Series](), set[Series](), set[Series]()
    owners: dict[Labels, SeenKey] = {}
    for key in keys:
        identity = _identify(key)
        for group in key.groups:
            place = (*identity, ("ctrl_group", printable(group.record.ctrl_group)))
            for counter, value in _choose_samples(group, choice).items():
                series = event, labels = get_event(counter), choice.add_domain(place, counter)
                parts.append((series, value))
                owners[labels] = key
                if event not in EVENTS or group.use.get(counter, 0) is None:
                    restarting.add(series)
                if counters.is_untracked(counter, group.now.get(counter)):
                    untracked.add(series)
                if key.was_taken and counter in group.use:  # what is known of its use goes on
                    taken.add(series)

    def hold(event: str, labels: Labels, value: int | None) -> int | None:
        series = PREFIX + _describe_event(event).metric, labels
        # A sum that lacks a domain for a while has not started again.
        is_new = (event, labels) in restarting - untracked
        return former.hold(series, value, owners[labels].age, may_start_again=is_new)

    used = _sum_parts(parts, hold if former.samples else None)
    unknown = {(*labels, ("event", event)): MILLION for event, labels in restarting | taken if event in EVENTS}
    created: dict[Series, int] = {}
    # The time is not known of a counter that starts again while its key exists.
    for event, labels in {series for series, _ in parts} - restarting if choice.has_created else ():
        if not EVENTS[event].gauge and (at := owners[labels].created) is not None:
            created[event, labels] = at
    return used, unknown, created


def _count_taken(seen: Inventory) -> Numbers:
    """Count the containers that another tool has taken, by key and by that tool's group, which has an RMID."""
    return {**Counter((*_identify(key), ("group", printable(path))) for key, _container, path in seen.list_taken())}


def _sum_uncharged(seen: Inventory, choice: Choice, former: Former) -> dict[str, Values]:
    """Add up the use of tasks outside of all mon_groups, by event and labels."""
    parts: list[tuple[Series, int | None]] = []
    for ctrl_group, of_group in seen.uncharged.items():
        place = (("ctrl_group", printable(ctrl_group)),)
        for counter in filter(choice.has, of_group):
            series = get_event(counter), choice.add_domain(place, counter)
            parts.append((series, counters.number(of_group[counter])))

    def hold(event: str, labels: Labels, value: int | None) -> int | None:
        return former.hold_difference((NODE + _describe_event(event).metric, labels), value)

    return _sum_parts(parts, hold)


def _sum_parts(
    parts: Iterable[tuple[Series, int | None]], hold: Callable[[str, Labels, int | None], int | None] | None
) -> dict[str, Values]:
    """Add up parts by event and labels. `hold` gets each sum of counters. A sum with an unknown part is unknown."""
    found: dict[str, Values] = {}
    for (event, labels), total in add_up((series, make_total(value)) for series, value in parts).items():
        value = None if total.unknown else total.known
        if hold is not None and not _describe_event(event).gauge:
            value = hold(event, labels, value)
        if value is not None:
            found.setdefault(event, {})[labels] = value
    return found


def _choose_samples(group: Group, choice: Choice) -> dict[str, int | None]:
    """Return the exported value of each chosen counter of a group; None is no sample."""
    found = dict(_list_counted(group, together=choice.sum_domains))
    found.update((counter, total.known) for counter, total in group.gauges.items() if total.counted)
    for counter, text in group.now.items():
        if counters.event_of(counter) is None and counter in group.begin:  # unknown: the use of this directory
            found[counter] = counters.used(counter, group.begin[counter], text)
    return {counter: value for counter, value in found.items() if choice.has(counter)}


def _list_counted(group: Group, *, together: bool = False) -> Iterator[tuple[str, int | None]]:
    """List the cumulative counters of a group in a form that Prometheus can add up; None is no sample.

    If a part of earlier use is unknown, the value is the use of the present directory: a counter that restarts has to
    restart from 0, because Prometheus counts its first value as growth. If that is unknown, too (the counter cannot be
    read, ran backwards, or is untracked), a gap is right: any lower sample would be one more restart. If all domains
    are summed `together`, one domain's restart is that of the others, because their sum has to restart from 0; and what
    is untracked counts with its known part, because a sum with a gap would lack all other domains.
    """
    own = counters.own_use(group.record, group.now)
    lost = [counter for counter, before in group.record.before.items() if counters.number(before) is None]
    again = {get_event(counter) for counter in lost} if together else set()
    for counter, total in group.totals.items():
        part, is_all = own[counter]
        if not together and not is_all:
            part = None
        restarts = counter in lost or get_event(counter) in again
        yield counter, part if restarts or part is None else total.known


def _identify(key: SeenKey) -> Labels:
    """Return the labels of a key. `namespace`, `pod` and `container` are always among them, even if empty.

    Otherwise Prometheus would add those of the pod in which the exporter runs.
    """
    labels = names.read_labels(key.state)
    kind = "uid" if key.state.kind == "pod" else f"{key.state.kind}_id" if labels.get("namespace") else "key"
    return (*((name, printable(labels.get(name, ""))) for name in _NAMES), (kind, key.state.key))


def _name_keys(keys: Iterable[SeenKey]) -> Values:
    """Return the names by which `list` shows the keys that have no namespace in their labels."""
    found = [(*_identify(key), ("name", format_name(key))) for key in keys]
    return {labels: MILLION for labels in found if not dict(labels)["namespace"] and dict(labels)["name"] != NOTHING}


# --- The health of the hook


Measured = Iterator[tuple[str, str, "Numbers | float | None"]]
"""The name of each metric, its meaning, and its samples: a number is a single one, None is none."""


def _measure_health(seen: Inventory) -> Measured:
    yield from _measure_keys(seen)
    if seen.rmids is not None:
        yield "rmids", "RMIDs of the machine: the smallest of info/*/num_rmids", seen.rmids.limit
        in_use = _by("owner", {"ours": seen.rmids.ours, "others": seen.rmids.others})
        yield "rmids_in_use", "RMIDs in use, one for each group; ours are the mon_groups of keys", in_use
        orphans = len(seen.orphans) if seen.host_pids else None
        yield "orphan_groups", "mon_groups with our prefix, but without a record and a live member", orphans
    yield from _measure_losses(seen)
    if seen.reconciled is not None:
        yield from _measure_reconcile(seen.reconciled)
    if seen.watched is not None:
        yield from _measure_watch(seen.watched)
    yield "node_supported", "Whether the machine has resctrl with monitoring, mounted or not", seen.is_supported
    yield "mounted", "Whether resctrl is mounted and supports monitoring", seen.rmids is not None
    yield "build_info", "1, with the version of resctrl-mon-hook", _by("version", {__version__: 1})


def _measure_keys(seen: Inventory) -> Measured:
    states = Counter({**dict.fromkeys(_STATES, 0), "unreadable": len(seen.unreadable)})
    states.update(key.condition if key.condition in _STATES else "live" for key in seen.keys)
    yield "keys", "Keys on record, by state; unreadable counts records whose key is unknown", _by("state", states)
    alive = sum(len(key.list_alive()) for key in seen.keys)
    counted = {"alive": alive, "dead": sum(len(key.alive) for key in seen.keys) - alive}
    yield "members", "Containers that are members of a key", _by("state", counted) if seen.host_pids else None
    taken = sum(member.taken_from is not None for key in seen.keys for member in key.state.members.values())
    yield "members_taken_from_others", "Members that were in a mon_group of another tool before", taken


def _measure_losses(seen: Inventory) -> Measured:
    """Measure what is not monitored, not recorded or not written."""
    reasons = Counter(dict.fromkeys(_REASONS, 0))
    reasons.update(printable(failure.reason) for failure in seen.failures if not failure.monitored)
    yield "unmonitored_containers", "Containers on record as not monitored, by reason", _by("reason", reasons)
    yield "unrecorded_failures", "Failures since boot that could not be recorded: at least so many", seen.unrecorded
    full = "Whether the file system of the run directory is full: records may be missing"
    yield "run_directory_full", full, seen.is_full
    owed = Counter[str]()
    for waiting in seen.list_owed():
        owed[waiting.why.rpartition(": ")[2]] += waiting.lines
    why = "Lines of history that wait to be written, by the errno of the last try"
    yield "history_owed", why, _by("reason", owed or {"none": 0})
    yield "history_dropped_total", "Lines of history that were dropped unwritten since boot", seen.dropped_lines
    early = "Snapshots that were removed early since boot, to make room"
    yield "snapshots_dropped_total", early, seen.dropped_snapshots
    if (unhooked := seen.unhooked) is not None:
        never = "Running containers that never got the hook, as of the last reconcile"
        yield "unhooked_containers", never, len(unhooked.containers)
        unchecked = "Containers without a record that reconcile could not check"
        yield "unchecked_containers", unchecked, unhooked.unchecked
    runs: Numbers = {
        (("stage", printable(stage)), ("result", printable(result))): count
        for (stage, result), count in seen.runs.items()
    }
    yield "hook_runs_total", "Runs of the hook, by stage and result", runs


def _measure_watch(watch: WatchRecord) -> Measured:
    yield "watch_start_timestamp_seconds", "Unix time at which the watch that runs started", watch.started_at
    yield "watch_alive_timestamp_seconds", "Unix time at which watch last wrote its record", watch.alive_at
    yield "watch_moved_tasks_total", "Tasks that watch moved in, since its start", watch.moved
    followed = "Containers that watch followed to another ctrl_group, since its start"
    yield "watch_followed_containers_total", followed, watch.followed
    yield "watch_failures_total", "Processes that watch could not move in, since its start", watch.failed
    yield "watch_overflows_total", "Times that watch lost execs, since its start", watch.overflows


def _measure_reconcile(run: ReconcileRecord) -> Measured:
    yield "reconcile_start_timestamp_seconds", "Unix time at which reconcile last started", run.started_at
    yield "reconcile_end_timestamp_seconds", "Unix time at which it last ended without an error", run.ended_at
    duration = run.seconds if run.ended_at is not None else None
    yield "reconcile_duration_seconds", "Duration of the reconcile that last ended", duration
    yield "outside_threads", "Threads that the last reconcile left outside their group", run.outside_total
    elsewhere = "Threads in another ctrl_group, or a mon_group of another tool, by that group"
    yield "elsewhere_threads", elsewhere, _by("group", dict(run.elsewhere))
    yield "late_cpu_seconds_total", "CPU time that tasks used before they were moved in", run.late_cpu
    left = "What the reconcile that last ended left: failed actions, others' problems, what it could not read"
    yield "reconcile_undone", left, _by("kind", {"failed": run.failed, "left": run.left, "unread": run.unread})
    every = dict.fromkeys(VERBS, 0)
    done, failures = _by("verb", {**every, **run.actions}), _by("verb", {**every, **run.failures})
    yield "reconcile_actions_total", "Actions of reconcile that were done, by verb", done
    yield "reconcile_failures_total", "Actions of reconcile that failed, by verb", failures


def _by(label: str, counts: dict[str, int]) -> Numbers:
    return {((label, printable(name)),): count for name, count in counts.items()}
