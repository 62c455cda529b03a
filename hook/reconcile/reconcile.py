# SPDX-License-Identifier: Apache-2.0
"""Repairs what hooks cannot do. It may run at any time, also beside hooks and other reconciles.

Each action is about one key and holds its lock, which it takes without waiting: the next run handles a busy key. Under
the lock the action checks its reason again, so an outdated plan does no harm. A kill at any point does no harm, because
actions consist of the steps of the hook path.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hook.base import container_tasks, procfs, system
from hook.base.errors import HookError
from hook.base.explain import explain, known, refused
from hook.base.models import Failure, Index, KeyState, State, ValidationError
from hook.base.reasons import Reason
from hook.base.resctrl import Resctrl
from hook.node import unhooked
from hook.reconcile import move_in, namespaces, naming, plan, rebuild
from hook.reconcile.chase import StillOutside
from hook.reconcile.outcome import Follower, Outcome, Result
from hook.reconcile.plan import Action
from hook.reconcile.survey import Survey, add_late_counters, find_live_members, has_dead_container, survey_node
from hook.reconcile.tally import Tally
from hook.stages import failures, orphans, remove, retire
from hook.stages.context import Context, open_run_dir
from hook.state import damage, lives, records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Any

    from hook.base.container_tasks import Processes
    from hook.base.models import Options
    from hook.state.store import LockedKey

_MOST_PASSES = 3
_MOST_CHASES = 10  # passes, after the first ones only for threads outside their group, ...
_SECONDS = 4.0  # ... and only until then
_NO_ONE = Follower()
_BUSY = "a hook holds the lock of this key; the next reconcile retries"
_UNCERTAIN = ("remove", "retire", "forget", "name", "show", "tidy")
"""A hook that holds the lock may be doing these itself: they are skipped without a message."""


def plan_actions(options: Options, live: Collection[str] | None = None, *, longest_linger: int | None = None) -> Result:
    """The first actions of `run`. Raises HookError, OSError."""
    if not _has_work(options):
        return Result()
    seen = _survey(_open_node(options, longest_linger))
    return Result([Outcome(it) for it in plan.plan(seen, options.snapshot_ttl, live)], plan.list_left(seen))


def run(
    options: Options,
    live: Collection[str] | None = None,
    *,
    longest_linger: int | None = None,
    follower: Follower = _NO_ONE,
    adoption: Callable[[], Result] = Result,
) -> Result:
    """Do all actions, and those that they make necessary. `longest_linger`: see Context. Raises HookError.

    `adoption`: what adopts containers, before the look for those that never got the hook.
    """
    if not _has_work(options):
        return adoption()
    context = _open_node(options, longest_linger)
    with Tally(context.run, context.late_cpu) as tally:
        tally.start()
        for line in damage.sum_up_failures(context.run):
            failures.log(line)
        outcomes: list[Outcome] = []
        tried: set[Action] = set()
        passes = 0
        began = system.monotonic()
        while True:
            seen = _survey(context)
            left = plan.list_left(seen)
            planned = list(plan.plan(seen, options.snapshot_ttl, live))
            actions = _choose([it for it in planned if it not in tried], passes, began)
            if not actions:
                break
            passes += 1
            tried.update(actions)
            done = _take(context, [(it, partial(_apply, context, it, seen)) for it in actions], follower, tally)
            outcomes += done
            moved = {it.action.id for it in done if it.action.verb == "adopt" and (it.outside or not it.problem)}
            tried = {it for it in tried if it.id not in moved}  # more may have come in meanwhile
        outcomes += _give_up(planned, outcomes, seen)
        adopted = adoption()
        left += [*adopted.left, *_list_unhooked(context, seen.processes)]
        mended = [_mend(it, seen) for it in outcomes]
        result = Result([*mended, *adopted.outcomes], left)
        tally.end(len(left), result.count_outside())
    return result


def _survey(context: Context) -> Survey:
    """Survey the node, and what else names its pods."""
    seen = survey_node(context)
    seen.named = naming.find_names(seen.states.values())
    return seen


def _choose(actions: list[Action], passes: int, began: float) -> list[Action]:
    """Those of these actions that are for the next pass, after so many; none if there is no next one."""
    if passes < _MOST_PASSES:
        return actions
    if passes >= _MOST_CHASES or system.monotonic() > began + _SECONDS:
        return []
    # The next run does the rest, but what is outside does not wait for that.
    return [it for it in actions if it.verb == "adopt"]


def _give_up(planned: list[Action], outcomes: list[Outcome], last: Survey) -> Iterator[Outcome]:
    """What is outside by the last look, after which there is no further pass, and of which no outcome says so yet."""
    said = {it.action.id: it for it in outcomes}
    for action in planned:
        former = said.get(action.id)
        if action.verb == "adopt" and not (former is not None and former.outside):
            error = StillOutside(last.outside[action.key, action.container], 0)
            yield Outcome(action, str(error), reason=error.reason, outside=error.number)


def _mend(outcome: Outcome, last: Survey) -> Outcome:
    """The outcome as it is by the last look, after all actions: what was still outside may be inside by then."""
    action = outcome.action
    is_inside = (action.key, action.container) not in last.outside
    return replace(outcome, is_mended=True) if outcome.outside and is_inside else outcome


def _list_unhooked(context: Context, processes: Processes) -> list[str]:
    """A line on the running containers that never got the hook, if any."""
    if not context.resctrl.exists():
        return []
    try:
        seen = unhooked.find_unhooked(context, processes)
    except (HookError, OSError) as error:
        return [f"cannot look for containers that never got the hook: {error}"]
    names = records.name_unhooked(seen) if seen is not None else []
    return [f"{len(names)} running containers never got the hook (see doctor): {', '.join(names)}"] if names else []


def adopt(
    options: Options, states: list[dict[str, Any]], *, dry_run: bool = False, follower: Follower = _NO_ONE
) -> Result:
    """Monitor running containers that never got the hook, from their OCI states. Raises HookError, OSError."""
    context = _open_node(options)
    recorded = context.run.list_states()
    known = {container for state in recorded for container in state.members}
    seen = Survey(system.boottime(), context.resctrl.is_mounted(), container_tasks.look())
    seen.processes.add(it for state in recorded for it in find_live_members(state, seen.processes).items())
    outcomes: list[Outcome] = []
    steps: list[tuple[Action, Callable[[], object]]] = []
    for found in states:
        try:
            state = State.model_validate(found)
            container = move_in.make_container(state.id, state.pid or 0, state.bundle, state.annotations)
        except (ValidationError, ValueError) as error:
            why = explain(error.errors()) if isinstance(error, ValidationError) else str(error)
            action = Action("adopt", container=str(found.get("id"))[:80], why="it is running")
            outcomes.append(Outcome(action, why, reason=Reason.BAD_STATE))
            follower.end(outcomes[-1])
            continue
        if container.id not in known:
            action = Action("adopt", container=container.id, why="it is running, and is not in a group of ours")
            steps.append((action, partial(move_in.start, context, container, seen)))
    if dry_run:
        return Result([*outcomes, *(Outcome(action) for action, _ in steps)])
    with Tally(context.run, context.late_cpu) as tally:
        outcomes += _take(context, steps, follower, tally)
        tally.save()
    return Result(outcomes)


def _take(
    context: Context, steps: list[tuple[Action, Callable[[], object]]], follower: Follower, tally: Tally
) -> list[Outcome]:
    """Take steps; returns the outcomes of those that were still needed."""
    outcomes = []
    for number, (action, step) in enumerate(steps, 1):
        follower.begin(action, number, len(steps))
        outcome = _attempt(context, action, step)
        if outcome is not None:
            outcomes.append(outcome)
            if not outcome.is_busy:
                tally.count(action.verb, failed=outcome.has_failed)
        follower.end(outcome)
    return outcomes


def _has_work(options: Options) -> bool:
    """Whether this machine has resctrl or a run directory. Otherwise no run directory is made."""
    return system.is_directory(options.run_dir) or Resctrl(options.resctrl_root).is_mounted()


def _open_node(options: Options, longest_linger: int | None = None) -> Context:
    namespaces.check()
    context = Context(Resctrl(options.resctrl_root), open_run_dir(options), options, longest_linger=longest_linger)
    try:
        context.run.make_parts()  # hooks make them with the run directory and need them
        context.view.make_parts()  # consumers open them when they start
    except OSError as error:
        raise refused("cannot create the missing parts of the run directory", error) from error
    return context


def _apply(context: Context, action: Action, seen: Survey) -> object:
    """Do one action; False if it was no longer needed; or what it turned out to be. Raises HookError, OSError."""
    if action.verb in _LOCKED:
        with context.run.lock(action.key, system.monotonic()) as locked:
            return _LOCKED[action.verb](context, locked, action)
    if action.verb in _MOVING:
        return _MOVING[action.verb](context, action, seen)
    return _FREE[action.verb](context, action)


def _attempt(context: Context, action: Action, step: Callable[[], object]) -> Outcome | None:
    """Do an action by its step. A failure is a problem of this action and does not stop the others.

    None if it was no longer needed: a hook ran since the survey.
    """
    problem = reason = None
    is_busy = False
    outside = 0
    try:
        done = step()
        if done is False and not context.run.complaints:
            return None
        action = done if isinstance(done, Action) else action
    except (HookError, OSError) as error:
        outside = error.number if isinstance(error, StillOutside) else 0
        why = known("cannot read or write a file", error)
        is_busy = why.reason == Reason.LOCK_TIMEOUT
        if is_busy and action.verb in _UNCERTAIN:
            return None
        problem, reason = _BUSY if is_busy else str(why), why.reason
    remark = "; ".join(map(str, context.run.complaints)) or None
    context.run.complaints.clear()
    return Outcome(action, problem, remark, reason, is_busy, outside)


# --- The short actions


def _drop(context: Context, locked: LockedKey, action: Action) -> bool:
    member = locked.state.members.get(action.container) if locked.state else None
    if member is None or not (action.forced or procfs.is_dead(member.pid, member.starttime)):
        return False
    remove.drop(context, locked, [action.container])
    return True


def _end(context: Context, locked: LockedKey, action: Action) -> bool:
    state = locked.state
    if state is None or state.members or state.recovering or state.completed_at is not None:
        return False
    if not (action.forced or state.lingering_since is None or remove.has_lingered(context, state)):
        return False
    remove.end(context, locked, state)
    return True


def _prune(context: Context, locked: LockedKey, _action: Action) -> bool:
    state = locked.state
    if state is None or not plan.is_outdated(state, system.boottime(), context.options.snapshot_ttl):
        return False
    context.forget(locked)
    return True


def _show(context: Context, locked: LockedKey, _action: Action) -> bool:
    state = locked.state
    if state is None:
        return False
    locked.commit(lives.change(state, [add_late_counters(context, group) for group in state.groups]))
    if locked.state is None or context.view.is_current(locked.state):
        return False
    context.show(locked.state)
    return True


def _retire(context: Context, locked: LockedKey, _action: Action) -> bool:
    before = locked.state
    retire.retire(context, locked)
    return locked.state is not before


def _tidy(context: Context, locked: LockedKey, action: Action) -> bool:
    key, state = action.key, locked.state
    if action.path:
        system.remove_tree(action.path, context.run.descriptor)
        return True
    if state is not None and state.completed_at is None and not records.has_leftovers(context.run, state):
        return False
    for model in (KeyState, Index):
        records.remove_half_written(context.run, model, key)
    context.view.tidy(key)
    if state is None or not state.generation:
        context.view.remove(key)
    return True


def _forget(context: Context, action: Action) -> bool:
    """Remove a failure record, or, with a key, an index entry."""
    if not action.key:
        records.remove_half_written(context.run, Failure, action.container)
        # Again: the container may have been restarted and failed again.
        failure = context.run.glance(Failure, action.container)
        is_over = failure is not None and has_dead_container(failure)
        names_none = failure is None or failure.pid is None
        if is_over or (names_none and records.has_old_failure(context.run, action.container)):
            context.run.remove(Failure, action.container)
        return True
    with context.run.lock(action.key, system.monotonic()) as locked:
        state = locked.state
        is_member = state is not None and (state.recovering or action.container in state.members)
        # The container may belong to another key by now.
        if is_member or records.glance_key(context.run, action.container) != action.key:
            return False
        context.run.remove(Index, action.container)
        return True


def _remove(context: Context, action: Action) -> bool:
    return orphans.remove_orphan(context, action.path)


_LOCKED: dict[str, Callable[[Context, LockedKey, Action], object]] = {
    "drop": _drop,
    "end": _end,
    "prune": _prune,
    "retire": _retire,
    "show": _show,
    "tidy": _tidy,
}
_MOVING: dict[str, Callable[[Context, Action, Survey], object]] = {
    "rebuild": rebuild.rebuild,
    "evict": move_in.evict,
    "remake": move_in.remake,
    "adopt": move_in.adopt,
    "retry": move_in.retry,
    "name": naming.name,
}
_FREE: dict[str, Callable[[Context, Action], object]] = {"remove": _remove, "forget": _forget}
