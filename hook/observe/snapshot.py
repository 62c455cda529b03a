"""A look at a node, for people: its keys and what they used, its RMIDs, and what runs unmonitored.

It takes no lock and writes nothing, so the node changes meanwhile. A state file is replaced whole: one read of it is
consistent, and so are the counters that are read between two reads of the same. What vanishes between two reads is not
there; what cannot be understood is reported, and the rest is shown.
"""

from __future__ import annotations

from dataclasses import dataclass

from hook.base import counters, procfs, system
from hook.base.errors import HookError
from hook.base.models import KeyState
from hook.base.resctrl import Resctrl
from hook.state.records import Records, Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeVar

    from hook.base.models import Failure, Member, MonGroup, Options
    from hook.state.records import Unhooked

    _T = TypeVar("_T")

_MOST_LOOKS = 5


@dataclass(frozen=True)
class Group:
    """A mon_group of a key. `now`: its counters, which are the end of one that is over, else what the kernel says.

    `exists`: whether the kernel has it; never looked at once it is over, for then the path may be somebody else's.
    `read_at`: system.monotonic() of that look. `use`: counters.lifetime, in millionths.
    """

    record: MonGroup
    exists: bool
    read_at: float
    now: dict[str, str]
    use: dict[str, int | None]

    @property
    def is_over(self) -> bool:
        """Whether this incarnation has ended."""
        return self.record.end is not None


@dataclass(frozen=True)
class Key:
    """A key. `dead`: by container, whether that member is dead; None where this /proc cannot tell."""

    state: KeyState
    groups: list[Group]
    dead: dict[str, bool | None]

    @property
    def condition(self) -> str:
        """`recovering`, `completed`, `lingering`, `group missing` (somebody else removed it) or `live`."""
        if self.state.recovering:
            return "recovering"
        if self.state.completed_at is not None:
            return "completed"
        if self.state.lingering_since is not None and not self.state.members:
            return "lingering"
        return "live" if all(group.exists or group.is_over for group in self.groups) else "group missing"

    @property
    def age(self) -> float | None:
        """Seconds since the key was created, where that is known."""
        born = self.state.created_boottime
        return None if born is None else max(0.0, system.boottime() - born)

    def alive(self) -> list[str]:
        """The members that are not known to be dead."""
        return [container for container, dead in self.dead.items() if dead is not True]


@dataclass(frozen=True)
class Total:
    """A sum over several counters, in millionths. `unknown`: how many are missing in it.

    `from_nothing`: how many begins were no number and count as zero (counters.starts_from_nothing).
    """

    known: int = 0
    counted: int = 0
    unknown: int = 0
    from_nothing: int = 0

    def plus(self, value: int | None, *, from_nothing: bool = False) -> Total:
        """The sum with one more counter in it, whose value may be unknown."""
        return Total(
            self.known + (value or 0),
            self.counted + (value is not None),
            self.unknown + (value is None),
            self.from_nothing + from_nothing,
        )

    @property
    def value(self) -> int | None:
        """The sum of what is known; None if nothing is."""
        return self.known if self.counted else None


@dataclass(frozen=True)
class Rmids:
    """The RMIDs of the machine. `limit`: the smallest of info/*/num_rmids, None if there is none.

    `ours`, `others`: those in use, one for each group. Ours are mon_groups with our prefix, or on record as ours.
    """

    limit: int | None
    ours: int
    others: int


