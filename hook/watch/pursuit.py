# SPDX-License-Identifier: Apache-2.0
"""Moves a process that entered a container by exec, and the children that it forked, into the container's group.

The rules are those of reconcile: a thread is moved if it is in the container's own cgroup, in no group of another tool,
and in the ctrl_group of the container's group. No lock is taken, so no hook ever waits for this. A container counts
while its init is in its group, which is the last step of createRuntime. So its hook handles a container that starts,
its poststop one that ends, and reconcile a group that another tool removed.

A process is moved as soon as its exec is known. Its container is chased (reconcile/chase) a moment later, because a
child that the process was just forking appears only then; or at once, if part of the process ended before it was moved.
If the process is gone before its container is known, the cgroups of all containers are read: some 30 us for each, and
15 us for each thread that is new since the last time. These reads take at most a twentieth of the time; a further one
waits until it is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hook.base import cgroups, container_tasks, names, procfs, system
from hook.base.errors import HookError
from hook.base.explain import GroupGone, WrongCtrlGroup
from hook.base.models import KeyState, Member
from hook.reconcile.chase import Chase, StillOutside, count_late_cpu, is_in, is_inside
from hook.stages.entry import Context
from hook.state import records

_SHARE = 20
_SETTLING = 0.01  # seconds
_SECONDS = 0.2  # at most for one look at the containers; the next look goes on from there
_REMEMBERED = 60.0  # seconds to remember which threads are inside; then each is read again, since IDs are reused
_MOST_KEPT = 4096


@dataclass(frozen=True)
class Place:
    """A monitored container: its key, its ID, and its record."""

    key: str
    container: str
    member: Member


class Pursuit:
    """The search for containers' threads outside their groups.

    `moved`: the number of threads moved; `failed`: how often a container could not be brought in whole.
    """

    def __init__(self, context: Context, say: Callable[[str], object]) -> None:
        self.moved = self.failed = 0
        self._context = context
        self._say = say
        self._looks_at_all = False
        self._due = 0.0
        self._waiting: dict[str, Place] = {}
        self._inside: dict[str, set[int]] = {}
        self._forget_at = 0.0
        self._version = 0
        self._found: dict[tuple[str, ...], Place | None] = {}

    def bring_in(self, pid: int) -> None:
        """Move a process into its container's group, if it has one and is outside. HookError: the kernel refuses."""
        places = procfs.cgroups(pid)
        if not places:
            self.look_at_all()
            return
        place = self.find(places)
        if place is None or is_inside(self._context, pid, place.member.group) or not self._is_in_place(place):
            return
        chase = Chase(self._context, place.member)
        try:
            chase.move({pid})
            has_vanished = chase.outside > 0
            chase.move(container_tasks.list_threads(pid))
        except (GroupGone, WrongCtrlGroup):  # removed, or its ctrl_group changed meanwhile: reconcile repairs it
            return
        self._count(place, chase)
        # The children of a process that died have another parent, so only its container's cgroup finds them.
        has_vanished = has_vanished or bool(chase.moved and procfs.is_dead(pid))
        now = system.monotonic()
        if has_vanished and now >= self._due:
            self._take_time(lambda: self._chase(place))
        elif has_vanished or chase.moved:
            if self.wait() is None:
                self._due = max(self._due, now + _SETTLING)
            self._waiting[place.container] = place

    def look_at_all(self) -> None:
        """Schedule a look at all containers."""
        self._looks_at_all = True

    def wait(self) -> float | None:
        """Seconds until a look is due; None: no look is scheduled."""
        return max(0.0, self._due - system.monotonic()) if self._looks_at_all or self._waiting else None

    def look(self) -> None:
        """Look at the containers that are due, and chase their threads outside."""
        self._take_time(self._look)

    def find(self, places: list[str]) -> Place | None:
        """The container whose own cgroup holds a process, the innermost one. `places`: as from procfs.cgroups.

        Nothing here grows with the node: a lookup reads the index entry and the record of one key. Its result is kept
        until the record of any key changes, which one stat(2) shows.
        """
        run = self._context.run
        version = records.version(run)
        if version != self._version or len(self._found) >= _MOST_KEPT:
            self._found.clear()
            self._version = version
        name = tuple(places)
        if name in self._found:
            return self._found[name]
        found = next((it for place in places for it in self._look_up(place)), None)
        if records.is_settled(run):
            self._found[name] = found
        return found

    def _look_up(self, cgroup: str) -> Iterator[Place]:
        run = self._context.run
        for name in reversed(cgroups.possible_ids(cgroup)):
            key = records.glance_index(run, name) if names.is_container_id(name) else None
            state = run.glance(KeyState, key) if key is not None else None
            # By the ID itself: a former life of it (names.former_life) is in the same cgroup.
            member = state.members.get(name) if state is not None else None
            own = member.cgroup if member is not None else None
            if key and member and own and cgroups.is_own(own, name) and cgroups.is_within(cgroup, own):
                yield Place(key, name, member)

    def _take_time(self, action: Callable[[], object]) -> None:
        began = system.monotonic()
        action()
        now = system.monotonic()
        self._due = now + _SHARE * (now - began)

    def _look(self) -> None:
        now = system.monotonic()
        if now >= self._forget_at:
            self._forget_at = now + _REMEMBERED
            self._inside.clear()
        if self._looks_at_all:
            self._looks_at_all = False
            self._waiting.update((it.container, it) for it in self._list_places())
        while self._waiting and system.monotonic() < now + _SECONDS:
            _, place = self._waiting.popitem()
            if self._has_new_outside(place):
                self._chase(place)

    def _list_places(self) -> Iterator[Place]:
        """All members of all keys that have a cgroup of their own."""
        for state in self._context.run.list_states():
            for container, member in state.members.items():
                if cgroups.is_own(member.cgroup, container):
                    yield Place(state.key, container, member)

    def _has_new_outside(self, place: Place) -> bool:
        """Whether a container's cgroup has a thread that is not known to be in its group."""
        tids = self._read_threads(place)
        outside = {tid for tid in tids - self._inside.get(place.container, set()) if not self._is_shown_in(tid, place)}
        self._inside[place.container] = tids - outside
        return bool(outside)

    def _is_shown_in(self, tid: int, place: Place) -> bool:
        groups = procfs.resctrl_groups(tid)
        return groups is not None and is_in(self._context, groups, place.member.group)

    def _read_threads(self, place: Place) -> set[int]:
        """The threads in a container's own cgroup."""
        found = container_tasks.read_threads(place.member.cgroup or "", lambda below: self.find([below]) != place)
        return found.tids if found is not None else set()

    def _is_in_place(self, place: Place) -> bool:
        """Whether a container's init lives, and is in its group."""
        member = place.member
        lives = not procfs.is_dead(member.pid, member.starttime)
        return lives and is_inside(self._context, member.pid, member.group)

    def _chase(self, place: Place) -> None:
        if not self._is_in_place(place):
            return
        chase = Chase(self._context, place.member)
        try:
            chase.run(lambda: self._read_threads(place))
            if chase.outside:
                raise StillOutside(chase.outside, chase.moved)
        except (GroupGone, WrongCtrlGroup):  # as in bring_in
            pass
        except (HookError, OSError) as error:
            self.failed += 1
            self._say(f"cannot move all of {place.container} into its group: {error}")
        self._count(place, chase)

    def _count(self, place: Place, chase: Chase) -> None:
        self.moved += chase.moved
        count_late_cpu(self._context, place.key, chase.late_cpu)
