# SPDX-License-Identifier: Apache-2.0
"""What a Linux kernel shows and does besides files: processes, their cgroups, and resctrl's groups.

resctrl is the model of tests.resctrlfs, which is proven equal to the kernel; the tasks and the
clock are those of this machine. The rest is as measured on a kernel: docs/design.md.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Union

from tests.resctrlfs.hardware import UNAVAILABLE, as_value
from tests.resctrlfs.model import Group, Knobs, ModelFile, ResctrlModel, TaskState
from tests.resctrlfs.tasks import Tasks

RESCTRL = "/sys/fs/resctrl"
ROOT_CGROUP = "/sys/fs/cgroup"
HOST_PIDS = "pid:[4026531836]"
HOST_TIME = "time:[4026531834]"
MOST_CLASSES = 100
COUNTERS = {"mon_L3_00/llc_occupancy": "4096", "mon_PERF_PKG_00/core_energy": "3.000000"}
BEGIN = {**COUNTERS, "mon_L3_00/llc_occupancy": "Unavailable"}
"""What a record has of them: a level is not read for it."""

Content = Union[bytes, list[str], str]
"""Of a file, the names in a directory, the target of a link."""


class KernelNode(NamedTuple):
    """What a path of the kernel's leads to, as pyfakefs' nodes say it.

    `owner`: the task or group that it goes with.
    """

    content: Content
    st_ino: int
    owner: object
    st_ctime_ns: int = 0
    st_dev: int = 2
    st_uid: int = 0
    st_size: int = 0

    @property
    def st_mode(self) -> int:
        return {list: stat.S_IFDIR | 0o755, bytes: stat.S_IFREG | 0o644, str: stat.S_IFLNK | 0o777}[
            type(self.content)
        ]

    @property
    def st_nlink(self) -> int:
        return 2 + sum(entry != "cgroup.threads" for entry in self.entries)

    @property
    def entries(self) -> list[str]:
        return self.content if isinstance(self.content, list) else []

    @property
    def byte_contents(self) -> bytes:
        content = self.content
        return content.encode() if isinstance(content, str) else bytes(content or b"")  # type: ignore[arg-type]


class KernelTask:
    """A process. `threads`: their numbers; `places`: the lines of its cgroup file."""

    def __init__(self, pid: int, born: int, places: list[str]) -> None:
        self.pid = pid
        self.born = born
        self.places = places
        self.threads = [pid]
        self.parent = 1
        self.state = "S"
        self.user_ticks = 0
        self.name = "init"

    def cgroup(self) -> str:
        """Its path in cgroup v2."""
        return next((line[3:] for line in self.places if line.startswith("0::")), "/")


class SameNumbers(Tasks):
    """All processes are in one pid namespace."""

    def __init__(self) -> None:
        pass

    def resolve(self, _observer: int, number: int) -> int | None:
        return number

    def number(self, _observer: int, tid: int) -> int:
        return tid


class Resctrl(ResctrlModel):
    """The model, with the tasks of this machine:
    each gets its group as it begins, as in the kernel.

    `begins`: what an RMID has counted that is used for the first time.
    """

    def __init__(self, knobs: Knobs, clock: Callable[[], int]) -> None:
        super().__init__(knobs, SameNumbers(), clock)
        self.begins = dict(COUNTERS)
        self.counters.domains = {
            counter.partition("/")[0]: (counter.partition("/")[2],) for counter in COUNTERS
        }
        self._adopt(0)

    def _refresh(self) -> None:
        pass

    def _take_rmid(self) -> int:
        rmid = super()._take_rmid()
        self._adopt(rmid)
        return rmid

    def _adopt(self, rmid: int) -> None:
        for counter, text in self.begins.items():
            domain, _, event = counter.partition("/")
            is_there = event in self.counters.domains.get(domain, ())
            if is_there and self.counters.text([rmid], domain, event).strip() in (UNAVAILABLE, "0"):
                self.counters.set(rmid, domain, event, as_value(text))

    def unmount(self) -> None:
        tasks = {tid: state.starttime for tid, state in self._states.items()}
        super().unmount()
        self._states.update({tid: TaskState(born) for tid, born in tasks.items()})

    def tids(self, group: Group) -> set[int]:
        """The threads in a group, without those in the mon_groups below it."""
        return {tid for tid, state in self._states.items() if state.rmid == group.rmid}

    def group_of(self, tid: int) -> Group:
        rmid = self._states[tid].rmid
        return next(group for group in self.groups() if group.rmid == rmid)

    def place(self, tid: int, born: int, group: Group) -> None:
        """A thread is in this group, however it got there."""
        self._states[tid] = TaskState(born, group.closid, group.rmid)

    def forget(self, tid: int) -> None:
        """A thread is no more."""
        self._states.pop(tid, None)


def make_error(number: int, path: object = None) -> OSError:
    return OSError(number, os.strerror(number), *([] if path is None else [path]))


def above(path: str) -> str:
    """The ctrl_group of a mon_group."""
    return path.partition("/mon_groups/")[0]


class Kernel:
    """`rmids`: how many groups there can be; `limbo`: seconds that an RMID takes to come back.

    `files`: what a path shows instead of what it would (None: nothing). `denied`: the
    errno of a path that cannot be looked at. `fallen`: the threads that were in the
    group that was removed last.
    """

    def __init__(self, rmids: int = 1000, limbo: float = 0.0) -> None:
        self.now = 1000.0
        knobs = Knobs(
            rmids + 1,
            rmids + 1,
            MOST_CLASSES,
            1,
            1,
            perf=False,
            decay_ms=int(limbo * 1000),
            limbo_tick_ms=1,
        )
        self.resctrl = Resctrl(knobs, lambda: int(self.now * 1e9))
        self.tasks: dict[int, KernelTask] = {}
        self.cgroups: set[str] = {"/"}
        self.files: dict[str, Content | None] = {}
        self.denied: dict[str, int] = {}
        self.pid_namespace = HOST_PIDS
        self.time_namespace: str | None = HOST_TIME
        self.shows_groups = True
        self.fallen: set[int] = set()
        self.mounts = 0
        self.mount()

    # --- What happens on the machine

    def unmount(self) -> None:
        """All groups end."""
        self.resctrl.unmount()

    def mount(self) -> None:
        """Mount resctrl, after an umount that ended all groups; their inodes come again."""
        if self.resctrl.mounted:
            self.unmount()
        self.resctrl.mount()
        self.mounts += 1
        self.identify(RESCTRL)

    def spawn(self, pid: int, *places: str, born: int = 100, group: str = RESCTRL) -> KernelTask:
        """A process begins, in these cgroups (lines of /proc/PID/cgroup)."""
        self.die(pid)
        task = self.tasks[pid] = KernelTask(pid, born, list(places) or ["0::/"])
        self.move(pid, group)
        path = task.cgroup()
        while path.strip("/"):
            self.cgroups.add(path)
            path = path.rpartition("/")[0]
        return task

    def add_thread(self, pid: int, tid: int, group: str | None = None) -> None:
        """A process has another thread, in this group or where the process is."""
        self.tasks[pid].threads.append(tid)
        self.move(tid, group or self.group_of(pid))

    def group_of(self, pid: int) -> str:
        """The group that a process is in."""
        return _path_of(self.resctrl.group_of(pid))

    def move(self, tid: int, path: str) -> None:
        """Another tool moves a thread to another group."""
        task = self._find_task(tid)
        assert task is not None
        self.resctrl.place(tid, task.born, self._find_group(path))

    def rename(self, old: str, new: str) -> None:
        """Another tool gives a mon_group another name, or another ctrl_group,
        which its tasks are in from then on.
        """
        group, parent = self._find_group(old), self._find_group(above(new))
        tids = self.resctrl.tids(group)
        assert group.parent is not None
        del group.parent.children[group.name]
        group.name, group.parent, group.closid = new.rpartition("/")[2], parent, parent.closid
        parent.children[group.name] = group
        for tid in tids:
            self.move(tid, new)

    def set_counter(self, path: str, counter: str, text: str) -> None:
        """Let a counter of a group say this; of the others it says what it
        does if nothing is known.
        """
        domain, _, event = counter.partition("/")
        events = self.resctrl.counters.domains.get(domain, ())
        if event not in events:
            self.resctrl.counters.domains[domain] = (*events, event)
        self.resctrl.set_counter(path[len(RESCTRL) :], domain, event, text)

    def remove_cgroups(self, top: str) -> None:
        """A cgroup is removed with those below it."""
        self.cgroups -= {cgroup for cgroup in self.cgroups if f"{cgroup}/".startswith(f"{top}/")}

    def fork(self, parent: int, pid: int, born: int = 200) -> KernelTask:
        """A child begins where its parent is."""
        former = self.tasks[parent]
        task = self.spawn(pid, *former.places, born=born, group=self.group_of(parent))
        task.parent = parent
        return task

    def die(self, pid: int) -> None:
        """A process ends and is reaped."""
        task = self.tasks.pop(pid, None)
        for tid in task.threads if task is not None else ():
            self.resctrl.forget(tid)

    def add_class(self, name: str) -> str:
        """Make a ctrl_group; returns its path."""
        path = f"{RESCTRL}/{name}"
        self.mkdir(path)
        return path

    @property
    def groups(self) -> dict[str, Group]:
        """All groups by their paths."""
        return (
            {_path_of(group): group for group in self.resctrl.groups()}
            if self.resctrl.mounted
            else {}
        )

    def mon_groups(self) -> list[str]:
        return [path for path in self.groups if "/mon_groups/" in path]

    def tids(self, path: str) -> set[int]:
        """The threads in a group, without those in the mon_groups below it."""
        group = self.groups.get(path)
        return self.resctrl.tids(group) if group is not None else set()

    def identify(self, path: str) -> int:
        """The inode of a group."""
        return self.resctrl.identify(self.resctrl.resolve(path[len(RESCTRL) :]))

    def free(self) -> int:
        """How many RMIDs a mkdir finds."""
        self.resctrl.rmids.look()
        return len(self.resctrl.rmids.free)

    @property
    def rmids(self) -> int:
        return self.resctrl.knobs.rmids - 1

    @rmids.setter
    def rmids(self, number: int) -> None:
        """From now on there are so many, and no free ones if more are in use."""
        self.resctrl.knobs.rmids = self.resctrl.knobs.aet_rmids = number + 1
        rmids, used = self.resctrl.rmids, {group.rmid for group in self.groups.values()} - {0}
        used.update(rmids.limbo)
        unused = [rmid for rmid in range(1, number + len(used) + 1) if rmid not in used]
        rmids.free = deque(unused[: max(number - len(used), 0)])

    def set_limbo(self, seconds: float) -> None:
        self.resctrl.set_knobs(decay_ms=int(seconds * 1000))

    # --- System calls

    def mkdir(self, path: str) -> None:
        """Make a group."""
        with _about(path):
            self.resctrl.mkdir(path[len(RESCTRL) :], 0o755)
        self.identify(path)

    def rmdir(self, path: str) -> None:
        fallen = self.tids(path)
        with _about(path):
            self.resctrl.rmdir(path[len(RESCTRL) :])
        self.fallen = fallen

    def put(self, path: str, data: bytes) -> None:
        """A write to the `tasks` of a group."""
        self.resctrl.write_node(ModelFile(self._find_group(path), "tasks", False), data, 0)

    def _find_group(self, path: str) -> Group:
        return self.resctrl.resolve(path[len(RESCTRL) :]).group

    def _find_task(self, tid: int) -> KernelTask | None:
        """The process that has a thread."""
        return self.tasks.get(tid) or next(
            (task for task in self.tasks.values() if tid in task.threads), None
        )

    # --- Paths

    def look(self, path: str) -> KernelNode | None:
        """What is there; None: nothing."""
        if path in self.files:
            content = self.files[path]
            return (
                None
                if content is None
                else KernelNode(content, 2, self.groups.get(path.rpartition("/")[0]))
            )
        names = path.strip("/").split("/")
        if names[0] == "proc":
            return self._look_at_proc(names[1:])
        return self._look_at_group(path) if names[2] == "resctrl" else self._look_at_cgroup(path)

    def _look_at_proc(self, names: list[str]) -> KernelNode | None:
        if not names:
            return KernelNode(["1", "self", *map(str, self.tasks)], 1, None)
        first, rest = names[0], "/".join(names[1:])
        if names == ["thread-self", "children"]:
            return KernelNode(b"", 1, None)
        if first in ("self", "1"):
            shown: dict[str, Content] = {
                "": ["ns"],
                "ns/pid": self.pid_namespace,
                "cgroup": b"0::/\n",
            }
            if self.time_namespace is not None:
                shown["ns/time"] = self.time_namespace
            shown["uid_map"] = b"         0          0 4294967295\n"
            if self.shows_groups:
                shown["cpu_resctrl_groups"] = b"res:/\nmon:\n"
            return KernelNode(shown[rest], 1, None) if rest in shown else None
        tid = int(first) if first.isdecimal() else 0
        task = self._find_task(tid)
        content = self._show_task(task, tid, rest) if task is not None else None
        return None if content is None else KernelNode(content, 1, task)

    def _show_task(self, task: KernelTask, tid: int, name: str) -> Content | None:
        """What /proc/TID shows; None: no such file."""
        if name in ("", "task"):
            return list(map(str, task.threads)) if name else []
        if name == "cgroup":
            return "".join(f"{line}\n" for line in task.places).encode()
        if name == "cpu_resctrl_groups":
            return self.resctrl.cpu_resctrl_groups(tid).encode() if self.shows_groups else None
        if name == "status":
            return f"Name:\t{task.name}\nTgid:\t{task.pid}\nPPid:\t{task.parent}\n".encode()
        if name.endswith("stat"):
            fields = ["0"] * 20
            fields[:2] = task.state, str(task.parent)
            fields[11], fields[17], fields[19] = (
                str(task.user_ticks),
                str(len(task.threads)),
                str(task.born),
            )
            return f"{task.pid} ({task.name}) {' '.join(fields)}\n".encode()
        if name.endswith("/children"):
            return " ".join(
                str(child.pid)
                for child in self.tasks.values()
                if str(child.parent) == name.split("/")[1]
            ).encode()
        return None

    def _look_at_group(self, path: str) -> KernelNode | None:
        if not self.resctrl.mounted:
            return KernelNode([], 1, None) if path == RESCTRL else None
        try:
            node = self.resctrl.resolve(path[len(RESCTRL) :])
        except OSError:
            return None
        content = (
            self.resctrl.list_names(node) if node.is_dir else self.resctrl.read_node(node).encode()
        )
        return KernelNode(
            content, self.resctrl.identify(ModelFile(node.group, "", True)), node.group, self.mounts
        )

    def _look_at_cgroup(self, path: str) -> KernelNode | None:
        at = path[len(ROOT_CGROUP) :] or "/"
        if at in self.cgroups:
            below = [
                cgroup
                for cgroup in self.cgroups
                if cgroup != "/" and cgroup.rpartition("/")[0] == at.rstrip("/")
            ]
            return KernelNode(
                [*(cgroup.rpartition("/")[2] for cgroup in below), "cgroup.threads"], 1, None
            )
        at, _, name = at.rpartition("/")
        if name != "cgroup.threads" or (at or "/") not in self.cgroups:
            return None
        inside = [task for task in self.tasks.values() if task.cgroup() == (at or "/")]
        return KernelNode(
            b"".join(b"%d\n" % tid for task in inside for tid in task.threads), 1, None
        )


@contextmanager
def _about(path: str) -> Iterator[None]:
    """An error of a system call says the path."""
    try:
        yield
    except OSError as error:
        raise make_error(error.errno or errno.EIO, path) from None


def _path_of(group: Group) -> str:
    return (RESCTRL + group.path).rstrip("/")
