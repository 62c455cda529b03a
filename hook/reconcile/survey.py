# SPDX-License-Identifier: Apache-2.0
"""Reads the facts of a node for the diagnosis, once a pass, and keeps what the pass learns later. Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property
from typing import NamedTuple

from hook import counters, identity, procfs, reclaim, resctrl, system
from hook.entry import Context
from hook.errors import UNNAMED, HookError
from hook.models import Failure, KeyState, Member, MonGroup
from hook.node import cgroups, engines, podman, processes, records
from hook.node.processes import Groups, Process

_FURTHER_LOOKS = 400  # in a pass, at containers with a thread that ended before its group could be read


class Outside(NamedTuple):
    """The threads of a container outside its group, by the last look."""

    to_move: int = 0
    elsewhere: tuple[tuple[str, int], ...] = ()  # groups where threads must stay, by path, and how many
    unread: int = 0  # at least so many of its cgroups were not read


class Survey:
    """The node in one pass of reconcile. Paths are those of mon_groups.

    An action reads the index entry of its container again, and its look at a container replaces what the last one
    found.
    """

    def __init__(
        self, context: Context, live: Collection[str] | None = None, unwritable: dict[str, str] | None = None
    ) -> None:
        """Survey the node. Raises HookError `io` if the run directory is unreadable."""
        self.context = context
        self.live = live  # the keys that --live names as live; if it is None, a key is live if a member is
        self.boottime = system.boottime()
        self.is_mounted = system.find_directory(f"{context.resctrl.root}/mon_groups")  # OSError: that is unknown
        self.kubelet, self.podman = engines.KubeletNames(), podman.Names(context.run.path)  # of pods and containers
        self.records = records.read_contents(context.run)
        self.states = self.records.states
        self.indexed: dict[str, list[str]] = {}  # by key, the containers in the index
        for container, key in self.records.index.items():
            if key is not None:
                self.indexed.setdefault(key, []).append(container)
        # After the records, so that the init of each member is among the processes. This is the only look at all
        # processes in a pass; later looks read single containers.
        self.processes = processes.look(processes.find_nested([*self._list_own_cgroups()]))
        for state in self.states.values():
            self.processes.add(self.find_live(state).items())
        recorded = records.list_recorded(self.states.values())
        self.groups = Groups(context.resctrl, context.options.group_prefix, lambda: recorded)
        self.ctrl_groups = resctrl.list_ctrl_groups(context.resctrl.root)
        others = [path for paths in self.ctrl_groups.values() for path in paths if path not in recorded]
        self.orphans = reclaim.find_orphans(context, others) if others else []  # with our prefix, without a record
        # By key and container: its threads outside its group; and the other tool's group that its init is in, by path.
        self.outside: dict[tuple[str, str], Outside] = {}
        self.taken: dict[tuple[str, str], str] = {}
        # By key: why it could not be looked at.
        self.unread: dict[str, OSError] = {}
        # Why the kernel gave the last new group no RMID. This pass tries no other group then: each try searches all
        # keys for RMIDs to reclaim, and waits for one that comes back.
        self.refusal: HookError | None = None
        # By file of the history: why this run could not write to it. It tries no other line there.
        self.unwritable = unwritable if unwritable is not None else {}
        self.further_looks = _FURTHER_LOOKS

    def list_keys(self) -> list[str]:
        """List every key with a record, an index entry or a leftover file."""
        found = self.records
        return list(dict.fromkeys([*found.states, *found.unreadable, *self.indexed, *found.leftovers, *found.asides]))

    def is_dead(self, member: Member) -> bool:
        """Whether a member's process is known to be dead."""
        return not self.processes.is_alive(member) and procfs.is_dead(member.pid, member.starttime) is True

    def find_live(self, state: KeyState) -> dict[str, Member]:
        """Return the members of a key that are not known to be dead."""
        return {name: member for name, member in state.members.items() if not self.is_dead(member)}

    def is_running(self, container: str) -> bool:
        """Whether a process is in a cgroup that is named after this container, which has a failure record.

        An unknown container (UNNAMED) is not running: any process could keep its record by the name of a cgroup.
        """
        return not container.startswith(UNNAMED) and container in self._running

    def is_gone(self, group: MonGroup) -> bool:
        """Whether another tool has removed a group that has not ended."""
        return group.end is None and self.context.resctrl.is_gone(group.path)

    def has_late_counters(self, state: KeyState) -> bool:
        """Whether a key's initial counters lack some that exist now. Reads only the groups that may lack one."""
        groups = (
            group for group in state.groups if group.begin is not None and not group.begin.keys() >= self._counters
        )
        return any(add_late_counters(self.context, group) is not group for group in groups)

    @cached_property
    def surplus(self) -> records.Surplus:
        """What has to go of completed keys, so that the next container has room."""
        return records.find_surplus(self.context.run, self.states.values())

    @cached_property
    def completed_groups(self) -> set[str]:
        """The paths of the groups that completed keys had."""
        completed = (state for state in self.states.values() if state.completed_at is not None)
        return {group.path for state in completed for group in state.groups}

    @cached_property
    def owners(self) -> dict[str, str | None]:
        """The key of each group without a record, by `find_owner`."""
        return {path: find_owner(self, path) for path in self.orphans}

    @cached_property
    def _running(self) -> set[str | None]:
        known = {*self.records.failed, *self.records.index}
        return {cgroups.find_container(place, known) for place in self.processes.cgroups()}

    @cached_property
    def _counters(self) -> set[str]:
        """The counters that this machine has now."""
        try:
            return set(self.context.resctrl.counters(self.context.resctrl.root))
        except HookError:
            return set()

    def _list_own_cgroups(self) -> Iterator[str]:
        """List the own cgroups of all members, and of the containers that are not monitored."""
        for state in self.states.values():
            for name, member in state.members.items():
                if member.cgroup and cgroups.is_own(member.cgroup, name):
                    yield member.cgroup
        for name in self.records.failed:
            failure = self.context.run.glance(Failure, name)
            if failure is not None and failure.pid is not None and not procfs.is_dead(failure.pid, failure.starttime):
                found = (identity.find_own(place, name) for place in procfs.cgroups(failure.pid))
                yield from (own for own in found if own)


