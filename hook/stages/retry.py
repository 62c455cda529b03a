# SPDX-License-Identifier: Apache-2.0
"""Decides after a failed try of createRuntime: wait, free RMIDs, try again, or undo.

Also removes members and groups from a key that goes on. Imported only in these cases, and by reconcile.
"""

from __future__ import annotations

from hook.base import system
from hook.base.errors import HookError, Reason
from hook.base.explain import GroupGone, InLimbo, WrongCtrlGroup
from hook.stages import reclaim, remove
from hook.stages.create import is_another_process
from hook.state import lives
from hook.state.store import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.base.models import KeyState, MonGroup
    from hook.stages.create import Attempt
    from hook.stages.entry import Context
    from hook.stages.identity import Container
    from hook.state.store import LockedKey

_LIMBO_POLL = 0.05
_MOST_RETURNS = 3
_NO_RMID = (Reason.NO_RMIDS, Reason.RMIDS_IN_LIMBO)


def can_help(attempt: Attempt, error: HookError | OSError) -> bool:
    """Whether another try can help after this failure; waits if waiting can help."""
    if isinstance(error, GroupGone):  # another tool removed the group: three tries at most, for it may go on
        attempt.returns += 1
        return attempt.returns <= _MOST_RETURNS
    if isinstance(error, WrongCtrlGroup):  # the task was moved to another ctrl_group since we looked
        attempt.moves += 1
        return attempt.moves == 1
    if isinstance(error, HookError) and error.reason in _NO_RMID and not attempt.has_reclaimed:
        attempt.has_reclaimed = True  # without a lock, and once: other hooks may take each RMID that it frees
        if reclaim.reclaim(attempt.context, attempt.key.name):
            return True
    return isinstance(error, InLimbo) and _wait_for_limbo(attempt)


def _wait_for_limbo(attempt: Attempt) -> bool:
    """Wait a little, without a lock, if an RMID was freed so recently that it may be reusable before the deadline."""
    now, patience = system.monotonic(), attempt.context.options.rmid_wait
    if attempt.limbo_end is None:
        if not attempt.context.run.freed_within(patience):
            return False
        attempt.limbo_end = now + patience
        attempt.deadline += patience
    if now >= attempt.limbo_end:
        return False
    system.sleep(_LIMBO_POLL)
    return True


def undo(attempt: Attempt) -> None:
    """Remove what a failed createRuntime has recorded. If that fails, too, it is reported beside the first failure."""
    context, container = attempt.context, attempt.container
    if not attempt.recorded or attempt.was_member:
        return
    try:
        with context.run.lock(attempt.key.name, attempt.deadline) as locked:
            state = locked.state
            member = state.members.get(container.id) if state else None
            # The member of this ID is another live process, and this call failed before it took its place.
            if state is not None and not is_another_process(member, container):
                groups = [lives.end_unused_group(it) if it.path in attempt.made else it for it in state.groups]
                members = lives.without(state.members, [container.id])
                number = state.lives - (attempt.took_back and not members)
                undone = replace(state, groups=groups, members=members, lives=number)
                remove.drop(context, locked, [container.id], undone)
            retire(context, locked)  # groups that were recorded before mkdir, which then failed
            if attempt.made:
                drop_made(attempt, locked)
    except (HookError, OSError) as error:
        # The member stays on record; reconcile moves its process in, or drops it once it is dead.
        context.run.complain("a failed start could not be undone", error)


def drop_made(attempt: Attempt, locked: LockedKey) -> None:
    """Remove the mon_groups that this call made and no member is in: each holds an RMID.

    A failure is reported, and the container is monitored all the same; the groups are removed with their key then.
    """
    context, state = attempt.context, locked.state
    if state is None or state.completed_at is not None:
        return
    vain = attempt.made - {member.group for member in state.members.values()}
    over = [
        lives.end_unused_group(group)
        for group in state.groups
        if group.path in vain and not context.resctrl.has_live_task(group.path)
    ]
    try:
        if 0 < len(over) < len(state.groups):
            remove.drop_groups(context, locked, state, over)
    except (HookError, OSError) as error:
        context.run.complain("could not clean up a mon_group created by a failed attempt", error)


def give_up(context: Context, key: str, container: Container) -> None:
    """Remove a container from its former key. A member of the same ID that is another live process stays."""
    with context.run.lock(key, system.monotonic() + context.options.lock_timeout) as locked:
        state = locked.state
        member = state.members.get(container.id) if state else None
        if state is not None and is_another_process(member, container):
            locked.commit(replace(state, members=lives.displace(state.members, container.id)))
        else:
            remove.drop(context, locked, [container.id])


def retire(context: Context, locked: LockedKey, *, left: str | None = None) -> None:
    """Remove groups that are gone, and that no member needs, from the record of a key that goes on.

    `left`: a group whose container was moved to another ctrl_group. It is removed if no member needs it and it has no
    task.
    """
    state = locked.state
    if state is None or state.completed_at is not None:
        return
    over = [
        lives.end_group(group, remove.read_end(context, group) if group.begin else {})
        for group in state.groups
        if is_retired(context, state, group, left=left)
    ]
    if 0 < len(over) < len(state.groups):
        remove.drop_groups(context, locked, state, over)


def is_retired(context: Context, state: KeyState, group: MonGroup, *, left: str | None = None) -> bool:
    """Whether no member needs a group, and it is gone, or is `left` and has no task."""
    if group.path in {member.group for member in state.members.values()}:
        return False
    return context.resctrl.inode(group.path) is None or (group.path == left and not context.resctrl.has_live_task(left))
