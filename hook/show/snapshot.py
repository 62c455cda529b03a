# SPDX-License-Identifier: Apache-2.0
"""Takes a snapshot of a node: its keys and their use, its RMIDs,
and containers that are not monitored. Adds up use.

It takes no lock and writes nothing, so the node may change while it reads. State files are replaced
atomically, so each read is consistent; counters are consistent with it if a second read of the
state is equal. A record that vanishes in between is left out, an invalid one is reported.

Source of what the hardware counts: Documentation/filesystems/resctrl.rst ("mbm_assign_mode",
"num_rmids") and drivers/resctrl/mpam_resctrl.c of Linux 7.3.
"""

from __future__ import annotations

import operator
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import chain
from typing import NamedTuple, TypeVar

from hook import counters, host, inventory, life_turns, rare, resctrl, system
from hook.errors import HookError
from hook.line import list_owed
from hook.models import Failure, Index, KeyState, Member, MonGroup, Options
from hook.node.models import ReconcileRecord, Unhooked, ViewRecord, WatchRecord
from hook.node.records import Broken, Records, leave_out, locate_state, read_record, read_state
from hook.resctrl import Resctrl
from hook.show import NOTHING, to_word
from hook.unmonitored import COUNTED
from hook.words import who

_Name = TypeVar("_Name")
_MOST_READS = 5
OCCUPANCY, TRAFFIC = "llc_occupancy", ("mbm_total_bytes", "mbm_local_bytes")
_LIMIT = 4096  # bytes: a page, the most that the kernel gives
_AMD = ("AuthenticAMD", "HygonGenuine")
Uses = dict[str, "Total"]
"""Totals by event, or by counter; an event without any counter is absent."""
KeyUse = tuple["SeenKey", Uses]
"""A key and its use, or the rates of its use."""
Readings = dict[str, dict[str, str]]
"""Counters by the path of their mon_group."""
Uncharged = dict[str, dict[str, str]]
"""The use of tasks outside of all mon_groups, charged to no pod, by ctrl_group (`/`:
the root one) and counter.

As the kernel writes it; empty: no number.
A ctrl_group whose mon_groups change faster than they can be read is left out.
"""


class Event(NamedTuple):
    """An event of resctrl."""

    unit: str
    meaning: str
    metric: str  # the name of its Prometheus series, without our prefix
    # Its value is a level; otherwise it is a sum, and only differences mean something.
    gauge: bool = False


EVENTS = {
    "llc_occupancy": Event(
        "bytes", "last level cache that is occupied", "llc_occupancy_bytes", gauge=True
    ),
    "mbm_total_bytes": Event(
        "bytes", "memory traffic of the last level cache", "memory_traffic_bytes_total"
    ),
    "mbm_local_bytes": Event(
        "bytes", "memory traffic to memory of its own node", "memory_traffic_local_bytes_total"
    ),
    "core_energy": Event("joules", "energy that cores used", "core_energy_joules_total"),
    "activity": Event("farads", "dynamic capacitance that cores switched", "activity_farads_total"),
    "stalls_llc_hit": Event(
        "cycles", "cycles stalled by loads that hit the LLC", "stalls_llc_hit_cycles_total"
    ),
    "stalls_llc_miss": Event(
        "cycles", "cycles stalled by loads that missed the LLC", "stalls_llc_miss_cycles_total"
    ),
    "c1_res": Event("cycles", "cycles in core idle state C1", "c1_residency_cycles_total"),
    "c6_res": Event("cycles", "cycles in core idle state C6", "c6_residency_cycles_total"),
    "unhalted_core_cycles": Event(
        "cycles", "core cycles in which something ran", "unhalted_core_cycles_total"
    ),
    "unhalted_ref_cycles": Event(
        "cycles", "reference cycles in which something ran", "unhalted_ref_cycles_total"
    ),
    "uops_retired": Event(
        "operations", "micro-operations that were completed", "uops_retired_total"
    ),
}


