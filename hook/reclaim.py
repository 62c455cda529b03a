# SPDX-License-Identifier: Apache-2.0
"""Frees what a start lacks: RMIDs when the kernel has none left, room when the run directory is full.

A new pod is not left unmonitored while dead pods hold RMIDs. First go the keys whose members are all dead (a finished
Job whose poststop was lost), those that have lingered for their time, and groups with our prefix that are on record of
no key. If there are none of these, the key goes that has lingered longest. Each key's lock is taken without waiting: if
another process holds it, the key is skipped.

It also clears what is in the way of a record, and sets unreadable records aside. Imported only in these cases, and by
the tools.
"""

from __future__ import annotations

from hook import ending, key, life_end, names, resctrl, system
from hook.errors import HookError, Reason
from hook.models import KeyState
from hook.view import View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hook.context import Context
    from hook.models import Kind, MonGroup
    from hook.store import LockedKey, RunDir

ASIDE = ".json.unreadable-"
"""In the name of an unreadable state file that was set aside, between its key and its inode."""
IN_THE_WAY = (system.ELOOP, system.EISDIR, system.EFBIG, system.ENXIO)
"""The errnos of a read of a link, a directory, too large a file and a socket in the place of a record."""
DROPPED_SNAPSHOTS = "dropped_snapshots"
"""A file in the run directory's `runs`: one byte for each completed key that went early, to make room."""
_MOST_FREED = 32
_SECONDS = 1.0
LONGEST_SEARCH = 5.0
_MOST_MADE = 8
_FEW = 2  # the count of what was removed may take the first one's room


# --- RMIDs


def reclaim(context: Context, skipped: str) -> bool:
    """Free some RMIDs, _MOST_FREED at most, in about _SECONDS; returns whether any was freed.

    `skipped` is the caller's key. The caller holds no lock. Failures are reported, and stop nothing.
    """
    if not system.in_host_namespaces():
        context.run.complaints.append(HookError(Reason.DENIED, "not host namespaces"))
        return False
    before, began = context.freed, system.monotonic()

    def has_enough() -> bool:
        """Whether to stop. On a slow node the search for a first group may take longer than _SECONDS."""
        freed = context.freed - before
        return freed >= _MOST_FREED or system.monotonic() - began >= (_SECONDS if freed else LONGEST_SEARCH)

    try:
        waiting = _end_dead(context, skipped, has_enough)
        groups = [] if has_enough() else system.try_call(resctrl.list_mon_groups, context.resctrl.root) or []
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
    for name in context.run.list_names(KeyState):
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
    return state.lingering_since is not None and not state.members and not has_lingered(context, state)


def has_lingered(context: Context, state: KeyState) -> bool:
    """Whether the linger time of a key is over, or it has nothing to linger for: its pod or its groups are gone."""
    since, until = state.lingering_since, state.lingering_until
    if since is None or until is None:
        return True
    if system.boottime() >= until:
        return True
    if context.resctrl.is_mounted() and all(context.resctrl.is_gone(group.path) for group in state.groups):
        return True
    return key.is_deleted(state)


def _end(context: Context, name: str, *, waiting: bool = False) -> None:
    """End a key if it is still dead under its lock; with `waiting`, even if it still lingers."""
    try:
        with context.run.lock(name, system.monotonic()) as locked:
            state = locked.state  # read again: a hook, or another reclaim, may have been here since we looked
            if state is not None and is_deserted(state) and (waiting or not _waits(context, state)):
                key.end(context, locked)
    except HookError:
        pass  # its lock is busy, or the kernel refuses: it stays on record


def end_lingered(context: Context, locked: LockedKey) -> None:
    """End a key whose linger time is over, before a container begins its next run. A failure is reported."""
    try:
        key.end(context, locked)
    except (HookError, OSError) as error:
        context.run.complain("a key that has lingered long enough could not be ended", error)


# --- Groups with our prefix that are on record of no key


