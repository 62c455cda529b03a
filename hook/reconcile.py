"""Puts right what hooks cannot: now and then, beside running hooks and other reconciles, and as often as one likes.

Every action is of one key, under its lock, which is taken without waiting: a busy key is left to the next time. What
an action goes by is looked at again under that lock, so that a plan which is out of date does no harm; and each is one
that can be killed at any point, since it is made of the steps of the hook path.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from hook import cgroups, ending, identity, incarnation, lifecycle, names, plan, process, reclaim, report, system, tasks
from hook.errors import GroupGone, HookError, Reason, WrongCtrlGroup, explain, refused
from hook.identity import Key, Pod
from hook.lifecycle import Container
from hook.models import Annotations, Failure, KeyState, Member, MonGroup, State, ValidationError
from hook.node import Node
from hook.plan import Action
from hook.resctrl import Resctrl
from hook.rundir import RunDir
from hook.survey import survey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

    from hook.models import Options
    from hook.rundir import LockedKey

_MOST_PASSES = 3
_MOVING = 10.0
_BUSY = "a hook is at work on this key; the next time will do"


@dataclass(frozen=True)
class Outcome:
    """What became of an action: `problem` kept it from being done, `remark` was found broken on the way."""

    action: Action
    problem: str | None = None
    remark: str | None = None


@dataclass(frozen=True)
class Report:
    """What was done, or is going to be, and a line on each thing that is wrong and none of ours to change."""

    outcomes: list[Outcome] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def planned(options: Options, live: Collection[str] | None = None) -> Report:
    """What `run` would begin with. Raises HookError, OSError."""
    if not _has_anything(options):
        return Report()
    seen = survey(_node(options))
    return Report([Outcome(it) for it in plan.plan(seen, options.snapshot_ttl, live)], plan.left(seen))


def run(options: Options, live: Collection[str] | None = None) -> Report:
    """Do what is to be done, and what that leads to; returns all of it. Raises HookError, OSError."""
    if not _has_anything(options):
        return Report()
    node = _node(options)
    outcomes: list[Outcome] = []
    left: list[str] = []
    tried: set[Action] = set()
    for _ in range(_MOST_PASSES):
        seen = survey(node)
        left = plan.left(seen)
        actions = [it for it in plan.plan(seen, options.snapshot_ttl, live) if it not in tried]
        if not actions:
            break
        tried.update(actions)
        outcomes += [_attempt(node, it, partial(_apply, node, it)) for it in actions]
    return Report(outcomes, left)


def adopt(options: Options, states: list[dict[str, Any]], *, dry_run: bool) -> list[Outcome]:
    """Bring containers in that run without having been hooked, from their OCI states. Raises HookError, OSError."""
    node = _node(options)
    outcomes = []
    for found in states:
        try:
            state = State.model_validate(found)
            container = container_of(state.id, state.pid or 0, state.bundle, state.annotations or {})
        except (ValidationError, ValueError) as error:
            why = explain(error.errors()) if isinstance(error, ValidationError) else str(error)
            outcomes.append(Outcome(Action("adopt", container=str(found.get("id"))[:80], why="it runs"), why))
            continue
        key = node.run.key_of(container.id)
        known = node.run.glance(key) if key is not None else None
        if known is None or container.id not in known.members:
            action = Action("adopt", container=container.id, why="it runs, and no hook has seen it")
            outcomes.append(Outcome(action) if dry_run else _attempt(node, action, partial(_start, node, container)))
    return outcomes


def container_of(name: str, pid: int, bundle: str, annotations: dict[str, str]) -> Container:
    """A container as a hook would see it. ValueError for what is no container."""
    if not pid:
        raise ValueError("it has no process")
    return Container(names.container_id(name), pid, bundle, annotations, Annotations.model_validate(annotations))


def _has_anything(options: Options) -> bool:
    """Whether there is anything to look at: no run directory is made on a machine that has no use for one."""
    return system.is_directory(options.run_dir) or Resctrl(options.resctrl_root).is_mounted()


def _node(options: Options) -> Node:
    try:
        return Node(Resctrl(options.resctrl_root), RunDir(options.run_dir), options)
    except OSError as error:
        raise refused("the run directory cannot be had", error) from error


def _apply(node: Node, action: Action) -> None:
    """One action. Raises HookError, OSError."""
    if action.verb in _LOCKED:
        with node.run.lock(action.key, system.monotonic()) as locked:
            _LOCKED[action.verb](node, locked, action)
    else:
        _FREE[action.verb](node, action)


def _attempt(node: Node, action: Action, step: Callable[[], object]) -> Outcome:
    """Do an action by its step; what goes wrong with one is no reason to leave the others."""
    problem = None
    try:
        step()
    except HookError as error:
        problem = _BUSY if error.reason == Reason.LOCK_TIMEOUT else str(error)
    except OSError as error:
        problem = str(refused("a file could not be read or written", error))
    remark = "; ".join(map(str, node.run.complaints)) or None
    node.run.complaints.clear()
    return Outcome(action, problem, remark)


# --- Members that are over, keys without members


def _drop(node: Node, locked: LockedKey, action: Action) -> None:
    member = locked.state.members.get(action.container) if locked.state else None
    if member is not None and (action.forced or process.is_dead(member.pid, member.starttime)):
        ending.leave(node, locked, action.container)


def _end(node: Node, locked: LockedKey, action: Action) -> None:
    state = locked.state
    if state is None or state.members or state.recovering or state.completed_at is not None:
        return
    if action.forced or state.lingering_since is None or ending.has_lingered(state):
        ending.end(node, locked, state)


def _prune(node: Node, locked: LockedKey, _action: Action) -> None:
    state = locked.state
    over = state.completed_boottime if state is not None else None
    if over is not None and system.boottime() - over >= node.options.snapshot_ttl:
        node.forget(locked)


def _show(node: Node, locked: LockedKey, _action: Action) -> None:
    if locked.state is not None:
        node.show(locked.state)


def _retire(node: Node, locked: LockedKey, _action: Action) -> None:
    ending.retire(node, locked)


def _tidy(node: Node, locked: LockedKey, action: Action) -> None:
    node.tidy(action.key, locked.state)


def _forget(node: Node, action: Action) -> None:
    """The record of a failure, or, with a key, what is noted in the index."""
    if not action.key:
        node.run.remove_failure(action.container)
        return
    with node.run.lock(action.key, system.monotonic()) as locked:
        state = locked.state
        if state is None or (not state.recovering and action.container not in state.members):
            node.run.remove_index(action.container)


def _remove(node: Node, action: Action) -> None:
    reclaim.remove_orphans(node, [action.path], system.monotonic() + 1)


# --- Containers that are outside of their groups


def _remake(node: Node, action: Action) -> None:
    """Make the group of a live member again, by the code path of createRuntime, and move all its tasks in."""
    state, container = node.run.glance(action.key), action.container
    member = state.members.get(container) if state is not None else None
    if state is None or member is None or process.is_dead(member.pid, member.starttime):
        return
    _leave_to_others(node, member)
    it = Container(container, member.pid, "", {}, Annotations())
    it.starttime, it.key = member.starttime, Key(state.key, state.kind)
    _enter(node, it, it.key, Pod(None, state.pod_namespace, state.pod_name, None))


def _leave_to_others(node: Node, member: Member) -> None:
    """HookError if somebody else has moved a member's process into a group of theirs."""
    _, mon_group = process.resctrl_groups(member.pid) or ("", "")
    if mon_group and not mon_group.startswith(node.options.group_prefix):
        raise HookError(
            Reason.IO, f"its process is in mon_group {mon_group[:80]!r} of somebody else, and is left there"
        )


