# SPDX-License-Identifier: Apache-2.0
"""createRuntime: a container's init process goes into the mon_group of its key, before its first instruction.

Read `create_runtime`, then `_try_once`. A hook may be killed after each step of `_try_once`; comments say why the order
of steps survives that. The next hook of that key, or reconcile, repairs what a killed hook leaves.
"""

from __future__ import annotations

from hook import identity, names, system, validation
from hook.errors import HookError, Reason
from hook.key import history_of
from hook.models import KeyState, Member, MonGroup
from hook.validation import replace
from hook.view import change

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.context import Context
    from hook.identity import Container, Key
    from hook.store import LockedKey


# Seconds in which no machine starts so many processes that a pid is used again. An init waits for its runtime, which
# waits for us; but if the runtime is killed, the init ends.
_PROMPT = 0.05


class Attempt:
    """One container on its way into one key's group."""

    def __init__(self, context: Context, container: Container, key: Key, ctrl_group: str | None) -> None:
        self.context = context
        self.container = container
        self.key = key
        # The ctrl_group that the container was seen in, for kernels without /proc/PID/cpu_resctrl_groups.
        self.ctrl_group = ctrl_group
        # When every wait ends (system.monotonic).
        self.deadline = system.monotonic() + context.options.lock_timeout
        # Until then the pid of a new container is its own: see _PROMPT.
        self.prompt_until = system.monotonic() + _PROMPT
        # This call has tried to free RMIDs, which it does once.
        self.has_reclaimed = False
        # How often this call came back because another program had removed the group.
        self.returns = 0
        # How often it came back because the process had moved to another ctrl_group.
        self.moves = 0
        # The group of the try that failed last. Whether the key has it, and needs it, is read again.
        self.left: str | None = None
        # When the wait for RMIDs in limbo ends; None before it has begun.
        self.limbo_end: float | None = None


def create_runtime(
    context: Context, container: Container, key: Key | None = None, ctrl_group: str | None = None
) -> Key | None:
    """Put a container's init process into the mon_group of its key, before it runs its first instruction.

    Returns its key, or None if filters leave it out. A caller that knows its key gives that, which skips the filters;
    `ctrl_group` is as in Attempt. HookError or OSError say that it should be monitored and could not be; then all that
    this call made is undone. A second call for the same container changes nothing.
    """
    if key is None and not identity.is_wanted(context.options, container.all_annotations, container.pod):
        return None
    if container.starttime is None:
        raise container.explain_no_starttime()
    key = key or identity.derive_key(context.options.key, container.id, container.annotations, container.pod)
    if not context.resctrl.is_mounted():
        raise HookError(Reason.NOT_MOUNTED, "not mounted", root=context.resctrl.root)
    try:
        former = context.run.read_index(container.id)
    except HookError as error:
        context.run.complaints.append(error)
        former = None
    if former is not None and former != key.name:
        # Before the index names the new key: killed in between, the former membership can still be found.
        from hook import retry

        retry.give_up(context, former, container, is_job=key.kind == "job")
    attempt = Attempt(context, container, key, ctrl_group)
    while True:
        try:
            _try_once(attempt)
        except (HookError, OSError) as error:
            from hook import retry

            if not retry.can_help(attempt, error):
                raise
        else:
            return key


