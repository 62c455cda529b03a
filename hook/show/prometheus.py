# SPDX-License-Identifier: Apache-2.0
"""Prints a snapshot as metrics, in Prometheus' text format, as OpenMetrics or JSON:
the use of keys, the hook's health.

Prometheus counts a counter's first value as growth, and takes each smaller sample for a restart
from 0. So that no use is counted twice, a counter here restarts from 0 if a part of its use is
unknown, and keeps its value if it only dips.

Sources of the formats: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format
0.0.4) and https://prometheus.io/docs/specs/om/open_metrics_spec/ (1.0.0).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, starmap

from hook import __version__, counters, life_turns, rare, report, system
from hook.errors import HookError, Reason
from hook.node import files
from hook.node.models import ReconcileRecord, WatchRecord
from hook.node.sums import RUNS
from hook.rare import as_hook_error
from hook.reconcile.diagnose import VERBS
from hook.show import NOTHING
from hook.show.bill import Bill, Samples
from hook.show.snapshot import EVENTS, Event, Group, Inventory, SeenKey, get_event, to_number
from hook.words import explain, printable

Labels = tuple[tuple[str, str], ...]
Numbers = Mapping[Labels, float]
"""The samples of one metric by their labels; an int is exact."""
Series = tuple[str, Labels]
"""The name of a metric or of an event, and labels."""
PREFIX = "resctrl_mon_"
NODE = PREFIX + "node_"
"""Prefix of the metrics of tasks that are charged to no pod."""
_BILLED = (PREFIX + "namespace_", PREFIX + "label_")
SHOWN = "shown.prom"
# A missing group counts as live.
_STATES = ("live", "taken", "lingering", "completed", "recovering")
_LIMIT = 64 << 20
_MOST = 1 << 64  # the kernel's counters are smaller
_MOST_BELIEVED = 1 << 62  # what the hardware's counters have bits for
# More than any event counts on a machine: cycles of 10,000 cores, bytes of memory.
_MOST_A_SECOND = 1e14
_LABEL = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"')
# A name, labels, the value of a counter, and maybe a timestamp and an exemplar.
_NUMBER = r"[0-9]{1,20}(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?"
_SAMPLE = re.compile(
    rf'([\w:]+)\s*(?:\{{((?:[^"}}]|"(?:[^"\\]|\\.)*")*)\}}|\s)\s*({_NUMBER})(?:\s+[^\s#]+)?\s*(?:#.*)?'
)


@dataclass(frozen=True)
class Family:
    """A metric with its samples ("metric family" in Prometheus)."""

    name: str
    meaning: str
    samples: dict[Labels, float]
    # The Unix time at which a sample began with 0.
    created: dict[Labels, int] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"


def make_families(
    node: Inventory,
    former: Former | None = None,
    bill: Bill | None = None,
    *,
    has_created: bool = False,
) -> list[Family]:
    """Make all metrics. No counter dips below the `former` samples, which were exported before.

    With `has_created` OpenMetrics gets the time at which each counter of a key was 0.
    """
    former = former or Former()
    # reconcile looks for the names of a record that was lost: until then its labels could change.
    keys = [
        key
        for key in node.keys
        if not key.state.recovering or any(life_turns.read_metric_labels(key.state).values())
    ]
    uses = _sum_keys(keys)
    families = [*_make_event_families(uses, PREFIX, "", former, has_created=has_created)]
    families += _make_event_families(
        _list_uncharged(node), NODE, ", of tasks in no mon_group", former
    )
    families += make_bill(bill, former) if bill is not None else ()
    families += starmap(_make_family, [*_measure_more(node, keys, uses), *_measure_health(node)])
    return [family for family in families if family.samples]


def make_bill(bill: Bill, former: Former) -> list[Family]:
    """Make the counters that bill.

    None of them ever falls: Prometheus would take the whole bill for growth.
    """
    by_namespace: dict[Labels, Samples] = {
        (("namespace", printable(name)),): samples for name, samples in bill.namespaces.items()
    }
    by_label: dict[Labels, Samples] = {
        (("label", name), ("value", printable(value))): samples
        for (name, value), samples in bill.labels.items()
    }
    families = []
    for what, parts in (("namespace", by_namespace), ("label", by_label)):
        for name in dict.fromkeys(chain(EVENTS, *parts.values())):
            event = _describe_event(name)
            if name != RUNS and not event.gauge:
                meaning = (
                    f"{event.meaning[0].upper()}{event.meaning[1:]}, in {event.unit}, of all runs "
                    f"of a {what}"
                )
                families.append(
                    _make_bill(f"{PREFIX}{what}_{event.metric}", meaning, parts, name, former)
                )
    meaning = "Runs of a namespace that have ended and of which a part of the use is unknown"
    return [
        *families,
        _make_bill(f"{PREFIX}namespace_unknown_runs_total", meaning, by_namespace, RUNS, former),
    ]


def _make_bill(
    name: str, meaning: str, parts: Mapping[Labels, Samples], event: str, former: Former
) -> Family:
    samples = {labels: values[event] for labels, values in parts.items() if event in values}
    held = {labels: former.samples.get((name, labels), 0) for labels in samples}
    believed = {labels: value if value < _MOST_BELIEVED else 0 for labels, value in held.items()}
    return Family(
        name, meaning, {labels: max(value, believed[labels]) for labels, value in samples.items()}
    )


def count_dropped(counts: dict[str, int]) -> Family:
    """Make the metric of the connections that the endpoint cut off, by reason."""
    name, meaning = (
        "endpoint_dropped_connections_total",
        "Connections that the endpoint cut off, by reason",
    )
    return _make_family(name, meaning, _by("reason", counts))


def _make_family(name: str, meaning: str, numbers: Numbers | float | None) -> Family:
    """Make a metric of numbers by their labels, of a single number or bool, or without a sample."""
    if not isinstance(numbers, Mapping):
        numbers = {} if numbers is None else {(): +numbers}
    return Family(PREFIX + name, meaning, dict(numbers))


def format_text(families: Iterable[Family], *, is_open: bool = False) -> str:
    """Format metrics in Prometheus' text format, or as OpenMetrics."""
    lines = [line + "\n" for family in families for line in _format_family(family, is_open=is_open)]
    return "".join([*lines, "# EOF\n"] if is_open else lines)


