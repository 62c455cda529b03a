# SPDX-License-Identifier: Apache-2.0
"""The attribution benchmark's part in the guest: containers, what they used, and what their groups were charged.

    python3 -IS attribution_guest.py PLAN HOOK     # PLAN, and what it prints, a line each run: JSON (GuestPlan, Run)

One container at a time. Its work is counted in loops and forks, not in seconds; when it is done it says so and waits
until it has been read.

What a container used is in its cgroup's cpu.stat. What was charged is its mon_group's COUNTER over all packages. Both
are read by a hook that comes after ours, by the container's first program before it does anything else, and after the
work, when nothing in the container runs any more.
"""

from __future__ import annotations

import json
import os
import random
import select
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, NamedTuple

RESCTRL = Path("/sys/fs/resctrl")
CGROUPS = Path("/sys/fs/cgroup/attribution")
BASE = Path("/tmp/attribution")
ROOTFS = BASE / "rootfs"
WORK = "/tmp/share/work"
SHOWN = {RESCTRL: "/resctrl", CGROUPS: "/cgroup"}
"""Where the containers find them."""
COUNTER = "stalls_llc_miss"
"""The event whose fake counts nanoseconds (fake-rdt.patch). core_energy comes in steps of 0.3 ms, MBM of 10 us."""
DEADLINE = 300.0
UP = "echo up >/gate/$ID.up"
GO = "read go </gate/$ID.go"
HOOK, RECONCILE, WATCH, REFERENCE = "hook", "reconcile", "watch", "reference"
HOOKED = (HOOK, RECONCILE, WATCH)
ONCE = 'sleep "$0"; exec "$1" reconcile'


class Workload(NamedTuple):
    """What a container does, as text for /bin/sh. {loops} take the planned time on one CPU."""

    command: str
    execs: int = 0
    in_ctrl_group: bool = False
    is_reconciled: bool = False
    """What is brought in waits for `reconcile`, and what it uses counts from then on."""
    job: float = 0
    """Seconds of CPU time that each exec works, and says how much it used itself; 0: its part of the planned time."""
    every: float = 0
    """Seconds from one exec to the next; 0: one after another."""


WORKLOADS = {
    "nothing": Workload(f"{UP}; {GO}"),
    "busy loop": Workload(f"/bin/work spin {{loops}} 1; {UP}; {GO}"),
    "forking shell": Workload(f"i=0; while [ $i -lt {{forks}} ]; do (:); i=$((i+1)); done; {UP}; {GO}"),
    "16 threads": Workload(f"/bin/work spin {{loops}} 16; {UP}; {GO}"),
    "daemon": Workload(f"(setsid sh -c '/bin/work spin {{loops}} 1; {UP}' &); {GO}"),
    "in a ctrl_group": Workload(f"/bin/work spin {{loops}} 1; {UP}; {GO}", in_ctrl_group=True),
    "processes by exec": Workload(f"{UP}; {GO}", execs=3),
    "jobs of 2 s by exec": Workload(f"{UP}; {GO}", execs=2, job=2),
    "jobs of 100 ms by exec": Workload(f"{UP}; {GO}", execs=20, job=0.1),
    "a probe of 20 ms each second": Workload(f"{UP}; {GO}", execs=10, job=0.02, every=1),
    "exec, once reconciled": Workload(f"{UP}; {GO}", execs=3, is_reconciled=True),
}


class GuestPlan(NamedTuple):
    """What to measure: each workload so many rounds with the hook and, if `polls`, with a poller of each period.

    `interval`: seconds from one reconcile to the next, through which jobs by exec go on.
    """

    workloads: Sequence[str] = tuple(WORKLOADS)
    runtimes: Sequence[str] = ("runc", "crun")
    periods: Sequence[float] = (1.0, 3.0)
    rounds: int = 1
    polls: int = 2
    seconds: float = 2
    forks: int = 1000
    interval: float = 60
    seed: int = 1


