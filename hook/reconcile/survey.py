# SPDX-License-Identifier: Apache-2.0
"""Reads the records, the kernel's groups and the processes, for a plan. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from hook.base import cgroups, container_tasks, names, procfs, system
from hook.base.errors import HookError
from hook.base.models import Failure, Index, KeyState
from hook.base.reasons import UNNAMED
from hook.reconcile.owners import find_owner
from hook.stages import orphans, remove, retire
from hook.state import lives, records
from hook.state.records import Broken, Records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.base.models import Member, MonGroup
    from hook.stages.context import Context

Place = tuple[str, str]
"""A key and one of its containers."""
_LOOKS = 20  # at a container with a thread that ended before it could be asked for its group


@dataclass
class Survey:
    """The state of the node. Paths are those of mon_groups; `boottime`: the time of the survey (CLOCK_BOOTTIME, s).

    `processes`: the only look at all processes in a pass of reconcile. Its actions look again only at those that they
    are about to touch.
    """

    boottime: float
    mounted: bool
    processes: container_tasks.Processes = field(default_factory=lambda: container_tasks.Processes({}))
    ctrl_groups: list[str] | None = None
    """The paths of the ctrl_groups but the root one, once they were looked for."""
    refusal: HookError | None = None
    """Why the kernel gave the last new group no RMID: no further one is tried in this pass, for each try looks at all
    keys for RMIDs to reclaim."""
    states: dict[str, KeyState] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    stale_views: list[str] = field(default_factory=list)
    lingered: set[str] = field(default_factory=set)
    """Lingering keys whose linger time is over."""
    dead: set[Place] = field(default_factory=set)
    """Members whose process is dead."""
    vanished: set[Place] = field(default_factory=set)
    """Live members whose group is gone or re-made, or whose process has changed its ctrl_group."""
    retired: list[str] = field(default_factory=list)
    """Keys in use with a recorded group that is gone and that no member needs."""
    outside: dict[Place, int] = field(default_factory=dict)
    """Live members, and how many of their threads are in no group."""
    elsewhere: dict[Place, int] = field(default_factory=dict)
    """The same for threads in another tool's group, which are not moved."""
    unread: dict[Place, int] = field(default_factory=dict)
    """Live members with more cgroups below their own one than are read, and how many are left out at least."""
    strangers: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    """By key and group: the threads in it that belong to none of the key's containers."""
    orphans: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Groups with our prefix and without a record, by key and path, and whether they have a live task."""
    owners: dict[str, str | None] = field(default_factory=dict)
    """The key of each orphan that has a live task, by path, as owners.find_owner finds it."""
    paths_of: dict[str, list[str]] = field(default_factory=dict)
    """The same by key."""
    index: dict[str, str | None] = field(default_factory=dict)
    """The key of each container in the index; None: its entry is unreadable."""
    half_failures: list[str] = field(default_factory=list)
    """Containers whose failure record is incomplete, because the hook was killed."""
    failures: list[Failure] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    """Containers with a failure record that are gone."""
    outdated_failures: list[str] = field(default_factory=list)
    """Containers that do not run, and whose failure record has no pid and is old (records.has_old_failure)."""
    set_aside: list[tuple[str, str]] = field(default_factory=list)
    """Unreadable files that were set aside a day ago: the key of each, and its path."""
    lost: dict[str, str] = field(default_factory=dict)
    """Containers whose index entry names a key of which they are not members, and that key."""
    unindexed: set[Place] = field(default_factory=set)
    """Members without a readable index entry: their poststop cannot find the key."""
    named: dict[str, KeyState] = field(default_factory=dict)
    """Live pods whose names the kubelet knows and their records do not, by key: each record as it is with these."""
    leftovers: list[str] = field(default_factory=list)
    """Keys with temporary files of a hook that was killed."""


def survey_node(context: Context) -> Survey:
    """Survey the node. Raises HookError `io` if the run directory is unreadable."""
    found = Survey(system.boottime(), context.resctrl.is_mounted())
    with Records(context.run.path) as run:
        for key in run.names(KeyState):
            state = run.state(key)
            if isinstance(state, KeyState):
                found.states[key] = state
            elif isinstance(state, Broken):
                found.unreadable.append(key)
        _look_at_failures(run, found)
        _look_at_index(run, found)
        # A failure of a container with an index entry is handled with its membership.
        failed = [name for name in run.names(Failure) if records.glance_key(run, name) is None]
    # After the records, so that the init of each member is among the processes.
    found.processes = container_tasks.look()
    live = {key: _look_at_members(context, found, key, state) for key, state in found.states.items()}
    found.processes.add(place for members in live.values() for place in members.items())
    known = {failure.container for failure in found.failures if failure.pid is not None} | found.gone
    nameless = [name for name in failed if name not in known]
    found.outdated_failures = _find_outdated(found, [it for it in nameless if records.has_old_failure(context.run, it)])
    found.set_aside = records.find_old_asides(context.run)
    if found.mounted:
        for key, members in live.items():
            if found.states[key].completed_at is None:
                _look_at_groups(context, found, found.states[key], members)
        _look_at_orphans(context, found)
    unfinished = {key for key, it in found.states.items() if it.completed_at is None}
    found.leftovers = records.find_leftovers(context.run, unfinished)
    due = {key for key, state in found.states.items() if state.generation} | {*found.unreadable, *found.leftovers}
    found.leftovers += [key for key in context.view.shown() if key not in due]
    found.half_failures = records.find_half_written(context.run, Failure)
    there = _list_counters(context) if found.mounted else set()
    found.stale_views = [
        key
        for key, state in found.states.items()
        if not context.view.is_current(state) or _has_late(context, state, there)
    ]
    return found


def _find_outdated(found: Survey, old: list[str]) -> list[str]:
    """Those of these containers, whose `old` failure records have no pid, that do not run.

    A record of no known container (UNNAMED) is never kept by a process, whatever its cgroup is called.
    """
    named = {name for name in old if not name.startswith(UNNAMED)}
    known = {*named, *found.index}
    running = {cgroups.find_container(place, known) for place in found.processes.cgroups()} if named else set()
    return [name for name in old if name not in running]


def _look_at_orphans(context: Context, found: Survey) -> None:
    recorded = {it.path for state in found.states.values() if state.completed_at is None for it in state.groups}
    for path in orphans.find_orphans(context, recorded):
        key = orphans.key_of(context, path) or ""
        found.orphans[key, path] = context.resctrl.has_live_task(path)
        if found.orphans[key, path]:
            owner = found.owners[path] = find_owner(context, path, found.index, found.processes)
            found.paths_of.setdefault(owner or "", []).append(path)


def _list_counters(context: Context) -> set[str]:
    try:
        return set(context.resctrl.counters(context.resctrl.root))
    except HookError:
        return set()


def _has_late(context: Context, state: KeyState, there: set[str]) -> bool:
    """Whether a key's initial values lack counters that exist now. Reads only the groups that may lack one."""
    groups = [it for it in state.groups if it.begin is not None and it.end is None and not it.begin.keys() >= there]
    return any(add_late_counters(context, group) is not group for group in groups)


