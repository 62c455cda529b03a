# SPDX-License-Identifier: Apache-2.0
"""Which tasks are a container's: every thread of every process in its cgroup, or without its own one, of its family.

One look at /proc serves all containers, for every cgroup version and mount point: each process says itself which
cgroups it is in, and who its parent is. Not for the hook path: what is looked at grows with the node.
"""

from __future__ import annotations

from dataclasses import dataclass

from hook.base import cgroups, procfs, system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from hook.base.models import Member


@dataclass(frozen=True)
class Process:
    """A process that lives. `starttime` as in models.Member; `cgroups` as in process.cgroup, one for each hierarchy."""

    pid: int
    parent: int
    starttime: int
    cgroups: tuple[str, ...]


class Processes:
    """One look at all processes that live, `by_pid`. `own`: the cgroups of members that are those members' alone.

    A process belongs to the member whose own cgroup holds it: the innermost, where one is below another.
    """

    def __init__(self, by_pid: Mapping[int, Process], own: Collection[str]) -> None:
        self.by_pid = by_pid
        self._children: dict[int, list[int]] = {}
        self._owner: dict[int, str] = {}
        self._owned: dict[str, set[int]] = {}
        for it in by_pid.values():
            self._children.setdefault(it.parent, []).append(it.pid)
            cgroup = _innermost(it.cgroups, own)
            if cgroup is not None:
                self._owner[it.pid] = cgroup
                self._owned.setdefault(cgroup, set()).add(it.pid)

    def of_container(self, member: Member) -> set[int]:
        """The pids of a container's processes, while its init lives.

        Its cgroup counts only if it is the container's own: one that it shares with others may hold a machine's worth
        of tasks. Then, and in any case, what descends from its init is its, unless another container's own cgroup holds
        it: where containers share a pid namespace, the init of one becomes the parent of the other's orphans.
        """
        init = self.by_pid.get(member.pid)
        if init is None or init.starttime != member.starttime:
            return set()
        family = {pid for pid in self._descendants(member.pid) if self._owner.get(pid) in (None, member.cgroup)}
        return {member.pid} | family | self.in_own_cgroup(member)

    def in_own_cgroup(self, member: Member) -> set[int]:
        """The pids of the processes in a container's cgroup, also of those that outlived its init; none if shared."""
        return self._owned.get(member.cgroup or "", set())

    def _descendants(self, pid: int) -> set[int]:
        """A process, its children and theirs."""
        found: set[int] = set()
        waiting = [pid]
        while waiting:
            at = waiting.pop()
            if at not in found:
                found.add(at)
                waiting += self._children.get(at, [])
        return found


def _innermost(places: Iterable[str], own: Collection[str]) -> str | None:
    """The first of these cgroups, or of those above them, that is one of `own`."""
    for place in places:
        at = place
        while "/" in at:
            if at in own:
                return at
            at = at.rpartition("/")[0]
    return None


def own_cgroups(members: Iterable[tuple[str, Member]]) -> set[str]:
    """The cgroups of members, each with its container, that are theirs alone."""
    return {it.cgroup for container, it in members if it.cgroup is not None and cgroups.is_own(it.cgroup, container)}


def look(own: Collection[str]) -> Processes:
    """Look at all processes. `own`: see Processes."""
    return Processes(table(), own)


def table() -> dict[int, Process]:
    """Every process that lives, by pid."""
    found = (_look_at(int(name)) for name in system.list_directory("/proc") if name.isdigit())
    return {it.pid: it for it in found if it is not None}


def all_cgroups() -> set[str]:
    """Every cgroup that some process is in."""
    return {place for name in system.list_directory("/proc") if name.isdigit() for place in procfs.cgroups(int(name))}


def _look_at(pid: int) -> Process | None:
    fields = procfs.stat_fields(pid)
    if fields is None or procfs.is_over(fields):
        return None
    return Process(pid, int(fields[1]), int(fields[19]), tuple(procfs.cgroups(pid)))


def threads(pids: Iterable[int]) -> set[int]:
    """The threads of processes, themselves among them; of one that is gone, none."""
    found: set[int] = set()
    for pid in pids:
        try:
            found |= {int(name) for name in system.list_directory(f"/proc/{pid}/task")}
        except OSError:
            continue
    return found


def children(pid: int) -> set[int]:
    """The children of a process; none if it is gone, or on a kernel without CONFIG_PROC_CHILDREN.

    Source: proc_tid_children(5).
    """
    found: set[int] = set()
    for tid in threads([pid]):
        try:
            found |= {int(child) for child in system.read_file(f"/proc/{pid}/task/{tid}/children").split()}
        except OSError:
            continue
    return found


def containers_of(pids: Iterable[int], names: Iterable[str], processes: Mapping[int, Process]) -> dict[str, Process]:
    """The containers of these names that some of these processes are in, by their cgroups, each with its init.

    The init is the one that started first in the container's cgroup.
    """
    found: dict[str, Process] = {}
    for pid in pids:
        it = processes.get(pid)
        if it is None:
            continue
        for name in names:
            former = found.get(name)
            if any(cgroups.is_own(place, name) for place in it.cgroups) and (
                former is None or (it.starttime, it.pid) < (former.starttime, former.pid)
            ):
                found[name] = it
    return found
