"""Frees RMIDs when the kernel has none left, so that a new pod is not dark while dead ones sit on them.

What is dead goes first: keys whose members are all dead (a finished Job whose poststop never came), or that have
lingered for long enough, and groups with our prefix that nothing is recorded of. Only if there is none of those, the
key that lingers longest. Each under its own lock, which is taken without waiting: whoever has it is at work there.
"""

from __future__ import annotations

from hook import ending, process, system
from hook.errors import HookError, known
from hook.node import is_recorded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from hook.models import KeyState
    from hook.node import Node
    from hook.rundir import LockedKey

_MOST = 32
_SECONDS = 1.0


def reclaim(node: Node, own: str) -> bool:
    """Free some RMIDs, at most _MOST of them and within _SECONDS; returns whether there was any to free.

    `own` is the key of the caller, who holds no lock. What goes wrong is said, and costs nobody more than that.
    """
    deadline = system.monotonic() + _SECONDS
    before = node.freed
    try:
        states = [node.run.glance(key) for key in node.run.recorded() if key != own]
        endable = [state for state in states if state is not None and is_deserted(state)]
        waiting = [state for state in endable if _waits(node, state)]
        _end_all(node, (state.key for state in endable if state not in waiting), deadline)
        if node.freed - before < _MOST:
            remove_orphans(node, node.orphans(), deadline)
        if node.freed == before:
            for state in sorted(waiting, key=lambda state: state.lingering_since or 0.0):
                _end_all(node, [state.key], deadline, waiting=True)
                if node.freed > before:
                    break
    except (HookError, OSError) as error:
        node.run.complaints.append(known("RMIDs could not be reclaimed", error))
    return node.freed > before


def is_deserted(state: KeyState) -> bool:
    """Whether a key holds groups that no member needs which is not known to be dead."""
    if state.completed_at is not None or state.recovering or not state.groups:
        return False
    return all(process.is_dead(member.pid, member.starttime) for member in state.members.values())


def _waits(node: Node, state: KeyState) -> bool:
    """Whether a key lingers, and has time left to do so."""
    return state.lingering_since is not None and not state.members and not ending.has_lingered(node, state)


def _end_all(node: Node, keys: Iterable[str], deadline: float, *, waiting: bool = False) -> None:
    """End keys, as long as there is time and they are as they looked; `waiting`: even those that may still linger."""
    first = node.freed
    for key in keys:
        if node.freed - first >= _MOST or system.monotonic() >= deadline:
            return
        try:
            with node.run.lock(key, system.monotonic()) as locked:
                state = locked.state  # read again: a hook, or another reclaim, may have been here since we looked
                if state is not None and is_deserted(state) and (waiting or not _waits(node, state)):
                    _end(node, locked, state)
        except HookError:
            continue  # busy, or the kernel has something against it: it stays on record


def _end(node: Node, locked: LockedKey, state: KeyState) -> None:
    """End a key all of whose members are dead."""
    members = list(state.members)
    ending.end(node, locked, state)
    for container in members:
        node.run.remove_index(container)


def remove_orphans(node: Node, paths: Iterable[str], deadline: float) -> None:
    """Remove groups that look like ours and that nothing is recorded of, unless somebody is in them."""
    for path in paths:
        if system.monotonic() >= deadline:
            return
        key = node.key_of(path)
        if key is None:
            continue
        try:
            # Under the lock of the key that it would be of: a hook records a group before it makes it.
            with node.run.lock(key, system.monotonic()) as locked:
                if not is_recorded(path, locked.state) and not node.resctrl.has_live_task(path):
                    node.remove(path)
        except HookError:
            continue
