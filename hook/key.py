# SPDX-License-Identifier: Apache-2.0
"""How a key ends: its members leave, then it lingers or its groups go, and its counters stay on record for a while.

Read `drop`, `end` and `drop_groups`, which run under the key's lock. poststop, reclaim, reconcile and a createRuntime
that failed use the same steps. A *run* of a key goes from its first member to its last.
"""

from __future__ import annotations

from hook import names, system, validation
from hook.errors import HookError
from hook.models import Index
from hook.validation import replace
from hook.view import change, next_generation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from hook.context import Context
    from hook.models import KeyState, Member, MonGroup
    from hook.store import LockedKey

MOST_LEFT = 64
"""The names of containers that have left, in the record of a key."""


# --- Members leave


def drop(context: Context, locked: LockedKey, containers: list[str], *, is_own: bool = False) -> None:
    """Remove members from a key; after the last one the key lingers, if it may, or ends. Raises HookError, OSError.

    `is_own` says that the caller is the last member's own poststop, which alone may remove a group with a live task.
    """
    state = locked.state
    members = without(state.members, containers) if state is not None else {}
    if state is not None:
        left = note_left(state, containers) if history_of(context, state) else {}
        # A record that is recovering may lack members, and so the last one.
        stopped = not state.recovering if is_own else state.stopped and members == state.members
        fields = {"members": members, "stopped": stopped, **left}
        if members or state.recovering:
            locked.commit(replace(state, **fields))
        elif not context.options.linger or not _linger(context, locked, state, fields):
            end(context, locked, replace(state, **fields))
    # Last: killed before it, a second poststop finds the key, without this member.
    for container in containers:
        if container not in members:
            context.run.remove(Index, container)


def without(members: dict[str, Member], leaving: list[str]) -> dict[str, Member]:
    """Remove members. One that such a member had displaced gets its ID back, so that poststop finds it."""
    remaining = {name: member for name, member in members.items() if name not in leaving}
    for container in leaving:
        former = [name for name in remaining if name.startswith(container + "@")]
        if former and container in members:
            remaining[container] = remaining.pop(former[0])
    return remaining


def note_left(state: KeyState, leaving: Iterable[str]) -> dict[str, object]:
    """Return the new values of `left` and `left_more` after these members have left."""
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


def history_of(context: Context, state: KeyState) -> str:
    """Return the file for a key's line in the history, or nothing if there is no line. A job has its own options."""
    return state.history_file or (context.options.history if state.kind not in ("pod", "job") else "")


# --- The key ends


def end(context: Context, locked: LockedKey, state: KeyState, *, is_own: bool = False) -> None:
    """Remove the mon_groups of a key whose members have ended, as far as that may be. Raises HookError, OSError.

    `is_own` says that all go: a job is released, or an administrator takes the hook off the node.
    """
    noted = note_left(state, state.members) if history_of(context, state) else {}
    # A dead member that is on record has had no poststop.
    before = replace(state, members={}, stopped=is_own or (state.stopped and not state.members), **noted)
    removable = find_removable(context, before)
    over = [finish_group(context, group, had_member=bool(noted.get("left"))) for group in removable]
    if state.groups and not over:
        locked.commit(before)
    else:
        drop_groups(context, locked, before, over)


def find_removable(context: Context, state: KeyState) -> list[MonGroup]:
    """Find the mon_groups that may be removed of a key without members: those without a live task.

    All may be, if the last member left by its own poststop.
    """
    if state.stopped:
        return state.groups
    return [group for group in state.groups if not context.resctrl.has_live_task(group.path)]


def finish_group(context: Context, group: MonGroup, *, had_member: bool = False) -> MonGroup:
    """Read a group's counters, and set them as its end.

    `had_member` says that a line of the history names its use, which is unknown if its begin could not be saved.
    """
    if group.end is not None:  # no member needed it, or this was killed after it had written that
        return group
    if group.begin is None and had_member:
        try:
            now = context.resctrl.counters(group.path)
        except HookError:  # it never existed, or is gone
            return end_group(group, {})
        from hook import counters

        return end_group(counters.begin_group(group, now, is_late=True), now)
    # A group without a begin ends, too: else the key's next run would count its `before` twice.
    return end_group(group, _read_end(context, group) if group.begin is not None else {})


def _read_end(context: Context, group: MonGroup) -> dict[str, str]:
    """Read the counters of a group's present directory; if that is gone, return its `last`, or none."""
    try:
        if context.resctrl.inode(group.path) == group.inode:
            return context.resctrl.counters(group.path)
    except HookError:
        pass
    return group.last or {}


