# SPDX-License-Identifier: Apache-2.0
"""Finds the tasks of containers, and the resctrl group that a task is in.

A container's tasks are all threads of the processes in its own cgroup, or else of its init and that
one's descendants. One look at /proc serves all containers, for every cgroup version and mount
point: each process's files in /proc name its cgroups and its parent. Not for the hook path: the
cost grows with the number of processes on the node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, cached_property
from typing import NamedTuple

from hook import host, identity, inventory, names, rare, resctrl, system
from hook.errors import HookError, Reason
from hook.models import Config, Member
from hook.names import ID_LENGTH, is_engine_id
from hook.rare import as_hook_error
from hook.words import printable

# Read for one container: with a writable cgroup a container can make any number.
_MOST_CGROUPS = 256
_MOST_BYTES = 4 << 20  # of one list: half a million threads
_JOB = "job-"
_READINGS = 3  # of a container's cgroups, if some vanish during a reading
_MOST_SEPARATORS = 4  # of a component: `libpod-payload-ID` has two before the ID
_MOST_NAMED = 5
_MOST_IDS = 64  # of a path: a pod's on a nested node has some twenty
# Instead of the controllers of a cgroup that is called as a container's, below another's.
_NESTED = "nested:"
UNKNOWN = ("unknown:",)
"""The cgroups of a process whose cgroups cannot be read: it may be in any container's."""


Parser = Callable[[str], tuple[str, ...]]
"""Parses the text of a /proc/PID/cgroup into Process.cgroups."""


class Process(NamedTuple):
    """A live process."""

    pid: int
    parent: int
    starttime: int
    """As in models.Member."""
    cgroups: tuple[str, ...]
    """As in system.cgroups, one for each hierarchy."""
    threads: int = 1
    """How many it has."""


