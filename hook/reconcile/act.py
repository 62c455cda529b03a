# SPDX-License-Identifier: Apache-2.0
"""Does one action, if the node still needs it.

An action is about one key and holds its lock, which it takes without waiting: the next run handles
a busy key. Under the lock the key is diagnosed again, so that an outdated plan does no harm.
Actions consist of steps of the hook path, each of which survives a kill.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from hook import (
    create,
    damage,
    ending,
    identity,
    life_end,
    life_turns,
    rare,
    reclaim,
    report,
    system,
    validation,
)
from hook.conmon import leaves_out
from hook.context import read_config, read_container
from hook.errors import WRONG_CTRL_GROUP, HookError, Reason
from hook.key import remove_members, settle, write_end
from hook.line import count_owed, list_owed, set_owed
from hook.models import Failure, Index, KeyState, Member, MonGroup
from hook.node import naming, processes, records
from hook.reconcile.diagnose import EARLY, Action, diagnose_failure, diagnose_key
from hook.reconcile.move import Mover, Place, Source, read_groups
from hook.reconcile.survey import Survey, find_process
from hook.store import LockedKey
from hook.unmonitored import close, forget_failure
from hook.words import format_count

if TYPE_CHECKING:
    from hook.context import Context
    from hook.identity import Container, Key

LONGEST_KEY = 64  # of a job, in characters
_ENOUGH = 100  # tasks of no known container, of which a few are named


def carry_out(survey: Survey, action: Action) -> bool | Mover:
    """Carry out an action.

    Return whether it was needed, or the mover of the threads that it brings in.

    That mover was started, and may have failed. Raises HookError, OSError.
    """
    run = survey.context.run
    if action.verb == "remove":
        return reclaim.remove_orphan(survey.context, action.path)
    if action.verb == "rebuild" and not action.key:
        holders = processes.describe_tasks(
            system.try_call(survey.context.resctrl.tasks, action.path)
        )
        raise HookError(
            Reason.IO, f"it has tasks of several keys, and its name is none of them: {holders}"
        )
    if action.state is not None:
        running = action.state
        container = make_container(
            running.id, running.pid or 0, running.bundle, running.annotations
        )
        # Its runtime named the pid after the survey.
        # So a process that the survey saw is the container's.
        if not survey.processes.is_alive(container):
            return False
        with lock_joining(survey, container) as other_keys:
            return adopt_running(survey, container, other_keys)
    if not action.key:
        return _act_on_failure(survey, action)
    with run.lock(action.key, system.monotonic()) as locked:
        if action.container:
            survey.records.index[action.container] = run.glance(Index, action.container)
        needed_now = _find(diagnose_key(survey, action.key, locked.state, action.container), action)
        if needed_now is None:
            return False
        state = locked.state or damage.unknown_state(action.key)
        if action.verb in _UNDER_LOCK:
            _UNDER_LOCK[action.verb](survey, locked, state, needed_now)
            return True
    # The calls below take the lock again, as a hook does.
    if action.verb == "remake":
        return make_again(survey, state, action.container)
    return (
        bring_in(survey, action.key, action.container, survey.late.limit(action.container)) or False
    )


def _find(needed: Iterable[Action], action: Action) -> Action | None:
    """Find an action among those that are needed now."""
    # After a remake for another container of the key,
    # this one only needs its threads moved in (adopt).
    same = (action.id, replace(action, verb="adopt").id if action.verb == "remake" else "")
    return next((other for other in needed if other.id in same), None)


def _act_on_failure(survey: Survey, action: Action) -> bool | Mover:
    """Retry a failed createRuntime, or remove its failure record."""
    run, container = survey.context.run, action.container
    # Read the record again, to forget it under its lock: the container may have been restarted,
    # and have failed again.
    if action.verb == "retry":
        return retry_failure(survey, container)
    with run.lock(container, system.monotonic()):
        records.remove_half_written(run, container)
        if _find(diagnose_failure(survey, container), action) is not None:
            close(survey.context, container)
    return True


# --- The actions that hold the lock of their key: `state` is the recorded one, or an empty one if
# none is readable


def _prune(survey: Survey, locked: LockedKey, state: KeyState, action: Action) -> None:
    settle(survey.context, locked, life_end.forget(state))
    if action.why == EARLY:
        survey.context.run.count_run(records.DROPPED_SNAPSHOTS)


def _note(survey: Survey, locked: LockedKey, state: KeyState, _action: Action) -> None:
    gone = [group.path for group in state.groups if survey.is_gone(group)]
    settle(survey.context, locked, life_turns.take(state, gone))


def _mark(survey: Survey, locked: LockedKey, state: KeyState, _action: Action) -> None:
    marked = [survey.mark_counters(group) for group in state.groups]
    settle(survey.context, locked, validation.replace(state, groups=marked))


def _tidy(survey: Survey, _locked: LockedKey, _state: KeyState, action: Action) -> None:
    if action.path:
        rare.remove_tree(action.path, survey.context.run.descriptor)
    else:
        records.remove_leftovers(survey.context.run, action.key)


def write_owed(context: Context, locked: LockedKey, state: KeyState, surplus: int = 0) -> None:
    """Write the lines of history that a key owes. Raises HookError if that fails.

    Then so many of the oldest lines as are `surplus` of the key are dropped.
    """
    if state.owed is None:
        return
    what = f"{format_count(count_owed(state), 'line')} of history"
    owed, errors = ending.try_lines(context.run, list_owed(state), what, surplus)
    # After the lines: killed in between, they are written once more, each with the same id.
    settle(context, locked, set_owed(state, owed))
    if errors:
        raise errors[0]


def _evict(survey: Survey, _locked: LockedKey, _state: KeyState, action: Action) -> None:
    """Move out tasks that are not ours.

    `tasks` lists every task that has the group's RMID: after an RMID is reused,
    that includes old tasks that no program moved.

    A hook records a container under the lock before it moves its init, so the record that the tasks
    were compared with has every container whose init is among them.
    """
    kernel = survey.context.resctrl
    # Not one that is in its own group by now.
    for tid in {*action.strangers} & (kernel.tasks(action.path) or set()):
        try:
            kernel.expel(action.path, tid)
        except HookError as error:
            if error.reason != Reason.TASK_GONE:
                raise


# --- Rebuilding a lost or damaged record from the kernel and the index


def _write_rebuilt(survey: Survey, locked: LockedKey, state: KeyState, _action: Action) -> None:
    """Find the groups and the members of a key again.

    Raises HookError if a task matches no known container.

    Members are the live processes in the index. Of what the index lacks, the cgroups' names say
    which container it is. The next pass drops dead ones, and ends a key without members.
    """
    context, key = survey.context, state.key
    # The groups with the key in their name, and those without a record, at the survey and now.
    others = {
        path
        for path, owner in survey.owners.items()
        if owner == key and not reclaim.is_recorded(context, path)
    }
    others |= {
        f"{above}/mon_groups/{context.options.group_prefix}{key}" for above in survey.ctrl_groups
    }
    groups = [*state.groups]
    for path in sorted(others.difference(group.path for group in state.groups)):
        if context.resctrl.exists(path) and survey.find_owner(path) == key:
            # Its initial counters are lost.
            groups.append(MonGroup(path=path, ctrl_group=survey.groups.name_ctrl_group(path)))
    indexes = _read_indexes(survey, key)
    located = {
        name: process for name, index in indexes.items() if (process := find_process(name, index))
    }
    members = {**_find_members(survey, groups, located), **state.members}
    is_job = any(map(processes.parse_job_process, members))
    # A cgroup that is named as a job is no container's.
    unindexed = {} if is_job else _find_by_cgroups(survey, key, groups, {*members, *located})
    file = next(
        filter(None, [state.history_file, *(index.history_file for index in indexes.values())]), ""
    )
    job_labels = next(
        filter(None, (index.job_labels for index in indexes.values())), state.job_labels
    )
    index = Index(key=key, history_file=file, job_labels=job_labels)
    kind = "job" if is_job else state.kind
    rebuilt = life_turns.rebuild(state, groups, {**members, **unindexed}, kind, index)
    for name, member in unindexed.items():
        context.run.write_index(name, rebuilt, member)
    settle(context, locked, rebuilt)
    # A completed key has none.
    for group in locked.state.groups if locked.state is not None else []:
        if context.resctrl.exists(group.path):
            create.write_begin(context, locked, group.path)
    rebuilt = locked.state or rebuilt
    # Of a job, what its members have left behind.
    if not is_job and (unknown := _find_unknown(survey, rebuilt, located)):
        holders = processes.describe_tasks(unknown)
        raise HookError(Reason.IO, f"its group has tasks that match no known container: {holders}")
    # With its names at once: until then its metrics are not exported,
    # and their labels do not change any more.
    settle(context, locked, validation.replace(survey.add_names(rebuilt), recovering=False))


def _read_indexes(survey: Survey, key: str) -> dict[str, Index]:
    """Read what the index has of a key now, by container.

    Raises OSError if a part of it cannot be read.
    """
    unread = [container for container, index in survey.records.index.items() if index is None]
    indexes = {}
    for name in [*survey.indexed.get(key, ()), *unread]:
        with suppress(ValueError):  # it is damaged
            index = survey.context.run.read(Index, name)
            if index is not None and index.key == key:
                indexes[name] = index
    return indexes


def _find_members(
    survey: Survey, groups: list[MonGroup], located: dict[str, tuple[int, int]]
) -> dict[str, Member]:
    """Make members of the live processes in the index of a key that has groups,
    each in the one that lists it.
    """
    tasks = {group.path: survey.context.resctrl.tasks(group.path) or set() for group in groups}
    members = {}
    for name, (pid, starttime) in located.items() if groups else ():
        # One that is in none was moved away, or its hook was killed: it is brought in.
        group = next((path for path, tids in tasks.items() if pid in tids), groups[0].path)
        cgroup = identity.choose_cgroup(system.cgroups(pid), name)
        # Last: then the cgroup is that of this process, and not of one that has got its number.
        if system.is_dead(pid, starttime) is False:
            members[name] = Member(pid=pid, starttime=starttime, group=group, cgroup=cgroup)
    return members


def _find_by_cgroups(
    survey: Survey, key: str, groups: list[MonGroup], known: Collection[str]
) -> dict[str, Member]:
    """Find the containers in the groups of a key, except the `known` ones:
    each by the process that started first.

    They have no entry in the index, or one of an earlier version. The cgroups' names
    decide: a container of the index, the key itself, or a text that looks like an ID. Only
    processes of the survey count.
    """
    run, before, members = survey.context.run, survey.processes.by_pid, dict[str, Member]()
    texts = {*survey.records.index, key}
    for group in groups:
        there = before.keys() & (survey.context.resctrl.tasks(group.path) or ())
        for pid in sorted(there, key=lambda pid: (before[pid].starttime, pid)):
            cgroups, starttime = system.cgroups(pid), before[pid].starttime
            for name in filter(None, (processes.find_container(place, texts) for place in cgroups)):
                if name in known or name in members:
                    continue
                # A hook may have recorded it since.
                is_of_key = (records.glance_index(run, name) or key) == key
                if is_of_key and not system.is_dead(pid, starttime):  # last, as above
                    cgroup = identity.choose_cgroup(cgroups, name)
                    members[name] = Member(
                        pid=pid, starttime=starttime, group=group.path, cgroup=cgroup
                    )
    return members


def _find_unknown(
    survey: Survey, state: KeyState, located: dict[str, tuple[int, int]]
) -> list[int]:
    """Find the live tasks of no known container in the groups of a key.

    Tasks of a container in the index do not count: its init has ended, or a reused RMID brought in
    those of another key's, which are evicted later. Nor do tasks that started after the survey:
    each is a child of another task, or of a container that a hook has recorded.
    """
    tids = {tid for group in state.groups for tid in survey.context.resctrl.tasks(group.path) or ()}
    look, index = survey.processes, survey.records.index
    look.add(state.members.items())
    known: set[int] = set()
    for member in state.members.values():
        known |= look.find_pids(member) | look.find_pids_in_own_cgroup(member)
        # Also those whose cgroup /proc does not show.
        reading = look.read_threads_in_own_cgroup(member)
        tids -= reading.tids if reading is not None else set()
    # A failed read took these for dead, or they may live.
    missing = located.keys() - state.members.keys()
    unsure = {name for name in missing if system.is_dead(*located[name]) is not True}
    unknown = list[int]()
    for tid in tids - look.list_threads(known):
        if system.is_dead(tid) is True or look.is_newer(tid):
            continue
        names = [processes.find_container(place, index) for place in system.cgroups(tid)]
        if all(index.get(name or "") is None or name in unsure for name in names):
            unknown.append(tid)
        if len(unknown) == _ENOUGH:
            break
    return unknown


_UNDER_LOCK: dict[str, Callable[[Survey, LockedKey, KeyState, Action], object]] = {
    "rebuild": _write_rebuilt,
    "drop": lambda survey, locked, _, action: remove_members(
        survey.context, locked, [action.container]
    ),
    "end": lambda survey, locked, *_: write_end(survey.context, locked),
    "evict": _evict,
    "retire": lambda survey, locked, *_: reclaim.remove_retired(survey.context, locked),
    "forget": lambda survey, _locked, _state, action: survey.context.run.remove(
        Index, action.container
    ),
    "name": lambda survey, locked, state, _: settle(
        survey.context, locked, life_turns.keep_metric_labels(state, survey.add_names(state))
    ),
    "prune": _prune,
    "write": lambda survey, locked, state, _: write_owed(
        survey.context, locked, state, survey.surplus[state.key]
    ),
    "note": _note,
    "mark": _mark,
    "tidy": _tidy,
}
"""The function for each verb of an action that holds its key's lock."""


