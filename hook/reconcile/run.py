# SPDX-License-Identifier: Apache-2.0
"""Runs reconcile: surveys, diagnoses and acts in passes. It may run beside hooks and other reconciles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from hook.base import container_tasks, resctrl, system
from hook.base.errors import HookError, Reason
from hook.base.explain import as_hook_error, format_count, short_id, system_error, who
from hook.base.models import Index, KeyState, Options
from hook.base.node_models import LeftUndone
from hook.base.resctrl import Resctrl
from hook.node import runtimes
from hook.reconcile.act import act
from hook.reconcile.chase import StillOutside, Tally
from hook.reconcile.diagnose import Action, diagnose, diagnose_adoptable
from hook.reconcile.survey import ListStates, Survey
from hook.stages import remove, report, retry
from hook.stages.entry import Context
from hook.state import damage, records, store
from hook.state.store import RunDir

_MOST_PASSES = 3
_MOST_CHASES = 10  # passes, after the first ones only for threads outside their group, ...
_SECONDS = 4.0  # ... and only until then
_SECONDS_FOR_LOCKS = 20.0  # for all waits of end_all_keys together
_HAVE_METRICS = ("retry", "write")
"""The actions whose failures have metrics and alerts that say more than how many failed."""
_BUSY = "a hook holds the lock of this key; the next reconcile retries"
_NAMED_IF_BUSY = ("rebuild", "drop", "end", "prune", "retry")
"""The actions that are reported if a hook holds the lock. That hook may be doing the others itself."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of an action. `problem`: why it failed; `remark`: another problem found meanwhile.

    `reason`: the name of the problem (errors.Reason). `outside`: how many threads of the container it left outside its
    group.
    """

    action: Action
    problem: str | None = None
    reason: str | None = None
    remark: str | None = None
    outside: int = 0

    @property
    def is_busy(self) -> bool:
        """Whether a hook holds the key's lock, which is no failure: that hook, or the next run, does the action."""
        return self.reason == Reason.LOCK_TIMEOUT

    @property
    def has_failed(self) -> bool:
        """Whether the action was not done, for another reason than a busy lock."""
        return self.problem is not None and not self.is_busy


@dataclass(frozen=True)
class Result:
    """The actions that were done, or are planned. `left`: a line for each problem that reconcile may not change.

    `ended`: why the run stopped early (a signal, its time limit). `undone`: how many planned actions it left undone
    then. `outside`: the number of each container's threads outside its group, by the last look.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    undone: int = 0
    ended: str | None = None
    outside: dict[str, int] = field(default_factory=dict)

    @property
    def failed(self) -> list[Outcome]:
        """The failed actions, without those that a later one did for the same container, group or key.

        An action that left threads outside does not count if the last look found none: they have ended meanwhile.
        """
        last = {it.action.container or it.action.path or it.action.key: it for it in self.outcomes}
        return [it for it in last.values() if it.has_failed and (not it.outside or it.action.container in self.outside)]

    @property
    def is_whole(self) -> bool:
        """Whether no action is left undone, so that `reconcile` exits with 0."""
        return self.ended is None and not self.failed


class Follower:
    """Gets the progress of a run. This one ignores it."""

    def start(self, last: LeftUndone) -> None:
        """The run begins; its last one has left these problems."""

    def begin(self, action: Action, number: int, total: int) -> None:
        """An action begins, the `number`th of `total` in this pass."""

    def end(self, outcome: Outcome | None) -> None:
        """The action has ended. None: it was no longer needed."""

    def finish(self, _result: Result) -> LeftUndone | None:
        """The run has come to its end. Returns the problems to record; None: those of its last one stay on record."""
        return None


def plan_repairs(
    options: Options, live: Collection[str] | None = None, linger: int | None = None, asks: ListStates | None = None
) -> Result:
    """The actions of `repair`'s first pass, without doing them. Raises HookError, OSError."""
    if asks is None and not _has_work(options):
        return Result()
    seen = Survey(_open_node(options, linger), live)
    planned, left = diagnose(seen), [*_list_left(seen)]
    if asks is not None:
        left += seen.look_for_adoptable(asks)
    return Result([Outcome(it) for it in [*planned, *diagnose_adoptable(seen)]], left)


def repair(
    options: Options,
    live: Collection[str] | None = None,
    linger: int | None = None,
    asks: ListStates | None = None,
    follower: Follower | None = None,
) -> Result:
    """Do all actions, pass by pass, until none is needed. Raises HookError.

    `live`: the keys that live, instead of a look at their members. `linger`: see Context.longest_linger. `asks`: lists
    the OCI states of running containers but those that are known, for adoption, and a line for each problem of that.
    """
    if asks is None and not _has_work(options):
        return Result()
    context, follower = _open_node(options, linger), follower or Follower()
    follower.start(context.run.glance(LeftUndone, "left-undone") or LeftUndone())
    with Tally(context) as tally:
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
        outside = {container: it.to_move for (_key, container), it in seen.outside.items() if it.to_move}
        if asks is not None:  # last: of what was rebuilt the containers are known by now
            left += seen.look_for_adoptable(asks)
            adopted = _do_actions(seen, diagnose_adoptable(seen), follower, tally)
            outside.update((it.action.container, it.outside) for it in adopted if it.outside)
            outcomes += adopted
        result = Result(outcomes, [*left, *_list_unhooked(seen)], outside=outside)
        failed = [outcome for outcome in result.failed if outcome.action.verb not in _HAVE_METRICS]
        tally.end(len(result.left), len(failed), outside)
    undone = follower.finish(result)
    if undone is not None:
        with suppress(OSError):  # then the next run prints known problems again
            context.run.write(LeftUndone, "left-undone", undone)
    return result