def _format_family(family: Family, *, is_open: bool) -> Iterator[str]:
    """Format a metric.

    OpenMetrics has times of creation, and names of counters without `_total`.
    """
    name = family.name.removesuffix("_total") if is_open else family.name
    yield f"# HELP {name} {family.meaning}."
    yield f"# TYPE {name} {family.kind}"
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
    metrics = []
    for family in families:
        samples = [
            {"labels": dict(labels), "value": value}
            for labels, value in sorted(family.samples.items())
        ]
        metrics.append(
            {"name": family.name, "type": family.kind, "help": family.meaning, "samples": samples}
        )
    return {"metrics": metrics}


def write_textfile(path: str, text: str) -> None:
    """Replace a file that node_exporter may read at any time.

    Raises HookError; `path` is unchanged then.

    Its directory is made if it is missing. The temporary name does not end in .prom,
    so node_exporter ignores it.
    """
    path = os.path.abspath(path)
    directory, name = os.path.split(path)
    try:
        os.makedirs(directory, exist_ok=True)
        with files.replace_file(
            path, os.path.join(directory, f".{name}.{os.getpid()}.tmp")
        ) as temporary:
            # Readable by the exporter's own user.
            files.write_durably(temporary, text.encode("ascii"), 0o644)
    except OSError as error:
        # write(2) names no file, and the run directory is not to blame
        error = OSError(error.errno, error.strerror, path)
        raise as_hook_error("cannot write the metrics", error) from None


