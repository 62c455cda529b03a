# SPDX-License-Identifier: Apache-2.0
"""Finds the tasks of containers: all threads of the processes in a container's own cgroup, or else of its family.

One look at /proc serves all containers, for every cgroup version and mount point: each process's files in /proc name
its cgroups and its parent. Not for the hook path: the cost grows with the number of processes on the node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from hook import cgroups, procfs, system
from hook.errors import HookError, Reason
from hook.explain import is_gone
from hook.models import Member

_MOST_CGROUPS = 256  # read for one container: with a writable cgroup a container can make any number
_MOST_BYTES = 4 << 20  # of one list: half a million threads
_READINGS = 3  # of a container's cgroups, if some vanish meanwhile
UNKNOWN = ("unknown:",)
"""The cgroups of a process whose cgroups cannot be read: it may be in any container's."""


class Process(NamedTuple):
    """A live process. `starttime` as in models.Member; `cgroups` as in procfs.cgroups, one for each hierarchy.

    `threads`: their number. `name`: its program's, cut to 15 bytes (comm).
    """

    pid: int
    parent: int
    starttime: int
    cgroups: tuple[str, ...]
    threads: int = 1
    name: str = ""


class Processes:
    """One look at all live processes, `by_pid`, and which of the members that were added each belongs to.

    A process belongs to the member whose own cgroup holds it: the innermost, where one is below another. A process in
    no member's own cgroup belongs to the member whose init is its nearest ancestor. `boottime`: when the look began
    (CLOCK_BOOTTIME, s). `unread`: the number of processes that could not be read, or whose cgroups could not. The cost
    is one visit of each process, and of each cgroup as many as it has ancestors.
    """

    def __init__(
        self, by_pid: Mapping[int, Process], boottime: float = 0.0, nested: Collection[str] = (), unread: int = 0
    ) -> None:
        self.by_pid = by_pid
        self.boottime = boottime
        self.unread = unread + sum(it.cgroups == UNKNOWN for it in by_pid.values())
        self._nested = nested
        self._own: set[str] = {*nested}
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

    def add(self, members: Iterable[tuple[str, Member]]) -> None:
        """Add members (name and record), also those that were recorded after the look."""
        for container, member in members:
            if member.cgroup is not None and cgroups.is_own(member.cgroup, container):
                self._own.add(member.cgroup)
            if self.is_alive(member):
                self._inits.add(member.pid)

    def is_alive(self, member: Member) -> bool:
        """Whether the look saw a member's init. If not, it may have started since, or /proc may hide it."""
        init = self.by_pid.get(member.pid)
        return init is not None and init.starttime == member.starttime

    def cgroups(self) -> set[str]:
        """Every cgroup that has a process."""
        return set(self._at)

    def of_container(self, member: Member) -> set[int]:
        """The pids of a container's processes, while its init lives.

        These are the processes in its cgroup, if that is its own (a shared one may hold the whole machine's), and the
        descendants of its init that are in no other container's own cgroup: where containers share a pid namespace,
        the init of one becomes the parent of the other's orphans.
        """
        return self._family(member) | self.in_own_cgroup(member) if self.is_alive(member) else set()

    def in_own_cgroup(self, member: Member) -> set[int]:
        """The pids in a container's own cgroup, also of processes that outlived its init; none if it shares one."""
        cgroup = member.cgroup or ""
        if cgroup not in self._own:  # a shared one may hold all of the node's cgroups, and each member would visit them
            return set()
        inside = (places for place in self._below.get(cgroup, ()) for places in self._at[place])
        return {pid for places in inside if _innermost(places, self._own) == cgroup for pid in self._in[places]}

    def beside_own_cgroup(self, member: Member) -> set[int]:
        """The pids of a container's processes that are not in its own cgroup: all of them, if it has none."""
        return self._family(member) - self.in_own_cgroup(member) if self.is_alive(member) else set()

    def read_own_cgroup(self, member: Member) -> Reading | None:
        """Read which threads are in a container's own cgroup now; None if it shares one, or it is not found."""
        cgroup = member.cgroup or ""
        return read_threads(cgroup, self._own.__contains__) if cgroup in self._own else None

    def threads(self, pids: Iterable[int]) -> set[int]:
        """All thread IDs of these processes. Reads /proc for those that had several threads at the look."""
        return {tid for pid in pids for tid in _list_threads(self.by_pid[pid])}

    def look_again(self, member: Member, *, beside_own_cgroup: bool = False) -> set[int]:
        """The present threads of a container's processes: of those in this look, and of their children since.

        Reads these processes only. A process that enters another way, as by `exec`, is in the next look; so are new
        children, if the kernel does not list them (CONFIG_PROC_CHILDREN). `beside_own_cgroup`: only processes that
        were not in the container's own cgroup.
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
            now = system.try_call(look_at, pid, nested=self._nested)
            if now is None or now.starttime != starttime or not self._holds(member, now):
                continue
            tids = _list_threads(now)
            found |= tids
            waiting.update(self._find_new_children(pid, tids, seen))
        return found

    def is_newer(self, tid: int) -> bool:
        """Whether a task started after this look, which therefore cannot say which container's it is."""
        fields = procfs.stat_fields(tid)
        return fields is not None and int(fields[19]) > (self.boottime * procfs.TICKS) - 1

    def _family(self, member: Member) -> set[int]:
        """A container's init and its descendants, without other inits' and those in another member's own cgroup."""
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
        """Whether no other container's own cgroup holds a process. A container's own init always counts as its."""
        return process.pid == member.pid or _innermost(process.cgroups, self._own) in (None, member.cgroup)

    def _find_new_children(self, pid: int, tids: Iterable[int], seen: Collection[int]) -> Iterator[tuple[int, int]]:
        """The pid and start time of each child of a process that started after the look.

        None on a kernel without CONFIG_PROC_CHILDREN. Source: proc_tid_children(5).
        """
        for tid in tids:
            text = system.try_call(system.read_file, f"/proc/{pid}/task/{tid}/children") or ""
            for child in {*map(int, text.split())}.difference(seen):
                now, former = system.try_call(look_at, child, nested=self._nested), self.by_pid.get(child)
                if now is not None and (former is None or former.starttime != now.starttime):
                    yield child, now.starttime


