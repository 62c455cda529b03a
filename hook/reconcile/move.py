# SPDX-License-Identifier: Apache-2.0
"""Moves a container's threads into its group: what reconcile, watch and jobs share.

A mover also gets the threads of a program that forks and exits faster than one look. Each look reads all threads of the
cgroup at once and moves each thread outside at once; a look and a move take some 0.1 ms. Children that a thread forks
after its move are in the group. A child of a fork that began before the move is outside, and appears only when the fork
ends; until then the parent runs in the kernel. So we stop only after a look that began after every moved thread was
seen asleep, gone, or in user mode: then no fork that began before the move is still running. That can take any time (a
parent of vfork waits for its child), so each mover takes one step first, and `move_until` waits for all of them
together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from hook import rare, system
from hook.context import Context
from hook.errors import GONE, WRONG_CTRL_GROUP, HookError, Reason
from hook.models import Member
from hook.node import files, processes, records
from hook.node.processes import Groups, find_ctrl_group

_STEP = 0.2  # seconds for the moves of one step: a program can have any number of threads
_PAUSE, _LONGEST_PAUSE = 0.001, 0.05  # seconds between two looks while none is known to be outside
_USER_TIME = 5  # ticks: utime can grow by so many while the thread is still in the kernel; more proves user mode
_RUNS = "RD"  # states of a thread: it runs, or waits in the kernel, for memory for example


CountLate = Callable[[int, list[str]], object]


class Place(NamedTuple):
    """A monitored container: its key, its ID, and its record."""

    key: str
    container: str
    member: Member


class Source(NamedTuple):
    """Where a mover finds the threads of its container."""

    read: Callable[[], Collection[int]]  # returns those that may be outside
    others: Mapping[int, int] = {}  # the processes that are not in its own cgroup, if it has one: start times, by pid
    # Whether nothing is moved unless the container's init is alive and in the group: createRuntime's last step.
    needs_init: bool = False


class Mover:
    """Moves the threads of one container into its group, step by step."""

    def __init__(self, context: Context, place: Place, source: Source, count_late: CountLate, groups: Groups) -> None:
        """Prepare to move threads. `count_late` gets each that was moved, with its `stat_fields`."""
        self.member = place.member
        self.moved = 0  # threads, since `take_count`
        self.outside = 0  # threads that the last look found outside
        self.has_moved = False  # whether the last look moved any
        self.has_ended = False
        self.error: HookError | OSError | None = None  # what ended it
        # The moved threads that may still be in a fork that began before, with their user time at the move, in ticks.
        self.forking: dict[int, int] = {}
        self._context = context
        self._source = source
        self._count_late = count_late
        self._own_cgroup = processes.find_own_cgroup(place.container, place.member)
        self._groups = groups
        self._shows_groups = system.resctrl_groups(place.member.pid) is not None
        self._settled: set[int] = set()  # the threads that are in the group, or stay where they are

    def step(self, tids: Collection[int] | None = None) -> bool:
        """Look once, or just at the threads `tids`, and move those outside; return whether the mover has ended.

        It ends when no thread is outside and none can appear there, or with an `error`: the kernel refuses, or, as
        WRONG_CTRL_GROUP, the container's init is in another ctrl_group. Threads in another ctrl_group, and those in
        another tool's group, stay there.
        """
        try:
            # Before the look, which then shows all their children.
            self.forking = {tid: since for tid, since in self.forking.items() if _may_fork(tid, since)}
            if tids is not None:
                self._settled.difference_update(tids)
            self._move_all(self._source.read() if tids is None else tids)
        except (HookError, OSError) as error:
            is_gone = isinstance(error, HookError) and error.kind in GONE
            self.error = None if is_gone and system.is_dead(self.member.pid, self.member.starttime) else error
            self.has_ended = True
        else:
            self.has_ended = not (self.outside or self.has_moved or self.forking)
        return self.has_ended

    def take_count(self) -> int:
        """Return how many threads were moved since the last call."""
        moved, self.moved = self.moved, 0
        return moved

    @property
    def problem(self) -> HookError | OSError | None:
        """Why not all threads are in the group, if they are not, or may not be."""
        return self.error if self.has_ended else explain_outside(self.outside, self.moved, self.member.pid)

    def _move_all(self, tids: Collection[int]) -> None:
        """Move the threads among these that are outside. A thread that has ended by now counts as outside."""
        deadline = system.monotonic() + _STEP
        before = self.moved
        new = {*tids} - self._settled
        if len(new) > 1 or not self._shows_groups:
            # One read of the group shows which are inside. Read one by one, the last of many might end before its turn.
            self._settled |= self._context.resctrl.tasks(self.member.group) or set()
            # Else a task of another tool's group in the same ctrl_group could be moved.
            if new - self._settled and not self._shows_groups:
                self._settled |= self._groups.read_others().keys()
            new -= self._settled
        if new and self._source.needs_init and not self._has_init():
            new.clear()
        for tid in new:
            if self._move(tid):
                self._settled.add(tid)
            if system.monotonic() >= deadline:
                break
        self.has_moved = self.moved > before
        self.outside = len(new - self._settled)

    def _has_init(self) -> bool:
        """Whether the container's init is alive and in the group."""
        pid, starttime = self.member.pid, self.member.starttime
        return not system.is_dead(pid, starttime) and is_inside(self._context, pid, self.member.group)

    def _move(self, tid: int) -> bool:
        """Move a thread unless it is in the group or must stay; return False if it has ended.

        A thread that has ended may have another one under its number.

        The kernel takes a number. Its thread is the container's own if it started at the same time before we look whose
        it is and after the move.
        """
        group = self.member.group
        if self._shows_groups and locate(self._groups, tid, group) not in (OUTSIDE, None):
            return True
        before = system.stat_fields(f"{tid}/task/{tid}")
        if not self._is_ours(tid):
            return False
        try:
            self._context.resctrl.put(group, tid)
        except HookError as error:
            if error.kind == WRONG_CTRL_GROUP and tid != self.member.pid:
                return True
            if error.reason != Reason.TASK_GONE:
                raise
            return False
        after = system.stat_fields(f"{tid}/task/{tid}")
        if after is not None and (before is None or before[19] != after[19]):
            if not self._is_ours(tid):  # the next run brings it into the group of its own container
                with suppress(HookError):
                    self._context.resctrl.expel(group, tid)
            return False
        self.moved += 1
        if after is not None:
            self._count_late(tid, after)
            if after[0] in _RUNS and tid != system.process_id():  # this program does not fork while it moves
                self.forking[tid] = int(after[11])
        return True

    def _is_ours(self, tid: int) -> bool:
        """Whether a thread is in the member's own cgroup, or its path cannot be read, or it is one of the others'."""
        own, places = self._own_cgroup, system.cgroups(tid)
        is_inside = own is not None and (not places or any(processes.is_in_container(place, own) for place in places))
        if is_inside:
            return True
        process = system.try_call(processes.look_at, processes.read_status(tid, "Tgid"))
        return process is not None and self._source.others.get(process.pid) == process.starttime


