# SPDX-License-Identifier: Apache-2.0
"""Moves the tasks of running containers into their groups, and foreign tasks out of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

from hook.base import all_groups, cgroups, names, procfs, system
from hook.base.errors import HookError
from hook.base.models import Failure, KeyState
from hook.base.reasons import Reason, WrongCtrlGroup
from hook.reconcile.chase import Chase, StillOutside
from hook.reconcile.plan import names_process
from hook.reconcile.survey import (
    find_live_members,
    find_strangers,
    has_dead_container,
    is_in_parent_of,
    may_move,
    read_tasks,
)
from hook.stages import create, failures, misidentity, retire
from hook.stages.identity import Container, Key
from hook.state import damage, records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from hook.base.models import Member
    from hook.reconcile.plan import Action
    from hook.reconcile.survey import Survey
    from hook.stages.context import Context
    from hook.state.store import LockedKey

_SECONDS = 10.0


def make_container(name: str, pid: int, bundle: str, annotations: dict[str, str] | None) -> Container:
    """The container of a hook, for one that runs already. Raises ValueError if it is invalid.

    The cgroup that its runtime was asked for says which pod it is of, never the one that its process is in by now:
    that may be of the container's making. Without it a pod that annotations name is not believed. `annotations`: None:
    those in its bundle's config.json, if that can be read.
    """
    if not pid:
        raise ValueError("it has no process")
    config = create.read_config(bundle) if bundle else None
    if annotations is None and config is not None:
        annotations = config.annotations or {}
    place = cgroups.from_config(config.linux.cgroups_path) if config is not None and config.linux is not None else None
    found = Container(names.container_id(name), pid, bundle, annotations, [place] if place is not None else [])
    if place is None and (annotations is None or found.pod.uid is not None):
        found.pod.uid, found.pod.problem = None, misidentity.of_cgroup(bundle)
    return found


def remake(context: Context, action: Action, seen: Survey) -> bool:
    """Make the group of a live member again, like createRuntime, and move all its tasks in.

    Returns whether it was needed. That is checked again under the key's lock, because a hook may have done it.
    """
    locked = _try_lock(context, action.key)
    if locked is None:
        return False
    with locked:
        state, container = locked.state, action.container
        member = state.members.get(container) if state is not None else None
        if state is None or member is None or procfs.is_dead(member.pid, member.starttime):
            return False
        if _is_in_place(context, state, container, member):
            return False
        was_in = _has_begun(context, state, container)
    _check_not_moved(context, member)
    it = Container(container, member.pid, "", {}, [])
    if it.starttime != member.starttime:
        return False  # it ended meanwhile
    try:
        _monitor(context, it, seen, Key(state.key, state.kind), was_in=was_in)
    finally:  # also if the new group got no RMID: the old group may hold the last one
        _remove_old_group(context, action.key, member.group)
    return True


def _try_lock(context: Context, key: str) -> LockedKey | None:
    """Lock a key without waiting; None if a hook holds the lock: the survey of the key is out of date then."""
    try:
        return context.run.lock(key, system.monotonic())
    except HookError as error:
        if error.reason != Reason.LOCK_TIMEOUT:
            raise
        return None


def _is_in_place(context: Context, state: KeyState, container: str, member: Member) -> bool:
    """Whether a member's init is in its group, with initial counters and an index entry. The caller holds the lock."""
    there = {tid for it in state.groups if it.path == member.group for tid in read_tasks(context, it) or ()}
    is_in = member.pid in there and is_in_parent_of(context, member.group, member.pid)
    return is_in and _has_begun(context, state, container) and records.glance_key(context.run, container) == state.key


def _remove_old_group(context: Context, key: str, path: str) -> None:
    """Remove the group that a container left for another ctrl_group, if it is empty.

    After a kill before this, the group stays on record and is removed with its key.
    """
    with context.run.lock(key, system.monotonic() + context.options.lock_timeout) as locked:
        retire.retire(context, locked, left=path)


def _check_not_moved(context: Context, member: Member) -> None:
    """Raise HookError if another tool moved a member's process into its own group."""
    _, mon_group = procfs.resctrl_groups(member.pid) or ("", "")
    if mon_group and not mon_group.startswith(context.options.group_prefix):
        problem = f"its process is in mon_group {mon_group[:80]!r} of another tool, and stays there"
        raise HookError(Reason.IO, problem)


def _find_ctrl_group(context: Context, pid: int, seen: Survey) -> str:
    """The ctrl_group whose `tasks` lists a process, for kernels without /proc/PID/cpu_resctrl_groups."""
    root = context.resctrl.root
    if seen.ctrl_groups is None:
        seen.ctrl_groups = [path for path in all_groups.list_ctrl_groups(root) if path != root]
    return next((it[len(root) + 1 :] for it in seen.ctrl_groups if pid in (context.resctrl.tasks(it) or ())), "/")


