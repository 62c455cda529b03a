"""The two use cases: a container comes (createRuntime) and goes (poststop).

Between its write to `groups/<key>.json` and the kernel each step stands in an order that survives being killed after
it; the comments say how. What one hook leaves behind is put right by the next hook of that key, or by reconcile.
"""

from __future__ import annotations

from hook.base import cgroups, jsontext, names, procfs, system
from hook.base.errors import GroupGone, HookError, InLimbo, Reason, WrongCtrlGroup, known, refused
from hook.base.models import Config, KeyState, Member, MonGroup
from hook.stages import identity, reclaim, remove
from hook.state import transitions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.base.models import Annotations
    from hook.stages.context import Node
    from hook.stages.identity import Key, Pod
    from hook.state.rundir import LockedKey

_LIMBO_POLL = 0.05
_MOST_RETURNS = 3
_NO_RMID = (Reason.NO_RMIDS, Reason.RMIDS_IN_LIMBO)


class Container:
    """A container as its runtime describes it. `pid` is 0 where there is no process any more.

    `ctrl_group`: the one that it was in when last seen, for kernels that do not tell; None: its bundle does.
    `places`: its cgroups. `problem`: what is wrong with it although it is monitored.
    """

    def __init__(self, name: str, pid: int, bundle: str, annotations: dict[str, str], said: Annotations) -> None:
        self.id = name
        self.pid = pid
        self.bundle = bundle
        self.annotations = annotations
        self.said = said
        self.key: Key | None = None
        self.starttime: int | None = None
        self.ctrl_group: str | None = None
        self.places: list[str] = []
        self.problem: HookError | None = None


def create_runtime(node: Node, container: Container) -> bool:
    """Put a container's init process into the mon_group of its key, before it runs its first instruction.

    Returns whether the container is monitored: False if it is not meant to be. Raises HookError if it is and could not
    be; then what this call made is undone. Repeating it for the same container changes nothing.
    """
    pod = look(container)
    return identity.concerns(node.options, is_podmans=pod.is_podmans) and monitor(node, container, pod)


def look(container: Container) -> Pod:
    """Note where the container is, which nobody but its runtime decides before it runs; returns its pod."""
    container.places = procfs.cgroups(container.pid)
    return identity.pod_of(container.id, container.said, container.places)


def monitor(node: Node, container: Container, pod: Pod) -> bool:
    """create_runtime for a container that is looked at already, and whose hook this call is."""
    if not identity.is_wanted(node.options, container.annotations, pod):
        return False
    container.starttime = _starttime(container)
    container.key = identity.key_of(node.options.key, container.id, container.said, pod)
    container.problem = pod.problem if container.key.kind == "pod" else None
    if not node.resctrl.is_mounted():
        raise _not_mounted(node)
    former = node.run.key_of(container.id)
    if former is not None and former != container.key.name:
        # Before the index names the new key: killed in between, the former membership can still be found.
        with node.run.lock(former, system.monotonic() + node.options.lock_timeout) as locked:
            remove.give_up(node, locked, container.id, container.pid, container.starttime)
    enter(node, container, container.key, pod)
    return True


def enter(node: Node, container: Container, key: Key, pod: Pod) -> None:
    """Make a container a member of a key, and put its init process into the key's mon_group. Raises HookError."""
    patience = _Patience(node, key.name)
    while True:
        try:
            _join(node, container, key, pod, patience)
            return
        except (HookError, OSError) as error:
            if not patience.again(error):
                _undo(node, container, key, patience)
                raise


def _join(node: Node, container: Container, key: Key, pod: Pod, patience: _Patience) -> None:
    """One try to put the container into its group, under its key's lock."""
    ctrl_group, taken_from = _whereabouts(container)
    with node.run.lock(key.name, patience.deadline) as locked:
        known, state = locked.state is not None, transitions.named(locked.state or _new_state(key, pod), pod)
        group = _group_for(node, state, ctrl_group)
        member = _member(container, state.members.get(container.id), group, taken_from)
        if not patience.recorded:
            patience.recorded, patience.was_member = True, _is_of(state.members.get(container.id), container)
        # The index before the member: killed in between, poststop finds a key without this member and tidies up.
        # The other way round a poststop without annotations would never find the member.
        node.run.write_index(container.id, key.name)
        # The member and the group before mkdir: killed after it, the group is on record and cannot leak; and a
        # poststop of the last other member sees that the group is still needed.
        joined = _joined(state, container, member, group)
        locked.commit(joined)
        in_vain = group.path in patience.made
        # Before mkdir: the entry that consumers see has the begin of the group that was there, and a link to this one.
        node.invalidate(key.name, group)
        made = node.resctrl.make(group.path)
        if made:
            patience.made.add(group.path)
        elif not known and node.resctrl.has_live_task(group.path):
            # The key's record was lost while somebody lived: reconcile is to find out who.
            locked.commit(transitions.unsure(joined))
        # The begin before the first pid: killed in between, nothing was charged yet, and the next hook reads it again.
        node.begin(locked, group.path, made=made, empty=in_vain)
        # Last: killed before it, the container runs unmonitored but on record, and reconcile moves it in.
        node.resctrl.put(group.path, container.pid)
        patience.made.discard(group.path)
        if patience.made:
            _withdraw(node, locked, patience.made)