class Processes:
    """One look at all live processes, `by_pid`,
    that tells which of the added members each one belongs to.

    A process belongs to the member whose own cgroup holds it: the innermost, where one is below
    another. A process in no member's own cgroup belongs to the member whose init is its nearest
    ancestor, unless the kernel shows it in the group of another key: what a process forks stays in
    its group, whatever parent it gets. The look began at `boottime` (CLOCK_BOOTTIME, s). `unread`
    counts the processes that could not be read, or whose cgroups could not. Cost: O(processes +
    cgroups x depth).
    """

    def __init__(
        self,
        by_pid: Mapping[int, Process],
        boottime: float = 0.0,
        nested: Collection[str] = (),
        unread: int = 0,
        name_group: Callable[[int], str | None] = lambda _pid: None,
    ) -> None:
        """Index the processes.

        `name_group` names our group that a process is in (Groups.name_ours).
        """
        self.by_pid = by_pid
        self.boottime = boottime
        self.unread = unread + sum(process.cgroups == UNKNOWN for process in by_pid.values())
        self._name_group = name_group
        self._parse = make_parser(nested)
        self._own: set[str] = {*nested}
        self._inits: set[int] = set()
        self._children: dict[int, list[int]] = {}
        self._in: dict[tuple[str, ...], list[int]] = {}
        # Each that has a process, as Process.cgroups have it.
        self.cgroups: dict[str, list[tuple[str, ...]]] = {}
        self._below: dict[str, list[str]] = {}
        for process in by_pid.values():
            self._children.setdefault(process.parent, []).append(process.pid)
            self._in.setdefault(process.cgroups, []).append(process.pid)
        for places in self._in:
            for place in places:
                self.cgroups.setdefault(place, []).append(places)
        for place in self.cgroups:
            for outer in _outwards(place):
                self._below.setdefault(outer, []).append(place)

    def add(self, members: Iterable[tuple[str, Member]]) -> None:
        """Add members (name and record), also those that were recorded after the look."""
        for container, member in members:
            self._own.update(filter(None, [find_own_cgroup(container, member)]))
            if self.is_alive(member):
                self._inits.add(member.pid)

    def is_alive(self, member: Member | identity.Container) -> bool:
        """Whether the look saw a member's init.

        Otherwise the init may have started since, or /proc may hide it.
        """
        init = self.by_pid.get(member.pid)
        return init is not None and init.starttime == member.starttime

    def find_pids(self, member: Member, *, outside_own_cgroup: bool = False) -> set[int]:
        """Return the pids of a container's processes, while its init is alive.

        These are the processes in its cgroup, if that is its own (a shared one may hold the whole
        machine's), and the descendants of its init that are in no other container's own cgroup:
        where containers share a pid namespace, the init of one becomes the parent of the other's
        orphans. `outside_own_cgroup` leaves out those in its own.
        """
        family = self._family(member)
        if family and not outside_own_cgroup:
            return family | self.find_pids_in_own_cgroup(member)
        is_shared = member.cgroup not in self._own
        return {
            pid
            for pid in family
            if is_shared or _innermost(self.by_pid[pid].cgroups, self._own) != member.cgroup
        }

    def find_pids_in_own_cgroup(self, member: Member) -> set[int]:
        """Return the pids in a container's own cgroup, also those that outlived its init;
        none if it shares one.
        """
        cgroup = member.cgroup or ""
        # A shared one may hold all of the node's cgroups, and each member would visit them.
        if cgroup not in self._own:
            return set()
        inside = (places for place in self._below.get(cgroup, ()) for places in self.cgroups[place])
        return {
            pid
            for places in inside
            if _innermost(places, self._own) == cgroup
            for pid in self._in[places]
        }

    def read_threads_in_own_cgroup(self, member: Member) -> Reading | None:
        """Read which threads are in a container's own cgroup now.

        Return None if it shares one, or it is not found.
        """
        cgroup = member.cgroup or ""
        return read_threads(cgroup, self._own.__contains__) if cgroup in self._own else None

    def list_threads(self, pids: Iterable[int]) -> set[int]:
        """Return all thread IDs of these processes.

        Reads /proc for those that had several threads at the look.
        """
        return {tid for pid in pids for tid in _list_threads(self.by_pid[pid])}

    def reread_threads(self, member: Member, *, outside_own_cgroup: bool = False) -> set[int]:
        """Return the present threads of a container's processes in this look, and of its init.

        Reads these processes only: what has begun since, by a fork or by `exec`, is in the next
        look. `outside_own_cgroup`: only processes that were not in the container's own cgroup.
        """
        pids = self.find_pids(member, outside_own_cgroup=outside_own_cgroup)
        born = {pid: self.by_pid[pid].starttime for pid in pids}
        if not outside_own_cgroup:
            born[member.pid] = member.starttime
        now = filter(None, (system.try_call(look_at, pid, self._parse) for pid in born))
        ours = [
            process
            for process in now
            if process.starttime == born[process.pid] and self._holds(member, process)
        ]
        return {tid for process in ours for tid in _list_threads(process)}

    def list_unknown(self) -> list[str]:
        """List the cgroups below a container's that are called as another one's,
        and have a process in no group.
        """
        nested = [
            (place, pids)
            for places, pids in self._in.items()
            for place in places
            if place.startswith(_NESTED)
        ]
        return [
            place.partition(":")[2] for place, pids in nested if None in map(self._name_group, pids)
        ]

    def is_newer(self, tid: int) -> bool:
        """Whether a task started after this look,
        which therefore cannot say which container's it is.
        """
        fields = system.stat_fields(tid)
        return fields is not None and int(fields[19]) > (self.boottime * system.TICKS) - 1

    def sum_cpu_time(self, pid: int, inside: Collection[int]) -> float:
        """Return the CPU seconds of a process and of what descends from it,
        without those `inside` a group of its key.

        Children that have ended count, if they were waited for: proc_pid_stat(5), fields 14 to 17.
        """
        family = [pid]
        for parent in family:  # it grows
            family += self._children.get(parent, ())
        shown = (system.stat_fields(each) for each in {*family} - {*inside})
        return (
            sum(int(ticks) for fields in shown if fields is not None for ticks in fields[11:15])
            / system.TICKS
        )

    def _family(self, member: Member) -> set[int]:
        """Return a container's init and its descendants,
        but neither other inits' nor those in another's own cgroup.

        There are none if its init is dead.
        """
        family = [member.pid] if self.is_alive(member) else []
        for parent in family:  # it grows
            family += [
                pid
                for pid in self._children.get(parent, ())
                if pid not in self._inits and pid != member.pid
            ]
        return {pid for pid in family if self._holds(member, self.by_pid[pid])}

    def _holds(self, member: Member, process: Process) -> bool:
        """Whether no other container's own cgroup holds a process, nor, if it is in none,
        the group of another key.

        A container's own init always counts as its. A container that shares a cgroup and was
        started by a job has been in the job's group.
        """
        if process.pid == member.pid:
            return True
        cgroup = _innermost(process.cgroups, self._own)
        if cgroup is not None:
            return cgroup == member.cgroup
        return self._name_group(process.pid) in (
            None,
            member.group.rpartition("/")[2],
            member.taken_from,
        )


