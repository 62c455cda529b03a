# SPDX-License-Identifier: Apache-2.0
"""The life of a key: its transitions, each from one record to the next. Nothing here touches a file.

    new ----> live           join, then begin before the first pid is in the group
    live ---> live           join, leave, remake and begin if the group was replaced, retire, take, rebuild
    live ---> lingering      leave, linger
    lingering --> live       join
    live, lingering --> completed   leave, complete; reopen, if the kernel keeps a group
    completed --> live       join (come_back)
    completed --> forgotten  forget, unless it owes lines of the history (owe)

A transition takes a key's state and what was read of its groups under the key's lock, and returns the next state,
finished: `key` carries it out. A *run* of a key goes from its first member to its last. docs/design.md has the table
of the states.
"""

from __future__ import annotations

from hook import identity, names
from hook.models import KeyState, MonGroup, Owed, Returned
from hook.validation import MOST_NATURAL, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from hook.identity import Container, Key
    from hook.models import Index, Kind, Member

    Texts = dict[str, str]

MOST_LEFT = 64
"""The names of containers that have left, in the record of a key."""


class Moment:
    """The time of a transition: CLOCK_BOOTTIME and Unix time, in seconds, and the latter for people (RFC 3339, UTC)."""

    def __init__(self, boottime: float, unix: float, utc: str) -> None:
        self.boottime = boottime
        self.unix = unix
        self.utc = utc


# --- A container comes


class Arrival:
    """A container that joins a key, as its hook knows it."""

    def __init__(self, key: Key, container: Container, member: Member, group: MonGroup, *, displaces: bool) -> None:
        self.key = key
        self.container = container
        # The container as a member, and the group that it goes into.
        self.member = member
        self.group = group
        # The present member of this ID stays, since it is another live process.
        self.displaces = displaces


def join(state: KeyState | None, arrival: Arrival, now: Moment) -> KeyState:
    """Add a container and its group to a key; the first member begins a run of the key."""
    key, container, member, group = arrival.key, arrival.container, arrival.member, arrival.group
    begins = state is None or state.completed_at is not None
    if state is None or (begins and not state.groups):
        # Of a completed key without its snapshot only the lines of history that it owes go on.
        state = KeyState(
            key=key.name,
            kind=key.kind,
            created_at=now.utc,
            created_boottime=now.boottime,
            history_file=state.history_file if state is not None else "",
            owed=state.owed if state is not None else None,
        )
    elif begins:
        state = come_back(state, group, now)
    members = {**state.members, container.id: member}
    if arrival.displaces or "@" in "".join(members):
        members = rejoin(state.members, container.id, member, displaces=arrival.displaces)
    joined = change(
        state,
        state.groups if any(group.path == other.path for other in state.groups) else [*state.groups, group],
        members=members,
        runs=state.runs if state.lingering_since is None else min(state.runs + 1, MOST_NATURAL),
        lingering_since=None,
        lingering_until=None,
        cgroup=(identity.find_pod_cgroup(member.cgroup, state.key) if state.kind == "pod" else None) or state.cgroup,
        pod_namespace=state.pod_namespace or container.pod.namespace,
        pod_name=state.pod_name or container.pod.name,
        name=(member.name or state.name) if state.kind == "container" else None,
        history_file=container.history_file or state.history_file,
        job_labels=container.labels if begins else state.job_labels,
    )
    known = (state.pod_namespace, state.pod_name, state.name)
    if state.groups and known != (joined.pod_namespace, joined.pod_name, joined.name):
        joined = names.keep_labels(state, joined)
    return joined


def come_back(state: KeyState, group: MonGroup, now: Moment) -> KeyState:
    """Begin another run of a completed key, with this group, which inherits its use."""
    from hook import counters

    heir = counters.inherit_run(group, state.groups, is_partial=state.taken)
    returned = Returned(at=now.utc, boottime=now.boottime, use=heir, late_cpu=state.late_cpu)
    reopened = _reopen(state, [heir])
    return replace(reopened, members={}, returned=returned, taken=False, runs=1, left={}, left_more=0)