def start(context: Context, container: Container, seen: Survey) -> None:
    """Do createRuntime for a running container, whichever hooks.d file matches it; else by the key in the index."""
    is_known = container.starttime is None or failures.find_key(context.options, container) is not None
    _monitor(context, container, seen, None if is_known else _find_recorded_key(context, container.id))


def _find_recorded_key(context: Context, container: str) -> Key | None:
    """The key that a container is indexed under."""
    key = context.run.find_key(container)
    if key is None:
        return None
    return Key(key, (context.run.glance(KeyState, key) or damage.unknown_state(key)).kind)


def _monitor(context: Context, container: Container, seen: Survey, key: Key | None, *, was_in: bool = False) -> None:
    """Monitor a container under this key (None: the one that createRuntime derives), and move all its tasks in.

    A failure is recorded like that of a hook. `was_in`: the group is made again; what its tasks used is not all missed.
    """
    used = 0.0 if was_in else procfs.cpu_seconds(container.pid)
    found = _BroughtIn()
    ctrl_group = (
        _find_ctrl_group(context, container.pid, seen) if procfs.resctrl_groups(container.pid) is None else None
    )
    try:
        if seen.refusal is not None and key is not None and not _has_group(context, key):
            raise seen.refusal
        if key is None:
            key = create.monitor(context, container, ctrl_group)
        else:
            create.enter(context, container, key, ctrl_group)
        if key is not None:
            add_late(context, key.name, used)
            found = _bring_in(context, key.name, container.id, seen, was_in=was_in)
    except HookError as error:
        key = key or failures.find_key(context.options, container)
        if error.reason == Reason.NO_RMIDS:  # not in limbo: that ends within seconds
            seen.refusal = error
        if key is not None:
            _show_again(context, key.name)
        _record(context, container, error, key, is_monitored=False)
        raise
    problem = container.problem(key) if key is not None else None
    if problem is None:
        context.run.remove(Failure, container.id)
    else:
        _record(context, container, problem, key, is_monitored=True)
    found.check()  # last: it is monitored, and no hook's failure


def _show_again(context: Context, key: str) -> None:
    """Show what is recorded of a key: before createRuntime tries to make a group again, it hides the former one."""
    locked = _try_lock(context, key)
    if locked is not None:
        with locked:
            if locked.state is not None:
                context.show(locked.state)


def _has_group(context: Context, key: Key) -> bool:
    """Whether a key has a group already, so that a further container needs no RMID."""
    state = context.run.glance(KeyState, key.name)
    return state is not None and any(context.resctrl.inode(group.path) is not None for group in state.groups)


def _record(context: Context, container: Container, error: HookError, key: Key | None, *, is_monitored: bool) -> None:
    failures.record(context.run, failures.failure_of(error, "reconcile", container, key, is_monitored=is_monitored))


def retry(context: Context, action: Action, seen: Survey) -> bool:
    """Retry a failed createRuntime with its recorded key. Returns whether the container still needed it."""
    name = action.container
    failure = context.run.glance(Failure, name)
    if failure is None or failure.monitored or not names_process(failure) or has_dead_container(failure):
        return False
    container = make_container(name, failure.pid or 0, failure.bundle or "", None)
    pod = container.pod
    pod.namespace, pod.name = pod.namespace or failure.namespace, pod.name or failure.pod
    pod.container = pod.container or failure.name
    if failure.key is not None and failure.kind is not None:
        if failure.starttime not in (None, container.starttime):
            return False  # it ended meanwhile
        _monitor(context, container, seen, Key(failure.key, failure.kind))
    elif container.annotations is not None:
        start(context, container, seen)
    else:
        raise HookError(Reason.IO, "cannot tell which pod it belongs to: its bundle is unreadable")
    return True


def adopt(context: Context, action: Action, seen: Survey) -> Action | bool:
    """Move threads outside the group (of exec, for example) into it. Returns whether there were any, and how many."""
    locked = _try_lock(context, action.key)
    if locked is None:
        return False
    with locked:
        if locked.state is None or not _has_begun(context, locked.state, action.container):
            return False
    try:
        found = _bring_in(context, action.key, action.container, seen)
    except WrongCtrlGroup:  # its init is in another ctrl_group, on a kernel that does not show it
        return remake(context, action, seen)
    found.check()
    return replace(action, why=f"{found.moved} of its threads were not in its group") if found.moved else False


def _has_begun(context: Context, state: KeyState, container: str) -> bool:
    """Whether a container is a member, and its group has initial counters, which are read before its first task."""
    member = state.members.get(container)
    group = next((it for it in state.groups if member is not None and it.path == member.group), None)
    return group is not None and (group.begin is not None or not context.options.snapshot_ttl)