def poststop(node: Node, container_id: str) -> None:
    """Take a container out of its key; with the last one its mon_groups, state and lock go.

    An unknown container, or one that was taken out before, is nothing to do. A member whose process is not dead stays:
    Podman may call this late, beside the next life of the same container; two runtimes, or two root directories of one,
    may each have a container of this ID. Raises HookError.
    """
    failure = node.run.failure_of(container_id)
    if failure is None or failure.pid is None or procfs.is_dead(failure.pid, failure.starttime) is not False:
        node.run.remove_failure(container_id)
    key = node.run.key_of(container_id)
    if key is None:
        if node.run.complaints:  # there is an index, which cannot be read
            raise node.run.complaints.pop()
        return
    with node.run.lock(key, system.monotonic() + node.options.lock_timeout) as locked:
        members = locked.state.members if locked.state else {}
        member = members.get(container_id)
        if member is not None and not _is_concern(node, container_id, member):
            return
        over = [name for name in members if name.startswith(container_id + "@") and _is_dead(members[name])]
        if member is None or _is_dead(member) is not False:
            over.append(container_id)
        if over:
            remove.drop(node, locked, over, own_poststop=member is not None and container_id in over)


def _is_concern(node: Node, container_id: str, member: Member) -> bool:
    """Whether a poststop is meant for this container, as far as its cgroup tells: its annotations may be gone."""
    maker = cgroups.maker(member.cgroup or "", container_id)
    return maker is None or identity.concerns(node.options, is_podmans=maker == "libpod")


def _withdraw(node: Node, locked: LockedKey, made: set[str]) -> None:
    """Remove those mon_groups that this call made in vain and that no member is in: each holds an RMID.

    What goes wrong with that is said, and changes nothing for the container; the groups go with their key then.
    """
    state = locked.state
    if state is None or state.completed_at is not None:
        return
    used = {member.group for member in state.members.values()}
    vain = [group for group in state.groups if group.path in made - used]
    vain = [group for group in vain if not node.resctrl.has_live_task(group.path)]
    try:
        kept, refusal = remove.remove(node, vain)
        # After rmdir, as in ending.end.
        groups = [group for group in state.groups if group not in vain or group in kept]
        gone = [group for group in vain if group not in kept]
        if any(group.before for group in gone) and groups:
            groups[0] = transitions.inherited(groups[0], [transitions.unused(group) for group in gone])
        locked.commit(transitions.changed(state, groups=groups))
        node.show(locked.state or state)
    except OSError as error:
        refusal = refused("a group that was made in vain is still on record", error)
    if refusal is not None:
        node.run.complaints.append(refusal)


def _undo(node: Node, container: Container, key: Key, patience: _Patience) -> None:
    """Take back what a createRuntime that failed has recorded; the failure itself is what is reported."""
    if not patience.recorded or patience.was_member:
        return
    try:
        with node.run.lock(key.name, patience.deadline) as locked:
            member = locked.state.members.get(container.id) if locked.state else None
            # Another live process of this ID is on record where this one did not get as far as that.
            if member is None or _is_of(member, container) or _is_dead(member):
                remove.leave(node, locked, container.id, vain=frozenset(patience.made))
            remove.retire(node, locked)  # what could not be made, and was on record before mkdir
            if patience.made:
                _withdraw(node, locked, patience.made)
    except (HookError, OSError) as error:
        # The member stays on record; reconcile moves its process in, or drops it once it is dead.
        node.run.complaints.append(known("a failed start could not be undone", error))


class _Patience:
    """How long, and how often, one createRuntime tries: every wait in it ends at `deadline`."""

    def __init__(self, node: Node, key: str) -> None:
        self._node = node
        self._key = key
        self._reclaimed = False
        self._returns = 0
        self._moves = 0
        self._limbo_end: float | None = None
        self.deadline = system.monotonic() + node.options.lock_timeout
        self.made: set[str] = set()  # mon_groups that this call made and has put nobody into
        self.recorded = False
        self.was_member = False

    def again(self, error: Exception) -> bool:
        """Whether to try once more after this failure; waits if waiting can help."""
        if isinstance(error, GroupGone):  # another tool removed the group: three times, or we would chase it for ever
            self._returns += 1
            return self._returns <= _MOST_RETURNS
        if isinstance(error, WrongCtrlGroup):  # the task was moved to another ctrl_group since we looked
            self._moves += 1
            return self._moves == 1
        if isinstance(error, HookError) and error.reason in _NO_RMID and not self._reclaimed:
            self._reclaimed = True  # with no lock held, and once: what it frees others may take, and we would go on
            if reclaim.reclaim(self._node, self._key):
                return True
        return isinstance(error, InLimbo) and self._wait_for_limbo()

    def _wait_for_limbo(self) -> bool:
        """Wait a little, with no lock held, if an RMID was freed so lately that it can come back in time."""
        now, patience = system.monotonic(), self._node.options.rmid_wait
        if self._limbo_end is None:
            if not self._node.run.freed_within(patience):
                return False
            self._limbo_end = now + patience
            self.deadline += patience
        if now >= self._limbo_end:
            return False
        system.sleep(_LIMBO_POLL)
        return True