def _innermost(places: Iterable[str], own: Collection[str]) -> str | None:
    """The first cgroup in `own` on the way from each of these places to its root; None: none is."""
    return next((cgroup for place in places for cgroup in _outwards(place) if cgroup in own), None)


def _outwards(place: str) -> Iterator[str]:
    """A cgroup and all its ancestors, the nearest first."""
    while "/" in place:
        yield place
        place = place.rpartition("/")[0]


def cpu_seconds(tid: int) -> float:
    """The CPU time of one thread, user and system; 0 if it is gone. Source: proc_pid_stat(5), fields 14 and 15."""
    fields = procfs.stat_fields(f"{tid}/task/{tid}")
    return (int(fields[11]) + int(fields[12])) / procfs.TICKS if fields is not None else 0.0


def had_pid(pid: int, boottime: float) -> bool:
    """Whether the process `pid` had started by a time (CLOCK_BOOTTIME, s): later, its pid was reused."""
    fields = procfs.stat_fields(pid)
    return fields is not None and int(fields[19]) <= boottime * procfs.TICKS


def check_namespaces() -> None:
    """Raise HookError in a pid or cgroup namespace that hides processes, or which container a process is in."""
    if not procfs.in_host_pid_namespace():
        raise HookError(Reason.DENIED, procfs.NOT_HOST_PIDS, hint=procfs.PID_HINT)
    if any("/../" in place + "/" for place in procfs.cgroups(1)):  # cgroup_namespaces(7)
        problem = "running in a private cgroup namespace, where processes cannot be matched to containers"
        hint = "run it in the host's cgroup namespace (nsenter -t 1 -C; podman run --cgroupns=host)"
        raise HookError(Reason.DENIED, problem, hint=hint)


def find_nested(own: Iterable[str]) -> list[str]:
    """Find the containers' own cgroups, among these, that lie below another container's; innermost ones first."""
    return sorted((it for it in own if cgroups.cut_below_container(it) != it), key=len, reverse=True)


def look(nested: Collection[str] = ()) -> Processes:
    """Read all processes once. `nested`: as find_nested; a process in one is not in the container's above it."""
    boottime = system.boottime()
    unread: list[OSError] = []
    return Processes({it.pid: it for it in list_processes(nested, unread)}, boottime, nested, len(unread))


def list_processes(nested: Collection[str] = (), unread: list[OSError] | None = None) -> Iterator[Process]:
    """Every live process, each read only when it is asked for. Those that cannot be read go to `unread`."""
    known: dict[str, tuple[str, ...]] = {}
    for name in filter(str.isdigit, system.list_directory("/proc")):
        try:
            found = look_at(int(name), known, nested)
        except OSError as error:
            if unread is not None:
                unread.append(error)
        else:
            if found is not None:
                yield found


def look_at(pid: int, known: dict[str, tuple[str, ...]] | None = None, nested: Collection[str] = ()) -> Process | None:
    """Read a process; None if it is not alive. Raises OSError if that cannot be found out.

    `known`: parsed cgroups by the text of their files, to parse less.
    """
    known = {} if known is None else known
    try:
        head, _, tail = system.read_counter(f"/proc/{pid}/stat").rpartition(")")  # proc(5); the kernel gives it whole
        fields = tail.split()
        if procfs.is_over(fields):
            return None
        places = _read_cgroups(pid, known, nested)
        return Process(pid, int(fields[1]), int(fields[19]), places, int(fields[17]), head.partition("(")[2])
    except (FileNotFoundError, ProcessLookupError, ValueError, IndexError):
        return None


