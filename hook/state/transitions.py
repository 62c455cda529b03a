# SPDX-License-Identifier: Apache-2.0
"""How the record of a key changes: states in, states out. What earlier lives of its groups used: `accounting`."""

from __future__ import annotations

from hook.base import names
from hook.base.models import KeyState, MonGroup
from hook.state.rundir import changed, next_generation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.base.models import Member


def without(members: dict[str, Member], leaving: list[str]) -> dict[str, Member]:
    """Take members away; a former life of one of them gets its ID back, so that poststop finds it."""
    remaining = {name: member for name, member in members.items() if name not in leaving}
    for container in leaving:
        former = [name for name in remaining if name.startswith(container + "@")]
        if former and container in members:
            remaining[container] = remaining.pop(former[0])
    return remaining


def displaced(members: dict[str, Member], container: str) -> dict[str, Member]:
    """Rename a member to a former life: its ID is another process's from now on."""
    remaining = dict(members)
    member = remaining.pop(container)
    remaining[names.former_life(container, member.pid, member.starttime)] = member
    return remaining


def lingering(state: KeyState, groups: list[MonGroup], since: float, until: float) -> KeyState:
    """Let a key without members wait for another one. Its groups have their `last`."""
    fields = dict(changed(state, groups=groups, members={}))
    return KeyState(**{**fields, "lingering_since": since, "lingering_until": until})


def unsure(state: KeyState) -> KeyState:
    """Mark a key that may have members which are on no record."""
    return KeyState(**{**dict(state), "recovering": True})


def recovered(state: KeyState) -> KeyState:
    """Mark a key whose members are all on record again."""
    return KeyState(**{**dict(state), "recovering": False})


def completed(state: KeyState, groups: list[MonGroup], at: str, boottime: float) -> KeyState:
    """Complete a key whose last member is gone and whose groups, which have their ends, are about to go."""
    fields = dict(changed(state, groups=groups, members={}))
    # In any case: of a group that had no begin yet nothing changes but that its key is over.
    fields.update(lingering_since=None, lingering_until=None, generation=next_generation(state))
    return KeyState(**{**fields, "completed_at": at, "completed_boottime": boottime})


def left(group: MonGroup, last: dict[str, str] | None) -> MonGroup:
    """Set `last` to a group's counters when the last member left; None clears it when a member returns."""
    return MonGroup(**{**dict(group), "last": last})


def ended(group: MonGroup, end: dict[str, str]) -> MonGroup:
    """Set a group's counters after its last member."""
    return MonGroup(**{**dict(with_late(group, end)), "end": end})


def with_late(group: MonGroup, now: dict[str, str]) -> MonGroup:
    """Give each counter of `now` that appeared after the begin was read a begin: `now`. Its use until then is unknown.

    Without that consumers would take the sum of the other domains for the use of all.
    """
    if group.begin is None or group.begin.keys() >= now.keys():
        return group
    from hook.state import accounting

    return accounting.begun_in_part(group, now)