# --- The samples exported before


@dataclass(frozen=True)
class Former:
    """The samples exported before, so that no counter dips.

    They are in the file that `metrics --textfile` replaces,
    or in the last answer of `metrics --listen`.
    """

    age: float = 0.0  # seconds since they were exported
    samples: dict[Series, float] = field(default_factory=dict)

    def find(self, series: Series, key: SeenKey | None) -> float | None:
        """Return the sample of a key's series, unless another key of that name
        exported it, which ended before.
        """
        is_older = key is None or (key.age is not None and key.age >= self.age)
        return self.samples.get(series) if is_older else None


def keep_former(families: Iterable[Family], age: float) -> Former:
    """Keep the samples of metrics that were exported `age` seconds ago."""
    samples = {
        (family.name, labels): value
        for family in families
        for labels, value in family.samples.items()
    }
    return Former(age, samples)


def read_former(path: str) -> Former:
    """Read the samples in the file that will be replaced;
    none if it is missing or has another format.
    """
    text, age = system.try_call(files.read_text, path, _LIMIT), system.try_call(rare.age, path)
    former = Former(age or 0.0)
    for line in (text or "").splitlines():
        sample = _SAMPLE.fullmatch(line)
        if sample is not None and (value := float(sample[3])) < _MOST:
            labels = tuple(
                (label, re.sub(r"\\(.)", r"\1", text))
                for label, text in _LABEL.findall(sample[2] or "")
            )
            former.samples[sample[1], labels] = int(sample[3]) if sample[3].isdecimal() else value
    return former


class Shown:
    """The counters that bill, as the endpoint has last shown them, in a file beside the history.

    So none of them falls after a restart, also not after a power cut that has taken use which was
    shown already. The file is written before they are shown.
    """

    def __init__(self, history: str) -> None:
        self._path = os.path.join(os.path.dirname(history), SHOWN)
        self._samples = read_former(self._path).samples if history else {}
        self._has_failed = False

    def add(self, former: Former) -> Former:
        """Add what was shown of these counters to the former samples."""
        return Former(former.age, {**self._samples, **former.samples})

    def keep(self, families: Iterable[Family]) -> None:
        """Keep what is shown now. If that fails, this is said once."""
        billed = [family for family in families if family.name.startswith(_BILLED)]
        samples = keep_former(billed, 0.0).samples
        if not samples or samples == self._samples:
            return
        self._samples = samples
        try:
            write_textfile(self._path, format_text(billed))
        except HookError as error:
            if not self._has_failed:
                report.write_line(
                    f"the counters that bill may fall after a restart: {explain(error)}",
                    to_syslog=False,
                )
            self._has_failed = True


# --- The use of keys, and of tasks that are in no key's group


@dataclass
class Use:
    """The use that one series shows: two groups of a key can have equal labels (a
    mount point that changed).
    """

    key: SeenKey | None  # None: of tasks in no key's group
    # In millionths; None: there is no number for it, or for one of the groups.
    value: int | None = 0
    # A part of the use is unknown, so that it is the use of the present directory.
    restarts: bool = False

    def hold(self, before: float | None) -> float | None:
        """Return the value, or the sample `before` if there is none,
        or if it dips without a restart.
        """
        value = to_number(self.value)
        if before is None or value is None:
            return before if value is None else value
        # A difference of counters that are read one after the other dips by the use in between.
        if self.key is None:
            may_restart = value < before / 2
        else:  # a sample that no counter can have reached since the key began was a wrong value
            most = _MOST_A_SECOND * self.key.age if self.key.age is not None else _MOST
            may_restart = self.restarts or before >= min(value + most, _MOST_BELIEVED)
        return value if may_restart else max(value, before)