def _read_cgroups(pid: int, known: dict[str, tuple[str, ...]], nested: Collection[str]) -> tuple[str, ...]:
    """As procfs.cgroups, each cut below a container's own: how many a container makes there costs nothing.

    Parses each text once, since most processes share their cgroups with others. A kernel refuses a path longer than
    PATH_MAX (ENAMETOOLONG), or cuts it.
    """
    try:
        text = system.read_file(f"/proc/{pid}/cgroup")
    except (FileNotFoundError, ProcessLookupError):
        raise
    except OSError:
        return UNKNOWN
    if text not in known:
        places = (line.partition(":")[2] for line in text.split("\n") if line)
        cut = (
            next((it for it in nested if cgroups.is_within(place, it)), None) or cgroups.cut_below_container(place)
            for place in places
        )
        known[text] = tuple(dict.fromkeys(cut))
    return known[text]


def _list_threads(process: Process) -> set[int]:
    """The threads of a process. Reads /proc only if it had several; none if it is gone by then."""
    return {process.pid} if process.threads == 1 else list_threads(process.pid)


def caught_signals(pid: int) -> int | None:
    """The signals that a process catches, as bits; None: it is gone. Source: proc_pid_status(5), SigCgt."""
    status = system.try_call(system.read_file, f"/proc/{pid}/status")
    return int(status.partition("\nSigCgt:")[2].partition("\n")[0], 16) if status is not None else None


def find_creator(tid: int) -> int:
    """Return the process of a thread, or the parent of a process; 0 if it is gone. Source: proc_pid_status(5)."""
    status = system.try_call(system.read_file, f"/proc/{tid}/status") or ""
    process, parent = (int(status.partition(f"\n{it}:\t")[2].partition("\n")[0] or 0) for it in ("Tgid", "PPid"))
    return parent if process == tid else process


def list_threads(pid: int) -> set[int]:
    """Read the thread IDs of a process, its pid among them; none if it is gone. Raises OSError."""
    try:
        return set(map(int, system.list_directory(f"/proc/{pid}/task")))
    except (FileNotFoundError, ProcessLookupError):
        return set()


# --- The threads in a container's own cgroup, as the cgroup file system lists them: all at once, in one read. A look at
# /proc reads one process after another, and can miss a program that forks and exits again and again. The cgroup's
# list has every thread that is in it at the time of the read.


class Reading(NamedTuple):
    """The threads of a container's cgroups. `unread`: at least so many of its cgroups were not read."""

    tids: set[int]
    unread: int


def read_threads(cgroup: str, is_other: Callable[[str], bool]) -> Reading | None:
    """Read the threads in a cgroup and in those below it; None if procfs.cgroup_directory does not find it.

    `is_other`: whether a cgroup below it is another container's. One that is removed meanwhile may have moved its
    threads to one that was read before: all are read again then, and if that does not help, it counts as unread.
    """
    reading = None
    for _ in range(_READINGS):
        try:
            top = procfs.cgroup_directory(cgroup)
        except OSError:
            return Reading(set(), 1)
        if top is None:
            return None
        reading, has_vanished = _read_once(cgroup, top, is_other)
        if not has_vanished:
            break
    return reading


def _read_once(cgroup: str, top: str, is_other: Callable[[str], bool]) -> tuple[Reading, bool]:
    """One reading, and whether a cgroup vanished meanwhile.

    Each cgroup is opened from the one above it: a container can nest them until the path is longer than PATH_MAX.
    Source: cgroups(7); cgroup v2 has `cgroup.threads`, also where threads of one process are in several cgroups, v1 has
    `tasks`.
    """
    file = "cgroup.threads" if cgroup.startswith(":") else "tasks"
    tids: set[int] = set()
    refused: list[OSError] = []
    more = 0
    waiting: list[tuple[str, int]] = []  # the name and a descriptor of each
    try:
        waiting += _open(cgroup, top, None, refused)
        for place, directory in waiting:  # which grows meanwhile
            try:
                tids.update(map(int, system.read_file(file, _MOST_BYTES, directory).split()))
                children = system.count_links(directory) - 2  # as many as a directory has links beyond its own two
                names = system.list_directory(".", directory) if 0 < children <= _MOST_CGROUPS - len(waiting) else []
                more += 0 if names else children
            except OSError as error:
                refused.append(error)
                continue
            for name in names:
                if not is_other(f"{place}/{name}"):
                    waiting += _open(f"{place}/{name}", name, directory, refused)
    finally:
        for _, directory in waiting:
            system.close(directory)
    return Reading(tids, len(refused) + more), any(map(is_gone, refused))


def _open(place: str, path: str, above: int | None, refused: list[OSError]) -> list[tuple[str, int]]:
    """The name and a descriptor of a directory; nothing if it is a file, or cannot be opened."""
    try:
        return [(place, system.open_directory(path, above))]
    except NotADirectoryError:
        return []
    except OSError as error:
        refused.append(error)
        return []