def _try_once(attempt: Attempt) -> None:
    """Put the container into its group, under its key's lock. Raises what `retry` can retry.

    A try that fails leaves the key as it was before, since other containers may join and leave once the lock is free.
    """
    context, container, key = attempt.context, attempt.container, attempt.key
    own, mon_group = _find_group(attempt)
    with context.run.lock(key.name, attempt.deadline) as locked:
        before = state = locked.state
        check_record(key, container.labels, state)
        begins = state is None or state.completed_at is not None
        # Of a completed key without its snapshot only the lines of history that it owes go on.
        is_new = state is None or (begins and not state.groups)
        if state is None or is_new:
            state = KeyState(
                key=key.name,
                kind=key.kind,
                created_at=system.now_utc(),
                created_boottime=system.boottime(),
                history_file=container.history_file or (state.history_file if state is not None else ""),
                owed=state.owed if state is not None else None,
            )
        file = container.history_file or history_of(context, state)
        labels = container.labels if begins else state.job_labels
        if file != state.history_file or labels != state.job_labels:
            state = replace(state, history_file=file, job_labels=labels)
        former = state.members.get(container.id)
        state, group = _join(state, own, container, former, mon_group)
        made = False
        try:
            # The index before the member: killed in between, poststop finds a key without this member and tidies up.
            # In the other order a poststop without annotations would never find the member.
            context.run.write_index(container.id, key.name, file, labels)
            if is_new and context.resctrl.has_live_task(group.path):
                # The key's record was lost while a container of it lived: reconcile finds out which, and evicts none.
                state = replace(state, recovering=True)
            # The member and the group before mkdir: killed after it, the group is on record and cannot leak.
            locked.commit(state)
            # Before mkdir: until it is replaced, the view has the former group's begin, and links to the new group.
            if group.begin is not None and context.resctrl.inode(group.path) != group.inode:
                try:
                    context.view.invalidate(key.name)
                except OSError as error:
                    context.run.complain(f"could not hide the outdated counters of key {key.name}", error)
            made = context.resctrl.make(group.path)
            # The begin before the first pid: killed in between, nothing was charged yet; the next hook reads it again.
            begin(context, locked, group.path, made=made)
            # Last: killed before it, the container runs unmonitored but on record, and reconcile moves it in.
            is_prompt = container.is_new and system.monotonic() < attempt.prompt_until
            context.resctrl.put_process(group.path, container.pid, None if is_prompt else container.starttime)
        except (HookError, OSError):
            from hook import retry

            retry.undo(attempt, locked, before, group.path, made=made)
            raise
        if attempt.left is not None:
            from hook import retry

            retry.drop_left(attempt, locked)


def begin(context: Context, locked: LockedKey, path: str, *, made: bool) -> None:
    """Read and commit the counters of a group before its first member is in it, and update the view.

    The begin on record stays valid unless the group's directory was replaced: it has another inode, or this call has
    `made` it (inodes repeat after a new mount of resctrl).
    """
    state = locked.state
    if state is None:
        return
    groups = list(state.groups)
    place = [group.path for group in groups].index(path)
    group, inode = groups[place], context.resctrl.inode(path)
    known = group.begin
    if group.inode != inode or made:
        if known is not None:
            from hook import counters

            group = counters.remake_group(group)
        known = None
    if known is None and (context.options.snapshot_ttl or history_of(context, state)):
        known = context.resctrl.counters(group.path)
        is_late = state.recovering or (not made and context.resctrl.has_live_task(group.path))
        is_heir = state.returned is not None and state.returned.use.path == path
        if is_late or (group.begin is None and (is_heir or group.inode is not None)):
            from hook import counters

            group = counters.begin_group(group, known, is_late=is_late)
    end = group.end if known is group.begin else None
    groups[place] = replace(group, inode=inode, begin=known, end=end, last=None)
    try:
        if groups != state.groups:
            locked.commit(change(state, groups))
    except OSError as error:  # the container is monitored all the same
        context.run.complain(f"could not save the initial counters of key {state.key}; its use will be unknown", error)
    # After the commit: killed in between, the next hook of this key finds the view older than the state.
    context.view.show(locked.state or state)


# --- Where the container is


