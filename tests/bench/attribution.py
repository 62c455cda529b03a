# SPDX-License-Identifier: Apache-2.0
"""What share of a container's work is charged to its group: by the hook, and by a daemon that polls.

    python3 build.py bench attribution [--workloads NAME...] [--seconds S] [--rounds N] [--polls N] [--seed N] ...

docs/performance.md says what the figures mean. Of the rounds with the hook a share is the least, of those with a poller
the mean (the least to the most). The ceiling differs from 100 % as far as the two clocks do: the scheduler counts a
task from when it chooses or even wakes it, the RMID counts from when it runs.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from tests import provision
from tests.bench import common
from tests.bench.attribution_guest import HOOK, REFERENCE, WATCH, WORKLOADS, GuestPlan, Run
from tests.bench.common import LOAD, CannotMeasure, Figure, NotReady, Table, compile_static, limits
from tests.kernel import kernel
from tests.kernel.vm import ROOT, GuestFailed, GuestTimeout, Output, Vm, run_in_guest
from tests.support.hook import shipped

PROMISE = 99.9
"""Per cent of all that exec does not bring in; what a daemon misses is several per cent."""
PROMISE_OF_WATCH = 99.0
"""Per cent of what exec brings in, with watch, for jobs of 100 ms and more."""
PROMISE_OF_PROBE = 90.0
"""Per cent of the same for shorter ones."""
GUEST = "tests.bench.attribution_guest"


@dataclass(frozen=True)
class CountingVm(Vm):
    """Its clock counts instructions, 8 ns each: what the host does besides does not show in any figure.

    One CPU. The kernel counts a task that it wakes on an idle CPU as running while that CPU is still being woken
    (rq_clock_skip_update), which takes a real one microseconds and an emulated one milliseconds: where children run on
    the other CPU, cpu.stat then says 10 % and more too much, and the ceiling is as much lower.
    """

    sockets: int = 1
    smp: int = 1
    append: str = "rdt=perf"
    """Without it only energy and activity are counted."""
    timeout: float = 3600

    def qemu(self, image: Path, directory: Path, share: Path, ports: Sequence[int]) -> list[str]:
        words = super().qemu(image, directory, share, ports)
        return [*(word.replace("thread=multi", "thread=single") for word in words), "-icount", "shift=3,sleep=on"]


def run_guest(plan: GuestPlan, stderr: Output = None) -> list[Run]:
    """Takes some minutes for the whole plan. Raises CannotMeasure, and what kernel.ready() and run_in_guest() raise."""
    kernel.ready()
    if absent := provision.install(("busybox-static", "crun", "gcc", "libc6-dev", "runc")):
        raise NotReady("; ".join(absent))
    if not shipped().is_file():
        raise CannotMeasure(f"no {shipped()}: run `python3 build.py`")
    with tempfile.TemporaryDirectory(prefix="attribution-") as directory:
        share = Path(directory)
        compile_static(LOAD, share / "load")
        words = [sys.executable, "-m", GUEST, json.dumps(plan._asdict()), str(shipped())]
        with (share / "out").open("w+", encoding="utf-8") as out:
            shown = [shipped().parent]
            status = run_in_guest(words, CountingVm(), share=share, cwd=ROOT, shown=shown, stdout=out, stderr=stderr)
            out.seek(0)
            lines = [json.loads(line) for line in out]
    if status != 0:
        raise CannotMeasure(f"the guest's part ended with exit status {status}")
    return [Run(**line) for line in lines]


def tabulate(plan: GuestPlan, runs: Sequence[Run]) -> Table:
    figures = [
        figure
        for workload in plan.workloads
        for runtime in plan.runtimes
        for figure in _figures(plan, runs, workload, runtime)
    ]
    return Table("share of the CPU time", figures)


def _figures(plan: GuestPlan, runs: Sequence[Run], workload: str, runtime: str) -> Iterator[Figure]:
    """The figures of a line. Where the kernel can attribute less than all, less is promised, too."""
    row, is_exec = f"{workload}, {runtime}", WORKLOADS[workload].execs > 0
    used = [run.used for run in runs if (run.workload, run.runtime) == (workload, runtime)]
    yield Figure(row, "CPU time", used, digits=1, unit=" s", center=mean, beside=None)
    most = _shares(runs, workload, "none", REFERENCE)
    if most:
        yield Figure(row, "ceiling", most, unit=" %", center=mean, beside=None)
    of_hook = None if is_exec else PROMISE * min(1, mean(most) / 100)
    of_watch = PROMISE_OF_WATCH if WORKLOADS[workload].job >= 0.1 else PROMISE_OF_PROBE
    for way, column, promise in ((HOOK, "this hook", of_hook), (WATCH, "with watch", of_watch)):
        if shares := _shares(runs, workload, runtime, way):
            yield Figure(row, column, shares, promise, unit=" %", at_least=True, center=min, beside=None)
    for period in plan.periods:
        if shares := _shares(runs, workload, runtime, f"{period:g}"):
            column = f"poller, every {period:g} s"
            yield Figure(row, column, shares, digits=0, unit=" %", center=mean, beside=limits)


def _shares(runs: Sequence[Run], workload: str, runtime: str, way: str) -> list[float]:
    """Return the charged per cent of each run."""
    key = (workload, runtime, way)
    return [100 * run.charged / run.used for run in runs if (run.workload, run.runtime, run.way) == key]


def measure(plan: GuestPlan) -> Iterator[Table]:
    """Yield the table. Raises CannotMeasure."""
    try:
        yield tabulate(plan, run_guest(plan))
    except (kernel.CannotBuild, GuestFailed, GuestTimeout) as error:
        raise CannotMeasure(str(error)) from error


if __name__ == "__main__":
    sys.exit(common.run("attribution", __doc__, GuestPlan(), measure))
