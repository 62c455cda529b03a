# SPDX-License-Identifier: Apache-2.0
"""createRuntime: a container's init process goes into the mon_group of its key, before its first instruction.

Read `create_runtime`, then `_join`. A hook may be killed after each step of `_join`; the comments say why their order
survives that. What one hook leaves behind is put right by the next hook of that key, or by reconcile.
"""

from __future__ import annotations

from hook.base import jsontext, names, procfs, system
from hook.base.errors import HookError
from hook.base.models import Config, KeyState, Member, MonGroup
from hook.stages import identity
from hook.state import lives

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.stages.context import Context
    from hook.stages.create_retry import Retry
    from hook.stages.identity import Container, Key
    from hook.state.store import LockedKey


def create_runtime(context: Context, container: Container) -> Key | None:
    """Put a container's init process into the mon_group of its key, before it runs its first instruction.

    Returns its key; None: it is not meant to be monitored. Raises HookError if it is and could not be; then what this
    call made is undone. Repeating it for the same container changes nothing.
    """
    if not identity.concerns(context.options, is_podmans=container.pod.is_podmans):
        return None
    return monitor(context, container)


def monitor(context: Context, container: Container, ctrl_group: str | None = None) -> Key | None:
    """Do what create_runtime does, whichever hooks.d file the call is from. `ctrl_group`: see Attempt."""
    if not identity.is_wanted(context.options, container.annotations, container.pod):
        return None
    if container.starttime is None:
        from hook.base import refusals

        raise refusals.of_starttime(container.pid)
    key = identity.key_of(context.options.key, container.id, container.said, container.pod)
    if not context.resctrl.is_mounted():
        from hook.base import refusals

        raise refusals.of_mount(context.resctrl)
    try:
        former = context.run.find_key(container.id)
    except HookError as error:
        context.run.complaints.append(error)
        former = None
    if former is not None and former != key.name:
        # Before the index names the new key: killed in between, the former membership can still be found.
        from hook.stages import retire

        retire.give_up(context, former, container)
    enter(context, container, key, ctrl_group)
    return key


class Attempt:
    """One container on its way into one key's group. `deadline`: the end of every wait (system.monotonic).

    `ctrl_group`: the one it was seen in, for kernels without /proc/PID/cpu_resctrl_groups; None: its bundle says.
    `made`: mon_groups that this call made and that nothing was put into yet. `recorded`: whether the container is on
    record; `was_member`: whether it was when this began.
    """

    def __init__(self, context: Context, container: Container, key: Key, ctrl_group: str | None) -> None:
        self.context = context
        self.container = container
        self.key = key
        self.ctrl_group = ctrl_group
        self.deadline = system.monotonic() + context.options.lock_timeout
        self.made: set[str] = set()
        self.recorded = False
        self.was_member = False


def enter(context: Context, container: Container, key: Key, ctrl_group: str | None = None) -> None:
    """Make a container a member of a key, and put its init process into the key's mon_group. Raises HookError."""
    attempt = Attempt(context, container, key, ctrl_group)
    retry: Retry | None = None
    while True:
        try:
            _join(attempt)
            return
        except (HookError, OSError) as error:
            from hook.stages import create_retry

            retry = retry or create_retry.Retry(attempt)
            if not retry.can_help(error):
                create_retry.undo(attempt)
                raise


def _join(attempt: Attempt) -> None:
    """Try once to put the container into its group, under its key's lock."""
    context, container, key = attempt.context, attempt.container, attempt.key
    ctrl_group, mon_group = _find_groups(attempt)
    with context.run.lock(key.name, attempt.deadline) as locked:
        is_known = locked.state is not None
        state = locked.state or _new_state(key)
        group = _group_for(context, state, ctrl_group)
        former = state.members.get(container.id)
        if not attempt.recorded:
            attempt.recorded, attempt.was_member = True, is_of(former, container)
        # The index before the member: killed in between, poststop finds a key without this member and tidies up.
        # The other way round a poststop without annotations would never find the member.
        context.run.write_index(container.id, key.name)
        # The member and the group before mkdir: killed after it, the group is on record and cannot leak; and a
        # poststop of the last other member sees that the group is still needed.
        joined = _joined(state, container, _member(container, former, group, mon_group), group)
        locked.commit(joined)
        # Before mkdir: the entry that consumers see has the begin of the group that was there, and a link to this one.
        if group.begin is not None and context.resctrl.inode(group.path) != group.inode:
            _hide(context, key.name)
        made = context.resctrl.make(group.path)
        was_empty = group.path in attempt.made
        if made:
            attempt.made.add(group.path)
        elif not is_known and context.resctrl.has_live_task(group.path):
            # The key's record was lost while a container of it lived: reconcile finds out which.
            locked.commit(lives.replace(joined, recovering=True))
        # The begin before the first pid: killed in between, nothing was charged yet, and the next hook reads it again.
        begin(context, locked, group.path, made=made, empty=was_empty)
        # Last: killed before it, the container runs unmonitored but on record, and reconcile moves it in.
        context.resctrl.put(group.path, container.pid)
        attempt.made.discard(group.path)
        if attempt.made:  # in another ctrl_group, by an earlier try
            from hook.stages import create_retry

            create_retry.withdraw(context, locked, attempt.made)


