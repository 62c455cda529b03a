"""One life of a mon_group of a key: how its begin, its end and what came before it change. States in, states out."""

from __future__ import annotations

from hook.base import counters, names
from hook.base.models import KeyState, MonGroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.base.models import Member
    from hook.stages.identity import Pod


def changed(
    state: KeyState,
    *,
    groups: list[MonGroup] | None = None,
    members: dict[str, Member] | None = None,
    cgroup: str | None = None,
) -> KeyState:
    """The state with other groups or members, as valid as any: the models check what is written as what is read.

    `generation` goes up with each change of what consumers see.
    """
    fields = dict(state)
    if cgroup is not None:
        fields["cgroup"] = cgroup
    if members is not None:
        fields["members"] = members
    if groups is not None and groups is not state.groups:
        fields["groups"] = groups
        if _shown(groups) != _shown(state.groups):
            fields["generation"] = state.generation + 1
    return KeyState(**fields)


def _shown(groups: list[MonGroup]) -> list[tuple[object, ...]]:
    """Of groups, what consumers see."""
    return [(it.path, it.inode, it.begin, it.end, it.before) for it in groups if it.begin is not None]


def lingering(state: KeyState, groups: list[MonGroup], since: float, until: float) -> KeyState:
    """The state of a key whose last member is gone and whose groups, which have their `last`, wait for another one."""
    fields = dict(changed(state, groups=groups, members={}))
    return KeyState(**{**fields, "lingering_since": since, "lingering_until": until})


def without(members: dict[str, Member], leaving: list[str]) -> dict[str, Member]:
    """The members but those that leave; a former life of one of them gets its ID back, so that poststop finds it."""
    left = {name: member for name, member in members.items() if name not in leaving}
    for container in leaving:
        former = [name for name in left if name.startswith(container + "@")]
        if former and container in members:
            left[container] = left.pop(former[0])
    return left


def displaced(members: dict[str, Member], container: str) -> dict[str, Member]:
    """The members, with this one as a former life: its ID is another process's from now on."""
    left = dict(members)
    member = left.pop(container)
    left[names.former_life(container, member.pid, member.starttime)] = member
    return left


def returned(state: KeyState) -> KeyState:
    """The state of a key that lingered, and has a member again."""
    return KeyState(**{**dict(state), "lingering_since": None, "lingering_until": None})


def named(state: KeyState, pod: Pod) -> KeyState:
    """The state of a key with the names of its pod; one that was rebuilt lacks them until a container brings them."""
    namespace, name = state.pod_namespace or pod.namespace, state.pod_name or pod.name
    if (namespace, name) == (state.pod_namespace, state.pod_name):
        return state
    return KeyState(**{**dict(state), "pod_namespace": namespace, "pod_name": name})


def unsure(state: KeyState) -> KeyState:
    """The state of a key that may have members which nobody knows of."""
    return KeyState(**{**dict(state), "recovering": True})


def recovered(state: KeyState) -> KeyState:
    """The state of a key whose members are all known again."""
    return KeyState(**{**dict(state), "recovering": False})


def left(group: MonGroup, last: dict[str, str] | None) -> MonGroup:
    """A group with its counters as its last member left it; None: it has one again."""
    return MonGroup(**{**dict(group), "last": last})


def completed(state: KeyState, groups: list[MonGroup], at: str, boottime: float) -> KeyState:
    """The state of a key whose last member is gone and whose groups, which have their ends, are about to go."""
    fields = dict(changed(state, groups=groups, members={}))
    # In any case: of a group that had no begin yet nothing changes but that its key is over.
    fields.update(lingering_since=None, lingering_until=None, generation=state.generation + 1)
    return KeyState(**{**fields, "completed_at": at, "completed_boottime": boottime})


def resumed(state: KeyState, group: MonGroup) -> KeyState:
    """The state of a key that comes back after it was completed, as this group: what it used until now is `before`."""
    return _reopened(state, [inherited(group, state.groups)])


def surviving(state: KeyState, kept: list[MonGroup], over: list[MonGroup]) -> KeyState:
    """The state of a key without members some of whose groups could not be removed; the others are over."""
    return _reopened(state, [inherited(kept[0], over), *kept[1:]])


def _reopened(state: KeyState, groups: list[MonGroup]) -> KeyState:
    fields = dict(state)
    fields.update(groups=groups, members={}, generation=state.generation + 1)
    return KeyState(**{**fields, "completed_at": None, "completed_boottime": None})


def begun(group: MonGroup, inode: int | None, begin: dict[str, str], *, late: bool = False) -> MonGroup:
    """A group whose counters were read before anybody was put into it; or `late`, when members may be in it already.

    What those have used until then nobody knows.
    """
    before = past([ended(group, {}), _lost(group, begin)]) if late else group.before
    return MonGroup(path=group.path, ctrl_group=group.ctrl_group, inode=inode, begin=begin, before=before)


def _lost(group: MonGroup, begin: dict[str, str]) -> MonGroup:
    """An incarnation with these counters, of which nobody knows the end."""
    return MonGroup(path=group.path, ctrl_group=group.ctrl_group, begin=begin, end={})


def ended(group: MonGroup, end: dict[str, str]) -> MonGroup:
    """A group with its counters after its last member."""
    return MonGroup(**{**dict(with_late(group, end)), "end": end})


def with_late(group: MonGroup, now: dict[str, str]) -> MonGroup:
    """A group in whose begin stands, of each counter of now that came after it, that nobody knows it.

    Without that consumers would take the sum of the other domains for the use of all.
    """
    begin = group.begin
    if begin is None or begin.keys() >= now.keys():
        return group
    return MonGroup(**{**dict(group), "begin": {**dict.fromkeys(now, counters.LATE), **begin}})


def unused(group: MonGroup) -> MonGroup:
    """A group that is over without anybody having been in it: what its RMID began with does not matter."""
    nothing = dict.fromkeys(group.before, "0")
    path, ctrl_group = group.path, group.ctrl_group
    return MonGroup(path=path, ctrl_group=ctrl_group, begin=nothing, end=nothing, before=group.before)


def remade(group: MonGroup, inode: int | None, *, empty: bool) -> MonGroup:
    """A group that vanished and was made again: a new incarnation, whose begin is to be read.

    What was used in the one that vanished nobody knows any more, unless it was `empty`, or had been left.
    """
    before = group.before if empty or group.begin is None else past([ended(group, group.last or {})])
    return MonGroup(path=group.path, ctrl_group=group.ctrl_group, inode=inode, before=before)


def past(groups: list[MonGroup]) -> dict[str, str]:
    """What groups that are over used in all, as the `before` of the one that goes on for them.

    Groups in several ctrl_groups become one sum: the counters' domains are the same, and it is the key's use.
    """
    sums: dict[str, int | None] = {}
    for group in groups:
        for counter, value in counters.lifetime(group, group.end or {}).items():
            former = sums.get(counter, 0)
            sums[counter] = None if former is None or value is None else former + value
    return {counter: counters.text_of(value) for counter, value in sums.items()}


def inherited(group: MonGroup, over: list[MonGroup]) -> MonGroup:
    """A group with what others used, which are over, in its `before`."""
    if not any(other.begin or other.before for other in over):
        return group
    more = past([MonGroup(path=group.path, ctrl_group=group.ctrl_group, before=group.before), *over])
    return MonGroup(**{**dict(group), "before": more})