# --- Bringing in containers that run already: as createRuntime, but all threads of each are moved
# into its group


def make_container(
    name: str, pid: int, bundle: str, annotations: dict[str, str] | None
) -> Container:
    """Make the container of a hook, for one that runs already.

    The cgroup that its runtime was asked for names its pod, never the present one of its process,
    which the container may have made itself. Without it the pod in the annotations is not trusted.
    Without `annotations`, those in its bundle's config.json count.
    """
    config = read_config(bundle) if bundle else None
    if annotations is None and config is not None:
        annotations = config.annotations or {}
    places = processes.list_requested(config)
    container = read_container(name, pid, bundle, annotations, places)
    naming.name_running(container.pod, name, bundle, places)
    parsed = container.annotations
    names_pod = not container.pod.is_podmans and (parsed.pod_uid or parsed.cri_sandbox_uid)
    if not places and (annotations is None or names_pod):
        problem = (
            f"cannot tell which pod it belongs to: {bundle}/config.json has no absolute "
            "linux.cgroupsPath"
        )
        hint = "restart the container, so that its hook runs; --key=container works without it"
        container.pod.problem = HookError(Reason.BAD_KEY, problem, hint=hint)
    return container


def adopt_running(survey: Survey, container: Container, other_keys: Iterable[str]) -> bool | Mover:
    """Do createRuntime for a running container; if no key can be derived,
    under the one in its index.

    Returns False if filters leave it out.
    """
    options, run = survey.context.options, survey.context.run
    if leaves_out(options, container.pod):
        return False
    # The option is about Podman's containers: a pod has a line if its hook says so.
    if container.pod.uid is None:
        container.history_file = container.history_file or options.history
    key = None
    if container.starttime is not None and report.guess_key(options, container) is None:
        name = run.read_index(container.id)
        if name is not None:
            key = name, (run.glance(KeyState, name) or damage.unknown_state(name)).kind
    return _monitor(survey, container, key, other_keys)


