# SPDX-License-Identifier: Apache-2.0
"""Reads the facts of a node once a pass, and decides which actions it needs. Changes nothing.

Each rule is written here once. A pass lists all actions, without a lock. Before an action is done, those of its key are
listed again under the key's lock, and it is skipped unless it is still among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import NamedTuple

from hook import counters, identity, names, reclaim, resctrl, system, validation
from hook.context import Context
from hook.errors import HookError
from hook.key import find_removable, history_of
from hook.models import Failure, KeyState, Member, MonGroup, State
from hook.node import engines, processes, records, runtimes
from hook.node.models import ReconcileRecord
from hook.node.processes import Groups, Process, Processes, is_own_cgroup, is_within
from hook.reconcile.move import INSIDE, OUTSIDE, is_of_parent, locate
from hook.report import format_count, short_id, who
from hook.store import RunDir
from hook.view import name_generation

_FREE_RMIDS = ("rebuild", "drop", "end", "remove", "evict")
BRING_IN = ("remake", "adopt", "retry")
"""Those that take RMIDs and move threads, for which they may wait."""
_TIDY_UP = ("note", "retire", "forget", "name", "prune", "show", "tidy", "write")
VERBS = (*_FREE_RMIDS, *BRING_IN, *_TIDY_UP)
"""In the order of execution."""
EARLY = "what is kept of completed keys takes more than a quarter of the run directory's file system"
"""Why a snapshot is pruned before its time."""
_NOT_AGAIN = ("usage", "bad_state", "bad_key")
_LOOKS = 20  # at a container with a thread that ended before its group could be read
_FURTHER_LOOKS = 400  # in a pass, at containers with a thread that ended before its group could be read


class Look(NamedTuple):
    """Where a container was at the last look."""

    taker: str | None = None  # the path of another tool's group that its init is in
    is_in_place: bool = True  # whether its group exists, in the ctrl_group of its init, as far as that is known
    to_move: int = 0  # its threads outside its group that may be moved in
    elsewhere: tuple[tuple[str, int], ...] = ()  # groups where threads must stay, by path, and how many
    unread: int = 0  # at least so many of its cgroups were not read


class Survey:
    """The node in one pass of reconcile. Paths are those of mon_groups.

    An action reads the index entry of its container again, and its look at a container replaces what the last one
    found.
    """

    def __init__(self, context: Context, live: Collection[str] | None = None) -> None:
        """Survey the node. Raises HookError `io` if the run directory is unreadable."""
        self.context = context
        self.live = live  # the keys that --live names as live; if it is None, a key is live if a member is
        self.boottime = system.boottime()
        self.is_mounted = system.find_directory(f"{context.resctrl.root}/mon_groups")  # OSError: that is unknown
        # The names of pods and containers.
        self.kubelet = engines.KubeletNames()
        self.podman = runtimes.PodmanNames(context.run.path)
        self.records = records.read_contents(context.run)
        self.states = self.records.states
        self.indexed: dict[str, list[str]] = {}  # by key, the containers in the index
        for container, key in self.records.index.items():
            if key is not None:
                self.indexed.setdefault(key, []).append(container)
        # After the records, so that the init of each member is among the processes. This is the only look at all
        # processes in a pass; later looks read single containers.
        self.processes = processes.look(processes.find_nested([*self._list_own_cgroups()]))
        for state in self.states.values():
            self.processes.add(self.find_live(state).items())
        recorded = records.list_recorded(self.states.values())
        self.groups = Groups(context.resctrl, context.options.group_prefix, lambda: recorded)
        self.processes.name_group = self.groups.name_ours
        self.ctrl_groups = resctrl.list_ctrl_groups(context.resctrl.root)
        others = [path for paths in self.ctrl_groups.values() for path in paths if path not in recorded]
        self.orphans = reclaim.find_orphans(context, others) if others else []  # with our prefix, without a record
        self.looks: dict[tuple[str, str], Look] = {}  # at containers, by key and container
        # The keys that are to end, and cannot: a live task is in each of their groups.
        self.held: set[str] = set()
        # By key: why it could not be looked at.
        self.unread: dict[str, OSError] = {}
        # Why the kernel gave the last new group no RMID. This pass tries no other group then: each try searches all
        # keys for RMIDs to reclaim, and waits for one that comes back.
        self.refusal: HookError | None = None
        self.further_looks = _FURTHER_LOOKS
        # The kernel assigns counters to groups, so that a group may lose one (resctrl.rst, "mbm_assign_mode").
        mode = system.try_call(system.read_file, f"{context.resctrl.root}/info/L3_MON/mbm_assign_mode")
        self._assigns = "[mbm_" in (mode or "")
        # By group, the counters that it may lose, now and in the last run.
        self.counted: dict[str, dict[str, str]] = {}
        self._former = (context.run.glance(ReconcileRecord, "reconcile") or ReconcileRecord()).counted

    def list_keys(self) -> list[str]:
        """List every key with a record, an index entry or a leftover file."""
        found = self.records
        keys = [*found.states, *found.unreadable, *self.indexed, *found.leftovers, *found.asides, *self.lost]
        return [*dict.fromkeys(filter(None, keys))]

    def is_dead(self, member: Member) -> bool:
        """Whether a member's process is known to be dead."""
        return not self.processes.is_alive(member) and system.is_dead(member.pid, member.starttime) is True

    def find_live(self, state: KeyState) -> dict[str, Member]:
        """Return the members of a key that are not known to be dead."""
        return {name: member for name, member in state.members.items() if not self.is_dead(member)}

    def is_gone(self, group: MonGroup) -> bool:
        """Whether another tool has removed a group that has not ended."""
        return group.end is None and self.context.resctrl.is_gone(group.path)

    def mark_counters(self, state: KeyState, group: MonGroup) -> MonGroup:
        """Mark the counters of a live group that have come or gone with CPUs, or started again, since its begin.

        This reads them only if some have come, or if the kernel may take away one that was a number.
        """
        begin, machine, kernel = group.begin or {}, self._counters, self.context.resctrl
        may_lose = self._assigns and bool(counters.pick_traffic(begin))
        if group.begin is None or group.end is not None or not machine or (begin.keys() == machine and not may_lose):
            return group
        if kernel.inode(group.path) != group.inode:
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
        name = f"{name_generation(state)} {group.path}"  # of this directory
        self.counted[name] = {counter: read[counter] for counter in counters.pick_traffic(read) if may_lose}
        return counters.note_stops(counters.add_late(group, read), read, self._former.get(name, {}))

    def find_owner(self, path: str) -> str | None:
        """Find the key of a group without a record: that of its containers, or the one in its name if they have none.

        The text after our prefix is no key if the group was made with a longer prefix, and a key of that name must not
        take over another key's containers. It returns None if the containers have several keys, and the name is none of
        them.
        """
        name = reclaim.parse_key(self.context, path)
        keys = {key for key in map(self.records.index.get, self.find_containers(path)) if key is not None}
        if name in keys or not keys:
            return name
        return keys.pop() if len(keys) == 1 else None

    def find_containers(self, path: str) -> dict[str, Process]:
        """Find the containers that have processes in a group, each with its init: the one that started first.

        The cgroups' names decide: a container of the index, the group's own key, or a text that looks like an ID. Only
        processes of the survey count, and only if they are still alive.
        """
        known = {*self.records.index, reclaim.parse_key(self.context, path) or ""}
        before = self.processes.by_pid
        tasks = system.try_call(self.context.resctrl.tasks, path) or set()
        found: dict[str, Process] = {}
        there = [before[pid] for pid in tasks & before.keys()]
        for process in sorted(there, key=lambda process: (process.starttime, process.pid)):
            now = system.try_call(processes.look_at, process.pid)
            if now is None or now.starttime != process.starttime:
                continue
            for name in (processes.find_container(place, known) for place in now.cgroups):
                if name is not None:
                    found.setdefault(name, now)
        return found

    @cached_property
    def surplus(self) -> records.Surplus:
        """What has to go of completed keys, so that the next container has room."""
        return records.find_surplus(self.context.run, self.states.values())

    @cached_property
    def owners(self) -> dict[str, str | None]:
        """The key of each group without a record, by `find_owner`."""
        return {path: self.find_owner(path) for path in self.orphans}

    @cached_property
    def lost(self) -> dict[str | None, str]:
        """By key, a group without a record that has live tasks.

        Not so one of a completed key: a task outlived its last member, and a later run removes the group.
        """
        completed = (state for state in self.states.values() if state.completed_at is not None)
        former = {group.path for state in completed for group in state.groups}
        live = (path for path in self.orphans if path not in former and self.context.resctrl.has_live_task(path))
        return {self.owners[path]: path for path in live}

    @cached_property
    def _counters(self) -> set[str]:
        """The counters that this machine has now."""
        try:
            return set(self.context.resctrl.counters(self.context.resctrl.root))
        except HookError:
            return set()

    def _list_own_cgroups(self) -> Iterator[str]:
        """List the own cgroups of all members, and of the containers that are not monitored."""
        for state in self.states.values():
            for name, member in state.members.items():
                if member.cgroup and processes.is_own_cgroup(member.cgroup, name):
                    yield member.cgroup
        for name in self.records.failed:
            failure = self.context.run.glance(Failure, name)
            if failure is not None and failure.pid is not None and not system.is_dead(failure.pid, failure.starttime):
                found = (identity.find_own(place, name) for place in system.cgroups(failure.pid))
                yield from (own for own in found if own)