class Run(NamedTuple):
    """One container that has done its work, in seconds of CPU time. way: HOOK, ..., or a poller's period."""

    workload: str
    runtime: str
    way: str
    used: float
    charged: float
    start_used: float
    """By the runtime, in the container's cgroup, between our hook and the first program; how much of it was charged."""
    start_charged: float
    wall: float


class Reading(NamedTuple):
    """A cgroup and a mon_group at one moment, in seconds."""

    used: float
    charged: float

    def since(self, start: Reading) -> Reading:
        return Reading(self.used - start.used, self.charged - start.charged)


def parse(text: str) -> Reading:
    """cpu.stat and the counter of each package, in any order; one that has never run says that it is Unavailable."""
    words = [line.split() for line in text.splitlines()]
    used = next(int(line[1]) for line in words if line[0] == "usage_usec")
    return Reading(used / 1e6, sum(int(line[0]) for line in words if len(line) == 1 and line[0] != "Unavailable") / 1e9)


class MeasuredContainer:
    """One container, from its FIFOs to its end. Its cgroup and its groups are known by its name."""

    def __init__(self, name: str, runtime: str, workload: Workload) -> None:
        self.name = name
        self.runtime = runtime
        self.workload = workload
        self.cgroup = CGROUPS / name
        self.ctrl_group = RESCTRL / f"class-{name}" if workload.in_ctrl_group else RESCTRL
        self.group = self.ctrl_group / "mon_groups" / f"oci-{name}"
        self.mark = BASE / f"{name}.mark"
        self._log = BASE / f"{name}.log"
        self._fifos: dict[str, int] = {}
        for end in ("first", "up", "go", "waits", "work"):
            path = ROOTFS / "gate" / f"{name}.{end}"
            os.mkfifo(path)
            self._fifos[end] = os.open(path, os.O_RDWR)  # both ends: nobody waits for anybody to open
        self._process: subprocess.Popen[bytes] | None = None

    def files(self) -> list[Path]:
        """What a reading is made from; cpu.stat is the last."""
        packages = sorted(RESCTRL.glob(f"mon_data/*/{COUNTER}"))
        return [*(self.group / path.relative_to(RESCTRL) for path in packages), self.cgroup / "cpu.stat"]

    def command(self, amounts: Mapping[str, int]) -> list[str]:
        """The container's first program: `work begin`, which becomes the workload."""
        text = self.workload.command.format(**amounts).replace("$ID", self.name)
        return ["/bin/work", "begin", f"/gate/{self.name}.first", *self.seen(), "--", "/bin/sh", "-c", text]

    def seen(self) -> list[str]:
        """The files where the container finds them."""
        found = [str(path) for path in self.files()]
        for place, shown in SHOWN.items():
            found = [path.replace(str(place), shown, 1) for path in found]
        return found

    def start(self, command: Sequence[str]) -> None:
        log: IO[bytes]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def hear(self, end: str) -> str:
        """What the container says; less than PIPE_BUF, so that it comes whole."""
        if not select.select([self._fifos[end]], [], [], DEADLINE)[0]:
            raise TimeoutError(f"{self.runtime} {self.name}: nothing on {end}: {self._said()}")
        return os.read(self._fifos[end], 4096).decode()

    def say(self, end: str) -> None:
        """Let one of those go on who read a line there: one byte, since they read byte by byte."""
        os.write(self._fifos[end], b"\n")

    def settled(self) -> Reading:
        """When nothing in the container runs any more."""
        last, deadline = self._read(), time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            time.sleep(0.02)
            now = self._read()
            if now == last:
                return now
            last = now
        raise TimeoutError(f"{self.cgroup} does not come to rest")

    def end(self) -> None:
        self.say("go")
        assert self._process is not None
        status = self._process.wait(DEADLINE)
        if status != 0 or self._said():
            raise RuntimeError(f"{self.runtime} {self.name}: exit status {status}: {self._said()}")
        for descriptor in self._fifos.values():
            os.close(descriptor)
        places = [self.group, self.cgroup, *([self.ctrl_group] if self.workload.in_ctrl_group else [])]
        for directory in places:
            with suppress(FileNotFoundError):  # our poststop and the runtime have removed theirs
                directory.rmdir()

    def _read(self) -> Reading:
        return parse("".join(path.read_text() for path in self.files()))

    def _said(self) -> str:
        return self._log.read_text(errors="replace").strip()


