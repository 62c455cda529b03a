# SPDX-License-Identifier: Apache-2.0
"""How the state of a key changes, from one life of its groups to the next. Pure functions, which touch no file."""

from __future__ import annotations

from hook import names, validation
from hook.models import Returned
from hook.store import change, next_generation, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from hook.models import KeyState, Member, MonGroup

MOST_LEFT = 64


# --- The state of a key


def without(members: dict[str, Member], leaving: list[str]) -> dict[str, Member]:
    """Remove members. A former life of one of them (names.former_life) gets the ID back, so that poststop finds it."""
    remaining = {name: member for name, member in members.items() if name not in leaving}
    for container in leaving:
        former = [name for name in remaining if name.startswith(container + "@")]
        if former and container in members:
            remaining[container] = remaining.pop(former[0])
    return remaining


def displace(members: dict[str, Member], container: str) -> dict[str, Member]:
    """Rename a member to a former life: its ID belongs to another process from now on."""
    remaining = dict(members)
    member = remaining.pop(container)
    remaining[names.former_life(container, member.pid, member.starttime)] = member
    return remaining


def rejoin(members: dict[str, Member], container: str, member: Member, *, displaces: bool) -> dict[str, Member]:
    """Add a member in the place of the one of the same ID; `displaces`: keep that one as a former life."""
    remaining = displace(members, container) if displaces else dict(members)
    remaining[container] = member
    # The older of two processes of this ID had its hook called again: it is no former life any more.
    remaining.pop(names.former_life(container, member.pid, member.starttime), None)
    return remaining


def find_name(state: KeyState) -> str | None:
    """The name of the container that a key is; None: unknown, or the key is a pod."""
    if state.kind != "container":
        return None
    return state.name or next((it.name for it in state.members.values() if it.name), None)


def read_labels(state: KeyState) -> dict[str, str]:
    """The names in the labels of a key's metrics, empty ones too."""
    named = {"namespace": state.pod_namespace, "pod": state.pod_name, "container": find_name(state)}
    return state.labels or {label: name or "" for label, name in named.items()}


def keep_labels(before: KeyState, after: KeyState) -> KeyState:
    """Keep the labels of a key's metrics when it gets other names: one key is one series for as long as it exists."""
    labels = read_labels(before)
    return after if read_labels(after) == labels else replace(after, labels=labels)


def note_left(state: KeyState, leaving: Iterable[str]) -> dict[str, object]:
    """The fields of a state that name these of its members as containers that have left."""
    left, more = dict(state.left), state.left_more
    for name in leaving:
        container, member = names.container_of(name), state.members.get(name)
        if member is None:
            continue
        if container in left or len(left) < MOST_LEFT:
            left[container] = member.name or left.get(container)
        else:
            more += 1
    return {"left": left, "left_more": min(more, validation.MOST_NATURAL)}


def leave(state: KeyState, over: list[MonGroup], *, keeps: bool, at: str, boottime: float) -> KeyState | None:
    """Remove groups that are `over`, and have their ends, from a key's state. None: forget the key.

    Their use goes into another group's `before`. If there is no other group, the key is completed; its use stays on
    record if it `keeps` snapshots and ever had a member.
    """
    groups = leave_groups(state.groups, over, [group.path for group in over])
    if groups:
        return change(state, groups)
    if not keeps or not any(group.before or group.begin for group in over):
        return None
    return complete_key(state, over, at=at, boottime=boottime)


def complete_key(state: KeyState, over: list[MonGroup], *, at: str, boottime: float) -> KeyState:
    """Complete a key, of whose use its groups that are `over` stay on record."""
    # A new generation in any case: if its groups had no begin yet, nothing else shows that the key has ended.
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


def forget_snapshot(state: KeyState) -> KeyState:
    """Forget what a completed key used; it stays on record for the lines of history that it owes."""
    return replace(state, groups=[], generation=0, left={}, left_more=0, returned=None)


def leave_groups(groups: list[MonGroup], over: list[MonGroup], gone: list[str]) -> list[MonGroup]:
    """Remove the groups that are `over` and whose paths are `gone`; the first that stays inherits their use."""
    kept = [group for group in groups if group.path not in gone]
    return [inherit(kept[0], [it for it in over if it.path in gone]), *kept[1:]] if kept else []


def resume(state: KeyState, groups: list[MonGroup], members: dict[str, Member]) -> KeyState:
    """Reopen a key with these groups, after it was completed, or because its groups cannot be removed."""
    generation = next_generation(state)
    return replace(
        state, groups=groups, members=members, generation=generation, completed_at=None, completed_boottime=None
    )


def come_back(state: KeyState, group: MonGroup, *, at: str, boottime: float) -> KeyState:
    """Begin another incarnation of a completed key, with this group, which inherits its use."""
    heir = inherit(group, state.groups)
    returned = Returned(at=at, boottime=boottime, use=heir, late_cpu=state.late_cpu)
    return replace(resume(state, [heir], {}), returned=returned, lives=1, left={}, left_more=0)


# --- A group of it


def end_group(group: MonGroup, counters_now: dict[str, str]) -> MonGroup:
    """Set a group's `end`, the counters after its last member left."""
    return replace(add_late(group, counters_now), end=counters_now)


def end_unused_group(group: MonGroup) -> MonGroup:
    """End a group that never had a member: this incarnation used 0 of each counter."""
    nothing = dict.fromkeys(group.before, "0")
    return replace(group, inode=None, begin=nothing, end=nothing, last=None)


def add_late(group: MonGroup, now: dict[str, str]) -> MonGroup:
    """Give counters that appeared after the begin was read their value in `now` as begin; their use so far is unknown.

    Otherwise consumers would take the sum over the other domains for the whole use. It is 0 if they have no data yet.
    """
    begin = group.begin
    if begin is None or begin.keys() >= now.keys():
        return group
    from hook import counters

    return replace(group, **counters.begin_late(group, begin, now))


def begin_group_late(group: MonGroup, counters_now: dict[str, str]) -> MonGroup:
    """Set the begin of a group that may have had members before; their use until now is unknown."""
    from hook import counters

    lost = replace(group, begin=counters_now, end={}, before={}, known={})
    return replace(group, begin=counters_now, **counters.carry([replace(group, begin=None, end={}), lost]))


def remake_group(group: MonGroup) -> MonGroup:
    """Start a new incarnation, without a begin, of a group that another tool removed.

    The use of the former one is unknown, unless its last member had left (`last`).
    """
    from hook import counters

    return replace(group, begin=None, end=None, last=None, **counters.carry([end_group(group, group.last or {})]))


def inherit(group: MonGroup, over: list[MonGroup]) -> MonGroup:
    """Add the use of groups that are `over` to a group's `before`."""
    if not any(other.begin or other.before for other in over):
        return group
    from hook import counters

    return replace(group, **counters.carry([replace(group, begin=None, end=None), *over]))