# --- The actions


@dataclass(frozen=True)
class Action:
    """One repair: its verb, its object, and why it is needed."""

    verb: str
    key: str = ""
    container: str = ""
    path: str = ""  # of a mon_group, or of a file of the run directory
    why: str = ""
    strangers: tuple[int, ...] = ()  # the threads to move out
    namespace: str | None = None  # this and the next two are the recorded names of the pod and of the container in it
    pod: str | None = None
    name: str | None = None
    state: State | None = None  # of the running container to adopt

    @property
    def id(self) -> str:
        """The verb and the object, without names, which may become known between two runs."""
        return " ".join(word for word in (self.verb, self.container, self.key, self.path) if word)

    def __str__(self) -> str:
        about = self.path or who(self.container or self.key, self.namespace, self.pod, self.name)
        of_key = f" of {short_id(self.key)}" if self.container and self.key and not self.path else ""
        return f"{self.verb} {about}{of_key}: {self.why}"


def diagnose(seen: Survey) -> list[Action]:
    """List all actions that the node needs, in the order of execution."""
    actions: list[Action] = []
    for key in seen.list_keys():
        try:
            actions += diagnose_key(seen, key, seen.states.get(key))
        except OSError as error:  # what cannot be read is not taken for absent, and stops no other key
            seen.unread[key] = error
    for path in seen.orphans:
        is_listed = _is_listed(seen, reclaim.parse_key(seen.context, path))
        if not is_listed and not seen.context.resctrl.has_live_task(path):
            actions.append(Action("remove", path=path, why="this group has no record, and it has no tasks"))
    if None in seen.lost:
        actions.append(Action("rebuild", path=seen.lost[None], why="this group has no record, and it has live tasks"))
    for container in seen.records.failed:
        actions += diagnose_failure(seen, container)
    for container in seen.records.half_failures:
        actions.append(Action("forget", container=container, why="its record is incomplete"))
    return sorted(actions, key=lambda action: VERBS.index(action.verb))