def add_late(context: Context, key: str, seconds: float) -> None:
    """Count the CPU time that tasks had used before they were moved into a key's group."""
    if seconds:
        context.late_cpu[key] = context.late_cpu.get(key, 0.0) + seconds


class _BroughtIn(NamedTuple):
    """How many threads of a container were moved into its group, and how many were outside at the end."""

    moved: int = 0
    outside: int = 0

    def check(self) -> None:
        """Raise StillOutside if some are."""
        if self.outside:
            raise StillOutside(self.outside, self.moved)


def _bring_in(context: Context, key: str, container: str, seen: Survey, *, was_in: bool = False) -> _BroughtIn:
    """Move every thread of a container into its group. Raises HookError.

    What is in its own cgroup, by the cgroup's own lists; what else there is of it, process by process. Raises
    WrongCtrlGroup if its init is in another ctrl_group. Other threads in another one stay there.
    """
    member = _find_live(context, key, container)
    if member is None:
        return _BroughtIn()
    seen.processes.add([(container, member)])
    own = seen.processes.read_own_cgroup(member)
    chase = Chase(context, member)
    if own is not None:
        chase.run(partial(seen.processes.read_own_cgroup, member))
        add_late(context, key, 0.0 if was_in else chase.late_cpu)
    is_whole = own is not None and not own.unread
    moved = chase.moved
    if not is_whole or seen.processes.beside_own_cgroup(member):
        look = partial(seen.processes.look_again, member, beside_own_cgroup=is_whole)
        moved += _bring_in_processes(context, key, container, look, was_in=was_in)
    return _BroughtIn(moved, chase.outside)


def _find_live(context: Context, key: str, container: str) -> Member | None:
    state = context.run.glance(KeyState, key)
    member = state.members.get(container) if state is not None else None
    return None if member is None or procfs.is_dead(member.pid, member.starttime) else member


def _bring_in_processes(
    context: Context, key: str, container: str, look: Callable[[], set[int]], *, was_in: bool
) -> int:
    """Move every thread of a container's processes into its group, until a look finds none outside.

    Looks again each time at the processes that it had in the survey, and at what they forked since. What comes in by
    `exec` meanwhile is found by the next survey. Returns how many were moved.
    """
    moved = 0
    deadline = system.monotonic() + _SECONDS
    left: set[int] = set()
    while system.monotonic() < deadline:
        member = _find_live(context, key, container)
        if member is None:
            return moved
        there = context.resctrl.tasks(member.group)
        if there is None:
            if procfs.is_dead(member.pid, member.starttime):
                return moved
            raise HookError(Reason.IO, "its group was removed again")
        missing = look() - there - left
        if not missing:
            return moved
        used = {} if was_in else {tid: procfs.cpu_seconds(tid) for tid in missing}
        stay = {tid for tid in missing if not move(context, member, tid)}
        add_late(context, key, sum(used[tid] for tid in used.keys() - stay))
        moved += len(missing - stay)
        left |= stay
    raise HookError(Reason.IO, f"it created tasks faster than they could be moved, for {_SECONDS:.0f} seconds")


def move(context: Context, member: Member, tid: int) -> bool:
    """Move a thread into a member's group; False if it has ended, or is in another ctrl_group or tool's group."""
    if not may_move(context, tid, member.group):
        return False
    try:
        context.resctrl.put(member.group, tid)
    except WrongCtrlGroup:
        if tid == member.pid:
            raise
        return False
    except HookError as error:
        if error.reason != Reason.TASK_GONE:
            raise
        return False
    return True


def evict(context: Context, action: Action, seen: Survey) -> bool:
    """Move foreign tasks out: a reused RMID can bring in tasks that no one moved. Returns whether there were any.

    Reads again under the key's lock: first the record, then the tasks, and of each task its cgroups. A hook records a
    container under that lock before it moves its init, so the record has every container whose init is among the tasks.
    Children that a member forked since the look at all processes are newer than that, and stay.
    """
    locked = _try_lock(context, action.key)
    if locked is None:
        return False
    with locked:
        strangers = _find_strangers_in(context, locked.state, action.path, seen) if locked.state is not None else set()
        for tid in strangers:
            try:
                context.resctrl.expel(action.path, tid)
            except HookError as error:
                if error.reason != Reason.TASK_GONE:
                    raise
    return bool(strangers)


def _find_strangers_in(context: Context, state: KeyState, path: str, seen: Survey) -> set[int]:
    live = find_live_members(state)
    seen.processes.add(live.items())
    there = {tid for group in state.groups if group.path == path for tid in read_tasks(context, group) or ()}
    family = {pid for it in live.values() if it.group == path for pid in seen.processes.of_container(it)}
    return find_strangers(there - seen.processes.threads(family), live, seen.processes)
