# SPDX-License-Identifier: Apache-2.0
"""How a key's use is carried from one life of its groups to the next. States in, states out.

Imported when a group was removed and comes again, when another goes on for it, or when a domain came online late.
"""

from __future__ import annotations

from hook.base import counters
from hook.base.models import KeyState, MonGroup
from hook.state.rundir import next_generation
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
    fields = {**dict(state), "groups": groups, "members": members, "generation": next_generation(state)}
    return KeyState(**{**fields, "completed_at": None, "completed_boottime": None})


def begun_late(group: MonGroup, inode: int | None, begin: dict[str, str]) -> MonGroup:
    """Set the begin of a group that may have had members before: what those used until now is unknown."""
    lost = MonGroup(path=group.path, ctrl_group=group.ctrl_group, begin=begin, end={})
    carried = carry([ended(group, {}), lost])
    return MonGroup(path=group.path, ctrl_group=group.ctrl_group, inode=inode, begin=begin, **carried)


def begun_in_part(group: MonGroup, now: dict[str, str]) -> MonGroup:
    """Set the begin of the counters that it lacks: what was used by them until now is unknown."""
    begin = group.begin or {}
    late = [counter for counter in now if counter not in begin]
    lost = [counter for counter in late if counters.is_cumulative(counter)]
    known = {it: group.before[it] for it in lost if counters.number(group.before.get(it)) is not None}
    fields = {
        "begin": {**begin, **{counter: now[counter] for counter in late}},
        "before": {**group.before, **dict.fromkeys(lost, counters.UNKNOWN)},
        "known": {**group.known, **known},
    }
    return MonGroup(**{**dict(group), **fields})


def unused(group: MonGroup) -> MonGroup:
    """End a group that never had a member: the counters that its RMID began with do not matter."""
    nothing = dict.fromkeys(group.before, "0")
    path, ctrl_group, before, known = group.path, group.ctrl_group, group.before, group.known
    return MonGroup(path=path, ctrl_group=ctrl_group, begin=nothing, end=nothing, before=before, known=known)


def remade(group: MonGroup, inode: int | None) -> MonGroup:
    """Return a group that vanished and was made again, without a begin. Its use is unknown, but what it was left with.

    Source of `last`: see transitions.left.
    """
    carried = carry([ended(group, group.last or {})])
    return MonGroup(path=group.path, ctrl_group=group.ctrl_group, inode=inode, **carried)


def carry(groups: list[MonGroup]) -> dict[str, dict[str, str]]:
    """Sum what groups that are over used, as `before` and `known` of the one that goes on for them.

    Groups in several ctrl_groups become one sum: the counters' domains are the same, and it is the key's use.
    """
    sums: dict[str, int | None] = {}
    known: dict[str, int] = {}
    for group in groups:
        end = group.end or {}
        for counter, value in counters.lifetime(group, end).items():
            former = sums.get(counter, 0)
            sums[counter] = None if former is None or value is None else former + value
        for counter, value in counters.at_least(group, end).items():
            if value is not None:
                known[counter] = known.get(counter, 0) + value
    return {
        "before": {counter: counters.text_of(value) for counter, value in sums.items()},
        "known": {counter: counters.text_of(known[counter]) for counter in known if sums[counter] is None},
    }


def inherited(group: MonGroup, over: list[MonGroup]) -> MonGroup:
    """Add what other groups used, which are over, to a group's `before`."""
    if not any(other.begin or other.before for other in over):
        return group
    former = MonGroup(path=group.path, ctrl_group=group.ctrl_group, before=group.before, known=group.known)
    return MonGroup(**{**dict(group), **carry([former, *over])})