def diagnose_key(seen: Survey, key: str, state: KeyState | None, only: str = "") -> Iterator[Action]:
    """List the actions that a key needs, those that cost most to find last; `state` is its record, if readable.

    With `only`, a container of the key, the actions for its other containers are left out.
    """
    of_files = _diagnose_files(seen, key, state, only)
    if state is None:
        yield from of_files
        return
    of_tasks = _diagnose_tasks(seen, state, only) if state.completed_at is None else _diagnose_released(seen, state)
    for action in chain(of_files, _diagnose_record(seen, state), of_tasks):
        yield _add_names(action, state)


def _add_names(action: Action, state: KeyState) -> Action:
    """Add the recorded names of pod and container to an action."""
    member = state.members.get(action.container)
    namespace, pod = action.namespace or state.pod_namespace, action.pod or state.pod_name
    name = member.name if member is not None else None if action.container else names.find_name(state)
    return replace(action, namespace=namespace, pod=pod, name=name)


def _is_listed(seen: Survey, key: str | None) -> bool | None:
    """Whether the list of --live has a key; None if there is no such list."""
    return key in seen.live if seen.live is not None else None


def _diagnose_files(seen: Survey, key: str, state: KeyState | None, only: str) -> Iterator[Action]:
    """List the actions that a key needs because of its files in the run directory."""
    found = seen.records
    rebuilds = state.recovering if state is not None else key in found.unreadable or key in seen.lost
    if rebuilds:
        what = "may lack members" if state is not None else "is unreadable" if key in found.unreadable else "is lost"
        yield Action("rebuild", key, why=f"its record {what}")
    for container in [only] if only else seen.indexed.get(key, ()):
        is_member = state is not None and container in state.members
        is_awaited = state is None and key in map(partial(reclaim.parse_key, seen.context), seen.orphans)
        if not (rebuilds or is_member or is_awaited) and seen.records.index.get(container) == key:
            yield Action("forget", key, container, why="it is in the index but not a member")
    for path in found.asides.get(key, ()):
        yield Action("tidy", key, path=path, why="it was set aside a day ago")
    is_over = state is None or state.completed_at is not None
    if key in found.leftovers and (state is None or is_over or records.has_leftovers(seen.context.run, state)):
        yield Action("tidy", key, why="a hook that was killed left temporary files")