def _innermost(places: Iterable[str], known: Collection[str]) -> str | None:
    """Return the first known cgroup on the way from each of these places to its root, or None."""
    return next(
        (cgroup for place in places for cgroup in _outwards(place) if cgroup in known), None
    )


def _outwards(place: str) -> Iterator[str]:
    """Yield a cgroup and all its ancestors, the nearest first."""
    while "/" in place:
        yield place
        place = place.rpartition("/")[0]


def name_job_process(pid: int, starttime: int) -> str:
    """Return the name of a process as a member of a job,
    which is also the key of a job without a name.
    """
    return f"{_JOB}{pid}-{starttime}"


def parse_job_process(name: str) -> tuple[int, int] | None:
    """Return the pid and the start time in the name of a job's member; None: it is another name."""
    pid, _, starttime = name.removeprefix(_JOB).partition("-")
    is_ours = name.isascii() and pid.isdecimal() and starttime.isdecimal()
    return (
        (int(pid), int(starttime))
        if is_ours and name == name_job_process(int(pid), int(starttime))
        else None
    )


def describe_tasks(tids: Iterable[int] | None) -> str:
    """Name the first few live processes of these tasks, each with its cgroup, for people;
    empty if none is alive.
    """
    pids = {
        (system.try_call(read_status, tid, "Tgid") or tid)
        for tid in tids or ()
        if not system.is_dead(tid)
    }
    lines = []
    for pid in sorted(pids):
        places = system.cgroups(pid)
        place = next(
            (place for place in places if place.startswith(":")), (places or [""])[0]
        ).partition(":")[2]
        lines.append(f"process {pid}" + (f" in {printable(place)}" if place else ""))
    more = [f"and {len(lines) - _MOST_NAMED} more"] if len(lines) > _MOST_NAMED else []
    return ", ".join(lines[:_MOST_NAMED] + more)


def cpu_seconds(tid: int) -> float:
    """Return the CPU time of a thread, user and system, or 0 if it is gone:
    proc_pid_stat(5), fields 14 and 15.
    """
    fields = system.stat_fields(f"{tid}/task/{tid}")
    return (int(fields[11]) + int(fields[12])) / system.TICKS if fields is not None else 0.0


def check_namespaces() -> None:
    """Raise HookError in a pid or cgroup namespace that hides processes,
    or which container a process is in.
    """
    if not system.is_directory("/proc/self"):
        raise HookError(
            Reason.IO,
            "/proc is not mounted: no process can be looked at",
            hint="mount -t proc proc /proc",
        )
    if not host.in_host_namespaces():
        raise HookError(Reason.DENIED, host.NOT_HOST_NAMESPACES, hint=host.NAMESPACES_HINT)
    if any("/../" in place + "/" for place in system.cgroups(1)):  # cgroup_namespaces(7)
        problem = (
            "running in a private cgroup namespace, where processes cannot be matched to containers"
        )
        hint = "run it in the host's cgroup namespace (nsenter -t 1 -C; podman run --cgroupns=host)"
        raise HookError(Reason.DENIED, problem, hint=hint)