def _starttime(container: Container) -> int:
    try:
        starttime = procfs.starttime(container.pid)
    except (OSError, ValueError, IndexError) as error:
        raise HookError(Reason.IO, "/proc does not tell about the container's process", tried=str(error)) from error
    if starttime is None:
        raise HookError(Reason.TASK_GONE, f"the container's process {container.pid} is gone")
    return starttime


def _not_mounted(node: Node) -> HookError:
    root = node.resctrl.root
    hint = f"mount -t resctrl resctrl {root}, then reconcile"
    return HookError(Reason.NOT_MOUNTED, f"resctrl is not mounted, or cannot monitor: no {root}/mon_groups", hint=hint)


def _whereabouts(container: Container) -> tuple[str, str | None]:
    """The ctrl_group that the container's process is in, and the mon_group, if it is in one.

    The kernel's word counts; where it has none, our record, what the runtime was told in the bundle, or the root one.
    """
    groups = procfs.resctrl_groups(container.pid)
    ctrl_group, mon_group = groups or (container.ctrl_group or _class_of(container.bundle) or "/", "")
    try:
        return names.ctrl_group(ctrl_group), mon_group or None
    except ValueError:
        raise HookError(Reason.NO_CTRL_GROUP, f"{ctrl_group[:80]!r} is no name of a ctrl_group") from None


def _class_of(bundle: str) -> str | None:
    """`linux.intelRdt.closID` of the bundle's config.json (runtime-spec, config-linux.md), if it can be had."""
    config = config_of(bundle)
    return config.linux.intel_rdt.clos_id if config and config.linux and config.linux.intel_rdt else None


def config_of(bundle: str) -> Config | None:
    """What a bundle's config.json says; None where it does not: the runtime has read it, and the kernel will say."""
    try:
        return Config.model_validate(jsontext.loads(system.read_file(bundle + "/config.json", limit=16 << 20)))
    except (OSError, ValueError):
        return None


def _group_for(node: Node, state: KeyState, ctrl_group: str) -> MonGroup:
    """The key's mon_group in this ctrl_group: the recorded one, whatever prefix is set now, or a new one."""
    path = node.resctrl.path(ctrl_group, node.options.group_prefix + state.key)
    parent = path.rpartition("/")[0]
    for group in state.groups:
        if group.path.rpartition("/")[0] == parent and group.end is None:
            return group
    return MonGroup(path=path, ctrl_group=ctrl_group)


def _member(container: Container, former: Member | None, group: MonGroup, mon_group: str | None) -> Member:
    """The container as a member; what an earlier call noted of the same life stays noted."""
    own_name = group.path.rpartition("/")[2]
    taken_from = mon_group if mon_group != own_name else None
    if taken_from is None and former is not None and former.starttime == container.starttime:
        taken_from = former.taken_from
    return Member(
        pid=container.pid,
        starttime=container.starttime or 0,
        group=group.path,
        cgroup=procfs.own_cgroup(container.places),
        taken_from=taken_from,
    )


def _is_dead(member: Member) -> bool | None:
    return procfs.is_dead(member.pid, member.starttime)


def _is_of(member: Member | None, container: Container) -> bool:
    """Whether a member is this very process."""
    return member is not None and (member.pid, member.starttime) == (container.pid, container.starttime)


def _new_state(key: Key, pod: Pod) -> KeyState:
    return KeyState(
        key=key.name,
        kind=key.kind,
        pod_namespace=pod.namespace,
        pod_name=pod.name,
        created_at=system.now_utc(),
        created_boottime=system.boottime(),
    )


def _joined(state: KeyState, container: Container, member: Member, group: MonGroup) -> KeyState:
    """The state with this member, and its group, in it."""
    if state.completed_at is not None:
        state = transitions.resumed(state, group)
    if state.lingering_since is not None:
        state = transitions.returned(state)
    groups = state.groups if group.path in [it.path for it in state.groups] else [*state.groups, group]
    cgroup = cgroups.of_pod(member.cgroup, state.key) if state.kind == "pod" else None
    return transitions.changed(state, groups=groups, members=_members(state, container, member), cgroup=cgroup)


def _members(state: KeyState, container: Container, member: Member) -> dict[str, Member]:
    """The members with this one; another live process of the same ID stays one, as a former life."""
    members, former = state.members, state.members.get(container.id)
    if former is not None and not _is_of(former, container) and not _is_dead(former):
        members = transitions.displaced(members, container.id)
    members = {**members, container.id: member}
    members.pop(names.former_life(container.id, member.pid, member.starttime), None)  # of two, the first calls again
    return members