def explain_outside(number: int, moved: int, pid: int | None = None) -> HookError:
    """Make the error that says that so many threads of a container are outside, or that some may be.

    `pid` is its init, if that is known.
    """
    threads = f"{number} of its threads are still" if number else "others of its threads may still be"
    problem = f"{threads} outside its group, after {moved} were moved in"
    hint = "it forks faster than its threads can be moved, or one is still in a fork; the next run looks again"
    if pid is not None and _is_frozen(pid):
        hint = "it is frozen, and one of its threads may be in a fork; the next run after it goes on looks again"
    return HookError(Reason.IO, problem, hint=hint)


def _is_frozen(pid: int) -> bool:
    """Whether a process is frozen with its cgroup: by the freezer of cgroup v1 its threads wait in the kernel (D)."""
    names = (name for name in system.cgroups(pid) if name.startswith("freezer:"))
    places = filter(None, (system.try_call(rare.cgroup_directory, name) for name in names))
    texts = (system.try_call(files.read_text, f"{place}/freezer.state", files.CONFIGURATION) for place in places)
    return any((text or "").startswith("FR") for text in texts)


def move_until(movers: Iterable[Mover], until: float) -> None:
    """Step these movers in turn until this time, each one until it ends."""
    waiting = [mover for mover in movers if not mover.has_ended]
    pause = _PAUSE
    while waiting and system.monotonic() < until:
        if any(mover.outside for mover in waiting):
            pause = _PAUSE
        else:
            system.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        for mover in waiting:
            mover.step()
            if system.monotonic() >= until:
                break
        waiting = [mover for mover in waiting if not mover.has_ended]


def _may_fork(tid: int, since: int) -> bool:
    """Whether a moved thread may still be in a fork that began before its move: no, if it sleeps or has ended.

    `since` is its user time at the move, in ticks. Source: proc_pid_stat(5), fields 3 and 14.
    """
    fields = system.stat_fields(f"{tid}/task/{tid}")
    return fields is not None and fields[0] in _RUNS and int(fields[11]) < since + _USER_TIME


# --- The group of a thread

INSIDE, OUTSIDE = "inside", "outside"


def read_groups(context: Context) -> Groups:
    """Read the groups of the node as they are now."""
    kernel, prefix = context.resctrl, context.options.group_prefix
    return Groups(kernel, prefix, lambda: records.list_recorded(context.run.list_states()))


def locate(groups: Groups, tid: int, path: str) -> str | None:
    """Return where a thread is, seen from a mon_group: INSIDE, OUTSIDE, or the path of a group where it must stay.

    A thread stays in a group of another tool, and in one of another ctrl_group. The answer is None if the thread has
    ended or the kernel does not show it.
    """
    place = groups.find(tid)
    if place is None or place == path:
        return place and INSIDE
    return OUTSIDE if is_of_parent(path, place) and not groups.is_others(place) else place


def is_inside(context: Context, tid: int, path: str) -> bool:
    """Whether a thread is in a mon_group, also on kernels without /proc/PID/cpu_resctrl_groups."""
    groups = system.resctrl_groups(tid)
    return context.resctrl.path(*groups) == path if groups is not None else tid in (context.resctrl.tasks(path) or ())


def is_of_parent(path: str, place: str) -> bool:
    """Whether a mon_group is in the ctrl_group that this group is, or is in."""
    return find_ctrl_group(path) == find_ctrl_group(place)
