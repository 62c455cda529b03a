"""How a key ends: its members leave, with the last one it lingers or ends, and what it used stays for a while.

Everything here is done under the key's lock.
"""

from __future__ import annotations

from hook.base import cgroups, procfs, system
from hook.base.errors import HookError, refused
from hook.state import transitions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.base.models import KeyState, Member, MonGroup
    from hook.stages.context import Node
    from hook.state.rundir import LockedKey


def give_up(node: Node, locked: LockedKey, container_id: str, pid: int, starttime: int | None) -> None:
    """Let a container's ID go to another key, with this process. Another live process that is a member by it stays."""
    state = locked.state
    member = state.members.get(container_id) if state else None
    is_other = member is not None and (member.pid, member.starttime) != (pid, starttime)
    if state is not None and member is not None and is_other and not procfs.is_dead(member.pid, member.starttime):
        locked.commit(transitions.changed(state, members=transitions.displaced(state.members, container_id)))
    else:
        leave(node, locked, container_id)


def leave(
    node: Node, locked: LockedKey, container_id: str, *, vain: frozenset[str] = frozenset(), own_poststop: bool = False
) -> None:
    """Take a member out of a key, which ends with its last one. `vain`, `own_poststop`: see end."""
    drop(node, locked, [container_id], vain=vain, own_poststop=own_poststop)


def drop(
    node: Node,
    locked: LockedKey,
    containers: list[str],
    *,
    vain: frozenset[str] = frozenset(),
    own_poststop: bool = False,
) -> None:
    """Take members out of a key: with the last ones it lingers, if it may, or ends."""
    state = locked.state
    members: dict[str, Member] = {}
    if state is not None:
        members = transitions.without(state.members, containers)
        if members or state.recovering:
            locked.commit(transitions.changed(state, members=members))
        elif not node.options.linger or not _linger(node, locked, state, vain):
            end(node, locked, state, vain=vain, own_poststop=own_poststop)
    # Last: killed before it, poststop when called again finds the key, and no member in it.
    for container_id in containers:
        if container_id not in members:
            node.run.remove_index(container_id)


def has_lingered(node: Node, state: KeyState) -> bool:
    """Whether a key that lingers has done so for long enough, or has nothing to linger for: no pod, or no group."""
    since, until = state.lingering_since, state.lingering_until
    if since is None or until is None:
        return True
    if node.longest_linger is not None:
        until = min(until, since + node.longest_linger)
    if system.boottime() >= until:
        return True
    if node.resctrl.is_mounted() and all(node.resctrl.inode(group.path) is None for group in state.groups):
        return True
    return _is_deleted(state)


def _is_deleted(state: KeyState) -> bool:
    """Whether a key is of a pod that is gone, as its cgroup tells, or that has none: nothing can come back to it."""
    return state.kind == "pod" and not (state.cgroup and cgroups.exists(state.cgroup))


def _linger(node: Node, locked: LockedKey, state: KeyState, vain: frozenset[str]) -> bool:
    """Let a key without members keep its groups, if it may; returns whether it does."""
    there = [group for group in state.groups if group.path not in vain and node.resctrl.inode(group.path) is not None]
    if not there or _is_deleted(state) or not procfs.in_host_pid_namespace():
        return False  # elsewhere neither reclaim nor reconcile would ever end it
    if state.lingering_since is None or state.members:
        now = system.boottime()
        groups = [transitions.left(group, _now(node, group)) for group in state.groups]
        locked.commit(transitions.lingering(state, groups, now, now + node.options.linger))
    return True


