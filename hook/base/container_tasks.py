# SPDX-License-Identifier: Apache-2.0
"""Which tasks are a container's: every thread of every process in its cgroup, or without its own one, of its family.

One look at /proc serves all containers, for every cgroup version and mount point: each process says itself which
cgroups it is in, and who its parent is. Not for the hook path: what is looked at grows with the node.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

from hook.base import cgroups, procfs, system
from hook.base.errors import HookError, Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from hook.base.models import Member


_MOST_CGROUPS = 256  # of one container: a tenant with a writable cgroup makes as many as he likes
_MOST_BYTES = 4 << 20  # of one list: half a million threads
_GONE = (errno.ENOENT, errno.ENODEV)  # ENODEV: removed while its file was open


class Process(NamedTuple):
    """A process that lives. `starttime` as in models.Member; `cgroups` as in procfs.cgroups, one for each hierarchy.

    `threads`: how many it had. `name`: that of its program, cut to 15 bytes (comm).
    """

    pid: int
    parent: int
    starttime: int
    cgroups: tuple[str, ...]
    threads: int = 1
    name: str = ""


class Processes:
    """One look at all processes that live, `by_pid`, for all `members`, which are containers with their records.

    A process belongs to the member whose own cgroup holds it: the innermost, where one is below another. One that no
    own cgroup holds belongs to the member whose init is its nearest ancestor. `boottime`: when the look began
    (CLOCK_BOOTTIME, s). All members together cost one visit of each process, and of each cgroup as many as it is deep.
    """

    def __init__(
        self, by_pid: Mapping[int, Process], members: Iterable[tuple[str, Member]] = (), boottime: float = 0.0
    ) -> None:
        self.by_pid = by_pid
        self.boottime = boottime
        self._own: set[str] = set()
        self._inits: set[int] = set()
        self._children: dict[int, list[int]] = {}
        self._in: dict[tuple[str, ...], list[int]] = {}
        self._at: dict[str, list[tuple[str, ...]]] = {}
        self._below: dict[str, list[str]] = {}
        for it in by_pid.values():
            self._children.setdefault(it.parent, []).append(it.pid)
            self._in.setdefault(it.cgroups, []).append(it.pid)
        for places in self._in:
            for place in places:
                self._at.setdefault(place, []).append(places)
        for place in self._at:
            for outer in _outwards(place):
                self._below.setdefault(outer, []).append(place)
        self.add(members)

    def add(self, members: Iterable[tuple[str, Member]]) -> None:
        """Let the look know of further members, such as those that this reconcile has recorded."""
        for container, member in members:
            if member.cgroup is not None and cgroups.is_own(member.cgroup, container):
                self._own.add(member.cgroup)
            if self.is_alive(member):
                self._inits.add(member.pid)

    def is_alive(self, member: Member) -> bool:
        """Whether a member's init was there. If not, it may have started since, or /proc may not show it."""
        init = self.by_pid.get(member.pid)
        return init is not None and init.starttime == member.starttime

    def cgroups(self) -> set[str]:
        """Every cgroup that some process is in."""
        return set(self._at)

    def of_container(self, member: Member) -> set[int]:
        """The pids of a container's processes, while its init lives.

        Its cgroup counts only if it is the container's own: one that it shares with others may hold a machine's worth
        of tasks. Then, and in any case, what descends from its init is its, unless another container's own cgroup holds
        it: where containers share a pid namespace, the init of one becomes the parent of the other's orphans.
        """
        return self._family(member) | self.in_own_cgroup(member) if self.is_alive(member) else set()

    def in_own_cgroup(self, member: Member) -> set[int]:
        """The pids of the processes in a container's cgroup, also of those that outlived its init; none if shared."""
        cgroup = member.cgroup or ""
        if cgroup not in self._own:  # others' may be below it: as many as the node has, for each member that shares it
            return set()
        inside = (places for place in self._below.get(cgroup, ()) for places in self._at[place])
        return {pid for places in inside if _innermost(places, self._own) == cgroup for pid in self._in[places]}

    def beside_own_cgroup(self, member: Member) -> set[int]:
        """The pids of a container's processes that its own cgroup does not hold: all of them, if it has none."""
        return self._family(member) - self.in_own_cgroup(member) if self.is_alive(member) else set()

    def read_own_cgroup(self, member: Member) -> Reading | None:
        """The threads in a container's own cgroup as they are now; None if it shares one, or it is not found."""
        cgroup = member.cgroup or ""
        return read_threads(cgroup, self._own.__contains__) if cgroup in self._own else None

    def threads(self, pids: Iterable[int]) -> set[int]:
        """The threads of processes, themselves among them. Lists those that had several when the look was taken."""
        return {tid for pid in pids for tid in _list_threads(self.by_pid[pid])}

    def look_again(self, member: Member, *, beside_own_cgroup: bool = False) -> set[int]:
        """The threads of a container's processes as they are now: of those in this look, and of what they forked since.

        Looks at these processes only. What comes in by another way, as by `exec`, is in the next look; so is what was
        forked since, if the kernel does not list the children of a task (CONFIG_PROC_CHILDREN). `beside_own_cgroup`:
        only those that the container's own cgroup did not hold.
        """
        pids = self.beside_own_cgroup(member) if beside_own_cgroup else self.of_container(member)
        waiting = {pid: self.by_pid[pid].starttime for pid in pids}
        if not beside_own_cgroup:
            waiting[member.pid] = member.starttime
        seen: set[int] = set()
        found: set[int] = set()
        while waiting:
            pid, starttime = waiting.popitem()
            seen.add(pid)
            now = look_at(pid)
            if now is None or now.starttime != starttime or not self._holds(member, now):
                continue
            tids = _list_threads(now)
            found |= tids
            waiting.update(self._find_new_children(pid, tids, seen))
        return found

    def is_newer(self, tid: int) -> bool:
        """Whether a task started after this look, which therefore does not say whose it is."""
        fields = procfs.stat_fields(tid)
        return fields is not None and int(fields[19]) > (self.boottime * procfs.TICKS) - 1

    def _family(self, member: Member) -> set[int]:
        """A container's init, and its descendants down to the inits of others, that no other own cgroup holds."""
        found = {member.pid}
        waiting = [member.pid]
        seen = {member.pid}
        while waiting:
            children = [it for it in self._children.get(waiting.pop(), ()) if it not in self._inits and it not in seen]
            seen.update(children)
            waiting += children
            found.update(it for it in children if self._holds(member, self.by_pid[it]))
        return found

    def _holds(self, member: Member, process: Process) -> bool:
        """Whether a process is in a container's own cgroup, or in none of a container; and so its init in any case."""
        return process.pid == member.pid or _innermost(process.cgroups, self._own) in (None, member.cgroup)

    def _find_new_children(self, pid: int, tids: Iterable[int], seen: Collection[int]) -> Iterator[tuple[int, int]]:
        """The children of a process that started after the look, each with its start time."""
        for child in list_children(pid, tids):
            if child not in seen:
                now, former = look_at(child), self.by_pid.get(child)
                if now is not None and (former is None or former.starttime != now.starttime):
                    yield child, now.starttime


