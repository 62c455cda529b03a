# SPDX-License-Identifier: Apache-2.0
"""Jobs: processes that are no containers, in the group of a key that their user names.

Each process of a job is a member of its key, as a container is, named by its pid and start time;
what it forks later is in the same group. They join by the steps of createRuntime, and leave by
those of poststop, so that what is written in the order of docs/design.md survives a kill here, too.
A call puts all of its processes into the group, or none.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from hook import identity, names, report, store, system, unmonitored
from hook.context import new_context, read_container
from hook.create import check_record, create_runtime
from hook.errors import GONE, HookError, Reason
from hook.key import remove_members, settle, write_end
from hook.models import Failure, Index, KeyState, Options
from hook.node import command, processes
from hook.node.processes import Process, Processes
from hook.rare import as_hook_error
from hook.reconcile.act import (
    LONGEST_KEY,
    bring_in,
    check_job_processes,
    lock_joining,
    lock_process,
)
from hook.reconcile.move import finish
from hook.reconcile.survey import Survey
from hook.resctrl import Resctrl
from hook.store import LockedKey, RunDir
from hook.validation import replace
from hook.words import explain

if TYPE_CHECKING:
    from hook.context import Context
    from hook.identity import Container, Key

_KERNEL_THREAD = 0x200000  # PF_KTHREAD, of the flags in proc_pid_stat(5)
SET_UP = 0.1
"""CPU seconds that a process may have used before `assign` and is not late:
Slurm's slurmstepd takes some hundredths to make a step ready.
"""
_PATIENCE = 2.0  # seconds, for a process that forks while its threads are moved out


def run(
    options: Options,
    name: str | None,
    words: list[str],
    labels: dict[str, str],
    *,
    is_strict: bool = False,
) -> NoReturn:
    """Put this process into the group of a job, of its own without a name,
    and let it execute the command.

    If this process cannot join, it executes the command all the same, unless it
    `is_strict`: then this raises what `assign` raises. Raises command.Unstartable; then it
    is in no group and on no record.
    """
    command.check_command(words[0])
    context, key, process = None, None, None
    try:
        found = find_processes([os.getpid()], options.history, labels)
        (process,) = found.values()  # asked later, /proc could hide why the command cannot start
        with open_node("run", options, name, {} if is_strict else found) as context:
            key = assign(context, name, dict.fromkeys(found, ""), labels, found)
    except Exception as error:
        if is_strict:
            raise
        report.write_line(f"run: {explain(error)}; {command.RUNS}", to_syslog=False)
    try:
        command.execute(words)
    except command.Unstartable:
        if context is not None and process and not isinstance(process, HookError):
            if key is not None:
                _undo(context, key, [process])
            _forget_failure(context, process)
            _print_complaints(context.run)
        raise


def assign(
    context: Context,
    name: str | None,
    outcomes: dict[int, str],
    labels: dict[str, str] | None = None,
    found: Mapping[int, Container | HookError] | None = None,
) -> str:
    """Put processes, with all their threads and children, into the group of a job; return its key.

    `outcomes` has their pids, and gets a word for each that is in the job. `found` has what
    `find_processes` found at the start of the call; without it they are found now. Without a name
    the first process names the key. Its ctrl_group is that of the job, or of a new one. Raises
    HookError and OSError: `bad_key`, `no_rmids`, `rmids_in_limbo`, `no_ctrl_group` (another class
    or another tool's group), `task_gone`, `usage` (no process that may join), others.
    """
    if name is not None:
        _check_key(context, name, labels or {})
    joining = _list_joining(found or find_processes(outcomes, context.options.history, labels))
    key = name if name is not None else joining[0].id
    if not context.resctrl.is_mounted():
        raise HookError(Reason.NOT_MOUNTED, "not mounted", root=context.resctrl.root)
    survey = Survey(context, around=[process.pid for process in joining])
    before = _Before(
        survey.states.get(key), survey.processes, _list_inside(context, survey.states.get(key))
    )
    ctrl_group = check_job_processes(survey, key, joining)
    joined: list[Container] = []
    try:
        for process in joining:
            with lock_joining(survey, process) as other_keys:
                state = context.run.glance(KeyState, key)
                is_member = state is not None and identity.is_member(
                    process, state.members.get(process.id)
                )
                process.is_late = not is_member and _has_run(survey, process.pid, before.inside)
                # Also of a member: what put it on record may have been killed before
                # it put it into the group.
                create_runtime(context, process, (key, "job"), ctrl_group, other_keys)
                if not is_member:
                    joined.append(process)
            outcomes[process.pid] = "was a member" if is_member else "joined"
            if not is_member:
                _bring_in(survey, key, process.id)
    except (HookError, OSError):
        if joined:
            _undo(context, key, joined, before)
        outcomes.update(dict.fromkeys((process.pid for process in joined), "failed"))
        raise
    # After the last one: what an earlier call could not do stays on record if this one fails.
    # Killed before it, reconcile finds that they are members.
    for process in joining:
        _forget_failure(context, process)
    if joined:
        context.run.count_run("job-monitored", len(joined))
    return key


def _forget_failure(context: Context, process: Container) -> None:
    """Remove the record of an earlier failure of this process, which is a member now, or ends."""
    if context.run.has(Failure, process.id):
        unmonitored.forget_failure(context, process.id, process)


def release(context: Context, name: str, outcomes: dict[int, str] | None = None) -> bool:
    """End a job at once: its groups go, also if its processes live.

    Returns False if there is none of this name.

    With `outcomes`, which gets a word for each of its pids that is a member, only these leave, as
    by their poststop, and what descends from them. What failed to join does not join later. Raises
    HookError (`bad_key`: the key is no job's; `usage`: a pid is in the group, and no member),
    OSError.
    """
    if not names.is_container_id(name):
        raise _bad_key(name)
    for process in store.list_records(context.run, Failure):
        parsed, failure = processes.parse_job_process(process), context.run.glance(Failure, process)
        is_of_job = failure is not None and (failure.key, failure.kind) == (name, "job")
        if (
            parsed
            and failure is not None
            and is_of_job
            and (outcomes is None or failure.pid in outcomes)
        ):
            with lock_process(context, *parsed):  # reconcile holds it while it tries again
                unmonitored.close(context, process)
    with context.run.lock(name, system.monotonic() + context.options.lock_timeout) as locked:
        state = locked.state
        if state is None:
            return False
        if state.kind != "job":
            raise HookError(Reason.BAD_KEY, "other kind", key=name, former=state.kind)
        # Of a completed job: an earlier call may have been killed before it removed the groups.
        if outcomes is None or state.completed_at is not None:
            return write_end(context, locked, by_order=True)
        _release_members(context, locked, state, outcomes)
    return True


def _release_members(
    context: Context, locked: LockedKey, state: KeyState, outcomes: dict[int, str]
) -> None:
    leaving = {name: member.pid for name, member in state.members.items() if member.pid in outcomes}
    tids, present = _list_inside(context, state), processes.look()
    staying = {name: member for name, member in state.members.items() if name not in leaving}
    present.add(staying.items())
    families = {
        name: present.list_threads(present.find_pids(member)) for name, member in staying.items()
    }
    dead = {
        state.members[name].pid for name in leaving if not present.is_alive(state.members[name])
    }
    for pid in outcomes:
        problem = f"process {pid} is no member of the job {state.key}"
        ancestor = next(
            (name for name, family in families.items() if pid in family and pid not in dead), None
        )
        if ancestor is not None:  # reconcile would bring it in again
            problem = (
                f"process {pid} descends from {ancestor}, a member of the job {state.key} that "
                "stays"
            )
            hint = (
                f"release process {staying[ancestor].pid} instead, or as well: all that descends "
                "from it leaves, too"
            )
            raise HookError(Reason.USAGE, problem, hint=hint)
        if pid in leaving.values():
            continue
        if pid in tids:
            raise HookError(
                Reason.USAGE,
                f"{problem}, and in its group: a member that has ended has left it behind",
            )
        context.run.complaints.append(
            HookError(Reason.TASK_GONE, f"{problem}: it has ended, or was released before")
        )
    _take_out(context, state, [*leaving])
    if leaving:
        remove_members(context, locked, [*leaving], stops=True)
    outcomes.update(dict.fromkeys(leaving.values(), "released"))


@contextmanager
def open_node(
    verb: str, options: Options, name: str | None, found: Mapping[int, Container | HookError] = {}
) -> Iterator[Context]:
    """Open the node, for a command on a job and on processes that shall join;
    print what is found broken on the way.

    A failure is logged, recorded for each of these processes, which `find_processes` found before,
    and raised. There is no record of what the caller has to change, nor of a process that is a
    member of a key; and a record has no key that is none.
    """
    context = None
    try:
        if system.user_id() != 0:
            raise HookError(
                Reason.DENIED, f"{verb} needs root", hint="call it as root, or with sudo"
            )
        processes.check_namespaces()
        context = new_context(Resctrl(options.resctrl_root), RunDir(options.run_dir), options)
        context.run.lock_error = "job locked"
        yield context
    except Exception as error:
        failure = as_hook_error("a file could not be read or written", error)
        is_bad = failure.reason == Reason.BAD_KEY
        run = context.run if context is not None else None
        if report.may_log(run, failure, verb if is_bad else name or verb):
            report.send_to_syslog(
                f"{verb} of {(name or 'a job')[:80]}: {failure.reason}: {explain(failure)}"
            )
        for process in (
            found.values() if failure.reason != Reason.USAGE and context is not None else ()
        ):
            if (
                context is not None
                and not isinstance(process, HookError)
                and not context.run.has(Index, process.id)
            ):
                key: Key | None = None if is_bad else (name or process.id, "job")
                report.write_record(context, report.make_failure(failure, verb, process, key))
        if run is not None and found:
            run.count_run("job-failed", len(found))
        raise
    finally:
        if context is not None:
            _print_complaints(context.run)


def _print_complaints(run: RunDir) -> None:
    """Print what was found broken on the way."""
    while run.complaints:
        report.write_line(f"warning: {explain(run.complaints.pop(0))}", to_syslog=False)


# --- What may join


def _bad_key(name: str, why: str = "") -> HookError:
    why = why or (
        f"it is not 1 to {LONGEST_KEY} of A-Z a-z 0-9 _ . + , - "
        "and the first of these a letter or a digit"
    )
    return HookError(Reason.BAD_KEY, f"{name[:80]!r} cannot be the key of a job: {why}")


def _check_key(context: Context, name: str, labels: dict[str, str]) -> None:
    """Raise HookError `bad_key` for a name that is none, or that is, or may be,
    a pod's or a container's.

    Also for the name of a job that runs with other labels: createRuntime does not look at a process
    that is in it. If all of that run is dead, this ends it.
    """
    if not names.is_container_id(name) or len(name) > LONGEST_KEY:
        raise _bad_key(name)
    if names.normalize_uid(name) is not None:
        raise _bad_key(name, "it is the UID of a pod")
    if names.is_engine_id(name.lower()):
        raise _bad_key(name, "it is the ID of a container")
    state, is_process = (
        context.run.glance(KeyState, name),
        processes.parse_job_process(name) is not None,
    )
    if state is not None and state.kind != "job" and not state.recovering:
        raise _bad_key(name, f"a {state.kind} on record has it")
    if not is_process and (context.run.has(Index, name) or context.run.has(Failure, name)):
        raise _bad_key(name, "a container on record has this ID")
    try:
        check_record((name, "job"), labels, state)
    except HookError as error:
        if error.kind != "other labels":
            raise
        if not _end_dead_run(context, name):
            error.reason = Reason.BAD_KEY  # without a retry: what runs is not over
            raise


def _end_dead_run(context: Context, name: str) -> bool:
    """End a job if its processes, and all that they have left behind, are dead.

    Returns whether it has ended.
    """
    with context.run.lock(name, system.monotonic() + context.options.lock_timeout) as locked:
        state = locked.state
        if state is None or state.completed_at is not None:
            return True
        members = state.members.values()
        is_dead = all(system.is_dead(member.pid, member.starttime) for member in members)
        return is_dead and not _list_inside(context, state) and write_end(context, locked)


def refuse_service(pids: Collection[int]) -> None:
    """Raise HookError `usage` about the main process of a service of systemd,
    if this call descends from it.

    $PPID in a prologue is a batch system's daemon:
    all that it starts from then on would be the job's.
    """
    ancestor = os.getppid()
    while ancestor > 1 and ancestor not in pids:
        fields = system.stat_fields(ancestor)
        ancestor = int(fields[1]) if fields is not None else 0
    for place in system.cgroups(ancestor) if ancestor > 1 else ():
        reading = (
            processes.read_threads(place, lambda _: True) if place.endswith(".service") else None
        )
        tids = reading.tids if reading is not None else ()
        if ancestor == min(tids, key=lambda tid: system.starttime(tid) or tid, default=0):
            problem = (
                f"process {ancestor} is the main process of {place.rpartition('/')[2]}, which "
                "makes this call"
            )
            hint = (
                "assign the process that becomes the job; --force assigns the service and all "
                "that it starts"
            )
            raise HookError(Reason.USAGE, problem, hint=hint)


def find_processes(
    pids: Iterable[int], history: str = "", labels: dict[str, str] | None = None
) -> dict[int, Container | HookError]:
    """Find the processes of a call, by pid, or why one may not join a job.

    Each call does this once, at its start, before it waits for anything:
    what has the number later may be another one.
    """
    found: dict[int, Container | HookError] = {}
    for pid in pids:
        try:
            found[pid] = _find(pid, history, labels)
        except HookError as error:
            found[pid] = error
    return found


def _list_joining(found: Mapping[int, Container | HookError]) -> list[Container]:
    """List the processes of a call. Raises the HookError of the first one that may not join."""
    joining: list[Container] = []
    for process in found.values():
        if isinstance(process, HookError):
            raise process
        joining.append(process)
    return joining


def _find(pid: int, history: str, labels: dict[str, str] | None) -> Container:
    """Return a live process as a member to be, with the history and the labels of its job.

    Raises HookError.
    """
    if pid == 1:
        raise HookError(Reason.USAGE, "process 1 cannot join a job: all others descend from it")
    fields = system.stat_fields(pid)
    if fields is None:
        raise HookError(Reason.TASK_GONE, f"there is no process {pid}")
    if system.is_over(fields):
        raise HookError(Reason.TASK_GONE, f"process {pid} has ended: it is a zombie")
    if int(fields[6]) & _KERNEL_THREAD:
        raise HookError(Reason.USAGE, f"{pid} is a kernel thread")
    leader = processes.read_status(pid, "Tgid")
    if leader not in (0, pid):
        raise HookError(Reason.USAGE, f"{pid} is a thread of process {leader}, and no process")
    process = read_container(processes.name_job_process(pid, int(fields[19])), pid, "", {}, [])
    process.history_file, process.job_labels = history, labels or {}
    if process.starttime != int(fields[19]):
        raise HookError(Reason.TASK_GONE, f"process {pid} has ended")
    return process


# --- In and out


def _has_run(survey: Survey, pid: int, inside: set[int]) -> bool:
    """Whether a process has used CPU time before it joins.

    This one is `run`, and has used none for its command.
    """
    return pid != os.getpid() and survey.processes.sum_cpu_time(pid, inside) > SET_UP


def _bring_in(survey: Survey, key: str, name: str) -> None:
    """Move the other threads of a member, and its children, into the group;
    what takes longer is left to reconcile.

    So is a group that is gone by now: the job was released at this moment,
    or another tool has removed it.
    """
    mover = bring_in(survey, key, name, None)
    if mover is None:
        return
    finish([mover])
    error = mover.error
    if error is not None and not (isinstance(error, HookError) and error.kind in GONE):
        raise error


class _Before(NamedTuple):
    """What there was before a call: the state of its key, the processes,
    and the threads in the groups of the key.
    """

    state: KeyState | None
    processes: Processes
    inside: set[int]

    def had_inside(self, tid: int, process: Process, present: Processes) -> bool:
        """Whether a thread of a process was in a group of the key,
        or a thread that was has started it since.
        """
        at: Process | None = process
        if tid != process.pid and not self.processes.is_newer(tid):
            return tid in self.inside
        passed = set[int]()
        while (
            at is not None
            and at.pid not in passed
            and at.starttime > self.processes.boottime * system.TICKS - 1
        ):
            passed.add(at.pid)
            at = present.by_pid.get(at.parent)
        return at is not None and at.pid in self.inside


def _list_inside(context: Context, state: KeyState | None) -> set[int]:
    groups = state.groups if state is not None else []
    return {tid for group in groups for tid in context.resctrl.tasks(group.path) or ()}


def _undo(
    context: Context, key: str, joined: list[Container], before: _Before | None = None
) -> None:
    """Take processes out of a job again, and its group if nothing is left in it.

    A failure is a complaint.

    What was in the group `before` stays there,
    as a member's child that this call has made a member, too.
    """
    try:
        with context.run.lock(key, system.monotonic() + context.options.lock_timeout) as locked:
            state = locked.state
            if state is None or state.completed_at is not None:
                return
            ours = [
                process.id
                for process in joined
                if identity.is_member(process, state.members.get(process.id))
            ]
            _take_out(context, state, ours, before)
            others = {name: member for name, member in state.members.items() if name not in ours}
            if (
                before is not None
                and before.state is not None
                and before.state.completed_at is None
            ):
                # No member of before has left.
                settle(context, locked, replace(state, members=others), ours)
            elif ours:
                remove_members(context, locked, ours)
    except (HookError, OSError) as error:  # reconcile drops them once they are dead
        context.run.complain("a failed start could not be undone", error)


def _take_out(
    context: Context, state: KeyState, leaving: list[str], before: _Before | None = None
) -> None:
    """Move members, with their threads and what descends from them, out of their group,
    but what was in it `before`.

    The caller takes them off the record then: killed in between, reconcile moves them in again.
    """
    deadline, is_whole = system.monotonic() + _PATIENCE, not leaving
    while not is_whole and system.monotonic() < deadline:
        # What they have forked since is in the next look.
        present, is_whole = (
            processes.look(around=[state.members[name].pid for name in leaving]),
            True,
        )
        present.add(state.members.items())
        for member in map(state.members.__getitem__, leaving):
            inside = context.resctrl.tasks(member.group) or set()
            for process in map(present.by_pid.__getitem__, present.find_pids(member)):
                for tid in present.list_threads([process.pid]) & inside:
                    if before is not None and before.had_inside(tid, process, present):
                        continue
                    with suppress(HookError):
                        context.resctrl.expel(member.group, tid)
                        is_whole = False
