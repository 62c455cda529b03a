# SPDX-License-Identifier: Apache-2.0
"""The attribution benchmark's part in the guest: containers, what they used, and what their groups were charged.

    python3 -m tests.bench.attribution_guest PLAN HOOK     # prints a line each run; GuestPlan and Run are JSON

There is one container at a time. Its first program reads cpu.stat and COUNTER of all packages before all else; its work
is counted in loops and forks, not in seconds. The benchmark reads both again when nothing in it runs any more.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from tests.support.containers import Deadline, ForegroundContainer, LineFifo, bundle_config, make_rootfs

RESCTRL = Path("/sys/fs/resctrl")
CGROUPS = Path("/sys/fs/cgroup/attribution")
BASE = Path("/tmp/attribution")
ROOTFS = BASE / "rootfs"
LOAD = "/tmp/share/load"
SHOWN = {RESCTRL: "/resctrl", CGROUPS: "/cgroup"}
"""Where the containers find them."""
COUNTER = "stalls_llc_miss"
"""The event whose fake counts nanoseconds (fake-rdt.patch). core_energy comes in steps of 0.3 ms, MBM of 10 us."""
DEADLINE = 300.0
UP = "echo up >/gates/up"
GO = "read go </gates/go"
HOOK, WATCH, REFERENCE = "hook", "watch", "reference"


class Workload(NamedTuple):
    """What a container does, as text for /bin/sh. {loops} take the planned time on one CPU."""

    command: str
    execs: int = 0  # how many jobs are started in it by exec
    job: float = 0  # seconds of CPU time of each; a job measures itself what it used and what its group was charged
    every: float = 0  # seconds from one exec to the next; 0: one after another


WORKLOADS = {
    "busy loop": Workload(f"/bin/load spin {{loops}} 1; {UP}; {GO}"),
    "forking shell": Workload(f"i=0; while [ $i -lt {{forks}} ]; do (:); i=$((i+1)); done; {UP}; {GO}"),
    "16 threads": Workload(f"/bin/load spin {{loops}} 16; {UP}; {GO}"),
    "daemon": Workload(f"(setsid sh -c '/bin/load spin {{loops}} 1; {UP}' &); {GO}"),
    "jobs of 2 s by exec": Workload(f"{UP}; {GO}", execs=2, job=2),
    "jobs of 100 ms by exec": Workload(f"{UP}; {GO}", execs=20, job=0.1),
    "a probe of 20 ms each second": Workload(f"{UP}; {GO}", execs=10, job=0.02, every=1),
}


class GuestPlan(NamedTuple):
    """What to measure: each workload so many rounds with the hook and, if `polls`, with a poller of each period."""

    workloads: Sequence[str] = tuple(WORKLOADS)
    runtimes: Sequence[str] = ("runc", "crun")
    periods: Sequence[float] = (1.0, 3.0)
    rounds: int = 1
    polls: int = 2
    seconds: float = 2
    forks: int = 1000
    seed: int = 1


class Way(NamedTuple):
    """How a container's tasks come into their group: HOOK, ..., or by a poller, whose period is the name."""

    name: str
    phase: float = 0  # seconds until the poller begins to look


class Run(NamedTuple):
    """One container that has done its work, in seconds of CPU time."""

    workload: str
    runtime: str
    way: str
    used: float
    charged: float


class Reading(NamedTuple):
    """A cgroup and a mon_group at one moment, in seconds."""

    used: float
    charged: float


def parse(text: str) -> Reading:
    """Read cpu.stat and the counter of each package, in any order. A counter that has never run is "Unavailable"."""
    words = [line.split() for line in text.splitlines()]
    used = next(int(line[1]) for line in words if line[0] == "usage_usec")
    return Reading(used / 1e6, sum(int(line[0]) for line in words if len(line) == 1 and line[0] != "Unavailable") / 1e9)


