# SPDX-License-Identifier: Apache-2.0
"""After a failed try of createRuntime: undoes it, and decides whether to wait, to reclaim RMIDs, and to try again.

Imported only after a failure, when a container changes its key or its ctrl_group, and by the tools.
"""

from __future__ import annotations

from hook import key, life_end, reclaim, system
from hook.context import displaces
from hook.errors import GONE, WRONG_CTRL_GROUP, HookError, Reason
from hook.models import KeyState
from hook.validation import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from hook.context import Context
    from hook.identity import Container, Key
    from hook.life import Attempt
    from hook.store import LockedKey

_LIMBO_POLL = 0.05
_MOST_RETURNS = 3
_NO_RMID = (Reason.NO_RMIDS, Reason.RMIDS_IN_LIMBO)


def can_help(context: Context, attempt: Attempt, error: HookError | OSError) -> bool:
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
        has_freed = reclaim.reclaim(context, attempt.key)
        # From now on: the search may have taken all of the time, and the RMIDs that it freed must not be lost to a
        # lock that another process holds for a moment. It runs once, so all waits still come to an end.
        attempt.deadline = system.monotonic() + context.options.lock_timeout
        if has_freed:
            return True
    return reason == Reason.RMIDS_IN_LIMBO and _wait_for_limbo(context, attempt)


def _wait_for_limbo(context: Context, attempt: Attempt) -> bool:
    """Wait a little, without a lock, if an RMID was freed so recently that it may be reusable before the deadline."""
    now, patience = system.monotonic(), context.options.rmid_wait
    if attempt.limbo_end is None:
        if not context.run.freed_within(patience):
            return False
        attempt.limbo_end = now + patience
        attempt.deadline += patience
    if now >= attempt.limbo_end:
        return False
    system.sleep(_LIMBO_POLL)
    return True


def undo(context: Context, attempt: Attempt, locked: LockedKey, before: KeyState | None, path: str) -> None:
    """Leave the key of a failed try as it was `before`, under the lock of that try. A failure is reported beside it.

    `path` is the group. See life_end.restore for what stays.
    """
    container, kernel = attempt.container, context.resctrl
    attempt.left = path
    try:
        # If they cannot be read, the container may be among them.
        tasks = (system.try_call(kernel.tasks, path) or {container.pid}) if kernel.has_live_task(path) else set()
        after = life_end.restore(before, locked.state, container, path, tasks)
        is_member = after is not None and container.id in after.members
        key.settle(context, locked, after, [] if is_member else [container.id])
    except (HookError, OSError) as error:
        # The member stays on record; reconcile moves its process in, or drops it once it is dead.
        context.run.complain("a failed start could not be undone", error)


def drop_left(context: Context, attempt: Attempt, locked: LockedKey) -> None:
    """Remove the group of an earlier try in another ctrl_group, if no member needs it and it has no task.

    A failure is reported, and the container is monitored all the same; then the group goes with its key.
    """
    try:
        reclaim.remove_retired(context, locked, left=attempt.left)
    except (HookError, OSError) as error:
        context.run.complain("could not clean up a mon_group created by a failed attempt", error)


def explain_no_starttime(pid: int) -> HookError:
    """Say why the start time of a process is unknown: `task_gone`, or `io` if /proc cannot be read."""
    try:
        system.starttime(pid)
    except (OSError, ValueError, IndexError) as error:
        return HookError(Reason.IO, "unreadable process", pid=pid, tried=error)
    return HookError(Reason.TASK_GONE, "no process", pid=pid)


# --- A process is a member of one key


def leave_other_keys(
    context: Context, former: str | None, container: Container, own: Key, other_keys: Iterable[str]
) -> None:
    """Let a container leave the key that its ID had before, if any; refuse its process if it is in one of the others.

    Of a new container the kernel shows that: see refuse_other_group. A hook lists no keys.
    """
    if former is not None:
        _give_up(context, former, container, own)
    _refuse_second_key(context, container, own[0], other_keys)


def _refuse_second_key(context: Context, container: Container, own: str, keys: Iterable[str]) -> None:
    """Raise HookError `usage` if the process of a container is a member of one of these `keys` besides its `own`.

    Each of two keys would move it to its own group, and be charged for a part of its use. The kinds of both do not
    matter, nor who brings the process in. Tools, which know less of a process, fail (OSError) if a key cannot be read;
    a damaged one is rebuilt from its group.
    """
    for name in keys:
        state = None
        try:
            state = context.run.read(KeyState, name) if name != own else None
        except ValueError:
            pass
        except OSError:
            if not container.is_new:
                raise
        members = state.members if state is not None else {}
        for other, member in members.items():
            if container.is_member(member):
                raise HookError(Reason.USAGE, "second key", pid=container.pid, member=other, key=name)


def refuse_other_group(context: Context, attempt: Attempt, mon_group: str) -> None:
    """Raise HookError `usage` if a process is a member of the key whose mon_group the kernel shows it in.

    A container that a job or another container has started is in that one's group, and no member.
    """
    name = reclaim.parse_key(context, mon_group)
    _refuse_second_key(context, attempt.container, attempt.key, [name] if name is not None else [])


def _give_up(context: Context, former: str, container: Container, own: Key) -> None:
    """Remove a container from its former key. A member of the same ID that is another live process stays.

    A process that joins a job leaves none: this raises HookError `usage`.
    """
    with context.run.lock(former, system.monotonic() + context.options.lock_timeout) as locked:
        state = locked.state
        member = state.members.get(container.id) if state else None
        name, kind = own
        if kind == "job":
            _refuse_second_key(context, container, name, [former])
        if state is not None and member is not None and displaces(container, member):
            from hook import life_turns

            key.settle(context, locked, replace(state, members=life_turns.displace(state.members, container.id)))
        else:
            key.remove_members(context, locked, [container.id])


def refuse_labels(job_labels: dict[str, str], state: KeyState) -> None:
    """Raise HookError `bad_key` about labels that the present run of a job has not begun with.

    If its members are all dead (`io`), the run ends at the next reconcile, which then tries again.
    """
    given, known = (", ".join(map("=".join, each.items())) or "none" for each in (job_labels, state.job_labels))
    dead = (system.is_dead(member.pid, member.starttime) for member in state.members.values())
    raise HookError(Reason.IO if all(dead) else Reason.BAD_KEY, "other labels", key=state.key, given=given, known=known)
