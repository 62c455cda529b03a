# SPDX-License-Identifier: Apache-2.0
"""Runs reconcile: surveys, diagnoses and acts in passes.

It may run beside hooks and other reconciles.

All containers share the time of a run. Each gets one look and one move first (reconcile/move); what
is still outside after all actions of a pass is moved then, in turn. Another container is the first
one in each run, and the action of one that was not reached has failed. Whether an action has
succeeded is decided by `_decide`, and at the end of the run by what the last look finds outside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from hook import (
    damage,
    inventory,
    life_end,
    life_turns,
    rare,
    reclaim,
    report,
    resctrl,
    store,
    system,
    validation,
)
from hook.context import new_context
from hook.errors import HookError, Reason
from hook.key import settle, write_end
from hook.models import KeyState, Options, State
from hook.node import naming, processes, records, sums, unhooked
from hook.node.models import ReconcileRecord
from hook.node.unhooked import ListStates
from hook.rare import as_hook_error
from hook.reconcile.act import carry_out, make_container, write_owed
from hook.reconcile.diagnose import BRING_IN, VERBS, Action, diagnose
from hook.reconcile.move import LateCpu, Mover, explain_outside, finish
from hook.reconcile.rotate import LARGEST, rotate
from hook.reconcile.sums import keep_sums
from hook.reconcile.survey import ALL, Scope, Survey
from hook.store import RunDir
from hook.words import explain, format_count, printable, short_id, who

if TYPE_CHECKING:
    from hook.context import Context

_MOST_PASSES = 3
# Of a run, after which no further container is brought in: there is other work, and a limit of 45
# s.
_SECONDS = 20.0
_SECONDS_TO_ADOPT = 5.0  # the same from when the containers are known that --adopt is to bring in
# Seconds for the movers of a pass: where 20 programs fork on one busy CPU, one takes 0.2.
_PATIENCE = 4.0
_NOT_REACHED = (
    "the run's time to bring in containers was used up; the next run begins with another one"
)
_SECONDS_FOR_LOCKS = 20.0  # for all waits of end_all_keys together
_HAVE_METRICS = ("retry", "write")
"""The actions whose failures have metrics and alerts that say more than how many failed."""
_MOST_NAMED = 100  # containers or groups, so that the record stays small


@dataclass(frozen=True)
class Outcome:
    """The outcome of an action."""

    action: Action
    problem: str | None = None  # why it failed, or was not wholly done
    remark: str | None = None  # another problem that was found
    outside: int = 0  # how many threads of the container it left outside its group


class Repairs:
    """The repairs of a run so far, or its plan; and what it leaves."""

    def __init__(self, note: Callable[[Outcome], object] | None = None) -> None:
        self.outcomes: list[Outcome] = []
        self.left: list[str] = []  # a line for each problem that reconcile may not change
        # The keys that cannot end yet; before the look, those that the last run has named.
        self.held: list[str] = []
        # By container, its threads outside its group at the last look.
        self.outside: dict[str, int] = {}
        # Of how many keys, cgroups and processes it did not read what it should have.
        self.unread = 0
        # The containers that --adopt could not ask a runtime about, each a failed adoption.
        self.unanswered = 0
        self.undone = 0  # the planned actions of this pass that have not ended
        self.at: Action | None = None  # the action that has begun
        self.ended: str | None = None  # why it stopped early: a signal, its time limit
        self._note = note  # gets each outcome at once
        self._deadline = system.monotonic() + _SECONDS  # after it no container is brought in

    @property
    def failed(self) -> list[Outcome]:
        """The failed actions.

        One that left threads outside does not count if none is there by now.
        """
        of_action = {done.action.id: done for done in self.outcomes if done.problem is not None}
        return [
            done
            for done in of_action.values()
            if not done.outside or done.action.container in self.outside
        ]

    @property
    def is_whole(self) -> bool:
        """Whether no action is left undone, and all was read, so that `reconcile` exits with 0."""
        return self.ended is None and not (self.failed or self.unread or self.unanswered)

    def work_through(self, survey: Survey, actions: list[Action]) -> None:
        """Carry out these actions, then move the threads that are still
        outside in all their containers.

        The actions are in the order of their verbs;
        those of one verb begin with another one in each run.
        """
        self.undone = len(actions)
        waiting: list[tuple[_Attempt, Mover]] = []
        for action in sorted(
            rare.start_elsewhere(actions), key=lambda action: VERBS.index(action.verb)
        ):
            self.at = action
            if action.verb in BRING_IN and system.monotonic() >= self._deadline:
                self._end(Outcome(action, _NOT_REACHED))
                continue
            attempt = _try(survey, action)
            if isinstance(attempt.result, Mover) and not attempt.result.has_ended:
                waiting.append((attempt, attempt.result))
            else:
                self._end(_decide(attempt))
        self.at = None
        finish([mover for _, mover in waiting], _PATIENCE)
        for attempt, _ in waiting:
            self._end(_decide(attempt))

    def fail_repeated(self, planned: list[Action]) -> None:
        """Count an action as failed that was done in an earlier pass and is needed again:
        it has changed nothing.

        More threads may come into a container at any time.
        """
        by_id = {done.action.id: done.problem for done in self.outcomes}
        for action in planned:
            if action.verb not in BRING_IN and by_id.get(action.id, "") is None:
                self._end(Outcome(action, "it was done, and is needed again"))

    def conclude(self, survey: Survey, planned: list[Action]) -> None:
        """Note what the last look shows.

        What is outside by then is a failed action, since no pass follows.
        """
        self.outside = {
            name: place.to_move
            for (_key, name), place in survey.whereabouts.items()
            if place.to_move
        }
        failed = {done.action.id for done in self.outcomes if done.problem is not None}
        for action in planned:
            if action.verb == "adopt" and action.id not in failed:
                number = self.outside[action.container]
                self._end(Outcome(action, _word(explain_outside(number, 0)), outside=number))
        self.read_left(survey)

    def read_left(self, survey: Survey) -> None:
        """Note what a look leaves as it is, and what it could not read."""
        self.left = [*_list_left(survey, survey.held.difference(self.held))]
        self.held = sorted(survey.held)
        cgroups = sum(place.unread for place in survey.whereabouts.values())
        self.unread = cgroups + len(survey.unread) + survey.processes.unread

    def adopt(self, survey: Survey, actions: list[Action]) -> None:
        """Bring in running containers without a record, after all passes."""
        self._deadline = system.monotonic() + _SECONDS_TO_ADOPT
        before = len(self.outcomes)
        self.work_through(survey, actions)
        self.outside.update(
            (done.action.container, done.outside) for done in self.outcomes[before:] if done.outside
        )

    def keep_sums(self, survey: Survey, scope: Scope) -> None:
        """Bring the sums of the history up to date."""
        path, problem = sums.locate(sums.find_history(survey.context.options)), None
        try:
            said = keep_sums(
                survey.context, survey.states.values(), scope.sum_labels, scope.checkpoint
            )
        except (HookError, OSError) as error:
            said, problem = ["its lines are not added up"], _word(error)
        if said:
            self._end(Outcome(Action("sum", path=path, why="; ".join(said)), problem))

    def rotate(self, options: Options) -> None:
        """Start a new file of the history if it is large."""
        path, problem = sums.find_history(options), None
        try:
            done = bool(path) and rotate(path)
        except OSError as error:
            done, problem = True, _word(error)
        if done:
            self._end(
                Outcome(
                    Action("rotate", path=path, why=f"a file has {LARGEST >> 20} MiB at most"),
                    problem,
                )
            )

    def _end(self, outcome: Outcome | None) -> None:
        """Note the outcome of an action, if it was needed."""
        if outcome is not None:
            self.outcomes.append(outcome)
            if self._note is not None:
                self._note(outcome)
        self.at, self.undone = None, max(0, self.undone - 1)


class _Attempt(NamedTuple):
    """What came of an action: whether it was needed,
    the mover of a container's threads, or an error.
    """

    action: Action
    result: bool | Mover | HookError | OSError
    complaints: list[HookError]  # other problems that were found


def _try(survey: Survey, action: Action) -> _Attempt:
    """Carry out an action. A failure does not stop the other actions."""
    survey.context.run.complaints = complaints = list[HookError]()
    try:
        return _Attempt(action, carry_out(survey, action), complaints)
    except (HookError, OSError) as error:
        return _Attempt(action, error, complaints)


def _decide(attempt: _Attempt) -> Outcome | None:
    """Decide whether an action has succeeded, once its mover has ended, or is given up.

    There is no outcome if the action was no longer needed, as after a hook that ran since the
    survey, or the end of the container, or is left to a hook.
    """
    action, result, complaints = attempt
    mover = result if isinstance(result, Mover) else None
    error = (
        mover.problem if mover is not None else result if isinstance(result, Exception) else None
    )
    # A hook holds the key's lock: that hook, or the next run, does the action.
    # Or the container has ended.
    reason = error.reason if isinstance(error, HookError) else None
    if reason == Reason.LOCK_TIMEOUT or (
        not complaints and (result is False or reason == Reason.TASK_GONE)
    ):
        return None
    if mover is not None and error is None and action.verb == "adopt" and action.key:
        if not mover.moved:
            return None
        action = replace(action, why=f"{mover.moved} of its threads were not in its group")
    remark = "; ".join(str(explain(complaint)) for complaint in complaints) or None
    outside = mover.outside if mover is not None and not mover.has_ended else 0
    return Outcome(action, _word(error) if error is not None else None, remark, outside)


def _word(error: HookError | OSError) -> str:
    return str(explain(as_hook_error("cannot read or write a file", error)))


def plan_repairs(options: Options, scope: Scope = ALL) -> Repairs:
    """Return the actions of `repair`'s first pass, without doing them.

    Raises HookError, OSError.
    """
    plan = Repairs()
    survey = Survey(_open_node(options), scope=scope)
    planned = diagnose(survey)
    plan.read_left(survey)
    if scope.asks is not None:
        candidates = _find_candidates(survey, scope.asks)
        planned += _plan_adoptions(survey, candidates)
        plan.left += candidates.unanswered.values()
    plan.outcomes = [Outcome(action) for action in planned]
    return plan


def repair(options: Options, scope: Scope = ALL, repairs: Repairs | None = None) -> Repairs:
    """Do all actions, pass by pass, until none is needed. Raises HookError, OSError.

    A caller that may end the run early passes its `repairs`.
    """
    done = repairs or Repairs()
    context, late, began = _open_node(options), LateCpu(), system.monotonic()
    held = done.held = late.note_last_look(context.run).held
    _save(context.run, [], started_at=system.unix_time())
    is_saved = False
    try:
        for line in report.sum_up_failures(context.run):
            report.send_to_syslog(line)
        survey = _repair(lambda: Survey(context, late, scope), scope.asks, done)
        # First: of a file that has gone nothing can be added up.
        done.keep_sums(survey, scope)
        done.rotate(context.options)
        elsewhere = Counter[str]()
        for place in survey.whereabouts.values():
            elsewhere.update(dict(place.elsewhere))
        _save(
            context.run,
            done.outcomes,
            ended_at=system.unix_time(),
            seconds=system.monotonic() - began,
            failed=sum(outcome.action.verb not in _HAVE_METRICS for outcome in done.failed)
            + done.unanswered,
            left=len(done.left) + len({*held}.intersection(done.held)),
            held=done.held,
            unread=done.unread,
            outside=dict(Counter(done.outside).most_common(_MOST_NAMED)),
            outside_total=sum(done.outside.values()),
            elsewhere=dict(elsewhere.most_common(_MOST_NAMED)),
            looked_at=survey.boottime,
            counted=survey.counted,
        )
        is_saved = True
        late.save(context)
    except BaseException:  # a signal, or the time limit, which may come in the midst of the record
        if not is_saved:
            _save(context.run, done.outcomes)
        late.save(context)
        raise
    return done


def _repair(look: Callable[[], Survey], asks: ListStates | None, done: Repairs) -> Survey:
    """Do what `repair` says, with a survey of the node for each pass; return the last one."""
    passes = 0
    while True:
        survey = look()
        planned = diagnose(survey)
        done.fail_repeated(planned)
        failed = {outcome.action.id for outcome in done.outcomes if outcome.problem is not None}
        # A run does not try again.
        actions = [action for action in planned if action.id not in failed]
        if not actions or passes == _MOST_PASSES:
            break
        passes += 1
        done.work_through(survey, actions)
    if survey.podman.wants_pods:
        system.try_call(system.write_new, naming.PODMAN_MARK, "", survey.context.run.descriptor)
    done.conclude(survey, planned)
    # Last: the containers of rebuilt keys are known by now.
    candidates = _find_candidates(survey, asks)
    if asks is not None:
        adoptions = _plan_adoptions(survey, candidates)
        done.left += candidates.unanswered.values()
        done.unanswered = len(candidates.unanswered)
        done.adopt(survey, adoptions)
    done.left += _list_unhooked(survey, candidates)
    return survey


def _save(run: RunDir, outcomes: list[Outcome], **fields: Any) -> None:  # noqa: ANN401
    """Add these outcomes to the counts since boot in reconcile.json,
    and set these fields of its ReconcileRecord.

    A run that was killed, or raised an error, has a start without an end. A record that cannot be
    written stops no run: its `ended_at` gets old, which raises the alert.
    """
    done = [outcome.action.verb for outcome in outcomes if outcome.problem is None]
    failed = [outcome.action.verb for outcome in outcomes if outcome.problem is not None]

    def add(last: ReconcileRecord) -> dict[str, Any]:
        return {
            "actions": _add(last.actions, done),
            "failures": _add(last.failures, failed),
            **fields,
        }

    with suppress(OSError):
        records.change_reconciled(run, add)


def _add(former: dict[str, int], verbs: list[str]) -> dict[str, int]:
    """Add these verbs to their counts, which a damaged record may have near the largest one."""
    return {
        verb: number % (validation.MOST_NATURAL + 1)
        for verb, number in (Counter(former) + Counter(verbs)).items()
    }


def _open_node(options: Options) -> Context:
    processes.check_namespaces()
    context = new_context(resctrl.Resctrl(options.resctrl_root), RunDir(options.run_dir), options)
    try:
        # Hooks make them with the run directory, and need them.
        rare.make_parts(context.run.descriptor)
    except OSError as error:
        raise as_hook_error(
            "cannot create the missing parts of the run directory", error
        ) from error
    return context


def _find_candidates(survey: Survey, asks: ListStates | None) -> unhooked.Candidates:
    members = {container for state in survey.states.values() for container in state.members}
    return unhooked.Candidates(survey.context, survey.processes, members, asks)


def _plan_adoptions(survey: Survey, candidates: unhooked.Candidates) -> list[Action]:
    """List an action for each container that runs, and is in no key, for --adopt."""
    # What failed since its process is a member of another key: the record of that is tried again.
    running, failed = candidates.running, {*survey.records.failed}
    refused = {state.id for state in running if state.pid in survey.memberships} & failed
    return [_plan_adoption(survey, state) for state in running if state.id not in refused]


def _plan_adoption(survey: Survey, state: State) -> Action:
    """Return the action for a running container,
    with the names that its runtime or the kubelet knows, or the UID.
    """
    why = "it is running, and is not in a group of ours"
    try:
        pod = make_container(state.id, state.pid or 0, state.bundle, state.annotations).pod
    except (HookError, OSError, ValueError):  # the action fails for it
        return Action("adopt", container=state.id, why=why, state=state)
    names = (*(survey.kubelet.pods.get(pod.uid or "") or (pod.namespace, pod.name)), pod.container)
    if pod.uid and not names[1]:
        why += f"; its pod's UID is {pod.uid}"
    return Action("adopt", container=state.id, why=why, state=state, names=names)


def _list_left(survey: Survey, held: Collection[str]) -> Iterator[str]:
    """List the problems that reconcile leaves,
    because another tool or the container itself caused them.
    """
    for key in sorted(held):
        state = survey.states.get(key)
        paths = [group.path for group in state.groups] if state is not None else []
        tids = {tid for path in paths for tid in survey.context.resctrl.tasks(path) or ()}
        why = (
            "in its group, which stays until then, is what outlived its containers: "
            f"{processes.describe_tasks(tids)}"
        )
        yield f"{_name(survey, key)} cannot end yet: {why}"
    for (key, container), place in survey.whereabouts.items():
        name = partial(_name, survey, key, container)  # for a few of thousands
        if place.taker is not None:
            yield f"another tool has moved {name()} to {printable(place.taker)}, where it stays"
        for path, number in place.elsewhere:
            threads = f"{format_count(number, 'thread')} of {name()}"
            yield (
                f"{threads} in {printable(path)}, another ctrl_group or another tool's group, and "
                "stay there"
            )
        if place.unread:
            cgroups = f"{format_count(place.unread, 'cgroup')} of {name()}"
            yield f"{cgroups} not read: too many, or refused; a program there may stay outside"
    for key, error in survey.unread.items():
        yield f"{_name(survey, key)} not looked at: {explain(as_hook_error('cannot read', error))}"
    if unknown := survey.processes.list_unknown():
        cgroups = (
            f"{format_count(len(unknown), 'cgroup')} called as a container's of no record, below "
            "another one's"
        )
        yield f"{cgroups}, with processes in no group: {printable(unknown[0])}"
    if survey.processes.unread:
        yield (
            f"{survey.processes.unread} of the processes in /proc not read: they may be outside "
            "their groups"
        )


def _name(survey: Survey, key: str, container: str = "") -> str:
    """Name a key, or a container and its key, for people.

    What was recorded since the survey has no other names.
    """
    state = survey.states.get(key)
    name = who(
        container or key, *(life_turns.name_key(state, container) if state is not None else ())
    )
    return f"{name} of {short_id(key)}" if container else name


def _list_unhooked(survey: Survey, candidates: unhooked.Candidates) -> Iterator[str]:
    """Name the containers that never got the hook, if any, in a line."""
    try:
        has_resctrl = survey.context.resctrl.exists(survey.context.resctrl.root)
        left = candidates.find_unhooked() if has_resctrl else None
    except (HookError, OSError) as error:
        yield f"cannot look for containers that never got the hook: {explain(error)}"
        return
    if left is not None and (containers := records.name_unhooked(left.containers)):
        yield (
            f"{format_count(len(containers), 'running container')} never got the hook: "
            f"{', '.join(containers)}"
        )


# --- The end of all keys, also of those with live containers: an administrator takes the hook off
# the node
#
# The caller has removed the hooks.d files and stopped the services. Hooks of earlier
# containers may still run, so each key is ended under its lock, by the steps of poststop, each
# of which survives a kill.


class Remains(NamedTuple):
    """What is left after the end of all keys, in lines that say why."""

    unfinished: list[str]  # needs another call
    # Unreadable records, and groups with our prefix that are on no record and have a live task.
    left: list[str]


def has_keys(options: Options) -> bool:
    """Whether there is a run directory, or a group with our prefix."""
    start = f"/mon_groups/{options.group_prefix}"
    has_records = system.is_directory(options.run_dir)
    return has_records or any(
        start in path for path in inventory.list_mon_groups(options.resctrl_root)
    )


def end_all_keys(options: Options) -> Remains:
    """End each key: give its RMIDs back, and remove its records,
    and the run directory if nothing is left in it.

    A line of history that cannot be written keeps its record. Raises HookError, OSError.
    """
    if not has_keys(options):
        return Remains([], [])
    # No snapshots: nothing would remove them.
    has_none = validation.replace(options, snapshot_ttl=0)
    context = new_context(resctrl.Resctrl(options.resctrl_root), RunDir(options.run_dir), has_none)
    run, deadline = context.run, system.monotonic() + _SECONDS_FOR_LOCKS
    problems: list[str] = []
    left: list[str] = []
    for _ in range(_MOST_PASSES):  # a hook that runs beside this may begin a key
        problems = [
            problem
            for key in store.list_records(run, KeyState)
            if (problem := _end_key(context, key, deadline))
        ]
        asides = [name for name in store.list_part(run, "groups") if damage.ASIDE in name]
        left = [f"{run.path}/groups/{name}: it cannot be read" for name in asides]
        has_records = bool(problems or left)
        lone = reclaim.find_orphans(context, inventory.list_mon_groups(options.resctrl_root))
        left += [problem for path in lone if (problem := _remove_lone(context, path))]
        try:
            if not has_records:
                records.remove_all(run)
            break
        except (HookError, OSError) as error:
            left.append(
                f"{run.path}: a hook uses it: {explain(as_hook_error('cannot remove it', error))}"
            )
    return Remains(problems, left)


def _end_key(context: Context, key: str, deadline: float) -> str | None:
    """End a key, whether or not its members live. Returns why it is still on record, if it is."""
    run, options = context.run, context.options
    run.complaints = []
    try:
        with run.lock(key, min(system.monotonic() + options.lock_timeout, deadline)) as locked:
            is_ended = write_end(context, locked, by_order=True)
            if locked.state is not None and not is_ended:
                write_owed(context, locked, locked.state)
            if locked.state is not None and locked.state.owed is None:
                settle(context, locked, life_end.forget(locked.state))
            if locked.state is None:
                return None
    except (HookError, OSError) as error:
        run.complain("cannot end it", error)
    return f"key {key}: " + "; ".join(str(explain(error)) for error in run.complaints)


def _remove_lone(context: Context, path: str) -> str | None:
    """Remove a group that is on no record. Returns why it is still there, if it is."""
    try:
        is_there = not reclaim.remove_orphan(context, path) and context.resctrl.exists(path)
    except (HookError, OSError) as error:
        return f"{path}: {explain(as_hook_error('cannot remove it', error))}"
    if not is_there:
        return None
    holders = processes.describe_tasks(context.resctrl.tasks(path))
    return f"{path}: it has a live task, and is on no record: {holders}"