class Total(NamedTuple):
    """A sum of counters, in millionths."""

    known: int = 0
    counted: int = 0  # how many counters have a known value
    unknown: int = 0  # of how many counters a part is unknown
    # How many are counted from 0 without an initial value (counters.starts_from_nothing).
    from_nothing: int = 0

    @property
    def at_least(self) -> bool:
        """Return whether the value is only a part of the sum."""
        return self.unknown > 0 and self.counted > 0

    @property
    def value(self) -> int | None:
        """The sum of the known values, or None if no value is known."""
        return self.known if self.counted else None


@dataclass(frozen=True)
class Group:
    """A mon_group of a key."""

    record: MonGroup
    # The kernel has it; False if it has ended, because the path may belong to another group then.
    exists: bool
    now: dict[str, str]  # the kernel's counters, or the recorded final ones if it has ended

    @cached_property
    def totals(self) -> Uses:
        """The lifetime use of each cumulative counter."""
        totals = {}
        for counter, (known, is_all) in counters.measure(self.record, self.now).items():
            now = self.now.get(counter)
            if counters.is_untracked(counter, now):
                now = (self.record.last or {}).get(counter, now)
            is_from_nothing = counters.starts_from_nothing(counter, self.begin.get(counter), now)
            totals[counter] = make_total(known, in_part=not is_all, from_nothing=is_from_nothing)
        return totals

    @property
    def begin(self) -> dict[str, str]:
        """The initial counters; empty if they are unknown."""
        return self.record.begin or {}

    @property
    def has_ended(self) -> bool:
        """Return whether its directory has ended."""
        return self.record.end is not None

    def list_counters(self) -> list[str]:
        """List the names of all its counters, in order."""
        return sorted({**self.begin, **self.now, **self.record.before})

    @property
    def gauges(self) -> Uses:
        """The present values of gauges, while the group exists."""
        now = {} if self.has_ended else self.now
        return {
            name: make_total(counters.parse_number(text))
            for name, text in now.items()
            if get_event(name) == OCCUPANCY
        }


@dataclass
class SeenKey:
    """A key in a snapshot."""

    state: KeyState
    groups: list[Group]
    # Whether each member is; None is unknown, as in another namespace.
    alive: dict[str, bool | None]
    # Live members with their init in another tool's group (path).
    taken: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str | None:
        """Podman's name for the container or pod that the key is,
        if that is known; a job's is its key.
        """
        namespace, pod, container = life_turns.name_key(self.state)
        by_kind = {"container": container, "sandbox": pod, "job": self.state.key}
        return by_kind.get(self.state.kind) if namespace is None else None

    @property
    def title(self) -> str:
        """`namespace/pod`, with `/container` if the key is one, or `-`;
        Podman's pods have no namespace.

        A job's is its key.
        """
        if self.state.kind == "job":
            return self.state.key
        namespace, pod, container = life_turns.name_key(self.state)
        known = [namespace, pod or (namespace and ""), container]
        return "/".join(to_word(name) for name in known if name is not None) or NOTHING

    @property
    def condition(self) -> str:
        """`recovering`, `completed`, `lingering`, `taken`,
        `missing` (another tool removed its group) or `live`.
        """
        if self.state.recovering:
            return "recovering"
        if self.state.completed_at is not None:
            return "completed"
        if self.state.lingering_since is not None and not self.state.members:
            return "lingering"
        if self.taken:
            return "taken"
        return (
            "live" if all(group.exists or group.has_ended for group in self.groups) else "missing"
        )

    @property
    def was_taken(self) -> bool:
        """Return whether another tool has, or had, a container of it in its own group:
        a part of its use is unknown.
        """
        return self.state.taken or bool(self.taken)

    @property
    def age(self) -> float | None:
        """Seconds since the key was created, if known."""
        born = self.state.created_boottime
        return None if born is None else max(0.0, system.boottime() - born)

    @property
    def created(self) -> int | None:
        """The Unix time at which the key was created, rounded down to a second, if known."""
        try:
            return int(
                datetime.fromisoformat(self.state.created_at.replace("Z", "+00:00")).timestamp()
            )
        except ValueError:
            return None

    def name_member(self, container: str) -> str:
        """Name a member and its pod, or its job, for people."""
        if self.state.kind == "job":
            return who(container, name=self.state.key)
        return who(container, *life_turns.name_key(self.state, container))

    def list_alive(self) -> list[str]:
        """List the members that are not known to be dead."""
        return [container for container, alive in self.alive.items() if alive is not False]

    def count_alive(self) -> int | None:
        """Count the live members; None if that is unknown for any member."""
        return None if None in self.alive.values() else len(self.list_alive())


