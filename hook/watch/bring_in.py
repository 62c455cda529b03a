# SPDX-License-Identifier: Apache-2.0
"""Moves a process that exec brought into a container, and what it forked meanwhile, into the container's group.

The rules are those of reconcile: only what is in the container's own cgroup, in no group of another tool, and in the
ctrl_group of the container's group. No lock is taken, so no hook ever waits for this. A container counts once its init
is in its group, which is the last step of createRuntime: a start in flight is left to its hook, a container on its way
out to its poststop, and a group that another tool removed to reconcile.
"""

from __future__ import annotations

from hook.base import container_tasks, procfs, system
from hook.base.reasons import GroupGone, WrongCtrlGroup
from hook.reconcile.move_in import add_late, move

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.stages.context import Node
    from hook.watch.index import Index, Place

_SECONDS = 0.5
"""How long one exec may take: a process that forks faster than it can be followed is left to reconcile."""


def bring_in(node: Node, index: Index, pid: int) -> int:
    """Move a process in, if it belongs into a group and is in none. Returns the number of threads moved.

    Raises HookError if the kernel refuses.
    """
    place = index.find(procfs.cgroups(pid))
    if place is None or _is_in(node, pid, place.member.group) or not _is_in_place(node, place):
        return 0
    # The process first, and then what else there is of it: until it is in, it runs uncharged.
    if not _move(node, place, pid):
        return 0
    moved = 1
    deadline = system.monotonic() + _SECONDS
    waiting = [pid]
    while waiting and system.monotonic() < deadline:
        at = waiting.pop()
        if index.find(procfs.cgroups(at)) != place:
            continue
        moved += _move_threads(node, place, at, deadline)
        # All its threads are in by now: what it forks from now on is in the group, too.
        waiting += container_tasks.list_children(at, container_tasks.list_threads(at))
    return moved


def _is_in_place(node: Node, place: Place) -> bool:
    """Whether a container's init lives, and is in its group."""
    member = place.member
    return not procfs.is_dead(member.pid, member.starttime) and _is_in(node, member.pid, member.group)


def _is_in(node: Node, tid: int, path: str) -> bool:
    """Whether a thread is in a group."""
    groups = procfs.resctrl_groups(tid)
    if groups is None:  # the kernel does not show it
        return tid in (node.resctrl.tasks(path) or ())
    return groups[1] != "" and node.resctrl.path(*groups) == path


def _move_threads(node: Node, place: Place, pid: int, deadline: float) -> int:
    """Move the threads of a process that are outside, until none is new."""
    moved = 0
    seen: set[int] = set()
    while system.monotonic() < deadline:
        new = container_tasks.list_threads(pid) - seen
        if not new:
            break
        seen |= new
        moved += sum(_move(node, place, tid) for tid in new if not _is_in(node, tid, place.member.group))
    return moved


def _move(node: Node, place: Place, tid: int) -> bool:
    used = procfs.cpu_seconds(tid)
    try:
        if not move(node, place.member, tid):
            return False
    except (GroupGone, WrongCtrlGroup):  # removed, or its ctrl_group changed meanwhile: reconcile repairs it
        return False
    add_late(node, place.key, used)
    return True
