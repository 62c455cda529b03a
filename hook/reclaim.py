# SPDX-License-Identifier: Apache-2.0
"""After a failed try of createRuntime: undoes it, frees RMIDs if there are none,
and decides whether to try again.

A new pod is not left unmonitored while dead pods hold RMIDs. First go the keys whose members are
all dead (a finished Job whose poststop was lost), those that have lingered for their time, and
groups with our prefix that are on record of no key. If there are none of these, the key goes that
has lingered longest. Each key's lock is taken without waiting: if another process holds it, the key
is skipped.

Imported only in these cases, if a group has lingered long enough, and by the tools.
"""

from __future__ import annotations

from hook import host, inventory, key, life_end, names, store, system
from hook.errors import GONE, WRONG_CTRL_GROUP, HookError, Reason
from hook.models import KeyState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hook.context import Context
    from hook.life import Attempt
    from hook.models import MonGroup
    from hook.store import LockedKey, RunDir

_LIMBO_POLL = 0.05
_MOST_RETURNS = 3
_NO_RMID = (Reason.NO_RMIDS, Reason.RMIDS_IN_LIMBO)
_MOST_FREED = 32
_SECONDS = 1.0
LONGEST_SEARCH = 5.0


# --- After a failed try of createRuntime


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
        # Without a lock, and once: other hooks may take each RMID that it frees.
        attempt.has_reclaimed = True
        has_freed = reclaim(context, attempt.key)
        # From now on: the search may have taken all of the time, and the RMIDs that it freed must
        # not be lost to a lock that another process holds for a moment. It runs once, so all
        # waits still come to an end.
        attempt.deadline = system.monotonic() + context.options.lock_timeout
        if has_freed:
            return True
    return reason == Reason.RMIDS_IN_LIMBO and _wait_for_limbo(context, attempt)


def _wait_for_limbo(context: Context, attempt: Attempt) -> bool:
    """Wait a little, without a lock, if an RMID was freed so recently that it may be
    reusable before the deadline.
    """
    now, patience = system.monotonic(), context.options.rmid_wait
    if attempt.limbo_end is None:
        if not freed_within(context.run, patience):
            return False
        attempt.limbo_end = now + patience
        attempt.deadline += patience
    if now >= attempt.limbo_end:
        return False
    system.sleep(_LIMBO_POLL)
    return True


def freed_within(run: RunDir, seconds: float) -> bool:
    """Whether one of our groups gave an RMID back within the last `seconds`."""
    try:
        freed = float(system.read_file("freed", limit=64, dir_fd=run.descriptor))
    except (OSError, ValueError):
        return False
    return system.boottime() - freed <= seconds


def undo(
    context: Context, attempt: Attempt, locked: LockedKey, before: KeyState | None, path: str
) -> None:
    """Leave the key of a failed try as it was `before`, under the lock of that try.

    A failure is reported beside it.

    `path` is the group. See life_end.restore for what stays.
    """
    container, kernel = attempt.container, context.resctrl
    attempt.left = path
    try:
        listed = system.try_call(kernel.tasks, path)
        # If they cannot be read, the container may be among them.
        tasks = (listed or {container.pid}) if kernel.has_live_task(path) else set[int]()
        after = life_end.restore(before, locked.state, container, path, tasks)
        is_member = after is not None and container.id in after.members
        key.settle(context, locked, after, [] if is_member else [container.id])
    except (HookError, OSError) as error:
        # The member stays on record; reconcile moves its process in, or drops it once it is dead.
        context.run.complain("a failed start could not be undone", error)


def drop_left(context: Context, attempt: Attempt, locked: LockedKey) -> None:
    """Remove the group of an earlier try in another ctrl_group,
    if no member needs it and it has no task.

    A failure is reported, and the container is monitored all the same;
    then the group goes with its key.
    """
    try:
        remove_retired(context, locked, left=attempt.left)
    except (HookError, OSError) as error:
        context.run.complain("could not clean up a mon_group created by a failed attempt", error)


# --- Keys that hold RMIDs for no live member


def reclaim(context: Context, skipped: str) -> bool:
    """Free some RMIDs, _MOST_FREED at most, in about _SECONDS; returns whether any was freed.

    `skipped` is the caller's key. The caller holds no lock.
    Failures are reported, and stop nothing.
    """
    if not host.in_host_namespaces():
        context.run.complaints.append(HookError(Reason.DENIED, "not host namespaces"))
        return False
    before, began = context.freed, system.monotonic()

    def has_enough() -> bool:
        """Whether to stop.

        On a slow node the search for a first group may take longer than _SECONDS.
        """
        freed = context.freed - before
        return freed >= _MOST_FREED or system.monotonic() - began >= (
            _SECONDS if freed else LONGEST_SEARCH
        )

    try:
        waiting = _end_dead(context, skipped, has_enough)
        groups = (
            []
            if has_enough()
            else system.try_call(inventory.list_mon_groups, context.resctrl.root) or []
        )
        for path in find_orphans(context, groups):
            if has_enough():
                break
            try:
                remove_orphan(context, path)
            except HookError:
                pass  # its lock is busy, or the kernel refuses: it stays
        for state in sorted(waiting, key=lambda state: state.lingering_since or 0.0):
            if context.freed > before or has_enough():
                break
            _end(context, state.key, waiting=True)
    except (HookError, OSError) as error:
        context.run.complain("RMIDs could not be reclaimed", error)
    return context.freed > before


