# SPDX-License-Identifier: Apache-2.0
"""Reads the facts for the diagnosis of a node: once a pass those of all keys, and for each key its groups' tasks.

Changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from hook import cgroups, procfs, record, resctrl, retry, system
from hook.entry import Context
from hook.errors import UNNAMED, HookError
from hook.models import Failure, Index, KeyState, Member, MonGroup, State
from hook.node import engines, podman, processes, records
from hook.node.models import Unhooked
from hook.node.processes import Groups, Process, Processes
from hook.node.records import Broken, Records
from hook.reconcile.move import INSIDE, OUTSIDE, is_of_parent, locate
from hook.store import RunDir

_LOOKS = 20  # at a container with a thread that ended before its group could be read, ...
_FURTHER_LOOKS = 400  # ... and after the first ones at all containers in a pass
ListStates = Callable[[Collection[str]], tuple[list[State], list[str]]]
Place = tuple[str, str]
"""A key and one of its containers."""


class Outside(NamedTuple):
    """The number of a container's threads outside its group, by the last look.

    `elsewhere`: those in another ctrl_group or another tool's group, which stay there, by the path of that group.
    `unread`: at least so many of its cgroups were not read.
    """

    to_move: int = 0
    elsewhere: tuple[tuple[str, int], ...] = ()
    unread: int = 0


class Survey:
    """The node in one pass of reconcile. Paths are those of mon_groups; `boottime`: when it began (CLOCK_BOOTTIME, s).

    `live`: the keys that --live names as live; None: a key is live if a member is. `processes`: the only look at all
    processes in a pass; later looks read single containers. `groups` finds the group of a task. `kubelet`, `podman`:
    their names of pods and containers.
    """

    def __init__(self, context: Context, live: Collection[str] | None = None) -> None:
        """Survey the node. Raises HookError `io` if the run directory is unreadable."""
        run = context.run
        self.context = context
        self.live = live
        self.boottime = system.boottime()
        self.is_mounted = system.find_directory(f"{context.resctrl.root}/mon_groups")  # OSError: that is unknown
        self.kubelet, self.podman = engines.KubeletNames(), podman.Names()
        with Records(run.path) as listed:
            found = {key: listed.state(key) for key in listed.names(KeyState)}
            self.failed = listed.names(Failure)
            self.index = {it: records.glance_index(listed, it) for it in listed.names(Index)}
            """The key of each container in the index; None: its entry is unreadable."""
        self.states = {key: state for key, state in found.items() if isinstance(state, KeyState)}
        self.unreadable = {key for key, state in found.items() if isinstance(state, Broken)}
        self.half_failures = records.find_half_written(run, Failure)
        """Containers whose failure record is incomplete, because the hook was killed."""
        self.asides = _group(records.find_old_asides(run))
        """The unreadable files that were set aside more than a day ago, by key."""
        self.indexed = _group((key, it) for it, key in self.index.items() if key is not None)
        """The containers in the index, by key."""
        self.leftovers = self._find_leftovers()
        # After the records, so that the init of each member is among the processes.
        self.processes = processes.look(processes.find_nested(self._list_own_cgroups()))
        self.processes.add(it for state in self.states.values() for it in self.find_live(state).items())
        recorded = records.list_recorded(self.states.values())
        self.groups = Groups(context.resctrl, context.options.group_prefix, lambda: recorded)
        others = [it for it in resctrl.list_mon_groups(context.resctrl.root) if it not in recorded]
        self.orphans = retry.find_orphans(context, others) if others else []
        """The groups with our prefix and without a record."""

    def is_listed(self, key: str | None) -> bool | None:
        """Whether the list of --live has a key; None: there is no such list."""
        return key in self.live if self.live is not None else None

    def list_keys(self) -> list[str]:
        """Every key with a record, an index entry or a leftover file."""
        return list(dict.fromkeys([*self.states, *self.unreadable, *self.indexed, *self.leftovers, *self.asides]))

    def is_dead(self, member: Member) -> bool:
        """Whether a member's process is known to be dead."""
        return not self.processes.is_alive(member) and procfs.is_dead(member.pid, member.starttime) is True

    def find_live(self, state: KeyState) -> dict[str, Member]:
        """The members of a key that are not known to be dead."""
        return {name: member for name, member in state.members.items() if not self.is_dead(member)}

    def is_running(self, container: str) -> bool:
        """Whether a process is in a cgroup that is named after this container, which has a failure record.

        False for a record of an unknown container (UNNAMED), which any process could keep alive by its cgroup's name.
        """
        return not container.startswith(UNNAMED) and container in self._running

    def is_gone(self, group: MonGroup) -> bool:
        """Whether another tool has removed a group that has not ended."""
        return group.end is None and self.context.resctrl.is_gone(group.path)

    def has_late_counters(self, state: KeyState) -> bool:
        """Whether a key's initial counters lack some that exist now. Reads only the groups that may lack one."""
        groups = (it for it in state.groups if it.begin is not None and not it.begin.keys() >= self._counters)
        return any(add_late_counters(self.context, group) is not group for group in groups)

    @cached_property
    def surplus(self) -> records.Surplus:
        """What has to go of completed keys, so that the next container has room."""
        return records.find_surplus(self.context.run, self.states.values())

    @cached_property
    def completed_groups(self) -> set[str]:
        """The paths of the groups that completed keys had."""
        return {it.path for state in self.states.values() if state.completed_at is not None for it in state.groups}

    @cached_property
    def owners(self) -> dict[str, str | None]:
        """The key of each orphan, by `find_owner`."""
        return {path: find_owner(self, path) for path in self.orphans}

    @cached_property
    def ctrl_groups(self) -> list[str]:
        """The paths of all ctrl_groups."""
        return [*resctrl.list_ctrl_groups(self.context.resctrl.root)]

    @cached_property
    def _running(self) -> set[str | None]:
        known = {*self.failed, *self.index}
        return {cgroups.find_container(place, known) for place in self.processes.cgroups()}

    @cached_property
    def _counters(self) -> set[str]:
        """The counters that this machine has now."""
        try:
            return set(self.context.resctrl.counters(self.context.resctrl.root))
        except HookError:
            return set()

    def _list_own_cgroups(self) -> Iterator[str]:
        """The own cgroups of all members, and of the containers that are not monitored."""
        for state in self.states.values():
            yield from (
                it.cgroup for name, it in state.members.items() if it.cgroup and cgroups.is_own(it.cgroup, name)
            )
        for name in self.failed:
            failure = self.context.run.glance(Failure, name)
            if failure is not None and failure.pid is not None and not procfs.is_dead(failure.pid, failure.starttime):
                yield from filter(None, (procfs.find_own(it, name) for it in procfs.cgroups(failure.pid)))

    def _find_leftovers(self) -> set[str]:
        """The keys with temporary files of a hook that was killed, or with a view that they must not have."""
        unfinished = {key for key, state in self.states.items() if state.completed_at is None}
        needed = {key for key, state in self.states.items() if state.generation} | self.unreadable
        return {
            *records.find_leftovers(self.context.run, unfinished),
            *({*self.context.run.list_part("mon_groups")} - needed),
        }


