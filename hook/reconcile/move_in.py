"""Moves the tasks of running containers into their groups, and foreign tasks out of them."""

from __future__ import annotations

from functools import partial

from hook.base import container_tasks, names, procfs, system
from hook.base.errors import HookError, Reason, WrongCtrlGroup
from hook.base.models import Annotations
from hook.reconcile.survey import find_live_members, find_strangers, read_tasks
from hook.stages import create, failures, remove
from hook.stages.create import Container
from hook.stages.identity import Key, Pod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from hook.base.models import KeyState, Member
    from hook.reconcile.plan import Action
    from hook.stages.context import Node
    from hook.state.rundir import LockedKey

_SECONDS = 10.0


def make_container(name: str, pid: int, bundle: str, annotations: dict[str, str]) -> Container:
    """The container of a hook, for one that runs already. Raises ValueError if it is invalid."""
    if not pid:
        raise ValueError("it has no process")
    return Container(names.container_id(name), pid, bundle, annotations, Annotations.model_validate(annotations))


def remake(node: Node, action: Action, own: Collection[str]) -> bool:
    """Make the group of a live member again, like createRuntime, and move all its tasks in.

    Returns whether it was needed. That is checked again under the key's lock, because a hook may have done it.
    """
    locked = _try_lock(node, action.key)
    if locked is None:
        return False
    with locked:
        state, container = locked.state, action.container
        member = state.members.get(container) if state is not None else None
        if state is None or member is None or procfs.is_dead(member.pid, member.starttime):
            return False
        if _is_in_place(node, state, container, member):
            return False
    _check_not_moved(node, member)
    it = Container(container, member.pid, "", {}, Annotations())
    it.starttime, it.key = member.starttime, Key(state.key, state.kind)
    try:
        _enter(node, it, it.key, Pod(None, state.pod_namespace, state.pod_name, None), own)
    finally:  # also if the new group got no RMID: the old group may hold the last one
        _remove_old_group(node, action.key, member.group)
    return True


def _try_lock(node: Node, key: str) -> LockedKey | None:
    """Lock a key without waiting; None if a hook holds the lock: the survey of the key is out of date then."""
    try:
        return node.run.lock(key, system.monotonic())
    except HookError as error:
        if error.reason != Reason.LOCK_TIMEOUT:
            raise
        return None


def _is_in_place(node: Node, state: KeyState, container: str, member: Member) -> bool:
    """Whether a member's init is in its group, with initial counters and an index entry. The caller holds the lock."""
    there = {tid for it in state.groups if it.path == member.group for tid in read_tasks(node, it) or ()}
    is_in = member.pid in there and node.is_in_parent_of(member.group, member.pid)
    return is_in and _has_begun(node, state, container) and node.run.key_of(container) == state.key


def _remove_old_group(node: Node, key: str, path: str) -> None:
    """Remove the group that a container left for another ctrl_group, if it is empty.

    After a kill before this, the group stays on record and is removed with its key.
    """
    with node.run.lock(key, system.monotonic() + node.options.lock_timeout) as locked:
        remove.retire(node, locked, left=path)


def _check_not_moved(node: Node, member: Member) -> None:
    """Raise HookError if another tool moved a member's process into its own group."""
    _, mon_group = procfs.resctrl_groups(member.pid) or ("", "")
    if mon_group and not mon_group.startswith(node.options.group_prefix):
        problem = f"its process is in mon_group {mon_group[:80]!r} of another tool, and stays there"
        raise HookError(Reason.IO, problem)


def _enter(node: Node, container: Container, key: Key, pod: Pod, own: Collection[str]) -> None:
    """Put a running container into its key's group."""
    container.places = procfs.cgroups(container.pid)
    _move_all_tasks(node, container, own, partial(create.enter, node, container, key, pod))


def _find_ctrl_group(node: Node, pid: int) -> str:
    """The ctrl_group whose `tasks` lists a process, for kernels without /proc/PID/cpu_resctrl_groups."""
    root = node.resctrl.root
    named = (path for path in node.resctrl.ctrl_groups() if path != root)
    return next((path[len(root) + 1 :] for path in named if pid in (node.resctrl.tasks(path) or ())), "/")


def start(node: Node, container: Container, own: Collection[str]) -> None:
    """createRuntime for a running container, whichever hooks.d file matches it."""
    _move_all_tasks(node, container, own, partial(create.monitor, node, container, create.look(container)))


def _move_all_tasks(node: Node, container: Container, own: Collection[str], step: Callable[[], object]) -> None:
    """Do a step that starts monitoring, and move all tasks in. A failure is recorded like that of a hook."""
    if procfs.resctrl_groups(container.pid) is None:
        container.ctrl_group = _find_ctrl_group(node, container.pid)
    try:
        if step() is not False and container.key is not None:
            _bring_in(node, container.key.name, container.id, own)
    except HookError as error:
        failures.record(node.run, failures.failure_of(error, names.container_of(container.id), "reconcile", container))
        raise
    failures.settle(node.run, container, "reconcile")