def _diagnose_record(seen: Survey, state: KeyState) -> Iterator[Action]:
    """List the actions that a key needs because of its record."""
    key, is_listed = state.key, _is_listed(seen, state.key)
    if state.owed is not None:
        yield Action("write", key, why=f"{format_count(len(state.owed.lines), 'line')} of history not written yet")
    # The view of a group that is gone would lead nowhere: its key first gets another one, or ends.
    is_old = not seen.context.view.is_current(state) and not any(map(seen.is_gone, state.groups))
    if is_old or any(seen.mark_counters(state, group) is not group for group in state.groups):
        yield Action("show", key, why="its published view is out of date")
    if state.completed_at is not None:
        # A time in the future is of another boot, if the run directory survives one.
        is_old = abs(seen.boottime - (state.completed_boottime or 0.0)) >= seen.context.options.snapshot_ttl
        if (state.groups or state.owed is None) and (is_old or key in seen.surplus.snapshots):
            yield Action("prune", key, why="its snapshot is older than --snapshot-ttl" if is_old else EARLY)
    elif state.recovering or (is_listed and not state.members):
        return
    elif state.members:
        named = name_members(seen, state)
        if named is not state:
            why = "the kubelet's logs name it" if state.kind == "pod" else "Podman names it"
            yield Action("name", key, why=why, namespace=named.pod_namespace, pod=named.pod_name)
    elif state.lingering_since is None or is_listed is False or reclaim.has_lingered(seen.context, state):
        if state.groups and not find_removable(seen.context, state):
            seen.held.add(key)
            return
        why = "it has no members" if state.lingering_since is None else "its linger time is over, or its pod is gone"
        yield Action("end", key, why=why)


def _diagnose_tasks(seen: Survey, state: KeyState, only: str) -> Iterator[Action]:
    """List the actions that a key needs because of its processes and of the tasks in its groups."""
    key = state.key
    threads = Threads(seen, state) if seen.is_mounted else None
    retired = (
        {reclaim.is_retired(seen.context, state, group) for group in state.groups} if len(state.groups) > 1 else ()
    )
    if threads is not None and len(retired) > 1:
        yield Action("retire", key, why="one of its groups is gone, and no member needs it")
    for container in state.members.keys() & {only} if only else state.members:
        action = _diagnose_member(seen, state, container, threads)
        if action is not None and not state.recovering:
            yield action
    if threads is None or only or state.recovering:  # a task may belong to a member without a record
        return
    for group in state.groups:
        strangers = sorted(threads.find_strangers(group.path, state))
        if strangers:
            why = f"threads of none of its containers: {', '.join(map(str, strangers[:5]))}"
            yield Action("evict", key, path=group.path, why=why, strangers=tuple(strangers))


def _diagnose_released(seen: Survey, state: KeyState) -> Iterator[Action]:
    """List the action that a completed key needs, if what ended it was killed before it removed a group with a task."""
    if state.stopped and any(seen.context.resctrl.has_live_task(group.path) for group in state.groups):
        yield Action("end", state.key, why="its end was interrupted")


