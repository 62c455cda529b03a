# SPDX-License-Identifier: Apache-2.0
"""Carries out that a container comes: the order of writes of createRuntime (docs/design.md).

Each step says which crash it survives. All run under the key's lock. `key` has what leaves or changes.
"""

from __future__ import annotations

from hook import life, resctrl, system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.context import Context
    from hook.life import Attempt
    from hook.models import KeyState
    from hook.store import LockedKey


# Seconds in which no machine starts so many processes that a pid is used again. An init waits for its runtime, which
# waits for us; but if the runtime is killed, the init ends.
_PROMPT = 0.05


def enter(context: Context, locked: LockedKey, after: KeyState, path: str, attempt: Attempt) -> None:
    """Carry out that a container joins: `after` is its key's next state, `path` its group. Raises HookError, OSError.

    It leaves what it has done, for retry.undo.
    """
    container, group = attempt.container, life.get_group(after, path)
    if group.begin is not None:
        is_there = context.resctrl.has(group)
        # Before mkdir, so that the record says that a new directory comes. Killed after it, the next hook reads the
        # new counters as a begin, not as those of the former directory.
        after = life.resume(after, group) if is_there else _remake(after, path)
    # The index before the member: killed in between, poststop finds a key without this member and tidies up.
    # In the other order a poststop without annotations would never find the member.
    context.run.write_index(container.id, after, after.members[container.id])
    # The member and the group before mkdir: killed after it, the group is on record and cannot leak.
    locked.commit(after)
    is_made = context.resctrl.make(path)
    # The begin before the first pid: killed in between, nothing was charged yet; the next hook reads it again.
    write_begin(context, locked, path, is_made=is_made, is_late=container.is_late)
    # Last: killed before it, the container runs unmonitored but on record, and reconcile moves it in.
    is_prompt = container.is_new and system.monotonic() < attempt.began + _PROMPT
    context.resctrl.put_process(path, container.pid, None if is_prompt else container.starttime)


def _remake(state: KeyState, path: str) -> KeyState:
    from hook import life_turns

    return life_turns.remake(state, path)


def write_begin(context: Context, locked: LockedKey, path: str, *, is_made: bool, is_late: bool = False) -> None:
    """Read and commit the counters of a group before its first member is in it.

    `is_made` says that this call has made its directory, and `is_late` that the member had run before it joined.
    """
    state = locked.state
    if state is None:
        return
    group, texts = life.get_group(state, path), None
    directory = context.resctrl.identify(path)
    is_replaced = is_made or not resctrl.is_about(group, directory)
    if (is_replaced or group.begin is None) and (context.options.snapshot_ttl or state.history_file):
        texts = context.resctrl.counters(path)
        is_late = is_late or state.recovering or (not is_made and context.resctrl.has_live_task(path))
    if is_replaced and group.begin is not None:  # since `enter` looked
        state = _remake(state, path)
        group = life.get_group(state, path)
    # A begin that cannot be saved is a failed start: what has no begin has counted nothing for the key.
    locked.commit(life.begin(state, group, directory, texts, is_late=is_late))
