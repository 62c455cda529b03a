# SPDX-License-Identifier: Apache-2.0
"""What a Linux kernel shows and does besides files: processes, their cgroups, and resctrl's groups.

As measured on a kernel: docs/design.md. A group's tasks are those of the processes that say they are in it.
"""

from __future__ import annotations

import errno
import os
from typing import NamedTuple, Union

RESCTRL = "/sys/fs/resctrl"
ROOT_CGROUP = "/sys/fs/cgroup"
HOST_PIDS = "pid:[4026531836]"
COUNTERS = {"mon_L3_00/llc_occupancy": "4096", "mon_PERF_PKG_00/core_energy": "3.000000"}

Content = Union[bytes, list[str], str]
"""Of a file, the names in a directory, the target of a link."""


class KernelNode(NamedTuple):
    """What a path of the kernel's leads to. `owner`: the task or group that it goes with."""

    content: Content
    ino: int
    owner: object


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
        return next((it[3:] for it in self.places if it.startswith("0::")), "/")


class ResctrlGroup:
    """A ctrl_group or a mon_group. `counters`: the texts that the kernel gives."""

    def __init__(self, ino: int, counters: dict[str, str]) -> None:
        self.ino = ino
        self.counters = counters


def refused(number: int, path: object = None) -> OSError:
    return OSError(number, os.strerror(number), *([] if path is None else [path]))


def above(path: str) -> str:
    """The ctrl_group of a mon_group."""
    return path.partition("/mon_groups/")[0]