def look(
    own_cgroups: Iterable[str] = (),
    around: Collection[int] | None = None,
    name_group: Callable[[int], str | None] = lambda _pid: None,
) -> Processes:
    """Read all processes once, or those `around` these: they, what they descend from,
    and what descends from them.

    A process in one of `own_cgroups`, which are containers', is not in the container's above it.
    `name_group` is as in Processes.
    """
    nested = sorted(
        (place for place in own_cgroups if cut_below_container(place) != place),
        key=len,
        reverse=True,
    )
    boottime, unread = system.boottime(), 0
    by_pid: dict[int, Process] = {}
    parse = make_parser(nested)
    pids = _list_relatives(around) if around is not None else None
    for pid in (
        map(int, filter(str.isdigit, system.list_directory("/proc"))) if pids is None else pids
    ):
        try:
            if process := look_at(pid, parse):
                by_pid[pid] = process
        except OSError:
            unread += 1
    return Processes(by_pid, boottime, nested, unread, name_group)


def _list_relatives(pids: Iterable[int]) -> set[int] | None:
    """List processes, all that they descend from, and all that descends from them.

    None: the kernel lists no children (CONFIG_PROC_CHILDREN). A child that another one's end hides
    at that moment may be left out: proc_pid_task(5) promises no more.
    """
    if system.try_call(system.inode, "/proc/thread-self/children") is None:
        return None
    related = {*pids}
    family, ancestors = [*related], [*related]
    for pid in family:  # it grows
        for tid in list_threads(pid):
            text = (
                system.try_call(rare.read_records, f"/proc/{pid}/task/{tid}/children", _MOST_BYTES)
                or ""
            )
            family += {*map(int, text.split())} - related
            related.update(family)
    for pid in ancestors:  # as well
        fields = system.stat_fields(pid)
        if fields is not None and (parent := int(fields[1])) not in (0, *ancestors):
            ancestors.append(parent)
    return related.union(ancestors)


def look_at(pid: int, parse: Parser | None = None) -> Process | None:
    """Read a process. Return None if it is not alive. Raises OSError if it cannot be read."""
    try:
        # The kernel gives it whole.
        fields = system.read_counter(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if system.is_over(fields):
            return None
        cgroups = _read_cgroups(pid, parse or make_parser())
        return Process(pid, int(fields[1]), int(fields[19]), cgroups, int(fields[17]))
    except (FileNotFoundError, ProcessLookupError, ValueError, IndexError):
        return None


def _read_cgroups(pid: int, parse: Parser) -> tuple[str, ...]:
    """Read a process's cgroups.

    A kernel refuses a path longer than PATH_MAX (ENAMETOOLONG), or cuts it.
    """
    try:
        return parse(system.read_file(f"/proc/{pid}/cgroup"))
    except (FileNotFoundError, ProcessLookupError):
        raise
    except OSError:
        return UNKNOWN


def make_parser(nested: Collection[str] = ()) -> Parser:
    """Make a function that parses the text of a /proc/PID/cgroup.

    It cuts each cgroup below a container's own, so that what a container makes there costs nothing.
    What is called as another container's there, and is none in `nested`, is not below a container's
    own any more. It parses each text and each cgroup once, since most processes share them with
    others.
    """

    @cache
    def cut(place: str) -> str:
        """Cut a cgroup below a container's own;
        of another container's there the last two components are kept.
        """
        own_cgroup = next(
            (inner for inner in nested if is_within(place, inner)), None
        ) or cut_below_container(place)
        marked = identity.find_marked(place[len(own_cgroup) :]) if own_cgroup != place else ()
        below = marked[-1][0].rsplit("/", 2)[1:] if marked else ()
        return "/".join([_NESTED + own_cgroup.partition(":")[2], *below]) if below else own_cgroup

    @cache
    def parse(text: str) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(cut(line.partition(":")[2]) for line in text.split("\n") if line)
        )

    return parse


