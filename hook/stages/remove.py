# SPDX-License-Identifier: Apache-2.0
"""poststop: a container leaves its key. With its last member a key lingers or ends, and its counters stay for a while.

Read `poststop`, then `drop`, `end` and `drop_groups`. All but the first lines of poststop is done under the key's lock,
and reconcile, reclaim and a createRuntime that failed use the same steps.
"""

from __future__ import annotations

from hook.base import procfs, system
from hook.base.errors import HookError
from hook.base.models import Failure, Index
from hook.state import lives
from hook.state.store import change, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.base.models import KeyState, Member, MonGroup
    from hook.stages.entry import Context
    from hook.state.store import LockedKey


def poststop(context: Context, container: str) -> None:
    """Take a container out of its key; with the last one its mon_groups, state and lock go.

    An unknown container, or one that was taken out before, is nothing to do. A member whose process is not dead stays:
    Podman may call this late, beside the next life of the same container; two runtimes, or two root directories of one,
    may each have a container of this ID. Raises HookError, OSError.
    """
    failure = context.run.glance(Failure, container)
    if failure is None or failure.pid is None or procfs.is_dead(failure.pid, failure.starttime) is not False:
        context.run.remove(Failure, container)
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


def _is_meant(context: Context, container: str, member: Member) -> bool:
    """Whether this poststop is for the container, as far as its cgroup says: its annotations may be gone."""
    from hook.stages import identity

    maker = identity.find_maker(procfs.find_own(member.cgroup or "", container), container)
    return maker is None or identity.concerns(context.options, is_podmans=maker == "libpod")


def drop(
    context: Context, locked: LockedKey, containers: list[str], state: KeyState | None = None, *, is_own: bool = False
) -> None:
    """Take members out of a key: with the last ones it lingers, if it may, or ends. Raises HookError, OSError.

    `state`: what is recorded of the key, with the ends of groups that were made in vain. `is_own`: this is the poststop
    of the last member, which alone removes a group that a live task is in.
    """
    state = state or locked.state
    members: dict[str, Member] = {}
    if locked.state is not None and state is not None:
        members = lives.without(state.members, containers)
        if members or state.recovering:
            locked.commit(replace(locked.state, members=members))
        elif not context.options.linger or not _linger(context, locked, state):
            end(context, locked, state, state.groups if is_own else None)
    # Last: killed before it, poststop when called again finds the key, and no member in it.
    for container in containers:
        if container not in members:
            context.run.remove(Index, container)


def end(context: Context, locked: LockedKey, state: KeyState, going: list[MonGroup] | None = None) -> None:
    """Remove the mon_groups of a key without members. Raises HookError, OSError.

    `going`: those that are removed; None: those that no live task is in. The others stay on record.
    """
    if going is None:
        going = [group for group in state.groups if not context.resctrl.has_live_task(group.path)]
    over = [_end_group(context, group) for group in going]
    before = replace(locked.state or state, members={})
    if state.groups and not over:
        locked.commit(before)
    else:
        drop_groups(context, locked, before, over)


def _end_group(context: Context, group: MonGroup) -> MonGroup:
    """Give a group its counters as they are now, as far as they can be read."""
    if group.end is not None:  # it was made in vain, or this was killed after it had written that
        return group
    # One without a begin ends, too: else the key's next life would take it, and its `before`, once more.
    return lives.end_group(group, read_end(context, group) if group.begin is not None else {})


def read_end(context: Context, group: MonGroup) -> dict[str, str]:
    """Read the counters of a group's present incarnation; if that is gone, those it was left with, or none."""
    try:
        if context.resctrl.inode(group.path) == group.inode:
            return context.resctrl.counters(group.path)
    except HookError:
        pass
    return group.last or {}


def drop_groups(context: Context, locked: LockedKey, state: KeyState, over: list[MonGroup]) -> None:
    """Take groups, which have their ends, off a key, show that, and remove them. Raises HookError, OSError.

    Without another group the key is completed, or forgotten. What the kernel refuses to remove stays on record.
    """
    after: KeyState | None = state
    if state.completed_at is None:
        keeps = context.options.snapshot_ttl > 0
        after = lives.leave(state, over, keeps=keeps, at=system.now_utc(), boottime=system.boottime())
    # The record before rmdir, which takes the counters with it, and the view before its links dangle. Killed in
    # between: a group without a member, which reconcile removes, or the key's next hook takes over.
    try:
        if after is not None:
            locked.commit(after)
    except OSError as error:  # that costs the record, but must not cost RMIDs
        is_end = after is not None and after.completed_at is not None
        lost = "save the final counters of key {}; its use is lost" if is_end else "take removed groups off key {}"
        context.run.complain(f"could not {lost.format(state.key)}", error)
        after = None
    if after is not None:
        context.view.show(after)
    elif state.generation:
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
        back = lives.resume(locked.state or state, lives.leave_groups(state.groups, over, gone), state.members)
        locked.commit(back)
        context.view.show(back)
        raise refusal
    if after is None and len(over) == len(state.groups):
        # After rmdir: killed in between, the state names a group that is gone, which all readers take for removed.
        forget(context, locked)


def remove_group(context: Context, path: str) -> None:
    """Remove a mon_group, and note that its RMID comes back. HookError as from resctrl."""
    if context.resctrl.remove(path):
        context.freed += 1
        context.run.note_freed()


def forget(context: Context, locked: LockedKey) -> None:
    """Leave no trace of a key whose groups are gone."""
    if locked.state is not None and locked.state.generation:
        context.view.remove(locked.state.key)
    locked.clear()


# --- Lingering


def _linger(context: Context, locked: LockedKey, state: KeyState) -> bool:
    """Let a key without members keep its groups, if it may; returns whether it does."""
    there = [group for group in state.groups if group.end is None and context.resctrl.inode(group.path) is not None]
    if not there or _is_deleted(state) or not procfs.in_host_pid_namespace():
        return False  # in another pid namespace neither reclaim nor reconcile would ever end it
    if locked.state is not None and (state.lingering_since is None or state.members):
        now = system.boottime()
        groups = [replace(group, last=read_end(context, group)) for group in locked.state.groups]
        until = now + context.options.linger
        locked.commit(change(locked.state, groups, members={}, lingering_since=now, lingering_until=until))
    return True


def has_lingered(context: Context, state: KeyState) -> bool:
    """Whether a key that lingers has done so for long enough, or has nothing to linger for: no pod, or no group."""
    since, until = state.lingering_since, state.lingering_until
    if since is None or until is None:
        return True
    if context.longest_linger is not None:
        until = min(until, since + context.longest_linger)
    if system.boottime() >= until:
        return True
    if context.resctrl.is_mounted() and all(context.resctrl.inode(group.path) is None for group in state.groups):
        return True
    return _is_deleted(state)


def _is_deleted(state: KeyState) -> bool:
    """Whether a key is of a pod that is gone, as its cgroup says, or that has none: nothing can come back to it."""
    from hook.base import cgroups

    return state.kind == "pod" and not (state.cgroup and cgroups.find_directory(state.cgroup))