def _make_event_families(
    uses: dict[Series, Use], prefix: str, whose: str, former: Former, *, has_created: bool = False
) -> Iterator[Family]:
    """Make the metrics of events: known events in the order of EVENTS, then the others."""
    for name in dict.fromkeys([*EVENTS, *sorted(name for name, _ in uses)]):
        event = _describe_event(name)
        meaning = f"{event.meaning[0].upper()}{event.meaning[1:]}, in {event.unit}{whose}"
        family = Family(prefix + event.metric, meaning, {})
        for labels in (labels for of, labels in uses if of == name):
            use = uses[name, labels]
            value = (
                to_number(use.value)
                if event.gauge
                else use.hold(former.find((family.name, labels), use.key))
            )
            if value is not None:
                family.samples[labels] = value
            # When a use was 0 that starts again while its key exists is not known.
            created = (
                use.key.created
                if has_created and use.key is not None and not use.restarts
                else None
            )
            if created is not None and not event.gauge:
                family.created[labels] = created
        yield family


def _describe_event(name: str) -> Event:
    """Describe an event.

    An unknown one keeps the kernel's name, and counts as a counter, as most are.
    """
    word = re.sub("[^A-Za-z0-9_]", "_", name)
    return EVENTS.get(name) or Event("its own unit", f"event {word} of the kernel", f"{word}_total")


def _sum_keys(keys: Iterable[SeenKey]) -> dict[Series, Use]:
    """Add up the use of keys by event and labels."""
    uses: dict[Series, Use] = {}
    for key in keys:
        identity = _identify(key)
        for group in key.groups:
            for counter, (value, restarts) in _list_samples(group).items():
                use = uses.setdefault(
                    _name_series(identity, group.record.ctrl_group, counter), Use(key)
                )
                use.value = None if use.value is None or value is None else use.value + value
                use.restarts |= restarts
    return uses


def _list_uncharged(node: Inventory) -> dict[Series, Use]:
    """List the use of tasks outside of all mon_groups, by event and labels."""
    return {
        _name_series((), ctrl_group, counter): Use(None, counters.parse_number(text))
        for ctrl_group, of_group in node.uncharged.items()
        for counter, text in of_group.items()
    }


def _name_series(identity: Labels, ctrl_group: str, counter: str) -> Series:
    domain, _, event = counter.rpartition("/")
    return event, (*identity, ("ctrl_group", printable(ctrl_group)), ("domain", printable(domain)))


def _list_samples(group: Group) -> dict[str, tuple[int | None, bool]]:
    """Return the value of each counter of a group in a form that Prometheus can add up,
    and whether it restarts.

    None is no sample. If a part of earlier use is unknown, the value is the use of the present
    directory: a counter that restarts has to restart from 0, because Prometheus counts its first
    value as growth. If that is unknown, too (the counter cannot be read, ran backwards, or is
    untracked), a gap is right: any lower sample would be one more restart.
    """
    samples: dict[str, tuple[int | None, bool]] = {
        name: (total.value, False) for name, total in group.gauges.items()
    }
    of_directory = counters.measure_directory(group.record, group.now)
    for counter, total in group.totals.items():
        part, is_whole = of_directory[counter]
        is_lost = (
            counter in group.record.before
            and counters.parse_number(group.record.before[counter]) is None
        )
        value = part if is_lost else total.known
        samples[counter] = value if is_whole else None, total.unknown > 0
    for counter, text in group.now.items():
        # Unknown: the use of this directory.
        if get_event(counter) not in EVENTS and counter in group.begin:
            samples[counter] = counters.compute_use(counter, group.begin[counter], text), True
    return samples


def _identify(key: SeenKey) -> Labels:
    """Return the labels of a key.

    `namespace`, `pod` and `container` are always among them, even if empty.

    Otherwise Prometheus would add those of the pod in which the exporter runs.
    """
    labels = life_turns.read_metric_labels(key.state)
    if key.state.kind == "pod":
        kind = "uid"
    else:
        kind = f"{key.state.kind}_id" if labels.get("namespace") else "key"
    return (
        *((name, printable(labels.get(name, ""))) for name in ("namespace", "pod", "container")),
        (kind, key.state.key),
    )