def find_group(state: KeyState | None, group: MonGroup) -> MonGroup:
    """Return the group of a key that is on record in this one's ctrl_group: its prefix may differ. Else this one."""
    place = group.path.rpartition("/")[0]
    for known in state.groups if state is not None else ():
        if known.end is None and known.path.rpartition("/")[0] == place:
            return known
    return group


def has_group(state: KeyState | None, path: str) -> bool:
    """Whether a key has the group of this path, and it has not ended."""
    return state is not None and any(group.path == path and group.end is None for group in state.groups)


def get_group(state: KeyState, path: str) -> MonGroup:
    """Return the group of this path, which the key has."""
    return next(group for group in state.groups if group.path == path)


def remake(state: KeyState, path: str) -> KeyState:
    """Give a group a new directory, whose counters are not read yet, since another tool removed the former one.

    The use of that one is unknown, unless its last member had left (`last`).
    """
    group = get_group(state, path)
    if group.begin is None:
        return state
    from hook import counters

    last = group.last or {}
    group = replace(group, begin=None, end=None, last=None, **counters.carry([end_group(group, last)]))
    return _put_group(state, group)


def begin(state: KeyState, path: str, inode: int | None, texts: Texts | None, *, is_late: bool) -> KeyState:
    """Set the begin of a group, its counters before its first member is in it, unless it has one.

    `inode` is its directory's. `texts` are its counters, None if they are not needed. `is_late` says that tasks may
    have been in it before these were read.
    """
    group = get_group(state, path)
    first = group.begin
    if first is None and texts is not None:
        first = texts
        is_heir = state.returned is not None and state.returned.use.path == path
        if is_late or is_heir or group.inode is not None:
            from hook import counters

            group = counters.begin_group(group, texts, is_late=is_late)
            first = group.begin
    end = None if texts is not None else group.end
    return _put_group(state, replace(group, inode=inode, begin=first, end=end, last=None))


def _put_group(state: KeyState, group: MonGroup) -> KeyState:
    """Replace the group of the same path."""
    groups = [group if other.path == group.path else other for other in state.groups]
    return change(state, groups) if groups != state.groups else state


def rejoin(members: dict[str, Member], container: str, member: Member, *, displaces: bool) -> dict[str, Member]:
    """Add a member in the place of the one of the same ID, which stays under another name if this one displaces it."""
    remaining = displace(members, container) if displaces else dict(members)
    remaining[container] = member
    # The older of two processes of this ID had its hook called again: it is displaced no more.
    remaining.pop(names.displaced_member(container, member.pid, member.starttime), None)
    return remaining


def displace(members: dict[str, Member], container: str) -> dict[str, Member]:
    """Rename a member whose container ID belongs to another process from now on."""
    remaining = dict(members)
    member = remaining.pop(container)
    remaining[names.displaced_member(container, member.pid, member.starttime)] = member
    return remaining


# --- Containers leave


def leave(state: KeyState, leaving: Iterable[str], *, stops: bool) -> KeyState:
    """Remove members from a key, and note the names of those that leave for the line in the history.

    `stops` says that the last of them leaves by its own poststop, or by an administrator's order: then no live task
    keeps a group of the key. A record that is recovering may lack members, and so the last one.
    """
    leaving = [*leaving]
    members = {name: member for name, member in state.members.items() if name not in leaving}
    for container in leaving:
        # One that such a member had displaced gets its ID back, so that poststop finds it.
        former = [name for name in members if name.startswith(container + "@")]
        if former and container in state.members:
            members[container] = members.pop(former[0])
    has_stopped = not state.recovering if stops else state.stopped and members == state.members
    left = _note_left(state, leaving) if state.history_file else {}
    return replace(state, members=members, stopped=has_stopped, **left)


