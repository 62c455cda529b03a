# SPDX-License-Identifier: Apache-2.0
"""Repairs what hooks cannot do, in passes. It may run at any time, also beside hooks and other reconciles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from hook.base import container_tasks, system
from hook.base.errors import HookError, Reason
from hook.base.explain import as_hook_error, short_id, system_error, who
from hook.base.models import LeftUndone, Options, State
from hook.base.resctrl import Resctrl
from hook.node import runtimes
from hook.reconcile import bring_in
from hook.reconcile.act import act
from hook.reconcile.chase import StillOutside
from hook.reconcile.diagnose import Action, diagnose
from hook.reconcile.survey import Survey
from hook.reconcile.tally import Tally
from hook.stages import report
from hook.stages.entry import Context
from hook.state import damage, records
from hook.state.records import Records
from hook.state.store import RunDir

ListStates = Callable[[Collection[str]], tuple[list[State], list[str]]]
_MOST_PASSES = 3
_MOST_CHASES = 10  # passes, after the first ones only for threads outside their group, ...
_SECONDS = 4.0  # ... and only until then
_BUSY = "a hook holds the lock of this key; the next reconcile retries"
_NAMED_IF_BUSY = ("rebuild", "drop", "end", "prune", "retry")
"""Of the others a hook that holds the lock may be doing them itself: they are skipped without a message."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of an action. `problem`: why it failed; `remark`: another problem found meanwhile.

    `reason`: the name of the problem (reasons.Reason). `is_busy`: a hook works at this key, so that the next run, or
    that hook, does the action: no failure. `outside`: how many threads of the container it left outside its group.
    `is_mended`: a later look in the same run found none outside: no failure in the end.
    """

    action: Action
    problem: str | None = None
    remark: str | None = None
    reason: str | None = None
    is_busy: bool = False
    outside: int = 0
    is_mended: bool = False

    @property
    def has_failed(self) -> bool:
        """Whether the action is left undone."""
        return self.problem is not None and not (self.is_busy or self.is_mended)


@dataclass(frozen=True)
class Result:
    """The actions that were done, or are planned. `left`: a line for each problem that reconcile does not change.

    `ended`: why the run did not get to its end (a signal, its time is over). `undone`: how many of the actions that it
    had planned it left undone then.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    undone: int = 0
    ended: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether no action is left undone: none failed, unless a later one did as much for the same container."""
        return self.ended is None and not any(it.has_failed for it in self._list_last())

    def count_outside(self) -> dict[str, int]:
        """How many threads of each container are still outside its group."""
        return {it.action.container: it.outside for it in self._list_last() if it.outside and it.has_failed}

    def _list_last(self) -> Collection[Outcome]:
        """The last action of each container, group or key."""
        return {it.action.container or it.action.path or it.action.key: it for it in self.outcomes}.values()


class Follower:
    """Follows a run. This one reports nothing."""

    def begin(self, action: Action, number: int, total: int) -> None:
        """An action begins, the `number`th of `total` in this pass."""

    def end(self, outcome: Outcome | None) -> None:
        """An action was done, or has failed. None: it was no longer needed."""


def plan_repairs(
    options: Options,
    live: Collection[str] | None = None,
    *,
    longest_linger: int | None = None,
    list_states: ListStates | None = None,
) -> Result:
    """The first actions of `repair`. Raises HookError, OSError."""
    if list_states is None and not _has_work(options):
        return Result()
    seen = Survey(_open_node(options, longest_linger), live)
    planned = diagnose(seen)
    left = [*_list_left(seen)]
    adopted, adoptions = _find_adoptions(seen, list_states) if list_states is not None else (Result(), [])
    outcomes = [Outcome(it) for it in planned] + adopted.outcomes + [Outcome(it) for it in adoptions]
    return Result(outcomes, left + adopted.left)


def repair(
    options: Options,
    live: Collection[str] | None = None,
    *,
    longest_linger: int | None = None,
    follower: Follower | None = None,
    list_states: ListStates | None = None,
) -> Result:
    """Do all actions, and those that they make necessary. Raises HookError.

    `live`: the keys that live, instead of a look at their members. `longest_linger`: see Context. `list_states`: lists
    the OCI states of running containers but those that are known, for adoption, and a line for each problem of that.
    """
    if list_states is None and not _has_work(options):
        return Result()
    context, follower = _open_node(options, longest_linger), follower or Follower()
    with Tally(context.run, context.late_cpu) as tally:
        tally.start()
        for line in damage.sum_up_failures(context.run):
            report.log(line)
        outcomes: list[Outcome] = []
        tried: set[Action] = set()
        passes = 0
        began = system.monotonic()
        while True:
            seen = Survey(context, live)
            planned = diagnose(seen)
            actions = _choose_actions([it for it in planned if it not in tried], passes, began)
            if not actions:
                break
            passes += 1
            done = _do_actions(seen, actions, follower, tally)
            outcomes += done
            # Of what was adopted more may have come in meanwhile.
            moved = {it.action.id for it in done if it.action.verb == "adopt" and (it.outside or not it.problem)}
            tried = {it for it in tried.union(actions) if it.id not in moved}
        outcomes += _give_up(planned, outcomes, seen)
        left = [*_list_left(seen)]
        adopted = _adopt(seen, list_states, follower) if list_states is not None else Result()
        left += [*adopted.left, *_list_unhooked(seen)]
        result = Result([*(_mend(it, seen) for it in outcomes), *adopted.outcomes], left)
        tally.end(len(left), result.count_outside())
    return result


def _has_work(options: Options) -> bool:
    """Whether this machine has resctrl or a run directory. Otherwise no run directory is made."""
    return system.is_directory(options.run_dir) or Resctrl(options.resctrl_root).is_mounted()


def _open_node(options: Options, longest_linger: int | None) -> Context:
    container_tasks.check_namespaces()
    context = Context(Resctrl(options.resctrl_root), RunDir(options.run_dir), options, longest_linger=longest_linger)
    try:
        context.run.make_parts()  # hooks make them with the run directory and need them
        context.view.make_parts()  # consumers open them when they start
    except OSError as error:
        raise system_error("cannot create the missing parts of the run directory", error) from error
    return context


def _choose_actions(actions: list[Action], passes: int, began: float) -> list[Action]:
    """Those of these actions that are for the next pass, after so many; none if there is no next one."""
    if passes < _MOST_PASSES:
        return actions
    if passes >= _MOST_CHASES or system.monotonic() > began + _SECONDS:
        return []
    # The next run does the rest, but what is outside does not wait for that.
    return [it for it in actions if it.verb == "adopt"]


def _do_actions(seen: Survey, actions: list[Action], follower: Follower, tally: Tally) -> list[Outcome]:
    """Do actions; returns the outcomes of those that were still needed."""
    outcomes = []
    for number, action in enumerate(actions, 1):
        follower.begin(action, number, len(actions))
        outcome = _attempt(seen, action)
        if outcome is not None:
            outcomes.append(outcome)
            if not outcome.is_busy:
                tally.count(action.verb, failed=outcome.has_failed)
        follower.end(outcome)
    return outcomes


def _attempt(seen: Survey, action: Action) -> Outcome | None:
    """Do an action. A failure is a problem of this action and does not stop the others.

    None if it was no longer needed: a hook ran since the survey.
    """
    complaints = seen.context.run.complaints
    problem = reason = None
    is_busy = False
    outside = 0
    try:
        done = act(seen, action)
        if done is None and not complaints:
            return None
        action = done or action
    except (HookError, OSError) as error:
        outside = error.number if isinstance(error, StillOutside) else 0
        why = as_hook_error("cannot read or write a file", error)
        is_busy = why.reason == Reason.LOCK_TIMEOUT
        if is_busy and action.verb not in _NAMED_IF_BUSY:
            return None
        problem, reason = _BUSY if is_busy else str(why), why.reason
    remark = "; ".join(map(str, complaints)) or None
    complaints.clear()
    return Outcome(action, problem, remark, reason, is_busy, outside)


def _give_up(planned: list[Action], outcomes: list[Outcome], last: Survey) -> Iterator[Outcome]:
    """What is outside by the last look, after which there is no further pass, and of which no outcome says so yet."""
    former = {it.action.id: it.outside for it in outcomes}
    for action in planned:
        if action.verb == "adopt" and not former.get(action.id):
            error = StillOutside(last.outside[action.key, action.container].to_move, 0)
            yield Outcome(action, str(error), reason=error.reason, outside=error.number)


def _mend(outcome: Outcome, last: Survey) -> Outcome:
    """The outcome as it is by the last look, after all actions: what was still outside may be inside by then."""
    found = last.outside.get((outcome.action.key, outcome.action.container))
    return outcome if found is not None and found.to_move else replace(outcome, is_mended=bool(outcome.outside))


def _list_left(seen: Survey) -> Iterator[str]:
    """A line for each problem that reconcile leaves, because another tool or the container itself caused it."""
    for (key, container), found in seen.outside.items():
        state = seen.states[key]
        name = who(container, state.pod_namespace, state.pod_name, state.members[container].name)
        of = f"of {name} of {short_id(key)}"
        if found.elsewhere:
            yield f"{found.elsewhere} threads {of} are in another ctrl_group or another tool's group, and stay there"
        if found.unread:
            yield f"{found.unread} cgroups {of} were not read: it has too many; a program there may stay outside"


# --- Containers that never got the hook


def _list_unhooked(seen: Survey) -> list[str]:
    """A line on those that run, if any."""
    if not seen.context.resctrl.exists():
        return []
    try:
        found = runtimes.find_unhooked(seen.context, seen.processes)
    except (HookError, OSError) as error:
        return [f"cannot look for containers that never got the hook: {error}"]
    names = records.name_unhooked(found) if found is not None else []
    return [f"{len(names)} running containers never got the hook (see doctor): {', '.join(names)}"] if names else []


def _adopt(seen: Survey, list_states: ListStates, follower: Follower) -> Result:
    """Monitor those that run."""
    found, actions = _find_adoptions(seen, list_states)
    for outcome in found.outcomes:
        follower.end(outcome)
    with Tally(seen.context.run, seen.context.late_cpu) as tally:
        done = _do_actions(seen, actions, follower, tally)
        tally.save()
    return replace(found, outcomes=[*found.outcomes, *done])


def _find_adoptions(seen: Survey, list_states: ListStates) -> tuple[Result, list[Action]]:
    """The actions for containers that are not in a group of ours, and what cannot be adopted."""
    states, problems = list_states({container for state in seen.states.values() for container in state.members})
    outcomes = []
    for it in states:
        try:
            seen.adoptable[it.id] = bring_in.make_container(it.id, it.pid or 0, it.bundle, it.annotations)
        except ValueError as error:
            action = Action("adopt", container=it.id, why="it is running")
            outcomes.append(Outcome(action, str(error), reason=Reason.BAD_STATE))
    why = "it is running, and is not in a group of ours"
    return Result(outcomes, problems), [Action("adopt", container=it, why=why) for it in seen.adoptable]


# --- As text and as JSON


def format_outcome(it: Outcome) -> list[str]:
    """A line for an action, its problem and its remark."""
    problem = [f"  failed: {it.problem}"] if it.problem is not None else []
    return [str(it.action), *problem, *([f"  {it.remark}"] if it.remark is not None else [])]


def format_left(line: str) -> str:
    """A line for something that stays as it is."""
    return f"left: {line}"


def result_to_json(result: Result, *, dry_run: bool) -> dict[str, Any]:
    """The same as an object for JSON."""
    actions = [_outcome_to_json(it) for it in result.outcomes]
    return {"dry_run": dry_run, "actions": actions, "left": result.left, "ended": result.ended, "undone": result.undone}


def _outcome_to_json(it: Outcome) -> dict[str, Any]:
    action = it.action
    about = {name: getattr(action, name) or None for name in ("key", "container", "path")}
    named = {name: getattr(action, name) for name in ("namespace", "pod", "name", "why")}
    return {"action": action.verb, **about, **named, "problem": it.problem, "remark": it.remark}


# --- What the last run left undone, so that the next one counts it instead of printing it again


def is_known(last: LeftUndone, outcome: Outcome) -> bool:
    """Whether an action has failed for the same reason: in the last run, or when the failure was recorded."""
    reason = outcome.reason or ""
    return outcome.has_failed and reason in (outcome.action.reason, last.failures.get(outcome.action.id))


def _count_failures(undone: LeftUndone) -> Counter[tuple[str, str]]:
    """How many actions failed, by verb and reason."""
    return Counter((name.partition(" ")[0], reason) for name, reason in undone.failures.items())


def format_changes(last: LeftUndone, now: LeftUndone) -> list[str]:
    """A line for each verb and reason of which another number of actions fails than in the last run."""
    before, after = _count_failures(last), _count_failures(now)
    return [
        f"{after[verb, reason]} containers still not monitored: {reason} (see list)"
        if verb == "retry"
        else f"{after[verb, reason]} actions still fail: {verb}, {reason} (see reconcile --json)"
        for verb, reason in sorted({*before, *after})
        if after[verb, reason] != before[verb, reason]
    ]


def read_left_undone(run_dir: str) -> LeftUndone:
    """Read what the last run left undone."""
    try:
        with Records(run_dir) as found:
            return found.glance(LeftUndone) or LeftUndone()
    except HookError:
        return LeftUndone()


def write_left_undone(run_dir: str, now: LeftUndone) -> None:
    """Replace what the last run left undone. If it cannot be written, the next run prints more than it has to."""
    try:
        if system.is_directory(run_dir):
            RunDir(run_dir).write(LeftUndone, "", now)
    except (HookError, OSError):
        pass
