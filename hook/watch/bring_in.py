# SPDX-License-Identifier: Apache-2.0
"""Moves a process that exec brought into a container, and what it forked meanwhile, into the container's group.

The rules are those of reconcile: only what is in the container's own cgroup, in no group of another tool, and in the
ctrl_group of the container's group. No lock is taken, so no hook ever waits for this. A container counts once its init
is in its group, which is the last step of createRuntime: a start in flight is left to its hook, a container on its way
out to its poststop, and a group that another tool removed to reconcile.
"""

from __future__ import annotations

from dataclasses import dataclass

from hook.base import cgroup_threads, container_tasks, procfs, system
from hook.base.errors import HookError
from hook.base.reasons import GroupGone, Reason, WrongCtrlGroup
from hook.reconcile.chase import Chase
from hook.reconcile.move_in import add_late
from hook.reconcile.survey import is_in, may_move

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.base.cgroup_threads import Reading
    from hook.stages.context import Context
    from hook.watch.index import Index, Place

_SECONDS = 0.5
"""How long one exec may take: a process that forks faster than it can be followed is left to reconcile."""


@dataclass
class Exec:
    """What became of one exec. `moved`: how many threads; `place`: the container that it is in, if it is in one.

    `has_vanished`: the process, or some of what it forked, ended before it was looked at. Then what it had forked by
    that time may live on, and no event names it; without a `place` it may be in any container.
    """

    moved: int = 0
    place: Place | None = None
    has_vanished: bool = False


def bring_in(context: Context, index: Index, pid: int) -> Exec:
    """Move a process in, if it belongs into a group and is in none. Raises HookError if the kernel refuses."""
    places = procfs.cgroups(pid)
    if not places:
        return Exec(has_vanished=True)
    place = index.find(places)
    if place is None or _is_in(context, pid, place.member.group) or not is_in_place(context, place):
        return Exec()
    found = Exec(place=place)
    # The process first, and then what else there is of it: until it is in, it runs uncharged.
    _move(context, found, place, pid)
    deadline = system.monotonic() + _SECONDS
    waiting = [pid] if found.moved else []
    while waiting and system.monotonic() < deadline:
        at = waiting.pop()
        if index.find(procfs.cgroups(at)) != place:
            continue
        _move_threads(context, found, place, at, deadline)
        # All its threads are in by now: what it forks from now on is in the group, too.
        waiting += container_tasks.list_children(at, container_tasks.list_threads(at))
    # What a dead process had forked before it was moved is no child of its any more.
    found.has_vanished = found.has_vanished or bool(found.moved and procfs.is_dead(pid))
    return found


def chase(context: Context, index: Index, place: Place) -> tuple[int, int]:
    """Move all that is in a container's own cgroup in. Returns how many threads were moved, and are still outside.

    Raises HookError if the kernel refuses.
    """
    if not is_in_place(context, place):
        return 0, 0
    found = Chase(context, place.member)
    try:
        found.run(lambda: read_threads(index, place))
    except (GroupGone, WrongCtrlGroup):  # removed, or its ctrl_group changed meanwhile: reconcile repairs it
        pass
    add_late(context, place.key, found.late_cpu)
    return found.moved, found.outside


def read_threads(index: Index, place: Place) -> Reading | None:
    """The threads in a container's own cgroup."""
    cgroup = place.member.cgroup
    return cgroup_threads.read_threads(cgroup, lambda below: index.find([below]) != place) if cgroup else None


def is_in_place(context: Context, place: Place) -> bool:
    """Whether a container's init lives, and is in its group."""
    member = place.member
    return not procfs.is_dead(member.pid, member.starttime) and _is_in(context, member.pid, member.group)


def _is_in(context: Context, tid: int, path: str) -> bool:
    """Whether a thread is in a group."""
    groups = procfs.resctrl_groups(tid)
    if groups is None:  # the kernel does not show it
        return tid in (context.resctrl.tasks(path) or ())
    return is_in(context, groups, path)


def _move_threads(context: Context, found: Exec, place: Place, pid: int, deadline: float) -> None:
    """Move the threads of a process that are outside, until none is new."""
    seen: set[int] = set()
    while system.monotonic() < deadline:
        new = container_tasks.list_threads(pid) - seen
        if not new:
            break
        seen |= new
        for tid in new:
            if not _is_in(context, tid, place.member.group):
                _move(context, found, place, tid)


def _move(context: Context, found: Exec, place: Place, tid: int) -> None:
    used = procfs.cpu_seconds(tid)
    try:
        if not may_move(context, tid, place.member.group):
            return
        context.resctrl.put(place.member.group, tid)
    except (GroupGone, WrongCtrlGroup):  # removed, or its ctrl_group changed meanwhile: reconcile repairs it
        return
    except HookError as error:
        if error.reason != Reason.TASK_GONE:
            raise
        found.has_vanished = True
        return
    found.moved += 1
    add_late(context, place.key, used)