class Looks:
    """What a pass has learnt since its survey. Each look at a container replaces what the last one found."""

    def __init__(self, seen: Survey, unwritable: dict[str, str] | None = None) -> None:
        # By key and container: its threads outside its group; and the other tool's group that its init is in, by path.
        self.outside: dict[Place, Outside] = {}
        self.taken: dict[Place, str] = {}
        # By key: why it could not be looked at.
        self.unread: dict[str, OSError] = {}
        # Why the kernel gave the last new group no RMID. This pass tries no other group then: each try searches all
        # keys for RMIDs to reclaim, and waits for one that comes back.
        self.refusal: HookError | None = None
        # By file of the history: why this run could not write to it. It tries no other line there.
        self.unwritable = unwritable if unwritable is not None else {}
        self.further_looks = _FURTHER_LOOKS
        self._index = dict(seen.index)

    def find_key(self, container: str) -> str | None:
        """The key of a container in the index; None: it has no readable entry."""
        return self._index.get(container)

    def read_index(self, run: RunDir, container: str) -> None:
        """Read the entry of a container again, under its key's lock."""
        self._index[container] = records.glance_index(run, container)


def find_adoptable(seen: Survey, list_states: ListStates) -> tuple[list[State], list[str]]:
    """Find the running containers without a record, for --adopt; also returns a line for each problem."""
    former = seen.context.run.glance(Unhooked, "unhooked")
    members = {container for state in seen.states.values() for container in state.members}
    return list_states(members.union(former.sandboxes if former is not None else ()))


