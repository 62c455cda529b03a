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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hook import __version__, counters, names, system
from hook.counters import EVENTS, Event
from hook.errors import Reason
from hook.node import files
from hook.node.models import ReconcileRecord, WatchRecord
from hook.reconcile.diagnose import VERBS
from hook.report import printable
from hook.show.snapshot import NOTHING, Group, Inventory, SeenKey, Total, format_name, get_event, to_number

Labels = tuple[tuple[str, str], ...]
Numbers = Mapping[Labels, float]
"""The samples of one metric by their labels; an int is exact."""
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
    samples: dict[Labels, float]
    created: dict[Labels, int] = field(default_factory=dict)  # the Unix time at which a sample began with 0

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"


def make_families(seen: Inventory, former: Former | None = None, choice: Choice | None = None) -> list[Family]:
    """Make all metrics. No counter dips below the `former` samples, which were exported before."""
    former, choice = former or Former(), choice or Choice()
    # reconcile looks for the names of a record that was lost: until then its labels could change.
    keys = [key for key in seen.keys if not key.state.recovering or any(names.read_labels(key.state).values())]
    used = _sum_keys(keys, choice)
    found = [*_make_event_families(used, PREFIX, "", former, choice)]
    uncharged = _sum_uncharged(seen, choice)
    found += _make_event_families(uncharged, NODE, ", of tasks in no mon_group", former, choice)
    other = [*_measure_more(seen, keys, used), *_measure_health(seen)]
    found += [_make_family(name, meaning, numbers) for name, meaning, numbers in other]
    return [family for family in found if family.samples]


def count_dropped(counts: dict[str, int]) -> Family:
    """Make the metric of the connections that the endpoint cut off, by reason."""
    name, meaning = "endpoint_dropped_connections_total", "Connections that the endpoint cut off, by reason"
    return _make_family(name, meaning, _by("reason", counts))


def _make_family(name: str, meaning: str, numbers: Numbers | float | None) -> Family:
    """Make a metric of numbers by their labels, of a single number or bool, or without a sample."""
    if not isinstance(numbers, Mapping):
        numbers = {} if numbers is None else {(): +numbers}
    return Family(PREFIX + name, meaning, dict(numbers))


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
        yield f"{format_series(family.name, labels)} {value}"
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
        samples = [{"labels": dict(labels), "value": value} for labels, value in sorted(family.samples.items())]
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
    """The samples exported before, so that no counter dips.

    `metrics --textfile` reads them from the file that it replaces, `metrics --listen` has those of its last reading.
    """

    age: float = 0.0  # seconds since they were exported
    samples: dict[Series, float] = field(default_factory=dict)


def keep_former(families: Iterable[Family], age: float) -> Former:
    """Keep the samples of metrics that were exported `age` seconds ago."""
    samples = {(family.name, labels): value for family in families for labels, value in family.samples.items()}
    return Former(age, samples)


def read_former(path: str) -> Former:
    """Read the samples in the file that will be replaced; none if it is missing or has another format."""
    text, age = system.try_call(files.read_text, path, _LIMIT), system.try_call(system.age, path)
    if text is None or age is None:
        return Former()
    samples = dict[Series, float]()
    for line in text.splitlines():
        series, _, number = line.rpartition(" ")
        value = None if line.startswith("#") else to_number(counters.number(number))
        if value is not None:
            name, _, inside = series.partition("{")
            labels = tuple((label, re.sub(r"\\(.)", r"\1", text)) for label, text in _LABEL.findall(inside))
            samples[name, labels] = value
    return Former(age, samples)


# --- The use of keys, and of tasks that are in no key's group


@dataclass
class Sum:
    """The sum of the counters in one series: two groups of a key can have equal labels (a mount point that changed)."""

    key: SeenKey | None = None  # None: of tasks in no key's group
    known: int | None = 0  # in millionths; None: it lacks a counter, and is unknown
    restarts: bool = False  # a part of the use is unknown, so that it is the use of the present directory
    is_untracked: bool = False
    is_taken: bool = False  # another tool has, or had, a container of the key: what is known of its use goes on

    def add(self, value: int | None) -> None:
        self.known = None if self.known is None or value is None else self.known + value

    @property
    def created(self) -> int | None:
        """The Unix time at which it was 0. Of a sum that starts again while its key exists this is not known."""
        return None if self.key is None or self.restarts else self.key.created

    def hold(self, series: Series, former: Former) -> float | None:
        """Return the sum, or the former sample if the sum is unknown, or dips without a restart.

        The former samples of another key of that name, which ended before, do not count.
        """
        value, before = to_number(self.known), former.samples.get(series)
        if before is None or (self.key is not None and (self.key.age is None or self.key.age < former.age)):
            return value
        if value is None:
            return before
        # A sum that lacks a domain for a while has not started again.
        may_restart = self.restarts and not self.is_untracked
        if self.key is None:  # a difference of counters that are read one after the other dips by the use in between
            may_restart = value < before / 2
        return value if may_restart else max(value, before)


