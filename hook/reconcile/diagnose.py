# SPDX-License-Identifier: Apache-2.0
"""Decides which actions a node needs, from a survey of it. Changes nothing.

Each rule is written here once. A pass lists all actions, without a lock. Before an
action is done, those of its key are listed again under the key's lock, and it is skipped
unless it is still among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from hook import life_turns, names, reclaim, system
from hook.errors import Reason
from hook.key import is_held
from hook.line import count_owed
from hook.models import Failure, KeyState, Member, State
from hook.node import records
from hook.node.processes import Processes, find_own_cgroup, is_within
from hook.reconcile.move import INSIDE, OUTSIDE, is_of_parent, locate
from hook.reconcile.survey import Survey, Whereabouts
from hook.words import format_count, short_id, who

_FREE_RMIDS = ("rebuild", "drop", "end", "remove", "evict")
BRING_IN = ("remake", "adopt", "retry")
"""Those that take RMIDs and move threads, for which they may wait."""
_TIDY_UP = ("note", "retire", "forget", "name", "prune", "mark", "tidy", "write")
VERBS = (*_FREE_RMIDS, *BRING_IN, *_TIDY_UP)
"""In the order of execution."""
EARLY = f"more than {records.MOST_COMPLETED} keys are completed"
"""Why a snapshot is pruned before its time."""
_NOT_AGAIN = ("usage", "bad_state", "bad_key")
_LOOKS = 20  # at a container with a thread that ended before its group could be read


@dataclass(frozen=True)
class Action:
    """One repair: its verb, its object, and why it is needed."""

    verb: str
    key: str = ""
    container: str = ""
    path: str = ""  # of a mon_group, or of a file of the run directory
    why: str = ""
    strangers: tuple[int, ...] = ()  # the threads to move out
    # as life_turns.name_key, on record or in a failure
    names: tuple[str | None, ...] = (None, None, None)
    state: State | None = None  # of the running container to adopt

    @property
    def id(self) -> str:
        """The verb and the object, without names, which may become known between two runs."""
        return " ".join(word for word in (self.verb, self.container, self.key, self.path) if word)

    def __str__(self) -> str:
        about = self.path or who(self.container or self.key, *self.names)
        of_key = (
            f" of {short_id(self.key)}" if self.container and self.key and not self.path else ""
        )
        return f"{self.verb} {about}{of_key}: {self.why}"


def diagnose(survey: Survey) -> list[Action]:
    """List all actions that the node needs, in the order of execution."""
    actions: list[Action] = []
    for key in survey.list_keys():
        try:
            actions += diagnose_key(survey, key, survey.states.get(key))
        except (
            OSError
        ) as error:  # what cannot be read is not taken for absent, and stops no other key
            survey.unread[key] = error
    for path in survey.orphans:
        is_listed = _is_listed(survey, reclaim.parse_key(survey.context, path))
        if not is_listed and not survey.context.resctrl.has_live_task(path):
            actions.append(
                Action("remove", path=path, why="this group has no record, and it has no tasks")
            )
    if None in survey.lost:
        actions.append(
            Action(
                "rebuild",
                path=survey.lost[None],
                why="this group has no record, and it has live tasks",
            )
        )
    for container in survey.records.failed:
        actions += diagnose_failure(survey, container)
    for container in survey.records.half_failures:
        actions.append(Action("forget", container=container, why="its record is incomplete"))
    return sorted(actions, key=lambda action: VERBS.index(action.verb))


def diagnose_key(
    survey: Survey, key: str, state: KeyState | None, only: str = ""
) -> Iterator[Action]:
    """List the actions that a key needs, those that cost most to find last;
    `state` is its record, if readable.

    With `only`, a container of the key, the actions for its other containers are left out.
    """
    of_files = _diagnose_files(survey, key, state, only)
    if state is None:
        yield from of_files
        return
    is_live = state.completed_at is None
    rest = _diagnose_tasks(survey, state, only) if is_live else _diagnose_completed(survey, state)
    for action in chain(of_files, _diagnose_record(survey, state), rest):
        yield (
            action
            if any(action.names)
            else replace(action, names=life_turns.name_key(state, action.container))
        )


def _is_listed(survey: Survey, key: str | None) -> bool | None:
    """Whether the list of --live has a key; None if there is no such list."""
    return key in survey.live if survey.live is not None else None


def _diagnose_files(
    survey: Survey, key: str, state: KeyState | None, only: str
) -> Iterator[Action]:
    """List the actions that a key needs because of its files in the run directory."""
    contents = survey.records
    rebuilds = (
        state.recovering if state is not None else key in contents.unreadable or key in survey.lost
    )
    if rebuilds:
        problem = "is unreadable" if key in contents.unreadable else "is lost"
        yield Action(
            "rebuild", key, why=f"its record {problem if state is None else 'may lack members'}"
        )
    for container in [only] if only else survey.indexed.get(key, ()):
        is_member = state is not None and container in state.members
        is_awaited = state is None and key in map(
            partial(reclaim.parse_key, survey.context), survey.orphans
        )
        index = survey.records.index.get(container)
        if not (rebuilds or is_member or is_awaited) and index is not None and index.key == key:
            yield Action("forget", key, container, why="it is in the index but not a member")
    for path in contents.asides.get(key, ()):
        yield Action("tidy", key, path=path, why="it was set aside a day ago")
    stays = state is not None and state.completed_at is None
    if key in contents.leftovers and (
        state is None or not stays or records.has_leftovers(survey.context.run, state)
    ):
        yield Action("tidy", key, why="a hook that was killed left temporary files")


def _diagnose_record(survey: Survey, state: KeyState) -> Iterator[Action]:
    """List the actions that a key needs because of its record."""
    key, is_listed = state.key, _is_listed(survey, state.key)
    if state.owed is not None:
        waiting = format_count(count_owed(state), "line")
        yield Action("write", key, why=f"{waiting} of history not written yet")
    if any(survey.mark_counters(group) is not group for group in state.groups):
        yield Action("mark", key, why="some of its counters have come, gone, or started again")
    if state.completed_at is not None or state.recovering or (is_listed and not state.members):
        return
    if state.members:
        named = survey.add_names(state)
        if named is not state:
            why = "the kubelet's logs name it" if state.kind == "pod" else "Podman names it"
            yield Action("name", key, why=why, names=life_turns.name_key(named))
    elif state.lingering_since is None or is_listed is False or survey.has_lingered(state):
        if state.groups and all(is_held(survey.context, state, group) for group in state.groups):
            survey.held.add(key)
            return
        why = (
            "it has no members"
            if state.lingering_since is None
            else "its linger time is over, or its pod is gone"
        )
        yield Action("end", key, why=why)


def _diagnose_completed(survey: Survey, state: KeyState) -> Iterator[Action]:
    """List the actions that a completed key needs."""
    key = state.key
    if state.stopped and any(
        survey.context.resctrl.has_live_task(group.path) for group in state.groups
    ):
        yield Action("end", key, why="its end was interrupted")
    # A time in the future is of another boot, if the run directory survives one.
    is_old = (
        abs(survey.boottime - (state.completed_boottime or 0.0))
        >= survey.context.options.snapshot_ttl
    )
    if (state.groups or state.owed is None) and (is_old or key in survey.early):
        yield Action(
            "prune", key, why="its snapshot is older than --snapshot-ttl" if is_old else EARLY
        )


def _diagnose_tasks(survey: Survey, state: KeyState, only: str) -> Iterator[Action]:
    """List the actions that a key needs because of its processes and of the tasks in its groups."""
    key = state.key
    threads = Threads(survey, state) if survey.is_mounted else None
    groups = state.groups if threads is not None and len(state.groups) > 1 else []
    if len({reclaim.is_retired(survey.context, state, group) for group in groups}) > 1:
        yield Action("retire", key, why="one of its groups is gone, and no member needs it")
    for container in state.members.keys() & {only} if only else state.members:
        action = _diagnose_member(survey, state, container, threads)
        if action is not None and not state.recovering:
            yield action
    # A task may belong to a member without a record.
    if threads is None or only or state.recovering:
        return
    for group in state.groups:
        strangers = sorted(threads.find_strangers(group.path, state))
        if strangers:
            why = f"threads of none of its containers: {', '.join(map(str, strangers[:5]))}"
            yield Action("evict", key, path=group.path, why=why, strangers=tuple(strangers))


def _diagnose_member(
    survey: Survey, state: KeyState, container: str, threads: Threads | None
) -> Action | None:
    """Find the action that a member needs.

    Its threads are counted in any case: else they would be strangers.
    """
    member, key = state.members[container], state.key
    is_listed = _is_listed(survey, key)
    why = "its process is dead" if is_listed is None else "its key is not in the list of --live"
    if survey.is_dead(member):
        return None if is_listed else Action("drop", key, container, why=why)
    place = threads.locate_container(container, member) if threads is not None else Whereabouts()
    if other := _find_other_key(survey, key, member):
        return Action("drop", key, container, why=f"its process is a member of key {other} as well")
    if is_listed is False:
        return Action("drop", key, container, why=why)
    if place.taker is not None:
        why = f"another tool has moved it to {place.taker}: a part of its use is unknown"
        has_gone = any(
            group.path == member.group and survey.is_gone(group) for group in state.groups
        )
        return Action("note", key, container, why=why) if has_gone or not state.taken else None
    if not place.is_in_place:
        return Action(
            "remake",
            key,
            container,
            why="its group is gone, or its process is in another ctrl_group",
        )
    # A former process of this ID has no index entry (life_turns.name_displaced).
    if survey.records.index.get(container) is None and container == names.get_container_id(
        container
    ):
        return Action(
            "remake",
            key,
            container,
            why="its index entry is missing, so poststop cannot find the key",
        )
    if not place.to_move:
        return None
    # The initial counters must be read before the first thread enters the group,
    # as in createRuntime.
    is_counted = bool(survey.context.options.snapshot_ttl or state.history_file)
    has_begun = any(
        group.path == member.group and group.begin is not None for group in state.groups
    )
    verb = "adopt" if has_begun or not is_counted else "remake"
    return Action(verb, key, container, why=f"{place.to_move} of its threads are not in its group")


def _find_other_key(survey: Survey, key: str, member: Member) -> str | None:
    """Return the one key that a process stays in if others have it as a member, too;
    None if it is this key.

    That is the key in whose group it is. Only two calls at one moment can
    let a process join two keys.
    """
    keys = {*survey.memberships.get(member.pid, ())} | {key}
    if len(keys) == 1:
        return None
    # Read again: another key may have lost it since the survey.
    states = [
        state
        for other in sorted(keys)
        if (state := survey.context.run.glance(KeyState, other)) is not None
    ]
    process = member.pid, member.starttime
    places = {
        state.key: other.group
        for state in states
        for other in state.members.values()
        if (other.pid, other.starttime) == process
    }
    place = survey.groups.find(member.pid)
    stays = next(
        (other for other, group in places.items() if group == place), next(iter(places), key)
    )
    return stays if stays != key else None


def diagnose_failure(survey: Survey, container: str) -> Iterator[Action]:
    """List the action that a container with a failure record needs."""
    failure = survey.context.run.glance(Failure, container)
    # Else the failure record goes when the member is dropped.
    is_lone = survey.records.index.get(container) is None
    if failure is None or (failure.pid is None and failure.stage != "poststop"):
        if is_lone and records.has_old_failure(survey.context.run, container):
            yield Action(
                "forget", container=container, why="its failure record has no pid, and is old"
            )
        return
    is_over = is_lone  # only a failure of poststop names no process
    if failure.pid is not None:
        is_over = _has_dead_process(failure) or (
            failure.key is not None and _is_listed(survey, failure.key) is False
        )
    names_process = failure.pid is not None and (
        failure.starttime is not None or failure.boottime is not None
    )
    known = failure.namespace, failure.pod, failure.name or records.find_job(failure)
    action = Action("forget", container=container, names=known)
    if is_over:
        yield replace(action, why="it failed, and is gone")
    elif failure.kind == "job" and _has_group(survey, container):
        yield replace(action, why="it is a member of a job")
    elif (
        survey.is_mounted
        and names_process
        and not (failure.monitored or _is_final(survey, failure))
    ):
        yield replace(
            action, verb="retry", why=f"it is running but not monitored ({failure.reason})"
        )


def _is_final(survey: Survey, failure: Failure) -> bool:
    """Whether another try is of no use.

    A container whose process is a member of another key may leave that.
    """
    if failure.reason == Reason.USAGE and failure.kind != "job":
        return failure.pid in survey.memberships
    return failure.reason in _NOT_AGAIN


def _has_group(survey: Survey, container: str) -> bool:
    """Whether a container is a member of a key now, and its group is known to be there.

    Since the survey a failed call may have taken it out again. One that was killed before it could
    may have left a member without a group, which a node without RMIDs cannot make.
    """
    run, kernel = survey.context.run, survey.context.resctrl
    state = run.glance(KeyState, records.glance_index(run, container) or "")
    member = state.members.get(container) if state is not None else None
    return member is not None and system.try_call(kernel.exists, member.group) is True


def _has_dead_process(failure: Failure) -> bool:
    pid = failure.pid or 0
    is_dead = system.is_dead(pid, failure.starttime)
    if is_dead is False and failure.starttime is None and failure.boottime is not None:
        fields = system.stat_fields(pid)  # a process that started since then has got the pid
        return fields is None or int(fields[19]) > failure.boottime * system.TICKS
    return is_dead is True


# --- The threads of one key


class Threads:
    """Compares the threads in the groups of one key with those of its containers."""

    def __init__(self, survey: Survey, state: KeyState) -> None:
        self._survey = survey
        self._key = state.key
        kernel = survey.context.resctrl
        # Path of a group -> IDs of the threads in it; no entry, or None,
        # if the group is gone or was recreated.
        self._inside = {
            group.path: kernel.tasks(group.path)
            for group in state.groups
            if kernel.exists(group.path) and (group.inode is None or kernel.has(group))
        }
        # Path of a group -> IDs of the threads of the containers that were looked at so far.
        self._owned: dict[str, set[int]] = {group.path: set() for group in state.groups}

    def locate_container(self, container: str, member: Member) -> Whereabouts:
        """Locate a container whose init is alive.

        If another tool has taken it, none of its threads is to be moved.
        """
        groups, group, inside = self._survey.groups, member.group, self._inside.get(member.group)
        path = group if member.pid in (inside or ()) else groups.find(member.pid)
        is_taken = path is not None and path != group and groups.is_others(path)
        is_in_place = inside is not None and (
            path in (None, group) or is_of_parent(group, path or "")
        )
        place = Whereabouts(path if is_taken else None, is_in_place)
        if is_taken or is_in_place:
            place = self._count_threads(member, place)
        self._survey.whereabouts[self._key, container] = place
        return place

    def _count_threads(self, member: Member, place: Whereabouts) -> Whereabouts:
        """Add how many threads of a container are outside its group, and where."""
        processes = self._survey.processes
        reading = processes.read_threads_in_own_cgroup(member)
        fresh, unread = reading if reading is not None else (set[int](), 0)
        pids = processes.find_pids(member, outside_own_cgroup=reading is not None and not unread)
        threads = processes.list_threads(pids) | fresh
        self._owned[member.group] |= threads
        if place.taker is not None:
            return place
        # A new thread that has ended by now may be part of a chain of forks.
        # Older ones may just have ended.
        missing = threads - (self._inside.get(member.group) or set())
        places = self._locate(
            member, {tid for tid in missing if tid in fresh or not system.is_dead(tid)}
        )
        to_move = places.pop(OUTSIDE, 0) + places.pop(None, 0)
        elsewhere = (
            (path, number) for path, number in places.items() if path not in (INSIDE, None)
        )
        return place._replace(to_move=to_move, elsewhere=tuple(elsewhere), unread=unread)

    def _locate(self, member: Member, missing: set[int]) -> Counter[str | None]:
        """Count the places of threads that seem to be outside, as `locate` names them.

        A program that forks and exits in its group can end before its place is read. So this
        looks again until a thread is known to be outside, or none ended too early. After the last
        look those that ended count.
        """
        survey = self._survey
        places: dict[int, str | None] = {}
        for _ in range(_LOOKS):
            places = {tid: locate(survey.groups, tid, member.group) for tid in missing}
            ended = {tid for tid, place in places.items() if place is None and system.is_dead(tid)}
            is_known = not ended or OUTSIDE in places.values()
            needs_reading = not is_known and survey.rereads_left
            reading = survey.processes.read_threads_in_own_cgroup(member) if needs_reading else None
            if reading is None:
                break
            survey.rereads_left -= 1
            inside = survey.context.resctrl.tasks(member.group) or set()
            missing = (missing - ended - reading.tids) | (reading.tids - inside)
        return Counter(places.values())

    def find_strangers(self, path: str, state: KeyState) -> set[int]:
        """Find the threads in a group that are in no cgroup of a member,
        once all live members were looked at.
        """
        survey = self._survey
        tids = (self._inside.get(path) or set()) - self._owned[path]
        if not tids:
            return tids
        strangers = find_strangers(tids, survey.find_live(state), survey.processes)
        # The record was read before the tasks. A container may have joined in between:
        # check again with a new one.
        now = survey.context.run.glance(KeyState, self._key) if strangers else None
        return (
            find_strangers(strangers, survey.find_live(now), survey.processes)
            if now is not None
            else set()
        )


def find_strangers(tids: set[int], live: dict[str, Member], processes: Processes) -> set[int]:
    """Choose the threads that are in no member's cgroup,
    among threads in a key's group that no known process has.

    There are none if a member has no cgroup of its own: its processes cannot be recognized. A
    thread that started after the look at the processes may be a member's child that has left its
    cgroup: the next look decides.
    """
    cgroups = [
        *filter(None, (find_own_cgroup(container, member) for container, member in live.items()))
    ]
    if not live or len(cgroups) < len(live):
        return set()

    def is_stranger(tid: int) -> bool:
        places = system.cgroups(tid)  # a thread has those of its process
        is_elsewhere = places and not any(
            is_within(place, cgroup) for place in places for cgroup in cgroups
        )
        return bool(is_elsewhere) and system.is_dead(tid) is False and not processes.is_newer(tid)

    return set(filter(is_stranger, tids))