@dataclass(frozen=True)
class Inventory:
    """What was seen in one look. `rmids`: None where resctrl is not mounted. `orphans`: paths of mon_groups.

    `at`: system.monotonic() of the look. `runs`: how often which stage had which result. `unhooked`: what reconcile
    found of containers that were never hooked; None: it has not looked. `host_pids`: whether this is the host's pid
    namespace; elsewhere nothing tells who is dead, and no group is called an orphan.
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
    host_pids: bool


def look(options: Options) -> Inventory:
    """One look at the node. HookError `io` where the run directory cannot be read."""
    at = system.monotonic()
    kernel = Resctrl(options.resctrl_root)
    with Records(options.run_dir) as records:
        # The groups first: createRuntime records a member before it makes the group.
        ctrl_groups = kernel.ctrl_groups() if kernel.is_mounted() else {}
        keys, unreadable = _sorted_out(look_at(records, kernel, name) for name in records.recorded())
        failures, broken = _sorted_out(records.failure(name) for name in records.failed())
        runs = records.runs()
        unhooked = records.unhooked()
        if unhooked is not None:
            unhooked = unhooked.without({*records.indexed(), *records.failed()})
    prefix = options.group_prefix
    mon_groups = [path for paths in ctrl_groups.values() for path in paths]
    recorded = {group.record.path for key in keys for group in key.groups if not group.is_over}
    ours = sum(path in recorded or _name(path).startswith(prefix) for path in mon_groups)
    others = len(ctrl_groups) + len(mon_groups) - ours
    rmids = Rmids(kernel.rmid_limit(), ours, others) if ctrl_groups else None
    orphans = _orphans((path for path in mon_groups if _name(path).startswith(prefix)), prefix, keys, unreadable)
    host_pids = procfs.in_host_pid_namespace()
    orphans = orphans if host_pids else []
    return Inventory(at, keys, unreadable, failures, broken, rmids, orphans, runs, unhooked, host_pids)


def look_at(records: Records, kernel: Resctrl, name: str) -> Key | Unreadable | None:
    """A key with its counters; None if it is not there, or not any more."""
    for _ in range(_MOST_LOOKS):
        state = records.state(name)
        if not isinstance(state, KeyState):
            return state
        groups = [_look_at_group(kernel, group) for group in state.groups]
        # With an unchanged state the counters are of the incarnations that it tells of: a value that is set against
        # another one's begin would look like use that never was.
        after = records.state(name)
        if isinstance(after, KeyState) and after.groups == state.groups:
            tells = procfs.in_host_pid_namespace()
            return Key(after, groups, {it: _is_dead(who) if tells else None for it, who in after.members.items()})
    return Unreadable(name, records.file(name), "it changes faster than it can be read")


def totals(groups: Iterable[Group]) -> dict[str, Total]:
    """The lifetime use of all these groups in all their domains, by event; one that nothing was kept of is absent."""
    found: dict[str, Total] = {}
    for group in groups:
        begin = group.record.begin or {}
        for counter, use in group.use.items():
            from_nothing = counters.starts_from_nothing(counter, begin.get(counter))
            event = _name(counter)
            found[event] = found.get(event, Total()).plus(use, from_nothing=from_nothing)
    return found


def plain_number(millionths: int | None) -> int | float | None:
    """Millionths as a number of whole units, as exact as JSON's readers take it."""
    if millionths is None:
        return None
    return millionths / counters.MILLION if millionths % counters.MILLION else millionths // counters.MILLION


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _is_dead(member: Member) -> bool | None:
    return procfs.is_dead(member.pid, member.starttime)


def _look_at_group(kernel: Resctrl, record: MonGroup) -> Group:
    read_at = system.monotonic()
    if record.end is not None:
        return Group(record, exists=False, read_at=read_at, now=record.end, use=counters.lifetime(record, record.end))
    try:
        now = kernel.counters(record.path)
    except HookError:
        now = {}  # it is gone, or cannot be read: what it used is unknown
    use = counters.lifetime(record, now)
    return Group(record, exists=system.is_directory(record.path), read_at=read_at, now=now, use=use)


def _orphans(paths: Iterable[str], prefix: str, keys: list[Key], unreadable: list[Unreadable]) -> list[str]:
    """Those of our groups that neither a record nor a live member stands behind, and that are still there.

    Members that are all dead make no orphan: their key may linger, or wait for its next start (CrashLoopBackOff); else
    reconcile ends it. Of an unreadable key any group may be on record.
    """
    known = {group.record.path for key in keys for group in key.groups if not group.is_over}
    known |= {key.state.members[container].group for key in keys for container in key.alive()}
    unsure = {it.name for it in unreadable} | {key.state.key for key in keys if key.state.recovering}
    lone = (path for path in paths if path not in known and _name(path)[len(prefix) :] not in unsure)
    return [path for path in lone if system.is_directory(path)]


def _sorted_out(found: Iterable[_T | Unreadable | None]) -> tuple[list[_T], list[Unreadable]]:
    """What could be read, and what could not; what vanished is in neither."""
    readable: list[_T] = []
    unreadable: list[Unreadable] = []
    for it in found:
        if isinstance(it, Unreadable):
            unreadable.append(it)
        elif it is not None:
            readable.append(it)
    return readable, unreadable