def _diagnose_member(seen: Survey, state: KeyState, container: str, threads: Threads | None) -> Action | None:
    """Find the action that a member needs. Its threads are counted in any case: else they would be strangers."""
    member, key = state.members[container], state.key
    is_listed = _is_listed(seen, key)
    why = "its process is dead" if is_listed is None else "its key is not in the list of --live"
    if seen.is_dead(member):
        return None if is_listed else Action("drop", key, container, why=why)
    look = threads.look(container, member) if threads is not None else Look()
    if is_listed is False:
        return Action("drop", key, container, why=why)
    if look.taker is not None:
        why = f"another tool has moved it to {look.taker}: a part of its use is unknown"
        is_noted = state.taken and not any(group.path == member.group and seen.is_gone(group) for group in state.groups)
        return Action("note", key, container, why=why) if not is_noted else None
    if not look.is_in_place:
        return Action("remake", key, container, why="its group is gone, or its process is in another ctrl_group")
    # A former process of this ID has no index entry (names.displaced_member).
    if seen.records.index.get(container) is None and container == names.container_of(container):
        return Action("remake", key, container, why="its index entry is missing, so poststop cannot find the key")
    if not look.to_move:
        return None
    # The initial counters must be read before the first thread enters the group, as in createRuntime.
    is_counted = bool(seen.context.options.snapshot_ttl or history_of(seen.context, state))
    verb = "adopt" if has_begun(state, container) or not is_counted else "remake"
    return Action(verb, key, container, why=f"{look.to_move} of its threads are not in its group")


def diagnose_failure(seen: Survey, container: str) -> Iterator[Action]:
    """List the action that a container with a failure record needs."""
    failure = seen.context.run.glance(Failure, container)
    is_lone = seen.records.index.get(container) is None  # else the failure record goes when the member is dropped
    if failure is None or (failure.pid is None and failure.stage != "poststop"):
        if is_lone and records.has_old_failure(seen.context.run, container):
            yield Action("forget", container=container, why="its failure record has no pid, and is old")
        return
    why = "it failed, and is gone"
    name = failure.name or records.find_job(failure)
    action = Action("forget", "", container, "", why, namespace=failure.namespace, pod=failure.pod, name=name)
    names_process = failure.pid is not None and (failure.starttime is not None or failure.boottime is not None)
    is_unlisted = failure.key is not None and _is_listed(seen, failure.key) is False
    if (_has_dead_process(failure) or is_unlisted) if failure.pid is not None else is_lone:
        yield action
    elif failure.kind == "job" and _is_member(seen.context.run, container):
        yield replace(action, why="it is a member of a job")
    elif seen.is_mounted and names_process and not (failure.monitored or failure.reason in _NOT_AGAIN):
        yield replace(action, verb="retry", why=f"it is running but not monitored ({failure.reason})")


def _is_member(run: RunDir, container: str) -> bool:
    """Whether a container is a member of a key now: since the survey a failed call may have taken it out again."""
    state = run.glance(KeyState, records.glance_index(run, container) or "")
    return state is not None and container in state.members


def _has_dead_process(failure: Failure) -> bool:
    pid = failure.pid or 0
    is_dead = system.is_dead(pid, failure.starttime)
    if is_dead is False and failure.starttime is None and failure.boottime is not None:
        return not processes.had_pid(pid, failure.boottime)  # otherwise the kernel has reused the pid
    return is_dead is True


def has_begun(state: KeyState, container: str) -> bool:
    """Whether the initial counters of a member's group were read."""
    path = state.members[container].group
    return any(group.path == path and group.begin is not None for group in state.groups)


def name_members(seen: Survey, state: KeyState) -> KeyState:
    """Add names to the record of a live key that lacks some: the kubelet's, or Podman's.

    A record that was rebuilt from the kernel has none. The files with the names are read only if one is missing.
    """
    if state.kind != "pod":
        return runtimes.add_names(state, seen.podman)
    pod = seen.kubelet.pods.get(state.key) if state.pod_name is None else None
    members = dict(state.members)
    for container, member in state.members.items():
        name = seen.kubelet.containers.get(names.container_of(container)) if member.name is None else None
        if name is not None:
            members[container] = validation.replace(member, name=name)
    if pod is None and members == state.members:
        return state
    namespace, pod_name = pod or (state.pod_namespace, state.pod_name)
    return validation.replace(state, pod_namespace=namespace, pod_name=pod_name, members=members)


# --- The threads of one key