def find_orphans(context: Context, paths: Iterable[str]) -> list[str]:
    """Find the groups with our prefix that are on record of no key, among those of these paths.

    The paths are listed before this reads the records: createRuntime records a group before it makes it.
    """
    lone = [path for path in paths if parse_key(context, path) is not None and not is_recorded(context, path)]
    states = context.run.list_states() if lone else []  # their groups may have another prefix
    taken = {group.path for state in states if state.completed_at is None for group in state.groups}
    return [path for path in lone if path not in taken]


def parse_key(context: Context, path: str) -> str | None:
    """Derive the key of a group from its name, which is our prefix and a valid key; of another name return None.

    The name alone may mislead: a group of another prefix that begins with ours is on record of another key.
    """
    name, prefix = path.rpartition("/")[2], context.options.group_prefix
    rest = name[len(prefix) :] if name.startswith(prefix) else ""
    return rest if names.is_container_id(rest) else None


def remove_orphan(context: Context, path: str) -> bool:
    """Remove a group with our prefix, unless it is on record or has a live task. Returns whether it was removed."""
    name = parse_key(context, path)
    if name is None:
        return False
    # Under the lock of the key in its name: a hook records a group, under that lock, before it makes it.
    with context.run.lock(name, system.monotonic()) as locked:
        if _is_on(path, locked.state) or context.resctrl.has_live_task(path):
            return False
        if locked.state is None or not locked.state.generation:  # the view before its links dangle
            context.view.remove(name)
        else:
            context.view.show(locked.state)
        return key.remove_group(context, path)


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


def retire(context: Context, locked: LockedKey, *, left: str | None = None) -> None:
    """Remove groups that are gone, and that no member needs, from the record of a key that goes on.

    So goes `left`, a group whose container was moved to another ctrl_group, if no member needs it and it has no task.
    """
    state = locked.state
    if state is None or state.completed_at is not None:
        return
    unneeded = [group for group in state.groups if is_retired(context, state, group, left=left)]
    if 0 < len(unneeded) < len(state.groups):
        finals = key.read_finals(context, state, [group.path for group in state.groups if group not in unneeded])
        ended = [life_end.finish(group, finals.get(group.path)) for group in unneeded]
        key.settle(context, locked, life_end.retire(state, ended))


def is_retired(context: Context, state: KeyState, group: MonGroup, *, left: str | None = None) -> bool:
    """Whether no member needs a group, and it is gone, or is `left` and has no task."""
    if group.path in {member.group for member in state.members.values()}:
        return False
    return context.resctrl.is_gone(group.path) or (group.path == left and not context.resctrl.has_live_task(left))


# --- Room for a record: what is kept of completed keys goes, the oldest first


def make_way(run: RunDir, path: str, error: OSError, *, drops_lines: bool = True) -> None:
    """Remove the obstacle to a write of a record, for another try. Raises the error if no try can help.

    ENOENT: the hook that made the run directory was killed before it had made its parts, or another writer took the
    temporary file. ENOSPC: completed keys make room; `drops_lines`: as in make_room.
    """
    if isinstance(error, FileNotFoundError):
        run.make_parts()
    elif error.errno == system.ENOSPC:
        if not make_room(run, drops_lines=drops_lines):
            raise error
    elif error.errno not in IN_THE_WAY:
        raise error
    elif isinstance(error, IsADirectoryError):
        system.remove_tree(path, run.descriptor)


def make_room(run: RunDir, *, drops_lines: bool) -> bool:
    """Remove what is kept of the oldest completed keys, _MOST_MADE at most, in about _SECONDS; returns whether any was.

    First go the snapshots, those of keys that owe lines of history last. The lines go only if there is nothing else,
    and if the caller `drops_lines`. The caller may hold the lock of a key. Others are taken without waiting.
    """
    if not run.may_make_room:
        return False
    run.may_make_room = False  # for the writes in here; and for further ones, if nothing could be removed
    deadline, removed = system.monotonic() + _SECONDS, 0
    completed = []
    for name in system.try_call(run.list_names, KeyState) or []:
        state = run.glance(KeyState, name)
        if state is not None and state.completed_at is not None:
            completed.append(state)
        if system.monotonic() >= deadline:
            break
    for state in sorted(completed, key=rank):
        is_last = state.owed is not None and not state.groups
        if removed == _MOST_MADE or (removed and system.monotonic() >= deadline):
            break
        if is_last and (removed >= _FEW or not drops_lines):
            break
        removed += _drop_completed(run, state.key)
    run.may_make_room = removed > 0
    return run.may_make_room