def _innermost(places: Iterable[str], own: Collection[str]) -> str | None:
    """The first of these cgroups, or of those above them, that is one of `own`."""
    return next((cgroup for place in places for cgroup in _outwards(place) if cgroup in own), None)


def _outwards(place: str) -> Iterator[str]:
    """A cgroup, and those above it, from the inside out."""
    while "/" in place:
        yield place
        place = place.rpartition("/")[0]


def check_namespaces() -> None:
    """Raise HookError in a namespace that hides processes, or that hides which container a process is in."""
    if not procfs.in_host_pid_namespace():
        raise HookError(Reason.DENIED, procfs.NOT_HOST_PIDS, hint=procfs.PID_HINT)
    if procfs.sees_other_cgroups():
        problem = "running in a private cgroup namespace, where processes cannot be matched to containers"
        hint = "run it in the host's cgroup namespace (nsenter -t 1 -C; podman run --cgroupns=host)"
        raise HookError(Reason.DENIED, problem, hint=hint)


def look(members: Iterable[tuple[str, Member]] = ()) -> Processes:
    """Look at all processes. `members`: see Processes."""
    boottime = system.boottime()
    return Processes(table(), members, boottime)


def table() -> dict[int, Process]:
    """Every process that lives, by pid."""
    known: dict[str, tuple[str, ...]] = {}
    found = (look_at(int(name), known) for name in system.list_directory("/proc") if name.isdigit())
    return {it.pid: it for it in found if it is not None}