class Rmids(NamedTuple):
    """The RMIDs of the machine."""

    limit: int | None
    """The smallest of info/*/num_rmids.

    On arm64 the sum over the existing ctrl_groups. None if it is unknown.
    """
    ours: int
    """RMIDs in use, one for each group. Ours are mon_groups with our prefix or on record."""
    others: int

    def __str__(self) -> str:
        limit = "?" if self.limit is None else self.limit
        return (
            f"{self.ours + self.others} in use of {limit} ({self.ours} ours, {self.others} of "
            "others)"
        )


class Waiting(NamedTuple):
    """Lines of history that wait to be written to a file, and why:
    the kernel's word, and its errno.
    """

    file: str
    why: str
    lines: int


class Inventory:
    """A snapshot of a node."""

    def __init__(self, options: Options, records: Records, *, has_uncharged: bool) -> None:
        kernel = Resctrl(options.resctrl_root)
        self.at = system.monotonic()
        self.host_pids = host.in_host_namespaces()
        """Whether these are the host's namespaces; in others dead members cannot be recognized."""
        # The groups first: createRuntime records a member before it makes the group.
        ctrl_groups = (
            system.try_call(inventory.list_ctrl_groups, kernel.root)
            if kernel.is_mounted()
            else None
        ) or {}
        self._read_keys(kernel, records, [*ctrl_groups] if has_uncharged else [])
        self._sort_groups(kernel, ctrl_groups, options.group_prefix)
        events = records.count_events()
        ended = {name: events.pop(name) for name in [*events] if name.startswith(COUNTED)}
        self.ended_unmonitored = {name[len(COUNTED) :]: count for name, count in ended.items()}
        """How many runs have ended unmonitored since boot, by reason."""
        self.runs = {
            tuple(name.split("-", 1)): count for name, count in events.items() if "-" in name
        }
        """The number of hook runs by stage and result."""
        self.reconciled = records.glance(ReconcileRecord, "reconcile")
        self.watched = records.glance(WatchRecord, "watch")
        """The record of the watch that runs."""
        self.kept_view = records.glance(ViewRecord, "view")
        self.is_supported = kernel.is_mounted() or (
            kernel.exists(kernel.root) and not system.is_directory(kernel.root + "/info")
        )
        """Whether the machine has resctrl with monitoring,
        as far as it shows before resctrl is mounted.
        """
        self.is_full = records.is_full()
        """Whether the run directory has no room, so that records may be missing."""
        self.unrecorded = events.get("unrecorded", 0)
        """How many failures lack a record, at least."""
        self.dropped_lines = events.get("dropped_lines", 0)
        """The lines of history that were dropped since boot."""
        self.dropped_snapshots = events.get("dropped_snapshots", 0)
        """The snapshots that went early since boot, to make room."""

    def _read_keys(self, kernel: Resctrl, records: Records, ctrl_groups: list[str]) -> None:
        """Read the keys, the use of tasks in no key of these ctrl_groups,
        and the containers that lack a key.
        """
        states = {name: read_state(records, name) for name in records.list_names(KeyState)}
        self.uncharged, readings = _read_all(kernel, ctrl_groups)
        keys = [_read_key(records, kernel, name, state, readings) for name, state in states.items()]
        # What vanished since it was listed is in none of these.
        self.keys = [key for key in keys if isinstance(key, SeenKey)]
        failures = [read_record(records, Failure, name) for name in records.list_names(Failure)]
        self.failures = [failure for failure in failures if isinstance(failure, Failure)]
        self.unreadable = [record for record in (*keys, *failures) if isinstance(record, Broken)]
        self.unhooked = records.glance(Unhooked, "unhooked")
        """The containers without the hook that reconcile found, and still without a record;
        None if it has not run.
        """
        if self.unhooked is not None:
            self.unhooked = leave_out(
                self.unhooked, {*records.list_names(Index), *records.list_names(Failure)}
            )

    def _sort_groups(self, kernel: Resctrl, ctrl_groups: dict[str, list[str]], prefix: str) -> None:
        """Find out which mon_groups are ours, which have lost their record,
        and which other tools have taken.
        """
        recorded = {
            group.record.path for key in self.keys for group in key.groups if not group.has_ended
        }
        paths = {path for mon_groups in ctrl_groups.values() for path in mon_groups}
        lone = [
            path for path in sorted(paths - recorded) if os.path.basename(path).startswith(prefix)
        ]
        _add_taken(self.keys, kernel, paths - recorded - {*lone})
        self.rmids = (
            count_rmids(kernel.root, ctrl_groups, len(recorded & paths) + len(lone))
            if ctrl_groups
            else None
        )
        """None if resctrl is not mounted."""
        uncertain = {broken.name for broken in self.unreadable}
        self.orphans = (
            _find_orphans(kernel, lone, prefix, self.keys, uncertain) if self.host_pids else []
        )
        """Paths of mon_groups; in another namespace it is empty."""

    @property
    def unassigned(self) -> list[str]:
        """The mon_groups that have no hardware counter for memory traffic in some domain."""
        groups = (group for key in self.keys for group in key.groups if group.exists)
        return [group.record.path for group in groups if counters.UNASSIGNED in group.now.values()]

    def list_taken(self) -> list[tuple[SeenKey, str, str]]:
        """List the containers that another tool has taken: the key,
        the container and the path of that tool's group.
        """
        return [
            (key, container, path) for key in self.keys for container, path in key.taken.items()
        ]

    def list_owed(self) -> list[Waiting]:
        """Count the lines of history that wait to be written, by file and reason."""
        counts = Counter[tuple[str, str]]()
        for owed in (owed for key in self.keys for owed in list_owed(key.state)):
            counts[owed.file, owed.why] += len(owed.lines)
        return [Waiting(file, why, number) for (file, why), number in sorted(counts.items())]