def retry(node: Node, action: Action, own: Collection[str]) -> bool:
    """Retry a failed createRuntime with its recorded key. Returns whether the container still needed it."""
    name = action.container
    failure = node.run.failure_of(name)
    if failure is None or failure.monitored or not failure.pid or failure.starttime is None:
        return False
    if procfs.is_dead(failure.pid, failure.starttime):
        return False
    config = create.config_of(failure.bundle) if failure.bundle else None
    container = make_container(name, failure.pid, failure.bundle or "", (config and config.annotations) or {})
    if failure.key is not None and failure.kind is not None:
        container.starttime, container.key = failure.starttime, Key(failure.key, failure.kind)
        pod = create.look(container)
        container.problem = pod.problem if container.key.kind == "pod" else None
        _enter(node, container, container.key, pod, own)
    elif config is not None:
        start(node, container, own)
    else:
        raise HookError(Reason.IO, "cannot tell which pod it belongs to: its bundle is unreadable")
    return True


def adopt(node: Node, action: Action, own: Collection[str]) -> bool:
    """Move threads outside the group (of exec, for example) into it. Returns whether there were any."""
    locked = _try_lock(node, action.key)
    if locked is None:
        return False
    with locked:
        if locked.state is None or not _has_begun(node, locked.state, action.container):
            return False
    try:
        return _bring_in(node, action.key, action.container, own) > 0
    except WrongCtrlGroup:  # its init is in another ctrl_group, on a kernel that does not show it
        return remake(node, action, own)


def _has_begun(node: Node, state: KeyState, container: str) -> bool:
    """Whether a container is a member, and its group has initial counters, which are read before its first task."""
    member = state.members.get(container)
    group = next((it for it in state.groups if member is not None and it.path == member.group), None)
    return group is not None and (group.begin is not None or not node.options.snapshot_ttl)


def _bring_in(node: Node, key: str, container: str, own: Collection[str]) -> int:
    """Move every thread of a container into its group, until a look finds none outside. Returns how many.

    Raises WrongCtrlGroup if its init is in another ctrl_group. Other threads in another one stay there.
    """
    moved = 0
    deadline = system.monotonic() + _SECONDS
    left: set[int] = set()
    while system.monotonic() < deadline:
        state = node.run.glance(key)
        member = state.members.get(container) if state is not None else None
        if member is None or procfs.is_dead(member.pid, member.starttime):
            return moved
        there = node.resctrl.tasks(member.group)
        if there is None:
            if procfs.is_dead(member.pid, member.starttime):
                return moved
            raise HookError(Reason.IO, "its group was removed again")
        processes = container_tasks.look({*own, *container_tasks.own_cgroups([(container, member)])})
        missing = container_tasks.threads(processes.of_container(member)) - there - left
        if not missing:
            return moved
        stay = {tid for tid in missing if not _move(node, member, tid)}
        moved += len(missing - stay)
        left |= stay
    raise HookError(Reason.IO, f"it created tasks faster than they could be moved, for {_SECONDS:.0f} seconds")


def _move(node: Node, member: Member, tid: int) -> bool:
    """Move a thread into a member's group; False if it is in another ctrl_group or another tool's group."""
    if not node.may_move(tid, member.group):
        return False
    try:
        node.resctrl.put(member.group, tid)
    except WrongCtrlGroup:
        if tid == member.pid:
            raise
        return False
    except HookError as error:
        if error.reason != Reason.TASK_GONE:
            raise
    return True


def evict(node: Node, action: Action, own: Collection[str]) -> bool:
    """Move foreign tasks out: a reused RMID can bring in tasks that no one moved. Returns whether there were any.

    Reads all again under the key's lock: first the record, then the tasks, then the processes. A hook records a
    container under that lock before it moves its init, so the record has every container whose init is among the tasks.
    Children that a member forked until then are among the processes.
    """
    locked = _try_lock(node, action.key)
    if locked is None:
        return False
    with locked:
        strangers = _find_strangers_in(node, locked.state, action.path, own) if locked.state is not None else set()
        for tid in strangers:
            try:
                node.resctrl.expel(action.path, tid)
            except HookError as error:
                if error.reason != Reason.TASK_GONE:
                    raise
    return bool(strangers)


def _find_strangers_in(node: Node, state: KeyState, path: str, own: Collection[str]) -> set[int]:
    live = find_live_members(state)
    there = {tid for group in state.groups if group.path == path for tid in read_tasks(node, group) or ()}
    processes = container_tasks.look({*own, *container_tasks.own_cgroups(live.items())})
    family = {pid for it in live.values() if it.group == path for pid in processes.of_container(it)}
    return find_strangers(there - container_tasks.threads(family), live)
