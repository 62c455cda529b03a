"""Puts right what hooks cannot: now and then, beside running hooks and other reconciles, and as often as one likes.

Every action is of one key, under its lock, which is taken without waiting: a busy key is left to the next time. What
an action goes by is looked at again under that lock, so that a plan which is out of date does no harm; and each is one
that can be killed at any point, since it is made of the steps of the hook path.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from hook import ending, movein, plan, process, rebuild, reclaim, room, system, unhooked
from hook.errors import HookError, Reason, explain, known, refused
from hook.models import State, ValidationError
from hook.node import Node
from hook.plan import Action
from hook.resctrl import Resctrl
from hook.rundir import RunDir
from hook.survey import is_of_the_dead, survey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

    from hook.models import Options
    from hook.rundir import LockedKey

_MOST_PASSES = 3
_BUSY = "a hook is at work on this key; the next time will do"


@dataclass(frozen=True)
class Outcome:
    """What became of an action: `problem` kept it from being done, `remark` was found broken on the way."""

    action: Action
    problem: str | None = None
    remark: str | None = None


@dataclass(frozen=True)
class Result:
    """What was done, or is going to be, and a line on each thing that is wrong and none of ours to change."""

    outcomes: list[Outcome] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def planned(options: Options, live: Collection[str] | None = None) -> Result:
    """What `run` would begin with. Raises HookError, OSError."""
    if not _has_anything(options):
        return Result()
    seen = survey(_node(options))
    return Result([Outcome(it) for it in plan.plan(seen, options.snapshot_ttl, live)], plan.left(seen))


def run(options: Options, live: Collection[str] | None = None) -> Result:
    """Do what is to be done, and what that leads to; returns all of it. Raises HookError, OSError."""
    if not _has_anything(options):
        return Result()
    node = _node(options)
    room.give_back(node.run.descriptor)
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
    return Result(outcomes, [*left, *_unhooked(node)])


def _unhooked(node: Node) -> list[str]:
    """A line on the containers that run and were never hooked, if there are any."""
    if not node.resctrl.exists():
        return []
    try:
        seen = unhooked.look(node)
    except (HookError, OSError) as error:
        return [f"cannot look for containers that were never hooked: {error}"]
    names = seen.names() if seen is not None else []
    return [f"{len(names)} containers run and were never hooked (see doctor): {', '.join(names)}"] if names else []


def adopt(options: Options, states: list[dict[str, Any]], *, dry_run: bool) -> list[Outcome]:
    """Bring containers in that run without having been hooked, from their OCI states. Raises HookError, OSError."""
    node = _node(options)
    outcomes = []
    for found in states:
        try:
            state = State.model_validate(found)
            container = movein.container_of(state.id, state.pid or 0, state.bundle, state.annotations or {})
        except (ValidationError, ValueError) as error:
            why = explain(error.errors()) if isinstance(error, ValidationError) else str(error)
            outcomes.append(Outcome(Action("adopt", container=str(found.get("id"))[:80], why="it runs"), why))
            continue
        key = node.run.key_of(container.id)
        known = node.run.glance(key) if key is not None else None
        if known is None or container.id not in known.members:
            action = Action("adopt", container=container.id, why="it runs, and is in no group of ours")
            outcomes.append(
                Outcome(action) if dry_run else _attempt(node, action, partial(movein.start, node, container))
            )
    return outcomes


def _has_anything(options: Options) -> bool:
    """Whether there is anything to look at: no run directory is made on a machine that has no use for one."""
    return system.is_directory(options.run_dir) or Resctrl(options.resctrl_root).is_mounted()


def _node(options: Options) -> Node:
    if process.sees_other_cgroups():
        problem = "in a cgroup namespace of its own nobody can tell whose processes are whose"
        raise HookError(
            Reason.DENIED, problem, hint="run it in the host's (nsenter -t 1 -C; podman run --cgroupns=host)"
        )
    try:
        node = Node(Resctrl(options.resctrl_root), RunDir(options.run_dir), options)
        node.make_parts()  # hooks make them with the run directory, and rely on them; consumers look when they start
    except OSError as error:
        raise refused("the run directory cannot be had", error) from error
    return node


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
    except (HookError, OSError) as error:
        why = known("a file could not be read or written", error)
        problem = _BUSY if why.reason == Reason.LOCK_TIMEOUT else str(why)
    remark = "; ".join(map(str, node.run.complaints)) or None
    node.run.complaints.clear()
    return Outcome(action, problem, remark)


# --- The actions that are a step or two


def _drop(node: Node, locked: LockedKey, action: Action) -> None:
    member = locked.state.members.get(action.container) if locked.state else None
    if member is not None and (action.forced or process.is_dead(member.pid, member.starttime)):
        ending.leave(node, locked, action.container)


def _end(node: Node, locked: LockedKey, action: Action) -> None:
    state = locked.state
    if state is None or state.members or state.recovering or state.completed_at is not None:
        return
    if action.forced or state.lingering_since is None or ending.has_lingered(node, state):
        ending.end(node, locked, state)


def _prune(node: Node, locked: LockedKey, _action: Action) -> None:
    state = locked.state
    if state is not None and plan.is_outdated(state, system.boottime(), node.options.snapshot_ttl):
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
        node.run.remove_half_failure(action.container)
        failure = node.run.failure_of(action.container)  # again: the container's next life may have failed, too
        if failure is not None and is_of_the_dead(failure):
            node.run.remove_failure(action.container)
        return
    with node.run.lock(action.key, system.monotonic()) as locked:
        state = locked.state
        if state is None or (not state.recovering and action.container not in state.members):
            node.run.remove_index(action.container)


def _remove(node: Node, action: Action) -> None:
    reclaim.remove_orphan(node, action.path)


_LOCKED: dict[str, Callable[[Node, LockedKey, Action], None]] = {
    "drop": _drop,
    "end": _end,
    "prune": _prune,
    "retire": _retire,
    "show": _show,
    "tidy": _tidy,
}
_FREE: dict[str, Callable[[Node, Action], None]] = {
    "rebuild": rebuild.rebuild,
    "remove": _remove,
    "evict": movein.evict,
    "remake": movein.remake,
    "adopt": movein.adopt,
    "retry": movein.retry,
    "forget": _forget,
}