def add_late_counters(context: Context, group: MonGroup) -> MonGroup:
    """Mark the counters of a live group that appeared later, as those of CPUs that were offline do."""
    if group.begin is None or group.end is not None or context.resctrl.inode(group.path) != group.inode:
        return group
    try:
        return counters.add_late(group, context.resctrl.counters(group.path))
    except HookError:  # removed since
        return group


# --- The owner of a group without a record


def find_owner(seen: Survey, path: str) -> str | None:
    """Find the key of a group without a record: the key of its containers, or the one in its name if they have none.

    The text after our prefix is no key if the group was made with a longer prefix, and a key of that name must not take
    over another key's containers. It returns None if the containers have several keys, and the name is none of them.
    """
    name = reclaim.parse_key(seen.context, path)
    keys = {key for key in map(seen.records.index.get, find_containers(seen, path)) if key is not None}
    if name in keys or not keys:
        return name
    return keys.pop() if len(keys) == 1 else None


def find_containers(seen: Survey, path: str) -> dict[str, Process]:
    """Find the containers that have processes in a group, each with its init: the one that started first.

    The cgroups' names decide: a container of the index, the group's own key, or a text that looks like an ID. Only
    processes of the survey count, and only if they are still alive.
    """
    known = {*seen.records.index, reclaim.parse_key(seen.context, path) or ""}
    before = seen.processes.by_pid
    tasks = system.try_call(seen.context.resctrl.tasks, path) or set()
    found: dict[str, Process] = {}
    there = [before[pid] for pid in tasks & before.keys()]
    for process in sorted(there, key=lambda process: (process.starttime, process.pid)):
        now = system.try_call(processes.look_at, process.pid)
        if now is None or now.starttime != process.starttime:
            continue
        for name in (cgroups.find_container(place, known) for place in now.cgroups):
            if name is not None:
                found.setdefault(name, now)
    return found
