# SPDX-License-Identifier: Apache-2.0
"""How the record of a key changes, from one life of its groups to the next. States in, states out, and no files."""

from __future__ import annotations

from hook.base import names
from hook.base.models import KeyState, MonGroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    from hook.base.models import Member, Model

    ModelT = TypeVar("ModelT", bound=Model)


def replace(record: ModelT, **fields: object) -> ModelT:
    """Return a record with other fields, as valid as any: the models check what is written, too."""
    form = getattr(record, "_form", type(record))  # in the .pyz a record is of one class, and has its form
    changed: ModelT = form(**{**dict(record), **fields})
    return changed


# --- The state of a key


def change(state: KeyState, groups: list[MonGroup], **fields: object) -> KeyState:
    """Give a state other groups, and fields. `generation` goes up with each change of what consumers see."""
    if _shown(groups) != _shown(state.groups):
        fields["generation"] = next_generation(state)
    return replace(state, groups=groups, **fields)


def next_generation(state: KeyState) -> int:
    """Count one change. After the highest number that a record may hold, which only damage reaches, comes 1."""
    return state.generation % (2**63 - 1) + 1


def _shown(groups: list[MonGroup]) -> list[tuple[object, ...]]:
    """What consumers see of groups."""
    return [(it.path, it.inode, it.begin, it.end, it.before, it.known) for it in groups if it.begin is not None]


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


def complete(state: KeyState, groups: list[MonGroup], at: str, boottime: float) -> KeyState:
    """Complete a key whose last member is gone and whose groups, which have their ends, are about to go."""
    # A new generation in any case: of a group that had no begin yet nothing changes but that its key is over.
    return replace(
        state,
        groups=groups,
        members={},
        lingering_since=None,
        lingering_until=None,
        generation=next_generation(state),
        completed_at=at,
        completed_boottime=boottime,
    )


def resume(state: KeyState, groups: list[MonGroup]) -> KeyState:
    """Bring a key without members back as these groups, whether it was completed or its groups cannot be removed."""
    generation = next_generation(state)
    return replace(state, groups=groups, members={}, generation=generation, completed_at=None, completed_boottime=None)


# --- A group of it


def end_group(group: MonGroup, counters_now: dict[str, str]) -> MonGroup:
    """Set a group's counters after its last member."""
    return replace(add_late(group, counters_now), end=counters_now)


def end_unused_group(group: MonGroup) -> MonGroup:
    """End a group that never had a member: the counters that its RMID began with do not matter."""
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


def begin_group(group: MonGroup, inode: int | None, counters_now: dict[str, str] | None) -> MonGroup:
    """Make a new incarnation of a group. None: its counters are not read yet."""
    return replace(group, inode=inode, begin=counters_now, end=None, last=None)


def begin_group_late(group: MonGroup, counters_now: dict[str, str]) -> MonGroup:
    """Set the begin of a group that may have had members before: what those used until now is unknown."""
    lost = replace(group, begin=counters_now, end={}, before={}, known={})
    return replace(group, begin=counters_now, end=None, last=None, **_carry([end_group(group, {}), lost]))


def remake_group(group: MonGroup, inode: int | None) -> MonGroup:
    """Return a group that vanished and was made again, without a begin.

    Its use is unknown, but for what it had used when its last member left (`last`).
    """
    return replace(group, inode=inode, begin=None, end=None, last=None, **_carry([end_group(group, group.last or {})]))


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