def retry_failure(survey: Survey, name: str) -> bool | Mover:
    """Retry a failed createRuntime with its recorded key;
    return False if the container has ended, or is monitored.
    """
    failure = survey.context.run.glance(Failure, name)
    if failure is None:
        return False
    container = make_container(name, failure.pid or 0, failure.bundle or "", None)
    if failure.starttime not in (None, container.starttime):
        return False
    container.history_file, container.job_labels = failure.history_file, failure.job_labels
    pod = container.pod
    pod.namespace, pod.name = pod.namespace or failure.namespace, pod.name or failure.pod
    pod.container = pod.container or failure.name
    with lock_joining(survey, container) as other_keys:
        # After its start time was read: the pid can have become another process's since the plan
        # was made. And under the lock: a release removes the record of a job's.
        is_needed = any(action.verb == "retry" for action in diagnose_failure(survey, name))
        if not is_needed or survey.context.run.glance(Failure, name) != failure:
            return False
        if failure.key is not None and failure.kind is not None:
            return _monitor(survey, container, (failure.key, failure.kind), other_keys)
        if container.all_annotations is None:
            raise HookError(
                Reason.IO, "cannot tell which pod it belongs to: its bundle is unreadable"
            )
        return adopt_running(survey, container, other_keys)


def lock_process(context: Context, pid: int, starttime: int | None) -> LockedKey:
    """Take the lock of a process, under which a tool lets it join a key, a job's or a container's.

    Raises HookError.

    One that holds it may wait for the lock of a key, and never the other way round. A hook takes
    none: nothing else joins with the process of a container that is new.
    """
    name = processes.name_job_process(pid, starttime or 0)
    lock = f"{name:-<{LONGEST_KEY + 1}}"  # which is no job's key
    return context.run.lock(lock, system.monotonic() + context.options.lock_timeout)


