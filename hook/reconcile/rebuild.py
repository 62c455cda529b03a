# SPDX-License-Identifier: Apache-2.0
"""Rebuilds a lost or damaged record of a key from the kernel and the index."""

from __future__ import annotations

from hook.base import cgroups, procfs, system
from hook.base.errors import HookError
from hook.base.models import KeyState, Member, MonGroup
from hook.base.reasons import Reason
from hook.reconcile.owners import find_containers, find_owner
from hook.stages import create, orphans
from hook.state import damage, lives, records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.reconcile.plan import Action
    from hook.reconcile.survey import Survey
    from hook.stages.context import Context
    from hook.state.store import LockedKey


def rebuild(context: Context, action: Action, seen: Survey) -> bool:
    """Find the groups and the members of a key again. Raises HookError if a task matches no known container.

    Members are the containers that name the cgroups of the tasks in the groups. The next plan drops dead ones, and ends
    a key without members. Returns whether it was needed.
    """
    key = action.key or seen.owners.get(action.path)
    if key is None:
        raise HookError(Reason.IO, "it has tasks of several keys, and its name is none of them")
    with context.run.lock(key, system.monotonic()) as locked:
        if locked.state is None:
            locked.commit(damage.unknown_state(key))
        if locked.state is None or not locked.state.recovering:
            return False
        for group in _find_members(context, locked, locked.state, seen).groups:
            if context.resctrl.inode(group.path) is not None:
                create.begin(context, locked, group.path, made=False, empty=False)
        state = locked.state
        if _has_unknown(context, state, seen):
            raise HookError(Reason.IO, "its group has tasks that match no known container")
        locked.commit(lives.replace(state, recovering=False))
        return True


def _find_members(context: Context, locked: LockedKey, state: KeyState, seen: Survey) -> KeyState:
    """Commit the existing groups of a key, and the members found in them."""
    recorded = [group.path for group in state.groups]
    paths = [
        path
        for path in {*_list_named(context, state.key), *_list_orphans(context, state.key, seen)}
        if path not in recorded and find_owner(context, path, seen.index, seen.processes) == state.key
    ]
    groups = [*state.groups, *(_make_record(context, path) for path in sorted(paths))]
    found: dict[str, Member] = {}
    for group in groups:
        found = {**_list_members(context, state.key, group.path, seen), **found}
    state = lives.change(state, groups, members={**found, **state.members})
    locked.commit(state)
    return state


def _list_named(context: Context, key: str) -> list[str]:
    """The existing groups with this key in their name, of which there is one in each ctrl_group."""
    ctrl_groups = ["/", *system.list_directory(context.resctrl.root)] if context.resctrl.is_mounted() else []
    paths = [context.resctrl.path(name, context.options.group_prefix + key) for name in ctrl_groups]
    return [path for path in paths if context.resctrl.inode(path) is not None]


def _list_orphans(context: Context, key: str, seen: Survey) -> list[str]:
    """The groups of this key that had no record in the survey, and that no hook has recorded since."""
    paths = [path for path in seen.paths_of.get(key, ()) if context.resctrl.inode(path) is not None]
    return [path for path in paths if not orphans.is_recorded(context, path)]


def _has_unknown(context: Context, state: KeyState, seen: Survey) -> bool:
    """Whether a group of the key has a live task of no known container.

    Tasks of another key's container do not count: a reused RMID brought them in, and they are evicted later. Nor does
    what started after the survey: it is a child of another task, or of a container that a hook has recorded.
    """
    there = {tid for group in state.groups for tid in context.resctrl.tasks(group.path) or ()}
    seen.processes.add(state.members.items())
    known: set[int] = set()
    for member in state.members.values():
        known |= seen.processes.of_container(member) | seen.processes.in_own_cgroup(member)
    unknown = {tid for tid in there - seen.processes.threads(known) if procfs.is_dead(tid) is not True}
    return any(not (seen.processes.is_newer(tid) or _is_of_other(tid, state.key, seen)) for tid in unknown)


def _is_of_other(tid: int, key: str, seen: Survey) -> bool:
    ids = filter(None, (cgroups.find_container(place, seen.index) for place in procfs.cgroups(tid)))
    return any((seen.index.get(name) or key) != key for name in ids)


def _make_record(context: Context, path: str) -> MonGroup:
    """A record of an existing group."""
    above = path.rpartition("/mon_groups/")[0]
    return MonGroup(path=path, ctrl_group=above[len(context.resctrl.root) :].strip("/") or "/")


def _list_members(context: Context, key: str, path: str, seen: Survey) -> dict[str, Member]:
    """The live containers of a key, by the index and by the tasks in one of its groups."""
    found = {}
    for name, init in find_containers(context, path, seen.index, seen.processes).items():
        if (records.glance_key(context.run, name) or key) == key:  # a hook may have recorded it since the survey
            cgroup = procfs.own_cgroup(list(init.cgroups), name)
            found[name] = Member(pid=init.pid, starttime=init.starttime, group=path, cgroup=cgroup)
            context.run.write_index(name, key)
    return found