def end(
    node: Node,
    locked: LockedKey,
    state: KeyState,
    *,
    vain: frozenset[str] = frozenset(),
    own_poststop: bool = False,
) -> None:
    """Remove the mon_groups of a key without members; what cannot be removed stays on record.

    What the key used stays on record, too, and is shown until the snapshot's time is over; but not of a key that
    nobody ever was in: `vain` are the groups that this call made for nothing. Only the `own_poststop` of the last
    member removes a group that a live task is in. Raises HookError.
    """
    going = [group for group in state.groups if own_poststop or not node.resctrl.has_live_task(group.path)]
    if state.groups and not going:
        locked.commit(transitions.changed(state, members={}))
        return
    over = [group if group.end else _ended(node, group, vain) for group in going]  # it has one: killed after it
    if len(going) == len(state.groups) and node.keeps_snapshot(over, vain):
        # The end before rmdir, which takes the counters with it, and the view before its links dangle. Killed in
        # between: a group that no member stands behind, which reconcile removes, or the key's next hook takes over.
        _complete(node, locked, state, over)
    kept, refusal = remove(node, going)
    if kept or len(going) < len(state.groups):
        kept += [group for group in state.groups if group not in going]
        _survive(node, locked, locked.state or state, kept, over)
    elif locked.state is not None and locked.state.completed_at is None:
        # After rmdir: killed in between, the state names a group that is gone, which everybody takes for removed.
        node.forget(locked)
    if refusal is not None:
        raise refusal


def _survive(node: Node, locked: LockedKey, state: KeyState, kept: list[MonGroup], over: list[MonGroup]) -> None:
    """Keep on record, and show, a key whose last member is gone, but not all of its groups."""
    gone = [group for group in over if group.path not in [it.path for it in kept]]
    locked.commit(transitions.surviving(state, kept, gone))
    node.show(locked.state or state)


def retire(node: Node, locked: LockedKey, *, left: str | None = None) -> None:
    """Take groups off the record of a key that goes on, which are gone and which no member needs.

    What was used in them goes on as part of another group's `before`. `left`: a group whose container was moved to
    another ctrl_group; it is removed, if no member needs it and nobody is in it.
    """
    state = locked.state
    if state is None or state.completed_at is not None:
        return
    gone = [group for group in state.groups if is_retired(node, state, group, left=left)]
    kept = [group for group in state.groups if group not in gone]
    if gone and kept:
        over = [transitions.ended(group, _now(node, group)) if group.begin else group for group in gone]
        locked.commit(transitions.changed(state, groups=[transitions.inherited(kept[0], over), *kept[1:]]))
        node.show(locked.state or state)
        if left in [group.path for group in gone]:
            # After the record and the view, whose links would dangle. Killed before it: a group that nothing is
            # recorded of and nobody is in, which reconcile removes.
            node.remove(left)


def is_retired(node: Node, state: KeyState, group: MonGroup, *, left: str | None = None) -> bool:
    """Whether a group is gone, or was `left` and is empty, and no member needs it."""
    if group.path in {member.group for member in state.members.values()}:
        return False
    return node.resctrl.inode(group.path) is None or (group.path == left and not node.resctrl.has_live_task(left))


def _complete(node: Node, locked: LockedKey, state: KeyState, over: list[MonGroup]) -> None:
    """Put what a key used on record, and show it. A full /run costs that record, but must not cost RMIDs."""
    try:
        if state.completed_at is None:
            locked.commit(transitions.completed(state, over, system.now_utc(), system.boottime()))
    except OSError as error:
        node.run.complaints.append(refused(f"what key {state.key} used is lost", error))
    else:
        node.show(locked.state or state)


def _ended(node: Node, group: MonGroup, vain: frozenset[str]) -> MonGroup:
    """A group with its counters as they are now, as far as they can be had."""
    if group.path in vain:
        return transitions.unused(group)
    # One whose begin was lost is over as well: else the key's next life would take it, and its `before`, once more.
    return transitions.ended(group, _now(node, group) if group.begin is not None else {})


def _now(node: Node, group: MonGroup) -> dict[str, str]:
    """The counters of a group's present incarnation; if that is gone, those it was left with, or none."""
    try:
        if node.resctrl.inode(group.path) == group.inode:
            return node.resctrl.counters(group.path)
    except HookError:
        pass
    return group.last or {}


def remove(node: Node, groups: list[MonGroup]) -> tuple[list[MonGroup], HookError | None]:
    """Remove mon_groups; returns those that are still there, and what the kernel had against it."""
    kept: list[MonGroup] = []
    refusal: HookError | None = None
    for group in groups:
        try:
            node.remove(group.path)
        except HookError as error:
            kept.append(group)
            refusal = error
    return kept, refusal
