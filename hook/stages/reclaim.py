# SPDX-License-Identifier: Apache-2.0
"""Frees RMIDs when the kernel has none left, so that a new pod is not left unmonitored while dead pods hold RMIDs.

What is dead goes first: keys whose members are all dead (a finished Job whose poststop never came), or that have
lingered for long enough, and groups with our prefix that are on no record. Only if there is none of those, the key that
lingers longest. Each under its own lock, which is taken without waiting: its holder is at work there.
"""

from __future__ import annotations

from hook.base import procfs, system
from hook.base.errors import HookError
from hook.base.explain import known
from hook.base.models import Index, KeyState
from hook.base.reasons import Reason
from hook.stages import orphans, remove

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.stages.context import Context

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
        """How many groups gave their RMID back by now."""
        return self._context.freed - self._before

    def is_over(self) -> bool:
        """Whether to leave it at that. On a slow node the first second may go by in looking."""
        seconds = _SECONDS if self.freed else _SECONDS_IN_VAIN
        return self.freed >= _MOST or system.monotonic() - self._began >= seconds


def reclaim(context: Context, own: str) -> bool:
    """Free some RMIDs; returns whether there was any to free.

    `own` is the key of the caller, who holds no lock. What goes wrong is reported, and changes nothing else.
    """
    if not procfs.in_host_pid_namespace():
        hint = "run `reconcile` on the host, or take the hook out of the pid namespace"
        context.run.complaints.append(
            HookError(Reason.DENIED, f"no RMID is reclaimed: {procfs.NOT_HOST_PIDS}", hint=hint)
        )
        return False
    effort = _Effort(context)
    try:
        waiting = _end_dead(context, own, effort)
        if not effort.is_over():
            _remove_orphans(context, effort)
        for state in sorted(waiting, key=lambda state: state.lingering_since or 0.0):
            if effort.freed or effort.is_over():
                break
            _end(context, state.key, waiting=True)
    except (HookError, OSError) as error:
        context.run.complaints.append(known("RMIDs could not be reclaimed", error))
    return effort.freed > 0


def _end_dead(context: Context, own: str, effort: _Effort) -> list[KeyState]:
    """End keys as long as one may; returns those seen that may still linger."""
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


def _remove_orphans(context: Context, effort: _Effort) -> None:
    for path in orphans.find_orphans(context):
        if effort.is_over():
            return
        try:
            orphans.remove_orphan(context, path)
        except HookError:
            pass  # busy, or the kernel has something against it: it stays


def is_deserted(state: KeyState) -> bool:
    """Whether a key holds groups that no member needs which is not known to be dead."""
    if state.completed_at is not None or state.recovering or not state.groups:
        return False
    return all(procfs.is_dead(member.pid, member.starttime) for member in state.members.values())


def _waits(context: Context, state: KeyState) -> bool:
    """Whether a key lingers, and has time left to do so."""
    return state.lingering_since is not None and not state.members and not remove.has_lingered(context, state)


def _end(context: Context, key: str, *, waiting: bool = False) -> None:
    """End a key, if it is as it looked; `waiting`: even if it may still linger."""
    try:
        with context.run.lock(key, system.monotonic()) as locked:
            state = locked.state  # read again: a hook, or another reclaim, may have been here since we looked
            if state is not None and is_deserted(state) and (waiting or not _waits(context, state)):
                remove.end(context, locked, state)
                for container in state.members:
                    context.run.remove(Index, container)
    except HookError:
        pass  # busy, or the kernel has something against it: it stays on record