def _group(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Collect the second items of these pairs by their first items."""
    found: dict[str, list[str]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def add_late_counters(context: Context, group: MonGroup) -> MonGroup:
    """Mark the counters of a live group that appeared later, for example of CPUs that were offline."""
    if group.begin is None or group.end is not None or context.resctrl.inode(group.path) != group.inode:
        return group
    try:
        return record.add_late(group, context.resctrl.counters(group.path))
    except HookError:  # removed since
        return group


# --- The owner of a group without a record


def find_owner(seen: Survey, path: str) -> str | None:
    """The key of a group without a record: the key of its containers, or the one in its name if they have none.

    The text after our prefix is no key if the group was made with a longer prefix, and a key of that name must not take
    over another key's containers. None: the containers have several keys, and the name is none of them.
    """
    name = retry.parse_key(seen.context, path)
    keys = {key for key in map(seen.index.get, find_containers(seen, path)) if key is not None}
    if name in keys or not keys:
        return name
    return keys.pop() if len(keys) == 1 else None


def find_containers(seen: Survey, path: str) -> dict[str, Process]:
    """The containers that have processes in a group, each with its init: the one that started first.

    The cgroups' names decide: a container of the index, the group's own key, or a text that looks like an ID. Only
    processes of the survey count, and only if they are still alive.
    """
    known = {*seen.index, retry.parse_key(seen.context, path) or ""}
    before = seen.processes.by_pid
    tasks = system.try_call(seen.context.resctrl.tasks, path) or set()
    now = (system.try_call(processes.look_at, pid) for pid in tasks & before.keys())
    there = [it for it in now if it is not None and it.starttime == before[it.pid].starttime]
    found: dict[str, Process] = {}
    for it in sorted(there, key=lambda it: (it.starttime, it.pid)):
        for name in (cgroups.find_container(place, known) for place in it.cgroups):
            if name is not None:
                found.setdefault(name, it)
    return found


# --- The threads of one key


class Threads:
    """Compares the threads in the groups of one key with those of its containers."""

    def __init__(self, seen: Survey, looks: Looks, state: KeyState) -> None:
        self._seen = seen
        self._looks = looks
        self._key = state.key
        kernel = seen.context.resctrl
        found = [it for it in state.groups if kernel.exists(it.path)]
        there = [it.path for it in found if it.inode in (None, kernel.inode(it.path))]
        # Path of a group -> IDs of the threads in it; None if the group is gone or was recreated.
        self._inside = {path: kernel.tasks(path) for path in there}
        # Path of a group -> IDs of the threads of the containers that were looked at so far.
        self._owned: dict[str, set[int]] = {group.path: set() for group in state.groups}

    def look_for_taker(self, container: str, member: Member) -> str | None:
        """The path of the group of another tool that a container's init is in (Looks.taken); None: it is in none."""
        place = self._key, container
        self._looks.taken.pop(place, None)
        taker = self._find_init(member)
        if taker is None or taker == member.group or not self._seen.groups.is_others(taker):
            return None
        self._looks.taken[place] = taker
        return taker

    def is_in_place(self, member: Member) -> bool:
        """Whether a container's group exists, and its init is in the same ctrl_group, as far as that is known."""
        if self._inside.get(member.group) is None:
            return False
        place = self._find_init(member)
        return place is None or is_of_parent(member.group, place)

    def _find_init(self, member: Member) -> str | None:
        """The path of the group that a container's init is in; None: it has ended, or this is unknown."""
        is_inside = member.pid in (self._inside.get(member.group) or ())
        return member.group if is_inside else self._seen.groups.find(member.pid)

    def count_outside(self, container: str, member: Member) -> int:
        """Count the threads of a container that are outside its group and may be moved in: none, if it is taken."""
        processes, there = self._seen.processes, self._inside.get(member.group) or set()
        own = processes.read_own_cgroup(member)
        fresh, unread = own if own is not None else (set[int](), 0)
        of_container = processes.beside_own_cgroup if own is not None and not unread else processes.of_container
        threads = processes.threads(of_container(member)) | fresh
        self._owned[member.group] |= threads
        if (self._key, container) in self._looks.taken:
            self._looks.outside.pop((self._key, container), None)
            return 0
        # A new thread that has ended by now may be part of a chain of forks. Older ones may just have ended.
        missing = {tid for tid in threads - there if tid in fresh or not procfs.is_dead(tid)}
        places = self._locate(member, missing)
        to_move = places[OUTSIDE] + places[None]
        elsewhere = ((path, places[path]) for path in places if path not in (INSIDE, OUTSIDE, None))
        self._looks.outside[self._key, container] = Outside(to_move, tuple(elsewhere), unread)
        return to_move

    def _locate(self, member: Member, missing: set[int]) -> Counter[str | None]:
        """Count the places of threads that seem to be outside, as `locate` says; None: ended, or shown by no file.

        A program that forks and exits in its group can end before its place is read. So this looks again until a thread
        is known to be outside, or none ended too early. After the last look those that ended count.
        """
        context, groups = self._seen.context, self._seen.groups
        places: dict[int, str | None] = {}
        for _ in range(_LOOKS):
            places = {tid: locate(groups, tid, member.group) for tid in missing}
            ended = {tid for tid, place in places.items() if place is None and procfs.is_dead(tid)}
            is_known = not ended or OUTSIDE in places.values()
            own = None if is_known or not self._looks.further_looks else self._seen.processes.read_own_cgroup(member)
            if own is None:
                break
            self._looks.further_looks -= 1
            missing = (missing - ended - own.tids) | (own.tids - (context.resctrl.tasks(member.group) or set()))
        return Counter(places.values())

    def find_strangers(self, path: str, live: dict[str, Member]) -> set[int]:
        """The threads in a group that are in no cgroup of a member, once all live members were looked at."""
        seen = self._seen
        found = find_strangers((self._inside.get(path) or set()) - self._owned[path], live, seen.processes)
        if not found:
            return found
        # The record was read before the tasks. A container may have joined in between: check again with a new one.
        now = seen.context.run.glance(KeyState, self._key)
        return find_strangers(found, seen.find_live(now), seen.processes) if now is not None else set()


def find_strangers(tids: set[int], live: dict[str, Member], processes: Processes) -> set[int]:
    """Choose the threads that are in no member's cgroup. `tids`: threads in a key's group that no known process has.

    None if a member has no cgroup of its own: its processes cannot be recognized. A thread that started after the look
    at the processes may be a member's child that has left its cgroup: the next look decides.
    """
    if not tids or not live or not all(cgroups.is_own(it.cgroup, container) for container, it in live.items()):
        return set()
    return {tid for tid in tids if _is_alive_elsewhere(tid, live) and not processes.is_newer(tid)}


def _is_alive_elsewhere(tid: int, live: dict[str, Member]) -> bool:
    """Whether a task is alive, and in no cgroup of these members. A thread has the cgroups of its process."""
    places = procfs.cgroups(tid)
    if not places or procfs.is_dead(tid) is not False:
        return False
    outer = [member.cgroup for member in live.values() if member.cgroup is not None]
    return not any(cgroups.is_within(place, cgroup) for place in places for cgroup in outer)
