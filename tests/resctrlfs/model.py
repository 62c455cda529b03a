# SPDX-License-Identifier: Apache-2.0
"""resctrl as Linux 7.2 behaves, as a model without FUSE, threads or processes.

Source: the kernel's Documentation/filesystems/resctrl.rst and the behaviour of
fs/resctrl/rdtgroup.c, whose texts `info/last_cmd_status` quotes. Errors are OSError with the errno
that the system call would give. Paths are relative to the mount, with or without a leading slash.

As in the kernel, a task does not know its group: it has a CLOSID and an RMID, and is in whichever
group has the same. That is why a stale RMID turns up in a later group, and why a ctrl_group's
`tasks` lists its mon_groups' tasks too.

Proven equal to the kernel in tests/kernel.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import signal
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NoReturn

from tests.resctrlfs.hardware import L3_EVENTS, MS, Counters, Rmids, as_value
from tests.resctrlfs.tasks import Task, Tasks

STATUS_SIZE = 512
WRITABLE = ("cpus", "cpus_list", "tasks", "schemata", "mode")
INFO = {
    "info/L3": (
        "bit_usage",
        "cbm_mask",
        "min_cbm_bits",
        "num_closids",
        "shareable_bits",
        "sparse_masks",
    ),
    "info/L3_MON": ("max_threshold_occupancy", "mbm_assign_mode", "mon_features", "num_rmids"),
    "info/MB": (
        "bandwidth_gran",
        "delay_linear",
        "min_bandwidth",
        "num_closids",
        "thread_throttle_mode",
    ),
    "info/PERF_PKG_MON": ("mon_features", "num_rmids"),
}


@dataclass
class Knobs:
    """What a machine is like, and what it does wrong."""

    rmids: int = 32
    """info/L3_MON/num_rmids: the root group has one of them."""
    aet_rmids: int = 576
    """info/PERF_PKG_MON/num_rmids; the smaller of the two limits."""
    closids: int = 8
    """The root group has one of them."""
    l3_domains: int = 2
    packages: int = 2
    busy_packages: int = 1
    """On how many packages, the first ones, the tasks of a group run.

    The others have no data of it: see `counters`.
    """
    occupancy: bool = True
    """llc_occupancy.

    Without it (`rdt=!cmt` on the kernel command line) there is no limbo: say decay_ms=0, too.
    """
    perf: bool = True
    """The packages' seven perf events (`rdt=perf` on the kernel command line)."""
    decay_ms: int = 1000
    limbo_tick_ms: int = 1000
    counters: str = "normal"
    """As the mode of tests.resctrlfs.hardware.Counters."""
    debug: bool = False
    ticking: bool = False
    """Each read of a counter has it grow by 1: for a cluster, where no test moves counters."""
    look_ms: int = 0
    """How long a look at all tasks counts.

    Not 0 where there are thousands of them and a look takes seconds:
    what was forked since is not known then, nor what died.
    """
    names_ms: int = 0
    """For how long the kernel keeps what it has learnt of a name.

    0 where the control socket mounts, or has domains come and go.
    """


@dataclass
class Injection:
    """Fail `op` on paths that end in `path` with `errno`, `times` times (-1: always).

    0: it succeeds, but the file system does not answer before it gets SIGCONT.
    `status` is then last_cmd_status.
    """

    op: str
    path: str
    errno: int
    times: int = 1
    status: str = ""

    def strikes(self, op: str, path: str) -> bool:
        if self.op != op or not path.endswith(self.path) or self.times == 0:
            return False
        self.times -= 1 if self.times > 0 else 0
        return True


@dataclass(eq=False)
class Group:
    """A ctrl_group (parent is None) or a mon_group. Its identity outlives its name."""

    name: str
    parent: Group | None
    closid: int
    rmid: int
    mode: int
    serial: int = field(default_factory=itertools.count(1).__next__)
    children: dict[str, Group] = field(default_factory=dict)
    removed: bool = False

    @property
    def is_ctrl(self) -> bool:
        return self.parent is None

    @property
    def path(self) -> str:
        if self.parent is not None:
            return f"{self.parent.path}mon_groups/{self.name}/"
        return f"/{self.name}/" if self.name else "/"


@dataclass(frozen=True)
class ModelFile:
    """A file or directory: `rel` is its path inside the group's directory ("" for that itself)."""

    group: Group
    rel: str
    is_dir: bool

    @property
    def base(self) -> str:
        return self.rel.rpartition("/")[2]

    @property
    def path(self) -> str:
        return (self.group.path + self.rel).rstrip("/") or "/"


