# SPDX-License-Identifier: Apache-2.0
"""What a storm of hooks needs: containers of real processes, and the resctrl, modelled or real, that they are put into.

A mon_group is named by its path below the root of resctrl: `mon_groups/x`, `gold/mon_groups/x`.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Union

from tests.kernel.inside import REAL_ROOT, make_group, remove_groups
from tests.resctrlfs import Mounted, mounted
from tests.resctrlfs.events import Event
from tests.support.cgroups import Cgroup, mount_point
from tests.support.hook import created, stopped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

OURS = "oci-"
PR_SET_CHILD_SUBREAPER = 36
NEVER = 10**9
SHELL = "while read -r _; do sleep infinity > /dev/null & echo $!; done"
THREADED = """\
import os, signal, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", flush=True)
for _ in sys.stdin:
    child = os.fork()
    if child == 0:
        signal.pause()
    print(child, flush=True)
"""
"""Inits: for each line on stdin they fork, and tell the child's pid."""


@contextmanager
def reaper() -> Iterator[None]:
    """Orphans become children of this process, so that their end can be waited for: prctl(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def kill(pid: int) -> None:
    """End a child of this process, so that its pid is nobody's."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def spawn(*words: str) -> int:
    return os.posix_spawnp(words[0], words, os.environ)


@dataclass
class SimulatedContainer:
    """A container, in each of its lives. `init` is 0 while it has no process that is one.

    `known`: whether a hook has recorded it in this life, or None if nobody can say (the hook was killed). `torn`: the
    record of its key was spoilt since, and only the group that it is in tells of it. `author`: the annotations that its
    pod's author wrote. `revived`: the process that was
    taken for its init, which is dead, when that record was made again. `owed`: its poststop has not come.
    """

    id: str
    uid: str | None
    cgroup: Cgroup
    bundle: Path
    ctrl_group: str = ""
    init: int = 0
    known: bool | None = False
    torn: bool = False
    revived: int = 0
    owed: bool = False
    author: Mapping[str, str] = field(default_factory=dict)
    joined: list[int] = field(default_factory=list)
    _pipes: list[int] = field(default_factory=list)

    @property
    def key(self) -> str:
        return self.uid or self.id

    def __str__(self) -> str:
        return f"{self.id.lstrip('0')} of {self.key[:8] if self.uid else 'no pod'}"

    @property
    def group(self) -> str:
        """Where it is to be."""
        return f"{self.ctrl_group}/mon_groups/{OURS}{self.key}".lstrip("/")

    def pids(self) -> set[int]:
        """All its processes, also when its init is dead."""
        return self.cgroup.pids() if self.cgroup.directory.exists() else set()

    def threads(self) -> set[int]:
        return {int(name) for pid in self.pids() for name in os.listdir(f"/proc/{pid}/task")}

    def start(self, *, threaded: bool) -> None:
        """A new life. What is left of the former one is killed, as runtimes do."""
        self.kill()
        self.cgroup.directory.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-ISc", THREADED] if threaded else ["sh", "-c", SHELL]
        stdin, to = os.pipe()
        back, stdout = os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, stdin, 0), (os.POSIX_SPAWN_DUP2, stdout, 1)]
        self.init = os.posix_spawnp(words[0], words, os.environ, file_actions=actions)
        os.close(stdin)
        os.close(stdout)
        self._pipes = [to, back]
        if threaded:
            assert os.read(back, 100) == b"ready\n"
        self.cgroup.add(self.init)
        self.known, self.torn, self.revived, self.owed = False, False, 0, True

    def fork(self) -> int:
        """Let its init have a child more."""
        os.write(self._pipes[0], b"\n")
        return int(os.read(self._pipes[1], 100))

    def join(self) -> int:
        """A process more that is no child of its init."""
        pid = spawn("sleep", "infinity")
        self.cgroup.add(pid)
        self.joined.append(pid)
        return pid

    def kill(self, *, init_alone: bool = False) -> None:
        if self.init:
            kill(self.init)
            for descriptor in self._pipes:
                os.close(descriptor)
        self.init = 0
        self.joined.clear()
        if not init_alone:
            for pid in self.pids():
                kill(pid)

    def be_in(self, ctrl_group: str) -> None:
        """Say in the bundle that it is in a ctrl_group (none: the root's)."""
        self.ctrl_group = ctrl_group
        config: dict[str, object] = {"annotations": self._annotations()}
        if ctrl_group:
            config["linux"] = {"intelRdt": {"closID": ctrl_group}}
        self.bundle.mkdir(parents=True, exist_ok=True)
        (self.bundle / "config.json").write_text(json.dumps(config))

    def created(self) -> dict[str, object]:
        return {**created(self.id, self.init), "annotations": self._annotations(), "bundle": str(self.bundle)}

    def stopped(self) -> dict[str, object]:
        return {**stopped(self.id), "bundle": str(self.bundle)}

    def _annotations(self) -> dict[str, str]:
        by_runtime = {"io.kubernetes.pod.uid": self.uid} if self.uid else {}
        return {**by_runtime, **self.author}


