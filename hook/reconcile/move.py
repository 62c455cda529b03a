# SPDX-License-Identifier: Apache-2.0
"""Moves a container's threads into its group, and counts what they had used before.

Reconcile, watch and jobs share this. A mover looks and moves until a look finds no thread outside.
Each look reads all threads of the cgroup at once, and each thread outside is moved at once; both
take some 0.1 ms. So it also gets a program that lives as a chain of processes of a few milliseconds
each: what a thread forks after its move is in the group. Each mover is started first; then `finish`
steps those that have not ended in turn.

A child of a fork that began before its parent's move is outside, and appears only when the fork
ends, which can take any time (a parent of vfork waits for its child). We do not wait for that: the
next look of reconcile or watch finds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from hook import host, store, system
from hook.errors import GONE, WRONG_CTRL_GROUP, HookError, Reason
from hook.key import settle
from hook.models import Member
from hook.node import files, processes, records
from hook.node.models import ReconcileRecord
from hook.node.processes import Groups, find_ctrl_group
from hook.store import RunDir
from hook.validation import replace

if TYPE_CHECKING:
    from hook.context import Context

_SECONDS = 0.2  # for the moves of a container: a program can have any number of threads
_PAUSE = 0.001  # seconds before the look after the last move, in which most forks end

_MOST_REMEMBERED = 4096  # threads
# The most of models.Seconds: what a damaged record has beyond it starts from 0 again.
_SECONDS_FULL = 1e12

CountLate = Callable[[int, list[str]], object]


class Place(NamedTuple):
    """A monitored container: its key, its ID, and its record."""

    key: str
    container: str
    member: Member


class Source(NamedTuple):
    """Where a mover finds the threads of its container."""

    read: Callable[[], Collection[int]]  # returns those that may be outside
    # The processes that are not in its own cgroup, if it has one: start times, by pid.
    others: Mapping[int, int] = {}
    # Whether nothing is moved unless the container's init is alive and in the group:
    # createRuntime's last step.
    needs_init: bool = False


class Mover:
    """Moves the threads of one container into its group, step by step."""

    def __init__(
        self, context: Context, place: Place, source: Source, count_late: CountLate, groups: Groups
    ) -> None:
        """Prepare to move threads.

        `count_late` gets each that was moved, with its `stat_fields`.
        """
        self.member = place.member
        self.moved = 0  # threads, since `take_count`
        self.outside = 0  # threads that the last look found outside
        self.has_ended = False
        self.seconds = 0.0  # that the start, or the last step, took
        self.error: HookError | OSError | None = None  # what ended it
        self._context = context
        self._source = source
        self._count_late = count_late
        self._own_cgroup = processes.find_own_cgroup(place.container, place.member)
        self._groups = groups
        self._shows_groups = system.resctrl_groups(place.member.pid) is not None
        self._settled: set[int] = set()  # the threads that are in the group, or stay where they are

    def step(self, tids: Collection[int] | None = None, until: float = math.inf) -> bool:
        """Look once, or just at the threads `tids`, and move those outside;
        return whether the mover has ended.

        It moves until this time, and for 0.2 s at most. It ends when a look finds no thread
        outside, or with an `error`: the kernel refuses, or, as WRONG_CTRL_GROUP, the container's
        init is in another ctrl_group. Threads in another ctrl_group, and those in another tool's
        group, stay there.
        """
        began = system.monotonic()
        try:
            if tids is not None:
                self._settled.difference_update(tids)
            threads = self._source.read() if tids is None else tids
            has_moved = self._move_all(threads, min(began + _SECONDS, until))
        except (HookError, OSError) as error:
            is_gone = isinstance(error, HookError) and error.kind in GONE
            self.error = (
                None
                if is_gone and system.is_dead(self.member.pid, self.member.starttime)
                else error
            )
            self.has_ended = True
        else:
            self.has_ended = not (self.outside or has_moved)
        self.seconds = system.monotonic() - began
        return self.has_ended

    def start(self) -> None:
        """Take the first step and, unless it left threads outside, look again:
        most movers have ended then.
        """
        began = system.monotonic()
        if not self.step() and not self.outside:
            system.sleep(_PAUSE)
            self.step(until=began + _SECONDS)
        self.seconds = system.monotonic() - began

    def take_count(self) -> int:
        """Return how many threads were moved since the last call."""
        moved, self.moved = self.moved, 0
        return moved

    @property
    def problem(self) -> HookError | OSError | None:
        """What ended it, or how many threads its last look left outside, if it left any."""
        if self.has_ended or not self.outside:
            return self.error
        return explain_outside(self.outside, self.moved, self.member.pid)

    def _move_all(self, tids: Collection[int], until: float) -> bool:
        """Move the threads among these that are outside; return whether it moved any.

        A thread that has ended by now counts as outside.
        """
        before = self.moved
        new = {*tids} - self._settled
        if len(new) > 1 or not self._shows_groups:
            # One read of the group shows which are inside. Read one by one,
            # the last of many might end before its turn.
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
            if system.monotonic() >= until:
                break
        self.outside = len(new - self._settled)
        return self.moved > before

    def _has_init(self) -> bool:
        """Whether the container's init is alive and in the group."""
        pid, starttime = self.member.pid, self.member.starttime
        return not system.is_dead(pid, starttime) and is_inside(
            self._context, pid, self.member.group
        )

    def _move(self, tid: int) -> bool:
        """Move a thread unless it is in the group or must stay; return False if it has ended.

        A thread that has ended may have another one under its number.

        The kernel takes a number. Its thread is the container's own if it started at the same time
        before we look whose it is and after the move.
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
        return True

    def _is_ours(self, tid: int) -> bool:
        """Whether a thread is in the member's own cgroup, or its path cannot be read,
        or it is one of the others'.
        """
        own, places = self._own_cgroup, system.cgroups(tid)
        is_inside = own is not None and (
            not places or any(processes.is_in_container(place, own) for place in places)
        )
        if is_inside:
            return True
        process = system.try_call(processes.look_at, processes.read_status(tid, "Tgid"))
        return process is not None and self._source.others.get(process.pid) == process.starttime


def explain_outside(number: int, moved: int, pid: int | None = None) -> HookError:
    """Make the error that says how many threads of a container are outside.

    `pid` is its init, if that is known.
    """
    problem = f"{number} of its threads are still outside its group, after {moved} were moved in"
    hint = (
        "it has too many threads, or forks faster than they can be moved; the next run looks again"
    )
    if pid is not None and _is_frozen(pid):
        hint = "it is frozen; the next run looks again"
    return HookError(Reason.IO, problem, hint=hint)


def _is_frozen(pid: int) -> bool:
    """Whether a process is frozen with its cgroup:
    by the freezer of cgroup v1 its threads wait in the kernel (D).
    """
    names = (name for name in system.cgroups(pid) if name.startswith("freezer:"))
    places = filter(None, (system.try_call(host.cgroup_directory, name) for name in names))
    texts = (
        system.try_call(files.read_text, f"{place}/freezer.state", files.CONFIGURATION)
        for place in places
    )
    return any((text or "").startswith("FR") for text in texts)


def finish(movers: Collection[Mover], longest: float = math.inf) -> None:
    """Step these movers in turn until each has ended.

    They have what each of them has left of 0.2 s, together, and at most `longest`. A mover that has
    not ended then leaves the rest to the next look.
    """
    waiting = [mover for mover in movers if not mover.has_ended]
    until = system.monotonic() + min(
        longest, sum(max(0.0, _SECONDS - mover.seconds) for mover in waiting)
    )
    while waiting and system.monotonic() < until:
        if not any(mover.outside for mover in waiting):
            system.sleep(_PAUSE)
        for mover in waiting:
            mover.step(until=until)
            if system.monotonic() >= until:
                break
        waiting = [mover for mover in waiting if not mover.has_ended]


# --- The group of a thread

INSIDE, OUTSIDE = "inside", "outside"


def read_groups(context: Context) -> Groups:
    """Read the groups of the node as they are now."""
    kernel, prefix = context.resctrl, context.options.group_prefix
    return Groups(kernel, prefix, lambda: records.list_recorded(store.list_states(context.run)))


def locate(groups: Groups, tid: int, path: str) -> str | None:
    """Return where a thread is, seen from a mon_group: INSIDE, OUTSIDE,
    or the path of a group where it must stay.

    A thread stays in a group of another tool, and in one of another ctrl_group. The answer is None
    if the thread has ended or the kernel does not show it.
    """
    place = groups.find(tid)
    if place is None or place == path:
        return place and INSIDE
    return OUTSIDE if is_of_parent(path, place) and not groups.is_others(place) else place


def is_inside(context: Context, tid: int, path: str) -> bool:
    """Whether a thread is in a mon_group, also on kernels without /proc/PID/cpu_resctrl_groups."""
    groups = system.resctrl_groups(tid)
    return (
        context.resctrl.path(*groups) == path
        if groups is not None
        else tid in (context.resctrl.tasks(path) or ())
    )


def is_of_parent(path: str, place: str) -> bool:
    """Whether a mon_group is in the ctrl_group that this group is, or is in."""
    return find_ctrl_group(path) == find_ctrl_group(place)


# --- What threads had used before they were moved


class LateCpu:
    """The CPU seconds of threads before they were moved, until they are on record."""

    def __init__(self) -> None:
        self.by_key: dict[str, float] = {}  # what is in no record yet
        self._unsummed = 0.0  # what is in the records of keys, and not in reconcile.json yet
        # By thread (its number and start time), what the thread had used when it was moved.
        self._used: dict[tuple[int, int], float] = {}
        # When the last complete reconcile looked, and of which containers it left threads outside.
        self._looked_at = 0.0
        self._left_outside: Collection[str] = ()

    def note_last_look(self, run: RunDir) -> ReconcileRecord:
        """Read from the record of reconcile what `limit` asks for; return the record."""
        last = records.read_reconciled(run)
        is_of_this_boot = last.looked_at <= system.boottime()
        self._looked_at, self._left_outside = (
            (last.looked_at if is_of_this_boot else 0.0),
            last.outside.keys(),
        )
        return last

    def limit(self, container: str) -> float:
        """Return the most CPU seconds that count as late for a thread older than the last look.

        That look, of a complete run, found the container's threads in its group, so their time was
        charged. A thread that has left the group since and comes back counts nothing: how much it
        had used by then is on no record. If that look left threads of the container outside, any
        may be one of them, and the time since then is the most that it can have used.
        """
        return system.boottime() - self._looked_at if container in self._left_outside else 0.0

    def count(self, key: str, seconds: float) -> None:
        """Count the CPU time that tasks had used before they were moved into a key's group."""
        if seconds:
            self.by_key[key] = self.by_key.get(key, 0.0) + seconds

    def count_thread(self, key: str, longest: float | None, tid: int, fields: list[str]) -> None:
        """Count the late CPU time of a thread with these `stat_fields` that was moved, once.

        `longest` is the most that counts of a thread older than the last look; if it is None,
        nothing counts.
        """
        born, used = int(fields[19]), (int(fields[11]) + int(fields[12])) / system.TICKS
        late = used - self._used.get((tid, born), 0.0)
        if len(self._used) >= _MOST_REMEMBERED:
            self._used.clear()
        self._used[tid, born] = used
        if longest is not None:
            is_new = born >= self._looked_at * system.TICKS
            self.count(key, max(0.0, late if is_new else min(late, longest)))

    def save(self, context: Context) -> None:
        """Add the late CPU times to the records of their keys, and their sum to reconcile.json.

        What cannot be written now, as while a hook holds the key's lock, waits for the next call.
        """
        run = context.run
        for key, seconds in [*self.by_key.items()]:
            with suppress(HookError, OSError), run.lock(key, system.monotonic()) as locked:
                if locked.state is not None:
                    late_cpu = (locked.state.late_cpu + seconds) % _SECONDS_FULL
                    settle(context, locked, replace(locked.state, late_cpu=late_cpu))
                self._unsummed += self.by_key.pop(key)
        if self._unsummed:
            with suppress(OSError):
                records.change_reconciled(run, self._add_unsummed)
                self._unsummed = 0.0

    def _add_unsummed(self, last: ReconcileRecord) -> dict[str, float]:
        return {"late_cpu": (last.late_cpu + self._unsummed) % _SECONDS_FULL}