def _has_work(options: Options) -> bool:
    """Whether this machine has resctrl or a run directory; if not, reconcile makes no run directory."""
    return system.is_directory(options.run_dir) or Resctrl(options.resctrl_root).is_mounted()


def _open_node(options: Options, linger: int | None) -> Context:
    container_tasks.check_namespaces()
    context = Context(Resctrl(options.resctrl_root), RunDir(options.run_dir), options, longest_linger=linger)
    context.names_history = False
    try:
        context.run.make_parts()  # hooks make them with the run directory and need them
        context.view.make_parts()  # consumers open them when they start
    except OSError as error:
        raise system_error("cannot create the missing parts of the run directory", error) from error
    return context


def _choose_actions(actions: list[Action], passes: int, began: float) -> list[Action]:
    """Choose the actions of the next pass, after so many `passes`; none: there is no next pass."""
    if passes < _MOST_PASSES:
        return actions
    if passes >= _MOST_CHASES or system.monotonic() > began + _SECONDS:
        return []
    # The next run does the rest, but threads outside their group do not wait for that.
    return [it for it in actions if it.verb == "adopt"]


def _do_actions(seen: Survey, actions: list[Action], follower: Follower, tally: Tally) -> list[Outcome]:
    """Do these actions; returns the outcomes of those that were still needed."""
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
    """Do an action. A failure does not stop the other actions.

    None: it was no longer needed, as after a hook that ran since the survey, or the end of the container.
    """
    complaints = seen.context.run.complaints
    try:
        done = act(seen, action)
        outcome = Outcome(done or action) if done is not None or complaints else None
    except (HookError, OSError) as error:
        why = as_hook_error("cannot read or write a file", error)
        outside = error.number if isinstance(error, StillOutside) else 0
        outcome = Outcome(action, str(why), why.reason, outside=outside)
        if outcome.is_busy:
            outcome = replace(outcome, problem=_BUSY) if action.verb in _NAMED_IF_BUSY else None
        elif why.reason == Reason.TASK_GONE and not complaints:
            outcome = None
    remark = "; ".join(map(str, complaints)) or None
    complaints.clear()
    return outcome and replace(outcome, remark=remark)


def _give_up(planned: list[Action], outcomes: list[Outcome], last: Survey) -> Iterator[Outcome]:
    """What is outside by the last look, after which there is no further pass, and of which no outcome says so yet."""
    former = {it.action.id: it.outside for it in outcomes}
    for action in planned:
        if action.verb == "adopt" and not former.get(action.id):
            error = StillOutside(last.outside[action.key, action.container].to_move, 0)
            yield Outcome(action, str(error), error.reason, outside=error.number)


def _list_left(seen: Survey) -> Iterator[str]:
    """A line for each problem that reconcile leaves, because another tool or the container itself caused it."""
    for (key, container), found in seen.outside.items():
        state = seen.states[key]
        for number, what, why in (
            (found.elsewhere, "thread", "in another ctrl_group or another tool's group"),
            (found.unread, "cgroup", "not read: it has too many; a program there may stay outside"),
        ):
            if number:
                name = who(container, state.pod_namespace, state.pod_name, state.members[container].name)
                yield f"{format_count(number, what)} of {name} of {short_id(key)} {why}"


def _list_unhooked(seen: Survey) -> Iterator[str]:
    """A line on the containers that never got the hook, if any."""
    try:
        found = runtimes.find_unhooked(seen.context, seen.processes) if seen.context.resctrl.exists() else None
    except (HookError, OSError) as error:
        yield f"cannot look for containers that never got the hook: {error}"
        return
    if found is not None and (names := records.name_unhooked(found)):
        yield f"{format_count(len(names), 'running container')} never got the hook (see doctor): {', '.join(names)}"


# --- The end of all keys, also of those with live containers: an administrator takes the hook off the node
#
# The caller has removed the hooks.d files and stopped the services. Hooks of earlier containers may still run, so each
# key is ended under its lock, by the steps of poststop, each of which survives a kill.


class Remains(NamedTuple):
    """What is left after the end of all keys, in lines that say why. Only what is `unfinished` needs another call.

    `left`: unreadable records, and groups with our prefix that are on no record and have a live task.
    """

    unfinished: list[str]
    left: list[str]


def has_keys(options: Options) -> bool:
    """Whether there is a run directory, or a group with our prefix."""
    start = f"/mon_groups/{options.group_prefix}"
    return system.is_directory(options.run_dir) or any(
        start in path for path in resctrl.list_mon_groups(options.resctrl_root)
    )