def _make_event_families(
    sums: dict[Series, Sum], prefix: str, whose: str, former: Former, choice: Choice
) -> Iterator[Family]:
    """Make the metrics of events: known events in the order of EVENTS, then the others."""
    for name in dict.fromkeys([*EVENTS, *sorted(name for name, _ in sums)]):
        event = _describe_event(name)
        meaning = f"{event.meaning[0].upper()}{event.meaning[1:]}, in {event.unit}{whose}"
        family = Family(prefix + event.metric, meaning, {})
        for labels in (labels for of, labels in sums if of == name):
            found = sums[name, labels]
            value = to_number(found.known) if event.gauge else found.hold((family.name, labels), former)
            if value is not None:
                family.samples[labels] = value
            if choice.has_created and not event.gauge and found.created is not None:
                family.created[labels] = found.created
        yield family


def _describe_event(name: str) -> Event:
    """Describe an event. An unknown one keeps the kernel's name, and counts as a counter, as most are."""
    word = re.sub("[^A-Za-z0-9_]", "_", name)
    return EVENTS.get(name) or Event("its own unit", f"event {word} of the kernel", f"{word}_total")


def _sum_keys(keys: Iterable[SeenKey], choice: Choice) -> dict[Series, Sum]:
    """Add up the use of keys by event and labels."""
    sums: dict[Series, Sum] = {}
    for key in keys:
        identity = _identify(key)
        for group in key.groups:
            place = (*identity, ("ctrl_group", printable(group.record.ctrl_group)))
            for counter, value in _choose_samples(group, choice).items():
                event = get_event(counter)
                found = sums.setdefault((event, choice.add_domain(place, counter)), Sum(key))
                found.add(value)
                found.restarts |= event not in EVENTS or group.totals.get(counter, Total()).unknown > 0
                found.is_untracked |= counters.is_untracked(counter, group.now.get(counter))
                found.is_taken |= key.was_taken and counter in group.totals
    return sums


def _sum_uncharged(seen: Inventory, choice: Choice) -> dict[Series, Sum]:
    """Add up the use of tasks outside of all mon_groups, by event and labels."""
    sums: dict[Series, Sum] = {}
    for ctrl_group, of_group in seen.uncharged.items():
        place = (("ctrl_group", printable(ctrl_group)),)
        for counter in filter(choice.has, of_group):
            series = get_event(counter), choice.add_domain(place, counter)
            sums.setdefault(series, Sum()).add(counters.number(of_group[counter]))
    return sums


def _choose_samples(group: Group, choice: Choice) -> dict[str, int | None]:
    """Return the value of each chosen counter of a group in a form that Prometheus can add up; None is no sample.

    If a part of earlier use is unknown, the value is the use of the present directory: a counter that restarts has to
    restart from 0, because Prometheus counts its first value as growth. If that is unknown, too (the counter cannot be
    read, ran backwards, or is untracked), a gap is right: any lower sample would be one more restart. If all domains
    are summed, one domain's restart is that of the others, because their sum has to restart from 0; and what is
    untracked counts with its known part, because a sum with a gap would lack all other domains.
    """
    found = {counter: total.value for counter, total in group.gauges.items() if total.counted}
    own = counters.own_use(group.record, group.now)
    lost = [counter for counter, before in group.record.before.items() if counters.number(before) is None]
    again = {get_event(counter) for counter in lost} if choice.sum_domains else set()
    for counter, total in group.totals.items():
        part, is_all = own[counter]
        if not is_all and not choice.sum_domains:
            part = None
        restarts = counter in lost or get_event(counter) in again
        found[counter] = part if restarts or part is None else total.known
    for counter, text in group.now.items():
        if counters.event_of(counter) is None and counter in group.begin:  # unknown: the use of this directory
            found[counter] = counters.used(counter, group.begin[counter], text)
    return {counter: value for counter, value in found.items() if choice.has(counter)}


def _identify(key: SeenKey) -> Labels:
    """Return the labels of a key. `namespace`, `pod` and `container` are always among them, even if empty.

    Otherwise Prometheus would add those of the pod in which the exporter runs.
    """
    labels = names.read_labels(key.state)
    kind = "uid" if key.state.kind == "pod" else f"{key.state.kind}_id" if labels.get("namespace") else "key"
    return (*((name, printable(labels.get(name, ""))) for name in _NAMES), (kind, key.state.key))


# --- All other metrics


