# SPDX-License-Identifier: Apache-2.0
"""Groups with our prefix that are on record of no key. For reclaim and reconcile: the search grows with the node."""

from __future__ import annotations

from hook.base import all_groups, names, system
from hook.base.models import KeyState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from hook.stages.context import Context


def find_orphans(context: Context, recorded: Collection[str] = ()) -> list[str]:
    """Find the groups with our prefix that are on record of no key. `recorded`: groups that the caller found on one."""
    # The groups before the records: createRuntime records a group before it makes it.
    keys = {
        path: key_of(context, path) for path in all_groups.list_mon_groups(context.resctrl.root) if path not in recorded
    }
    lone = [path for path, key in keys.items() if key is not None and not is_recorded(context, path)]
    taken = _recorded_paths(context) if lone else set()
    return [path for path in lone if path not in taken]


def key_of(context: Context, path: str) -> str | None:
    """Derive the key of a group from its name; None if it has not our prefix, or no key behind that.

    From its name alone: a group with a longer prefix, which ours is the beginning of, is on record of another key.
    """
    name, prefix = path.rpartition("/")[2], context.options.group_prefix
    try:
        return names.container_id(name[len(prefix) :]) if name.startswith(prefix) else None
    except ValueError:
        return None


def remove_orphan(context: Context, path: str) -> bool:
    """Remove a group that looks like ours, unless it is on record or has a live task. Returns whether it went."""
    key = key_of(context, path)
    if key is None:
        return False
    # Under the lock of the key that it would be of: a hook records a group before it makes it.
    with context.run.lock(key, system.monotonic()) as locked:
        if _is_on(path, locked.state) or context.resctrl.has_live_task(path):
            return False
        before = context.freed
        context.remove(path)
        return context.freed > before


def _recorded_paths(context: Context) -> set[str]:
    """Read the groups of all keys that are not over, whatever prefix they were made with."""
    states = context.run.list_states()
    return {it.path for state in states if state.completed_at is None for it in state.groups}


def is_recorded(context: Context, path: str) -> bool:
    """Whether a group is on record of the key in its name."""
    key = key_of(context, path)
    return key is not None and _is_on(path, context.run.glance(KeyState, key))


def _is_on(path: str, state: KeyState | None) -> bool:
    """Whether a group is on this record, or may have been."""
    if state is None or state.completed_at is not None:
        return False
    return state.recovering or path in [group.path for group in state.groups]
