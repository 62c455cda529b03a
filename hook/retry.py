# SPDX-License-Identifier: Apache-2.0
"""Decides after a failed try of createRuntime: wait, reclaim RMIDs, try again, or undo.

Imported only after a failure, when a container changes its key or its ctrl_group, and by the tools.
"""

from __future__ import annotations

from hook import key, names, reclaim, system
from hook.errors import GONE, WRONG_CTRL_GROUP, HookError, Reason
from hook.models import Index
from hook.validation import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.create import Attempt
    from hook.entry import Context
    from hook.identity import Container
    from hook.models import Member, MonGroup
    from hook.store import LockedKey

_LIMBO_POLL = 0.05
_MOST_RETURNS = 3
_NO_RMID = (Reason.NO_RMIDS, Reason.RMIDS_IN_LIMBO)


def can_help(attempt: Attempt, error: HookError | OSError) -> bool:
    """Whether another try can help after this failure; waits if waiting can help."""
    reason, kind = (error.reason, error.kind) if isinstance(error, HookError) else ("", "")
    if kind in GONE:  # another tool removed the group: three tries at most, for it may go on
        attempt.returns += 1
        return attempt.returns <= _MOST_RETURNS
    if kind == WRONG_CTRL_GROUP:  # the task was moved to another ctrl_group since we looked
        attempt.moves += 1
        return attempt.moves == 1
    if reason in _NO_RMID and not attempt.has_reclaimed:
        attempt.has_reclaimed = True  # without a lock, and once: other hooks may take each RMID that it frees
        has_freed = reclaim.reclaim(attempt.context, attempt.key.name)
        # From now on: the search may have taken all of the time, and the RMIDs that it freed must not be lost to a
        # lock that another process holds for a moment. It runs once, so all waits still come to an end.
        attempt.deadline = system.monotonic() + attempt.context.options.lock_timeout
        if has_freed:
            return True
    return reason == Reason.RMIDS_IN_LIMBO and _wait_for_limbo(attempt)


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
            # Leave the record alone in two cases: the ID belongs to another live process (we had not replaced it yet),
            # or reconcile has already put our process into the group.
            if state is not None and not container.displaces(member) and not _is_in_group(context, member):
                groups = [_end_unused_group(group) if group.path in attempt.made else group for group in state.groups]
                members = key.without(state.members, [container.id])
                # As it would be without this call: the container was never in a group of it.
                fields = {"members": members, "runs": state.runs - (attempt.took_back and not members)}
                key.go_on_or_end(context, locked, replace(state, groups=groups, **fields), fields, None)
                if container.id not in members:
                    context.run.remove(Index, container.id)  # last: as in key.drop
            reclaim.retire(context, locked)  # groups that were recorded before mkdir, which then failed
            if attempt.made:
                drop_made(attempt, locked)
    except (HookError, OSError) as error:
        # The member stays on record; reconcile moves its process in, or drops it once it is dead.
        context.run.complain("a failed start could not be undone", error)


def _is_in_group(context: Context, member: Member | None) -> bool:
    """Whether a member's first process is in its group; True if the kernel does not say."""
    if member is None or not context.resctrl.has_live_task(member.group):
        return False
    return member.pid in (system.try_call(context.resctrl.tasks, member.group) or {member.pid})


def drop_made(attempt: Attempt, locked: LockedKey) -> None:
    """Remove the mon_groups that this call made and no member is in: each holds an RMID.

    A failure is reported, and the container is monitored all the same; then the groups go with their key.
    """
    context, state = attempt.context, locked.state
    if state is None or state.completed_at is not None:
        return
    unneeded = attempt.made - {member.group for member in state.members.values()}
    over = [
        _end_unused_group(group)
        for group in state.groups
        if group.path in unneeded and not context.resctrl.has_live_task(group.path)
    ]
    try:
        if 0 < len(over) < len(state.groups):
            key.drop_groups(context, locked, state, over)
    except (HookError, OSError) as error:
        context.run.complain("could not clean up a mon_group created by a failed attempt", error)


def give_up(context: Context, former: str, container: Container, *, is_job: bool) -> None:
    """Remove a container from its former key. A member of the same ID that is another live process stays.

    A process that joins a job leaves none: this raises HookError `usage`.
    """
    with context.run.lock(former, system.monotonic() + context.options.lock_timeout) as locked:
        state = locked.state
        member = state.members.get(container.id) if state else None
        if is_job and container.is_member(member):
            raise HookError(Reason.USAGE, f"process {container.pid} is of {container.id}, a member of key {former}")
        if state is not None and container.displaces(member):
            locked.commit(replace(state, members=displace(state.members, container.id)))
        else:
            key.drop(context, locked, [container.id])


def _end_unused_group(group: MonGroup) -> MonGroup:
    """End a group that never had a member: its directory used 0 of each counter."""
    nothing = dict.fromkeys(group.before, "0")
    return replace(group, inode=None, begin=nothing, end=nothing, last=None)


# --- Members of one container ID


def displace(members: dict[str, Member], container: str) -> dict[str, Member]:
    """Rename a member whose container ID belongs to another process from now on."""
    remaining = dict(members)
    member = remaining.pop(container)
    remaining[names.displaced_member(container, member.pid, member.starttime)] = member
    return remaining


def rejoin(members: dict[str, Member], container: str, member: Member, *, displaces: bool) -> dict[str, Member]:
    """Add a member in the place of the one of the same ID, which stays under another name if this one displaces it."""
    remaining = displace(members, container) if displaces else dict(members)
    remaining[container] = member
    # The older of two processes of this ID had its hook called again: it is displaced no more.
    remaining.pop(names.displaced_member(container, member.pid, member.starttime), None)
    return remaining