def _look_at_failures(run: Records, found: Survey) -> None:
    for container in run.names(Failure):
        failure = run.failure(container)
        if isinstance(failure, Failure):
            found.failures.append(failure)
            # A poststop's record is removed with the membership.
            if has_dead_container(failure) and (failure.pid is not None or records.glance_key(run, container) is None):
                found.gone.add(container)


def has_dead_container(failure: Failure) -> bool:
    """Whether the container of a failure is dead. After a failed poststop it is."""
    if failure.pid is None:
        return failure.stage == "poststop"
    is_dead = procfs.is_dead(failure.pid, failure.starttime)
    if is_dead is False and failure.starttime is None and failure.boottime is not None:
        return not procfs.had_pid(failure.pid, failure.boottime)  # otherwise the kernel has reused the pid
    return is_dead is True


def _look_at_index(run: Records, found: Survey) -> None:
    noted = found.index = {container: records.glance_key(run, container) for container in run.names(Index)}
    members = ((key, container) for key, state in found.states.items() for container in state.members)
    # A former life of a container has no index entry (names.former_life).
    found.unindexed = {(key, it) for key, it in members if it == names.container_of(it) and noted.get(it) is None}
    for container, key in noted.items():
        state = found.states.get(key) if key is not None else None
        recovering = key in found.unreadable or (state is not None and state.recovering)
        if key is not None and not recovering and (state is None or container not in state.members):
            found.lost[container] = key


def _look_at_members(context: Context, found: Survey, key: str, state: KeyState) -> dict[str, Member]:
    """Sort the members of a key; returns those that live, or may live."""
    if state.lingering_since is not None and not state.members and remove.has_lingered(context, state):
        found.lingered.add(key)
    live = find_live_members(state, found.processes)
    found.dead |= {(key, container) for container in state.members if container not in live}
    return live


def find_live_members(state: KeyState, processes: container_tasks.Processes | None = None) -> dict[str, Member]:
    """The members of a key that are not known to be dead. `processes`: a look that shows most of them."""
    return {
        name: it
        for name, it in state.members.items()
        if (processes is not None and processes.is_alive(it)) or not procfs.is_dead(it.pid, it.starttime)
    }


def _look_at_groups(context: Context, found: Survey, state: KeyState, live: dict[str, Member]) -> None:
    """Compare the tasks in the groups of a key with the tasks of its members."""
    if len(state.groups) > 1 and any(retire.is_retired(context, state, group) for group in state.groups):
        found.retired.append(state.key)
    inside = {group.path: read_tasks(context, group) for group in state.groups}
    owned: dict[str, set[int]] = {path: set() for path in inside}
    for container, member in live.items():
        there = inside.get(member.group)
        if there is None or not is_in_parent_of(context, member.group, member.pid):
            found.vanished.add((state.key, container))
            continue
        place = (state.key, container)
        own = found.processes.read_own_cgroup(member)
        if own is not None and own.unread:
            found.unread[place] = own.unread
        fresh = own.tids if own is not None else set()
        is_whole = own is not None and not own.unread
        of_container = found.processes.beside_own_cgroup if is_whole else found.processes.of_container
        threads = found.processes.threads(of_container(member)) | fresh
        owned[member.group] |= threads
        # A fresh one that has ended by now may be a link of a chain of forks. Others may have ended since the look.
        missing = {tid for tid in threads - there if tid in fresh or not procfs.is_dead(tid)}
        missing = _look_closer(context, found.processes, member, missing)
        _look_at_threads(context, found, place, member.group, missing)
    for path, there in inside.items():
        strangers = find_strangers((there or set()) - owned[path], live, found.processes)
        if strangers:
            # The record was read before the tasks. A container may have joined in between: check again with a new one.
            now = context.run.glance(KeyState, state.key)
            strangers = find_strangers(strangers, find_live_members(now), found.processes) if now is not None else set()
        if strangers:
            found.strangers[state.key, path] = strangers


