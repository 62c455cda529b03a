# SPDX-License-Identifier: Apache-2.0
"""Runs reconcile: surveys, diagnoses and acts in passes. It may run beside hooks and other reconciles.

All containers share the time of a run. Each gets one look and one move first (reconcile/move); what is still outside
after all actions of a pass is waited for together. Another container is the first one in each run, and the action of
one that was not reached has failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hook import reclaim, report, resctrl, system, validation
from hook.entry import Context
from hook.errors import HookError, Reason, as_hook_error
from hook.key import end, remove_group
from hook.models import Index, KeyState, Options, State
from hook.node import podman, processes, records, runtimes
from hook.node.models import Unhooked
from hook.reconcile.act import act, describe, end_released
from hook.reconcile.diagnose import BRING_IN, VERBS, Action, Survey, diagnose
from hook.reconcile.move import Mover, StillOutside, Tally, move_until
from hook.report import format_count, printable, short_id, who
from hook.resctrl import Resctrl
from hook.store import RunDir

ListStates = Callable[[Collection[str]], tuple[list[State], list[str]]]
_MOST_PASSES = 3
_SECONDS = 20.0  # of a run, after which no further container is brought in: there is other work, and a limit of 45 s
_SECONDS_TO_ADOPT = 5.0  # the same from when the containers are known that --adopt is to bring in
_PATIENCE = 4.0  # seconds in all to wait for movers: where 20 programs fork on one busy CPU, one takes 0.2
_LEAST_PATIENCE = 0.5  # seconds after each pass and at the end, also if all is used up
_NOT_REACHED = "the run's time to bring in containers was used up; the next run begins with another one"
_SECONDS_FOR_LOCKS = 20.0  # for all waits of end_all_keys together
_HAVE_METRICS = ("retry", "write")
"""The actions whose failures have metrics and alerts that say more than how many failed."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of an action."""

    action: Action
    problem: str | None = None  # why it failed
    remark: str | None = None  # another problem that was found
    outside: int = 0  # how many threads of the container it left outside its group

    @property
    def has_failed(self) -> bool:
        """Whether the action was not done, or not wholly."""
        return self.problem is not None


@dataclass(frozen=True)
class Result:
    """The actions that were done, or are planned, and what a run leaves."""

    outcomes: list[Outcome] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # a line for each problem that reconcile may not change
    undone: int = 0  # how many planned actions it left undone when it stopped early
    ended: str | None = None  # why it stopped early: a signal, its time limit
    at: Action | None = None  # the action that it was at then
    outside: dict[str, int] = field(default_factory=dict)  # by container, its threads outside its group
    needed: Collection[str] = ()  # the ids of the actions that the last look still found
    unread: int = 0  # of how many keys, cgroups and processes that look did not read what it should have

    @property
    def failed(self) -> list[Outcome]:
        """The failed actions that are still needed, or after which no other one followed for the same object.

        An action that left threads outside does not count if the last look found none: they have ended.
        """
        of_object = {done.action.container or done.action.path or done.action.key: done for done in self.outcomes}
        ends = [done for done in of_object.values() if not done.outside or done.action.container in self.outside]
        needed = {*self.needed, *(done.action.id for done in ends)}
        last = {done.action.id: done for done in self.outcomes}
        return [done for done in last.values() if done.has_failed and done.action.id in needed]

    @property
    def is_whole(self) -> bool:
        """Whether no action is left undone, and all was read, so that `reconcile` exits with 0."""
        return self.ended is None and not self.failed and not self.unread


def plan_repairs(
    options: Options, live: Collection[str] | None = None, linger: int | None = None, asks: ListStates | None = None
) -> Result:
    """Return the actions of `repair`'s first pass, without doing them. Raises HookError, OSError."""
    context = _open_node(options, linger, asks)
    if context is None:
        return Result()
    seen = Survey(context, live)
    planned, left = diagnose(seen), [*_list_left(seen)]
    if asks is not None:
        adoptable, problems = _find_adoptable(seen, asks)
        planned += adoptable
        left += problems
    return Result([Outcome(action) for action in planned], left, unread=_count_unread(seen))