def _list_threads(process: Process) -> set[int]:
    """Return the threads of a process.

    Reads /proc only if it had several threads, and finds none if it is gone.
    """
    return {process.pid} if process.threads == 1 else list_threads(process.pid)


def read_status(tid: int | str, name: str, base: int = 10) -> int:
    """Return a number of a thread's /proc/PID/status,
    or 0 if the thread is gone: proc_pid_status(5).
    """
    status = system.try_call(system.read_file, f"/proc/{tid}/status") or ""
    return int(status.partition(f"\n{name}:")[2].partition("\n")[0] or "0", base)


def list_threads(pid: int) -> set[int]:
    """Read the thread IDs of a process, its pid among them; none if it is gone. Raises OSError."""
    try:
        return set(map(int, system.list_directory(f"/proc/{pid}/task")))
    except (FileNotFoundError, ProcessLookupError):
        return set()


# --- The threads in a container's own cgroup, as the cgroup file system lists them
#
# A look at /proc reads one process after another, and can miss a program that forks and exits again
# and again. The cgroup's list has every thread that is in it at the time of the read.


class Reading(NamedTuple):
    """The threads of a container's cgroups."""

    tids: set[int]
    unread: int
    """At least so many of its cgroups were not read."""


def read_threads(cgroup: str, is_other: Callable[[str], bool]) -> Reading | None:
    """Read the threads in a cgroup and in those below it.

    Return None if host.cgroup_directory does not find it.

    What is another container's below it is left out: by a runtime's mark, or as `is_other` tells. A
    cgroup that vanishes during the reading may have moved its threads to one that was read before.
    So all are read again; if that does not help, it is unread.
    """
    reading = None
    for _ in range(_READINGS):
        try:
            top = host.cgroup_directory(cgroup)
        except OSError:
            return Reading(set(), 1)
        if top is None:
            return None
        reading, has_vanished = _read_once(cgroup, top, is_other)
        if not has_vanished:
            break
    return reading


def _read_once(cgroup: str, top: str, is_other: Callable[[str], bool]) -> tuple[Reading, bool]:
    """Return one reading, and whether a cgroup vanished during it.

    Each cgroup is opened from the one above it: a container can nest them until the path is longer
    than PATH_MAX. Source: cgroups(7); cgroup v2 has `cgroup.threads`, also where threads of one
    process are in several cgroups, v1 has `tasks`.
    """
    file = "cgroup.threads" if cgroup.startswith(":") else "tasks"
    tids: set[int] = set()
    refused: list[OSError] = []
    known, more = 1, 0  # the cgroups that are read, and those that are too many
    opened: list[int] = []
    # The name of each, its path, and from where.
    waiting: list[tuple[str, str, int | None]] = [(cgroup, top, None)]
    try:
        for place, path, above in waiting:  # it grows: each cgroup appends what is in it
            try:
                directory = system.open_directory(path, above)
                opened.append(directory)
                tids.update(map(int, rare.read_records(file, _MOST_BYTES, directory).split()))
                # As many as a directory has links beyond its own two.
                children = system.count_links(directory) - 2
                names = (
                    system.list_directory(".", directory)
                    if 0 < children <= _MOST_CGROUPS - known
                    else []
                )
            except NotADirectoryError:
                continue
            except OSError as error:
                refused.append(error)
                continue
            if names:
                known += children
            else:
                more += children
            below = ((f"{place}/{name}", name, directory) for name in names)
            waiting += [
                child
                for child in below
                if is_in_container(child[0], cgroup) and not is_other(child[0])
            ]
    finally:
        for directory in opened:
            system.close(directory)
    return Reading(tids, len(refused) + more), any(map(system.is_gone, refused))


