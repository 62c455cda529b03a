# SPDX-License-Identifier: Apache-2.0
"""Reads the facts of a node once a pass: its records, processes, groups and names.

Changes nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from hook import counters, inventory, names, reclaim, system
from hook.errors import HookError
from hook.models import Failure, Index, KeyState, Member, MonGroup
from hook.node import naming, processes, records
from hook.node.unhooked import ListStates
from hook.reconcile.move import LateCpu

if TYPE_CHECKING:
    from hook.context import Context

# In a pass, of containers with a thread that ended before its group could be read.
_MOST_REREADS = 400


class Scope(NamedTuple):
    """What a run is about, besides its options: which keys live, for how long,
    what it adopts, how it adds up.
    """

    # The keys that live; if it is None, a key is live if a member is.
    live: Collection[str] | None = None
    linger: int | None = None  # a limit on the linger time in each key's record, in seconds
    # Asks for the OCI states of all containers except those that are known, for adoption.
    asks: ListStates | None = None
    # The labels of jobs by which the history is added up; none: those of before.
    sum_labels: Collection[str] = ()
    # After how many seconds what runs is saved beside the history; 0: never.
    checkpoint: float = 300


ALL = Scope()


class Whereabouts(NamedTuple):
    """Where a container was when it was last located."""

    taker: str | None = None  # the path of another tool's group that its init is in
    # Whether its group exists, in the ctrl_group of its init, as far as that is known.
    is_in_place: bool = True
    to_move: int = 0  # its threads outside its group that may be moved in
    # Groups where threads must stay, by path, and how many.
    elsewhere: tuple[tuple[str, int], ...] = ()
    unread: int = 0  # at least so many of its cgroups were not read


class Survey:
    """The node in one pass of reconcile. Paths are those of mon_groups.

    An action reads the index entry of its container again,
    and the whereabouts of a container replace those that were found before.
    """

    def __init__(
        self,
        context: Context,
        late: LateCpu | None = None,
        scope: Scope = ALL,
        around: Collection[int] | None = None,
    ) -> None:
        """Survey the node. Raises HookError `io` if the run directory is unreadable.

        With `around`, only of the processes that have to do with these: those in their families,
        and the inits of the containers in whose cgroups they are.
        """
        self.context = context
        self.late = late or LateCpu()  # counts the late CPU time of what is brought in
        self.live = scope.live
        self._longest_linger = math.inf if scope.linger is None else scope.linger
        self.boottime = system.boottime()
        # OSError: that is unknown.
        self.is_mounted = context.resctrl.exists(f"{context.resctrl.root}/mon_groups")
        # The names of pods and containers.
        self.kubelet = naming.KubeletNames()
        self.podman = naming.PodmanNames(context.run.path)
        self.records = records.read_contents(context.run)
        self.states = self.records.states
        self.indexed: dict[str, dict[str, Index]] = {}  # by key, the containers in the index
        for container, index in self.records.index.items():
            if index is not None:
                self.indexed.setdefault(index.key, {})[container] = index
        # After the records, so that the init of each member is among the processes. This is the
        # only look at all processes in a pass; later looks read single containers.
        own_cgroups = [*self._list_own_cgroups()]
        recorded = records.list_recorded(self.states.values())
        self.groups = processes.Groups(
            context.resctrl, context.options.group_prefix, lambda: recorded
        )
        pids = None if around is None else self._find_inits(around)
        self.processes = processes.look(own_cgroups, pids, self.groups.name_ours)
        for state in self.states.values():
            self.processes.add(self.find_live(state).items())
        self.ctrl_groups = inventory.list_ctrl_groups(context.resctrl.root)
        others = [
            path for paths in self.ctrl_groups.values() for path in paths if path not in recorded
        ]
        # With our prefix, without a record.
        self.orphans = reclaim.find_orphans(context, others) if others else []
        # Of containers, by key and container.
        self.whereabouts: dict[tuple[str, str], Whereabouts] = {}
        # The keys that are to end, and cannot: a live task is in each of their groups.
        self.held: set[str] = set()
        # By key: why it could not be looked at.
        self.unread: dict[str, OSError] = {}
        # Why the kernel gave the last new group no RMID. This pass tries no other group then: each
        # try searches all keys for RMIDs to reclaim, and waits for one that comes back.
        self.refusal: HookError | None = None
        self.rereads_left = _MOST_REREADS
        # The kernel assigns counters to groups, so that a group may lose one
        # (resctrl.rst, "mbm_assign_mode").
        mode = system.try_call(
            system.read_file, f"{context.resctrl.root}/info/L3_MON/mbm_assign_mode"
        )
        self._assigns = "[mbm_" in (mode or "")
        # By group, the counters that it may lose, now and in the last run.
        self.counted: dict[str, dict[str, str]] = {}
        self._former = records.read_reconciled(context.run).counted

    def list_keys(self) -> list[str]:
        """List every key with a record, an index entry or a leftover file."""
        kept = self.records
        keys = [
            *kept.states,
            *kept.unreadable,
            *self.indexed,
            *kept.leftovers,
            *kept.asides,
            *self.lost,
        ]
        return [*dict.fromkeys(filter(None, keys))]

    def is_dead(self, member: Member) -> bool:
        """Whether a member's process is known to be dead."""
        return (
            not self.processes.is_alive(member)
            and system.is_dead(member.pid, member.starttime) is True
        )

    def find_live(self, state: KeyState) -> dict[str, Member]:
        """Return the members of a key that are not known to be dead."""
        return {name: member for name, member in state.members.items() if not self.is_dead(member)}

    def has_lingered(self, state: KeyState) -> bool:
        """Whether the linger time of a key is over, that on its record or the limit."""
        limit = (state.lingering_since or 0.0) + self._longest_linger
        return system.boottime() >= limit or reclaim.has_lingered(self.context, state)

    def is_gone(self, group: MonGroup) -> bool:
        """Whether another tool has removed a group that has not ended."""
        return group.end is None and self.context.resctrl.is_gone(group.path)

    def add_names(self, state: KeyState) -> KeyState:
        """Add names to the record of a key that lacks some, as naming.add_names does."""
        return naming.add_names(state, self.kubelet, self.podman)

    def mark_counters(self, group: MonGroup) -> MonGroup:
        """Mark the counters of a live group that have come or gone with CPUs,
        or started again, since its begin.

        This reads them only if some have come, or if the kernel may take
        away one that was a number.
        """
        begin, machine, kernel = group.begin or {}, self._counters, self.context.resctrl
        may_lose = self._assigns and bool(counters.pick_traffic(begin))
        if (
            group.begin is None
            or group.end is not None
            or not machine
            or (begin.keys() == machine and not may_lose)
        ):
            return group
        if not kernel.has(group):
            return group
        now = {counter: text for counter, text in begin.items() if counter in machine}
        if not may_lose and begin.keys() >= machine:
            return counters.note_stops(group, now, {})
        try:
            read = kernel.counters(group.path)
        except HookError:  # removed since
            return group
        if not read.keys() >= now.keys():  # just being removed, or a domain is
            return group
        name = f"{group.mounted} {group.inode} {group.path}"  # of this directory
        self.counted[name] = {
            counter: read[counter] for counter in counters.pick_traffic(read) if may_lose
        }
        return counters.note_stops(counters.add_late(group, read), read, self._former.get(name, {}))

    # `find_owner`, `owners` and `lost` are for groups that have live tasks, and are on no record:
    # that of their key was lost. The pid and the start time in the index do not replace them. With
    # the whole run directory the index goes, too: then the name of a group is all that says which
    # key to rebuild. Where the index is left, that name may be wrong, since another tool renamed
    # the group, or its prefix is longer: then the indexed processes in it decide.

    def find_owner(self, path: str) -> str | None:
        """Find the key of a group without a record: that of its containers,
        or the one in its name if they have none.

        The text after our prefix is no key if the group was made with a longer prefix, and a key of
        that name must not take over another key's containers. It returns None if the containers
        have several keys, and the name is none of them.
        """
        name = reclaim.parse_key(self.context, path)
        tasks = system.try_call(self.context.resctrl.tasks, path) or set()
        keys = {key for pid in tasks & self._inits.keys() for key in [self._inits[pid]]}
        if name in keys or not keys:
            return name
        return keys.pop() if len(keys) == 1 else None

    @cached_property
    def _inits(self) -> dict[int, str]:
        """The keys of the live processes in the index, by pid."""
        entries = (
            (key, find_process(*entry))
            for key, of_key in self.indexed.items()
            for entry in of_key.items()
        )
        return {
            found[0]: key
            for key, found in entries
            if found is not None and not system.is_dead(*found)
        }

    @cached_property
    def early(self) -> set[str]:
        """The completed keys that are forgotten before their time, since there are too many."""
        return records.find_early(self.states.values())

    @cached_property
    def surplus(self) -> Counter[str]:
        """By key, how many of its lines of history are dropped if they cannot be
        written now: the oldest ones.
        """
        return records.find_surplus(self.states.values())

    @cached_property
    def memberships(self) -> dict[int, list[str]]:
        """The keys that have a live process as a member, by its pid: it should be one."""
        keys: dict[int, list[str]] = {}
        for state in self.states.values():
            for member in filter(self.processes.is_alive, state.members.values()):
                keys.setdefault(member.pid, []).append(state.key)
        return keys

    @cached_property
    def holders(self) -> dict[int, list[tuple[str, str, Member]]]:
        """By process, the members whose it is, each with its key and name, as of the first use."""
        holders: dict[int, list[tuple[str, str, Member]]] = {}
        for state in self.states.values():
            for name, member in state.members.items():
                for pid in self.processes.find_pids(member):
                    holders.setdefault(pid, []).append((state.key, name, member))
        return holders

    @cached_property
    def owners(self) -> dict[str, str | None]:
        """The key of each group without a record, by `find_owner`."""
        return {path: self.find_owner(path) for path in self.orphans}

    @cached_property
    def lost(self) -> dict[str | None, str]:
        """By key, a group without a record that has live tasks.

        Not so one of a completed key: a task outlived its last member,
        and a later run removes the group.
        """
        completed = (state for state in self.states.values() if state.completed_at is not None)
        former = {group.path for state in completed for group in state.groups}
        live = (
            path
            for path in self.orphans
            if path not in former and self.context.resctrl.has_live_task(path)
        )
        return {self.owners[path]: path for path in live}

    @cached_property
    def _counters(self) -> set[str]:
        """The counters that this machine has now."""
        try:
            return set(self.context.resctrl.counters(self.context.resctrl.root))
        except HookError:
            return set()

    def _find_inits(self, pids: Collection[int]) -> list[int]:
        """Return these processes, and the inits of the containers in whose own cgroups they are."""
        places = {place for pid in pids for place in system.cgroups(pid)}

        def is_around(own_cgroup: str | None) -> bool:
            return own_cgroup is not None and any(
                processes.is_within(place, own_cgroup) for place in places
            )

        members = (item for state in self.states.values() for item in state.members.items())
        inits = [
            member.pid
            for name, member in members
            if is_around(processes.find_own_cgroup(name, member))
        ]
        return [*pids, *inits]

    def _list_own_cgroups(self) -> Iterator[str]:
        """List the own cgroups of all members, and of the containers that are not monitored."""
        for state in self.states.values():
            for name, member in state.members.items():
                yield from filter(None, [processes.find_own_cgroup(name, member)])
        for name in self.records.failed:
            failure = self.context.run.glance(Failure, name)
            if (
                failure is not None
                and failure.pid is not None
                and not system.is_dead(failure.pid, failure.starttime)
            ):
                cgroups = (names.find_own(place, name) for place in system.cgroups(failure.pid))
                yield from filter(None, cgroups)


def find_process(name: str, index: Index) -> tuple[int, int] | None:
    """Return the pid and the start time of a container in the index; None:
    its entry is of a version without them.

    A process of a job has both in its name.
    """
    if index.pid is not None and index.starttime is not None:
        return index.pid, index.starttime
    return processes.parse_job_process(name)