def repair(
    options: Options,
    live: Collection[str] | None = None,
    linger: int | None = None,
    asks: ListStates | None = None,
    work: Work | None = None,
) -> Result:
    """Do all actions, pass by pass, until none is needed. Raises HookError.

    `live` names the keys that live, instead of a look at their members; `linger` is Context.longest_linger. `asks`
    lists the OCI states of running containers except those that are known, for adoption, and a line for each problem.
    A caller that may end the run early passes its `work`.
    """
    done = work or Work()
    context = _open_node(options, linger, asks)
    if context is None:
        return Result()
    with Tally(context) as tally:
        for line in report.sum_up_failures(context.run):
            report.log(line)
        done.tally = tally
        passes, unwritable = 0, dict[str, str]()
        while True:
            seen = Survey(context, live, unwritable)
            planned = diagnose(seen)
            actions = [action for action in planned if action.id not in done.failed]
            if not actions or passes == _MOST_PASSES:
                break
            passes += 1
            done.act(seen, actions)
        if seen.podman.wants_pods:
            system.try_call(system.write_new, podman.MARK, "", context.run.descriptor)
        done.give_up(planned, seen)
        left = [*_list_left(seen)]
        before = len(done.outcomes)
        outside = {container: found.to_move for (_key, container), found in seen.outside.items()}
        if asks is not None:  # last: the containers of rebuilt keys are known by now
            adoptable, problems = _find_adoptable(seen, asks)
            left += problems
            done.deadline = system.monotonic() + _SECONDS_TO_ADOPT
            done.act(seen, adoptable)
        outside.update((outcome.action.container, outcome.outside) for outcome in done.outcomes[before:])
        outside = {container: number for container, number in outside.items() if number}
        left += _list_unhooked(seen)
        elsewhere = Counter[str]()
        for found in seen.outside.values():
            elsewhere.update(dict(found.elsewhere))
        unread, needed = _count_unread(seen), {action.id for action in planned}
        result = Result(done.outcomes, left, outside=outside, needed=needed, unread=unread)
        failed = [outcome for outcome in result.failed if outcome.action.verb not in _HAVE_METRICS]
        counts = {"left": len(left), "failed": len(failed), "unread": unread}
        tally.end(outside, elsewhere, looked_at=seen.boottime, **counts)
    return result


def _open_node(options: Options, linger: int | None, asks: ListStates | None) -> Context | None:
    """Open the run directory; return None on a machine without it and without resctrl, where it is not made."""
    has_run_dir = system.try_call(system.find_directory, options.run_dir) is not False  # None: opening it says why
    kernel = Resctrl(options.resctrl_root)
    if asks is None and not has_run_dir and not kernel.is_mounted():
        return None
    processes.check_namespaces()
    context = Context(kernel, RunDir(options.run_dir), options, longest_linger=linger)
    context.names_history = False
    try:
        context.run.make_parts()  # hooks make them with the run directory and need them
        context.view.make_parts()  # consumers open them when they start
    except OSError as error:
        raise as_hook_error("cannot create the missing parts of the run directory", error) from error
    return context


def _find_adoptable(seen: Survey, asks: ListStates) -> tuple[list[Action], list[str]]:
    """List an action for each running container without a record, for --adopt, and a line for each problem."""
    former = seen.context.run.glance(Unhooked, "unhooked")
    members = {container for state in seen.states.values() for container in state.members}
    states, problems = asks(members.union(former.sandboxes if former is not None else ()))
    why = "it is running, and is not in a group of ours"
    return [Action("adopt", container=state.id, why=why, state=state) for state in states], problems