def _find_group(attempt: Attempt) -> tuple[MonGroup, str]:
    """Return the key's mon_group in the ctrl_group of the container's process, and the mon_group that this is in.

    The second is empty if there is none. The kernel names the ctrl_group. If it does not, that is the one seen before,
    the one that `linux.intelRdt.closID` of the bundle asks for (runtime-spec, config-linux.md), or the root one.
    """
    context, container = attempt.context, attempt.container
    try:
        shown = system.resctrl_groups(container.pid)
    except OSError:
        shown = None
    ctrl_group, mon_group = shown or (attempt.ctrl_group, "")
    if not ctrl_group:
        config = identity.read_config(container.bundle)
        rdt = config.linux.intel_rdt if config is not None and config.linux is not None else None
        ctrl_group = (rdt.clos_id if rdt is not None else None) or "/"
    path = context.resctrl.path(ctrl_group, context.options.group_prefix + attempt.key.name)
    try:
        return MonGroup(path=path, ctrl_group=ctrl_group), mon_group
    except ValueError:
        raise HookError(Reason.NO_CTRL_GROUP, "bad ctrl_group", name=ctrl_group[:80]) from None


# --- The record


def check_record(key: Key, labels: dict[str, str], state: KeyState | None) -> None:
    """Raise HookError if a job would join a container's key, or a container a job's (`bad_key`), or it may (`io`).

    Or if the present run of a job was not begun with these labels: one run has one line in the history.
    """
    if state is not None and state.kind != key.kind and "job" in (state.kind, key.kind):
        if state.recovering:  # nothing says whose it is
            raise HookError(Reason.IO, "not rebuilt", key=key.name)
        raise HookError(Reason.BAD_KEY, "other kind", key=key.name, former=state.kind)
    if labels and state is not None and state.completed_at is None and not labels.items() <= state.job_labels.items():
        from hook import retry

        retry.refuse_labels(labels, state)


def _join(
    state: KeyState, own: MonGroup, container: Container, former: Member | None, mon_group: str
) -> tuple[KeyState, MonGroup]:
    """Add the container and its group to the state, and its pod's names, which a rebuilt record lacks.

    The group is the one on record in its ctrl_group, whose prefix may differ from today's, or else `own`. Fields that
    an earlier call for the same process has set are kept.
    """
    parent = own.path.rpartition("/")[0]
    groups = state.groups
    for group in groups:
        if group.path.rpartition("/")[0] == parent and group.end is None:
            break
    else:
        group = own
    if state.completed_at is not None:
        from hook import counters

        state = counters.come_back(state, group, at=system.now_utc(), boottime=system.boottime())
        groups = state.groups
    elif all(group.path != other.path for other in groups):
        groups = [*groups, group]
    taken_from = mon_group if mon_group and mon_group != group.path.rpartition("/")[2] else None
    cgroup = identity.own_cgroup(container.places, container.id)
    if former is not None and container.is_member(former):
        taken_from, cgroup = taken_from or former.taken_from, cgroup or former.cgroup
    member = Member(
        pid=container.pid,
        starttime=container.starttime or 0,
        group=group.path,
        cgroup=cgroup,
        taken_from=taken_from,
        name=container.pod.container or (former.name if former is not None else None),
    )
    if former is None and "@" not in "".join(state.members):  # no member is displaced
        members = {**state.members, container.id: member}
    else:
        from hook import retry

        members = retry.rejoin(state.members, container.id, member, displaces=container.displaces(former))
    joined = change(
        state,
        groups,
        members=members,
        runs=min(state.runs + (state.lingering_since is not None), validation.MOST_NATURAL),
        lingering_since=None,
        lingering_until=None,
        cgroup=(identity.find_pod_cgroup(member.cgroup, state.key) if state.kind == "pod" else None) or state.cgroup,
        pod_namespace=state.pod_namespace or container.pod.namespace,
        pod_name=state.pod_name or container.pod.name,
        name=(member.name or state.name) if state.kind == "container" else None,
    )
    known = (state.pod_namespace, state.pod_name, state.name)
    if state.groups and known != (joined.pod_namespace, joined.pod_name, joined.name):
        joined = names.keep_labels(state, joined)
    return joined, group
