# SPDX-License-Identifier: Apache-2.0
"""poststop: a container leaves its key. After its last member a key lingers or ends, and its counters stay for a while.

Read `poststop`, then `drop`, `end` and `drop_groups`, which run under the key's lock. reconcile, reclaim and a
createRuntime that failed use the same steps.
"""

from __future__ import annotations

from hook import procfs, record, system
from hook.errors import HookError
from hook.models import Failure, Index
from hook.store import change, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.entry import Context
    from hook.models import KeyState, Member, MonGroup
    from hook.store import LockedKey, RunDir

FAILURE_PATIENCE = 1.0
"""Seconds: the longest wait for the lock of a failure's record, which is that of a key with the container's ID."""


def poststop(context: Context, container: str) -> None:
    """Remove a container from its key; with the last one go its mon_groups, state and lock.

    For an unknown container, or one that was removed before, this is a no-op. A member whose process is alive stays:
    Podman may call this late, next to the next life of the same container; and two runtimes, or two root directories of
    one, may each have a container of this ID. Raises HookError, OSError.
    """
    if context.run.has(Failure, container):
        forget_failure(context.run, container)
    key = context.run.read_index(container)
    if key is None:
        return
    with context.run.lock(key, system.monotonic() + context.options.lock_timeout) as locked:
        members = locked.state.members if locked.state else {}
        member = members.get(container)
        if member is not None and context.options.containers != "all" and not _is_meant(context, container, member):
            return
        over = [] if member is not None and procfs.is_dead(member.pid, member.starttime) is False else [container]
        for name, former in members.items():
            if name.startswith(container + "@") and procfs.is_dead(former.pid, former.starttime):
                over.append(name)
        if over:
            drop(context, locked, over, is_own=member is not None and container in over)


def forget_failure(run: RunDir, container: str, pid: int | None = None) -> None:
    """Remove the record of a container's failure, unless it is of a process that may be alive and is not this one."""
    try:
        # Under the lock of its writers: the container's next life may fail at this moment, and that record stays.
        with run.lock(container, system.monotonic() + FAILURE_PATIENCE):
            if not has_live_failure(run, container, pid):
                run.remove(Failure, container)
    except (HookError, OSError):  # reconcile removes it
        pass


def has_live_failure(run: RunDir, container: str, pid: int | None = None) -> bool:
    """Whether a process other than `pid` that failed to be monitored under this ID may be alive."""
    try:
        failure = run.read(Failure, container)
    except ValueError:  # damaged, or of a newer version
        return False
    except OSError:  # reconcile removes it after a day
        return True
    if failure is None or failure.pid is None or failure.pid == pid:
        return False
    return procfs.is_dead(failure.pid, failure.starttime) is False


def _is_meant(context: Context, container: str, member: Member) -> bool:
    """Whether this call's `--containers` covers the container, by its recorded cgroup: its annotations may be gone."""
    from hook import identity

    maker = identity.find_maker(procfs.find_own(member.cgroup or "", container), container)
    return maker is None or identity.concerns(context.options, is_podmans=maker == "libpod")


def drop(
    context: Context, locked: LockedKey, containers: list[str], state: KeyState | None = None, *, is_own: bool = False
) -> None:
    """Remove members from a key; after the last one it lingers, if it may, or ends. Raises HookError, OSError.

    `state`: without these members, which never were in its groups, and with the ends of groups that were made in vain;
    None: as recorded. `is_own`: the caller is the last member's own poststop, which alone may remove a group that has a
    live task.
    """
    members: dict[str, Member] = state.members if state is not None else {}
    if state is None and locked.state is not None:
        state = locked.state
        members = record.without(state.members, containers)
    if locked.state is not None and state is not None:
        fields = {"lives": state.lives, **(record.note_left(state, containers) if context.history_of(state) else {})}
        if members or state.recovering:
            locked.commit(replace(locked.state, members=members, **fields))
        elif not context.options.linger or not _linger(context, locked, state, fields):
            end(context, locked, state, state.groups if is_own else None)
    # Last: killed before it, a second poststop finds the key, without this member.
    for container in containers:
        if container not in members:
            context.run.remove(Index, container)


def end(context: Context, locked: LockedKey, state: KeyState, going: list[MonGroup] | None = None) -> None:
    """Remove the mon_groups of a key without members. Raises HookError, OSError.

    `going`: the groups to remove; None: those without a live task. The others stay on record.
    """
    if going is None:
        going = [group for group in state.groups if not context.resctrl.has_live_task(group.path)]
    noted = record.note_left(state, state.members) if context.history_of(state) else {}
    over = [_end_group(context, group, had_member=bool(noted.get("left"))) for group in going]
    before = replace(locked.state or state, members={}, lives=state.lives, **noted)
    if state.groups and not over:
        locked.commit(before)
    else:
        drop_groups(context, locked, before, over)