def _enter(node: Node, container: Container, key: Key, pod: Pod) -> None:
    """Put a container that runs already into its key's group; what goes wrong is on record as a hook's failure."""
    try:
        lifecycle.enter(node, container, key, pod)
        _bring_in(node, key.name, container.id)
    except HookError as error:
        report.record(node.run, report.failure_of(error, container.id, "reconcile", container))
        raise
    node.run.remove_failure(container.id)


def _start(node: Node, container: Container) -> None:
    """createRuntime for a container that runs already."""
    try:
        if lifecycle.create_runtime(node, container) and container.key is not None:
            _bring_in(node, container.key.name, container.id)
    except HookError as error:
        report.record(node.run, report.failure_of(error, container.id, "reconcile", container))
        raise
    node.run.remove_failure(container.id)


def _retry(node: Node, action: Action) -> None:
    """Try what failed once more, unless the container is gone meanwhile, or monitored."""
    name = action.container
    failure = node.run.failure_of(name)
    if failure is None or failure.monitored or not failure.pid or process.is_dead(failure.pid, failure.starttime):
        return
    config = lifecycle.config_of(failure.bundle) if failure.bundle else None
    annotations = (config.annotations if config is not None else None) or {}
    container = container_of(name, failure.pid, failure.bundle or "", annotations)
    key = _key_of(node, container, failure)
    if key is None:
        _start(node, container)
    else:
        container.starttime, container.key = failure.starttime, key
        _enter(node, container, key, identity.pod_of(container.said))


def _key_of(node: Node, container: Container, failure: Failure) -> Key | None:
    """The key that the hook found, where that is not what the bundle says: a runtime may have said more than it."""
    if failure.key is None or failure.kind is None:
        return None
    try:
        same = identity.key_of(node.options.key, container.id, container.said).name == failure.key
    except HookError:
        same = False
    return None if same else Key(failure.key, failure.kind)


def _adopt(node: Node, action: Action) -> None:
    _bring_in(node, action.key, action.container)