def look_at(pid: int, known: dict[str, tuple[str, ...]] | None = None) -> Process | None:
    """A process as it is now; None if it does not live. `known`: the cgroups of others, by the text of their files."""
    known = {} if known is None else known
    try:
        head, _, tail = system.read_counter(f"/proc/{pid}/stat").rpartition(")")  # proc(5); the kernel gives it whole
        fields = tail.split()
        if procfs.is_over(fields):
            return None
        places = _read_cgroups(pid, known)
        return Process(pid, int(fields[1]), int(fields[19]), places, int(fields[17]), head.partition("(")[2])
    except (OSError, ValueError, IndexError):
        return None


def _read_cgroups(pid: int, known: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The same as procfs.cgroups, each cut below a container's own: what it costs does not depend on what is there.

    Parses each text once, for most processes share their cgroups with others.
    """
    try:
        text = system.read_file(f"/proc/{pid}/cgroup")
    except OSError:
        return ()
    if text not in known:
        places = (line.partition(":")[2] for line in text.split("\n") if line)
        known[text] = tuple(dict.fromkeys(map(cgroups.cut_below_container, places)))
    return known[text]


def _list_threads(process: Process) -> set[int]:
    """The threads of a process; of one that is gone, none, unless it had only one."""
    return {process.pid} if process.threads == 1 else list_threads(process.pid)


def list_threads(pid: int) -> set[int]:
    """The threads that a process has now, itself among them; none if it is gone."""
    try:
        return {int(name) for name in system.list_directory(f"/proc/{pid}/task")}
    except OSError:
        return set()


def list_children(pid: int, tids: Iterable[int]) -> Iterator[int]:
    """The children that live of a process, by the threads that forked them.

    None on a kernel without CONFIG_PROC_CHILDREN. Source: proc_tid_children(5).
    """
    for tid in tids:
        try:
            yield from map(int, system.read_file(f"/proc/{pid}/task/{tid}/children").split())
        except OSError:
            continue


# --- The threads in a container's own cgroup, as the cgroup file system lists them: all at once, in one read. A look at
# /proc takes one process after another: it never sees a program that goes on living in a child and ends itself, again
# and again. Whatever is in the cgroup at the time of the read is in the list.


class Reading(NamedTuple):
    """The threads of a container's cgroups. `unread`: how many cgroups below its own one are left out, at least."""

    tids: set[int]
    unread: int


def read_threads(cgroup: str, is_other: Callable[[str], bool]) -> Reading | None:
    """The threads in a cgroup and in those below it; None if it is not there, or mounted at an unusual place.

    `is_other`: whether a cgroup below it is another container's. Source: cgroups(7); cgroup v2 has `cgroup.threads`,
    also where threads of one process are in several cgroups, v1 has `tasks`.
    """
    top = cgroups.find_directory(cgroup)
    if top is None:
        return None
    file = "cgroup.threads" if cgroup.startswith(":") else "tasks"
    tids: set[int] = set()
    unread = 0
    waiting = [""]
    for below in waiting:  # which grows meanwhile
        path = top + below
        try:
            tids.update(map(int, system.read_file(f"{path}/{file}", _MOST_BYTES).split()))
            children = system.count_links(path) - 2  # as many as a directory has links beyond its own two
            if children > _MOST_CGROUPS - len(waiting):
                unread += children
            elif children:
                names = (name for name in system.list_directory(path) if system.is_directory(f"{path}/{name}"))
                waiting += (f"{below}/{name}" for name in names if not is_other(f"{cgroup}{below}/{name}"))
        except OSError as error:
            unread += error.errno not in _GONE
    return Reading(tids, unread)
