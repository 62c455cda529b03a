# SPDX-License-Identifier: Apache-2.0
"""What a Linux kernel shows and does besides files: processes, their cgroups, and resctrl's groups.

As measured on a kernel: docs/design.md. A group's tasks are those of the processes that say they are in it.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple, Union

RESCTRL = "/sys/fs/resctrl"
ROOT_CGROUP = "/sys/fs/cgroup"
HOST_PIDS = "pid:[4026531836]"
HOST_TIME = "time:[4026531834]"
COUNTERS = {"mon_L3_00/llc_occupancy": "4096", "mon_PERF_PKG_00/core_energy": "3.000000"}

Content = Union[bytes, list[str], str]
"""Of a file, the names in a directory, the target of a link."""


class KernelNode(NamedTuple):
    """What a path of the kernel's leads to, as pyfakefs' nodes say it. `owner`: the task or group that it goes with."""

    content: Content
    st_ino: int
    owner: object
    st_ctime_ns: int = 0
    st_dev: int = 2
    st_uid: int = 0
    st_size: int = 0

    @property
    def st_mode(self) -> int:
        return {list: stat.S_IFDIR | 0o755, bytes: stat.S_IFREG | 0o644, str: stat.S_IFLNK | 0o777}[type(self.content)]

    @property
    def st_nlink(self) -> int:
        return 2 + sum(entry != "cgroup.threads" for entry in self.entries)

    @property
    def entries(self) -> list[str]:
        return self.content if isinstance(self.content, list) else []

    @property
    def byte_contents(self) -> bytes:
        return self.content.encode() if isinstance(self.content, str) else bytes(self.content or b"")  # type: ignore[arg-type]


class KernelTask:
    """A process. `groups`: the group that each of its threads is in; `places`: the lines of its cgroup file."""

    def __init__(self, pid: int, born: int, places: list[str]) -> None:
        self.pid = pid
        self.born = born
        self.places = places
        self.groups = {pid: RESCTRL}
        self.parent = 1
        self.state = "S"
        self.user_ticks = 0
        self.name = "init"

    def cgroup(self) -> str:
        """Its path in cgroup v2."""
        return next((line[3:] for line in self.places if line.startswith("0::")), "/")


class ResctrlGroup:
    """A ctrl_group or a mon_group. `counters`: the texts that the kernel gives."""

    def __init__(self, ino: int, counters: dict[str, str]) -> None:
        self.ino = ino
        self.counters = counters


def make_error(number: int, path: object = None) -> OSError:
    return OSError(number, os.strerror(number), *([] if path is None else [path]))


def above(path: str) -> str:
    """The ctrl_group of a mon_group."""
    return path.partition("/mon_groups/")[0]


class Kernel:
    """`rmids`: how many mon_groups there can be; `limbo`: seconds that an RMID takes to come back.

    `files`: what a path shows instead of what it would (None: nothing). `denied`: the errno of a path that cannot be
    looked at. `energy`: what the next RMID begins with. `fallen`: the threads that were in the group that was removed
    last.
    """

    def __init__(self, rmids: int = 1000, limbo: float = 0.0) -> None:
        self.rmids = rmids
        self.limbo = limbo
        self.now = 1000.0
        self.tasks: dict[int, KernelTask] = {}
        self.groups: dict[str, ResctrlGroup] = {}
        self.cgroups: set[str] = {"/"}
        self.files: dict[str, Content | None] = {}
        self.denied: dict[str, int] = {}
        self.energy = 3
        self.pid_namespace = HOST_PIDS
        self.time_namespace: str | None = HOST_TIME
        self.shows_groups = True
        self.status = "ok"
        self.fallen: set[int] = set()
        self._parked: list[float] = []
        self._inode = 100
        self.mounts = 0
        self.mount()

    # --- What happens on the machine

    def mount(self) -> None:
        """Mount resctrl, after an umount that ended all groups; their inodes come again."""
        self.groups = {}
        for task in self.tasks.values():
            task.groups = dict.fromkeys(task.groups, RESCTRL)
        self._inode = 100
        self.mounts += 1
        self.groups[RESCTRL] = self._new_group()

    def spawn(self, pid: int, *places: str, born: int = 100, group: str = RESCTRL) -> KernelTask:
        """A process begins, in these cgroups (lines of /proc/PID/cgroup)."""
        task = self.tasks[pid] = KernelTask(pid, born, list(places) or ["0::/"])
        task.groups[pid] = group
        path = task.cgroup()
        while path.strip("/"):
            self.cgroups.add(path)
            path = path.rpartition("/")[0]
        return task

    def group_of(self, pid: int) -> str:
        """The group that a process is in."""
        return self.tasks[pid].groups[pid]

    def move(self, pid: int, path: str) -> None:
        """Another tool moves a process to another group."""
        self.tasks[pid].groups[pid] = path

    def remove_cgroups(self, top: str) -> None:
        """A cgroup is removed with those below it."""
        self.cgroups -= {cgroup for cgroup in self.cgroups if f"{cgroup}/".startswith(f"{top}/")}

    def fork(self, parent: int, pid: int, born: int = 200) -> KernelTask:
        """A child begins where its parent is."""
        former = self.tasks[parent]
        task = self.spawn(pid, *former.places, born=born, group=former.groups[parent])
        task.parent = parent
        return task

    def die(self, pid: int) -> None:
        """A process ends and is reaped."""
        self.tasks.pop(pid, None)

    def add_class(self, name: str) -> str:
        """Make a ctrl_group; returns its path."""
        path = f"{RESCTRL}/{name}"
        self.groups[path] = self._new_group()
        return path

    def tids(self, path: str) -> set[int]:
        """The threads in a group."""
        return {tid for task in self.tasks.values() for tid, group in task.groups.items() if group == path}

    def mon_groups(self) -> list[str]:
        return [path for path in self.groups if "/mon_groups/" in path]

    def free(self) -> int:
        """How many RMIDs a mkdir finds."""
        self._parked = [until for until in self._parked if until > self.now]
        return self.rmids - (len(self.groups) - 1) - len(self._parked)

    # --- System calls

    def mkdir(self, path: str) -> None:
        """Make a mon_group."""
        parent, _, name = path.rpartition("/")
        if path in self.groups:
            raise make_error(errno.EEXIST, path)
        ctrl_group = parent.removesuffix("/mon_groups")
        if ctrl_group not in self.groups:
            raise make_error(errno.ENOENT if self.look(parent) is None else errno.EPERM, path)
        if "/mon_groups/" in ctrl_group or "\n" in name:
            raise make_error(errno.EINVAL if "\n" in name else errno.EPERM, path)
        if self.free() <= 0:
            self.status = "Out of RMIDs"
            raise make_error(errno.EBUSY if self._parked else errno.ENOSPC, path)
        self.groups[path] = self._new_group()

    def rmdir(self, path: str) -> None:
        """Its tasks fall back to the group above it; a ctrl_group takes its mon_groups with it."""
        if path not in self.groups or path == RESCTRL:
            raise make_error(errno.ENOENT if self.look(path) is None else errno.EPERM, path)
        self.fallen = self.tids(path)
        for gone in [group for group in self.groups if group == path or group.startswith(path + "/mon_groups/")]:
            back = above(gone) if gone == path and "/mon_groups/" in path else RESCTRL
            for task in self.tasks.values():
                task.groups = {tid: back if group == gone else group for tid, group in task.groups.items()}
            del self.groups[gone]
            if self.limbo:
                self._parked.append(self.now + self.limbo)

    def put(self, path: str, data: bytes) -> None:
        """A write to the `tasks` of a group."""
        for tid in map(int, data.decode().strip().split(",")):
            task = next((task for task in self.tasks.values() if tid in task.groups), None)
            if task is None:
                self.status = f"No task {tid}"
                raise make_error(errno.ESRCH)
            if "/mon_groups/" in path and above(task.groups[tid]) != above(path):
                self.status = "Can't move task to different control group"
                raise make_error(errno.EINVAL)
            task.groups[tid] = path

    def _new_group(self) -> ResctrlGroup:
        self._inode += 1
        energy = f"{self.energy}.000000"
        return ResctrlGroup(
            self._inode, {counter: energy if counter.endswith("energy") else COUNTERS[counter] for counter in COUNTERS}
        )

    # --- Paths

    def look(self, path: str) -> KernelNode | None:
        """What is there; None: nothing."""
        if path in self.files:
            content = self.files[path]
            return None if content is None else KernelNode(content, 2, self.groups.get(path.rpartition("/")[0]))
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
            shown: dict[str, Content] = {"": ["ns"], "ns/pid": self.pid_namespace, "cgroup": b"0::/\n"}
            if self.time_namespace is not None:
                shown["ns/time"] = self.time_namespace
            shown["uid_map"] = b"         0          0 4294967295\n"
            if self.shows_groups:
                shown["cpu_resctrl_groups"] = _show_groups(RESCTRL)
            return KernelNode(shown[rest], 1, None) if rest in shown else None
        tid = int(first) if first.isdecimal() else 0
        task = self.tasks.get(tid) or next(
            (task for task in self.tasks.values() if tid in task.groups), None
        )  # of a thread
        content = self._show_task(task, tid, rest) if task is not None else None
        return None if content is None else KernelNode(content, 1, task)

    def _show_task(self, task: KernelTask, tid: int, name: str) -> Content | None:
        """What /proc/TID shows; None: no such file."""
        if name in ("", "task"):
            return list(map(str, task.groups)) if name else []
        if name == "cgroup":
            return "".join(f"{line}\n" for line in task.places).encode()
        if name == "cpu_resctrl_groups":
            return _show_groups(task.groups[tid]) if self.shows_groups and tid in task.groups else None
        if name == "status":
            return f"Name:\t{task.name}\nTgid:\t{task.pid}\nPPid:\t{task.parent}\n".encode()
        if name.endswith("stat"):
            fields = ["0"] * 20
            fields[:2] = task.state, str(task.parent)
            fields[11], fields[17], fields[19] = str(task.user_ticks), str(len(task.groups)), str(task.born)
            return f"{task.pid} ({task.name}) {' '.join(fields)}\n".encode()
        if name.endswith("/children"):
            return " ".join(
                str(child.pid) for child in self.tasks.values() if str(child.parent) == name.split("/")[1]
            ).encode()
        return None

    def _look_at_group(self, path: str) -> KernelNode | None:
        at = path
        while at not in self.groups and at != RESCTRL:
            at = at.rpartition("/")[0]
        if not self.groups:  # not mounted
            return KernelNode([], 1, None) if path == at else None
        content = self._show_group(at, path[len(at) + 1 :])
        return None if content is None else KernelNode(content, self.groups[at].ino, self.groups[at], self.mounts)

    def _show_group(self, at: str, name: str) -> Content | None:
        """What there is in a group; None: no such file."""
        counters = {f"mon_data/{counter}": text for counter, text in self.groups[at].counters.items()}
        of_class = [] if "/mon_groups/" in at else ["mon_groups"]
        shown: dict[str, Content] = {"mon_groups": [group.rpartition("/")[2] for group in self._list_groups(at)]}
        if at == RESCTRL:
            of_class += ["info", *(group[len(RESCTRL) + 1 :] for group in self.groups if group.count("/") == 4)]
            shown["info"] = ["L3_MON", "last_cmd_status"]
            shown["info/L3_MON"] = ["num_rmids"]
            shown["info/L3_MON/num_rmids"] = b"%d\n" % (self.rmids + 1)
            shown["info/last_cmd_status"] = self.status.encode() + b"\n"
        if name in shown and of_class:
            return shown[name]
        if name == "tasks":
            every = [
                at,
                *(self._list_groups(at) if of_class else []),
            ]  # a ctrl_group's are those of its mon_groups, too
            return b"".join(b"%d\n" % tid for tid in sorted(tid for group in every for tid in self.tids(group)))
        if name in counters:
            return counters[name].encode() + b"\n"
        below = {counter[len(name) + 1 :].partition("/")[0] for counter in counters if counter.startswith(name + "/")}
        return sorted(below) or (["mon_data", "tasks", *of_class] if not name else None)

    def _list_groups(self, ctrl_group: str) -> list[str]:
        return [group for group in self.groups if group.startswith(ctrl_group + "/mon_groups/")]

    def _look_at_cgroup(self, path: str) -> KernelNode | None:
        at = path[len(ROOT_CGROUP) :] or "/"
        if at in self.cgroups:
            below = [cgroup for cgroup in self.cgroups if cgroup != "/" and cgroup.rpartition("/")[0] == at.rstrip("/")]
            return KernelNode([*(cgroup.rpartition("/")[2] for cgroup in below), "cgroup.threads"], 1, None)
        at, _, name = at.rpartition("/")
        if name != "cgroup.threads" or (at or "/") not in self.cgroups:
            return None
        inside = [task for task in self.tasks.values() if task.cgroup() == (at or "/")]
        return KernelNode(b"".join(b"%d\n" % tid for task in inside for tid in task.groups), 1, None)


def _show_groups(path: str) -> bytes:
    """cpu_resctrl_groups, as the kernel has it."""
    ctrl_group = above(path)[len(RESCTRL) + 1 :] or "/"
    mon_group = path.partition("/mon_groups/")[2]
    return f"res:{ctrl_group}\nmon:{mon_group}\n".encode()
