# SPDX-License-Identifier: Apache-2.0
"""Frees RMIDs when the kernel has none left, so that a new pod is not left unmonitored while dead pods hold RMIDs.

First go the keys whose members are all dead (a finished Job whose poststop was lost), those that have lingered for
their time, and groups with our prefix that are on no record. If there are none of these, the key goes that has lingered
longest. Each key's lock is taken without waiting: if another process holds it, the key is skipped.
"""

from __future__ import annotations

from hook.base import names, procfs, resctrl, system
from hook.base.errors import HookError, Reason
from hook.base.models import Index, KeyState
from hook.stages import remove

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from hook.stages.entry import Context

_MOST = 32
_SECONDS = 1.0
_SECONDS_IN_VAIN = 5.0


class _Effort:
    """How much one reclaim may do: free _MOST groups in _SECONDS, or look for one for as long as _SECONDS_IN_VAIN."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._before = context.freed
        self._began = system.monotonic()

    @property
    def freed(self) -> int:
        """The number of groups that were removed so far."""
        return self._context.freed - self._before

    def is_over(self) -> bool:
        """Whether to stop. On a slow node the search for a first group may take longer than _SECONDS."""
        seconds = _SECONDS if self.freed else _SECONDS_IN_VAIN
        return self.freed >= _MOST or system.monotonic() - self._began >= seconds


def reclaim(context: Context, own: str) -> bool:
    """Free some RMIDs; returns whether any was freed.

    `own`: the caller's key, which is skipped. The caller holds no lock. Failures are reported, and stop nothing.
    """
    if not procfs.in_host_pid_namespace():
        hint = "run `reconcile` on the host, or take the hook out of the pid namespace"
        error = HookError(Reason.DENIED, f"no RMID is reclaimed: {procfs.NOT_HOST_PIDS}", hint=hint)
        context.run.complaints.append(error)
        return False
    effort = _Effort(context)
    try:
        waiting = _end_dead(context, own, effort)
        for path in [] if effort.is_over() else find_orphans(context, resctrl.list_mon_groups(context.resctrl.root)):
            if effort.is_over():
                break
            try:
                remove_orphan(context, path)
            except HookError:
                pass  # its lock is busy, or the kernel refuses: it stays
        for state in sorted(waiting, key=lambda state: state.lingering_since or 0.0):
            if effort.freed or effort.is_over():
                break
            _end(context, state.key, waiting=True)
    except (HookError, OSError) as error:
        context.run.complain("RMIDs could not be reclaimed", error)
    return effort.freed > 0


def _end_dead(context: Context, own: str, effort: _Effort) -> list[KeyState]:
    """End dead keys until the effort is over; returns the keys met that still linger."""
    waiting = []
    for key in context.run.names(KeyState):
        if effort.is_over():
            break
        state = context.run.glance(KeyState, key) if key != own else None
        if state is None or not is_deserted(state):
            continue
        if _waits(context, state):
            waiting.append(state)
        else:
            _end(context, key)
    return waiting


def is_deserted(state: KeyState) -> bool:
    """Whether a key has groups and all of its members, if any, are known to be dead."""
    if state.completed_at is not None or state.recovering or not state.groups:
        return False
    return all(procfs.is_dead(member.pid, member.starttime) for member in state.members.values())


def _waits(context: Context, state: KeyState) -> bool:
    """Whether a key lingers, and its time is not over."""
    return state.lingering_since is not None and not state.members and not has_lingered(context, state)


def has_lingered(context: Context, state: KeyState) -> bool:
    """Whether the linger time of a key is over, or it has nothing to linger for: its pod or its groups are gone."""
    since, until = state.lingering_since, state.lingering_until
    if since is None or until is None:
        return True
    if context.longest_linger is not None:
        until = min(until, since + context.longest_linger)
    if system.boottime() >= until:
        return True
    if context.resctrl.is_mounted() and all(context.resctrl.inode(group.path) is None for group in state.groups):
        return True
    return remove.is_deleted(state)


def _end(context: Context, key: str, *, waiting: bool = False) -> None:
    """End a key if it is still dead under its lock; `waiting`: even if it still lingers."""
    try:
        with context.run.lock(key, system.monotonic()) as locked:
            state = locked.state  # read again: a hook, or another reclaim, may have been here since we looked
            if state is not None and is_deserted(state) and (waiting or not _waits(context, state)):
                remove.end(context, locked, state)
                for container in state.members:
                    context.run.remove(Index, container)
    except HookError:
        pass  # its lock is busy, or the kernel refuses: it stays on record


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
    """Derive the key of a group from its name; None: it is not our prefix followed by a valid key.

    The name alone may mislead: a group of another prefix that begins with ours is on record of another key.
    """
    name, prefix = path.rpartition("/")[2], context.options.group_prefix
    try:
        return names.container_id(name[len(prefix) :]) if name.startswith(prefix) else None
    except ValueError:
        return None


def remove_orphan(context: Context, path: str) -> bool:
    """Remove a group with our prefix, unless it is on record or has a live task. Returns whether it was removed."""
    key = parse_key(context, path)
    if key is None:
        return False
    # Under the lock of the key in its name: a hook records a group, under that lock, before it makes it.
    with context.run.lock(key, system.monotonic()) as locked:
        if _is_on(path, locked.state) or context.resctrl.has_live_task(path):
            return False
        before = context.freed
        if locked.state is None:  # the view before its links dangle
            context.view.remove(key)
        else:
            context.view.show(locked.state)
        remove.remove_group(context, path)
        return context.freed > before


def is_recorded(context: Context, path: str) -> bool:
    """Whether a group is on the record of the key in its name, read without a lock."""
    key = parse_key(context, path)
    return key is not None and _is_on(path, context.run.glance(KeyState, key))


def _is_on(path: str, state: KeyState | None) -> bool:
    """Whether a state names a group, or is recovering, so that it may have named it."""
    if state is None or state.completed_at is not None:
        return False
    return state.recovering or path in [group.path for group in state.groups]