# --- All other metrics


Measured = Iterator[tuple[str, str, "Numbers | float | None"]]
"""The name of each metric, its meaning, and its samples: a number is a single one, None is none."""


def _measure_more(node: Inventory, keys: Iterable[SeenKey], uses: dict[Series, Use]) -> Measured:
    """Measure what is to be known of the use of keys."""
    unknown = [
        (*labels, ("event", event))
        for (event, labels), use in uses.items()
        if event in EVENTS
        and (
            use.restarts or (use.key is not None and use.key.was_taken and not EVENTS[event].gauge)
        )
    ]
    yield "use_unknown", "1 for each use of which a part, or all, is unknown", Counter(unknown)
    yield (
        "key_info",
        "1, with the name and the labels of a key without a namespace",
        Counter(_list_infos(keys)),
    )
    taken = Counter(
        (*_identify(key), ("group", printable(path))) for key, _, path in node.list_taken()
    )
    yield (
        "taken_containers",
        "Containers whose init is in a mon_group of another tool, by that group",
        taken,
    )


def _list_infos(keys: Iterable[SeenKey]) -> Iterator[Labels]:
    """List the labels of the series that name keys. A name is as in `list`; a job's is its key."""
    for key in keys:
        identity, name = _identify(key), key.title
        if name != NOTHING and not dict(identity)["namespace"]:
            labels = (
                (f"label_{label}", printable(text)) for label, text in key.state.job_labels.items()
            )
            yield (*identity, ("name", name), *labels)


def _measure_health(node: Inventory) -> Measured:
    yield from _measure_keys(node)
    if node.rmids is not None:
        yield "rmids", "RMIDs of the machine: the smallest of info/*/num_rmids", node.rmids.limit
        in_use = _by("owner", {"ours": node.rmids.ours, "others": node.rmids.others})
        yield (
            "rmids_in_use",
            "RMIDs in use, one for each group; ours are the mon_groups of keys",
            in_use,
        )
        if node.host_pids:
            orphans = "mon_groups with our prefix, but without a record and a live member"
            yield "orphan_groups", orphans, len(node.orphans)
    yield from _measure_losses(node)
    if node.reconciled is not None:
        yield from _measure_reconcile(node.reconciled)
    if node.watched is not None:
        yield from _measure_watch(node.watched)
    yield (
        "node_supported",
        "Whether the machine has resctrl with monitoring, mounted or not",
        node.is_supported,
    )
    yield "mounted", "Whether resctrl is mounted and supports monitoring", node.rmids is not None
    yield "build_info", "1, with the version of resctrl-mon-hook", _by("version", {__version__: 1})


def _measure_keys(node: Inventory) -> Measured:
    states = Counter({**dict.fromkeys(_STATES, 0), "unreadable": len(node.unreadable)})
    states.update(key.condition if key.condition in _STATES else "live" for key in node.keys)
    yield (
        "keys",
        "Keys on record, by state; unreadable counts records that cannot be read",
        _by("state", states),
    )
    alive = sum(len(key.list_alive()) for key in node.keys)
    counted = {"alive": alive, "dead": sum(len(key.alive) for key in node.keys) - alive}
    yield (
        "members",
        "Containers that are members of a key",
        _by("state", counted) if node.host_pids else None,
    )
    taken = sum(
        member.taken_from is not None for key in node.keys for member in key.state.members.values()
    )
    yield (
        "members_taken_from_others",
        "Members that were in a mon_group of another tool before",
        taken,
    )