def haunted(containers: Iterable[SimulatedContainer]) -> list[SimulatedContainer]:
    """Those that are dead, but for processes that outlived their init."""
    return [it for it in containers if not it.init and it.pids()]


def cgroup_of(top: str, uid: str | None, container: str) -> Cgroup:
    """As kubelet and CRI-O, or Podman, name it; it is not made."""
    slices = f"kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice/crio" if uid else "machine.slice/libpod"
    made = Cgroup.__new__(Cgroup)
    made.path = f"{top}/{slices}-{container}.scope"
    made.directory = mount_point() / made.path.lstrip("/")
    return made


@dataclass(frozen=True)
class Deed:
    """What was done to groups by somebody else than this process: `mkdir`, `rmdir` or `tasks`; the tasks it touched."""

    op: str
    path: str
    tasks: frozenset[int]


class ModelWorld:
    """The model of resctrl behind FUSE. Where each task is, is known from the log of what was done."""

    def __init__(self, resctrl: Mounted, *, scarce: bool) -> None:
        self.root = resctrl.root
        self.scarce = scarce
        self.mounted = True
        self._resctrl = resctrl
        self._log = resctrl.log.open("rb")
        self._half = b""
        self._place: dict[int, str] = {}

    def close(self) -> None:
        self._log.close()

    def reset(self, decay_ms: int) -> None:
        """No group, and every RMID to be had; a freed one is back after `decay_ms`."""
        self.unmount()
        self.mount()
        self._resctrl.control(do="set", decay_ms=decay_ms)
        self.settle()
        self.deeds()

    def unmount(self) -> None:
        self._resctrl.control(do="unmount")
        self.mounted = False
        self.deeds()
        self._place.clear()

    def mount(self) -> None:
        self._resctrl.control(do="mount")
        self.mounted = True

    def settle(self) -> None:
        self._resctrl.control(do="settle")

    def free(self) -> int:
        """How many RMIDs can be had."""
        return len(self._resctrl.control(do="state")["free"])

    def groups(self) -> dict[str, set[int]]:
        """The tasks of each mon_group."""
        found = self._resctrl.groups()
        return {path.strip("/"): set(group["tasks"]) for path, group in found.items() if "/mon_groups/" in path}

    def is_in(self, pid: int, group: str) -> bool:
        self.deeds()
        return self._place.get(pid) == group

    def born(self, pid: int, parent: int = 0) -> None:
        self.deeds()
        self._place[pid] = self._place.get(parent, "")

    def look(self) -> None:
        """Let the model see who forked whom, before it is too late to see: the kernel needs no look for that."""
        self._resctrl.control(do="state")

    def watch(self) -> None:
        """Deeds are from now on."""

    def deeds(self) -> list[Deed]:
        """Those since the last call. Half a line is being written, and is for the next one."""
        *lines, self._half = (self._half + self._log.read()).split(b"\n")
        return [deed for line in lines for deed in self._deed(Event.from_json(line.decode()))]

    def _deed(self, event: Event) -> Iterator[Deed]:
        if event.result != "ok":
            return
        path, tasks = event.path.strip("/"), frozenset(seen.pid for seen in event.pids)
        if event.op == "tasks":
            path = path.rpartition("tasks")[0].strip("/")
            self._place.update(dict.fromkeys(tasks, path))
        elif event.op == "rmdir":
            tasks = frozenset(pid for pid, at in self._place.items() if f"{at}/".startswith(f"{path}/"))
            self._place.update(dict.fromkeys(tasks, ""))
        if event.writer_pid != os.getpid():
            yield Deed(event.op, path, tasks)