def drop_groups(context: Context, locked: LockedKey, state: KeyState, over: list[MonGroup]) -> None:
    """Remove groups that are `over`, and have their ends, from the state, the view and the kernel, in this order.

    A key without another group is completed or forgotten. A group that the kernel refuses to remove stays on record.
    Raises HookError, OSError.
    """
    after: KeyState | None = state
    if state.completed_at is None:
        after = leave(state, over, keeps=context.options.snapshot_ttl > 0)
        after = _add_to_history(context, state, after, over)
    owes = after is not None and after.owed is not None
    if after is None or not after.generation:  # also if the state has no view: its record may have been lost since
        context.view.remove(state.key)
    # The record before rmdir, which takes the counters with it, and the view before its links dangle. Killed in
    # between: a group without a member, which reconcile removes, or the key's next hook takes over.
    try:
        if after is not None:
            locked.commit(after)
            context.view.show(after)
    except OSError as error:  # that costs the record, but must not cost RMIDs
        is_end = after is not None and after.completed_at is not None
        lost = "save the final counters of key {}; its use is lost" if is_end else "take removed groups off key {}"
        context.run.complain(f"could not {lost.format(state.key)}", error)
        after = None
        context.view.remove(state.key)
    gone: list[str] = []
    refusal: HookError | None = None
    for group in over:
        try:
            remove_group(context, group.path)
            gone.append(group.path)
        except HookError as error:
            refusal = error
    if refusal is not None:
        base = locked.state if locked.state is not None and locked.state.groups else state
        from hook import counters

        back = counters.resume(base, _leave_groups(state.groups, over, gone), state.members)
        locked.commit(back)
        context.view.show(back)
        raise refusal
    if after is None and not owes and len(over) == len(state.groups):
        # After rmdir: killed in between, the state names a group that is gone, which all readers take for removed.
        locked.clear()


def _add_to_history(context: Context, state: KeyState, after: KeyState | None, over: list[MonGroup]) -> KeyState | None:
    """Write what a key used that has ended in `after`. Returns `after`, with the lines that could not be written.

    Before its record: killed in between, the key goes on or ends again, and its line has the same id and is the last.
    """
    file = history_of(context, state)
    if not file or (after is not None and after.completed_at is None):
        return after
    from hook import ending

    owed = ending.write_line(context.run, file, state, over)
    if owed is not None:
        if after is None:  # it stays on record for its lines alone
            after = forget_snapshot(_complete(state, []))
        return replace(after, history_file=file, owed=owed)
    return replace(after, owed=None) if after is not None and state.owed is not None else after


def remove_group(context: Context, path: str) -> bool:
    """Remove a mon_group, and note that its RMID comes back; returns False if there was none. HookError as resctrl."""
    if not context.resctrl.remove(path):
        return False
    context.freed += 1
    context.run.note_freed()
    return True


# --- Lingering


def _linger(context: Context, locked: LockedKey, state: KeyState, fields: dict[str, object]) -> bool:
    """Let a key without members keep its groups, if it may, which no job does; returns whether it does."""
    there = [group for group in state.groups if group.end is None and not context.resctrl.is_gone(group.path)]
    if not there or state.kind == "job" or is_deleted(state) or not system.in_host_pid_namespace():
        return False  # in another pid namespace neither reclaim nor reconcile would ever end it
    if locked.state is not None and (state.lingering_since is None or state.members):
        now = system.boottime()
        groups = [replace(group, last=_read_end(context, group)) for group in locked.state.groups]
        until = now + context.options.linger
        after = change(locked.state, groups, lingering_since=now, lingering_until=until, **fields)
        locked.commit(after)
        context.view.show(after)
    return True


def is_deleted(state: KeyState) -> bool:
    """Whether a key is a pod's whose cgroup is gone or unknown, so that no container can come back to it."""
    try:
        return state.kind == "pod" and not (state.cgroup and system.cgroup_directory(state.cgroup))
    except OSError:  # the cgroup may be there
        return False


# --- The record of a key that ends


def leave(state: KeyState, over: list[MonGroup], *, keeps: bool) -> KeyState | None:
    """Remove groups that are `over`, and have their ends, from a key's state. Returns None to forget the key.

    Their use goes into another group's `before`. If there is no other group, the key is completed; its use stays on
    record if it `keeps` snapshots and ever had a member.
    """
    groups = _leave_groups(state.groups, over, [group.path for group in over])
    if groups:
        return change(state, groups)
    if not keeps or not any(group.before or group.begin for group in over):
        return None
    return _complete(state, over)


def _complete(state: KeyState, over: list[MonGroup]) -> KeyState:
    """Complete a key, of whose use its groups that are `over` stay on record."""
    # A new generation in any case: if its groups had no begin yet, nothing else shows that the key has ended.
    return replace(
        state,
        groups=over,
        members={},
        lingering_since=None,
        lingering_until=None,
        generation=next_generation(state),
        completed_at=system.now_utc(),
        completed_boottime=system.boottime(),
    )


def forget_snapshot(state: KeyState) -> KeyState:
    """Forget what a completed key used; it stays on record for the lines of history that it owes."""
    return replace(state, groups=[], generation=0, left={}, left_more=0, returned=None)


def _leave_groups(groups: list[MonGroup], over: list[MonGroup], gone: list[str]) -> list[MonGroup]:
    """Remove the groups that are `over` and whose paths are `gone`; the first that stays inherits their use."""
    kept = [group for group in groups if group.path not in gone]
    if not kept:
        return []
    from hook import counters

    return [counters.inherit(kept[0], [group for group in over if group.path in gone]), *kept[1:]]


def end_group(group: MonGroup, counters_now: dict[str, str]) -> MonGroup:
    """Set a group's `end`, the counters after its last member left."""
    if group.begin is not None and not group.begin.keys() >= counters_now.keys():
        from hook import counters

        group = counters.add_late(group, counters_now)
    return replace(group, end=counters_now)
