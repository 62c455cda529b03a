"""Containers that run already: into their groups with all their tasks, and other people's tasks out of those."""

from __future__ import annotations

from functools import partial

from hook import lifecycle, names, process, report, system, tasks
from hook.errors import HookError, Reason, WrongCtrlGroup
from hook.identity import Key, Pod
from hook.lifecycle import Container
from hook.models import Annotations
from hook.survey import survey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from hook.models import Member
    from hook.node import Node
    from hook.plan import Action

_SECONDS = 10.0


def container_of(name: str, pid: int, bundle: str, annotations: dict[str, str]) -> Container:
    """A container as a hook would see it. ValueError for what is no container."""
    if not pid:
        raise ValueError("it has no process")
    return Container(names.container_id(name), pid, bundle, annotations, Annotations.model_validate(annotations))


def remake(node: Node, action: Action) -> None:
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
        problem = f"its process is in mon_group {mon_group[:80]!r} of somebody else, and is left there"
        raise HookError(Reason.IO, problem)


def _enter(node: Node, container: Container, key: Key, pod: Pod) -> None:
    """Put a container that runs already into its key's group.

    Where the kernel does not say in which ctrl_group it is, that is the recorded one; or what the bundle says, or the
    root's, to which it fell when another tool removed the recorded one.
    """

    def into_group() -> bool:
        container.places = process.cgroups(container.pid)
        container.ctrl_group = _recorded_ctrl_group(node, key.name, container.id)
        try:
            lifecycle.enter(node, container, key, pod)
        except WrongCtrlGroup:
            if container.ctrl_group is None:
                raise
            container.ctrl_group = None
            lifecycle.enter(node, container, key, pod)
        return True

    _with_all_tasks(node, container, into_group)


def _recorded_ctrl_group(node: Node, key: str, container: str) -> str | None:
    """The ctrl_group that a member was in, if there is one of that name still."""
    state = node.run.glance(key)
    if state is None or container not in state.members:
        return None
    path = state.members[container].group
    if not system.is_directory(path.rpartition("/mon_groups/")[0]):
        return None
    return next((group.ctrl_group for group in state.groups if group.path == path), None)


def start(node: Node, container: Container) -> None:
    """createRuntime for a container that runs already, whichever file of hooks.d is for it."""
    _with_all_tasks(node, container, partial(lifecycle.monitor, node, container, lifecycle.look(container)))


def _with_all_tasks(node: Node, container: Container, step: Callable[[], bool]) -> None:
    """Do a step that gets a container monitored, and move all its tasks in; what fails is recorded as a hook's is."""
    try:
        if step() and container.key is not None:
            _bring_in(node, container.key.name, container.id)
    except HookError as error:
        report.record(node.run, report.failure_of(error, names.container_of(container.id), "reconcile", container))
        raise
    report.settle(node.run, container, "reconcile")


def retry(node: Node, action: Action) -> None:
    """Try what failed once more, unless the container is gone meanwhile, or monitored. What was wanted then is now."""
    name = action.container
    failure = node.run.failure_of(name)
    if failure is None or failure.monitored or not failure.pid or process.is_dead(failure.pid, failure.starttime):
        return
    config = lifecycle.config_of(failure.bundle) if failure.bundle else None
    container = container_of(name, failure.pid, failure.bundle or "", (config and config.annotations) or {})
    if failure.key is not None and failure.kind is not None:
        container.starttime, container.key = failure.starttime, Key(failure.key, failure.kind)
        pod = lifecycle.look(container)
        container.problem = pod.problem if container.key.kind == "pod" else None
        _enter(node, container, container.key, pod)
    elif config is not None:
        start(node, container)
    else:
        raise HookError(Reason.IO, "nothing tells whose it is: its bundle cannot be read")


def adopt(node: Node, action: Action) -> None:
    """Move what exec brought in, and whatever else of a container is outside, into its group."""
    try:
        _bring_in(node, action.key, action.container)
    except WrongCtrlGroup:  # its ctrl_group was removed and made again, and the kernel does not tell where it is
        remake(node, action)


def _bring_in(node: Node, key: str, container: str) -> None:
    """Move every thread of a container into its group, until none is missing: a fork may be ahead of us.

    WrongCtrlGroup if its init is in another ctrl_group; other threads that are stay there.
    """
    state = node.run.glance(key)
    member = state.members.get(container) if state is not None else None
    if member is None:
        return
    deadline = system.monotonic() + _SECONDS
    left: set[int] = set()
    while system.monotonic() < deadline:
        there = node.resctrl.tasks(member.group)
        if there is None:
            raise HookError(Reason.IO, "its group is gone again")
        threads = tasks.threads(tasks.of_container(container, member, tasks.table()))
        missing = threads - there - left
        if not missing:
            return
        left |= {tid for tid in missing if not _move(node, member, tid)}
    raise HookError(Reason.IO, f"it made new tasks faster than they could be moved for {_SECONDS:.0f} seconds")


def _move(node: Node, member: Member, tid: int) -> bool:
    """Move a thread into a member's group; False: it is in another ctrl_group, or of others, and stays there."""
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


def evict(node: Node, action: Action) -> None:
    """Move strangers out, as a new look finds them: an RMID that is used again may bring in tasks that nobody wrote."""
    for tid in survey(node).strangers.get(action.path, ()):
        try:
            node.resctrl.expel(action.path, tid)
        except HookError as error:
            if error.reason != Reason.TASK_GONE:
                raise