def _note_left(state: KeyState, leaving: Iterable[str]) -> dict[str, object]:
    """Return the new values of `left` and `left_more` after these members have left."""
    left, more = dict(state.left), state.left_more
    for name in leaving:
        container, member = names.container_of(name), state.members.get(name)
        if member is None:
            continue
        if container in left or len(left) < MOST_LEFT:
            left[container] = member.name or left.get(container)
        else:
            more += 1
    return {"left": left, "left_more": min(more, MOST_NATURAL)}


def linger(state: KeyState, finals: dict[str, Texts], boottime: float, seconds: float) -> KeyState:
    """Let a key without members keep its groups for so many seconds; one that lingers does so no longer for that.

    `finals` has the present counters of its groups, by path. They count if another tool removes a group.
    """
    if state.lingering_since is not None:
        return state
    groups = [replace(group, last=finals.get(group.path, group.last or {})) for group in state.groups]
    return change(state, groups, lingering_since=boottime, lingering_until=boottime + seconds)


def complete(state: KeyState, finals: dict[str, Texts], held: Collection[str], now: Moment) -> KeyState:
    """End a key without members; its line of the history is then owed.

    `finals` has the present counters of its groups, by path, and `held` the paths of those that a live task keeps. A
    key with both kinds of groups goes on without the others, one whose groups are all held stays as it is.
    """
    had_member = bool(state.left)
    ended = [
        finish(group, finals.get(group.path), had_member=had_member) for group in state.groups if group.path not in held
    ]
    if len(ended) < len(state.groups):
        return retire(state, ended)
    # A new generation in any case: if its groups had no begin yet, nothing else shows that the key has ended.
    completed = replace(
        state,
        groups=ended,
        members={},
        lingering_since=None,
        lingering_until=None,
        generation=next_generation(state),
        completed_at=now.utc,
        completed_boottime=now.boottime,
    )
    if not state.history_file:
        return completed
    from hook import ending

    line = ending.make_line(state, ended, now)
    return owe(completed, [*(state.owed.lines if state.owed is not None else []), *line])


def needs_final(state: KeyState, group: MonGroup) -> bool:
    """Whether the counters of a group are needed for its end.

    If its begin could not be saved, they are if a line of the history names a member, of which the use is unknown.
    """
    return group.end is None and (group.begin is not None or bool(state.left))


def finish(group: MonGroup, texts: Texts | None, *, had_member: bool = False) -> MonGroup:
    """Set the end of a group: its present counters; of one that is gone (None) the last ones on record, if any.

    `had_member` says that a line of the history names its use, which is unknown if its begin could not be saved.
    """
    if group.end is not None:  # no member needed it, or the program was killed after it had written that
        return group
    if group.begin is not None:
        return end_group(group, texts if texts is not None else group.last or {})
    # A group without a begin ends, too: else the key's next run would count its `before` twice.
    if texts is None or not had_member:
        return end_group(group, {})
    from hook import counters

    return end_group(counters.begin_group(group, texts, is_late=True), texts)


def end_group(group: MonGroup, texts: Texts) -> MonGroup:
    """Set a group's `end`, the counters after its last member left."""
    if group.begin is not None and not group.begin.keys() >= texts.keys():
        from hook import counters

        group = counters.add_late(group, texts)
    return replace(group, end=texts)


def retire(state: KeyState, ended: list[MonGroup]) -> KeyState:
    """Take groups that have ended off a key that goes on; the first of the others inherits their use."""
    if not ended:
        return state
    from hook import counters

    paths = [group.path for group in ended]
    first, *others = [group for group in state.groups if group.path not in paths]
    return change(state, [counters.inherit(first, ended), *others])


def reopen(state: KeyState, before: KeyState, refused: Collection[str]) -> KeyState:
    """Put the groups that the kernel refused to remove back into a key's record, which had them `before`.

    So a completed key goes on, and with its next end they are tried again. In a key that has gone on without them,
    another group has inherited their use.
    """
    if state.completed_at is None:
        back = [MonGroup(path=it.path, ctrl_group=it.ctrl_group) for it in before.groups if it.path in refused]
        return change(state, [*state.groups, *back])
    from hook import counters

    first, *others = [replace(group, end=None) for group in state.groups if group.path in refused]
    removed = [group for group in state.groups if group.path not in refused]
    return _reopen(state, [counters.inherit(first, removed), *others])