class KernelWorld:
    """The guest's resctrl. What was done is seen by a look before and one after it."""

    scarce = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self.mounted = True
        self._before: dict[str, set[int]] = {}

    def close(self) -> None:
        if not self.mounted:
            self.mount()
        remove_groups(self.root)

    def reset(self, _decay_ms: int) -> None:
        """Limbo is as the machine has it."""
        self.close()

    def unmount(self) -> None:
        subprocess.run(["umount", self.root], check=True)
        self.mounted = False

    def mount(self) -> None:
        subprocess.run(["mount", "-t", "resctrl", "resctrl", self.root], check=True)
        self.mounted = True

    def settle(self) -> None:
        """Wait while no RMID can be had, but some can soon."""
        try:
            make_group(self.root / "mon_groups" / "probe")
        except OSError:
            return
        (self.root / "mon_groups" / "probe").rmdir()

    def free(self) -> int:
        """Nobody knows: what is in limbo comes back when the kernel looks."""
        return 0

    def groups(self) -> dict[str, set[int]]:
        found = [*self.root.glob("mon_groups/*"), *self.root.glob("*/mon_groups/*")]
        return {str(path.relative_to(self.root)): tasks_of(path) for path in found}

    def is_in(self, pid: int, group: str) -> bool:
        path = self.root / group
        return path.exists() and pid in tasks_of(path)

    def born(self, pid: int, parent: int = 0) -> None:
        pass

    def look(self) -> None:
        pass

    def watch(self) -> None:
        self._before = self.groups()

    def deeds(self) -> list[Deed]:
        now = self.groups()
        gone = [Deed("rmdir", path, frozenset(tasks)) for path, tasks in self._before.items() if path not in now]
        changed = [path for path in now if path in self._before and not is_ours(path)]
        foreign = [Deed("tasks", path, frozenset(now[path] ^ self._before[path])) for path in changed]
        self._before = now
        return [*gone, *(deed for deed in foreign if deed.tasks)]


World = Union[ModelWorld, KernelWorld]


def worlds(directory: Path, few: int, many: int) -> Iterator[AbstractContextManager[ModelWorld | KernelWorld]]:
    """The real one, where there is one; else one with `many` RMIDs and one with `few`."""
    if REAL_ROOT is not None:
        yield closing(KernelWorld(REAL_ROOT))
        return
    for rmids in (many, few):
        yield _modelled(directory / str(rmids), rmids, scarce=rmids == few)


@contextmanager
def _modelled(directory: Path, rmids: int, *, scarce: bool) -> Iterator[ModelWorld]:
    directory.mkdir()
    machine = {"l3_domains": 1, "packages": 1, "perf": False, "limbo_tick_ms": 10}
    with mounted(directory, rmids=rmids, **machine) as resctrl, closing(ModelWorld(resctrl, scarce=scarce)) as model:
        yield model


def tasks_of(group: Path) -> set[int]:
    return set(map(int, (group / "tasks").read_text(encoding="ascii").split()))


def is_ours(group: str) -> bool:
    return group.rpartition("/")[2].startswith(OURS)


def remove_cgroups(top: Path) -> None:
    """A whole tree, in which nobody lives any more."""
    for path, _, _ in os.walk(top, topdown=False):
        os.rmdir(path)


def forget(*directories: Path) -> None:
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)