def _bring_in(node: Node, key: str, container: str) -> None:
    """Move every thread of a container into its group, until none is missing: a fork may be ahead of us."""
    state = node.run.glance(key)
    member = state.members.get(container) if state is not None else None
    if member is None:
        return
    deadline = system.monotonic() + _MOVING
    left: set[int] = set()
    while system.monotonic() < deadline:
        there = node.resctrl.tasks(member.group)
        if there is None:
            raise HookError(Reason.IO, "its group is gone again")
        threads = tasks.threads(tasks.of_container(container, member, tasks.table()))
        missing = threads - there - left
        if not missing:
            return
        left |= {tid for tid in missing if not _move(node, member.group, tid)}
    raise HookError(Reason.IO, f"it made new tasks faster than they could be moved for {_MOVING:.0f} seconds")


def _move(node: Node, path: str, tid: int) -> bool:
    """Move a thread into a group; False: it is in another ctrl_group, or a group of others, and stays there."""
    if not node.may_move(tid, path):
        return False
    try:
        node.resctrl.put(path, tid)
    except WrongCtrlGroup:
        return False
    except GroupGone:
        raise
    except HookError as error:
        if error.reason != Reason.TASK_GONE:
            raise
    return True


def _evict(node: Node, action: Action) -> None:
    """Move strangers out, as a new look finds them: an RMID that is used again may bring in tasks that nobody wrote."""
    for tid in survey(node).strangers.get(action.path, ()):
        try:
            node.resctrl.expel(action.path, tid)
        except HookError as error:
            if error.reason != Reason.TASK_GONE:
                raise


# --- Keys whose record was lost


def _rebuild(node: Node, action: Action) -> None:
    """Find the members of a key again: by the tasks of its groups, their cgroups, and the containers named in those."""
    key = action.key or node.key_of(action.path) or ""
    with node.run.lock(key, system.monotonic()) as locked:
        if locked.state is None:
            locked.commit(_unknown(key))
        state = locked.state
        if state is None or not state.recovering:
            return
        name = node.options.group_prefix + key
        paths = [path for path in node.resctrl.mon_groups() if path.rpartition("/")[2] == name]
        recorded = [group.path for group in state.groups]
        groups = [*state.groups, *(_found(node, path) for path in paths if path not in recorded)]
        members = {**state.members, **_members(node, key, [group.path for group in groups])}
        locked.commit(incarnation.changed(state, groups=groups, members=members))
        for group in groups:
            if node.resctrl.inode(group.path) is not None:
                node.begin(locked, group.path, empty=False)
        unknown = [path for path in paths if path not in {it.group for it in members.values()}]
        if any(node.resctrl.has_live_task(path) for path in unknown):
            raise HookError(Reason.IO, "somebody is in its group, and nothing tells which container that is")
        dead = ending.dead_members(locked.state or state)
        locked.commit(incarnation.recovered(locked.state or state))
        ending.drop(node, locked, dead)


def _unknown(key: str) -> KeyState:
    try:
        is_pod = names.pod_uid(key) == key
    except ValueError:
        is_pod = False
    kind: Any = "pod" if is_pod else "container"
    now, boottime = system.now_utc(), system.boottime()
    return KeyState(key=key, kind=kind, recovering=True, created_at=now, created_boottime=boottime)


def _found(node: Node, path: str) -> MonGroup:
    """A group that is there, and not on record."""
    above = path.rpartition("/mon_groups/")[0]
    return MonGroup(path=path, ctrl_group=above[len(node.resctrl.root) :].strip("/") or "/")


def _ids(pids: Collection[int], processes: tasks.Table) -> set[str]:
    """The container IDs that the cgroups of processes are named by."""
    found = {cgroups.container_id(place) for pid in pids for place in processes[pid].cgroups}
    return {name for name in found if name is not None}


def _members(node: Node, key: str, paths: list[str]) -> dict[str, Member]:
    """The containers of a key that live, by what the index notes, and by the tasks that are in its groups."""
    processes = tasks.table()
    indexed = node.run.indexed(key)
    found = {}
    for path in paths:
        pids = {tid for tid in node.resctrl.tasks(path) or () if tid in processes}
        for name, init in tasks.containers_of(pids, {*indexed, *_ids(pids, processes)}, processes).items():
            cgroup = process.cgroup(init.pid)
            if name not in found:
                found[name] = Member(pid=init.pid, starttime=init.starttime, group=path, cgroup=cgroup)
                node.run.write_index(name, key)
    return found


_LOCKED: dict[str, Callable[[Node, LockedKey, Action], None]] = {
    "drop": _drop,
    "end": _end,
    "prune": _prune,
    "retire": _retire,
    "show": _show,
    "tidy": _tidy,
}
_FREE: dict[str, Callable[[Node, Action], None]] = {
    "rebuild": _rebuild,
    "remove": _remove,
    "evict": _evict,
    "remake": _remake,
    "adopt": _adopt,
    "retry": _retry,
    "forget": _forget,
}