def begin(context: Context, locked: LockedKey, path: str, *, made: bool, empty: bool) -> None:
    """Read and commit the counters of a group before its first member is in it, and show them to consumers.

    A begin on record counts unless it is of a directory that vanished: this one has another inode, or was `made` just
    now (inodes come again when resctrl is mounted again). `empty`: the one that vanished had no member yet.
    """
    state = locked.state
    if state is None:
        return
    groups = list(state.groups)
    place = [group.path for group in groups].index(path)
    group, inode = groups[place], context.resctrl.inode(path)
    if group.begin is not None and not empty and (group.inode != inode or made):
        group = lives.remake_group(group, inode)
    elif group.inode != inode or made:
        group = lives.begin_group(group, inode, None)
    if group.begin is None and context.options.snapshot_ttl:
        group = _read_begin(context, state, group, made=made)
    if group.last is not None:
        group = lives.replace(group, last=None)
    try:
        if group != groups[place]:
            groups[place] = group
            locked.commit(lives.change(state, groups))
    except OSError as error:  # the container is monitored all the same
        context.complain(f"could not save the initial counters of key {state.key}; its use will be unknown", error)
    # After the commit: killed in between, the next hook of this key finds the view older than the state.
    context.show(locked.state or state)


def _read_begin(context: Context, state: KeyState, group: MonGroup, *, made: bool) -> MonGroup:
    """Read the begin of a group. If it has members already, or may have, what they used until now is unknown."""
    counters = context.resctrl.counters(group.path)
    if state.recovering or (not made and context.resctrl.has_live_task(group.path)):
        return lives.begin_group_late(group, counters)
    return lives.begin_group(group, group.inode, counters)


def _hide(context: Context, key: str) -> None:
    try:
        context.view.invalidate(key)
    except OSError as error:
        context.complain(f"could not hide the outdated counters of key {key}", error)


# --- Where the container is


def _find_groups(attempt: Attempt) -> tuple[str, str]:
    """Find the ctrl_group of the container's process, and the mon_group that it is in already (empty: none).

    The kernel's word counts; where it has none, what was seen before, what the bundle asks for, or the
    root ctrl_group.
    """
    found = procfs.resctrl_groups(attempt.container.pid)
    if found is None:
        found = attempt.ctrl_group or _requested_group(attempt.container.bundle) or "/", ""
    try:
        return names.ctrl_group(found[0]), found[1]
    except ValueError:
        from hook.base import refusals

        raise refusals.of_ctrl_group(found[0]) from None


def _requested_group(bundle: str) -> str | None:
    """Read `linux.intelRdt.closID` of the bundle's config.json (runtime-spec, config-linux.md)."""
    config = read_config(bundle)
    return config.linux.intel_rdt.clos_id if config and config.linux and config.linux.intel_rdt else None


def read_config(bundle: str) -> Config | None:
    """Read a bundle's config.json; None if it cannot be read: the runtime has read it, and the kernel decides."""
    try:
        return Config.model_validate(jsontext.loads(system.read_file(bundle + "/config.json", limit=16 << 20)))
    except (OSError, ValueError):
        return None


# --- The record


def _new_state(key: Key) -> KeyState:
    return KeyState(key=key.name, kind=key.kind, created_at=system.now_utc(), created_boottime=system.boottime())


def _group_for(context: Context, state: KeyState, ctrl_group: str) -> MonGroup:
    """Find the key's mon_group in this ctrl_group: the recorded one, whatever prefix is set now, or a new one."""
    path = context.resctrl.path(ctrl_group, context.options.group_prefix + state.key)
    parent = path.rpartition("/")[0]
    for group in state.groups:
        if group.path.rpartition("/")[0] == parent and group.end is None:
            return group
    return MonGroup(path=path, ctrl_group=ctrl_group)


def _member(container: Container, former: Member | None, group: MonGroup, mon_group: str) -> Member:
    """Make the container a member; what an earlier call noted of the same life stays noted."""
    taken_from = mon_group if mon_group and mon_group != group.path.rpartition("/")[2] else None
    if taken_from is None and former is not None and former.starttime == container.starttime:
        taken_from = former.taken_from
    return Member(
        pid=container.pid,
        starttime=container.starttime or 0,
        group=group.path,
        cgroup=procfs.own_cgroup(container.places, container.id),
        taken_from=taken_from,
        name=container.pod.container or (former.name if former is not None else None),
    )


def _joined(state: KeyState, container: Container, member: Member, group: MonGroup) -> KeyState:
    """Put this member, and its group, into the state; and its pod's names, which a rebuilt record lacks."""
    if state.completed_at is not None:
        state = lives.resume(state, [lives.inherit(group, state.groups)])
    members, former = state.members, state.members.get(container.id)
    if is_another_process(former, container):
        members = lives.displace(members, container.id)
    members = {**members, container.id: member}
    members.pop(names.former_life(container.id, member.pid, member.starttime), None)  # of two, the first calls again
    is_new = group.path not in [it.path for it in state.groups]
    return lives.replace(
        state,
        groups=[*state.groups, group] if is_new else state.groups,
        members=members,
        lingering_since=None,
        lingering_until=None,
        cgroup=(identity.of_pod(member.cgroup, state.key) if state.kind == "pod" else None) or state.cgroup,
        pod_namespace=state.pod_namespace or container.pod.namespace,
        pod_name=state.pod_name or container.pod.name,
    )


def is_of(member: Member | None, container: Container) -> bool:
    """Whether a member is this very process."""
    return member is not None and (member.pid, member.starttime) == (container.pid, container.starttime)


def is_another_process(member: Member | None, container: Container) -> bool:
    """Whether a member of this ID is another process, which is not known to be dead: it stays a member."""
    if member is None or is_of(member, container):
        return False
    return procfs.is_dead(member.pid, member.starttime) is not True