class Threads:
    """Compares the threads in the groups of one key with those of its containers."""

    def __init__(self, seen: Survey, state: KeyState) -> None:
        self._seen = seen
        self._key = state.key
        kernel = seen.context.resctrl
        # Path of a group -> IDs of the threads in it; no entry, or None, if the group is gone or was recreated.
        self._inside = {
            group.path: kernel.tasks(group.path)
            for group in state.groups
            if kernel.exists(group.path) and group.inode in (None, kernel.inode(group.path))
        }
        # Path of a group -> IDs of the threads of the containers that were looked at so far.
        self._owned: dict[str, set[int]] = {group.path: set() for group in state.groups}

    def look(self, container: str, member: Member) -> Look:
        """Look at a container whose init is alive. If another tool has taken it, none of its threads is to be moved."""
        groups, group, inside = self._seen.groups, member.group, self._inside.get(member.group)
        path = group if member.pid in (inside or ()) else groups.find(member.pid)
        is_taken = path is not None and path != group and groups.is_others(path)
        is_in_place = inside is not None and (path in (None, group) or is_of_parent(group, path or ""))
        found = Look(path if is_taken else None, is_in_place)
        if is_taken or is_in_place:
            found = self._look_at_threads(member, found)
        self._seen.looks[self._key, container] = found
        return found

    def _look_at_threads(self, member: Member, found: Look) -> Look:
        processes = self._seen.processes
        own = processes.read_own_cgroup(member)
        fresh, unread = own if own is not None else (set[int](), 0)
        of_container = processes.beside_own_cgroup if own is not None and not unread else processes.of_container
        threads = processes.threads(of_container(member)) | fresh
        self._owned[member.group] |= threads
        if found.taker is not None:
            return found
        # A new thread that has ended by now may be part of a chain of forks. Older ones may just have ended.
        missing = threads - (self._inside.get(member.group) or set())
        places = self._locate(member, {tid for tid in missing if tid in fresh or not system.is_dead(tid)})
        to_move = places.pop(OUTSIDE, 0) + places.pop(None, 0)
        elsewhere = ((path, number) for path, number in places.items() if path not in (INSIDE, None))
        return found._replace(to_move=to_move, elsewhere=tuple(elsewhere), unread=unread)

    def _locate(self, member: Member, missing: set[int]) -> Counter[str | None]:
        """Count the places of threads that seem to be outside, as `locate` names them.

        A program that forks and exits in its group can end before its place is read. So this looks again until a thread
        is known to be outside, or none ended too early. After the last look those that ended count.
        """
        seen = self._seen
        places: dict[int, str | None] = {}
        for _ in range(_LOOKS):
            places = {tid: locate(seen.groups, tid, member.group) for tid in missing}
            ended = {tid for tid, place in places.items() if place is None and system.is_dead(tid)}
            is_known = not ended or OUTSIDE in places.values()
            own = None if is_known or not seen.further_looks else seen.processes.read_own_cgroup(member)
            if own is None:
                break
            seen.further_looks -= 1
            missing = (missing - ended - own.tids) | (own.tids - (seen.context.resctrl.tasks(member.group) or set()))
        return Counter(places.values())

    def find_strangers(self, path: str, state: KeyState) -> set[int]:
        """Find the threads in a group that are in no cgroup of a member, once all live members were looked at."""
        seen = self._seen
        found = (self._inside.get(path) or set()) - self._owned[path]
        if not found:
            return found
        found = find_strangers(found, seen.find_live(state), seen.processes)
        # The record was read before the tasks. A container may have joined in between: check again with a new one.
        now = seen.context.run.glance(KeyState, self._key) if found else None
        return find_strangers(found, seen.find_live(now), seen.processes) if now is not None else set()


def find_strangers(tids: set[int], live: dict[str, Member], processes: Processes) -> set[int]:
    """Choose the threads that are in no member's cgroup, among threads in a key's group that no known process has.

    There are none if a member has no cgroup of its own: its processes cannot be recognized. A thread that started after
    the look at the processes may be a member's child that has left its cgroup: the next look decides.
    """
    if not live or not all(is_own_cgroup(member.cgroup, container) for container, member in live.items()):
        return set()
    own = [member.cgroup for member in live.values() if member.cgroup is not None]

    def is_stranger(tid: int) -> bool:
        places = system.cgroups(tid)  # a thread has those of its process
        is_elsewhere = places and not any(is_within(place, cgroup) for place in places for cgroup in own)
        return bool(is_elsewhere) and system.is_dead(tid) is False and not processes.is_newer(tid)

    return set(filter(is_stranger, tids))
