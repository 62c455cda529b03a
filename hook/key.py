# SPDX-License-Identifier: Apache-2.0
"""Carries out transitions by which nothing comes:
the order of writes of an end is in `settle` (docs/design.md).

`remove_members` and `write_end` read what a transition needs, ask for it, and settle it. All run
under the key's lock. `create.enter` has the other order: that of a container which comes.
"""

from __future__ import annotations

from hook import life_end, system
from hook.errors import HookError
from hook.models import Index
from hook.validation import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from hook.context import Context
    from hook.models import KeyState, MonGroup
    from hook.store import LockedKey


def settle(
    context: Context,
    locked: LockedKey,
    after: KeyState | None,
    leaving: Iterable[str] = (),
    removes: Iterable[str] = (),
) -> None:
    """Carry out a transition by which nothing comes; None forgets the key.

    Raises HookError, OSError.

    What goes: the groups that the state has and `after` has not, or all of a key that has ended;
    and the groups that `removes` names, which are on no record. `leaving` names the containers
    whose index entries go. A group that the kernel refuses to remove stays on record.
    """
    before = locked.state
    # A group without an inode on record may not have been made.
    lost = life_end.list_removed(before, after)
    removed = [
        group.path
        for group in lost
        if group.inode is not None or not context.resctrl.is_gone(group.path)
    ]
    removed += removes
    # The line before the record: killed in between, the key goes on or ends again, and its line has
    # the same ID and is the last. The other order would lose it.
    if (
        after is not None
        and after.owed is not None
        and (before is None or after.completed_at != before.completed_at)
    ):
        from hook import ending

        after = ending.write_owed(context.run, after)
    kept = (
        life_end.keep(after, snapshots=context.options.snapshot_ttl > 0)
        if after is not None
        else None
    )
    # The record before rmdir, which takes the counters with it. Killed in between: a group without
    # a member, which reconcile removes, or the key's next hook takes over.
    is_forgotten = kept is None or not _save(context, locked, kept, removed)
    refusals = _remove_groups(context, removed)
    if refusals:
        if before is not None and before.completed_at is None and after is not None:
            from hook import life_turns

            locked.commit(life_turns.reopen(after, before, refusals))
        raise [*refusals.values()][-1]
    # After rmdir: killed in between, the state names a group that is gone,
    # which all readers take for removed.
    if is_forgotten and before is not None:
        locked.clear()
    # Last: killed before it, a second poststop finds the key, without this member.
    for container in leaving:
        context.run.remove(Index, container)


def _save(context: Context, locked: LockedKey, after: KeyState, removed: list[str]) -> bool:
    """Write a key's record; returns False if the key has to be forgotten.

    Raises OSError, unless the key has ended and owes no line: then only its snapshot is lost, and
    no RMID with it. Any other key stays as it was, with its groups, and the next call or reconcile
    makes the transition again.
    """
    try:
        locked.commit(after)
    except OSError as error:
        if not removed or after.completed_at is None or after.owed is not None:
            raise
        context.run.complain(f"could not save the final counters of key {after.key}", error)
        return False
    return True


def _remove_groups(context: Context, paths: Iterable[str]) -> dict[str, HookError]:
    """Remove mon_groups, and note that their RMIDs come back;
    returns the refusals of the kernel.
    """
    refusals = {}
    for path in dict.fromkeys(paths):
        try:
            if context.resctrl.remove(path):
                context.freed += 1
                context.run.note_freed()
        except HookError as error:
            refusals[path] = error
    return refusals


# --- What asks for a transition


def remove_members(
    context: Context, locked: LockedKey, leaving: list[str], *, stops: bool = False
) -> None:
    """Remove members from a key; after the last one the key lingers, if it may, or ends.

    Raises HookError, OSError.

    `stops` is as in life_end.leave. Also of a name that is no member the index entry goes.
    """
    after, removes = locked.state, list[str]()
    if after is not None and after.completed_at is not None:
        removes = list_left(context, after)
    elif after is not None:
        after = life_end.leave(after, leaving, stops=stops)
        if not after.members and not after.recovering:
            after = _linger(context, after) or _complete(context, after)
    members = after.members if after is not None else {}
    settle(
        context,
        locked,
        after,
        [container for container in leaving if container not in members],
        removes,
    )


def write_end(context: Context, locked: LockedKey, *, by_order: bool = False) -> bool:
    """End a key whose members have ended, as far as its groups may be removed, or finish an end
    that was killed; returns whether anything was to do.

    Raises HookError, OSError.

    `by_order` says that all groups go: a job is released, or an administrator takes the hook off
    the node.
    """
    before = locked.state
    if before is None:
        return False
    if before.completed_at is not None:
        left = list_left(context, before, by_order=by_order)
        if left:
            settle(context, locked, before, removes=left)
        return bool(left)
    state, of_name = before, list[str]()
    if by_order and before.recovering:  # its record may lack groups, which have its name
        from hook import inventory

        state = replace(before, recovering=False)
        ctrl_groups = inventory.list_ctrl_groups(context.resctrl.root)
        name = context.options.group_prefix + before.key
        of_name = [f"{above}/mon_groups/{name}" for above in ctrl_groups]
    # A dead member that is on record has had no poststop.
    after = life_end.leave(state, state.members, stops=by_order)
    settle(context, locked, _complete(context, after), before.members, of_name)
    return True


def list_left(context: Context, state: KeyState, *, by_order: bool = False) -> list[str]:
    """List the groups that a completed key still has, and that may go.

    `by_order` is as in `write_end`.
    """
    left = [group.path for group in state.groups if context.resctrl.exists(group.path)]
    return [
        path
        for path in left
        if by_order or state.stopped or not context.resctrl.has_live_task(path)
    ]


def _complete(context: Context, state: KeyState) -> KeyState:
    held = [group.path for group in state.groups if is_held(context, state, group)]
    finals, node = read_finals(context, state, held), ""
    if state.history_file:
        from hook import ending

        node = ending.name_node(context.options)
    return life_end.complete(state, finals, held, (system.boottime(), system.unix_time()), node)


def is_held(context: Context, state: KeyState, group: MonGroup) -> bool:
    """Whether a live task keeps a group of a key without members:
    not if its last member left by its own poststop.
    """
    return not state.stopped and context.resctrl.has_live_task(group.path)


def read_finals(
    context: Context, state: KeyState, skipped: Collection[str] = ()
) -> dict[str, dict[str, str]]:
    """Read the present counters of the groups that need them for their end, by path;
    without those that are gone.
    """
    finals = {}
    for group in state.groups:
        if group.path in skipped or group.begin is None or group.end is not None:
            continue
        try:
            if context.resctrl.has(group):
                finals[group.path] = context.resctrl.counters(group.path, is_quick=True)
        except HookError:
            pass
    return finals


def _linger(context: Context, state: KeyState) -> KeyState | None:
    """Let a key without members linger, if it may, which no job does."""
    options = context.options
    if not options.linger or state.kind == "job":
        return None
    from hook import host

    if is_deleted(state) or not host.in_host_namespaces():
        return None  # in another namespace neither reclaim nor reconcile would ever end it
    if all(group.end is not None or context.resctrl.is_gone(group.path) for group in state.groups):
        return None
    return life_end.linger(state, read_finals(context, state), system.boottime(), options.linger)


def is_deleted(state: KeyState) -> bool:
    """Whether a key is a pod's whose cgroup is gone or unknown,
    so that no container can come back to it.
    """
    from hook import host

    try:
        return state.kind == "pod" and not (state.cgroup and host.cgroup_directory(state.cgroup))
    except OSError:  # the cgroup may be there
        return False