def _measure_losses(node: Inventory) -> Measured:
    """Measure what is not monitored, not recorded or not written."""
    none = {reason: 0 for name, reason in vars(Reason).items() if name.isupper()}
    reasons = Counter(none)
    reasons.update(printable(failure.reason) for failure in node.failures if not failure.monitored)
    yield (
        "unmonitored_containers",
        "Containers on record as not monitored, by reason",
        _by("reason", reasons),
    )
    ended = {**none, **node.ended_unmonitored}
    yield (
        "unmonitored_runs_total",
        "Runs that ended unmonitored since boot, by reason",
        _by("reason", ended),
    )
    yield (
        "unrecorded_failures",
        "Failures since boot that could not be recorded: at least so many",
        node.unrecorded,
    )
    yield (
        "run_directory_full",
        "Whether the run directory has no room: records may be missing",
        node.is_full,
    )
    owed = Counter[str]()
    for waiting in node.list_owed():
        owed[waiting.why.rpartition(": ")[2]] += waiting.lines
    yield (
        "history_owed",
        "Lines of history that wait, by the errno of the last try",
        _by("reason", owed or {"none": 0}),
    )
    yield (
        "history_dropped_total",
        "Lines of history that were dropped unwritten since boot",
        node.dropped_lines,
    )
    yield (
        "snapshots_dropped_total",
        "Snapshots forgotten early since boot: there were too many",
        node.dropped_snapshots,
    )
    if (unhooked := node.unhooked) is not None:
        yield (
            "unhooked_containers",
            "Running containers that never got the hook",
            len(unhooked.containers),
        )
        yield (
            "unchecked_containers",
            "Containers that reconcile could not check",
            unhooked.unchecked,
        )
    runs = {
        tuple(zip(("stage", "result"), map(printable, words))): count
        for words, count in node.runs.items()
    }
    yield "hook_runs_total", "Runs of the hook, by stage and result", runs


def _measure_watch(watch: WatchRecord) -> Measured:
    yield (
        "watch_start_timestamp_seconds",
        "Unix time at which the watch that runs started",
        watch.started_at,
    )
    yield (
        "watch_alive_timestamp_seconds",
        "Unix time at which watch last wrote its record",
        watch.alive_at,
    )
    yield "watch_moved_tasks_total", "Tasks that watch moved in, since its start", watch.moved
    yield (
        "watch_followed_containers_total",
        "Containers that watch followed to another ctrl_group",
        watch.followed,
    )
    yield (
        "watch_failures_total",
        "Processes that watch could not move in, since its start",
        watch.failed,
    )
    yield "watch_overflows_total", "Times that watch lost execs, since its start", watch.overflows


def _measure_reconcile(run: ReconcileRecord) -> Measured:
    yield (
        "reconcile_start_timestamp_seconds",
        "Unix time at which reconcile last started",
        run.started_at,
    )
    yield (
        "reconcile_end_timestamp_seconds",
        "Unix time at which it last ended without an error",
        run.ended_at,
    )
    if run.ended_at is not None:
        yield "reconcile_duration_seconds", "Duration of the reconcile that last ended", run.seconds
    yield (
        "outside_threads",
        "Threads that the last reconcile left outside their group",
        run.outside_total,
    )
    elsewhere = _by("group", run.elsewhere)
    yield (
        "elsewhere_threads",
        "Threads left in a group that is not their key's, by that group",
        elsewhere,
    )
    yield (
        "late_cpu_seconds_total",
        "CPU time that tasks used before they were moved in",
        run.late_cpu,
    )
    undone = {"failed": run.failed, "left": run.left, "unread": run.unread}
    yield "reconcile_undone", "What the reconcile that last ended left", _by("kind", undone)
    none = dict.fromkeys(VERBS, 0)
    yield (
        "reconcile_actions_total",
        "Actions of reconcile that were done",
        _by("verb", {**none, **run.actions}),
    )
    yield (
        "reconcile_failures_total",
        "Actions of reconcile that failed",
        _by("verb", {**none, **run.failures}),
    )


def _by(label: str, counts: Mapping[str, int]) -> Numbers:
    return {((label, printable(name)),): count for name, count in counts.items()}