class MeasuredContainer:
    """One container, from its FIFOs to its end. Its cgroup and its group are known by its name."""

    def __init__(self, name: str, workload: Workload, loops: int, forks: int) -> None:
        self.name, self.workload = name, workload
        self.cgroup = CGROUPS / name
        self.group = RESCTRL / "mon_groups" / f"oci-{name}"
        self.gates = BASE / name / "gates"
        self.gates.mkdir(parents=True)
        self._fifos = {end: LineFifo(self.gates / end) for end in ("first", "up", "go")}
        text = f"echo first >/gates/first; {workload.command.format(loops=loops, forks=forks)}"
        self.command = ["/bin/load", "begin", "/gates/begin", *self.seen(), "--", "/bin/sh", "-c", text]
        self._container: ForegroundContainer

    def files(self) -> list[Path]:
        """The files of a reading; cpu.stat is the last."""
        packages = sorted(RESCTRL.glob(f"mon_data/*/{COUNTER}"))
        return [*(self.group / path.relative_to(RESCTRL) for path in packages), self.cgroup / "cpu.stat"]

    def seen(self) -> list[str]:
        """The files where the container finds them."""
        found = [str(path) for path in self.files()]
        for place, shown in SHOWN.items():
            found = [path.replace(str(place), shown, 1) for path in found]
        return found

    def start(self, runtime: str, hooks: Sequence[object]) -> None:
        config = bundle_config(ROOTFS, self.command, f"/{CGROUPS.name}/{self.name}", self.gates)
        config["hooks"] = {"createRuntime": hooks, "poststop": hooks}
        (self.gates.parent / "config.json").write_text(json.dumps(config))
        self._container = ForegroundContainer(self.name, self.gates.parent, [runtime, f"--root={BASE}/{runtime}-state"])

    def hear(self, end: str) -> None:
        """Wait for a line that the container writes there."""
        try:
            self._fifos[end].line(Deadline(DEADLINE), end)
        except TimeoutError as error:
            raise TimeoutError(f"{self.name}: {error}: {self._container.output()}") from None

    def began(self) -> Reading:
        """Return what the container read before it did anything else."""
        return parse((self.gates / "begin").read_text())

    def settled(self) -> Reading:
        """Return the reading when nothing in the container runs any more."""
        last, deadline = None, Deadline(DEADLINE)
        while (now := parse("".join(path.read_text() for path in self.files()))) != last:
            if not deadline.left():
                raise TimeoutError(f"{self.cgroup} does not come to rest")
            last = now
            time.sleep(0.02)
        return now

    def exec_command(self, *words: str) -> list[str]:
        return [*self._container.command, "exec", self.name, *words]

    def end(self) -> None:
        self._fifos["go"].write("go\n")
        assert self._container.wait() == 0, self._container.output()
        for fifo in self._fifos.values():
            fifo.close()
        for directory in (self.group, self.cgroup):
            with suppress(FileNotFoundError):  # our poststop and the runtime have removed theirs
                directory.rmdir()


class Poller(threading.Thread):
    """A daemon without a hook: at each tick it writes every thread in the cgroup to the group's tasks."""

    def __init__(self, container: MeasuredContainer, way: Way) -> None:
        super().__init__(daemon=True)
        self._container = container
        self._period = float(way.name)
        self._next = time.monotonic() + way.phase
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(max(0.0, self._next - time.monotonic())):
            self._next += self._period
            with open(self._container.group / "tasks", "wb", buffering=0) as tasks:
                for pid in (self._container.cgroup / "cgroup.procs").read_text().split():
                    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                        for thread in os.listdir(f"/proc/{pid}/task"):
                            with suppress(ProcessLookupError):
                                tasks.write(thread.encode())

    def stop(self) -> None:
        self._over.set()
        self.join()


