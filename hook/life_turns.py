# SPDX-License-Identifier: Apache-2.0
"""The life of a key, its rare turns: it comes back, gets other names, the kernel keeps a group,
another tool interferes. See `life`.
"""

from __future__ import annotations

from hook import counters, formats
from hook.models import MonGroup, Returned
from hook.validation import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from hook.formats import Moment
    from hook.identity import Names
    from hook.models import Index, KeyState, Kind, Member


def come_back(state: KeyState, group: MonGroup, now: Moment) -> KeyState:
    """Begin another run of a completed key, with this group, which inherits its use."""
    heir = counters.inherit_run(group, state.groups, is_partial=state.taken)
    returned = Returned(
        at=formats.format_utc(now[1]), boottime=now[0], use=heir, late_cpu=state.late_cpu
    )
    reopened = reopen_with(state, [heir])
    return replace(
        reopened, members={}, returned=returned, taken=False, runs=1, left={}, left_more=0
    )


def end_gone(group: MonGroup) -> MonGroup:
    """End a group that another tool removed: its last counters on record, if any, are its `end`."""
    last = group.last or {}
    return replace(counters.add_late(group, last), end=last)


def remake_group(group: MonGroup) -> MonGroup:
    """Begin with a new directory of a group: see `remake`."""
    return replace(group, begin=None, end=None, last=None, **counters.carry([end_gone(group)]))


def remake(state: KeyState, path: str) -> KeyState:
    """Begin with a new directory, whose counters are not read yet,
    for a group of a key that another tool removed.

    The use of the former one is unknown, unless its last member had left (`last`).
    """

    return replace(
        state,
        groups=[remake_group(group) if group.path == path else group for group in state.groups],
    )


def rejoin(
    members: dict[str, Member], container: str, member: Member, *, displaces: bool
) -> dict[str, Member]:
    """Add a member in the place of the one of the same ID,
    which stays under another name if this one displaces it.
    """
    remaining = displace(members, container) if displaces else dict(members)
    remaining[container] = member
    # The older of two processes of this ID had its hook called again: it is displaced no more.
    remaining.pop(name_displaced(container, member.pid, member.starttime), None)
    return remaining


def name_displaced(container: str, pid: int, starttime: int) -> str:
    """Return the name under which we keep a member after its container ID was
    reused by another live process.

    The name contains `@`, so it cannot equal a container ID.
    """
    return f"{container}@{pid}-{starttime}"


def displace(members: dict[str, Member], container: str) -> dict[str, Member]:
    """Rename a member whose container ID belongs to another process from now on."""
    remaining = dict(members)
    member = remaining.pop(container)
    remaining[name_displaced(container, member.pid, member.starttime)] = member
    return remaining


def take(state: KeyState, gone: Collection[str]) -> KeyState:
    """Note that another tool has moved a container to its group. The groups that are `gone` end.

    A part of the use is unknown until the key comes back from its completion.
    """
    groups = [end_gone(group) if group.path in gone else group for group in state.groups]
    return replace(state, groups=groups, taken=True)


def rebuild(
    state: KeyState, groups: list[MonGroup], members: dict[str, Member], kind: Kind, index: Index
) -> KeyState:
    """Give a key that is recovering what was found again;
    the index has the file and the labels of its line.

    It stays recovering until the caller knows that no member is missing.
    """
    file, labels = index.history_file, index.job_labels
    return replace(
        state, groups=groups, kind=kind, members=members, history_file=file, job_labels=labels
    )


def reopen(state: KeyState, before: KeyState, refused: Collection[str]) -> KeyState:
    """Put the groups that the kernel refused to remove back into a key's record,
    which had them `before`.

    So a completed key goes on, and with its next end they are tried again. In a key that has gone
    on without them, another group has inherited their use: no task was left in them.
    """
    if state.completed_at is None:
        back = [
            MonGroup(path=group.path, ctrl_group=group.ctrl_group)
            for group in before.groups
            if group.path in refused
        ]
        return replace(state, groups=[*state.groups, *back])
    if (state.created_boottime, state.returned) != (before.created_boottime, before.returned):
        # A start has failed that had begun another run:
        # what was used before it is in that run's groups.
        return replace(before, members={})
    first, *others = [replace(group, end=None) for group in state.groups if group.path in refused]
    removed = [group for group in state.groups if group.path not in refused]
    return reopen_with(state, [counters.inherit(first, removed), *others])


def reopen_with(state: KeyState, groups: list[MonGroup]) -> KeyState:
    """Take back that a key was completed: it goes on with these groups."""
    return replace(state, groups=groups, completed_at=None, completed_boottime=None)


# --- Its names, for people and in the labels of its metrics


def name_key(state: KeyState, container: str = "") -> Names:
    """Return the names of a key, or of a container of it: namespace, pod and container.

    None is unknown. Podman's pods have no namespace.
    Only a key that is one container has a container's name.
    """
    members = state.members
    if container:
        name = members[container].name if container in members else None
    elif state.kind == "container":
        name = state.name or next((member.name for member in members.values() if member.name), None)
    else:
        name = None
    return state.pod_namespace, state.pod_name, name


def read_metric_labels(state: KeyState) -> dict[str, str]:
    """Return the names in the labels of a key's metrics, empty ones too."""
    known = zip(("namespace", "pod", "container"), name_key(state))
    return state.metric_labels or {label: name or "" for label, name in known}


def keep_metric_labels(before: KeyState, after: KeyState) -> KeyState:
    """Keep the labels of a key's metrics when it gets other names: one key is one series."""
    labels = read_metric_labels(before)
    return after if read_metric_labels(after) == labels else replace(after, metric_labels=labels)
