# SPDX-License-Identifier: Apache-2.0
"""The life of a key: its transitions, each from one record to the next.

Nothing here touches a file.

    new ----> live           join, then begin before the first pid is in the group
    live ---> live           join, leave, retire, take, rebuild; remake and begin, if a group
                             was replaced
    live ---> lingering      leave, linger
    lingering --> live       join
    live, lingering --> completed   leave, complete; reopen, if the kernel keeps a group
    completed --> live       join (come_back)
    completed --> forgotten  forget, unless the key owes lines of the history (owe)

A transition takes a key's state and what was read of its groups under the key's lock, and returns
the next state, finished: `create` and `key` carry it out. A *run* of a key goes from its first
member to its last. docs/design.md has the table of the states. Here is what each start needs;
`life_end` has how members leave and keys end, and `life_turns` what is rare.
"""

from __future__ import annotations

from hook import formats, identity
from hook.models import KeyState
from hook.validation import MOST_NATURAL, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.identity import Container, Key
    from hook.models import Kind, Member, MonGroup

    class Attempt:
        """An attempt to let a container join a key: one createRuntime, with all of its tries."""

        container: Container
        key: str
        kind: Kind
        # The one that the container was seen in, for kernels without /proc/PID/cpu_resctrl_groups.
        ctrl_group: str | None
        # When it began, and when every wait ends, by system.monotonic.
        began: float
        deadline: float
        # The time of the present try.
        now: formats.Moment
        # What the tries that failed have done. One of them has tried to free
        # RMIDs, which is done once.
        has_reclaimed: bool
        # How often another one followed because another program had removed the group,
        # and because the process had moved to another ctrl_group.
        returns: int
        moves: int
        # The group of the one that failed last. Whether the key has it,
        # and needs it, is read again.
        left: str | None
        # When the wait for RMIDs in limbo ends; None before it has begun.
        limbo_end: float | None


def begin_attempt(
    container: Container, key: Key, ctrl_group: str | None, began: float, seconds: float
) -> Attempt:
    """Begin an attempt at this time of system.monotonic(), for so many seconds."""
    name, kind = key
    attempt: Attempt = formats.Values(
        container=container, key=name, kind=kind, ctrl_group=ctrl_group
    )
    attempt.began, attempt.deadline = began, began + seconds
    attempt.now = (0.0, 0.0)
    attempt.has_reclaimed = False
    attempt.returns = attempt.moves = 0
    attempt.left = attempt.limbo_end = None
    return attempt


def join(
    state: KeyState | None, attempt: Attempt, member: Member, group: MonGroup, *, displaces: bool
) -> KeyState:
    """Add a container, as a `member`, and its group to a key;
    the first member begins a run of the key.

    The run's history goes to the file that this first one names; if it names none, to the first
    that a later member names. `displaces` says that the present member of this ID stays, since
    it is another live process.
    """
    container = attempt.container
    begins = state is None or state.completed_at is not None
    if begins and state is not None and state.owed is not None:
        from hook import line

        state = line.set_owed(state, line.list_owed(state))  # with the file of the former run
    if state is None or (begins and not state.groups):
        # Of a completed key without its snapshot only the lines of history that it owes go on.
        state = KeyState(
            key=attempt.key,
            kind=attempt.kind,
            created_at=formats.format_utc(attempt.now[1]),
            created_boottime=attempt.now[0],
            owed=state.owed if state is not None else None,
        )
    elif begins:
        from hook import life_turns

        state = life_turns.come_back(state, group, attempt.now)
    members = {**state.members, container.id: member}
    if displaces or "@" in "".join(members):
        from hook import life_turns

        members = life_turns.rejoin(state.members, container.id, member, displaces=displaces)
    joined = replace(
        state,
        groups=state.groups
        if any(group.path == other.path for other in state.groups)
        else [*state.groups, group],
        members=members,
        runs=state.runs if state.lingering_since is None else min(state.runs + 1, MOST_NATURAL),
        lingering_since=None,
        lingering_until=None,
        cgroup=(identity.find_pod_cgroup(member.cgroup, state.key) if state.kind == "pod" else None)
        or state.cgroup,
        pod_namespace=state.pod_namespace or container.pod.namespace,
        pod_name=state.pod_name or container.pod.name,
        name=(member.name or state.name) if state.kind == "container" else None,
        history_file=("" if begins else state.history_file) or container.history_file,
        job_labels=container.job_labels if begins else state.job_labels,
    )
    known = (state.pod_namespace, state.pod_name, state.name)
    if state.groups and known != (joined.pod_namespace, joined.pod_name, joined.name):
        from hook import life_turns

        joined = life_turns.keep_metric_labels(state, joined)
    return joined


def begin(
    state: KeyState,
    group: MonGroup,
    directory: tuple[int | None, int | None],
    texts: dict[str, str] | None,
    *,
    is_late: bool,
) -> KeyState:
    """Set the begin of a group of a key, its counters before its first member is
    in it, unless it has one.

    `directory` is its own (Resctrl.identify); of a new one the group is remade first. `texts` are
    its counters, None if they are not needed. `is_late` says that a part of the use is in no
    counter of the group: tasks were in it before these were read, or its new member had run before
    it joined.
    """
    first = group.begin
    if first is None and texts is not None:
        first = texts
        is_heir = state.returned is not None and state.returned.use.path == group.path
        if is_late or is_heir or group.inode is not None:
            from hook import counters

            group = counters.begin_group(group, texts, is_late=is_late)
    elif is_late:
        from hook import counters

        group = counters.mark_late(group)
    mounted, inode = directory
    begun = replace(
        group,
        inode=inode,
        mounted=mounted,
        begin=first,
        end=None if texts is not None else group.end,
        last=None,
    )
    return replace(
        state, groups=[begun if other.path == group.path else other for other in state.groups]
    )


def resume(state: KeyState, group: MonGroup) -> KeyState:
    """Go on with a group whose directory is there:
    what it had counted when the key began to linger is no end.
    """
    if group.last is None:
        return state
    resumed = replace(group, last=None)
    return replace(
        state, groups=[resumed if other.path == group.path else other for other in state.groups]
    )


def find_group(state: KeyState | None, group: MonGroup) -> MonGroup:
    """Return the group of a key that is on record in this one's ctrl_group: its prefix may differ.

    Else this one.
    """
    place = group.path.rpartition("/")[0]
    for known in state.groups if state is not None else ():
        if known.end is None and known.path.rpartition("/")[0] == place:
            return known
    return group


def get_group(state: KeyState, path: str) -> MonGroup:
    """Return the group of this path, which the key has."""
    return next(group for group in state.groups if group.path == path)