class GuestBench:
    """Runs what is planned. Containers are numbered."""

    def __init__(self, plan: GuestPlan, hook: str) -> None:
        self.plan, self._hook = plan, hook
        self._count = 0
        self._loops = loops_in(plan.seconds)
        chance = random.Random(plan.seed)
        # The same for all workloads and runtimes, so that their lines can be compared
        self._ways = [*([Way(HOOK), Way(WATCH)] * plan.rounds)]
        for period in plan.periods:
            # Each round has its part of the period, and chance decides where in it
            parts = range(plan.polls)
            self._ways += [Way(f"{period:g}", (part + chance.random()) * period / plan.polls) for part in parts]

    def runs(self) -> Iterator[Run]:
        for name in self.plan.workloads:
            print(f"attribution: {name}", file=sys.stderr, flush=True)
            workload = WORKLOADS[name]
            if not workload.execs:
                yield self._run(name, "none", Way(REFERENCE))
            for way in self._ways:
                for runtime in self.plan.runtimes if workload.execs or way.name != WATCH else ():
                    yield self._run(name, runtime, way)

    def _run(self, name: str, runtime: str, way: Way) -> Run:
        """Run a container, and measure it from its first instruction until it has done its work."""
        self._count += 1
        container = MeasuredContainer(f"c{self._count}", WORKLOADS[name], self._loops, self.plan.forks)
        ours = {"path": self._hook, "args": ["resctrl-mon-hook", "hook"], "timeout": 60}
        if way.name not in {HOOK, WATCH}:
            container.group.mkdir()
        container.start(
            self._make_reference(container) if way.name == REFERENCE else runtime,
            [ours] if way.name in {HOOK, WATCH} else [],
        )
        with ExitStack() as stack:
            container.hear("first")
            if way.name == WATCH:
                self._watch(stack)
            elif way.name not in {HOOK, REFERENCE}:
                # Not before: an emulator draws out the start of a container, and a period stays what it is
                poller = Poller(container, way)
                stack.callback(poller.stop)
                poller.start()
            container.hear("up")
            if container.workload.execs:
                work = self._exec_jobs(container)
            else:
                first, last = container.began(), container.settled()
                work = Reading(last.used - first.used, last.charged - first.charged)
        container.end()
        return Run(name, runtime, way.name, *work)

    def _make_reference(self, container: MeasuredContainer) -> str:
        """Make a program in a runtime's place, which puts itself into the group, and then becomes the workload.

        Its share is the most that the kernel can attribute.
        """
        container.cgroup.mkdir()
        enter = [f"echo 0 >{path}" for path in (container.group / "tasks", container.cgroup / "cgroup.procs")]
        program = container.gates.parent / "enter"
        become = f"exec chroot {ROOTFS} {shlex.join(container.command)}"
        lines = ["#!/bin/sh -e", f"mount --bind {container.gates} {ROOTFS}/gates", *enter, become]
        program.write_text("\n".join(lines))
        program.chmod(0o755)
        return str(program)

    def _exec_jobs(self, container: MeasuredContainer) -> Reading:
        """Start jobs by exec; return what they used and what their group was charged, as they see it."""
        workload = container.workload
        loops = round(self._loops * workload.job / self.plan.seconds)
        command = container.exec_command("/bin/load", "job", str(loops), *container.seen()[:-1])
        used, charged, due = 0, 0, time.monotonic()
        for _ in range(workload.execs):
            time.sleep(max(0.0, due - time.monotonic()))
            due += workload.every
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, timeout=DEADLINE
            )
            measured = list(map(int, done.stdout.split()))
            used, charged = used + measured[0], charged + measured[1]
        return Reading(used / 1e9, charged / 1e9)

    def _watch(self, stack: ExitStack) -> None:
        """Run `watch` beside it, from now until the end of the run."""
        process = subprocess.Popen([self._hook, "watch"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        stack.callback(process.wait, DEADLINE)
        stack.callback(process.terminate)
        assert process.stderr is not None
        line = process.stderr.readline()
        if "listening" not in line:
            raise RuntimeError(line.strip())


def loops_in(seconds: float) -> int:
    """Return how many loops take about so much CPU time here and now; from then on all take the same number."""
    tries = 100_000_000
    before = os.times()
    subprocess.run([ROOTFS / "bin/load", "spin", str(tries), "1"], check=True)
    took = os.times().children_user - before.children_user
    return round(tries * seconds / max(took, 0.01))


def prepare() -> None:
    """Make the root file system, in memory."""
    make_rootfs(ROOTFS)
    shutil.copy(LOAD, ROOTFS / "bin/load")
    (ROOTFS / "bin/setsid").symlink_to("busybox")
    os.mknod(ROOTFS / "dev/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))  # a shell's job in the background opens it
    CGROUPS.mkdir()
    for place, shown in SHOWN.items():
        (ROOTFS / shown[1:]).mkdir()
        subprocess.run(["mount", "--bind", str(place), f"{ROOTFS}{shown}"], check=True)


def main(text: str, hook: str) -> None:
    prepare()
    for run in GuestBench(GuestPlan(**json.loads(text)), hook).runs():
        print(json.dumps(run._asdict()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