def take_snapshot(options: Options, *, has_uncharged: bool = False) -> Inventory:
    """Take a snapshot; if it `has_uncharged`, with the use of tasks in no pod,
    for which it reads all groups' counters.

    Raises HookError `io` if the run directory is unreadable.
    """
    with Records(options.run_dir) as records:
        return Inventory(options, records, has_uncharged=has_uncharged)


def _read_key(
    records: Records,
    kernel: Resctrl,
    name: str,
    state: KeyState | Broken | None,
    readings: Readings,
) -> SeenKey | Broken | None:
    """Read a key, whose record is `state`, with its counters; return None if it does not exist.

    `readings` of counters must be younger than the state. Counters are read between two equal reads
    of the state, so that they belong to its directories. Set against the initial value of another
    directory they would show use that never happened.
    """
    for _ in range(_MOST_READS):
        if not isinstance(state, KeyState):
            return state
        groups = [_read_group(kernel, group, readings) for group in state.groups]
        before, state, readings = state, read_state(records, name), {}
        if isinstance(state, KeyState) and state.groups == before.groups:
            return SeenKey(
                state, groups, {name: _is_alive(member) for name, member in state.members.items()}
            )
    return Broken(name, locate_state(records, name), "it changes faster than it can be read")


def _is_alive(member: Member) -> bool | None:
    is_dead = system.is_dead(member.pid, member.starttime) if host.in_host_namespaces() else None
    return None if is_dead is None else not is_dead