def rank(state: KeyState) -> tuple[bool, bool, float]:
    """The place of a completed key in the order in which they make room."""
    return state.owed is not None, not state.groups, state.completed_boottime or 0.0


def _drop_completed(run: RunDir, name: str, *, is_again: bool = False) -> bool:
    """Remove the snapshot of a completed key or, if there is none, the lines that it owes; returns whether it did."""
    view = View(run, "")
    try:
        with run.lock(name, system.monotonic()) as locked:
            state = locked.state
            if state is None or state.completed_at is None:
                return False
            if state.owed is not None and not state.groups:
                locked.clear()
                ending.count_dropped(run, life_end.count_owed(state), "no room in the run directory")
            else:
                forget(view, locked)
                run.count_run(DROPPED_SNAPSHOTS)
    except HookError:  # another process holds its lock
        return False
    except OSError as error:
        if error.errno != system.ENOSPC:
            return False
        # There is no inode for its lock. Its view can go without: if the key has just come back, reconcile makes that
        # view again.
        system.try_call(view.remove, name)
        return is_again or _drop_completed(run, name, is_again=True)
    return True


def forget(view: View, locked: LockedKey) -> None:
    """Remove a key's view and its record, of which the lines of history stay that it owes."""
    state = locked.state
    if state is None:
        return
    if state.generation:
        view.remove(state.key)
    after = life_end.forget(state)
    if after is None:
        locked.clear()
    else:
        locked.commit(after)


# --- Unreadable records


def set_aside(run: RunDir, name: str, error: Exception) -> KeyState:
    """Set an unreadable state file aside, and return the new state, which is recovering. Call it under the key's lock.

    Raises the OSError of a read that failed for another reason than the file itself, such as EIO.
    """
    if isinstance(error, OSError) and error.errno not in IN_THE_WAY:
        raise error
    path = f"groups/{name}.json"
    # No two files have the same inode at a time, so this name is free, or is another name of this very file.
    aside = f"groups/{name}{ASIDE}{system.inode(path, run.descriptor)}"
    # A second name for the old file, then the new state over the first name: killed in between, or with no room for
    # the new state, the next hook finds the key as unreadable as this one did, and never takes it for new.
    try:
        system.link(path, aside, run.descriptor)
    except FileExistsError:
        pass
    except PermissionError:  # a directory has one name only
        system.rename(path, aside, run.descriptor)
    state = _salvage(run, name)
    run.write(KeyState, name, state)
    run.complaints.append(HookError(Reason.IO, "unreadable state", key=name, error=error, kept=f"{run.path}/{aside}"))
    return state


def _salvage(run: RunDir, name: str) -> KeyState:
    """Make the new state of a key whose record is unreadable, with the lines of history that it owes, if they show.

    They do in the record of a newer version.
    """
    state = unknown_state(name)
    try:
        content = run.read_json(KeyState, name)
        kept = {field: content[field] for field in ("history_file", "owed") if field in content}
        return KeyState.model_validate({**state.model_dump(), **kept})
    except (OSError, ValueError, TypeError):
        return state


def unknown_state(name: str) -> KeyState:
    """Make the state of a key of which only the name is known: recovering, without members and groups."""
    is_uid = len(name) == 36 and name.count("-") == 4 and not name.strip("0123456789abcdef-")
    kind: Kind = "pod" if is_uid else "container"
    now, boottime = system.now_utc(), system.boottime()
    return KeyState(key=name, kind=kind, recovering=True, created_at=now, created_boottime=boottime)