# --- The resctrl group that a task is in, also on a kernel without /proc/PID/cpu_resctrl_groups
#
# There the `tasks` of all groups are read, once for all tasks.


class Groups:
    """The groups of a node.

    A mon_group is ours if its name has our `prefix`, or if its path is on record; any other one is
    another tool's. `list_recorded` lists the paths on record, and is called only if a mon_group has
    another prefix. A group that cannot be read raises HookError or OSError: a task in it would look
    as if it were in no group.
    """

    def __init__(
        self, kernel: resctrl.Resctrl, prefix: str, list_recorded: Callable[[], Collection[str]]
    ) -> None:
        self._kernel = kernel
        self._prefix = prefix
        self._list_recorded = cache(list_recorded)

    def find(self, tid: int) -> str | None:
        """Return the path of the mon_group that a task is in, or else of its ctrl_group.

        Return None if it has ended.

        Where the kernel does not show it, all `tasks` are read at the first call:
        a task that has begun since is unknown (None).
        """
        groups = system.resctrl_groups(tid)
        if groups is not None:
            return self._kernel.path(*groups).removesuffix("/mon_groups/")
        return None if self._shows_groups else self._places.get(tid)

    def name_ours(self, tid: int) -> str | None:
        """Return the name of the mon_group of ours that a task is in, or None if it is in none."""
        path = self.find(tid) or ""
        return (
            path.rpartition("/")[2] if "/mon_groups/" in path and not self.is_others(path) else None
        )

    def is_others(self, path: str) -> bool:
        """Whether a group is another tool's mon_group."""
        above, _, name = path.rpartition("/")
        is_free = not above.endswith("/mon_groups") or name.startswith(self._prefix)
        return not is_free and path not in self._list_recorded()

    def name_ctrl_group(self, path: str) -> str:
        """Return the name of the ctrl_group that a group is, or is in, as the kernel shows it:
        `/` for the root one.
        """
        return find_ctrl_group(path)[len(self._kernel.root) + 1 :] or "/"

    def read_others(self) -> dict[int, str]:
        """Return the tasks that are in mon_groups of other tools now,
        each with the path of its group.
        """
        others = filter(self.is_others, inventory.list_mon_groups(self._kernel.root))
        return {tid: path for path in others for tid in self._read(path)}

    @cached_property
    def _shows_groups(self) -> bool:
        return system.resctrl_groups("self") is not None

    @cached_property
    def _places(self) -> dict[int, str]:
        """The group of each task.

        A ctrl_group lists the tasks of its mon_groups, too, so these come last.
        """
        listed = inventory.list_ctrl_groups(self._kernel.root)
        paths = [*listed, *(path for below in listed.values() for path in below)]
        return {tid: path for path in paths for tid in self._read(path)}

    def _read(self, path: str) -> set[int]:
        try:
            return self._kernel.tasks(path) or set()
        except OSError as error:
            raise as_hook_error(f"cannot read which tasks are in {path}", error) from error


def find_ctrl_group(path: str) -> str:
    """Return the path of the ctrl_group that a group is, or is in."""
    above, _, name = path.rpartition("/mon_groups/")
    return above or name


# --- The container that a cgroup belongs to, by the cgroup's path. Pods and runtimes are found in
# `identity`.
#
# A cgroup is written `<controllers>:<path>`, as in /proc/PID/cgroup (no controllers: cgroup v2; see
# system.cgroups). Source: cgroups(7), and the names that kubelet, CRI-O, Podman and containerd give
# (`crio-ID.scope`, `pod<UID>`, ...).


def find_own_cgroup(container: str, member: Member) -> str | None:
    """Return the cgroup of a member if its runtime made that for this container,
    or None if others may share it.
    """
    return member.cgroup if names.find_own(member.cgroup or "", container) is not None else None