def _read_group(kernel: Resctrl, record: MonGroup, readings: Readings) -> Group:
    if record.end is not None:
        return Group(record, exists=False, now=record.end)
    if record.path in readings:
        return Group(record, exists=True, now=readings[record.path])
    try:
        now = kernel.counters(record.path)
    except HookError:
        now = {}  # it is gone or unreadable: its use is unknown
    return Group(record, exists=not kernel.is_gone(record.path), now=now)


def _add_taken(keys: list[SeenKey], kernel: Resctrl, others: Iterable[str]) -> None:
    """Add the members whose init is in a mon_group of another tool.

    Each is read once for all keys.
    """
    places = {pid: path for path in others for pid in system.try_call(kernel.tasks, path) or ()}
    for key in keys:
        # Pids are the host's, so `alive` must be known.
        inits = {
            container: key.state.members[container].pid
            for container, alive in key.alive.items()
            if alive
        }
        key.taken = {container: places[pid] for container, pid in inits.items() if pid in places}


def _find_orphans(
    kernel: Resctrl, lone: list[str], prefix: str, keys: list[SeenKey], uncertain: set[str]
) -> list[str]:
    """Find the orphans among the mon_groups with our prefix and without a record:
    those without a live member.

    While a key is unreadable (`uncertain`) or being rebuilt, any group may belong to it.
    """
    lived_in = {
        key.state.members[container].group for key in keys for container in key.list_alive()
    }
    uncertain |= {key.state.key for key in keys if key.state.recovering}
    empty = [
        path
        for path in lone
        if path not in lived_in and os.path.basename(path)[len(prefix) :] not in uncertain
    ]
    return [path for path in empty if not kernel.is_gone(path)]


# --- The use of tasks in no pod
#
# A ctrl_group's counters are the sum over its own RMID and those of its mon_groups (resctrl.rst,
# "mon_data"). When a mon_group is removed, its count vanishes from the sum; when one gets an RMID
# that another had, that one's count appears in it. So the sum is no counter, but the difference of
# the sum and the mon_groups is one.


def _read_all(kernel: Resctrl, ctrl_groups: Iterable[str]) -> tuple[Uncharged, Readings]:
    """Return the use of each ctrl_group's own tasks,
    and the readings of the mon_groups, each taken once.

    On a CPU that tracks few RMIDs the sum of a ctrl_group lacks what is untracked, and an RMID that
    is tracked again says so at the first read only. So mon_groups are read before the sum, too: a
    counter that is untracked in one of the two readings may be in the sum or not.
    """
    uncharged: Uncharged = {}
    readings: Readings = {}
    reads_twice = tracks_few(kernel.root)
    for path in ctrl_groups:
        for _ in range(_MOST_READS):
            before = _identify_groups(kernel, path)
            try:
                first = {group: kernel.counters(group) for group in before} if reads_twice else {}
                # The sum first: use between the reads makes the difference too low,
                # and the next read catches up.
                whole = kernel.counters(path)
                parts = {group: kernel.counters(group) for group in before}
            except HookError:
                continue
            if _identify_groups(kernel, path) == before:
                rest = {
                    counter: _subtract(counter, text, parts, first)
                    for counter, text in whole.items()
                }
                rest.update(dict.fromkeys(_list_unassigned(path) & rest.keys(), ""))
                uncharged["/" if path == kernel.root else os.path.basename(path)] = rest
                readings.update(parts)
                break
    return uncharged, readings


def _identify_groups(kernel: Resctrl, path: str) -> dict[str, resctrl.Directory]:
    """Identify the mon_groups of a ctrl_group, so that one that was made again differs."""
    names = system.try_call(system.list_directory, path + "/mon_groups") or ()
    return {
        group: kernel.identify(group) for group in (f"{path}/mon_groups/{name}" for name in names)
    }


