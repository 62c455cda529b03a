# SPDX-License-Identifier: Apache-2.0
"""createRuntime: a container's init process goes into the mon_group of its key,
before its first instruction.

Read `create_runtime`, then `_try_once`, then `life.join` (the key's next record) and `enter`
(the order of writes). A hook may be killed after each step: the next hook of that key, or
reconcile, repairs what it leaves.
"""

from __future__ import annotations

from hook import identity, life, resctrl, system
from hook.context import displaces, read_config
from hook.errors import HookError, Reason
from hook.models import Member, MonGroup
from hook.validation import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from hook.context import Context
    from hook.identity import Container, Key
    from hook.life import Attempt
    from hook.models import KeyState
    from hook.store import LockedKey

# Seconds in which no machine starts so many processes that a pid is used again. An init waits for
# its runtime, which waits for us; but if the runtime is killed, the init ends.
_PROMPT = 0.05


def create_runtime(
    context: Context,
    container: Container,
    key: Key | None = None,
    ctrl_group: str | None = None,
    other_keys: Iterable[str] = (),
) -> Key | None:
    """Put a container's init process into the mon_group of its key,
    before it runs its first instruction.

    Returns its key, or None if filters leave it out. A caller that knows its key gives that, which
    skips the filters; `ctrl_group` is as in life.Attempt. `other_keys` may have its process as a
    member already: a tool lists them, and a hook looks at none. HookError or OSError say that it
    should be monitored and could not be; then all that this call made is undone. A second call for
    the same container changes nothing.
    """
    if key is None and not identity.is_wanted(
        context.options, container.all_annotations, container.pod
    ):
        return None
    if container.starttime is None:
        from hook import refusals

        raise refusals.explain_no_starttime(container.pid)
    key = key or identity.derive_key(
        context.options.key, container.id, container.annotations, container.pod
    )
    if not context.resctrl.is_mounted():
        raise HookError(Reason.NOT_MOUNTED, "not mounted", root=context.resctrl.root)
    try:
        former = context.run.read_index(container.id)
    except HookError as error:
        context.run.complaints.append(error)
        former = None
    if former != key[0] and not (container.is_new and former is None):
        # Before the index names the new key: killed in between,
        # the former membership can still be found.
        from hook import refusals

        refusals.leave_other_keys(context, former, container, key, other_keys)
    attempt = life.begin_attempt(
        container, key, ctrl_group, system.monotonic(), context.options.lock_timeout
    )
    while True:
        try:
            _try_once(context, attempt)
        except (HookError, OSError) as error:
            from hook import reclaim

            if not reclaim.can_help(context, attempt, error):
                raise
        else:
            return key


def _try_once(context: Context, attempt: Attempt) -> None:
    """Put the container into its group, under its key's lock. Raises what reclaim.can_help judges.

    A try that fails leaves the key as it was before,
    since other containers may join and leave once the lock is free.
    """
    container, key = attempt.container, attempt.key
    attempt.now = system.boottime(), system.unix_time()
    new_group, mon_group = _find_group(context, attempt)
    if mon_group not in ("", context.options.group_prefix + key):
        from hook import refusals

        refusals.refuse_other_group(context, attempt, mon_group)
    with context.run.lock(key, attempt.deadline) as locked:
        before = locked.state
        if (
            before is not None
            and before.lingering_until is not None
            and before.lingering_until <= attempt.now[0]
        ):
            from hook import reclaim

            reclaim.end_lingered(context, locked)
            before = locked.state
        check_record((key, attempt.kind), container.job_labels, before)
        group = life.find_group(before, new_group)
        former = before.members.get(container.id) if before is not None else None
        member = _make_member(container, former, group, mon_group)
        is_displaced = former is not None and displaces(container, former)
        after = life.join(before, attempt, member, group, displaces=is_displaced)
        if (before is None or not before.groups) and context.resctrl.has_live_task(group.path):
            # The key's record was lost while a container of it lived:
            # reconcile finds out which, and evicts none.
            after = replace(after, recovering=True)
        try:
            enter(context, locked, after, group.path, attempt)
        except (HookError, OSError):
            from hook import reclaim

            reclaim.undo(context, attempt, locked, before, group.path)
            raise
        if attempt.left is not None:
            from hook import reclaim

            reclaim.drop_left(context, attempt, locked)


# --- Where the container is


def _find_group(context: Context, attempt: Attempt) -> tuple[MonGroup, str]:
    """Return the key's mon_group in the ctrl_group of the container's process,
    and the mon_group that this is in.

    The second is empty if there is none. The kernel names the ctrl_group. If it does not, that is
    the one seen before, the one that `linux.intelRdt.closID` of the bundle asks for (runtime-spec,
    config-linux.md), or the root one.
    """
    container = attempt.container
    try:
        shown = system.resctrl_groups(container.pid)
    except OSError:
        shown = None
    ctrl_group, mon_group = shown or (attempt.ctrl_group, "")
    if not ctrl_group:
        config = read_config(container.bundle)
        rdt = config.linux.intel_rdt if config is not None and config.linux is not None else None
        ctrl_group = (rdt.clos_id if rdt is not None else None) or "/"
    path = context.resctrl.path(ctrl_group, context.options.group_prefix + attempt.key)
    try:
        return MonGroup(path=path, ctrl_group=ctrl_group), mon_group
    except ValueError:
        raise HookError(Reason.NO_CTRL_GROUP, "bad ctrl_group", name=ctrl_group[:80]) from None


