# SPDX-License-Identifier: Apache-2.0
"""How a key's use is carried from one life of its groups to the next. States in, states out.

Imported when a group was removed and comes again, or when another goes on for it.
"""

from __future__ import annotations

from hook.base import counters
from hook.base.models import KeyState, MonGroup
from hook.state.transitions import ended

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.base.models import Member


def resumed(state: KeyState, group: MonGroup) -> KeyState:
    """Bring a completed key back as this group: what it used until now is `before`."""
    return _reopened(state, [inherited(group, state.groups)])


def surviving(state: KeyState, kept: list[MonGroup], over: list[MonGroup]) -> KeyState:
    """Keep a key without members of which some groups could not be removed; the others are over."""
    return _reopened(state, [inherited(kept[0], over), *kept[1:]])


def _reopened(state: KeyState, groups: list[MonGroup]) -> KeyState:
    members: dict[str, Member] = {}
    fields = {**dict(state), "groups": groups, "members": members, "generation": state.generation + 1}
    return KeyState(**{**fields, "completed_at": None, "completed_boottime": None})


def begun_late(group: MonGroup, inode: int | None, begin: dict[str, str]) -> MonGroup:
    """Set the begin of a group that may have had members before: what those used until now is unknown."""
    lost = MonGroup(path=group.path, ctrl_group=group.ctrl_group, begin=begin, end={})
    before = summed([ended(group, {}), lost])
    return MonGroup(path=group.path, ctrl_group=group.ctrl_group, inode=inode, begin=begin, before=before)


def unused(group: MonGroup) -> MonGroup:
    """End a group that never had a member: the counters that its RMID began with do not matter."""
    nothing = dict.fromkeys(group.before, "0")
    path, ctrl_group = group.path, group.ctrl_group
    return MonGroup(path=path, ctrl_group=ctrl_group, begin=nothing, end=nothing, before=group.before)


def remade(group: MonGroup, inode: int | None) -> MonGroup:
    """Return a group that vanished and was made again, without a begin. Its use is unknown, but what it was left with.

    Source of `last`: see transitions.left.
    """
    before = summed([ended(group, group.last or {})])
    return MonGroup(path=group.path, ctrl_group=group.ctrl_group, inode=inode, before=before)


def summed(groups: list[MonGroup]) -> dict[str, str]:
    """Sum what groups that are over used, as the `before` of the one that goes on for them.

    Groups in several ctrl_groups become one sum: the counters' domains are the same, and it is the key's use.
    """
    sums: dict[str, int | None] = {}
    for group in groups:
        for counter, value in counters.lifetime(group, group.end or {}).items():
            former = sums.get(counter, 0)
            sums[counter] = None if former is None or value is None else former + value
    return {counter: counters.text_of(value) for counter, value in sums.items()}


def inherited(group: MonGroup, over: list[MonGroup]) -> MonGroup:
    """Add what other groups used, which are over, to a group's `before`."""
    if not any(other.begin or other.before for other in over):
        return group
    more = summed([MonGroup(path=group.path, ctrl_group=group.ctrl_group, before=group.before), *over])
    return MonGroup(**{**dict(group), "before": more})
