# SPDX-License-Identifier: Apache-2.0
"""Rebuilds a lost or damaged record of a key from the kernel and the index."""

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
    """Find the groups and the members of a key again. Raises HookError if a task matches no known container.

    Members are the containers that name the cgroups of the tasks in the groups. The next plan drops dead ones, and ends
    a key without members. Returns whether it was needed.
    """
    key = action.key or _find_owner(node, action.path, contents.indexed_keys(node.run), container_tasks.table())
    if key is None:
        raise HookError(Reason.IO, "it has tasks of several keys, and its name is none of them")
    with node.run.lock(key, system.monotonic()) as locked:
        if locked.state is None:
            locked.commit(damage.unknown_state(key))
        if locked.state is None or not locked.state.recovering:
            return False
        indexed = contents.indexed_keys(node.run)
        for group in _find_members(node, locked, locked.state, indexed).groups:
            if node.resctrl.inode(group.path) is not None:
                create.begin(node, locked, group.path, made=False, empty=False)
        state = locked.state
        if _has_unknown(node, state, indexed, own):
            raise HookError(Reason.IO, "its group has tasks that match no known container")
        locked.commit(transitions.recovered(state))
        return True


def _find_owner(
    node: Node, path: str, indexed: Mapping[str, str], processes: Mapping[int, container_tasks.Process]
) -> str | None:
    """The key of a group without a record: the key of its containers, or that in its name if they have none.

    A name has no key after our prefix if the group was made with a longer prefix. Then it must not take over containers
    of another key. None if the containers have several keys, and the name is none of them.
    """
    name = orphans.key_of(node, path)
    pids = [tid for tid in node.resctrl.tasks(path) or () if tid in processes]
    keys = {indexed[container] for container in _find_ids(pids, processes, indexed) if container in indexed}
    if name in keys or not keys:
        return name
    return keys.pop() if len(keys) == 1 else None


def _find_members(node: Node, locked: LockedKey, state: KeyState, indexed: Mapping[str, str]) -> KeyState:
    """Commit the existing groups of a key, and the members found in them."""
    processes = container_tasks.table()
    recorded = [group.path for group in state.groups]
    named = [
        path for path in node.resctrl.mon_groups() if orphans.key_of(node, path) == state.key and path not in recorded
    ]
    paths = [
        path
        for path in {*named, *orphans.find_orphans(node)}
        if _find_owner(node, path, indexed, processes) == state.key
    ]
    groups = [*state.groups, *(_make_record(node, path) for path in sorted(paths))]
    members = {**_list_members(node, state.key, [group.path for group in groups], indexed), **state.members}
    state = changed(state, groups=groups, members=members)
    locked.commit(state)
    return state


def _has_unknown(node: Node, state: KeyState, indexed: Mapping[str, str], own: Collection[str]) -> bool:
    """Whether a group of the key has a live task of no known container.

    Tasks of another key's container do not count: a reused RMID brought them in, and they are evicted later.
    """
    there = {tid for group in state.groups for tid in node.resctrl.tasks(group.path) or ()}
    # After the tasks, so that their children are among the processes.
    processes = container_tasks.look({*own, *container_tasks.own_cgroups(state.members.items())})
    known: set[int] = set()
    for member in state.members.values():
        known |= processes.of_container(member) | processes.in_own_cgroup(member)
    strangers = {tid for tid in there if _is_of_other(tid, state.key, indexed)}
    return any(procfs.is_dead(tid) is not True for tid in there - container_tasks.threads(known) - strangers)


def _is_of_other(tid: int, key: str, indexed: Mapping[str, str]) -> bool:
    ids = [name for place in procfs.cgroups(tid) for name in cgroups.possible_ids(place)]
    return any(indexed.get(name, key) != key for name in ids)


def _make_record(node: Node, path: str) -> MonGroup:
    """A record of an existing group."""
    above = path.rpartition("/mon_groups/")[0]
    return MonGroup(path=path, ctrl_group=above[len(node.resctrl.root) :].strip("/") or "/")


def _find_ids(
    pids: Iterable[int], processes: Mapping[int, container_tasks.Process], indexed: Mapping[str, str]
) -> set[str]:
    """The container IDs in the cgroup names of processes: those in the index, and any that looks like one."""
    found: set[str] = set()
    for place in {place for pid in pids for place in processes[pid].cgroups}:
        found |= {name for name in cgroups.possible_ids(place) if name in indexed}
        found |= {name for name in [cgroups.container_id(place)] if name is not None}
    return found


def _list_members(node: Node, key: str, paths: list[str], indexed: Mapping[str, str]) -> dict[str, Member]:
    """The live containers of a key, by the index and by the tasks in its groups."""
    processes = container_tasks.table()
    found = {}
    for path in paths:
        pids = {tid for tid in node.resctrl.tasks(path) or () if tid in processes}
        ids = {name for name in _find_ids(pids, processes, indexed) if indexed.get(name, key) == key}
        for name, init in container_tasks.containers_of(pids, ids, processes).items():
            cgroup = procfs.cgroup(init.pid)
            if name not in found:
                found[name] = Member(pid=init.pid, starttime=init.starttime, group=path, cgroup=cgroup)
                node.run.write_index(name, key)
    return found
