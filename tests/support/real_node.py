# SPDX-License-Identifier: Apache-2.0
"""The simulator's node with real processes, cgroups and hooks, on a real mount of resctrl or of its model.

So the scenarios of tests.simulator can be played on it, and its oracle judges what is left. Paths of resctrl and of
the run directory are translated to where those are on a machine.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.kernel.inside import fill, make_group
from tests.resctrlfs import Mounted
from tests.simulator.kernel import RESCTRL, above
from tests.simulator.machine import RUN
from tests.simulator.node import ContainerLife, SimulatedNode
from tests.simulator.oracle import expect
from tests.simulator.schedule import SimulatedProcess
from tests.support.cgroups import mount_point
from tests.support.hook import DEADLINE, Hook, end


class RealTask(NamedTuple):
    pid: int
    born: int


class RealKernel:
    """What tests.simulator.kernel.Kernel simulates.

    `model`: None of the real kernel. `rmids`: how many mon_groups of ours there can be.
    """

    def __init__(self, root: Path, model: Mounted | None, rmids: int = 1000) -> None:
        self.now = 0.0
        self.rmids = rmids
        self._root = root
        self.model = model
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        if rmids < 100:  # others have all the rest
            for number in range(fill(root / "mon_groups"))[:rmids]:
                (root / f"mon_groups/filler-{number}").rmdir()
            if rmids:
                make_group(root / "mon_groups/probe")
                (root / "mon_groups/probe").rmdir()
                self.end_limbo()

    def close(self) -> None:
        """End all processes."""
        for pid in list(self._processes):
            self.die(pid)

    def where(self, path: str) -> Path:
        """Where a path of resctrl is."""
        return self._root / path[len(RESCTRL) :].lstrip("/")

    def spawn(self, _pid: int, place: str, *, born: int, group: str) -> RealTask:  # noqa: ARG002  the kernel's to choose
        process = subprocess.Popen(["sleep", "infinity"], stdin=subprocess.DEVNULL)
        self._processes[process.pid] = process
        cgroup = mount_point() / place[len("0::/") :]
        cgroup.mkdir(parents=True, exist_ok=True)
        (cgroup / "cgroup.procs").write_text(str(process.pid))
        for path in dict.fromkeys([above(group), group]):
            if path != RESCTRL:
                self.move(process.pid, path)
        stat = Path(f"/proc/{process.pid}/stat").read_text()
        return RealTask(process.pid, int(stat.rpartition(")")[2].split()[19]))

    def die(self, pid: int) -> None:
        if pid in self._processes:
            end(self._processes.pop(pid))

    @property
    def groups(self) -> list[str]:
        """The paths of all groups."""
        found = [it.parent for it in self._find("*/mon_groups")]
        return [RESCTRL, *(f"{RESCTRL}/{it.relative_to(self._root)}" for it in found), *self.mon_groups()]

    def mon_groups(self) -> list[str]:
        found = [*self._find("mon_groups/*"), *self._find("*/mon_groups/*")]
        return [f"{RESCTRL}/{it.relative_to(self._root)}" for it in found]

    def _find(self, pattern: str) -> list[Path]:
        """What matches; nothing if resctrl is unmounted while this looks."""
        with suppress(FileNotFoundError):
            return list(self._root.glob(pattern))
        return []

    def tids(self, path: str) -> set[int]:
        with suppress(FileNotFoundError, OSError):
            return set(map(int, (self.where(path) / "tasks").read_text().split()))
        return set()

    def group_of(self, pid: int) -> str:
        return next((it for it in self.mon_groups() if pid in self.tids(it)), RESCTRL)

    def exists(self, path: str) -> bool:
        return self.where(path).exists()

    def move(self, pid: int, path: str) -> None:
        with suppress(ProcessLookupError, FileNotFoundError):
            (self.where(path) / "tasks").write_text(str(pid))

    def mkdir(self, path: str) -> None:
        make_group(self.where(path))

    def rmdir(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self.where(path).rmdir()

    def add_class(self, name: str) -> str:
        make_group(self._root / name)
        return f"{RESCTRL}/{name}"

    def mount(self) -> None:
        """Mount resctrl again, without any group."""
        if self.model is not None:
            self.model.control(do="unmount")
            self.model.control(do="mount")
            self.end_limbo()
        else:
            while subprocess.run(["umount", self._root], check=False).returncode:  # a hook looks at it
                time.sleep(0.05)
            subprocess.run(["mount", "-t", "resctrl", "resctrl", self._root], check=True)

    def end_limbo(self) -> None:
        """Let every RMID of the model leave limbo now. Those of a real machine leave it in their own time."""
        if self.model is not None:
            self.model.control(do="settle")

    def has_cgroup(self, path: str) -> bool:
        return (mount_point() / path[1:]).is_dir()

    def remove_cgroups(self, top: str) -> None:
        for path, _, _ in os.walk(mount_point() / top.lstrip("/"), topdown=False):
            with suppress(OSError):  # somebody lives in it
                os.rmdir(path)

    def free(self) -> int:
        """How many RMIDs a mkdir finds; 0 of a real machine."""
        return len(self.model.control(do="state")["free"]) if self.model is not None else 0


class RealRun:
    """What tests.simulator.schedule.SimulatedRun simulates: lanes are threads, and their lives are processes."""

    def __init__(self, kernel: RealKernel, hook: Hook, directory: Path) -> None:
        """`directory`: where bundles are."""
        self.kernel = kernel
        self.hook = hook
        self._directory = directory
        self.after_change: Callable[[str, str], None] = lambda _call, _path: None
        self.may_fail = self.has_errno = False
        self.problem: Exception | None = None

    def at_call(self, name: str, path: str) -> None:
        """Each step begins with this."""

    def live(self, life: SimulatedProcess) -> SimulatedProcess:
        life.result = life.body()
        return life

    def together(self, *lanes: Callable[[], object]) -> None:
        """Run these until all have ended; raises what one of them has raised."""
        threads = [threading.Thread(target=self._run, args=(lane,)) for lane in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.problem is not None:
            raise self.problem

    def _run(self, lane: Callable[[], object]) -> None:
        try:
            lane()
        except Exception as error:  # noqa: BLE001  raised by `together`
            self.problem = error

    def add(self, path: str, content: bytes) -> str:
        place = self._where(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        return str(place)

    def remove(self, path: str) -> None:
        place = self._where(path)
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)

    def files(self) -> dict[str, bytes | str]:
        """As SimulatedMachine.files has them."""
        found: dict[str, bytes | str] = {}
        ours, theirs = str(self.kernel.where(RESCTRL)), RESCTRL
        for at, directories, names in os.walk(self.hook.run_dir):
            place = RUN + at[len(str(self.hook.run_dir)) :]
            if not directories and not names:
                found[place + "/"] = ""
            for name in names:
                path = Path(at, name)
                if path.is_symlink():
                    found[f"{place}/{name}"] = "-> " + os.readlink(path).replace(ours, theirs)
                else:
                    found[f"{place}/{name}"] = path.read_bytes().replace(ours.encode(), theirs.encode())
        return found

    def _where(self, path: str) -> Path:
        return self.hook.run_dir / path[len(RUN) + 1 :] if path.startswith(RUN) else self._directory / path.lstrip("/")


class RealNode(SimulatedNode):
    """`moment`: within so many seconds hooks are killed by chance; 0: none is."""

    run: Any
    kernel: Any

    def __init__(self, run: RealRun, options: dict[str, Any], top: str) -> None:
        super().__init__(run, options)  # type: ignore[arg-type]
        self.top = top
        self.moment = 0.0
        self._is_mounting = False
        self._dice = random.Random(top)
        run.after_change = self._look_at_tasks

    def close(self) -> None:
        self.kernel.close()
        self.kernel.remove_cgroups(self.top)

    def begin(self, number: int, group: str | None = None, pid: int | None = None) -> ContainerLife:
        it = super().begin(number, group, pid)
        it.is_out = it.is_out or self._is_mounting  # its hook may put it into a group just before the unmount
        return it

    def make(self, what: str, words: list[str], stdin: bytes = b"") -> SimulatedProcess:
        life = SimulatedProcess(what, lambda: self._run(life, words), stdin)
        return life

    def _run(self, life: SimulatedProcess, words: list[str]) -> int:
        """Run a process of ours to its end, or until it is killed; returns its exit status."""
        command = [*self.run.hook.command(words[0]), *words[1:]]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env={}, cwd="/")
        is_to_die = self.moment and self._dice.random() < 0.3
        timer = threading.Timer(self._dice.uniform(0, self.moment) if is_to_die else DEADLINE, process.kill)
        timer.start()
        _, life.caller.stderr = process.communicate(life.caller.stdin)
        timer.cancel()
        life.is_killed = life.had_fault = process.returncode < 0
        if process.returncode not in (0, 1) and not is_to_die:
            life.error = f"exit status {process.returncode}: {life.caller.stderr.decode()}"
        return int(process.returncode)

    def is_in_group(self, it: ContainerLife) -> bool:
        return it.pid in self.kernel.tids(it.group)

    def move(self, number: int, group: str | None, *_: object) -> None:
        is_told_late = self.kernel.model is not None and not self.find(number).is_member
        self.run.may_fail = self.run.may_fail or is_told_late  # both tries of its hook may read the old bundle
        super().move(number, group)
        self.write_bundle(self.find(number))  # what a host's kernel tells of the model's groups

    def finish(self) -> None:
        self.kernel.end_limbo()  # as time does in the simulator
        super().finish()

    def remount(self, *_: object) -> None:
        self.run.may_fail = True  # those for whom there is none for a moment
        self._is_mounting = True
        super().remount()
        self._is_mounting = False
        for it in self.lives:
            self.write_bundle(it)

    def _look_at_tasks(self, _call: str, _path: str) -> None:
        """Whose createRuntime has succeeded is in its group, unless another tool has taken it out."""
        for it in [it for it in self.lives if it.is_member]:
            is_in = it.is_out or self.is_in_group(it)
            expect(is_in or it.is_out or not it.is_alive, it, "is out of its group")
