"""Rebuilds the record of a key that was lost or torn, from what the kernel and the index still know."""

from __future__ import annotations

from hook.base import cgroups, container_tasks, procfs, system
from hook.base.errors import HookError
from hook.base.models import KeyState, Member, MonGroup
from hook.base.reasons import Reason
from hook.stages import create, orphans
from hook.state import contents, damage, transitions
from hook.state.rundir import changed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from hook.reconcile.plan import Action
    from hook.stages.context import Node
    from hook.state.rundir import LockedKey


def rebuild(node: Node, action: Action, own: Collection[str]) -> bool:
    """Find the groups and the members of a key again; with members that nobody can name it stays as it is. HookError.

    The members: by the tasks in the groups, the cgroups of those, and the containers that these are named by. What
    reconcile plans next drops the dead ones, and ends a key that has none. Returns whether there was need to.
    """
    key = action.key or _owner(node, action.path, contents.indexed_keys(node.run), container_tasks.table())
    if key is None:
        raise HookError(Reason.IO, "tasks of several keys are in it, and its name is none of those")
    with node.run.lock(key, system.monotonic()) as locked:
        if locked.state is None:
            locked.commit(damage.unknown_state(key))
        if locked.state is None or not locked.state.recovering:
            return False
        indexed = contents.indexed_keys(node.run)
        for group in _find(node, locked, locked.state, indexed).groups:
            if node.resctrl.inode(group.path) is not None:
                create.begin(node, locked, group.path, made=False, empty=False)
        state = locked.state
        if _has_unknown(node, state, indexed, own):
            raise HookError(Reason.IO, "somebody is in its group, and nothing tells which container that is")
        locked.commit(transitions.recovered(state))
        return True


def _owner(
    node: Node, path: str, indexed: Mapping[str, str], processes: Mapping[int, container_tasks.Process]
) -> str | None:
    """The key that a group on no record is of: that of the containers in it, or its name's if they have none.

    What follows our prefix in its name is no key if the group was made with a longer prefix, and must not take over
    containers that have a key. None: the containers have several keys, and the name is none of them.
    """
    name = orphans.key_of(node, path)
    pids = [tid for tid in node.resctrl.tasks(path) or () if tid in processes]
    keys = {indexed[container] for container in _ids(pids, processes, indexed) if container in indexed}
    if name in keys or not keys:
        return name
    return keys.pop() if len(keys) == 1 else None


def _find(node: Node, locked: LockedKey, state: KeyState, indexed: Mapping[str, str]) -> KeyState:
    """Commit the groups of a key that are there, and the members that can be found in them."""
    processes = container_tasks.table()
    recorded = [group.path for group in state.groups]
    named = [
        path for path in node.resctrl.mon_groups() if orphans.key_of(node, path) == state.key and path not in recorded
    ]
    paths = [
        path for path in {*named, *orphans.find_orphans(node)} if _owner(node, path, indexed, processes) == state.key
    ]
    groups = [*state.groups, *(_found(node, path) for path in sorted(paths))]
    members = {**_members(node, state.key, [group.path for group in groups], indexed), **state.members}
    state = changed(state, groups=groups, members=members)
    locked.commit(state)
    return state


def _has_unknown(node: Node, state: KeyState, indexed: Mapping[str, str], own: Collection[str]) -> bool:
    """Whether a task that is not known to be dead is in a group of the key, and of no container that is known.

    One of another key's container came in with an RMID that is used again; once the key has recovered, it goes.
    """
    there = {tid for group in state.groups for tid in node.resctrl.tasks(group.path) or ()}
    # After the tasks: whatever those forked by then is among the processes.
    processes = container_tasks.look({*own, *container_tasks.own_cgroups(state.members.items())})
    known: set[int] = set()
    for member in state.members.values():
        known |= processes.of_container(member) | processes.in_own_cgroup(member)
    strangers = {tid for tid in there if _is_of_other(tid, state.key, indexed)}
    return any(procfs.is_dead(tid) is not True for tid in there - container_tasks.threads(known) - strangers)


def _is_of_other(tid: int, key: str, indexed: Mapping[str, str]) -> bool:
    ids = [name for place in procfs.cgroups(tid) for name in cgroups.possible_ids(place)]
    return any(indexed.get(name, key) != key for name in ids)


def _found(node: Node, path: str) -> MonGroup:
    """A group that is there, and not on record."""
    above = path.rpartition("/mon_groups/")[0]
    return MonGroup(path=path, ctrl_group=above[len(node.resctrl.root) :].strip("/") or "/")


def _ids(pids: Iterable[int], processes: Mapping[int, container_tasks.Process], indexed: Mapping[str, str]) -> set[str]:
    """The container IDs that the cgroups of processes are named by: those in the index, and what looks like one."""
    found: set[str] = set()
    for place in {place for pid in pids for place in processes[pid].cgroups}:
        found |= {name for name in cgroups.possible_ids(place) if name in indexed}
        found |= {name for name in [cgroups.container_id(place)] if name is not None}
    return found


def _members(node: Node, key: str, paths: list[str], indexed: Mapping[str, str]) -> dict[str, Member]:
    """The containers of a key that live, by what the index notes, and by the tasks that are in its groups."""
    processes = container_tasks.table()
    found = {}
    for path in paths:
        pids = {tid for tid in node.resctrl.tasks(path) or () if tid in processes}
        ids = {name for name in _ids(pids, processes, indexed) if indexed.get(name, key) == key}
        for name, init in container_tasks.containers_of(pids, ids, processes).items():
            cgroup = procfs.cgroup(init.pid)
            if name not in found:
                found[name] = Member(pid=init.pid, starttime=init.starttime, group=path, cgroup=cgroup)
                node.run.write_index(name, key)
    return found