def possible_ids(cgroup: str) -> list[str]:
    """Return container IDs whose own cgroup this may be, or be below,
    those of the outermost component first.

    A container can name the components below its own as it likes, so only some of these IDs are
    right, and their number is limited: no name below can keep a caller from one above it. Of a
    component these are the whole name, what follows one of its first separators, as the mark of any
    runtime ends with one, and what follows its last.
    """
    ids: list[str] = []
    for name in _names(cgroup):
        at = [place for place, character in enumerate(name) if character in "-:"]
        ids += [
            name,
            *(name[place + 1 :] for place in dict.fromkeys([*at[:_MOST_SEPARATORS], *at[-1:]])),
        ]
        if len(ids) >= _MOST_IDS:
            break
    return ids[:_MOST_IDS]


def find_container(cgroup: str, known: Collection[str] = ()) -> str | None:
    """Return the container that a cgroup belongs to: the first component of its path,
    from the root, that names one.

    It is a `known` container, or looks like a container ID: 64 hex digits,
    by which Podman or a runtime of Kubernetes named its cgroup.

    A container with a writable cgroup can name the cgroups below its own after another container.
    """
    names = _names(cgroup)
    for above, name, below in zip(["", *names], names, [*names[1:], ""]):
        starts = (
            [0, *(at + 1 for at, character in enumerate(name) if character in "-:")]
            if known
            else []
        )
        for at in starts:
            if name[at:] in known:
                return name[at:]
        last = name[-ID_LENGTH:]
        if is_engine_id(last) and not _is_podmans_pod(above, name, below):
            return last
    return None


def cut_below_container(cgroup: str) -> str:
    """Return the container's own cgroup for one below it,
    since a container can make any number of those.
    """
    # Most: other hierarchies' roots.
    container = find_container(cgroup) if len(cgroup) > ID_LENGTH else None
    return (names.find_own(cgroup, container) if container is not None else None) or cgroup


def list_requested(config: Config | None) -> list[str]:
    """List the cgroup that `linux.cgroupsPath` of a bundle's config.json asks for, or none:
    the runtime chooses.

    The path is absolute, or `SLICE:MARK:ID` for systemd; the result then lacks the slices above
    SLICE. Source: runtime-spec, config-linux.md "Cgroups Path"; runc, docs/systemd.md.
    """
    path = (
        config.linux.cgroups_path if config is not None and config.linux is not None else None
    ) or ""
    if path.count(":") == 2 and not path.startswith("/"):
        above, mark, name = path.split(":")
        return [f":/{above}/{mark}-{name}.scope"]
    return [f":/{path.strip('/')}"] if path.startswith("/") else []


def is_within(cgroup: str, outer: str) -> bool:
    """Whether a cgroup is `outer` or below it."""
    return cgroup == outer or cgroup.startswith(outer + "/")


def is_in_container(cgroup: str, own_cgroup: str) -> bool:
    """Whether a cgroup is a container's own or below it,
    and no component below that has a runtime's mark.

    The innermost mark says whose processes these are, also if the container itself has made it.
    """
    return is_within(cgroup, own_cgroup) and not identity.find_marked(cgroup[len(own_cgroup) :])


def _is_podmans_pod(above: str, name: str, below: str) -> bool:
    """Whether a component is the cgroup of a pod of Podman's,
    which its cgroupfs driver names by the pod's bare ID.

    The pod's containers are `libpod-ID` in it. containerd names containers by bare IDs, too,
    but inside `pod<UID>`.
    """
    is_of_podman = above == "libpod_parent" or (
        below.startswith("libpod-") and not above.startswith("pod")
    )
    return is_of_podman and len(name) == ID_LENGTH


def _names(cgroup: str) -> list[str]:
    """The components of a cgroup's path, without systemd's `.scope`."""
    components = cgroup.partition(":")[2].split("/")
    return [name[: -len(".scope")] if name.endswith(".scope") else name for name in components]
