# SPDX-License-Identifier: Apache-2.0
"""Moves a container's threads into its group, also of a program that forks and exits faster than one look.

Each look reads all threads of the cgroup at once, and each thread outside is moved at once. A look and a move take some
0.1 ms. Children that a thread forks after its move are in the group. A child of a fork that began before the move is
outside, and appears only when the fork ends; until then the parent runs in the kernel. So the chase ends with a look
that begins after each moved thread has slept, ended, or run in user mode.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from hook.base import procfs, system
from hook.base.container_tasks import cpu_seconds
from hook.base.errors import HookError, Reason
from hook.base.explain import WrongCtrlGroup
from hook.base.models import Member
from hook.stages.entry import Context

_FIRST_LOOK = 10.0  # seconds to move the threads of the first look, which may be thousands
_CHASE = 0.2  # seconds for all further looks, ...
_SETTLING = 0.5  # ... if only a fork that began before a move may not have ended yet, ...
_LOOKS = 20  # ... unless so many looks take longer, on a busy machine, ...
_LONGEST = 1.0  # ... and then at most so many seconds
_PAUSE = 0.001
_USER_TIME = 5  # ticks: the kernel counts time in itself as user time until a tick has met the thread there


class StillOutside(HookError):
    """Threads of a container are still outside its group; `number` says how many."""

    def __init__(self, number: int, moved: int) -> None:
        problem = f"{number} of its threads are still outside its group, after {moved} were moved in"
        hint = "it forks faster than its threads can be moved; the next run tries again"
        super().__init__(Reason.IO, problem, hint=hint)
        self.number = number


class Chase:
    """A chase of one container's threads. `moved`: their number; `outside`: how many were outside at the last look.

    `late_cpu`: CPU seconds that threads had used before they were moved.
    """

    def __init__(self, context: Context, member: Member) -> None:
        self.moved = self.outside = 0
        self.late_cpu = 0.0
        self._context = context
        self._member = member
        self._shows_groups = procfs.resctrl_groups(member.pid) is not None
        self._settled: set[int] = set()  # the threads that are in the group, or stay where they are
        self._running: dict[int, int] = {}  # moved threads that may still be in a fork, with their user time

    def run(self, read: Callable[[], Collection[int]]) -> None:
        """Look and move until no thread is outside. `read` returns the container's present threads.

        HookError: the kernel refuses. WrongCtrlGroup: the container's init is in another ctrl_group. Other threads in
        another ctrl_group, and those in another tool's group, stay there.
        """
        self.move(read())
        began = system.monotonic()
        looks = 0
        has_moved, may_fork = bool(self.moved), False
        while self.outside or has_moved or may_fork:
            seconds = system.monotonic() - began
            limit = _CHASE if self.outside or has_moved else _SETTLING
            if seconds >= _LONGEST or (seconds >= limit and looks >= _LOOKS):
                break
            if not self.outside:
                system.sleep(_PAUSE)
            before = self.moved
            may_fork = self._may_fork()  # read before the look, which then shows all their children
            self.move(read(), began + _LONGEST)
            looks += 1
            has_moved = self.moved > before

    def move(self, tids: Collection[int], deadline: float | None = None) -> None:
        """Move those of these threads that are outside. One that has ended by now counts as outside."""
        deadline = deadline or system.monotonic() + _FIRST_LOOK
        new = {*tids} - self._settled
        if len(new) > 1 or not self._shows_groups:
            # One read of the group shows which are inside. Read one by one, the last of many might end before its turn.
            self._settled |= self._context.resctrl.tasks(self._member.group) or set()
            new -= self._settled
        for tid in new:
            if self._move(tid):
                self._settled.add(tid)
            if system.monotonic() >= deadline:
                break
        self.outside = len(new - self._settled)

    def _move(self, tid: int) -> bool:
        """Move a thread unless it is in the group, or must stay. False: it has ended."""
        group = self._member.group
        if locate(self._context, tid, group) in ("inside", "elsewhere"):
            return True
        try:
            self._context.resctrl.put(group, tid)
        except WrongCtrlGroup:
            if tid == self._member.pid:
                raise
            return True
        except HookError as error:
            if error.reason != Reason.TASK_GONE:
                raise
            return False
        self.moved += 1
        self.late_cpu += cpu_seconds(tid)
        if (user_time := _read_user_time(tid)) is not None:
            self._running[tid] = user_time
        return True

    def _may_fork(self) -> bool:
        """Whether a thread that was moved may still be busy with a fork that it began before."""
        times = ((tid, since, _read_user_time(tid)) for tid, since in self._running.items())
        self._running = {tid: since for tid, since, now in times if now is not None and now < since + _USER_TIME}
        return bool(self._running)


def _read_user_time(tid: int) -> int | None:
    """The user time of a thread that runs, in ticks; None: it sleeps or has ended, so that it is not in a fork.

    Source: proc_pid_stat(5), fields 3 and 14; R: runs, D: waits in the kernel, for memory for example.
    """
    fields = procfs.stat_fields(f"{tid}/task/{tid}")
    return int(fields[11]) if fields is not None and fields[0] in "RD" else None


def count_late_cpu(context: Context, key: str, seconds: float) -> None:
    """Count the CPU time that tasks had used before they were moved into a key's group."""
    if seconds:
        context.late_cpu[key] = context.late_cpu.get(key, 0.0) + seconds


# --- The group of a thread, by its /proc/PID/cpu_resctrl_groups


def locate(context: Context, tid: int, path: str) -> str | None:
    """Where a thread is, seen from a mon_group: `inside`, `outside`, or `elsewhere`, from where it is not moved in.

    That is in another ctrl_group, or in a group of another tool. None: it has ended, or the kernel does not show it.
    """
    groups = procfs.resctrl_groups(tid)
    if groups is None:
        return None
    ctrl_group, mon_group = groups
    if mon_group and context.resctrl.path(ctrl_group, mon_group) == path:
        return "inside"
    is_free = not mon_group or mon_group.startswith(context.options.group_prefix)
    return "outside" if is_free and is_of_parent(context, path, ctrl_group) else "elsewhere"


def is_inside(context: Context, tid: int, path: str) -> bool:
    """Whether a thread is in a mon_group, also on kernels without /proc/PID/cpu_resctrl_groups."""
    place = locate(context, tid, path)
    return place == "inside" if place is not None else tid in (context.resctrl.tasks(path) or ())


def is_of_parent(context: Context, path: str, ctrl_group: str) -> bool:
    """Whether a mon_group is in this ctrl_group."""
    return context.resctrl.path(ctrl_group, "").rstrip("/") == path.rpartition("/")[0]