def _look_closer(context: Context, processes: container_tasks.Processes, member: Member, missing: set[int]) -> set[int]:
    """The threads of a container outside its group, once those that seemed so can be asked for their groups.

    On a machine that gives us little time, a link of a chain of forks inside can have ended before it is asked. So this
    looks again, until one is known to be outside, or none has ended. What ends before that in each look counts.
    """
    for _ in range(_LOOKS):
        groups = [procfs.resctrl_groups(tid) for tid in missing]
        if any(it is not None and not is_in(context, it, member.group) for it in groups):
            break
        ended = set(filter(procfs.is_dead, missing))
        own = processes.read_own_cgroup(member) if ended else None
        if own is None:
            break
        missing = (missing - ended - own.tids) | (own.tids - (context.resctrl.tasks(member.group) or set()))
    return missing


def read_tasks(context: Context, group: MonGroup) -> set[int] | None:
    """The threads in a group; None if it is gone, or was re-made."""
    if group.inode is not None and context.resctrl.inode(group.path) != group.inode:
        return None
    return context.resctrl.tasks(group.path)


def find_strangers(tids: set[int], live: dict[str, Member], processes: container_tasks.Processes) -> set[int]:
    """The threads of these that are in no cgroup of a member. `tids`: threads in a key's group of no known process.

    Empty if a member has no cgroup of its own: its processes cannot be recognized. What started after the look at the
    processes may be a member's child that has left its cgroup: the next look decides.
    """
    if not tids or not live or not all(cgroups.is_own(it.cgroup, container) for container, it in live.items()):
        return set()
    return {tid for tid in tids if _is_alive_elsewhere(tid, live) and not processes.is_newer(tid)}


def _look_at_threads(context: Context, found: Survey, place: Place, path: str, threads: set[int]) -> None:
    """Count the threads of a container outside its group: those to move, and those in another tool's group."""
    for tid in threads:
        groups = procfs.resctrl_groups(tid)
        if groups is not None and not is_movable(context, groups, path):
            found.elsewhere[place] = found.elsewhere.get(place, 0) + 1
        elif groups is None or not is_in(context, groups, path):
            found.outside[place] = found.outside.get(place, 0) + 1


def _is_alive_elsewhere(tid: int, live: dict[str, Member]) -> bool:
    """Whether a task is alive, and in no cgroup of these members. A thread has the cgroups of its process."""
    places = procfs.cgroups(tid)
    if not places or procfs.is_dead(tid) is not False:
        return False
    outer = [member.cgroup for member in live.values() if member.cgroup is not None]
    return not any(cgroups.is_within(place, cgroup) for place in places for cgroup in outer)


def may_move(context: Context, tid: int, path: str) -> bool:
    """Whether a thread can be moved into a group: it is in the group's ctrl_group, and in no group of another tool.

    True if the kernel does not show its groups: then only an attempt can tell.
    """
    groups = procfs.resctrl_groups(tid)
    return groups is None or is_movable(context, groups, path)


def is_movable(context: Context, groups: tuple[str, str], path: str) -> bool:
    """The same for a thread that is in these groups, as the kernel says."""
    ctrl_group, mon_group = groups
    is_free = not mon_group or mon_group.startswith(context.options.group_prefix)
    return is_free and _is_of(context, path, ctrl_group)


def is_in(context: Context, groups: tuple[str, str], path: str) -> bool:
    """Whether a thread that is in these groups, as the kernel says, is in the mon_group of this path."""
    return groups[1] != "" and context.resctrl.path(*groups) == path


def is_in_parent_of(context: Context, path: str, tid: int) -> bool:
    """Whether a thread is in the ctrl_group of a group. True if the kernel does not show it."""
    groups = procfs.resctrl_groups(tid)
    return groups is None or _is_of(context, path, groups[0])


def _is_of(context: Context, path: str, ctrl_group: str) -> bool:
    return context.resctrl.path(ctrl_group, "").rstrip("/") == path.rpartition("/")[0]


def add_late_counters(context: Context, group: MonGroup) -> MonGroup:
    """Mark the counters of a live group that appeared later, for example of CPUs that were offline."""
    if group.begin is None or group.end is not None or context.resctrl.inode(group.path) != group.inode:
        return group
    try:
        return lives.add_late(group, context.resctrl.counters(group.path))
    except HookError:  # removed meanwhile
        return group
