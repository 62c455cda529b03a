# SPDX-License-Identifier: Apache-2.0
"""Takes a snapshot of a node: its keys and their use, its RMIDs, and containers that are not monitored.

It takes no lock and writes nothing, so the node changes meanwhile. State files are replaced at once: each read is
consistent, and so are counters that are read between two equal reads. A record that vanishes in between is left out, an
invalid one is reported.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from hook.base import all_groups, counters, procfs, system
from hook.base.errors import HookError
from hook.base.models import KeyState
from hook.base.resctrl import Resctrl
from hook.node import podman_names
from hook.observe import hardware
from hook.state.records import Records, Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeVar

    from hook.base.models import Failure, Member, MonGroup, Options, ReconcileRecord, WatchRecord
    from hook.observe.hardware import AssignableCounters
    from hook.state.records import Unhooked

    _T = TypeVar("_T")

_MOST_READS = 5


@dataclass(frozen=True)
class Group:
    """A mon_group of a key. `now`: the kernel's counters, or the recorded final ones if it has ended.

    `exists`: whether the kernel has it; False if it has ended, because the path may belong to another group then.
    `read_at`: system.monotonic() of the read. `use`: counters.lifetime, and `known`: counters.at_least, in millionths.
    """

    record: MonGroup
    exists: bool
    read_at: float
    now: dict[str, str]

    @cached_property
    def use(self) -> dict[str, int | None]:
        return counters.lifetime(self.record, self.now)

    @cached_property
    def known(self) -> dict[str, int | None]:
        return counters.at_least(self.record, self.now)

    @property
    def is_over(self) -> bool:
        """Whether this incarnation has ended."""
        return self.record.end is not None

    def list_counters(self) -> list[str]:
        """The names of all its counters, in order."""
        return sorted({**(self.record.begin or {}), **self.now, **self.record.before})


@dataclass(frozen=True)
class Key:
    """A key. `dead`: by container, whether that member is dead; None if unknown in this pid namespace.

    `names`: those that Podman has given to the key and its members, by ID.
    """

    state: KeyState
    groups: list[Group]
    dead: dict[str, bool | None]
    names: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str | None:
        """The name that Podman has given."""
        return self.names.get(self.state.key)

    @property
    def condition(self) -> str:
        """`recovering`, `completed`, `lingering`, `group missing` (another tool removed it) or `live`."""
        if self.state.recovering:
            return "recovering"
        if self.state.completed_at is not None:
            return "completed"
        if self.state.lingering_since is not None and not self.state.members:
            return "lingering"
        return "live" if all(group.exists or group.is_over for group in self.groups) else "group missing"

    @property
    def age(self) -> float | None:
        """Seconds since the key was created, if known."""
        born = self.state.created_boottime
        return None if born is None else max(0.0, system.boottime() - born)

    def list_alive(self) -> list[str]:
        """The members that are not known to be dead."""
        return [container for container, dead in self.dead.items() if dead is not True]

    def is_alive(self, container: str) -> bool | None:
        """Whether a member is alive; None if unknown in this pid namespace."""
        dead = self.dead[container]
        return None if dead is None else not dead

    def count_members(self) -> tuple[int | None, int | None]:
        """The numbers of live and dead members; None if unknown for any member."""
        if None in self.dead.values():
            return None, None
        return len(self.list_alive()), len(self.dead) - len(self.list_alive())


@dataclass(frozen=True)
class Total:
    """A sum of counters, in millionths. `unknown`: of how many a part, or all, is unknown.

    `from_nothing`: how many initial values were not a number and count as 0 (counters.starts_from_nothing).
    """

    known: int = 0
    counted: int = 0
    unknown: int = 0
    from_nothing: int = 0

    def add(self, value: int | None, *, in_part: bool = False, from_nothing: bool = False) -> Total:
        """Add a counter, whose value may be unknown, or known `in_part`."""
        return Total(
            self.known + (value or 0),
            self.counted + (value is not None),
            self.unknown + (in_part or value is None),
            self.from_nothing + from_nothing,
        )

    def __add__(self, other: Total) -> Total:
        return Total(
            self.known + other.known,
            self.counted + other.counted,
            self.unknown + other.unknown,
            self.from_nothing + other.from_nothing,
        )

    @property
    def at_least(self) -> bool:
        """Whether the value is only a part of the sum."""
        return self.unknown > 0 and self.counted > 0

    @property
    def value(self) -> int | None:
        """The sum of the known values; None if there is none."""
        return self.known if self.counted else None


@dataclass(frozen=True)
class Rmids:
    """The RMIDs of the machine. `limit`: the smallest of info/*/num_rmids, None if there is none.

    `ours`, `others`: RMIDs in use, one for each group. Ours are mon_groups with our prefix or on record. Where each
    ctrl_group has RMIDs of its own (arm64): `each`, how many; `full`, the ctrl_groups that have none left; `limit`,
    those of the ctrl_groups that exist.
    """

    limit: int | None
    ours: int
    others: int
    each: int | None = None
    full: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inventory:
    """A snapshot. `rmids`: None if resctrl is not mounted. `orphans`: paths of mon_groups.

    `at`: system.monotonic() of the snapshot. `runs`: the number of hook runs by stage and result. `unhooked`: the
    containers without the hook that reconcile found; None if it has not run. `reconciled`: what it has done since boot.
    `watched`: what the `watch` that runs has done. `host_pids`: whether this is the host's pid namespace; elsewhere
    dead members cannot be recognized, and `orphans` is empty. `assignable`: None if each group has its own hardware
    counters. `is_full`, `unrecorded`: whether records of failures may be missing, and how many are at least.
    """

    at: float
    keys: list[Key]
    unreadable: list[Unreadable]
    failures: list[Failure]
    unreadable_failures: list[Unreadable]
    rmids: Rmids | None
    orphans: list[str]
    runs: dict[tuple[str, str], int]
    unhooked: Unhooked | None
    reconciled: ReconcileRecord | None
    watched: WatchRecord | None
    host_pids: bool
    assignable: AssignableCounters | None
    is_full: bool
    unrecorded: int

    @property
    def unassigned(self) -> list[str]:
        """The mon_groups that have no hardware counter for memory traffic in some domain."""
        groups = (group for key in self.keys for group in key.groups if group.exists)
        return [group.record.path for group in groups if hardware.UNASSIGNED in group.now.values()]

    def list_unreadable(self) -> list[Unreadable]:
        """The records that cannot be understood."""
        return [*self.unreadable, *self.unreadable_failures]


def take_snapshot(options: Options) -> Inventory:
    """Take a snapshot. Raises HookError `io` if the run directory is unreadable."""
    at = system.monotonic()
    kernel = Resctrl(options.resctrl_root)
    with Records(options.run_dir) as records:
        # The groups first: createRuntime records a member before it makes the group.
        ctrl_groups = all_groups.list_ctrl_groups(kernel.root) if kernel.is_mounted() else {}
        keys, unreadable = _split_unreadable(read_key(records, kernel, name) for name in records.recorded())
        failures, broken = _split_unreadable(records.failure(name) for name in records.failed())
        runs = records.runs()
        reconciled, watched = records.reconciled(), records.watched()
        unhooked = records.unhooked()
        is_full, unrecorded = records.is_full(), records.unrecorded()
        if unhooked is not None:
            unhooked = unhooked.without({*records.indexed(), *records.failed()})
    keys = add_podman_names(keys)
    prefix = options.group_prefix
    mon_groups = [path for paths in ctrl_groups.values() for path in paths]
    recorded = {group.record.path for key in keys for group in key.groups if not group.is_over}
    ours = sum(path in recorded or _base_name(path).startswith(prefix) for path in mon_groups)
    rmids = _count_rmids(kernel.root, ctrl_groups, ours) if ctrl_groups else None
    orphans = _find_orphans(
        (path for path in mon_groups if _base_name(path).startswith(prefix)), prefix, keys, unreadable
    )
    host_pids = procfs.in_host_pid_namespace()
    orphans = orphans if host_pids else []
    assignable = hardware.read_assignable(kernel.root)
    return Inventory(
        at,
        keys,
        unreadable,
        failures,
        broken,
        rmids,
        orphans,
        runs,
        unhooked,
        reconciled,
        watched,
        host_pids,
        assignable,
        is_full,
        unrecorded,
    )


def read_key(records: Records, kernel: Resctrl, name: str) -> Key | Unreadable | None:
    """A key with its counters; None if it does not exist."""
    for _ in range(_MOST_READS):
        state = records.state(name)
        if not isinstance(state, KeyState):
            return state
        groups = [_read_group(kernel, group) for group in state.groups]
        # If the state is unchanged, the counters belong to its incarnations. Compared with the initial value of another
        # incarnation they would show use that never happened.
        after = records.state(name)
        if isinstance(after, KeyState) and after.groups == state.groups:
            is_known = procfs.in_host_pid_namespace()
            return Key(after, groups, {it: _is_dead(who) if is_known else None for it, who in after.members.items()})
    return Unreadable(name, records.file(name), "it changes faster than it can be read")


def add_podman_names(keys: list[Key]) -> list[Key]:
    """The keys with the names that Podman has given. Reads its storage only if there is a key without a pod."""
    if all(it.state.kind == "pod" for it in keys):
        return keys
    given = podman_names.read_names()
    return [replace(it, names=_only(given, [it.state.key, *it.state.members])) for it in keys]


def _only(given: dict[str, str], wanted: Iterable[str]) -> dict[str, str]:
    return {container: given[container] for container in wanted if container in given}


def sum_by_event(groups: Iterable[Group]) -> dict[str, Total]:
    """The lifetime use of all these groups and domains, by event. An event without any counter is absent."""
    found: dict[str, Total] = {}
    for group in groups:
        begin = group.record.begin or {}
        for counter, use in group.use.items():
            from_nothing = counters.starts_from_nothing(counter, begin.get(counter))
            event, known = _base_name(counter), group.known[counter]
            found[event] = found.get(event, Total()).add(known, in_part=use is None, from_nothing=from_nothing)
    return found


def add_up(uses: Iterable[dict[str, Total]]) -> dict[str, Total]:
    """The sums of these uses, by event."""
    found: dict[str, Total] = {}
    for use in uses:
        for event, total in use.items():
            found[event] = found.get(event, Total()) + total
    return found


def to_number(millionths: int | None) -> int | float | None:
    """Millionths as a number of whole units, as exact as JSON readers allow."""
    if millionths is None:
        return None
    return millionths / counters.MILLION if millionths % counters.MILLION else millionths // counters.MILLION


def _count_rmids(root: str, ctrl_groups: dict[str, list[str]], ours: int) -> Rmids:
    others = len(ctrl_groups) + sum(map(len, ctrl_groups.values())) - ours
    if not hardware.is_arm64():
        return Rmids(all_groups.read_rmid_limit(root), ours, others)
    each = hardware.read_rmids_of_ctrl_group(root)
    if each is None:
        return Rmids(None, ours, others)
    full = [path for path, mon_groups in ctrl_groups.items() if 1 + len(mon_groups) >= each]
    return Rmids(each * len(ctrl_groups), ours, others, each, tuple(path[len(root) + 1 :] or "/" for path in full))


def _base_name(path: str) -> str:
    return path.rpartition("/")[2]


def _is_dead(member: Member) -> bool | None:
    return procfs.is_dead(member.pid, member.starttime)


def _read_group(kernel: Resctrl, record: MonGroup) -> Group:
    read_at = system.monotonic()
    if record.end is not None:
        return Group(record, exists=False, read_at=read_at, now=record.end)
    try:
        now = kernel.counters(record.path)
    except HookError:
        now = {}  # it is gone or unreadable: its use is unknown
    return Group(record, exists=system.is_directory(record.path), read_at=read_at, now=now)


def _find_orphans(paths: Iterable[str], prefix: str, keys: list[Key], unreadable: list[Unreadable]) -> list[str]:
    """Our groups without a record and without a live member, if they still exist.

    A group whose members are all dead is not an orphan: its key may linger, or wait for a restart (CrashLoopBackOff);
    otherwise reconcile ends it. Any group may belong to an unreadable key.
    """
    known = {group.record.path for key in keys for group in key.groups if not group.is_over}
    known |= {key.state.members[container].group for key in keys for container in key.list_alive()}
    uncertain = {it.name for it in unreadable} | {key.state.key for key in keys if key.state.recovering}
    lone = (path for path in paths if path not in known and _base_name(path)[len(prefix) :] not in uncertain)
    return [path for path in lone if system.is_directory(path)]


def _split_unreadable(found: Iterable[_T | Unreadable | None]) -> tuple[list[_T], list[Unreadable]]:
    """The readable and the unreadable ones; a vanished one is in neither."""
    readable: list[_T] = []
    unreadable: list[Unreadable] = []
    for it in found:
        if isinstance(it, Unreadable):
            unreadable.append(it)
        elif it is not None:
            readable.append(it)
    return readable, unreadable
