# SPDX-License-Identifier: Apache-2.0
"""What createRuntime does when a try failed: wait, free RMIDs, try again, or undo. Imported when that is so."""

from __future__ import annotations

from hook.base import system
from hook.base.errors import HookError
from hook.base.explain import known, refused
from hook.base.reasons import GroupGone, InLimbo, Reason, WrongCtrlGroup
from hook.stages import reclaim, remove, retire
from hook.stages.create import is_another_process
from hook.state import lives

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.stages.context import Context
    from hook.stages.create import Attempt
    from hook.state.store import LockedKey

_LIMBO_POLL = 0.05
_MOST_RETURNS = 3
_NO_RMID = (Reason.NO_RMIDS, Reason.RMIDS_IN_LIMBO)


class Retry:
    """How long, and how often, one createRuntime tries again."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._reclaimed = False
        self._returns = 0
        self._moves = 0
        self._limbo_end: float | None = None

    def can_help(self, error: HookError | OSError) -> bool:
        """Whether another try can help after this failure; waits if waiting can help."""
        if isinstance(error, GroupGone):  # another tool removed the group: three times, or we would chase it for ever
            self._returns += 1
            return self._returns <= _MOST_RETURNS
        if isinstance(error, WrongCtrlGroup):  # the task was moved to another ctrl_group since we looked
            self._moves += 1
            return self._moves == 1
        if isinstance(error, HookError) and error.reason in _NO_RMID and not self._reclaimed:
            self._reclaimed = True  # with no lock held, and once: what it frees others may take, and we would go on
            if reclaim.reclaim(self._attempt.context, self._attempt.key.name):
                return True
        return isinstance(error, InLimbo) and self._wait_for_limbo()

    def _wait_for_limbo(self) -> bool:
        """Wait a little, with no lock held, if an RMID was freed so lately that it can come back in time."""
        now, patience = system.monotonic(), self._attempt.context.options.rmid_wait
        if self._limbo_end is None:
            if not self._attempt.context.run.freed_within(patience):
                return False
            self._limbo_end = now + patience
            self._attempt.deadline += patience
        if now >= self._limbo_end:
            return False
        system.sleep(_LIMBO_POLL)
        return True


def undo(attempt: Attempt) -> None:
    """Take back what a createRuntime that failed has recorded; the failure itself is what is reported."""
    context, container = attempt.context, attempt.container
    if not attempt.recorded or attempt.was_member:
        return
    try:
        with context.run.lock(attempt.key.name, attempt.deadline) as locked:
            member = locked.state.members.get(container.id) if locked.state else None
            # Another live process of this ID is on record where this one did not get as far as that.
            if not is_another_process(member, container):
                remove.drop(context, locked, [container.id], vain=frozenset(attempt.made))
            retire.retire(context, locked)  # what could not be made, and was on record before mkdir
            if attempt.made:
                withdraw(context, locked, attempt.made)
    except (HookError, OSError) as error:
        # The member stays on record; reconcile moves its process in, or drops it once it is dead.
        context.run.complaints.append(known("a failed start could not be undone", error))


def withdraw(context: Context, locked: LockedKey, made: set[str]) -> None:
    """Remove those mon_groups that this call made in vain and that no member is in: each holds an RMID.

    A failure of that is reported, and changes nothing for the container; the groups go with their key then.
    """
    state = locked.state
    if state is None or state.completed_at is not None:
        return
    used = {member.group for member in state.members.values()}
    vain = [group for group in state.groups if group.path in made - used]
    vain = [group for group in vain if not context.resctrl.has_live_task(group.path)]
    try:
        kept, refusal = remove.remove_groups(context, vain)
        # After rmdir, as in remove.end.
        groups = [group for group in state.groups if group not in vain or group in kept]
        gone = [group for group in vain if group not in kept]
        if any(group.before for group in gone) and groups:
            groups[0] = lives.inherit(groups[0], [lives.end_unused_group(group) for group in gone])
        locked.commit(lives.change(state, groups))
        context.show(locked.state or state)
    except OSError as error:
        refusal = refused("could not clean up a mon_group created by a failed attempt", error)
    if refusal is not None:
        context.run.complaints.append(refusal)
