# SPDX-License-Identifier: Apache-2.0
"""The life of a key, its end: members leave, the key lingers or is completed, and is forgotten.

See `life`.
"""

from __future__ import annotations

from hook import formats, identity, names
from hook.validation import MOST_NATURAL, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from hook.formats import Moment
    from hook.identity import Container
    from hook.models import KeyState, MonGroup

    Texts = dict[str, str]

MOST_LEFT = 64
"""The names of containers that have left, in the record of a key."""


def leave(state: KeyState, leaving: Iterable[str], *, stops: bool) -> KeyState:
    """Remove members from a key, and note the names of those that leave
    for the line in the history.

    `stops` says that the last of them leaves by its own poststop, or by an administrator's
    order: then no live task keeps a group of the key. A record that is recovering may lack
    members, and so the last one.
    """
    leaving = [*leaving]
    members = {name: member for name, member in state.members.items() if name not in leaving}
    for container in leaving:
        # One that such a member had displaced gets its ID back, so that poststop finds it.
        former = [name for name in members if name.startswith(container + "@")]
        if former and container in state.members:
            members[container] = members.pop(former[0])
    has_stopped = not state.recovering if stops else state.stopped and members == state.members
    left = _note_left(state, leaving) if state.history_file else {}
    return replace(state, members=members, stopped=has_stopped, **left)


def _note_left(state: KeyState, leaving: Iterable[str]) -> dict[str, object]:
    """Return the new values of `left` and `left_more` after these members have left."""
    left, more = dict(state.left), state.left_more
    for name in leaving:
        container, member = names.get_container_id(name), state.members.get(name)
        if member is None:
            continue
        if container in left or len(left) < MOST_LEFT:
            left[container] = member.name or left.get(container)
        else:
            more += 1
    return {"left": left, "left_more": min(more, MOST_NATURAL)}


def linger(state: KeyState, finals: dict[str, Texts], boottime: float, seconds: float) -> KeyState:
    """Let a key without members keep its groups for so many seconds;
    one that lingers does so no longer for that.

    `finals` has the present counters of its groups, by path.
    They count if another tool removes a group.
    """
    if state.lingering_since is not None:
        return state
    groups = [
        replace(group, last=finals.get(group.path, group.last or {})) for group in state.groups
    ]
    return replace(
        state, groups=groups, lingering_since=boottime, lingering_until=boottime + seconds
    )


def complete(
    state: KeyState, finals: dict[str, Texts], held: Collection[str], now: Moment, node: str = ""
) -> KeyState:
    """End a key without members; its line of the history, of this node, is then owed.

    `finals` has the present counters of its groups, by path, and `held` the paths of those that a
    live task keeps. A key with both kinds of groups goes on without the others; one whose groups
    are all held stays as it is.
    """
    ended = [
        finish(group, finals.get(group.path)) for group in state.groups if group.path not in held
    ]
    if len(ended) < len(state.groups):
        return retire(state, ended)
    boottime, unix = now
    completed = replace(
        state,
        groups=ended,
        members={},
        lingering_since=None,
        lingering_until=None,
        completed_at=formats.format_utc(unix),
        completed_boottime=boottime,
    )
    if not state.history_file:
        return completed
    from hook import line

    return line.owe(completed, line.make_line(state, ended, now, node))


def finish(group: MonGroup, texts: Texts | None) -> MonGroup:
    """Set the end of a group: its present counters;
    of one that is gone (None) the last ones on record, if any.
    """
    # No member needed it, or the program was killed after it had written that.
    if group.end is not None:
        return group
    # A group without a begin had no member, and ends, too:
    # else the key's next run would count its `before` twice.
    return end_group(group, texts if texts is not None else group.last or {})


def end_group(group: MonGroup, texts: Texts) -> MonGroup:
    """Set a group's `end`, the counters after its last member left."""
    if group.begin is not None and not group.begin.keys() >= texts.keys():
        from hook import counters

        group = counters.add_late(group, texts)
    return replace(group, end=texts)


def retire(state: KeyState, ended: list[MonGroup]) -> KeyState:
    """Take groups that have ended off a key that goes on;
    the first of the others inherits their use.
    """
    if not ended:
        return state
    from hook import counters

    paths = [group.path for group in ended]
    first, *others = [group for group in state.groups if group.path not in paths]
    return replace(state, groups=[counters.inherit(first, ended), *others])


def restore(
    before: KeyState | None,
    now: KeyState | None,
    container: Container,
    path: str,
    tasks: Collection[int],
) -> KeyState | None:
    """Return to the state `before` a start that has failed, in the group of this path,
    which has these live `tasks`.

    A container stays that was a member before, or that reconcile has moved in. So does a new group
    with tasks: the key may have had it. What was learnt of a group that the key had stays known.
    """
    if before is not None and identity.is_member(container, before.members.get(container.id)):
        return now
    known, learnt = _find_open(before, path), _find_open(now, path)
    if container.pid in tasks or (tasks and known is None):
        return now
    if before is None or now is None or known is None or learnt is None:
        return before
    return (
        before if replace(learnt, last=known.last) == known else replace(before, groups=now.groups)
    )


def _find_open(state: KeyState | None, path: str) -> MonGroup | None:
    """Return the group of this path that a key has, and that has not ended."""
    groups = state.groups if state is not None else []
    return next((group for group in groups if group.path == path and group.end is None), None)


# --- What stays on record


def keep(state: KeyState, *, snapshots: bool) -> KeyState | None:
    """Return what stays on record of a key; None if it is forgotten: it is completed,
    and without use to show.
    """
    if state.completed_at is None or (
        snapshots and any(group.before or group.begin for group in state.groups)
    ):
        return state
    return forget(state)


def forget(state: KeyState) -> KeyState | None:
    """Forget what a completed key used.

    It stays on record for the lines of history that it owes, if any.
    """
    if state.owed is None:
        return None
    return replace(state, groups=[], left={}, left_more=0, returned=None)


def list_removed(before: KeyState | None, after: KeyState | None) -> list[MonGroup]:
    """List the groups that a transition takes off a key: all of them, if the key has ended."""
    if before is None or before.completed_at is not None:
        return []
    stay = (
        [group.path for group in after.groups]
        if after is not None and after.completed_at is None
        else []
    )
    return [group for group in before.groups if group.path not in stay]
