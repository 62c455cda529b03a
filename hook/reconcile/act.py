# SPDX-License-Identifier: Apache-2.0
"""Does one action, if the node still needs it.

An action is about one key and holds its lock, which it takes without waiting: the next run handles a busy key. Under
the lock the key is diagnosed again, so that an outdated plan does no harm. Actions consist of steps of the hook path,
each of which survives a kill.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hook.base import cgroups, procfs, system
from hook.base.errors import HookError, Reason
from hook.base.models import Failure, Index, KeyState, Member, MonGroup
from hook.reconcile import bring_in
from hook.reconcile.diagnose import Action, diagnose_failure, diagnose_key, name_members
from hook.reconcile.survey import Survey, add_late_counters, find_containers, find_owner
from hook.stages import create, reclaim, remove
from hook.stages.entry import Context
from hook.stages.retry import retire
from hook.state import damage, records, store
from hook.state.store import LockedKey


def act(seen: Survey, action: Action) -> Action | None:
    """Do an action; returns it with its actual effect; None: it was not needed any more. Raises HookError, OSError."""
    if action.verb == "remove":
        return action if reclaim.remove_orphan(seen.context, action.path) else None
    if action.verb == "rebuild" and action.path:
        return _rebuild_orphan(seen, action)
    if action.verb == "adopt" and not action.key:
        it = seen.adoptable[action.container]
        container = bring_in.make_container(it.id, it.pid or 0, it.bundle, it.annotations)
        return action if bring_in.adopt_running(seen, container) else None
    if not action.key:
        return _act_on_failure(seen, action)
    run = seen.context.run
    with run.lock(action.key, system.monotonic()) as locked:
        if action.container:
            seen.index[action.container] = records.glance_index(run, action.container)
        # After a remake for another container of the key, this one only needs its threads moved in (adopt).
        same = (action.id, replace(action, verb="adopt").id if action.verb == "remake" else "")
        needed = diagnose_key(seen, action.key, locked.state, action.container)
        found = next((it for it in needed if it.id in same), None)
        if found is None:
            return None
        state = locked.state or damage.unknown_state(action.key)
        if action.verb in _LOCKED:
            _LOCKED[action.verb](seen, locked, state, found)
            return found
    # The calls below take the lock again, as a hook does.
    if action.verb == "remake":
        return action if bring_in.remake(seen, state, action.container) else None
    moved = bring_in.adopt(seen, state, action.container)
    return replace(found, why=f"{moved} of its threads were not in its group") if moved else None


def _act_on_failure(seen: Survey, action: Action) -> Action | None:
    """Retry a failed createRuntime, or remove its failure record."""
    run, container = seen.context.run, action.container
    # Read the record again: the container may have been restarted, and have failed again.
    found = next((it for it in diagnose_failure(seen, container) if it.id == action.id), None)
    if action.verb == "retry":
        return found if found is not None and bring_in.retry(seen, container) else None
    records.remove_half_written(run, Failure, container)
    if found is not None:
        run.remove(Failure, container)
    return action


# --- The actions that hold the lock of their key


def _evict(seen: Survey, _locked: LockedKey, _state: KeyState, action: Action) -> None:
    """Move foreign tasks out: the kernel shows tasks by RMID, so a reused RMID brings some in that no program moved.

    A hook records a container under the lock before it moves its init, so the record that the tasks were compared with
    has every container whose init is among them.
    """
    for tid in action.strangers:
        try:
            seen.context.resctrl.expel(action.path, tid)
        except HookError as error:
            if error.reason != Reason.TASK_GONE:
                raise


def _show_key(seen: Survey, locked: LockedKey, state: KeyState, _action: Action) -> None:
    now = store.change(state, [add_late_counters(seen.context, group) for group in state.groups])
    locked.commit(now)
    seen.context.view.show(now)


def _tidy_key(seen: Survey, _locked: LockedKey, state: KeyState, action: Action) -> None:
    context = seen.context
    if action.path:
        system.remove_tree(action.path, context.run.descriptor)
        return
    records.remove_leftovers(context.run, action.key)
    if not state.generation:
        context.view.remove(action.key)


# --- Rebuilding a lost or damaged record from the kernel and the index


def _rebuild_orphan(seen: Survey, action: Action) -> Action | None:
    """Rebuild the record of the key that owns a group, if it is still missing."""
    key = seen.owners[action.path]
    if key is None:
        raise HookError(Reason.IO, "it has tasks of several keys, and its name is none of them")
    with seen.context.run.lock(key, system.monotonic()) as locked:
        state = locked.state or damage.unknown_state(key)
        if not state.recovering:
            return None
        _rebuild(seen, locked, state, action)
        return action


def _rebuild(seen: Survey, locked: LockedKey, state: KeyState, _action: Action) -> None:
    """Find the groups and the members of a key again. HookError: a task matches no known container.

    Members are the containers whose IDs are in the names of the tasks' cgroups. The next pass drops dead ones, and
    ends a key without members.
    """
    context, key = seen.context, state.key
    paths = {group.path for group in state.groups}
    # The groups with the key in their name, and those without a record, at the survey and now.
    others = {path for path, owner in seen.owners.items() if owner == key and not reclaim.is_recorded(context, path)}
    others |= {f"{above}/mon_groups/{context.options.group_prefix}{key}" for above in seen.ctrl_groups}
    there = (it for it in sorted(others - paths) if context.resctrl.inode(it) is not None)
    groups = [*state.groups, *(_make_record(context, it) for it in there if find_owner(seen, it) == key)]
    members: dict[str, Member] = {}
    for group in groups:
        members = {**_find_members(seen, key, group.path), **members}
    locked.commit(store.change(state, groups, members={**members, **state.members}))
    for group in groups:
        if context.resctrl.inode(group.path) is not None:
            create.begin(context, locked, group.path, made=False, empty=False)
    rebuilt = locked.state or state
    if _has_unknown(seen, rebuilt):
        raise HookError(Reason.IO, "its group has tasks that match no known container")
    locked.commit(store.replace(rebuilt, recovering=False))


def _make_record(context: Context, path: str) -> MonGroup:
    """Make the record of an existing group whose initial counters are lost."""
    above = path.rpartition("/mon_groups/")[0]
    return MonGroup(path=path, ctrl_group=above[len(context.resctrl.root) :].strip("/") or "/")


def _find_members(seen: Survey, key: str, path: str) -> dict[str, Member]:
    """The live containers of a key, by the index and by the tasks in one of its groups. Writes their index entries."""
    run, found = seen.context.run, {}
    for name, init in find_containers(seen, path).items():
        if (records.glance_index(run, name) or key) == key:  # a hook may have recorded it since the survey
            cgroup = procfs.own_cgroup(list(init.cgroups), name)
            found[name] = Member(pid=init.pid, starttime=init.starttime, group=path, cgroup=cgroup)
            run.write_index(name, key)
    return found


def _has_unknown(seen: Survey, state: KeyState) -> bool:
    """Whether a group of the key has a live task of no known container.

    Tasks of another key's container do not count: a reused RMID brought them in, and they are evicted later. Nor do
    tasks that started after the survey: each is a child of another task, or of a container that a hook has recorded.
    """
    there = {tid for group in state.groups for tid in seen.context.resctrl.tasks(group.path) or ()}
    seen.processes.add(state.members.items())
    known: set[int] = set()
    for member in state.members.values():
        known |= seen.processes.of_container(member) | seen.processes.in_own_cgroup(member)
    unknown = {tid for tid in there - seen.processes.threads(known) if procfs.is_dead(tid) is not True}
    return any(not (seen.processes.is_newer(tid) or _is_of_other(seen, tid, state.key)) for tid in unknown)


def _is_of_other(seen: Survey, tid: int, key: str) -> bool:
    ids = filter(None, (cgroups.find_container(place, seen.index) for place in procfs.cgroups(tid)))
    return any((seen.index.get(name) or key) != key for name in ids)


_LOCKED: dict[str, Callable[[Survey, LockedKey, KeyState, Action], object]] = {
    "rebuild": _rebuild,
    "drop": lambda seen, locked, _state, action: remove.drop(seen.context, locked, [action.container]),
    "end": lambda seen, locked, state, _action: remove.end(seen.context, locked, state),
    "evict": _evict,
    "retire": lambda seen, locked, _state, _action: retire(seen.context, locked),
    "forget": lambda seen, _locked, _state, action: seen.context.run.remove(Index, action.container),
    "name": lambda seen, locked, state, _action: locked.commit(name_members(seen, state)),
    "prune": lambda seen, locked, _state, _action: remove.forget(seen.context, locked),
    "show": _show_key,
    "tidy": _tidy_key,
}
"""The actions that hold the lock of their key. They get its recorded state, or an empty one if none is readable."""