class Kernel:
    """`rmids`: how many mon_groups there can be; `limbo`: seconds that an RMID takes to come back.

    `files`: what a path shows instead of what it would (None: nothing). `energy`: what the next RMID begins with.
    `fallen`: the threads that were in the group that was removed last.
    """

    def __init__(self, rmids: int = 1000, limbo: float = 0.0) -> None:
        self.rmids = rmids
        self.limbo = limbo
        self.now = 1000.0
        self.tasks: dict[int, KernelTask] = {}
        self.groups: dict[str, ResctrlGroup] = {}
        self.cgroups: set[str] = {"/"}
        self.files: dict[str, Content | None] = {}
        self.energy = 3
        self.pid_namespace = HOST_PIDS
        self.shows_groups = True
        self.status = "ok"
        self.fallen: set[int] = set()
        self._parked: list[float] = []
        self._inode = 100
        self.mount()

    # --- What happens on the machine

    def mount(self) -> None:
        """Mount resctrl, after an umount that ended all groups; their inodes come again."""
        self.groups = {}
        for task in self.tasks.values():
            task.groups = dict.fromkeys(task.groups, RESCTRL)
        self._inode = 100
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
        parent, _, name = path.rpartition("/")
        if path in self.groups:
            raise refused(errno.EEXIST, path)
        of_group = parent.removesuffix("/mon_groups")
        if of_group not in self.groups:
            raise refused(errno.ENOENT if self.look(parent) is None else errno.EPERM, path)
        if of_group == parent and (parent != RESCTRL or name == "mon_groups"):
            raise refused(errno.EPERM, path)
        if "\n" in name:
            raise refused(errno.EINVAL, path)
        if of_group != parent and "/mon_groups/" in of_group:
            raise refused(errno.EPERM, path)
        if self.free() <= 0:
            self.status = "Out of RMIDs"
            raise refused(errno.EBUSY if self._parked else errno.ENOSPC, path)
        self.groups[path] = self._new_group()

    def rmdir(self, path: str) -> None:
        """Its tasks fall back to the group above it; a ctrl_group takes its mon_groups with it."""
        if path not in self.groups or path == RESCTRL:
            raise refused(errno.ENOENT if self.look(path) is None else errno.EPERM, path)
        self.fallen = self.tids(path)
        for gone in [it for it in self.groups if it == path or it.startswith(path + "/mon_groups/")]:
            back = above(gone) if gone == path and "/mon_groups/" in path else RESCTRL
            for task in self.tasks.values():
                task.groups = {tid: back if group == gone else group for tid, group in task.groups.items()}
            del self.groups[gone]
            if self.limbo:
                self._parked.append(self.now + self.limbo)

    def put(self, path: str, data: bytes) -> None:
        """A write to the `tasks` of a group."""
        try:
            tids = [int(word) for word in data.decode().strip().split(",")] if data.strip() else []
        except ValueError:
            raise refused(errno.EINVAL) from None
        for tid in tids:
            task = next((it for it in self.tasks.values() if tid in it.groups), None)
            if task is None:
                self.status = f"No task {tid}"
                raise refused(errno.ESRCH)
            if "/mon_groups/" in path and above(task.groups[tid]) != above(path):
                self.status = "Can't move task to different control group"
                raise refused(errno.EINVAL)
            task.groups[tid] = path

    def _new_group(self) -> ResctrlGroup:
        self._inode += 1
        energy = f"{self.energy}.000000"
        return ResctrlGroup(self._inode, {it: energy if it.endswith("energy") else COUNTERS[it] for it in COUNTERS})

    # --- Paths

    def look(self, path: str) -> KernelNode | None:
        """What is there; None: nothing."""
        if path in self.files:
            content = self.files[path]
            return None if content is None else KernelNode(content, 2, self.groups.get(path.rpartition("/")[0]))
        names = path.strip("/").split("/")
        if names[0] == "proc":
            return self._look_at_proc(names[1:])
        return self._look_at_group(path, names[3:]) if names[2] == "resctrl" else self._look_at_cgroup(path)

    def _look_at_proc(self, names: list[str]) -> KernelNode | None:
        if not names:
            return KernelNode(["1", "self", *map(str, self.tasks)], 1, None)
        first, rest = names[0], "/".join(names[1:])
        if first in ("self", "1"):
            shown: dict[str, Content] = {"": ["ns"], "ns/pid": self.pid_namespace, "cgroup": b"0::/\n"}
            shown["uid_map"] = b"         0          0 4294967295\n"
            return KernelNode(shown[rest], 1, None) if rest in shown else None
        task = self.tasks.get(int(first)) if first.isdecimal() else None
        content = _show_task(task, rest) if task is not None else None
        if content is None or (rest == "cpu_resctrl_groups" and not self.shows_groups):
            return None
        if rest.startswith("task/") and rest.endswith("/children"):
            content = " ".join(str(it.pid) for it in self.tasks.values() if str(it.parent) == names[2]).encode()
        return KernelNode(content, 1, task)

    def _look_at_group(self, path: str, names: list[str]) -> KernelNode | None:
        at = path if path in self.groups else path.rpartition("/mon_data")[0] if "/mon_data" in path else above(path)
        if path.endswith("/tasks") or path.endswith("/mon_groups"):
            at = path.rpartition("/")[0]
        group = self.groups.get(at)
        rest = path[len(at) + 1 :]
        if not self.groups:
            return KernelNode([], 1, None) if not names else None
        if names[:1] == ["info"]:
            return self._look_at_info(names[1:])
        if group is None:
            return None
        content: Content | None = None
        if rest == "":
            content = self._list_group(path)
        elif rest == "tasks":
            content = b"".join(b"%d\n" % tid for tid in sorted(self.tids(at)))
        elif rest == "mon_groups" and "/mon_groups/" not in at:
            content = [it.rpartition("/")[2] for it in self.groups if it.startswith(path + "/")]
        elif rest == "mon_data":
            content = sorted({it.partition("/")[0] for it in group.counters})
        elif rest.startswith("mon_data/"):
            name = rest[len("mon_data/") :]
            text = group.counters.get(name)
            events = [it.partition("/")[2] for it in group.counters if it.partition("/")[0] == name]
            content = f"{text}\n".encode() if text is not None else events or None
        return None if content is None else KernelNode(content, group.ino, group)

    def _list_group(self, path: str) -> list[str]:
        names = ["mon_data", "tasks"]
        if "/mon_groups/" not in path:
            names.append("mon_groups")
        if path == RESCTRL:
            names += ["info", *(it[len(RESCTRL) + 1 :] for it in self.groups if it.count("/") == 4)]
        return names

    def _look_at_info(self, names: list[str]) -> KernelNode | None:
        shown: dict[str, Content] = {
            "": ["L3_MON", "last_cmd_status"],
            "L3_MON": ["num_rmids"],
            "L3_MON/num_rmids": b"%d\n" % (self.rmids + 1),
            "last_cmd_status": self.status.encode() + b"\n",
        }
        content = shown.get("/".join(names))
        return KernelNode(content, 1, None) if content is not None else None

    def _look_at_cgroup(self, path: str) -> KernelNode | None:
        at = path[len(ROOT_CGROUP) :] or "/"
        if at in self.cgroups:
            below = [
                it.rpartition("/")[2] for it in self.cgroups if it != "/" and it.rpartition("/")[0] == at.rstrip("/")
            ]
            return KernelNode([*below, "cgroup.threads"], 1, None)
        at, _, name = at.rpartition("/")
        if name != "cgroup.threads" or (at or "/") not in self.cgroups:
            return None
        inside = [it for it in self.tasks.values() if it.cgroup() == (at or "/")]
        return KernelNode(b"".join(b"%d\n" % tid for it in inside for tid in it.groups), 1, None)


def _show_task(task: KernelTask, name: str) -> Content | None:
    """What /proc/PID shows; None: no such file."""
    if name == "cgroup":
        return "".join(f"{it}\n" for it in task.places).encode()
    if name == "cpu_resctrl_groups":
        return _show_groups(task.groups[task.pid]) if task.pid in task.groups else None
    if name == "task":
        return list(map(str, task.groups))
    _, _, of_thread = name.rpartition("/")
    if name == "stat" or of_thread == "stat":
        fields = ["0"] * 20
        fields[0], fields[1], fields[17], fields[19] = (
            task.state,
            str(task.parent),
            str(len(task.groups)),
            str(task.born),
        )
        fields[11] = str(task.user_ticks)
        return f"{task.pid} ({task.name}) {' '.join(fields)}\n".encode()
    if of_thread == "children":
        return b""
    return [] if name == "" else None


def _show_groups(path: str) -> bytes:
    """cpu_resctrl_groups, as the kernel has it."""
    ctrl_group = above(path)[len(RESCTRL) + 1 :] or "/"
    mon_group = path.partition("/mon_groups/")[2]
    return f"res:{ctrl_group}\nmon:{mon_group}\n".encode()