@contextmanager
def lock_joining(survey: Survey, container: Container) -> Iterator[set[str]]:
    """Hold the lock of a process that is to join a key; `as` gives the keys that it may be in.

    Raises HookError.

    Those are its keys at the survey, and those since then by what it is called in the index: as the
    process of a job, or as the container that its cgroup names. A key that the survey could not
    read may have any process.
    """
    context, pid = survey.context, container.pid
    with lock_process(context, pid, container.starttime):
        marked = (identity.find_marked(place) for place in container.places)
        names = {name for cgroups in marked for _, name in cgroups}
        names.add(processes.name_job_process(pid, container.starttime or 0))
        indexed = (records.glance_index(context.run, name) for name in names)
        known = survey.memberships.get(pid, ())
        yield {*known, *survey.records.unreadable, *filter(None, indexed)}


def check_job_processes(survey: Survey, key: str, joining: list[Container]) -> str:
    """Return the ctrl_group that the processes and the job are in.

    Raises HookError about one that cannot join.
    """
    state = survey.states.get(key)
    groups = [group for group in state.groups if group.end is None] if state is not None else []
    classes, paths = {group.ctrl_group for group in groups}, {group.path for group in groups}
    place = ""
    for process in joining:
        about = f"process {process.pid}"
        # What has its number by now is not asked about.
        if system.is_dead(process.pid, process.starttime):
            raise HookError(Reason.TASK_GONE, f"{about} has ended")
        for other, container, member in survey.holders.get(process.pid, ()):
            # What has joined in this pass may have taken it out of that one's family.
            if other != key and process.pid in survey.processes.find_pids(member):
                raise HookError(Reason.USAGE, f"{about} is of {container}, a member of key {other}")
        path = survey.groups.find(process.pid)
        if path is None:
            raise HookError(Reason.TASK_GONE, f"{about} has ended")
        if survey.groups.is_others(path):
            raise HookError(
                Reason.NO_CTRL_GROUP, f"{about} is in {path}, a mon_group of another tool"
            )
        name = survey.context.options.group_prefix + key
        if "/mon_groups/" in path and path not in paths and path.rpartition("/")[2] != name:
            raise HookError(Reason.USAGE, f"{about} is in {path}, the group of another key")
        place = survey.groups.name_ctrl_group(path)
        classes = classes or {place}
        if place not in classes:
            its = ", ".join(sorted(classes))
            raise HookError(
                Reason.NO_CTRL_GROUP, f"{about} is in the ctrl_group {place}, and its job in {its}"
            )
    return place