def _subtract(counter: str, whole: str, parts: Readings, first: Readings) -> str:
    """Subtract the mon_groups' counters from their ctrl_group's sum,
    which lacks those without a number, too.

    A mon_group that is untracked in one of its readings, before the sum (`first`) and
    after, leaves the rest unknown. So does a sum that has nothing else: the ctrl_group's
    own RMID is untracked itself.
    """
    total = 0 if counters.has_no_data(counter, whole) else counters.parse_number(whole)
    for path, of_group in first.items():
        was, now = of_group.get(counter), parts[path].get(counter)
        if counters.is_untracked(counter, was) is not counters.is_untracked(counter, now):
            return ""
    others = sum(counters.parse_number(part.get(counter)) or 0 for part in parts.values())
    if total is None or (first and total <= others and get_event(counter) in TRAFFIC):
        return ""
    return counters.format_number(max(0, total - others))


def _list_unassigned(path: str) -> set[str]:
    """List the counters that a ctrl_group's own RMID does not have:
    their sum is that of its mon_groups alone.
    """
    lines = (line.partition(":") for line in _read(f"{path}/mbm_L3_assignments").split())
    places = [
        (event, *place.partition("="))
        for event, _, domains in lines
        for place in domains.split(";")
    ]
    return {f"mon_L3_{domain.zfill(2)}/{event}" for event, domain, _, how in places if how == "_"}


# --- Sums of use


def make_total(value: int | None, *, in_part: bool = False, from_nothing: bool = False) -> Total:
    """Make the Total of one counter, whose value may be unknown (None), or known `in_part`."""
    return Total(
        value or 0, int(value is not None), int(in_part or value is None), int(from_nothing)
    )


def add_up(parts: Iterable[tuple[_Name, Total]]) -> dict[_Name, Total]:
    """Add up the parts of each name."""
    sums: dict[_Name, Total] = {}
    for name, part in parts:
        sums[name] = Total(*map(operator.add, sums.get(name, Total()), part))
    return sums


def sum_uses(uses: Iterable[Uses]) -> Uses:
    """Add up uses, by event."""
    return add_up(part for use in uses for part in use.items())


def sum_key(key: SeenKey, *, has_gauges: bool = False) -> Uses:
    """Add up the lifetime use of a key over all domains, by event,
    and gauges as they are if it `has_gauges`.

    If another tool has or had a container of the key, a part of its use is unknown.
    """
    sums = _sum_events(group.totals for group in key.groups)
    gauges = _sum_events(group.gauges for group in key.groups) if has_gauges else {}
    return {**(_mark_part(sums) if key.was_taken else sums), **gauges}


def _sum_events(uses: Iterable[Uses]) -> Uses:
    """Add up the uses of counters, by event."""
    return add_up((get_event(counter), total) for use in uses for counter, total in use.items())


def _mark_part(use: Uses) -> Uses:
    """Mark sums as those of which a part is unknown."""
    return {
        event: total._replace(unknown=total.unknown or total.counted)
        for event, total in use.items()
    }


def get_event(counter: str) -> str:
    """Return the event of a counter `<domain>/<event>`."""
    return counter.rpartition("/")[2]


def to_number(millionths: int | None) -> int | float | None:
    """Convert millionths to whole units, as exactly as JSON readers allow."""
    if millionths is None:
        return None
    return (
        millionths / counters.MILLION
        if millionths % counters.MILLION
        else millionths // counters.MILLION
    )


# --- Rates


class Rates(NamedTuple):
    """The rates of keys that are not completed, in millionths per second;
    the cache has its present occupancy.
    """

    time: str  # RFC 3339, UTC
    seconds: float  # between the snapshots
    keys: list[KeyUse]
    rest: Uses  # of tasks in no key
    node: Uses  # of these and all keys


def compare(first: Inventory, second: Inventory, time: str) -> Rates:
    """Compare two snapshots. A key that only one of them has gets no rate."""
    former = {
        (key.state.key, group.record.path): group for key in first.keys for group in key.groups
    }
    seconds = second.at - first.at
    running = [key for key in second.keys if key.state.completed_at is None]
    rates = [(key, _measure_speed(key, former, seconds)) for key in running]
    of_rest = (
        _list_speeds(first.uncharged.get(path, {}), now, seconds)
        for path, now in second.uncharged.items()
    )
    rest = add_up(chain.from_iterable(of_rest))
    return Rates(time, seconds, rates, rest, sum_uses([rest, *(use for _, use in rates)]))