def _reopen(state: KeyState, groups: list[MonGroup]) -> KeyState:
    """Take back that a key was completed."""
    generation = next_generation(state)
    return replace(state, groups=groups, generation=generation, completed_at=None, completed_boottime=None)


# --- What is known of a key changes


def take(state: KeyState, gone: Collection[str]) -> KeyState:
    """Note that another tool has moved a container to its group. The groups that are `gone` end: no view leads there.

    A part of the use is unknown until the key comes back from its completion.
    """
    groups = [end_group(group, group.last or {}) if group.path in gone else group for group in state.groups]
    return change(state, groups, taken=True)


def rebuild(state: KeyState, groups: list[MonGroup], members: dict[str, Member], kind: Kind, index: Index) -> KeyState:
    """Give a key that is recovering what was found again; the index has the file and the labels of its line.

    It stays recovering until the caller knows that no member is missing.
    """
    file, labels = index.history_file, index.job_labels
    return change(state, groups, kind=kind, members=members, history_file=file, job_labels=labels)


def restore(before: KeyState | None, now: KeyState | None, path: str) -> KeyState | None:
    """Return to the state `before` a start that has failed; what it learnt of a group that the key had stays known.

    No two views of a key have one generation.
    """
    if before is None or now is None:
        return before
    groups = before.groups
    if has_group(before, path):
        learnt = get_group(now, path)
        is_same = [replace(learnt, last=group.last) == group for group in groups if group.path == path]
        groups = groups if all(is_same) else now.groups
    if now.generation == before.generation:
        return replace(before, groups=groups)
    is_shown = any(group.begin is not None for group in groups)
    return replace(before, groups=groups, generation=next_generation(now) if is_shown else 0)


def owe(state: KeyState, lines: list[str]) -> KeyState:
    """Set the lines of history that a key owes, the oldest first; `settle` tries to write them."""
    return replace(state, owed=Owed(lines=lines, why="not tried yet") if lines else None)


def keep(state: KeyState, *, snapshots: bool) -> KeyState | None:
    """Return what stays on record of a key; None if it is forgotten: it is completed, and without use to show."""
    if state.completed_at is None or (snapshots and any(group.before or group.begin for group in state.groups)):
        return state
    return forget(state)


def forget(state: KeyState) -> KeyState | None:
    """Forget what a completed key used. It stays on record for the lines of history that it owes, if any."""
    if state.owed is None:
        return None
    return replace(state, groups=[], generation=0, left={}, left_more=0, returned=None)


# --- The view of a key


def change(state: KeyState, groups: list[MonGroup], **fields: object) -> KeyState:
    """Return a state with other groups and fields. `generation` rises if the key's view changes."""
    members, since = fields.get("members", state.members), fields.get("lingering_since", state.lingering_since)
    if _list_shown(groups, members, since) != _list_shown(state.groups, state.members, state.lingering_since):
        fields["generation"] = next_generation(state)
    return replace(state, groups=groups, **fields)


def next_generation(state: KeyState) -> int:
    """Return the next `generation`. The largest is followed by 1."""
    return state.generation % MOST_NATURAL + 1


def _list_shown(groups: list[MonGroup], members: object, lingering_since: object) -> list[tuple[object, ...]]:
    """Return the part of a key's state that its view shows. A key without a shown group has no view."""
    left_at = None if members else lingering_since
    return [
        (group.path, group.inode, group.begin, group.end, group.before, group.known, left_at)
        for group in groups
        if group.begin is not None
    ]


def list_removed(before: KeyState | None, after: KeyState | None) -> list[MonGroup]:
    """List the groups that a transition takes off a key: all of them, if the key has ended."""
    if before is None or before.completed_at is not None:
        return []
    stay = [group.path for group in after.groups] if after is not None and after.completed_at is None else []
    return [group for group in before.groups if group.path not in stay]
