"""Rebuilds the record of a key that was lost or torn, from what the kernel and the index still know."""

from __future__ import annotations

from hook import cgroups, incarnation, process, rundir, system, tasks
from hook.errors import HookError, Reason
from hook.models import KeyState, Member, MonGroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hook.node import Node
    from hook.plan import Action
    from hook.rundir import LockedKey


def rebuild(node: Node, action: Action, own: Collection[str]) -> bool:
    """Find the groups and the members of a key again; with members that nobody can name it stays as it is. HookError.

    The members: by the tasks in the groups, the cgroups of those, and the containers that these are named by. What
    reconcile plans next drops the dead ones, and ends a key that has none. Returns whether there was need to.
    """
    key = action.key or node.key_of(action.path) or ""
    with node.run.lock(key, system.monotonic()) as locked:
        if locked.state is None:
            locked.commit(rundir.unknown(key))
        if locked.state is None or not locked.state.recovering:
            return False
        for group in _find(node, locked, locked.state).groups:
            if node.resctrl.inode(group.path) is not None:
                node.begin(locked, group.path, made=False, empty=False)
        state = locked.state
        if _has_unknown(node, state, own):
            raise HookError(Reason.IO, "somebody is in its group, and nothing tells which container that is")
        locked.commit(incarnation.recovered(state))
        return True


def _find(node: Node, locked: LockedKey, state: KeyState) -> KeyState:
    """Commit the groups of a key that are there, and the members that can be found in them."""
    recorded = [group.path for group in state.groups]
    paths = [path for path in node.resctrl.mon_groups() if node.key_of(path) == state.key and path not in recorded]
    groups = [*state.groups, *(_found(node, path) for path in paths)]
    members = {**_members(node, state.key, [group.path for group in groups]), **state.members}
    found = incarnation.changed(state, groups=groups, members=members)
    locked.commit(found)
    return found


def _has_unknown(node: Node, state: KeyState, own: Collection[str]) -> bool:
    """Whether a task that is not known to be dead is in a group of the key, and is none of its members'."""
    there = {tid for group in state.groups for tid in node.resctrl.tasks(group.path) or ()}
    # After the tasks: whatever those forked by then is among the processes.
    processes = tasks.look({*own, *tasks.own_cgroups(state.members.items())})
    known: set[int] = set()
    for member in state.members.values():
        known |= processes.of_container(member) | processes.in_own_cgroup(member)
    return any(process.is_dead(tid) is not True for tid in there - tasks.threads(known))


def _found(node: Node, path: str) -> MonGroup:
    """A group that is there, and not on record."""
    above = path.rpartition("/mon_groups/")[0]
    return MonGroup(path=path, ctrl_group=above[len(node.resctrl.root) :].strip("/") or "/")


def _ids(pids: Collection[int], processes: Mapping[int, tasks.Process]) -> set[str]:
    """The container IDs that the cgroups of processes are named by."""
    found = {cgroups.container_id(place) for pid in pids for place in processes[pid].cgroups}
    return {name for name in found if name is not None}


def _members(node: Node, key: str, paths: list[str]) -> dict[str, Member]:
    """The containers of a key that live, by what the index notes, and by the tasks that are in its groups."""
    processes = tasks.table()
    indexed = node.run.indexed(key)
    found = {}
    for path in paths:
        pids = {tid for tid in node.resctrl.tasks(path) or () if tid in processes}
        for name, init in tasks.containers_of(pids, {*indexed, *_ids(pids, processes)}, processes).items():
            cgroup = process.cgroup(init.pid)
            if name not in found:
                found[name] = Member(pid=init.pid, starttime=init.starttime, group=path, cgroup=cgroup)
                node.run.write_index(name, key)
    return found
