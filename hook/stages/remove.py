# SPDX-License-Identifier: Apache-2.0
"""poststop: a container leaves its key. With its last member a key lingers or ends, and its counters stay for a while.

Read `poststop`, then `end`. All but the first lines of poststop is done under the key's lock, and reconcile, reclaim
and a createRuntime that failed use the same steps.
"""

from __future__ import annotations

from hook.base import cgroup_mounts, procfs, system
from hook.base.errors import HookError
from hook.base.models import Failure, Index
from hook.stages import identity
from hook.state import lives

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.base.models import KeyState, Member, MonGroup
    from hook.stages.context import Context
    from hook.state.store import LockedKey


def poststop(context: Context, container_id: str) -> None:
    """Take a container out of its key; with the last one its mon_groups, state and lock go.

    An unknown container, or one that was taken out before, is nothing to do. A member whose process is not dead stays:
    Podman may call this late, beside the next life of the same container; two runtimes, or two root directories of one,
    may each have a container of this ID. Raises HookError.
    """
    failure = context.run.glance(Failure, container_id)
    if failure is None or failure.pid is None or procfs.is_dead(failure.pid, failure.starttime) is not False:
        context.run.remove(Failure, container_id)
    key = context.run.find_key(container_id)
    if key is None:
        return
    with context.run.lock(key, system.monotonic() + context.options.lock_timeout) as locked:
        members = locked.state.members if locked.state else {}
        member = members.get(container_id)
        if member is not None and not _is_meant(context, container_id, member):
            return
        over = [name for name in members if name.startswith(container_id + "@") and _is_dead(members[name])]
        if member is None or _is_dead(member) is not False:
            over.append(container_id)
        if over:
            drop(context, locked, over, own_poststop=member is not None and container_id in over)


def _is_meant(context: Context, container_id: str, member: Member) -> bool:
    """Whether this poststop is for the container, as far as its cgroup says: its annotations may be gone."""
    maker = identity.maker(member.cgroup or "", container_id)
    return maker is None or identity.concerns(context.options, is_podmans=maker == "libpod")


def _is_dead(member: Member) -> bool | None:
    return procfs.is_dead(member.pid, member.starttime)


def drop(
    context: Context,
    locked: LockedKey,
    containers: list[str],
    *,
    vain: frozenset[str] = frozenset(),
    own_poststop: bool = False,
) -> None:
    """Take members out of a key: with the last ones it lingers, if it may, or ends. `vain`, `own_poststop`: see end."""
    state = locked.state
    members: dict[str, Member] = {}
    if state is not None:
        members = lives.without(state.members, containers)
        if members or state.recovering:
            locked.commit(lives.replace(state, members=members))
        elif not context.options.linger or not _linger(context, locked, state, vain):
            end(context, locked, state, vain=vain, own_poststop=own_poststop)
    # Last: killed before it, poststop when called again finds the key, and no member in it.
    for container_id in containers:
        if container_id not in members:
            context.run.remove(Index, container_id)


def end(
    context: Context,
    locked: LockedKey,
    state: KeyState,
    *,
    vain: frozenset[str] = frozenset(),
    own_poststop: bool = False,
) -> None:
    """Remove the mon_groups of a key without members; what cannot be removed stays on record.

    What the key used stays on record, too, and is shown until its snapshot is too old; but not of a key that never had
    a member: `vain` are the groups that this call made for nothing. Only the `own_poststop` of the last member removes
    a group that a live task is in. Raises HookError.
    """
    going = [group for group in state.groups if own_poststop or not context.resctrl.has_live_task(group.path)]
    if state.groups and not going:
        locked.commit(lives.replace(state, members={}))
        return
    over = [group if group.end else _ended(context, group, vain) for group in going]  # it has one: killed after it
    if len(going) == len(state.groups) and _keeps_snapshot(context, over, vain):
        # The end before rmdir, which takes the counters with it, and the view before its links dangle. Killed in
        # between: a group without a member, which reconcile removes, or the key's next hook takes over.
        _complete(context, locked, state, over)
    kept, refusal = remove_groups(context, going)
    if kept or len(going) < len(state.groups):
        from hook.stages import retire

        kept += [group for group in state.groups if group not in going]
        retire.keep_survivors(context, locked, locked.state or state, kept, over)
    elif locked.state is not None and locked.state.completed_at is None:
        # After rmdir: killed in between, the state names a group that is gone, which all readers take for removed.
        context.forget(locked)
    if refusal is not None:
        raise refusal


def _keeps_snapshot(context: Context, over: list[MonGroup], vain: frozenset[str]) -> bool:
    """Whether what these groups of a key counted is to outlive them."""
    counted = any(group.before or (group.begin and group.path not in vain) for group in over)
    return counted and context.options.snapshot_ttl > 0


def _complete(context: Context, locked: LockedKey, state: KeyState, over: list[MonGroup]) -> None:
    """Put what a key used on record, and show it. A full /run costs that record, but must not cost RMIDs."""
    try:
        if state.completed_at is None:
            locked.commit(lives.complete(state, over, system.now_utc(), system.boottime()))
    except OSError as error:
        context.complain(f"could not save the final counters of key {state.key}; its use is lost", error)
    else:
        context.show(locked.state or state)


def _ended(context: Context, group: MonGroup, vain: frozenset[str]) -> MonGroup:
    """Give a group its counters as they are now, as far as they can be read."""
    if group.path in vain:
        return lives.end_unused_group(group)
    # One whose begin was lost is over as well: else the key's next life would take it, and its `before`, once more.
    return lives.end_group(group, read_end(context, group) if group.begin is not None else {})


def read_end(context: Context, group: MonGroup) -> dict[str, str]:
    """Read the counters of a group's present incarnation; if that is gone, those it was left with, or none."""
    try:
        if context.resctrl.inode(group.path) == group.inode:
            return context.resctrl.counters(group.path)
    except HookError:
        pass
    return group.last or {}


def remove_groups(context: Context, groups: list[MonGroup]) -> tuple[list[MonGroup], HookError | None]:
    """Remove mon_groups; returns those that are still there, and what the kernel had against it."""
    kept: list[MonGroup] = []
    refusal: HookError | None = None
    for group in groups:
        try:
            context.remove(group.path)
        except HookError as error:
            kept.append(group)
            refusal = error
    return kept, refusal


# --- Lingering


def _linger(context: Context, locked: LockedKey, state: KeyState, vain: frozenset[str]) -> bool:
    """Let a key without members keep its groups, if it may; returns whether it does."""
    there = [
        group for group in state.groups if group.path not in vain and context.resctrl.inode(group.path) is not None
    ]
    if not there or _is_deleted(state) or not procfs.in_host_pid_namespace():
        return False  # in another pid namespace neither reclaim nor reconcile would ever end it
    if state.lingering_since is None or state.members:
        now = system.boottime()
        groups = [lives.replace(group, last=read_end(context, group)) for group in state.groups]
        until = now + context.options.linger
        locked.commit(lives.change(state, groups, members={}, lingering_since=now, lingering_until=until))
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
    return state.kind == "pod" and not (state.cgroup and cgroup_mounts.exists(state.cgroup))
