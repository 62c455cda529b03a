# SPDX-License-Identifier: Apache-2.0
"""Decides after a failed try of createRuntime: wait, reclaim RMIDs, try again, or undo.

Also removes members and groups from a key that goes on. Imported only in these cases, and by reconcile.
"""

from __future__ import annotations

from hook import names, poststop, procfs, record, resctrl, system
from hook.create import is_another_process
from hook.errors import HookError, Reason
from hook.explain import GroupGone, InLimbo, WrongCtrlGroup
from hook.models import Index, KeyState
from hook.store import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hook.create import Attempt
    from hook.entry import Context
    from hook.identity import Container
    from hook.models import Member, MonGroup
    from hook.store import LockedKey

_LIMBO_POLL = 0.05
_MOST_RETURNS = 3
_NO_RMID = (Reason.NO_RMIDS, Reason.RMIDS_IN_LIMBO)
_MOST_FREED = 32
_SECONDS = 1.0
SECONDS_IN_VAIN = 5.0
"""How long a reclaim looks for RMIDs that it can free, if it finds none."""


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
        has_freed = reclaim(attempt.context, attempt.key.name)
        # From now on: the search may have taken all of the time, and the RMIDs that it freed must not be lost to a
        # lock that another process holds for a moment. It runs once, so all waits still come to an end.
        attempt.deadline = system.monotonic() + attempt.context.options.lock_timeout
        if has_freed:
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
            # The member of this ID may be another live process, whose place this call did not get to take; or this
            # one, which reconcile has moved into the group meanwhile.
            if state is not None and not is_another_process(member, container) and not _is_in_group(context, member):
                groups = [record.end_unused_group(it) if it.path in attempt.made else it for it in state.groups]
                members = record.without(state.members, [container.id])
                number = state.lives - (attempt.took_back and not members)
                undone = replace(state, groups=groups, members=members, lives=number)
                poststop.drop(context, locked, [container.id], undone)
            retire(context, locked)  # groups that were recorded before mkdir, which then failed
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

    A failure is reported, and the container is monitored all the same; the groups are removed with their key then.
    """
    context, state = attempt.context, locked.state
    if state is None or state.completed_at is not None:
        return
    vain = attempt.made - {member.group for member in state.members.values()}
    over = [
        record.end_unused_group(group)
        for group in state.groups
        if group.path in vain and not context.resctrl.has_live_task(group.path)
    ]
    try:
        if 0 < len(over) < len(state.groups):
            poststop.drop_groups(context, locked, state, over)
    except (HookError, OSError) as error:
        context.run.complain("could not clean up a mon_group created by a failed attempt", error)


def give_up(context: Context, key: str, container: Container) -> None:
    """Remove a container from its former key. A member of the same ID that is another live process stays."""
    with context.run.lock(key, system.monotonic() + context.options.lock_timeout) as locked:
        state = locked.state
        member = state.members.get(container.id) if state else None
        if state is not None and is_another_process(member, container):
            locked.commit(replace(state, members=record.displace(state.members, container.id)))
        else:
            poststop.drop(context, locked, [container.id])


def retire(context: Context, locked: LockedKey, *, left: str | None = None) -> None:
    """Remove groups that are gone, and that no member needs, from the record of a key that goes on.

    `left`: a group whose container was moved to another ctrl_group. It is removed if no member needs it and it has no
    task.
    """
    state = locked.state
    if state is None or state.completed_at is not None:
        return
    over = [
        record.end_group(group, poststop.read_end(context, group) if group.begin else {})
        for group in state.groups
        if is_retired(context, state, group, left=left)
    ]
    if 0 < len(over) < len(state.groups):
        poststop.drop_groups(context, locked, state, over)


def is_retired(context: Context, state: KeyState, group: MonGroup, *, left: str | None = None) -> bool:
    """Whether no member needs a group, and it is gone, or is `left` and has no task."""
    if group.path in {member.group for member in state.members.values()}:
        return False
    return context.resctrl.is_gone(group.path) or (group.path == left and not context.resctrl.has_live_task(left))


# --- Frees RMIDs when the kernel has none left, so that a new pod is not left unmonitored while dead pods hold RMIDs.
# First go the keys whose members are all dead (a finished Job whose poststop was lost), those that have lingered for
# their time, and groups with our prefix that are on no record. If there are none of these, the key goes that has
# lingered longest. Each key's lock is taken without waiting: if another process holds it, the key is skipped.


def reclaim(context: Context, own: str) -> bool:
    """Free some RMIDs, _MOST_FREED at most, in about _SECONDS; returns whether any was freed.

    `own`: the caller's key, which is skipped. The caller holds no lock. Failures are reported, and stop nothing.
    """
    if not procfs.in_host_pid_namespace():
        hint = "run `reconcile` on the host, or take the hook out of the pid namespace"
        error = HookError(Reason.DENIED, f"no RMID is reclaimed: {procfs.NOT_HOST_PIDS}", hint=hint)
        context.run.complaints.append(error)
        return False
    before, began = context.freed, system.monotonic()

    def is_over() -> bool:
        """Whether to stop. On a slow node the search for a first group may take longer than _SECONDS."""
        freed = context.freed - before
        return freed >= _MOST_FREED or system.monotonic() - began >= (_SECONDS if freed else SECONDS_IN_VAIN)

    try:
        waiting = _end_dead(context, own, is_over)
        groups = [] if is_over() else system.try_call(resctrl.list_mon_groups, context.resctrl.root) or []
        for path in find_orphans(context, groups):
            if is_over():
                break
            try:
                remove_orphan(context, path)
            except HookError:
                pass  # its lock is busy, or the kernel refuses: it stays
        for state in sorted(waiting, key=lambda state: state.lingering_since or 0.0):
            if context.freed > before or is_over():
                break
            _end(context, state.key, waiting=True)
    except (HookError, OSError) as error:
        context.run.complain("RMIDs could not be reclaimed", error)
    return context.freed > before


def _end_dead(context: Context, own: str, is_over: Callable[[], bool]) -> list[KeyState]:
    """End dead keys until that is over; returns the keys met that still linger."""
    waiting = []
    for key in context.run.names(KeyState):
        if is_over():
            break
        state = context.run.glance(KeyState, key) if key != own else None
        if state is None or not is_deserted(state):
            continue
        if _waits(context, state):
            waiting.append(state)
        else:
            _end(context, key)
    return waiting


def is_deserted(state: KeyState) -> bool:
    """Whether a key has groups and all of its members, if any, are known to be dead."""
    if state.completed_at is not None or state.recovering or not state.groups:
        return False
    return all(procfs.is_dead(member.pid, member.starttime) for member in state.members.values())


def _waits(context: Context, state: KeyState) -> bool:
    """Whether a key lingers, and its time is not over."""
    return state.lingering_since is not None and not state.members and not has_lingered(context, state)


def has_lingered(context: Context, state: KeyState) -> bool:
    """Whether the linger time of a key is over, or it has nothing to linger for: its pod or its groups are gone."""
    since, until = state.lingering_since, state.lingering_until
    if since is None or until is None:
        return True
    if context.longest_linger is not None:
        until = min(until, since + context.longest_linger)
    if system.boottime() >= until:
        return True
    if context.resctrl.is_mounted() and all(context.resctrl.is_gone(group.path) for group in state.groups):
        return True
    return poststop.is_deleted(state)


def _end(context: Context, key: str, *, waiting: bool = False) -> None:
    """End a key if it is still dead under its lock; `waiting`: even if it still lingers."""
    try:
        with context.run.lock(key, system.monotonic()) as locked:
            state = locked.state  # read again: a hook, or another reclaim, may have been here since we looked
            if state is not None and is_deserted(state) and (waiting or not _waits(context, state)):
                poststop.end(context, locked, state)
                for container in state.members:
                    context.run.remove(Index, container)
    except HookError:
        pass  # its lock is busy, or the kernel refuses: it stays on record


# --- Groups with our prefix that are on record of no key


def find_orphans(context: Context, paths: Iterable[str]) -> list[str]:
    """Find the groups with our prefix that are on record of no key, among those of these paths.

    The paths are listed before this reads the records: createRuntime records a group before it makes it.
    """
    lone = [path for path in paths if parse_key(context, path) is not None and not is_recorded(context, path)]
    states = context.run.list_states() if lone else []  # their groups may have another prefix
    taken = {group.path for state in states if state.completed_at is None for group in state.groups}
    return [path for path in lone if path not in taken]


def parse_key(context: Context, path: str) -> str | None:
    """Derive the key of a group from its name; None: it is not our prefix followed by a valid key.

    The name alone may mislead: a group of another prefix that begins with ours is on record of another key.
    """
    name, prefix = path.rpartition("/")[2], context.options.group_prefix
    key = name[len(prefix) :] if name.startswith(prefix) else ""
    return key if names.is_container_id(key) else None


def remove_orphan(context: Context, path: str) -> bool:
    """Remove a group with our prefix, unless it is on record or has a live task. Returns whether it was removed."""
    key = parse_key(context, path)
    if key is None:
        return False
    # Under the lock of the key in its name: a hook records a group, under that lock, before it makes it.
    with context.run.lock(key, system.monotonic()) as locked:
        if _is_on(path, locked.state) or context.resctrl.has_live_task(path):
            return False
        if locked.state is None or not locked.state.generation:  # the view before its links dangle
            context.view.remove(key)
        else:
            context.view.show(locked.state)
        return poststop.remove_group(context, path)


def is_recorded(context: Context, path: str) -> bool:
    """Whether a group is on the record of the key in its name, read without a lock."""
    key = parse_key(context, path)
    return key is not None and _is_on(path, context.run.glance(KeyState, key))


def _is_on(path: str, state: KeyState | None) -> bool:
    """Whether a state names a group, or is recovering, so that it may have named it."""
    if state is None or state.completed_at is not None:
        return False
    return state.recovering or path in [group.path for group in state.groups]
