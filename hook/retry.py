# SPDX-License-Identifier: Apache-2.0
"""After a failed try of createRuntime: undoes it, and decides whether to wait, to reclaim RMIDs, and to try again.

Imported only after a failure, when a container changes its key or its ctrl_group, and by the tools.
"""

from __future__ import annotations

from hook import key, names, reclaim, system
from hook.errors import GONE, WRONG_CTRL_GROUP, HookError, Reason
from hook.models import Index
from hook.validation import replace
from hook.view import next_generation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.context import Context
    from hook.create import Attempt
    from hook.identity import Container
    from hook.models import KeyState, Member
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


def undo(attempt: Attempt, locked: LockedKey, before: KeyState | None, path: str, *, made: bool) -> None:
    """Leave the key of a failed try as it was `before`, under the lock of that try. A failure is reported beside it.

    `path` is the group, and `made` whether the try made it. A container that was a member before stays one.
    """
    context, container = attempt.context, attempt.container
    attempt.left = path
    try:
        if before is not None and container.is_member(before.members.get(container.id)):
            context.view.show(locked.state or before)  # the try has hidden the view if the group was gone
        elif not _is_needed(context, container, path, made=made):
            _restore(attempt, locked, before, path, made=made)
            if before is None or container.id not in before.members:
                context.run.remove(Index, container.id)  # last: as in key.drop
    except (HookError, OSError) as error:
        # The member stays on record; reconcile moves its process in, or drops it once it is dead.
        context.run.complain("a failed start could not be undone", error)


def _is_needed(context: Context, container: Container, path: str, *, made: bool) -> bool:
    """Whether reconcile has moved the process into the group, or a new group has another task, or that is unknown."""
    tasks = system.try_call(context.resctrl.tasks, path) or {container.pid}
    return context.resctrl.has_live_task(path) and (made or container.pid in tasks)


def _restore(attempt: Attempt, locked: LockedKey, before: KeyState | None, path: str, *, made: bool) -> None:
    """Restore the record and the view of a key, and remove the group that was made, unless the key had it before."""
    context, now = attempt.context, locked.state
    if before is not None and now is not None and made:
        had = any(group.path == path and group.end is None for group in before.groups)
        if had and (path, context.resctrl.inode(path)) in [(group.path, group.inode) for group in now.groups]:
            # It was made again, and its begin was read.
            before, made = replace(before, groups=now.groups, generation=now.generation and next_generation(now)), False
    if before is None or not before.generation:
        context.view.remove(attempt.key.name)
    elif not context.view.is_current(before):  # no two views of a key have one generation
        before = replace(before, generation=next_generation(now or before))
    # The record before rmdir, and the view before its links dangle. Killed in between: a group without a record and
    # without a task, which reconcile removes.
    if before is not None:
        locked.commit(before)
        context.view.show(before)
    if made:
        key.remove_group(context, path)
    if before is None and now is not None:
        locked.clear()  # after rmdir: as in key.drop_groups


def drop_left(attempt: Attempt, locked: LockedKey) -> None:
    """Remove the group of an earlier try in another ctrl_group, if no member needs it and it has no task.

    A failure is reported, and the container is monitored all the same; then the group goes with its key.
    """
    try:
        reclaim.retire(attempt.context, locked, left=attempt.left)
    except (HookError, OSError) as error:
        attempt.context.run.complain("could not clean up a mon_group created by a failed attempt", error)


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


def refuse_labels(labels: dict[str, str], state: KeyState) -> None:
    """Raise HookError `bad_key` about labels that the present run of a job has not begun with.

    If its members are all dead (`io`), the run ends at the next reconcile, which then tries again.
    """
    given, known = (", ".join(map("=".join, each.items())) or "none" for each in (labels, state.job_labels))
    dead = (system.is_dead(member.pid, member.starttime) for member in state.members.values())
    raise HookError(Reason.IO if all(dead) else Reason.BAD_KEY, "other labels", key=state.key, given=given, known=known)


# --- Members of one container ID


def displace(members: dict[str, Member], container: str) -> dict[str, Member]:
    """Rename a member whose container ID belongs to another process from now on."""
    remaining = dict(members)
    member = remaining.pop(container)
    remaining[names.name_displaced(container, member.pid, member.starttime)] = member
    return remaining


def rejoin(members: dict[str, Member], container: str, member: Member, *, displaces: bool) -> dict[str, Member]:
    """Add a member in the place of the one of the same ID, which stays under another name if this one displaces it."""
    remaining = displace(members, container) if displaces else dict(members)
    remaining[container] = member
    # The older of two processes of this ID had its hook called again: it is displaced no more.
    remaining.pop(names.name_displaced(container, member.pid, member.starttime), None)
    return remaining
