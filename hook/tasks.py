"""Which tasks are a container's: every thread of every process in its cgroup, or without its own one, of its family.

One look at /proc serves all containers, whatever cgroup version is mounted wherever: each process says itself which
cgroups it is in, and who its parent is. Not for the hook path: what is looked at grows with the node.
"""

from __future__ import annotations

from dataclasses import dataclass

from hook import cgroups, process, system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hook.models import Member


@dataclass(frozen=True)
class Process:
    """A process that lives. `starttime` as in models.Member; `cgroups` as in process.cgroup, one for each hierarchy."""

    pid: int
    parent: int
    starttime: int
    cgroups: tuple[str, ...]


Table = dict[int, Process]


def table() -> Table:
    """Every process that lives, by pid."""
    found = (_look_at(int(name)) for name in system.list_directory("/proc") if name.isdigit())
    return {it.pid: it for it in found if it is not None}


def all_cgroups() -> set[str]:
    """Every cgroup that some process is in."""
    return {place for name in system.list_directory("/proc") if name.isdigit() for place in process.cgroups(int(name))}


def _look_at(pid: int) -> Process | None:
    fields = process.stat_fields(pid)
    if fields is None or process.is_over(fields):
        return None
    return Process(pid, int(fields[1]), int(fields[19]), tuple(process.cgroups(pid)))


def of_container(container: str, member: Member, processes: Mapping[int, Process]) -> set[int]:
    """The pids of a container's processes, while its init lives.

    Its cgroup counts only if it is the container's own: one that it shares with others may hold a machine's worth of
    tasks. Then, and in any case, what descends from its init is its.
    """
    init = processes.get(member.pid)
    if init is None or init.starttime != member.starttime:
        return set()
    return _descendants(member.pid, processes) | in_own_cgroup(container, member, processes)


def in_own_cgroup(container: str, member: Member, processes: Mapping[int, Process]) -> set[int]:
    """The pids of the processes in a container's cgroup, also of those that outlived its init; none if it is shared."""
    if member.cgroup is None or not cgroups.is_own(member.cgroup, container):
        return set()
    return within(member.cgroup, processes)


def within(cgroup: str, processes: Mapping[int, Process]) -> set[int]:
    """The pids of the processes in a cgroup, and below it."""
    return {it.pid for it in processes.values() if any(cgroups.is_within(place, cgroup) for place in it.cgroups)}


def _descendants(pid: int, processes: Mapping[int, Process]) -> set[int]:
    """A process, its children and theirs."""
    children: dict[int, list[int]] = {}
    for it in processes.values():
        children.setdefault(it.parent, []).append(it.pid)
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        at = waiting.pop()
        if at not in found:
            found.add(at)
            waiting += children.get(at, [])
    return found


def threads(pids: Iterable[int]) -> set[int]:
    """The threads of processes, themselves among them; of one that is gone, none."""
    found: set[int] = set()
    for pid in pids:
        try:
            found |= {int(name) for name in system.list_directory(f"/proc/{pid}/task")}
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
