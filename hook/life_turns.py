# SPDX-License-Identifier: Apache-2.0
"""The life of a key, its rare turns: it comes back, another tool interferes, its record is rebuilt.

See `life`.
"""

from __future__ import annotations

from hook import counters, formats, names
from hook.life_end import end_group, reopen_with
from hook.models import Returned
from hook.validation import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from hook.models import Index, KeyState, Kind, Member, MonGroup


def come_back(state: KeyState, group: MonGroup, boottime: float, unix: float) -> KeyState:
    """Begin another run of a completed key, with this group, which inherits its use."""
    heir = counters.inherit_run(group, state.groups, is_partial=state.taken)
    returned = Returned(
        at=formats.format_utc(unix), boottime=boottime, use=heir, late_cpu=state.late_cpu
    )
    reopened = reopen_with(state, [heir])
    return replace(
        reopened, members={}, returned=returned, taken=False, runs=1, left={}, left_more=0
    )


def remake_group(group: MonGroup) -> MonGroup:
    """Begin with a new directory of a group: see `remake`."""
    use = counters.carry([end_group(group, group.last or {})])
    return replace(group, begin=None, end=None, last=None, **use)


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
    remaining.pop(names.name_displaced(container, member.pid, member.starttime), None)
    return remaining


def displace(members: dict[str, Member], container: str) -> dict[str, Member]:
    """Rename a member whose container ID belongs to another process from now on."""
    remaining = dict(members)
    member = remaining.pop(container)
    remaining[names.name_displaced(container, member.pid, member.starttime)] = member
    return remaining


def take(state: KeyState, gone: Collection[str]) -> KeyState:
    """Note that another tool has moved a container to its group. The groups that are `gone` end.

    A part of the use is unknown until the key comes back from its completion.
    """
    groups = [
        end_group(group, group.last or {}) if group.path in gone else group
        for group in state.groups
    ]
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
