# SPDX-License-Identifier: Apache-2.0
"""Looks for what an exec brought in and what its event does not lead to: it may live on in what it forked.

* If some of it had ended before it could be moved, its container is chased at once.
* If the process was gone before its container was known, the cgroups of all monitored containers are read: some 30 us
  for each, and 15 us for each thread that is new since the last time.
* If it was moved, the cgroup of its container is read a moment later: what it was just forking appears only then.

All of it takes a twentieth of the time at the most, and waits until then.
"""

from __future__ import annotations

from hook.base import cgroups, procfs, system
from hook.base.errors import HookError
from hook.reconcile.chase import StillOutside
from hook.reconcile.survey import is_in
from hook.state import records
from hook.watch import bring_in
from hook.watch.index import Place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from hook.stages.context import Context
    from hook.watch.bring_in import Exec
    from hook.watch.index import Index

_SHARE = 20
_SETTLING = 0.01  # seconds
_SECONDS = 0.2  # that one look at the containers takes at the most; the next one goes on from there
_REMEMBERED = 60.0  # seconds: within these no thread is taken for another one that has its number


class Pursuit:
    """`moved`: how many threads it has moved; `failed`: how many containers it could not bring in whole."""

    def __init__(self, context: Context, index: Index, say: Callable[[str], object]) -> None:
        self.moved = self.failed = 0
        self._context = context
        self._index = index
        self._say = say
        self._is_wanted = False
        self._due = 0.0
        self._places: list[Place] = []
        self._version = 0
        self._waiting: list[Place] = []
        self._moved_into: dict[str, Place] = {}
        self._inside: dict[str, set[int]] = {}
        self._forget_at = 0.0

    def follow(self, found: Exec) -> None:
        """Follow what came of an exec, at once or when it is due."""
        now = system.monotonic()
        if found.has_vanished and found.place is not None and now >= self._due:
            self._take_time(self._chase, found.place)
        elif found.has_vanished:
            self._is_wanted = True
        elif found.moved and found.place is not None:
            if self.wait() is None:
                self._due = max(self._due, now + _SETTLING)
            self._moved_into[found.place.container] = found.place

    def wait(self) -> float | None:
        """Seconds until a look is due; None: there is nothing to look for."""
        is_wanted = self._is_wanted or bool(self._waiting or self._moved_into)
        return max(0.0, self._due - system.monotonic()) if is_wanted else None

    def look(self) -> None:
        """Look at the containers, and chase what is outside."""
        self._take_time(self._look)

    def _take_time(self, action: Callable[..., object], *arguments: object) -> None:
        began = system.monotonic()
        action(*arguments)
        now = system.monotonic()
        self._due = now + _SHARE * (now - began)

    def _look(self) -> None:
        now = system.monotonic()
        if now >= self._forget_at:
            self._forget_at = now + _REMEMBERED
            self._inside.clear()
        if self._is_wanted and not self._waiting:
            self._is_wanted = False
            self._waiting = self._list_places()
        self._waiting += self._moved_into.values()
        self._moved_into.clear()
        while self._waiting and system.monotonic() < now + _SECONDS:
            place = self._waiting.pop()
            if self._has_new_outside(place):
                self._chase(place)

    def _list_places(self) -> list[Place]:
        """Every member that has a cgroup of its own."""
        run = self._context.run
        version = records.version(run)
        if version != self._version or not records.is_settled(run):
            states = run.list_states()
            members = ((state.key, *it) for state in states for it in state.members.items())
            self._places = [Place(*it) for it in members if cgroups.is_own(it[2].cgroup, it[1])]
            self._version = version
        return self._places.copy()

    def _has_new_outside(self, place: Place) -> bool:
        """Whether something in a container's cgroup is not in its group, for all that is known."""
        cgroup = place.member.cgroup or ""
        reading = bring_in.read_threads(self._index, place)
        if reading is None:
            return False
        outside = {tid for tid in reading.tids - self._inside.get(cgroup, set()) if not self._is_inside(tid, place)}
        self._inside[cgroup] = reading.tids - outside
        return bool(outside)

    def _is_inside(self, tid: int, place: Place) -> bool:
        groups = procfs.resctrl_groups(tid)
        return groups is not None and is_in(self._context, groups, place.member.group)

    def _chase(self, place: Place) -> None:
        try:
            moved, outside = bring_in.chase(self._context, self._index, place)
            self.moved += moved
            if outside:
                raise StillOutside(outside, moved)
        except (HookError, OSError) as error:
            self.failed += 1
            self._say(f"cannot move all of {place.container} into its group: {error}")