class Work:
    """The work of a run, and its outcomes so far."""

    def __init__(self, note: Callable[[Outcome], object] | None = None) -> None:
        self.outcomes: list[Outcome] = []
        self.failed: set[str] = set()  # the ids of the actions that this run does not try again
        self.tally: Tally | None = None
        self.deadline = system.monotonic() + _SECONDS  # after it no container is brought in
        self._note = note  # gets each outcome at once
        self._action: Action | None = None  # the action that has begun
        self._undone = 0  # the planned actions of this pass that have not ended
        self._patience = _PATIENCE

    def act(self, seen: Survey, actions: list[Action]) -> None:
        """Do these actions, then wait for the threads of all their containers together.

        The actions are in the order of their verbs; those of one verb begin with another one in each run.
        """
        actions = sorted(runtimes.start_elsewhere(actions), key=lambda action: VERBS.index(action.verb))
        self._undone = len(actions)
        movers: dict[Mover, Outcome] = {}
        for action in actions:
            self._action = action
            if action.verb in BRING_IN and system.monotonic() >= self.deadline:
                self._end(Outcome(action, _NOT_REACHED))
                continue
            outcome, mover = _attempt(seen, action)
            if outcome is not None and mover is not None:
                movers[mover] = outcome
            else:
                self._end(outcome)
        self._action = None
        began = system.monotonic()
        for mover in move_until(movers, began + max(self._patience, _LEAST_PATIENCE)):
            ended = movers.pop(mover)
            done = describe(ended.action, mover.moved)
            if mover.error is not None:
                self._end(_fail(ended, mover.error))
            else:
                self._end(replace(ended, action=done) if done is not None else None)
        for mover, waiting in movers.items():
            self._end(_fail(waiting, mover.explain()))
        self._patience -= system.monotonic() - began

    def end_early(self, why: str) -> Result:
        """Return how far the run came when a signal or its time limit ended it."""
        return Result(self.outcomes, undone=self._undone, ended=why, at=self._action)

    def give_up(self, planned: list[Action], seen: Survey) -> None:
        """Note what is outside, and no action has been done about; after `planned` there is no further pass."""
        for action in planned:
            if action.verb == "adopt" and action.id not in self.failed:
                error = StillOutside(seen.outside[action.key, action.container].to_move, 0)
                self._end(_fail(Outcome(action), error))

    def _end(self, outcome: Outcome | None) -> None:
        """Note the outcome of an action, if it was needed."""
        if outcome is not None:
            self.outcomes.append(outcome)
            if outcome.problem is not None:
                self.failed.add(outcome.action.id)
            if self.tally is not None:
                self.tally.count(outcome.action.verb, failed=outcome.has_failed)
            if self._note is not None:
                self._note(outcome)
        self._action, self._undone = None, max(0, self._undone - 1)


def _attempt(seen: Survey, action: Action) -> tuple[Outcome | None, Mover | None]:
    """Do an action, and return its outcome, and the mover to go on with if threads are still outside.

    A failure does not stop the other actions. There is no outcome if the action was no longer needed, as after a hook
    that ran since the survey, or the end of the container, or is left to a hook.
    """
    seen.context.run.complaints = complaints = list[HookError]()
    mover = None
    try:
        done = act(seen, action)
        outcome = Outcome(done or action) if done is not None or complaints else None
    except StillOutside as error:
        outcome, mover = Outcome(action), error.mover
    except (HookError, OSError) as error:
        # A hook holds the key's lock: that hook, or the next run, does the action. Or the container has ended.
        reason = error.reason if isinstance(error, HookError) else None
        is_over = reason == Reason.LOCK_TIMEOUT or (reason == Reason.TASK_GONE and not complaints)
        outcome = None if is_over else _fail(Outcome(action), error)
    remark = "; ".join(str(report.explain(error)) for error in complaints) or None
    return outcome and replace(outcome, remark=remark), mover


def _fail(outcome: Outcome, error: HookError | OSError) -> Outcome:
    """Return the outcome of an action that an error has ended."""
    why = as_hook_error("cannot read or write a file", error)
    number = error.number if isinstance(error, StillOutside) else 0
    return replace(outcome, problem=str(report.explain(why)), outside=number)


def _list_left(seen: Survey) -> Iterator[str]:
    """List the problems that reconcile leaves, because another tool or the container itself caused them."""
    for (key, container), path in seen.taken.items():
        yield f"another tool has moved {_name_place(seen, key, container)} to {printable(path)}, where it stays"
    for (key, container), found in seen.outside.items():
        for path, number in found.elsewhere:
            threads = f"{format_count(number, 'thread')} of {_name_place(seen, key, container)}"
            yield f"{threads} in {printable(path)}, another ctrl_group or another tool's group, and stay there"
        if found.unread:
            cgroups = f"{format_count(found.unread, 'cgroup')} of {_name_place(seen, key, container)}"
            yield f"{cgroups} not read: too many, or refused; a program there may stay outside"
    for key, error in seen.unread.items():
        known = seen.states.get(key)
        name = who(key, known.pod_namespace, known.pod_name) if known is not None else short_id(key)
        yield f"{name} not looked at: {report.explain(as_hook_error('cannot read', error))}"
    if seen.processes.unread:
        yield f"{seen.processes.unread} of the processes in /proc not read: they may be outside their groups"


def _count_unread(seen: Survey) -> int:
    """Count what the last look should have read, and did not."""
    return sum(found.unread for found in seen.outside.values()) + len(seen.unread) + seen.processes.unread


def _name_place(seen: Survey, key: str, container: str) -> str:
    """Name a container and its key for people. A container that was recorded since the survey has no other names."""
    state = seen.states.get(key)
    member = state.members.get(container) if state is not None else None
    pod = (state.pod_namespace, state.pod_name, member.name) if state and member else (None, None, None)
    return f"{who(container, *pod)} of {short_id(key)}"