def _measure_speed(key: SeenKey, former: dict[tuple[str, str], Group], seconds: float) -> Uses:
    """Measure the rates of a key. While another tool has a container of it, a part is unknown."""
    speeds: list[tuple[str, Total]] = []
    for group in (group for group in key.groups if not group.has_ended):
        earlier = former.get((key.state.key, group.record.path))
        # There is nothing to compare another directory with.
        before = earlier.now if earlier is not None and earlier.record == group.record else None
        speeds += _list_speeds(before, group.now, seconds)
    use = add_up(speeds)
    return _mark_part(use) if key.taken else use


def _list_speeds(
    before: dict[str, str] | None, now: dict[str, str], seconds: float
) -> Iterator[tuple[str, Total]]:
    """List the use of each counter per second, if there was something before;
    of the cache what is in use now.
    """
    for counter, text in now.items():
        event, begin = get_event(counter), (before or {}).get(counter)
        if counters.is_untracked(counter, begin):
            begin = None  # what the counter shows now may have been counted long before
        if counters.is_cumulative(counter) and before is not None and seconds > 0:
            used = counters.compute_use(counter, begin, text)
            speed = None if used is None else round(used / seconds)
            yield (
                event,
                make_total(speed, from_nothing=counters.starts_from_nothing(counter, begin, text)),
            )
        elif event == OCCUPANCY:
            yield event, make_total(counters.parse_number(text))


# --- The hardware: its events, its RMIDs, and counters that must be assigned to groups


def list_events(root: str) -> set[str]:
    """Return the events that groups are counted for, from info/*_MON/mon_features."""
    infos = [info for info in _list_infos(root) if info.endswith("_MON")]
    return {event for info in infos for event in _read(f"{info}/mon_features").split()}


def count_rmids(root: str, ctrl_groups: dict[str, list[str]], ours: int) -> Rmids:
    """Count the RMIDs.

    `ctrl_groups` is as from inventory.list_ctrl_groups, and `ours` counts those mon_groups in it.

    On arm64 an RMID is a pair of PARTID (CLOSID) and PMG, and num_rmids is the number of all
    pairs. Each ctrl_group, which has one PARTID, has as many RMIDs as there are PMGs, for
    itself and its mon_groups.
    """
    numbers = [_to_number(_read(f"{info}/num_rmids")) for info in _list_infos(root)]
    limit = min(filter(None, numbers), default=None)
    # arm64's resctrl shows MPAM; no file of it says so.
    # Elsewhere a group takes an RMID of each kind of counter.
    if limit is not None and os.uname().machine in ("aarch64", "aarch64_be"):
        partids = max(_to_number(_read(f"{info}/num_closids")) for info in _list_infos(root))
        limit = max(numbers) // partids * len(ctrl_groups) if partids else None
    return Rmids(limit, ours, len(ctrl_groups) + sum(map(len, ctrl_groups.values())) - ours)


def tracks_few(root: str) -> bool:
    """Return whether the CPU counts memory traffic for some RMIDs at a time only;
    the others show `Unavailable`.

    AMD's CPUs do where the kernel does not assign counters. The source is in counters.is_untracked.
    """
    head = system.try_call(rare.read_start, "/proc/cpuinfo", _LIMIT) or ""
    mode = _read(f"{root}/info/L3_MON/mbm_assign_mode")
    return any(f": {vendor}\n" in head for vendor in _AMD) and (not mode or "[default]" in mode)


def _to_number(text: str) -> int:
    """Parse a number of the kernel's. Any other text is 0."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() else 0


def _read(path: str) -> str:
    """Return a file's text, which is empty if it cannot be read,
    as in a mode that is not enabled (EINVAL).
    """
    return system.try_call(system.read_file, path, _LIMIT) or ""


def _list_infos(root: str) -> list[str]:
    return [
        f"{root}/info/{name}"
        for name in system.try_call(system.list_directory, root + "/info") or ()
    ]