def _end_dead(context: Context, skipped: str, has_enough: Callable[[], bool]) -> list[KeyState]:
    """End dead keys until that is enough; returns the keys met that still linger."""
    waiting = []
    for name in store.list_records(context.run, KeyState):
        if has_enough():
            break
        state = context.run.glance(KeyState, name) if name != skipped else None
        if state is None or not is_deserted(state):
            continue
        if _waits(context, state):
            waiting.append(state)
        else:
            _end(context, name)
    return waiting


def is_deserted(state: KeyState) -> bool:
    """Whether a key has groups and all of its members, if any, are known to be dead."""
    if state.completed_at is not None or state.recovering or not state.groups:
        return False
    return all(system.is_dead(member.pid, member.starttime) for member in state.members.values())


def _waits(context: Context, state: KeyState) -> bool:
    """Whether a key lingers, and its time is not over."""
    return (
        state.lingering_since is not None and not state.members and not has_lingered(context, state)
    )


def has_lingered(context: Context, state: KeyState) -> bool:
    """Whether the linger time of a key is over, or it has nothing to linger for:
    its pod or its groups are gone.
    """
    since, until = state.lingering_since, state.lingering_until
    if since is None or until is None:
        return True
    if system.boottime() >= until:
        return True
    if context.resctrl.is_mounted() and all(
        context.resctrl.is_gone(group.path) for group in state.groups
    ):
        return True
    return key.is_deleted(state)


def _end(context: Context, name: str, *, waiting: bool = False) -> None:
    """End a key if it is still dead under its lock; with `waiting`, even if it still lingers."""
    try:
        with context.run.lock(name, system.monotonic()) as locked:
            # Read again: a hook, or another reclaim, may have been here since we looked.
            state = locked.state
            if state is not None and is_deserted(state) and (waiting or not _waits(context, state)):
                key.write_end(context, locked)
    except HookError:
        pass  # its lock is busy, or the kernel refuses: it stays on record


def end_lingered(context: Context, locked: LockedKey) -> None:
    """End a key whose linger time is over, before a container begins its next run.

    A failure is reported.
    """
    try:
        key.write_end(context, locked)
    except (HookError, OSError) as error:
        context.run.complain("a key that has lingered long enough could not be ended", error)


# --- Groups with our prefix that are on record of no key


def find_orphans(context: Context, paths: Iterable[str]) -> list[str]:
    """Find the groups with our prefix that are on record of no key, among those of these paths.

    The paths are listed before this reads the records:
    createRuntime records a group before it makes it.
    """
    lone = [
        path
        for path in paths
        if parse_key(context, path) is not None and not is_recorded(context, path)
    ]
    # Their groups may have another prefix.
    states = store.list_states(context.run) if lone else []
    taken = {group.path for state in states if state.completed_at is None for group in state.groups}
    return [path for path in lone if path not in taken]


def parse_key(context: Context, path: str) -> str | None:
    """Derive the key of a group from its name, which is our prefix and a valid key;
    of another name return None.

    The name alone may mislead: a group of another prefix that begins with ours is
    on record of another key.
    """
    name, prefix = path.rpartition("/")[2], context.options.group_prefix
    rest = name[len(prefix) :] if name.startswith(prefix) else ""
    return rest if names.is_container_id(rest) else None


def remove_orphan(context: Context, path: str) -> bool:
    """Remove a group with our prefix, unless it is on record or has a live task.

    Returns whether it was removed.
    """
    name = parse_key(context, path)
    if name is None:
        return False
    # Under the lock of the key in its name: a hook records a group,
    # under that lock, before it makes it.
    with context.run.lock(name, system.monotonic()) as locked:
        if _is_on(path, locked.state) or context.resctrl.has_live_task(path):
            return False
        freed = context.freed
        key.settle(context, locked, locked.state, removes=[path])
        return context.freed > freed


def is_recorded(context: Context, path: str) -> bool:
    """Whether a group is on the record of the key in its name, read without a lock."""
    name = parse_key(context, path)
    return name is not None and _is_on(path, context.run.glance(KeyState, name))


def _is_on(path: str, state: KeyState | None) -> bool:
    """Whether a state names a group, or is recovering, so that it may have named it."""
    if state is None or state.completed_at is not None:
        return False
    return state.recovering or path in [group.path for group in state.groups]


# --- Groups that no member of their key needs


def remove_retired(context: Context, locked: LockedKey, *, left: str | None = None) -> None:
    """Remove groups that are gone, and that no member needs, from the record of a key that goes on.

    So goes `left`, a group whose container was moved to another ctrl_group,
    if no member needs it and it has no task.
    """
    state = locked.state
    if state is None or state.completed_at is not None:
        return
    unneeded = [group for group in state.groups if is_retired(context, state, group, left=left)]
    if 0 < len(unneeded) < len(state.groups):
        finals = key.read_finals(
            context, state, [group.path for group in state.groups if group not in unneeded]
        )
        ended = [life_end.finish(group, finals.get(group.path)) for group in unneeded]
        key.settle(context, locked, life_end.retire(state, ended))


def is_retired(
    context: Context, state: KeyState, group: MonGroup, *, left: str | None = None
) -> bool:
    """Whether no member needs a group, and it is gone, or is `left` and has no task."""
    if group.path in {member.group for member in state.members.values()}:
        return False
    return context.resctrl.is_gone(group.path) or (
        group.path == left and not context.resctrl.has_live_task(left)
    )