@dataclass(frozen=True)
class Attr:
    mode: int
    nlink: int
    ino: int


@dataclass
class TaskState:
    starttime: int
    closid: int = 0
    rmid: int = 0


@functools.lru_cache
def _list_names_of_group(is_ctrl: bool, is_root: bool, debug: bool) -> dict[str, bool]:
    names = dict.fromkeys(["cpus", "cpus_list", "tasks"], False)
    if is_ctrl:
        names.update(dict.fromkeys(["mode", "schemata", "size"], False))
    if debug:
        names.update({"ctrl_hw_id": False} if is_ctrl else {})
        names["mon_hw_id"] = False
    names.update({"mon_data": True} | ({"mon_groups": True} if is_ctrl else {}))
    if is_root:
        names["info"] = True
    return names


def fail(number: int) -> NoReturn:
    raise OSError(number, os.strerror(number))


class ResctrlModel:
    """One machine with one mount of resctrl."""

    def __init__(
        self, knobs: Knobs, tasks: Tasks | None = None, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """`tasks`: those of this machine if nothing else is said. `clock`: in nanoseconds."""
        self.knobs = knobs
        self.tasks = tasks if tasks is not None else Tasks()
        l3_events = L3_EVENTS[0 if knobs.occupancy else 1 :]
        self.counters = Counters(knobs.l3_domains, knobs.packages, knobs.perf, l3_events)
        self.counters.mode = knobs.counters
        limits = [knobs.rmids] * bool(knobs.l3_domains) + [knobs.aet_rmids] * bool(knobs.packages)
        self.rmids = Rmids(min(limits), knobs.decay_ms, knobs.limbo_tick_ms, clock)
        self.injections: list[Injection] = []
        self.status = ""
        self.mounted = True
        self._states: dict[int, TaskState] = {}
        self._next_look = 0
        self._set_up()

    # ---- the machine ----

    def _set_up(self) -> None:
        self.mounted_at = time.time_ns()
        self.root = Group("", None, 0, 0, 0o555)
        self.ctrl: dict[str, Group] = {}
        self._inodes: dict[tuple[int, str], int] = {}  # each mount begins with the same ones

    def set_knobs(self, counters: str = "", decay_ms: int | None = None) -> None:
        """Change what can change while the machine runs."""
        if counters:
            self.counters.mode = counters
        if decay_ms is not None:
            self.rmids.decay_ms = decay_ms

    def unmount(self) -> None:
        """umount(8): every group is destroyed, every task falls back to the
        default, RMIDs go to limbo.
        """
        for ctrl in [*reversed(self.ctrl.values()), self.root]:
            for child in [*ctrl.children.values()]:
                self._free_mon(child)
            ctrl.removed = True
            if ctrl is not self.root:
                self.rmids.release(ctrl.rmid)
        self._states.clear()
        self._next_look = 0
        self.mounted = False

    def mount(self) -> None:
        if not self.mounted:
            self._set_up()
            self.mounted = True

    def groups(self) -> list[Group]:
        """Every live group, root first; a ctrl_group before its mon_groups."""
        return [
            g for ctrl in [self.root, *self.ctrl.values()] for g in [ctrl, *ctrl.children.values()]
        ]

    # ---- names ----

    def resolve(self, path: str) -> ModelFile:
        """Errors: ENOENT, ENOTDIR."""
        node = ModelFile(self.root, "", True)
        for name in filter(None, path.split("/")):
            if not node.is_dir:
                fail(errno.ENOTDIR)
            child = self._child(node, name)
            if child is None:
                fail(errno.ENOENT)
            node = child
        return node

    def _child(self, node: ModelFile, name: str) -> ModelFile | None:
        if not self.mounted:
            return None
        group = self._groups_in(node).get(name)
        if group is not None:
            return ModelFile(group, "", True)
        is_dir = self._static(node).get(name)
        return (
            None
            if is_dir is None
            else ModelFile(node.group, f"{node.rel}/{name}".lstrip("/"), is_dir)
        )

    def _static(self, node: ModelFile) -> dict[str, bool]:
        """The names that come with a directory, and whether each is one itself."""
        if node.rel == "":
            return _list_names_of_group(
                node.group.is_ctrl, node.group is self.root, self.knobs.debug
            )
        if node.rel == "mon_data":
            return dict.fromkeys(self.counters.domains, True)
        if node.rel.startswith("mon_data/"):
            return dict.fromkeys(self.counters.domains[node.base], False)
        return self._static_of_info(node.rel)

    def _static_of_info(self, rel: str) -> dict[str, bool]:
        l3, packages = self.knobs.l3_domains > 0, self.knobs.packages > 0
        if rel == "info":
            present = {"L3": True, "L3_MON": l3, "MB": True, "PERF_PKG_MON": packages}
            return {"last_cmd_status": False} | {
                name: True for name, there in present.items() if there
            }
        return dict.fromkeys(INFO.get(rel, ()), False)

    def entries(self, node: ModelFile) -> dict[str, ModelFile]:
        """What is in a directory, in order of names; nothing in one that was removed.

        Errors: ENOTDIR.
        """
        self._inject("listdir", node.path)
        if not node.is_dir:
            fail(errno.ENOTDIR)
        children = {name: self._child(node, name) for name in self.list_names(node)}
        return {name: below for name, below in children.items() if below is not None}

    def list_names(self, node: ModelFile) -> list[str]:
        """The names in a directory, in order."""
        if node.group.removed or not self.mounted:
            return []
        return sorted([*self._static(node), *self._groups_in(node)])

    def _groups_in(self, node: ModelFile) -> dict[str, Group]:
        if node.rel == "mon_groups":
            return node.group.children
        return self.ctrl if node.group is self.root and node.rel == "" else {}

    def getattr(self, path: str) -> Attr:
        self._inject("getattr", path)
        return self.attr(self.resolve(path))

    def attr(self, node: ModelFile) -> Attr:
        """Of a node that was resolved earlier: works on removed groups too, as fstat(2) does."""
        inode = self.identify(node)
        if not node.is_dir:
            return Attr(stat.S_IFREG | (0o644 if node.rel in WRITABLE else 0o444), 1, inode)
        below = sum(self._static(node).values()) if self.mounted else 0
        return Attr(stat.S_IFDIR | node.group.mode, 2 + below + len(self._groups_in(node)), inode)

    def identify(self, node: ModelFile) -> int:
        """Its inode."""
        return self._inodes.setdefault((node.group.serial, node.rel), len(self._inodes) + 1)

    # ---- groups ----

    def mkdir(self, path: str, mode: int) -> None:
        """`mode` after the umask.

        Errors: as in rdtgroup_mkdir(), and those of the VFS before it.
        """
        self._inject("mkdir", path)
        parent, name = self._parent(path)
        if self._child(parent, name) is not None:
            fail(errno.EEXIST)
        if not self.mounted:
            fail(errno.ENOENT)
        if "\n" in name:
            fail(errno.EINVAL)
        if parent.group is self.root and parent.rel == "":
            self.status = ""
            self.ctrl[name] = self._new_ctrl(name, mode)
        else:
            self._mkdir_mon(parent, name, mode)

    def _mkdir_mon(self, parent: ModelFile, name: str, mode: int) -> None:
        if parent.rel.startswith("info"):
            fail(errno.ENODEV)
        self.status = ""
        # By the name of the directory alone, as the kernel does
        if (parent.base or parent.group.name) != "mon_groups" or name == "mon_groups":
            fail(errno.EPERM)
        rmid = self._take_rmid()
        parent.group.children[name] = Group(name, parent.group, parent.group.closid, rmid, mode)

    def _new_ctrl(self, name: str, mode: int) -> Group:
        used = {0, *(group.closid for group in self.ctrl.values())}
        unused = [n for n in range(self.knobs.closids) if n not in used]
        if not unused:
            self.status = "Out of CLOSIDs\n"
            fail(errno.ENOSPC)
        return Group(name, None, unused[0], self._take_rmid(), mode)

    def _take_rmid(self) -> int:
        try:
            rmid = self.rmids.take()
        except OSError as error:
            self.status = "Out of RMIDs\n"
            fail(error.errno or errno.EIO)
        self.counters.adopt(rmid)
        return rmid

    def rmdir(self, path: str) -> None:
        """Errors: ENOENT, ENOTDIR, EPERM, EBUSY (the mount point itself)."""
        self._inject("rmdir", path)
        node = self.resolve(path)
        if not node.is_dir:
            fail(errno.ENOTDIR)
        if node.group is self.root and node.rel == "":
            fail(errno.EBUSY)
        if node.rel != "":
            fail(errno.EPERM)
        self._refresh()
        if node.group.parent is not None:
            self._move_all(node.group, node.group.parent)
            self._free_mon(node.group)
            return
        self._remove_ctrl(node.group)

    def _free_mon(self, group: Group) -> None:
        assert group.parent is not None
        group.removed = True
        del group.parent.children[group.name]
        self.rmids.release(group.rmid)

    def _remove_ctrl(self, group: Group) -> None:
        self._move_all(group, self.root)
        group.removed = True
        del self.ctrl[group.name]
        self.rmids.release(group.rmid)
        for child in [*group.children.values()]:
            self._free_mon(child)

    def unlink(self, path: str) -> None:
        """Errors: always one; the VFS itself refuses a directory."""
        self._inject("unlink", path)
        fail(errno.EPERM)

    def _parent(self, path: str) -> tuple[ModelFile, str]:
        above, _, name = path.rstrip("/").rpartition("/")
        node = self.resolve(above)
        if not node.is_dir:
            fail(errno.ENOTDIR)
        return node, name

    # ---- files ----

    def open(self, path: str, flags: int = os.O_RDONLY) -> ModelFile:
        """Errors: ENOENT; EACCES for writing a read-only file (root passes
        the VFS, but not kernfs).
        """
        self._inject("open", path)
        node = self.resolve(path)
        if flags & os.O_ACCMODE != os.O_RDONLY:
            if node.is_dir:
                fail(errno.EISDIR)
            if not self.attr(node).mode & 0o222:
                fail(errno.EACCES)
        return node

    def read_node(self, node: ModelFile, reader: int = 0) -> str:
        """`reader`: the tid that reads; 0: one in our pid namespace.

        Errors: ENODEV when the group has gone.
        """
        self._inject("read", node.path)
        if node.group.removed:
            fail(errno.ENODEV)
        if node.is_dir:
            fail(errno.EISDIR)
        if node.rel == "tasks":
            return self._tasks_text(node.group, reader)
        if node.rel.startswith("mon_data/"):
            rmids = [node.group.rmid, *(child.rmid for child in node.group.children.values())]
            domain = node.rel.split("/")[1]
            if self.knobs.ticking and node.base != "llc_occupancy":
                self.counters.add(node.group.rmid, domain, node.base, Decimal(1))
            return self.counters.text(rmids, domain, node.base)
        return self._text(node)

    def _text(self, node: ModelFile) -> str:
        """Empty for what is there to be listed only."""
        texts = {
            "ctrl_hw_id": f"{node.group.closid}\n",
            "mon_hw_id": f"{node.group.rmid}\n",
            "info/last_cmd_status": self.status[: STATUS_SIZE - 1] or "ok\n",
            "info/L3/num_closids": f"{self.knobs.closids}\n",
            "info/MB/num_closids": f"{self.knobs.closids}\n",
            "info/L3_MON/num_rmids": f"{self.knobs.rmids}\n",
            "info/L3_MON/mbm_assign_mode": "[default]\n",
            "info/L3_MON/mon_features": "".join(f"{event}\n" for event in self.counters.l3_events),
            "info/PERF_PKG_MON/num_rmids": f"{self.knobs.aet_rmids}\n",
            "info/PERF_PKG_MON/mon_features": "".join(
                f"{event}\n" for event in self.counters.package_events
            ),
        }
        return texts.get(node.rel, "")

    def write_node(self, node: ModelFile, data: bytes, writer: int) -> int:
        """One write(2) by the tid `writer`. Errors: ENODEV when the group has gone, the file's."""
        self._inject("write", node.path)
        if node.group.removed:
            fail(errno.ENODEV)
        if node.rel == "tasks":
            self._write_tasks(node.group, data, writer)
        else:
            self.status = ""  # the others are taken, and change nothing
        return len(data)

    def _inject(self, op: str, path: str) -> None:
        for injection in self.injections:
            if injection.strikes(op, path):
                if injection.errno:
                    self.status = injection.status
                    fail(injection.errno)
                os.kill(os.getpid(), signal.SIGSTOP)

    # ---- tasks ----

    def _write_tasks(self, group: Group, data: bytes, writer: int) -> None:
        """One number, as all of the project's programs write it."""
        self.status = ""
        number = int(data)
        try:
            self._move(group, number, writer)
        except OSError:
            self.status += f"Error while processing task {number}\n"
            raise

    def _move(self, group: Group, number: int, writer: int) -> None:
        self._refresh()
        tid = self.tasks.resolve(writer, number) if number else writer
        if tid is not None and tid not in self._states:
            self._next_look = 0
            self._refresh()  # it was born since
        if tid is None or tid not in self._states:
            self.status = f"No task {number}\n"
            fail(errno.ESRCH)
        state = self._states[tid]
        if group.parent is not None and state.closid != group.parent.closid:
            self.status = "Can't move task to different control group\n"
            fail(errno.EINVAL)
        state.closid, state.rmid = group.closid, group.rmid
        for package in range(self.knobs.busy_packages):
            self.counters.ran(group.rmid, package)

    def _tasks_text(self, group: Group, reader: int) -> str:
        numbers = (
            self.tasks.number(reader, tid) if reader else tid for tid in self.tids_of([group])[0]
        )
        return "".join(f"{number}\n" for number in numbers if number)

    def tids_of(self, groups: Sequence[Group]) -> list[list[int]]:
        """The tasks of each, as they are at one moment."""
        self._refresh()
        return [
            [tid for tid, state in self._states.items() if self._in_group(state, group)]
            for group in groups
        ]

    def _in_group(self, state: TaskState, group: Group) -> bool:
        """On x86 a mon_group's tasks are known by their RMID alone."""
        return state.closid == group.closid if group.is_ctrl else state.rmid == group.rmid

    def _members(self, group: Group) -> list[TaskState]:
        return [state for state in self._states.values() if self._in_group(state, group)]

    def _move_all(self, group: Group, to: Group) -> None:
        for state in self._members(group):
            state.closid, state.rmid = to.closid, to.rmid

    def _refresh(self) -> None:
        """Forget the dead, and give the new ones what their parents have.

        A task that was seen before keeps what it had: so a child that was there when its
        parent was moved stays outside, and one that is seen for the first time
        afterwards was forked afterwards.
        """
        now = time.monotonic_ns()
        if now < self._next_look:
            return
        snapshot = self.tasks.snapshot()
        states: dict[int, TaskState] = {}
        for tid in snapshot:
            self._inherit(tid, snapshot, states)
        self._states = {tid: states[tid] for tid in snapshot}
        self._next_look = time.monotonic_ns() + self.knobs.look_ms * MS if self.knobs.look_ms else 0

    def _inherit(
        self, tid: int, snapshot: dict[int, Task], states: dict[int, TaskState]
    ) -> TaskState:
        line: list[Task] = []  # from tid up to the first ancestor that is known
        state: TaskState | None = None
        task = snapshot.get(tid)
        while task is not None and task not in line:
            state = states.get(task.tid) or self._known(task)
            if state is not None:
                states[task.tid] = state
                break
            line.append(task)
            above = snapshot.get(task.parent)
            # A parent that is younger is not the parent: its number was used again.
            task = above if above is not None and above.starttime <= task.starttime else None
        for child in reversed(line):
            closid, rmid = (state.closid, state.rmid) if state else (0, 0)
            state = states[child.tid] = TaskState(child.starttime, closid, rmid)
        assert state is not None
        return state

    def _known(self, task: Task) -> TaskState | None:
        state = self._states.get(task.tid)
        return state if state is not None and state.starttime == task.starttime else None

    def cpu_resctrl_groups(self, tid: int) -> str:
        """What /proc/TID/cpu_resctrl_groups would say.

        Errors: ESRCH; ENOENT if its CLOSID is a removed group's.
        """
        self._refresh()
        if tid not in self._states:
            fail(errno.ESRCH)
        if not self.mounted:
            return "res:\nmon:\n"
        state = self._states[tid]
        ctrl = next((g for g in [self.root, *self.ctrl.values()] if g.closid == state.closid), None)
        if ctrl is None:
            fail(errno.ENOENT)
        mon = next((g.name for g in ctrl.children.values() if g.rmid == state.rmid), "")
        return f"res:{ctrl.name or '/'}\nmon:{mon}\n"

    # ---- counters, for tests ----

    def set_counter(self, group: str, domain: str, event: str, value: object) -> None:
        """`group`: its path.

        `value`: a number, or a text such as Unavailable that is shown instead.
        """
        self.counters.set(self.resolve(group).group.rmid, domain, event, as_value(value))

    def add(self, group: str, domain: str, event: str, amount: object) -> None:
        self.counters.add(self.resolve(group).group.rmid, domain, event, Decimal(str(amount)))

    def let_grow(
        self, group: str, domain: str, event: str, rate: object, since: float | None = None
    ) -> str:
        """As Counters.let_grow."""
        rmid = self.resolve(group).group.rmid
        return str(self.counters.let_grow(rmid, domain, event, Decimal(str(rate)), since))

    def run(self, tid: int, package: int) -> None:
        """Let a task run on a package. Errors: ESRCH."""
        self._refresh()
        if tid not in self._states:
            fail(errno.ESRCH)
        self.counters.ran(self._states[tid].rmid, package)

    def grow(self, amount: object) -> None:
        """Add to every counter of every group that has tasks."""
        self._refresh()
        for group in self.groups():
            if any(state.rmid == group.rmid for state in self._members(group)):
                for domain, events in self.counters.domains.items():
                    for event in events:
                        self.counters.add(group.rmid, domain, event, Decimal(str(amount)))
