# SPDX-License-Identifier: Apache-2.0
"""Members and groups that leave a key which goes on. Imported by retries and by reconcile."""

from __future__ import annotations

from hook.base import system
from hook.stages import remove
from hook.stages.create import is_another_process
from hook.state import lives

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.base.models import KeyState, MonGroup
    from hook.stages.context import Context
    from hook.stages.identity import Container
    from hook.state.store import LockedKey


def give_up(context: Context, key: str, container: Container) -> None:
    """Take a container out of its former key. Another live process that is a member by the same ID stays."""
    with context.run.lock(key, system.monotonic() + context.options.lock_timeout) as locked:
        state = locked.state
        member = state.members.get(container.id) if state else None
        if state is not None and is_another_process(member, container):
            locked.commit(lives.replace(state, members=lives.displace(state.members, container.id)))
        else:
            remove.drop(context, locked, [container.id])


def retire(context: Context, locked: LockedKey, *, left: str | None = None) -> None:
    """Take groups off the record of a key that goes on, which are gone and which no member needs.

    What was used in them goes on as part of another group's `before`. `left`: a group whose container was moved to
    another ctrl_group; it is removed, if no member needs it and it has no task.
    """
    state = locked.state
    if state is None or state.completed_at is not None:
        return
    gone = [group for group in state.groups if is_retired(context, state, group, left=left)]
    kept = [group for group in state.groups if group not in gone]
    if gone and kept:
        over = [lives.end_group(group, remove.read_end(context, group)) if group.begin else group for group in gone]
        locked.commit(lives.change(state, [lives.inherit(kept[0], over), *kept[1:]]))
        context.show(locked.state or state)
        if left in [group.path for group in gone]:
            # After the record and the view, whose links would dangle. Killed before it: an empty group that is on no
            # record, which reconcile removes.
            context.remove(left)


def is_retired(context: Context, state: KeyState, group: MonGroup, *, left: str | None = None) -> bool:
    """Whether a group is gone, or was `left` and is empty, and no member needs it."""
    if group.path in {member.group for member in state.members.values()}:
        return False
    return context.resctrl.inode(group.path) is None or (group.path == left and not context.resctrl.has_live_task(left))


def keep_survivors(
    context: Context, locked: LockedKey, state: KeyState, kept: list[MonGroup], over: list[MonGroup]
) -> None:
    """Keep on record, and show, a key whose last member is gone, but not all of its groups."""
    gone = [group for group in over if group.path not in [it.path for it in kept]]
    locked.commit(lives.resume(state, [lives.inherit(kept[0], gone), *kept[1:]]))
    context.show(locked.state or state)
