# SPDX-License-Identifier: Apache-2.0
"""How the record of a key changes, from one life of its groups to the next. States in, states out, and no files."""

from __future__ import annotations

from hook.base import names
from hook.state.store import change, next_generation, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.base.models import KeyState, Member, MonGroup


# --- The state of a key


def without(members: dict[str, Member], leaving: list[str]) -> dict[str, Member]:
    """Take members away; a former life of one of them gets its ID back, so that poststop finds it."""
    remaining = {name: member for name, member in members.items() if name not in leaving}
    for container in leaving:
        former = [name for name in remaining if name.startswith(container + "@")]
        if former and container in members:
            remaining[container] = remaining.pop(former[0])
    return remaining


def displace(members: dict[str, Member], container: str) -> dict[str, Member]:
    """Rename a member to a former life: its ID is another process's from now on."""
    remaining = dict(members)
    member = remaining.pop(container)
    remaining[names.former_life(container, member.pid, member.starttime)] = member
    return remaining


def rejoin(members: dict[str, Member], container: str, member: Member, *, displaces: bool) -> dict[str, Member]:
    """Put a member in the place of one of the same ID; `displaces`: that one becomes a former life."""
    remaining = displace(members, container) if displaces else dict(members)
    remaining[container] = member
    remaining.pop(names.former_life(container, member.pid, member.starttime), None)  # of two, the first calls again
    return remaining


def leave(state: KeyState, over: list[MonGroup], *, keeps: bool, at: str, boottime: float) -> KeyState | None:
    """Take groups off a key, which are `over` and have their ends. None: nothing of the key is to be kept.

    What was used in them goes on as part of another group's `before`. Without another group the key is completed: what
    it used stays on record, if it `keeps` snapshots and ever had a member.
    """
    groups = leave_groups(state.groups, over, [group.path for group in over])
    if groups:
        return change(state, groups)
    if not keeps or not any(group.before or group.begin for group in over):
        return None
    # A new generation in any case: of a group that had no begin yet nothing changes but that its key is over.
    return replace(
        state,
        groups=over,
        members={},
        lingering_since=None,
        lingering_until=None,
        generation=next_generation(state),
        completed_at=at,
        completed_boottime=boottime,
    )


def leave_groups(groups: list[MonGroup], over: list[MonGroup], gone: list[str]) -> list[MonGroup]:
    """Take those of the groups that are `over` away whose paths are gone; the first that stays inherits their use."""
    kept = [group for group in groups if group.path not in gone]
    return [inherit(kept[0], [it for it in over if it.path in gone]), *kept[1:]] if kept else []


def resume(state: KeyState, groups: list[MonGroup], members: dict[str, Member]) -> KeyState:
    """Bring a key back as these groups, whether it was completed or its groups cannot be removed."""
    generation = next_generation(state)
    return replace(
        state, groups=groups, members=members, generation=generation, completed_at=None, completed_boottime=None
    )


# --- A group of it


def end_group(group: MonGroup, counters_now: dict[str, str]) -> MonGroup:
    """Set a group's counters after its last member."""
    return replace(add_late(group, counters_now), end=counters_now)


def end_unused_group(group: MonGroup) -> MonGroup:
    """End a group that was made in vain: what its RMID counted before does not matter."""
    nothing = dict.fromkeys(group.before, "0")
    return replace(group, inode=None, begin=nothing, end=nothing, last=None)


def add_late(group: MonGroup, now: dict[str, str]) -> MonGroup:
    """Give each counter of `now` that appeared after the begin was read a begin: `now`. Its use until then is unknown.

    Without that consumers would take the sum of the other domains for the use of all.
    """
    begin = group.begin
    if begin is None or begin.keys() >= now.keys():
        return group
    from hook.base import counters

    late = [counter for counter in now if counter not in begin]
    lost = [counter for counter in late if counters.is_cumulative(counter)]
    known = {it: group.before[it] for it in lost if counters.number(group.before.get(it)) is not None}
    return replace(
        group,
        begin={**begin, **{counter: now[counter] for counter in late}},
        before={**group.before, **dict.fromkeys(lost, counters.UNKNOWN)},
        known={**group.known, **known},
    )


def begin_group_late(group: MonGroup, counters_now: dict[str, str]) -> MonGroup:
    """Set the begin of a group that may have had members before: what those used until now is unknown."""
    lost = replace(group, begin=counters_now, end={}, before={}, known={})
    return replace(group, begin=counters_now, **_carry([replace(group, begin=None, end={}), lost]))


def remake_group(group: MonGroup) -> MonGroup:
    """Return a group that vanished and was made again, without a begin.

    Its use is unknown, but for what it had used when its last member left (`last`).
    """
    return replace(group, begin=None, end=None, last=None, **_carry([end_group(group, group.last or {})]))


def inherit(group: MonGroup, over: list[MonGroup]) -> MonGroup:
    """Add what other groups used, which are over, to a group's `before`."""
    if not any(other.begin or other.before for other in over):
        return group
    return replace(group, **_carry([replace(group, begin=None, end=None), *over]))


def _carry(groups: list[MonGroup]) -> dict[str, dict[str, str]]:
    """Sum what groups that are over used, as `before` and `known` of the one that goes on for them.

    Groups in several ctrl_groups become one sum: the counters' domains are the same, and it is the key's use.
    """
    from hook.base import counters

    sums: dict[str, int | None] = {}
    known: dict[str, int] = {}
    for group in groups:
        last = group.end or {}
        for counter, value in counters.lifetime(group, last).items():
            former = sums.get(counter, 0)
            sums[counter] = None if former is None or value is None else former + value
        for counter, value in counters.at_least(group, last).items():
            if value is not None:
                known[counter] = known.get(counter, 0) + value
    return {
        "before": {counter: counters.text_of(value) for counter, value in sums.items()},
        "known": {counter: counters.text_of(known[counter]) for counter in known if sums[counter] is None},
    }