def _list_unhooked(seen: Survey) -> Iterator[str]:
    """Name the containers that never got the hook, if any, in a line."""
    try:
        found = runtimes.find_unhooked(seen.context, seen.processes) if seen.context.resctrl.exists() else None
    except (HookError, OSError) as error:
        yield f"cannot look for containers that never got the hook: {report.explain(error)}"
        return
    if found is not None and (names := records.name_unhooked(found)):
        yield f"{format_count(len(names), 'running container')} never got the hook (see doctor): {', '.join(names)}"


# --- The end of all keys, also of those with live containers: an administrator takes the hook off the node
#
# The caller has removed the hooks.d files and stopped the services. Hooks of earlier containers may still run, so each
# key is ended under its lock, by the steps of poststop, each of which survives a kill.


class Remains(NamedTuple):
    """What is left after the end of all keys, in lines that say why."""

    unfinished: list[str]  # needs another call
    left: list[str]  # unreadable records, and groups with our prefix that are on no record and have a live task


def has_keys(options: Options) -> bool:
    """Whether there is a run directory, or a group with our prefix."""
    start = f"/mon_groups/{options.group_prefix}"
    return system.is_directory(options.run_dir) or any(
        start in path for path in resctrl.list_mon_groups(options.resctrl_root)
    )


def end_all_keys(options: Options) -> Remains:
    """End each key: give its RMIDs back, and remove its records, and the run directory if nothing is left in it.

    A line of history that cannot be written keeps its record. Raises HookError, OSError.
    """
    if not has_keys(options):
        return Remains([], [])
    # No snapshots: nothing would remove them.
    context = Context(
        Resctrl(options.resctrl_root), RunDir(options.run_dir), validation.replace(options, snapshot_ttl=0)
    )
    run, deadline = context.run, system.monotonic() + _SECONDS_FOR_LOCKS
    problems: dict[str, str] = {}
    left: list[str] = []
    for _ in range(_MOST_PASSES):  # a hook that runs beside this may begin a key
        for key in [key for key in run.names(KeyState) if key not in problems]:
            if (problem := _end_key(context, key, deadline)) is not None:
                problems[key] = f"key {key}: {problem}"
        left = [f"{path}: it cannot be read" for path in records.list_asides(run)]
        is_empty = not (problems or left)
        for path in reclaim.find_orphans(context, resctrl.list_mon_groups(options.resctrl_root)):
            if (problem := _remove_lone(context, path)) is not None:
                left.append(f"{path}: {problem}")
        if not is_empty:
            break
        try:
            records.remove_all(run)
            break
        except (HookError, OSError) as error:
            left.append(f"{run.path}: a hook uses it: {report.explain(as_hook_error('cannot remove it', error))}")
    return Remains([*problems.values()], left)


def _end_key(context: Context, key: str, deadline: float) -> str | None:
    """End a key, whether or not its members live. Returns why it is still on record, if it is."""
    run, options = context.run, context.options
    run.complaints = []
    what = "cannot end it"
    try:
        with run.lock(key, min(system.monotonic() + options.lock_timeout, deadline)) as locked:
            state = locked.state
            if state is not None and state.completed_at is None:
                end(context, locked, state, state.groups)
                for container in state.members:
                    run.remove(Index, container)
                if state.recovering:  # its record may lack groups, which have its name
                    for above in resctrl.list_ctrl_groups(options.resctrl_root):
                        remove_group(context, f"{above}/mon_groups/{options.group_prefix}{key}")
            elif state is not None and state.kind == "job":
                end_released(context, state)
            if state is not None and state.completed_at is not None and state.owed is not None:
                what = f"could not add what it used to {state.history_file}"
                system.append_lines(state.history_file, state.owed.lines)
                # After the lines: killed in between, they are written once more, each with the same id.
                locked.commit(validation.replace(state, owed=None))
            if locked.state is None or locked.state.owed is None:
                reclaim.forget(context.view, locked)
                return None
    except (HookError, OSError) as error:
        run.complain(what, error)
    return "; ".join(str(report.explain(error)) for error in run.complaints)


def _remove_lone(context: Context, path: str) -> str | None:
    """Remove a group that is on no record. Returns why it is still there, if it is."""
    try:
        is_there = not reclaim.remove_orphan(context, path) and context.resctrl.exists(path)
    except (HookError, OSError) as error:
        return str(report.explain(as_hook_error("cannot remove it", error)))
    return "it has a live task, and is on no record" if is_there else None