def end_all_keys(options: Options) -> Remains:
    """End each key: give its RMIDs back, remove its records. Removes the run directory if nothing is left in it.

    A line of history that cannot be written keeps its record. Raises HookError, OSError.
    """
    if not has_keys(options):
        return Remains([], [])
    # No snapshots: nobody would remove them.
    context = Context(Resctrl(options.resctrl_root), RunDir(options.run_dir), store.replace(options, snapshot_ttl=0))
    run, deadline = context.run, system.monotonic() + _SECONDS_FOR_LOCKS
    problems: dict[str, str] = {}
    left: list[str] = []
    for _ in range(_MOST_PASSES):  # a hook that runs beside this may begin a key
        for key in [key for key in run.names(KeyState) if key not in problems]:
            if (problem := _end_key(context, key, deadline)) is not None:
                problems[key] = f"key {key}: {problem}"
        left = [f"{path}: it cannot be read" for path in records.list_asides(run)]
        is_empty = not (problems or left)
        for path in retry.find_orphans(context, resctrl.list_mon_groups(options.resctrl_root)):
            if (problem := _remove_lone(context, path)) is not None:
                left.append(f"{path}: {problem}")
        if not is_empty:
            break
        try:
            records.remove_all(run)
            break
        except OSError as error:
            left.append(f"{run.path}: a hook uses it: {error.strerror}")
    return Remains([*problems.values()], left)


def _end_key(context: Context, key: str, deadline: float) -> str | None:
    """End a key, whatever its members do. Returns why it is still on record; None: it is not."""
    run, options = context.run, context.options
    run.complaints.clear()
    what = "cannot end it"
    try:
        with run.lock(key, min(system.monotonic() + options.lock_timeout, deadline)) as locked:
            state = locked.state
            if state is not None and state.completed_at is None:
                remove.end(context, locked, state, state.groups)
                for container in state.members:
                    run.remove(Index, container)
                if state.recovering:  # its record may lack groups, which have its name
                    for above in resctrl.list_ctrl_groups(options.resctrl_root):
                        remove.remove_group(context, f"{above}/mon_groups/{options.group_prefix}{key}")
            elif state is not None and state.owed is not None:
                what = f"could not add what it used to {state.history_file}"
                system.append_lines(state.history_file, state.owed.lines)
                # After the lines: killed in between, they are written once more, each with the same id.
                locked.commit(store.replace(state, owed=None))
            if locked.state is None or locked.state.owed is None:
                context.view.forget(locked)
                return None
    except (HookError, OSError) as error:
        run.complain(what, error)
    return "; ".join(map(str, run.complaints))


def _remove_lone(context: Context, path: str) -> str | None:
    """Remove a group that is on no record. Returns why it is still there; None: it is not."""
    try:
        is_there = not retry.remove_orphan(context, path) and context.resctrl.exists(path)
    except (HookError, OSError) as error:
        return str(as_hook_error("cannot remove it", error))
    return "it has a live task, and is on no record" if is_there else None


# --- As text and as JSON


def format_outcome(it: Outcome) -> list[str]:
    """A line for an action, its problem and its remark."""
    problem = [f"  failed: {it.problem}"] if it.problem is not None else []
    return [str(it.action), *problem, *([f"  {it.remark}"] if it.remark is not None else [])]


def format_left(line: str) -> str:
    """Format a line of Result.left."""
    return f"left: {line}"


def result_to_json(result: Result, *, dry_run: bool) -> dict[str, Any]:
    """The object that `reconcile --json` prints."""
    actions = []
    for it in result.outcomes:
        about = {name: getattr(it.action, name) or None for name in ("key", "container", "path")}
        named = {name: getattr(it.action, name) for name in ("namespace", "pod", "name", "why")}
        actions.append({"action": it.action.verb, **about, **named, "problem": it.problem, "remark": it.remark})
    return {"dry_run": dry_run, "actions": actions, "left": result.left, "ended": result.ended, "undone": result.undone}


# --- The problems that the last run left, so that the next run counts them instead of printing them again


def is_known(last: LeftUndone, outcome: Outcome) -> bool:
    """Whether an action failed for the same reason in the last run, or when its failure was recorded."""
    reason = outcome.reason or ""
    return outcome.has_failed and reason in (outcome.action.reason, last.failures.get(outcome.action.id))


def _count_failures(undone: LeftUndone) -> Counter[tuple[str, str]]:
    """The number of failed actions by verb and reason."""
    return Counter((name.partition(" ")[0], reason) for name, reason in undone.failures.items())


def format_changes(last: LeftUndone, now: LeftUndone) -> list[str]:
    """A line for each verb and reason whose number of failed actions differs from the last run's."""
    before, after = _count_failures(last), _count_failures(now)
    return [
        f"{format_count(after[verb, reason], 'container')} still not monitored: {reason} (see list)"
        if verb == "retry"
        else f"still failing: {format_count(after[verb, reason], 'action')}, {verb}, {reason} (see reconcile --json)"
        for verb, reason in sorted({*before, *after})
        if after[verb, reason] != before[verb, reason]
    ]
