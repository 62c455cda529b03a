# SPDX-License-Identifier: Apache-2.0
"""What share of a container's work is charged to its group: by the hook,
and by a daemon that polls.

    python3 build.py bench attribution [--workloads NAME...] [--seconds S] [--rounds N] [--polls N]
    [--seed N] ...

docs/performance.md says what the figures mean. Of the rounds with the hook a share is the least, of
those with a poller the mean (the least to the most). It differs from 100 % as far as the two clocks
do, too: the scheduler counts a task from when it chooses or even wakes it, the RMID counts from
when it runs.

This module is its own part in the guest, too. There is one container at a time. Its first program
reads cpu.stat and COUNTER of all packages before all else; its work is counted in loops and forks,
not in seconds. Both are read again when nothing in it runs any more.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from fetch import provision
from tests.bench import common
from tests.bench.common import LOAD, CannotMeasure, Figure, NotReady, Table, compile_static, limits
from tests.kernel import kernel
from tests.kernel.vm import ROOT, GuestFailed, GuestTimeout, Output, Vm, run_in_guest
from tests.support.containers import LineFifo, RuncContainer, bundle_config, make_rootfs
from tests.support.hook import shipped

PROMISE = 99.9
"""Per cent of all that exec does not bring in; what a daemon misses is several per cent."""
PROMISE_OF_WATCH = 99.0
"""Per cent of what exec brings in, with watch, for jobs of 100 ms and more."""
PROMISE_OF_PROBE = 90.0
"""Per cent of the same for shorter ones."""
HOOK, WATCH = "hook", "watch"
"""How a container's tasks come into their group; or by a poller,
whose period is the name of the way.
"""
RESCTRL = Path("/sys/fs/resctrl")
CGROUPS = Path("/sys/fs/cgroup/attribution")
BASE = Path("/tmp/attribution")
ROOTFS = BASE / "rootfs"
SHOWN = {RESCTRL: "/resctrl", CGROUPS: "/cgroup"}
"""Where the containers find them."""
COUNTER = "stalls_llc_miss"
"""The event whose fake counts nanoseconds (fake-rdt.patch).
core_energy comes in steps of 0.3 ms, MBM of 10 us.
"""
DEADLINE = 300.0
UP = "echo up >/gates/up"
GO = "read go </gates/go"


class Workload(NamedTuple):
    """What a container does, as text for /bin/sh. {loops} take the planned time on one CPU."""

    command: str
    execs: int = 0  # how many jobs are started in it by exec
    # Seconds of CPU time of each; a job measures itself what it used and what its group was
    # charged.
    job: float = 0
    every: float = 0  # seconds from one exec to the next; 0: one after another


WORKLOADS = {
    "busy loop": Workload(f"/bin/load spin {{loops}} 1; {UP}; {GO}"),
    "forking shell": Workload(
        f"i=0; while [ $i -lt {{forks}} ]; do (:); i=$((i+1)); done; {UP}; {GO}"
    ),
    "16 threads": Workload(f"/bin/load spin {{loops}} 16; {UP}; {GO}"),
    "daemon": Workload(f"(setsid sh -c '/bin/load spin {{loops}} 1; {UP}' &); {GO}"),
    "jobs of 2 s by exec": Workload(f"{UP}; {GO}", execs=2, job=2),
    "jobs of 100 ms by exec": Workload(f"{UP}; {GO}", execs=20, job=0.1),
    "a probe of 20 ms each second": Workload(f"{UP}; {GO}", execs=10, job=0.02, every=1),
}


class GuestPlan(NamedTuple):
    """What to measure: each workload so many rounds with the hook and, if `polls`,
    with a poller of each period.
    """

    workloads: Sequence[str] = tuple(WORKLOADS)
    runtimes: Sequence[str] = ("runc", "crun")
    periods: Sequence[float] = (1.0, 3.0)
    rounds: int = 1
    polls: int = 2
    seconds: float = 2
    forks: int = 1000
    execs: int = 20
    """The most jobs by exec in a container."""
    seed: int = 1


class Run(NamedTuple):
    """One container that has done its work, in seconds of CPU time."""

    workload: str
    runtime: str
    way: str
    used: float
    charged: float


# --- On the host


@dataclass(frozen=True)
class CountingVm(Vm):
    """What the host does besides does not show in any figure.

    One CPU. The kernel counts a task that it wakes on an idle CPU as running while that CPU is
    still being woken (rq_clock_skip_update), which takes a real one microseconds and an emulated
    one milliseconds: where children run on the other CPU, cpu.stat then says 10 % and more too
    much.
    """

    sockets: int = 1
    smp: int = 1
    append: str = "rdt=perf"
    """Without it only energy and activity are counted."""
    shift: int = 3
    timeout: float = 3600


def run_guest(plan: GuestPlan, stderr: Output = None) -> list[Run]:
    """Takes some minutes for the whole plan.

    Raises CannotMeasure, and what kernel.ready() and run_in_guest() raise.
    """
    kernel.ready()
    if absent := provision.install(("busybox-static", "crun", "gcc", "libc6-dev", "runc")):
        raise NotReady("; ".join(absent))
    if not shipped().is_file():
        raise CannotMeasure(f"no {shipped()}: run `python3 build.py`")
    with tempfile.TemporaryDirectory(prefix="attribution-") as directory:
        share = Path(directory)
        compile_static(LOAD, share / "load")
        words = [
            sys.executable,
            "-m",
            "tests.bench.attribution",
            "--guest",
            json.dumps(plan._asdict()),
            str(shipped()),
        ]
        with (share / "out").open("w+", encoding="utf-8") as out:
            shown = [shipped().parent]
            status = run_in_guest(
                words, CountingVm(), share=share, cwd=ROOT, shown=shown, stdout=out, stderr=stderr
            )
            out.seek(0)
            lines = [json.loads(line) for line in out]
    if status != 0:
        raise CannotMeasure(f"the guest's part ended with exit status {status}")
    return [Run(**line) for line in lines]


def tabulate(plan: GuestPlan, runs: Sequence[Run]) -> Table:
    rows = ((workload, runtime) for workload in plan.workloads for runtime in plan.runtimes)
    return Table(
        "share of the CPU time",
        [figure for row in rows for figure in _make_figures(plan, runs, *row)],
    )


def promise_of(workload: str) -> float:
    """Per cent that are promised: of what exec brings in with watch,
    of all else by the hook alone.
    """
    if not WORKLOADS[workload].execs:
        return PROMISE
    return PROMISE_OF_WATCH if WORKLOADS[workload].job >= 0.1 else PROMISE_OF_PROBE


def _make_figures(
    plan: GuestPlan, runs: Sequence[Run], workload: str, runtime: str
) -> Iterator[Figure]:
    """The figures of a line."""

    def shares(way: str) -> list[float]:
        """Return the charged per cent of each run."""
        key = (workload, runtime, way)
        return [
            100 * run.charged / run.used
            for run in runs
            if (run.workload, run.runtime, run.way) == key
        ]

    row = f"{workload}, {runtime}"
    used = [run.used for run in runs if (run.workload, run.runtime) == (workload, runtime)]
    yield Figure(row, "CPU time", used, digits=1, unit=" s", center=mean, beside=None)
    for way, column in ((HOOK, "this hook"), (WATCH, "with watch")):
        if share := shares(way):
            promise = (
                promise_of(workload) if (way == WATCH) == (WORKLOADS[workload].execs > 0) else None
            )
            yield Figure(
                row, column, share, promise, unit=" %", at_least=True, center=min, beside=None
            )
    for period in plan.periods:
        if share := shares(f"{period:g}"):
            yield Figure(
                row,
                f"poller, every {period:g} s",
                share,
                digits=0,
                unit=" %",
                center=mean,
                beside=limits,
            )


def measure(plan: GuestPlan) -> Iterator[Table]:
    """Yield the table. Raises CannotMeasure."""
    try:
        yield tabulate(plan, run_guest(plan))
    except (kernel.CannotBuild, GuestFailed, GuestTimeout) as error:
        raise CannotMeasure(str(error)) from error


# --- In the guest


class Reading(NamedTuple):
    """A cgroup and a mon_group at one moment, in seconds."""

    used: float
    charged: float


def parse(text: str) -> Reading:
    """Read cpu.stat and the counter of each package, in any order.

    A counter that has never run is "Unavailable".
    """
    words = [line.split() for line in text.splitlines()]
    used = next(int(line[1]) for line in words if line[0] == "usage_usec")
    return Reading(
        used / 1e6,
        sum(int(line[0]) for line in words if len(line) == 1 and line[0] != "Unavailable") / 1e9,
    )


class MeasuredContainer:
    """One container, from its FIFOs to its end. Its cgroup and its group are known by its name."""

    def __init__(self, name: str, workload: Workload, loops: int, plan: GuestPlan) -> None:
        self.name, self.workload = name, workload
        self._execs = min(workload.execs, plan.execs)
        self.cgroup = CGROUPS / name
        self.group = RESCTRL / "mon_groups" / f"oci-{name}"
        self.gates = BASE / name / "gates"
        self.gates.mkdir(parents=True)
        packages = sorted(RESCTRL.glob(f"mon_data/*/{COUNTER}"))
        self.files = [
            *(self.group / path.relative_to(RESCTRL) for path in packages),
            self.cgroup / "cpu.stat",
        ]
        """Of a reading; cpu.stat is the last. `seen`: where the container finds them."""
        self.seen = [str(path) for path in self.files]
        for place, shown in SHOWN.items():
            self.seen = [path.replace(str(place), shown, 1) for path in self.seen]
        self._fifos = {end: LineFifo(self.gates / end) for end in ("first", "up", "go")}
        text = f"echo first >/gates/first; {workload.command.format(loops=loops, forks=plan.forks)}"
        self.command = [
            "/bin/load",
            "begin",
            "/gates/begin",
            *self.seen,
            "--",
            "/bin/sh",
            "-c",
            text,
        ]
        self._container: RuncContainer

    def start(self, runtime: str, hooks: Sequence[object]) -> None:
        config = bundle_config(ROOTFS, self.command, f"/{CGROUPS.name}/{self.name}", self.gates)
        config["hooks"] = {"createRuntime": hooks, "poststop": hooks}
        (self.gates.parent / "config.json").write_text(json.dumps(config))
        self._container = RuncContainer(
            self.name, self.gates.parent, [runtime, f"--root={BASE}/{runtime}-state"]
        )

    def hear(self, end: str) -> None:
        """Wait for a line that the container writes there."""
        try:
            self._fifos[end].line(end)
        except TimeoutError as error:
            raise TimeoutError(f"{self.name}: {error}: {self._container.output()}") from None

    def measure(self) -> Reading:
        """Return what it has used and was charged,
        from before it did anything until nothing in it runs any more.
        """
        first, last = parse((self.gates / "begin").read_text()), None
        while (now := parse("".join(path.read_text() for path in self.files))) != last:
            last = now
            time.sleep(0.02)
        return Reading(now.used - first.used, now.charged - first.charged)

    def exec_jobs(self, loops: int) -> Reading:
        """Start jobs by exec; return what they used and what their group
        was charged, as they see it.
        """
        command = [
            *self._container.command,
            "exec",
            self.name,
            "/bin/load",
            "job",
            str(loops),
            *self.seen[:-1],
        ]
        used, charged, due = 0, 0, time.monotonic()
        for _ in range(self._execs):
            time.sleep(max(0.0, due - time.monotonic()))
            due += self.workload.every
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                check=True,
                timeout=DEADLINE,
            )
            measured = list(map(int, done.stdout.split()))
            used, charged = used + measured[0], charged + measured[1]
        return Reading(used / 1e9, charged / 1e9)

    def end(self) -> None:
        self._fifos["go"].write("go\n")
        assert self._container.wait() == 0, self._container.output()
        for fifo in self._fifos.values():
            fifo.close()
        for directory in (self.group, self.cgroup):
            with suppress(FileNotFoundError):  # our poststop and the runtime have removed theirs
                directory.rmdir()


class Poller(threading.Thread):
    """A daemon without a hook: at each tick it writes every thread in the
    cgroup to the group's tasks.
    """

    def __init__(self, container: MeasuredContainer, period: float, phase: float) -> None:
        super().__init__(daemon=True)
        self._container = container
        self._period = period
        self._next = time.monotonic() + phase
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
        # The name of each, and the seconds until its poller begins to look: the same for all
        # workloads and runtimes, so that their lines can be compared. Each round has its part of
        # the period, and chance decides where in it.
        self._ways: list[tuple[str, float]] = [(HOOK, 0), (WATCH, 0)] * plan.rounds
        for period in plan.periods:
            parts = range(plan.polls)
            self._ways += [
                (f"{period:g}", (part + chance.random()) * period / plan.polls) for part in parts
            ]

    def runs(self) -> Iterator[Run]:
        for name in self.plan.workloads:
            print(f"attribution: {name}", file=sys.stderr, flush=True)
            for way, phase in self._ways:
                for runtime in self.plan.runtimes if WORKLOADS[name].execs or way != WATCH else ():
                    yield self._run(name, runtime, way, phase)

    def _run(self, name: str, runtime: str, way: str, phase: float) -> Run:
        """Run a container, and measure it from its first instruction until it has done its work."""
        self._count += 1
        workload, is_hooked = WORKLOADS[name], way in {HOOK, WATCH}
        container = MeasuredContainer(f"c{self._count}", workload, self._loops, self.plan)
        ours = {"path": self._hook, "args": ["resctrl-mon-hook", "hook"], "timeout": 60}
        if not is_hooked:
            container.group.mkdir()
        container.start(runtime, [ours] if is_hooked else [])
        with ExitStack() as stack:
            container.hear("first")
            if way == WATCH:
                self._watch(stack)
            elif way != HOOK:
                # Not before: an emulator draws out the start of a container,
                # and a period stays what it is
                poller = Poller(container, float(way), phase)
                stack.callback(poller.stop)
                poller.start()
            container.hear("up")
            job_loops = round(self._loops * workload.job / self.plan.seconds)
            work = container.exec_jobs(job_loops) if workload.execs else container.measure()
        container.end()
        return Run(name, runtime, way, *work)

    def _watch(self, stack: ExitStack) -> None:
        """Run `watch` beside it, from now until the end of the run."""
        process = subprocess.Popen(
            [self._hook, "watch"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        stack.callback(process.wait, DEADLINE)
        stack.callback(process.terminate)
        assert process.stderr is not None
        line = process.stderr.readline()
        if "listening" not in line:
            raise RuntimeError(line.strip())


def loops_in(seconds: float) -> int:
    """Return how many loops take about so much CPU time here and now;
    from then on all take the same number.
    """
    tries = 100_000_000
    before = os.times()
    subprocess.run([ROOTFS / "bin/load", "spin", str(tries), "1"], check=True)
    took = os.times().children_user - before.children_user
    return round(tries * seconds / max(took, 0.01))


def run_in_this_guest(text: str, hook: str) -> None:
    """Print a line for each run; GuestPlan and Run are JSON. The root file system is in memory."""
    make_rootfs(ROOTFS)
    shutil.copy("/tmp/share/load", ROOTFS / "bin/load")
    (ROOTFS / "bin/setsid").symlink_to("busybox")
    # A shell's job in the background opens it.
    os.mknod(ROOTFS / "dev/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    CGROUPS.mkdir()
    for place, shown in SHOWN.items():
        (ROOTFS / shown[1:]).mkdir()
        subprocess.run(["mount", "--bind", str(place), f"{ROOTFS}{shown}"], check=True)
    for run in GuestBench(GuestPlan(**json.loads(text)), hook).runs():
        print(json.dumps(run._asdict()), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--guest"]:
        run_in_this_guest(*sys.argv[2:])
    else:
        sys.exit(common.run("attribution", __doc__, GuestPlan(), measure))