# --- The record


def check_record(key: Key, job_labels: dict[str, str], state: KeyState | None) -> None:
    """Raise HookError if a job would join a container's key,
    or a container a job's (`bad_key`), or it may (`io`).

    Or if the present run of a job was not begun with these labels:
    one run has one line in the history.
    """
    name, kind = key
    if state is not None and state.kind != kind and "job" in (state.kind, kind):
        if state.recovering:  # nothing says whose it is
            raise HookError(Reason.IO, "not rebuilt", key=name)
        raise HookError(Reason.BAD_KEY, "other kind", key=name, former=state.kind)
    if not job_labels or state is None or state.completed_at is not None:
        return
    if not job_labels.items() <= state.job_labels.items():
        from hook import refusals

        refusals.refuse_labels(job_labels, state)


def _make_member(
    container: Container, former: Member | None, group: MonGroup, mon_group: str
) -> Member:
    """Return the container as a member.

    What an earlier call for the same process has noted is kept.
    """
    taken_from = mon_group if mon_group and mon_group != group.path.rpartition("/")[2] else None
    cgroup = identity.choose_cgroup(container.places, container.id)
    if former is not None and identity.is_member(container, former):
        taken_from, cgroup = taken_from or former.taken_from, cgroup or former.cgroup
    return Member(
        pid=container.pid,
        starttime=container.starttime or 0,
        group=group.path,
        cgroup=cgroup,
        taken_from=taken_from,
        name=container.pod.container or (former.name if former is not None else None),
    )


# --- The order of writes (docs/design.md). `key` has that of what leaves or changes


def enter(
    context: Context, locked: LockedKey, after: KeyState, path: str, attempt: Attempt
) -> None:
    """Carry out that a container joins: `after` is its key's next state, `path` its group.
    Raises HookError, OSError.

    Each step says which crash it survives. All run under the key's lock,
    and what they have done is left for reclaim.undo.
    """
    container, group = attempt.container, life.get_group(after, path)
    # Of a key without groups _try_once has looked for tasks, and set `recovering` if there are any.
    has_looked = locked.state is None or not locked.state.groups
    if group.begin is not None:
        is_there = context.resctrl.has(group)
        # Before mkdir, so that the record says that a new directory comes. Killed after it, the
        # next hook reads the new counters as a begin, not as those of the former directory.
        after = life.resume(after, group) if is_there else _remake(after, path)
    # The index before the member: killed in between, poststop finds a key without this member and
    # tidies up. In the other order a poststop without annotations would never find the member.
    context.run.write_index(container.id, after, after.members[container.id])
    # The member and the group before mkdir: killed after it,
    # the group is on record and cannot leak.
    locked.commit(after)
    is_made = context.resctrl.make(path)
    # The begin before the first pid: killed in between, nothing was charged yet;
    # the next hook reads it again.
    is_late = container.is_late or (None if not is_made and not has_looked else False)
    write_begin(context, locked, path, is_made=is_made, is_late=is_late)
    # Last: killed before it, the container runs unmonitored but on record,
    # and reconcile moves it in.
    is_prompt = container.is_new and system.monotonic() < attempt.began + _PROMPT
    context.resctrl.put_process(path, container.pid, None if is_prompt else container.starttime)


def _remake(state: KeyState, path: str) -> KeyState:
    from hook import life_turns

    return life_turns.remake(state, path)


def write_begin(
    context: Context,
    locked: LockedKey,
    path: str,
    *,
    is_made: bool = False,
    is_late: bool | None = None,
) -> None:
    """Read and commit the counters of a group before its first member is in it.

    `is_made` says that this call has made its directory, and `is_late` that the member had run
    before it joined; None: a task may be in the group.
    """
    state = locked.state
    if state is None:
        return
    group, texts = life.get_group(state, path), None
    directory = context.resctrl.identify(path)
    is_replaced = is_made or not resctrl.is_about(group, directory)
    if (is_replaced or group.begin is None) and (
        context.options.snapshot_ttl or state.history_file
    ):
        texts = context.resctrl.counters(path, is_quick=True)
        is_late = (
            is_late or state.recovering or (is_late is None and context.resctrl.has_live_task(path))
        )
    if is_replaced and group.begin is not None:  # since `enter` looked
        state = _remake(state, path)
        group = life.get_group(state, path)
    # A begin that cannot be saved is a failed start:
    # what has no begin has counted nothing for the key.
    locked.commit(life.begin(state, group, directory, texts, is_late=is_late is True))