def make_again(survey: Survey, state: KeyState, name: str) -> bool | Mover:
    """Make the group of a live member again, like createRuntime, and move all its tasks in.

    Returns False if it has ended, or if another tool has taken it.
    """
    context, member = survey.context, state.members[name]
    container = read_container(name, member.pid, "", {}, [])
    if container.starttime != member.starttime or survey.groups.is_others(
        survey.groups.find(member.pid) or ""
    ):
        return False
    try:
        with lock_joining(survey, container) as other_keys:
            return _monitor(survey, container, (state.key, state.kind), other_keys, was_in=True)
    finally:  # also if the new group got no RMID: the old group may hold the last one
        # Only if the old group is empty. Killed before this,
        # it stays on record and is removed with its key.
        with context.run.lock(
            state.key, system.monotonic() + context.options.lock_timeout
        ) as locked:
            reclaim.remove_retired(context, locked, left=member.group)


def _monitor(
    survey: Survey,
    container: Container,
    key: Key | None,
    other_keys: Iterable[str],
    *,
    was_in: bool = False,
) -> bool | Mover:
    """Monitor a container under this key, or the one that createRuntime derives,
    and begin to move all its tasks in.

    Returns False if filters leave it out. A failure is recorded like a hook's, unless the container
    has ended (`task_gone`). If it `was_in`, the group is made again, so its tasks were counted for
    most of the time, and their CPU time so far is not added to late_cpu.
    """
    context = survey.context
    used = 0.0 if was_in else processes.cpu_seconds(container.pid)
    container.is_late = not was_in
    try:
        if survey.refusal is not None and key is not None and not _has_group(context, key):
            raise survey.refusal
        if key is not None and key[1] == "job" and not was_in:
            check_job_processes(survey, key[0], [container])
        key = _create(survey, container, key, other_keys)
    except HookError as error:
        key = key or report.guess_key(context.options, container)
        if error.reason in (Reason.NO_RMIDS, Reason.RMIDS_IN_LIMBO):
            survey.refusal = error
        if error.reason != Reason.TASK_GONE:  # else it has ended
            _record(context, container, error, key, is_monitored=False)
        raise
    problem = identity.find_problem(container, key) if key is not None else None
    if problem is not None:
        _record(context, container, problem, key, is_monitored=True)
    elif context.run.has(Failure, container.id):
        forget_failure(context, container.id, container)
    if key is None:
        return False
    # Its init is in by now: what stays outside is no hook's failure.
    name, _ = key
    survey.late.count(name, used)
    return bring_in(survey, name, container.id, None if was_in else math.inf) or True


