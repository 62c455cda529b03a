"""Puts right what hooks cannot: now and then, beside running hooks, and as often as one likes.

In this version: what is kept of completed keys goes when its time is over.
"""

from __future__ import annotations

from hook import system
from hook.errors import HookError
from hook.lifecycle import Node
from hook.models import KeyState
from hook.records import Records
from hook.resctrl import Resctrl
from hook.rundir import RunDir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.models import Options


def run(options: Options) -> list[str]:
    """Once, on a node with these options; returns the keys that are forgotten. Raises HookError, OSError."""
    with Records(options.run_dir) as records:
        if not records.recorded():  # there may be no run directory, and none is made for that
            return []
        return prune(Node(Resctrl(options.resctrl_root), RunDir(options.run_dir), options), records)


def prune(node: Node, records: Records) -> list[str]:
    """Forget the keys that were completed longer ago than `--snapshot-ttl`, but for busy ones; returns them."""
    pruned = []
    for key in records.recorded():
        if not _is_over(node, records.state(key)):
            continue
        try:
            # No waiting: a hook that has the lock brings the key back to life.
            with node.run.lock(key, system.monotonic()) as locked:
                if _is_over(node, locked.state):
                    node.forget(locked)
                    pruned.append(key)
        except HookError:
            continue
    return pruned


def _is_over(node: Node, state: object) -> bool:
    if not isinstance(state, KeyState) or state.completed_boottime is None:
        return False
    return system.boottime() - state.completed_boottime >= node.options.snapshot_ttl
