# SPDX-License-Identifier: Apache-2.0
"""Which monitored container a process is in: by the container's ID in its cgroup's path, and by that one's record.

Nothing here grows with the node: a lookup reads the index entry and the record of one key. Its result is kept until the
record of any key changes, which one stat(2) shows.
"""

from __future__ import annotations

from dataclasses import dataclass

from hook.base import cgroups, names
from hook.base.models import KeyState
from hook.state import records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hook.base.models import Member
    from hook.state.store import RunDir

_MOST_KEPT = 4096


@dataclass(frozen=True)
class Place:
    """A monitored container: its key, its ID, and what is recorded of it."""

    key: str
    container: str
    member: Member


class Index:
    """The monitored containers, by the cgroups of processes."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._found: dict[tuple[str, ...], Place | None] = {}
        self._version = 0

    def find(self, places: list[str]) -> Place | None:
        """The container whose own cgroup holds a process, the innermost one. `places`: as from procfs.cgroups."""
        version = records.version(self._run)
        if version != self._version or len(self._found) >= _MOST_KEPT:
            self._found.clear()
            self._version = version
        name = tuple(places)
        if name in self._found:
            return self._found[name]
        found = next((it for place in places for it in self._look_up(place)), None)
        if records.is_settled(self._run):
            self._found[name] = found
        return found

    def _look_up(self, cgroup: str) -> Iterator[Place]:
        for name in reversed(cgroups.possible_ids(cgroup)):
            key = records.glance_key(self._run, name) if names.is_container_id(name) else None
            state = self._run.glance(KeyState, key) if key is not None else None
            # By the ID itself: a former life of it (names.former_life) is in the same cgroup.
            member = state.members.get(name) if state is not None else None
            if key is not None and member is not None and _holds(member.cgroup, name, cgroup):
                yield Place(key, name, member)


def _holds(own: str | None, container: str, cgroup: str) -> bool:
    """Whether a container's recorded cgroup is its own, and holds this one."""
    return own is not None and cgroups.is_own(own, container) and cgroups.is_within(cgroup, own)