def config(container: MeasuredContainer, command: Sequence[str], hooks: Mapping[str, object]) -> dict[str, object]:
    """config.json of the runtime specification."""
    linux: dict[str, object] = {
        "cgroupsPath": f"/{CGROUPS.name}/{container.name}",
        "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")],
    }
    if container.workload.in_ctrl_group:
        linux["intelRdt"] = {"closID": container.ctrl_group.name}
    return {
        "ociVersion": "1.0.2",
        "process": {"cwd": "/", "args": command, "env": ["PATH=/bin"], "user": {"uid": 0, "gid": 0}},
        "root": {"path": str(ROOTFS), "readonly": False},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
        "hooks": hooks,
        "linux": linux,
    }


class Poller(threading.Thread):
    """What a daemon does instead of a hook: looks now and then who is in the cgroup, and writes them all to tasks."""

    def __init__(self, container: MeasuredContainer, period: float, phase: float) -> None:
        super().__init__(daemon=True)
        self._container = container
        self._period = period
        self._next = time.monotonic() + phase
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(max(0.0, self._next - time.monotonic())):
            self._next += self._period
            assign(self._container.cgroup, self._container.group)

    def stop(self) -> None:
        self._over.set()
        self.join()


def assign(cgroup: Path, group: Path) -> None:
    """Puts every thread that the cgroup has now into the group; who ends meanwhile needs it no more."""
    with open(group / "tasks", "wb", buffering=0) as tasks:
        for pid in (cgroup / "cgroup.procs").read_text().split():
            with suppress(FileNotFoundError, ProcessLookupError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    with suppress(ProcessLookupError):
                        tasks.write(thread.encode())


class Way(NamedTuple):
    """How a container's tasks come into their group: HOOK, ..., or by a poller.

    `phase`: seconds until the poller begins to look, or until reconcile runs.
    """

    name: str
    phase: float = 0


class GuestBench:
    """Runs what is planned. Containers are numbered."""

    def __init__(self, plan: GuestPlan, hook: str) -> None:
        self.plan, self._hook = plan, hook
        self._random = random.Random(plan.seed)
        self._count = 0
        self._amounts = {"loops": loops_in(plan.seconds), "forks": plan.forks}
        self._planned = list(self._ways())

    def runs(self) -> Iterator[Run]:
        for name in self.plan.workloads:
            print(f"attribution: {name}", file=sys.stderr, flush=True)
            if not WORKLOADS[name].execs:
                yield self._reference(name)
            for way in self._planned:
                if WORKLOADS[name].is_reconciled and way.name != HOOK:
                    continue
                if way.name in {WATCH, RECONCILE} and not WORKLOADS[name].job:
                    continue
                for runtime in self.plan.runtimes:
                    container = self._container(name, runtime)
                    self._start(container, way)
                    yield self._follow(container, name, way)

    def _ways(self) -> Iterator[Way]:
        """The same for all workloads and runtimes, so that their lines can be compared."""
        for part in range(self.plan.rounds):
            yield Way(HOOK)
            yield Way(WATCH)
            yield Way(RECONCILE, (part + self._random.random()) * self.plan.interval / self.plan.rounds)
        for period in self.plan.periods:
            for part in range(self.plan.polls):
                # Each round has its part of the period, and chance says where in it
                yield Way(f"{period:g}", (part + self._random.random()) * period / self.plan.polls)

    def _container(self, workload: str, runtime: str) -> MeasuredContainer:
        self._count += 1
        container = MeasuredContainer(f"c{self._count}", runtime, WORKLOADS[workload])
        container.ctrl_group.mkdir(exist_ok=True)
        return container

    def _reference(self, name: str) -> Run:
        """The most that the kernel can attribute: a process puts itself into a group, and then becomes the workload."""
        container = self._container(name, "none")
        container.group.mkdir()
        container.cgroup.mkdir()
        classes = [container.ctrl_group] if container.workload.in_ctrl_group else []
        tasks = [group / "tasks" for group in (*classes, container.group)]
        enter = [f"echo 0 >{path}" for path in (*tasks, container.cgroup / "cgroup.procs")]
        enter.append(f"exec chroot {ROOTFS} {shlex.join(container.command(self._amounts))}")
        container.start(["sh", "-ec", "\n".join(enter)])
        return self._follow(container, name, Way(REFERENCE))

    def _start(self, container: MeasuredContainer, way: Way) -> None:
        ours = {"path": self._hook, "args": ["resctrl-mon-hook", "hook"], "timeout": 60}
        create = [ours] if way.name in HOOKED else []
        create.append(script("read", [container.mark, *container.files()]))
        if container.workload.in_ctrl_group:
            create.insert(0, script("classify", [container.cgroup, container.ctrl_group]))
        if way.name not in HOOKED:
            container.group.mkdir()
        hooks = {"createRuntime": create, "poststop": [ours] if way.name in HOOKED else []}
        bundle = BASE / container.name
        bundle.mkdir()
        text = json.dumps(config(container, container.command(self._amounts), hooks))
        (bundle / "config.json").write_text(text)
        container.start([container.runtime, "run", f"--bundle={bundle}", container.name])

    def _follow(self, container: MeasuredContainer, name: str, way: Way) -> Run:
        """A container that was started, from its first instruction to its end."""
        with ExitStack() as stack:
            first, began = parse(container.hear("first")), time.monotonic()
            start = first
            if way.name == WATCH:
                self._watch(stack)
            elif way.name not in {*HOOKED, REFERENCE}:
                # Not before: an emulator draws out the start of a container, and a period stays what it is
                poller = Poller(container, float(way.name), way.phase)
                stack.callback(poller.stop)
                poller.start()
            container.hear("up")
            jobs = None
            if container.workload.is_reconciled:
                first = self._exec_and_reconcile(container)
            elif container.workload.job:
                jobs = self._exec_jobs(container, way)
            else:
                self._exec_into(container)
            wall = time.monotonic() - began
            # The cgroup also has what the runtime used before a job's first instruction, and the job's end.
            work = jobs or container.settled().since(first)
        mark = parse(container.mark.read_text()) if way.name != REFERENCE else start
        container.end()
        return Run(name, container.runtime, way.name, *work, *start.since(mark), wall)

    def _exec_into(self, container: MeasuredContainer) -> None:
        """What is brought in by exec, one process after another."""
        for _ in range(container.workload.execs):
            work = ["/bin/work", "spin", str(self._amounts["loops"] // container.workload.execs), "1"]
            command = [container.runtime, "exec", container.name, *work]
            subprocess.run(command, stdin=subprocess.DEVNULL, check=True, timeout=DEADLINE)

    def _exec_jobs(self, container: MeasuredContainer, way: Way) -> Reading:
        """Jobs that are brought in by exec: what they used and what their group was charged, as they see it.

        With RECONCILE they go on for a whole interval, at one moment of which it runs.
        """
        workload = container.workload
        loops = round(self._amounts["loops"] * workload.job / self.plan.seconds)
        command = [container.runtime, "exec", container.name, "/bin/work", "job", str(loops), *container.seen()[:-1]]
        used, charged, number, due = 0, 0, 0, time.monotonic()
        until, reconcile = due, None
        if way.name == RECONCILE:
            words = ["sh", "-c", ONCE, str(way.phase), self._hook]
            until, reconcile = due + self.plan.interval, subprocess.Popen(words, stdout=sys.stderr)
        while number < workload.execs or time.monotonic() < until:
            number += 1
            time.sleep(max(0.0, due - time.monotonic()))
            due += workload.every
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, timeout=DEADLINE
            )
            meanwhile = list(map(int, done.stdout.split()))
            used, charged = used + meanwhile[0], charged + meanwhile[1]
        # 1: a job that came after its last pass was outside at its last look, as may be while jobs go on coming.
        if reconcile is not None and reconcile.wait(DEADLINE) not in (0, 1):
            raise RuntimeError(f"reconcile: exit status {reconcile.returncode}")
        return Reading(used / 1e9, charged / 1e9)

    def _watch(self, stack: ExitStack) -> None:
        """Have `watch` beside it, from now until the end of the run."""
        process = subprocess.Popen([self._hook, "watch"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        stack.callback(process.wait, DEADLINE)
        stack.callback(process.terminate)
        assert process.stderr is not None
        line = process.stderr.readline()
        if "listening" not in line:
            raise RuntimeError(line.strip())

    def _exec_and_reconcile(self, container: MeasuredContainer) -> Reading:
        """What is brought in by exec waits until it was adopted; the reading at that time."""
        part = self._amounts["loops"] // container.workload.execs
        gate = f"/gate/{container.name}"
        text = f"echo >{gate}.waits; read go <{gate}.work; /bin/work spin {part} 1"
        command = [container.runtime, "exec", container.name, "/bin/sh", "-c", text]
        brought_in = []
        for _ in range(container.workload.execs):
            brought_in.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
            container.hear("waits")
        command = [self._hook, "reconcile"]
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=True, timeout=DEADLINE)
        adopted = container.settled()
        for _ in brought_in:
            container.say("work")
        for process in brought_in:
            if process.wait(DEADLINE) != 0:
                raise RuntimeError(f"{container.runtime} exec: exit status {process.returncode}")
        return adopted


def script(name: str, arguments: Sequence[Path]) -> dict[str, object]:
    """A hook that prepare() has written."""
    return {"path": str(BASE / name), "args": [name, *map(str, arguments)]}


def loops_in(seconds: float) -> int:
    """How many loops take about so much CPU time here and now; from then on it is the same number for all."""
    tries = 100_000_000
    before = os.times()
    subprocess.run([ROOTFS / "bin/work", "spin", str(tries), "1"], check=True)
    took = os.times().children_user - before.children_user
    return round(tries * seconds / max(took, 0.01))


def rate() -> float:
    """What the counters of the root group gain in a second of a CPU; all of this runs in it, idling too."""

    def moment() -> tuple[float, int]:
        while True:
            before = time.monotonic()
            count = sum(int(path.read_text()) for path in RESCTRL.glob(f"mon_data/*/{COUNTER}"))
            after = time.monotonic()
            if after - before < 0.005:
                return (before + after) / 2, count

    start = moment()
    time.sleep(1)
    end = moment()
    return (end[1] - start[1]) / (end[0] - start[0]) / (os.cpu_count() or 1)


def prepare() -> None:
    """The root file system, in memory, and the hooks that are not ours."""
    for name in ("bin", "gate", "proc", "dev", "sys", "resctrl", "cgroup"):
        (ROOTFS / name).mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None, "no busybox"
    shutil.copy(busybox, ROOTFS / "bin/busybox")
    shutil.copy(WORK, ROOTFS / "bin/work")
    for applet in ("sh", "setsid"):
        (ROOTFS / "bin" / applet).symlink_to("busybox")
    CGROUPS.mkdir()
    for place, shown in SHOWN.items():
        subprocess.run(["mount", "--bind", str(place), f"{ROOTFS}{shown}"], check=True)
    write_hook("read", 'out=$1; shift; exec /bin/cat "$@" >"$out"')
    # Where the runtime does not do it. A loop, since a write moves one task
    write_hook("classify", 'while read -r pid; do echo "$pid" >"$2/tasks"; done <"$1/cgroup.procs"')


def write_hook(name: str, text: str) -> None:
    (BASE / name).write_text(f"#!/bin/sh\n{text}\n")
    (BASE / name).chmod(0o755)


def main(text: str, hook: str) -> None:
    plan = GuestPlan(**json.loads(text))
    prepare()
    print(json.dumps({"rate": rate()}), flush=True)
    for run in GuestBench(plan, hook).runs():
        print(json.dumps(run._asdict()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