def _create(
    survey: Survey, container: Container, key: Key | None, other_keys: Iterable[str]
) -> Key | None:
    """Do createRuntime in the ctrl_group where the process is.

    If the kernel does not show that, it is where the survey has read the process. The kernel
    refuses another one; then the process has moved since, and all groups are read again.
    """
    context = survey.context
    path = survey.groups.find(container.pid) if system.resctrl_groups(container.pid) is None else ""
    if path is not None:
        try:
            ctrl_group = survey.groups.name_ctrl_group(path) if path else None
            return create.create_runtime(context, container, key, ctrl_group, other_keys)
        except HookError as error:
            if error.kind != WRONG_CTRL_GROUP or not path:
                raise
    survey.groups = read_groups(context)
    path = survey.groups.find(container.pid) or context.resctrl.root
    return create.create_runtime(
        context, container, key, survey.groups.name_ctrl_group(path), other_keys
    )


def _record(
    context: Context, container: Container, error: HookError, key: Key | None, *, is_monitored: bool
) -> None:
    report.write_record(
        context, report.make_failure(error, "reconcile", container, key, is_monitored=is_monitored)
    )


def _has_group(context: Context, key: Key) -> bool:
    """Whether a key has a group, so that one more container needs no RMID."""
    state = context.run.glance(KeyState, key[0])
    return state is not None and any(
        not context.resctrl.is_gone(group.path) for group in state.groups
    )


def bring_in(survey: Survey, key: str, container: str, longest_late: float | None) -> Mover | None:
    """Look at the threads of a container, and begin to move each that is outside its group.

    Returns the mover, which may not have ended, or may have ended with an error; None if the
    container has ended. Raises HookError, OSError.
    """
    state = survey.context.run.glance(KeyState, key)
    member = state.members.get(container) if state is not None else None
    if member is None or system.is_dead(member.pid, member.starttime):
        return None
    processes = survey.processes
    processes.add([(container, member)])
    outside = processes.find_pids(member, outside_own_cgroup=True)

    def read() -> set[int]:
        # The cgroup file system lists the threads in its own cgroup;
        # its other processes are read in /proc, one by one.
        reading = processes.read_threads_in_own_cgroup(member)
        tids, is_whole = (
            (reading.tids, not reading.unread) if reading is not None else (set[int](), False)
        )
        if outside or not is_whole:
            tids |= processes.reread_threads(member, outside_own_cgroup=is_whole)
        return tids

    count_late = partial(survey.late.count_thread, key, longest_late)
    others = {
        member.pid: member.starttime,
        **{pid: processes.by_pid[pid].starttime for pid in outside},
    }
    mover = Mover(
        survey.context,
        Place(key, container, member),
        Source(read, others),
        count_late,
        survey.groups,
    )
    mover.start()
    return mover