Measured = Iterator[tuple[str, str, "Numbers | float | None"]]
"""The name of each metric, its meaning, and its samples: a number is a single one, None is none."""


def _measure_more(seen: Inventory, keys: Iterable[SeenKey], sums: dict[Series, Sum]) -> Measured:
    """Measure what is to be known of the use of keys."""
    of_known = ((event, labels, found) for (event, labels), found in sums.items() if event in EVENTS)
    unknown = [(*labels, ("event", event)) for event, labels, found in of_known if found.restarts or found.is_taken]
    yield "use_unknown", "1 for each use of which a part, or all, is unknown", Counter(unknown)
    named = [(*_identify(key), ("name", format_name(key))) for key in keys if format_name(key) != NOTHING]
    info = Counter(labels for labels in named if not dict(labels)["namespace"])
    yield "key_info", "1, with the name, as in list, of a key without a namespace", info
    taken = Counter((*_identify(key), ("group", printable(path))) for key, _, path in seen.list_taken())
    yield "taken_containers", "Containers whose init is in a mon_group of another tool, by that group", taken


def _measure_health(seen: Inventory) -> Measured:
    yield from _measure_keys(seen)
    if seen.rmids is not None:
        yield "rmids", "RMIDs of the machine: the smallest of info/*/num_rmids", seen.rmids.limit
        in_use = _by("owner", {"ours": seen.rmids.ours, "others": seen.rmids.others})
        yield "rmids_in_use", "RMIDs in use, one for each group; ours are the mon_groups of keys", in_use
        if seen.host_pids:
            orphans = "mon_groups with our prefix, but without a record and a live member"
            yield "orphan_groups", orphans, len(seen.orphans)
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
    yield "keys", "Keys on record, by state; unreadable counts records that cannot be read", _by("state", states)
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
    yield "run_directory_full", "Whether the run directory has no room: records may be missing", seen.is_full
    owed = Counter[str]()
    for waiting in seen.list_owed():
        owed[waiting.why.rpartition(": ")[2]] += waiting.lines
    yield "history_owed", "Lines of history that wait, by the errno of the last try", _by("reason", owed or {"none": 0})
    yield "history_dropped_total", "Lines of history that were dropped unwritten since boot", seen.dropped_lines
    yield "snapshots_dropped_total", "Snapshots removed early since boot, to make room", seen.dropped_snapshots
    if (unhooked := seen.unhooked) is not None:
        yield "unhooked_containers", "Running containers that never got the hook", len(unhooked.containers)
        yield "unchecked_containers", "Containers that reconcile could not check", unhooked.unchecked
    runs: Numbers = {
        (("stage", printable(stage)), ("result", printable(result))): count
        for (stage, result), count in seen.runs.items()
    }
    yield "hook_runs_total", "Runs of the hook, by stage and result", runs


def _measure_watch(watch: WatchRecord) -> Measured:
    yield "watch_start_timestamp_seconds", "Unix time at which the watch that runs started", watch.started_at
    yield "watch_alive_timestamp_seconds", "Unix time at which watch last wrote its record", watch.alive_at
    yield "watch_moved_tasks_total", "Tasks that watch moved in, since its start", watch.moved
    yield "watch_followed_containers_total", "Containers that watch followed to another ctrl_group", watch.followed
    yield "watch_failures_total", "Processes that watch could not move in, since its start", watch.failed
    yield "watch_overflows_total", "Times that watch lost execs, since its start", watch.overflows


def _measure_reconcile(run: ReconcileRecord) -> Measured:
    yield "reconcile_start_timestamp_seconds", "Unix time at which reconcile last started", run.started_at
    yield "reconcile_end_timestamp_seconds", "Unix time at which it last ended without an error", run.ended_at
    if run.ended_at is not None:
        yield "reconcile_duration_seconds", "Duration of the reconcile that last ended", run.seconds
    yield "outside_threads", "Threads that the last reconcile left outside their group", run.outside_total
    yield (
        "elsewhere_threads",
        "Threads left in a group that is not their key's, by that group",
        _by("group", run.elsewhere),
    )
    yield "late_cpu_seconds_total", "CPU time that tasks used before they were moved in", run.late_cpu
    undone = {"failed": run.failed, "left": run.left, "unread": run.unread}
    yield "reconcile_undone", "What the reconcile that last ended left", _by("kind", undone)
    none = dict.fromkeys(VERBS, 0)
    yield "reconcile_actions_total", "Actions of reconcile that were done", _by("verb", {**none, **run.actions})
    yield "reconcile_failures_total", "Actions of reconcile that failed", _by("verb", {**none, **run.failures})


def _by(label: str, counts: Mapping[str, int]) -> Numbers:
    return {((label, printable(name)),): count for name, count in counts.items()}