def _end_group(context: Context, group: MonGroup, *, had_member: bool) -> MonGroup:
    """Read a group's counters, and set them as its end.

    `had_member`: a line of the history says what it used, also if its begin could not be saved: unknown.
    """
    if group.end is not None:  # it was made in vain, or this was killed after it had written that
        return group
    if group.begin is None and had_member:
        try:
            group = record.begin_group_late(group, context.resctrl.counters(group.path))
        except HookError:  # it never existed, or is gone
            return record.end_group(group, {})
        return record.end_group(group, group.begin or {})
    # A group without a begin ends, too: else the key's next life would count its `before` twice.
    return record.end_group(group, read_end(context, group) if group.begin is not None else {})


def read_end(context: Context, group: MonGroup) -> dict[str, str]:
    """Read the counters of a group's present incarnation; if that is gone, return its `last`, or none."""
    try:
        if context.resctrl.inode(group.path) == group.inode:
            return context.resctrl.counters(group.path)
    except HookError:
        pass
    return group.last or {}


def drop_groups(context: Context, locked: LockedKey, state: KeyState, over: list[MonGroup]) -> None:
    """Remove groups that are `over`, and have their ends, from the state, the view and the kernel, in this order.

    A key without another group is completed or forgotten. A group that the kernel refuses to remove stays on record.
    Raises HookError, OSError.
    """
    after: KeyState | None = state
    if state.completed_at is None:
        keeps = context.options.snapshot_ttl > 0
        after = record.leave(state, over, keeps=keeps, at=system.now_utc(), boottime=system.boottime())
        after = _add_to_history(context, state, after, over)
    owes = after is not None and after.owed is not None
    if after is None or not after.generation:  # also if the state has no view: its record may have been lost meanwhile
        context.view.remove(state.key)
    # The record before rmdir, which takes the counters with it, and the view before its links dangle. Killed in
    # between: a group without a member, which reconcile removes, or the key's next hook takes over.
    try:
        if after is not None:
            locked.commit(after)
            context.view.show(after)
    except OSError as error:  # that costs the record, but must not cost RMIDs
        is_end = after is not None and after.completed_at is not None
        lost = "save the final counters of key {}; its use is lost" if is_end else "take removed groups off key {}"
        context.run.complain(f"could not {lost.format(state.key)}", error)
        after = None
        context.view.remove(state.key)
    gone: list[str] = []
    refusal: HookError | None = None
    for group in over:
        try:
            remove_group(context, group.path)
            gone.append(group.path)
        except HookError as error:
            refusal = error
    if refusal is not None:
        base = locked.state if locked.state is not None and locked.state.groups else state
        back = record.resume(base, record.leave_groups(state.groups, over, gone), state.members)
        locked.commit(back)
        context.view.show(back)
        raise refusal
    if after is None and not owes and len(over) == len(state.groups):
        # After rmdir: killed in between, the state names a group that is gone, which all readers take for removed.
        locked.clear()


def _add_to_history(context: Context, state: KeyState, after: KeyState | None, over: list[MonGroup]) -> KeyState | None:
    """Write what a key used that has ended in `after`. Returns `after`, with the lines that could not be written.

    Before its record: killed in between, the key goes on or ends again, and its line has the same id and is the last.
    """
    file = context.history_of(state)
    if file and (after is None or after.completed_at is not None):
        from hook import ending

        return ending.settle(context.run, file, state, after, over)
    return after


def remove_group(context: Context, path: str) -> bool:
    """Remove a mon_group, and note that its RMID comes back; returns False if there was none. HookError as resctrl."""
    if not context.resctrl.remove(path):
        return False
    context.freed += 1
    context.run.note_freed()
    return True


# --- Lingering


def _linger(context: Context, locked: LockedKey, state: KeyState, fields: dict[str, object]) -> bool:
    """Let a key without members keep its groups, if it may; returns whether it does."""
    there = [group for group in state.groups if group.end is None and not context.resctrl.is_gone(group.path)]
    if not there or is_deleted(state) or not procfs.in_host_pid_namespace():
        return False  # in another pid namespace neither reclaim nor reconcile would ever end it
    if locked.state is not None and (state.lingering_since is None or state.members):
        now = system.boottime()
        groups = [replace(group, last=read_end(context, group)) for group in locked.state.groups]
        until = now + context.options.linger
        locked.commit(change(locked.state, groups, members={}, lingering_since=now, lingering_until=until, **fields))
    return True


def is_deleted(state: KeyState) -> bool:
    """Whether a key is a pod's whose cgroup is gone or unknown, so that no container can come back to it."""
    try:
        return state.kind == "pod" and not (state.cgroup and procfs.cgroup_directory(state.cgroup))
    except OSError:  # the cgroup may be there
        return False
