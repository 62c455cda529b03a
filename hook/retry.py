# SPDX-License-Identifier: Apache-2.0
"""After a failed try of createRuntime: undoes it, and decides whether to wait, to reclaim RMIDs, and to try again.

Imported only after a failure, when a container changes its key or its ctrl_group, and by the tools.
"""

from __future__ import annotations

from hook import key, life_turns, reclaim, system
from hook.errors import GONE, WRONG_CTRL_GROUP, HookError, Reason
from hook.validation import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.context import Context
    from hook.identity import Container
    from hook.life import Attempt
    from hook.models import KeyState
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


def undo(attempt: Attempt, locked: LockedKey, before: KeyState | None, path: str) -> None:
    """Leave the key of a failed try as it was `before`, under the lock of that try. A failure is reported beside it.

    `path` is the group. A container that was a member before stays one.
    """
    context, container, present = attempt.context, attempt.container, locked.state
    attempt.left = path
    had_group = life_turns.has_group(before, path)
    try:
        if before is not None and container.is_member(before.members.get(container.id)):
            context.view.show(present or before)  # the try has hidden the view if the group was gone
        elif not _is_needed(context, container, path, had_group=had_group):
            known = [(group.path, group.inode) for group in present.groups] if present is not None else []
            if had_group and (path, context.resctrl.inode(path)) not in known:
                key.remove_group(context, path)  # it was made again, and its counters could not be read
            is_member = before is not None and container.id in before.members
            after = life_turns.restore(before, present, path)
            key.settle(context, locked, after, [] if is_member else [container.id])
            if after is not None and after.generation:
                context.view.show(after)  # as above
    except (HookError, OSError) as error:
        # The member stays on record; reconcile moves its process in, or drops it once it is dead.
        context.run.complain("a failed start could not be undone", error)


def _is_needed(context: Context, container: Container, path: str, *, had_group: bool) -> bool:
    """Whether reconcile has moved the process into the group, or a new group has a live task, or that is unknown."""
    tasks = system.try_call(context.resctrl.tasks, path) or {container.pid}
    return context.resctrl.has_live_task(path) and (not had_group or container.pid in tasks)


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
            key.settle(context, locked, replace(state, members=life_turns.displace(state.members, container.id)))
        else:
            key.leave(context, locked, [container.id])


def refuse_labels(labels: dict[str, str], state: KeyState) -> None:
    """Raise HookError `bad_key` about labels that the present run of a job has not begun with.

    If its members are all dead (`io`), the run ends at the next reconcile, which then tries again.
    """
    given, known = (", ".join(map("=".join, each.items())) or "none" for each in (labels, state.job_labels))
    dead = (system.is_dead(member.pid, member.starttime) for member in state.members.values())
    raise HookError(Reason.IO if all(dead) else Reason.BAD_KEY, "other labels", key=state.key, given=given, known=known)
