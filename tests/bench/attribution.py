# SPDX-License-Identifier: Apache-2.0
"""What share of a container's work is charged to its group: by the hook, and by a daemon that polls.

    python3 build.py bench attribution [--json | --markdown] [--seconds S] [--rounds N] [--polls N] [--seed N]

Containers of runc and of crun work in a guest whose resctrl is the kernel's own, over counters that charge each RMID
the time for which its tasks ran (tests/kernel/). A share is what a container's mon_group was charged, divided by what
its cgroup says that it used, from the first instruction of its first program until it had done its work.

The ceiling is the share of the same work without a runtime, by a process that put itself into a group before: what the
kernel can attribute. It differs from 100 % as far as the two clocks do: the kernel's scheduler counts a task from when
it chooses it (or even from when it wakes it, on a CPU that idles), the RMID counts from when it runs.

Jobs by exec read themselves what they used, and what their group was charged, from their first instruction to their
last. What the runtime uses before that in the container's cgroup does not count. Without watch they wait for
`reconcile`. Where it runs each minute, as its timer has it, the jobs go on for a whole minute; chance says when in it
`reconcile` runs, and the minute is divided among the rounds. Elsewhere it does not run.

A poller does as a daemon would: at each tick it writes all threads of all processes in the container's cgroup to the
tasks of its group, which is there beforehand. It begins to look by chance within its first period after the container's
first instruction; each period is divided among the rounds, so that these stand for all of it.
"""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from tests import provision
from tests.bench import attribution_guest, common
from tests.bench.attribution_guest import COUNTER, HOOK, RECONCILE, REFERENCE, WATCH, WORKLOADS, GuestPlan, Run
from tests.bench.common import CannotMeasure, NotReady, compile_static
from tests.kernel import kernel
from tests.kernel.vm import GuestFailed, GuestTimeout, Output, Vm, run_in_guest
from tests.support import containers

HEAD = ("workload", "runtime", "CPU time", "ceiling", "this hook", "reconcile each minute", "with watch")
PROMISE = 0.999
"""The share of all that is not brought in by exec; what a daemon misses is several per cent."""
PROMISE_OF_EXEC = 0.99
"""The share of what is, from the first reconcile on, and with watch for jobs of 100 ms and more."""
PROMISE_OF_PROBE = 0.9
"""With watch, for shorter ones."""
NOTHING = "nothing"
"""The workload that shows what a runtime itself uses; it has no share worth a line."""
GUEST = Path(attribution_guest.__file__)
WORK = GUEST.with_name("work.c")


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

    def qemu(self, image: Path, directory: Path, share: Path) -> list[str]:
        words = super().qemu(image, directory, share)
        return [*(word.replace("thread=multi", "thread=single") for word in words), "-icount", "shift=3,sleep=on"]


class AttributionRow(NamedTuple):
    """A line of the table: shares. `seconds`: of CPU time that one container worked."""

    workload: str
    runtime: str
    seconds: float
    ceiling: float | None
    hook: list[float]
    reconcile: list[float]
    watch: list[float]
    pollers: list[list[float]]

    @property
    def promise(self) -> float:
        """The least share that there must be of what the kernel can attribute."""
        if WORKLOADS[self.workload].is_reconciled:
            return PROMISE_OF_EXEC
        return 0 if WORKLOADS[self.workload].execs else PROMISE

    @property
    def promise_of_watch(self) -> float:
        """The same with watch beside the hook."""
        return PROMISE_OF_EXEC if WORKLOADS[self.workload].job >= 0.1 else PROMISE_OF_PROBE

    @property
    def is_broken(self) -> bool:
        """Whether less than promised of what the kernel can attribute went to the group."""
        least = self.promise * min(1, self.ceiling or 1)
        return min(self.hook) < least or min(self.watch, default=1) < self.promise_of_watch

    def cells(self) -> list[str]:
        """Of shares that hardly differ the least; of those near 0 the mean; of pollers all."""
        exact = [percent(min(shares, default=None)) for shares in (self.hook, self.watch)]
        reconcile = percent(mean(self.reconcile) if self.reconcile else None)
        pollers = [
            f"{100 * mean(it):.0f} % ({100 * min(it):.0f} to {100 * max(it):.0f})" if it else "-" for it in self.pollers
        ]
        first = [self.workload, self.runtime, f"{self.seconds:.1f} s", percent(self.ceiling)]
        return [*first, exact[0], reconcile, exact[1], *pollers]


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


@dataclass(frozen=True)
class Result:
    plan: GuestPlan
    rate: float
    """What the counters gained in a nanosecond of the guest's own clock; 1, if all is well."""
    runs: list[Run]

    def rows(self) -> Iterator[AttributionRow]:
        for workload in self.plan.workloads:
            ceiling = self._shares(workload, "none", REFERENCE)
            for runtime in self.plan.runtimes if workload != NOTHING else ():
                runs = [it for it in self.runs if (it.workload, it.runtime) == (workload, runtime)]
                used = mean(it.used for it in runs if it.way != RECONCILE)
                hook, reconcile, watch = (self._shares(workload, runtime, way) for way in (HOOK, RECONCILE, WATCH))
                pollers = [self._shares(workload, runtime, f"{period:g}") for period in self.plan.periods]
                most = mean(ceiling) if ceiling else None
                yield AttributionRow(workload, runtime, used, most, hook, reconcile, watch, pollers)

    def lines(self) -> list[list[str]]:
        pollers = [f"poller, every {period:g} s" for period in self.plan.periods]
        return [[*HEAD, *pollers], *(row.cells() for row in self.rows())]

    def missed(self) -> list[str]:
        """The rows that do not keep a promise."""
        return [
            f"{it.workload}, {it.runtime}: less than {100 * it.promise:g} %, with watch {100 * it.promise_of_watch:g} %"
            for it in self.rows()
            if it.is_broken
        ]

    def as_json(self) -> object:
        rows, runs = [row._asdict() for row in self.rows()], [run._asdict() for run in self.runs]
        return {"plan": self.plan._asdict(), "rate": self.rate, "rows": rows, "runs": runs}

    def notes(self) -> str:
        """What to know beside the table: also what a runtime uses after our hook: nobody's work, but in the cgroup."""
        bars = max(abs(1 - row.ceiling) for row in self.rows() if row.ceiling)
        starts = []
        for runtime in self.plan.runtimes:
            runs = [run for run in self.runs if (run.runtime, run.way) == (runtime, HOOK)]
            used, lost = mean(run.start_used for run in runs), mean(run.start_used - run.start_charged for run in runs)
            starts.append(f"{runtime} {used * 1e3:.1f} ms, of which {lost * 1e3:.2f} ms were not charged")
        return f"""\
Hook: the least of {self.plan.rounds}. Pollers: the mean of {self.plan.polls} (the least to the most).
Ceiling: the same work, by a process that put itself into a group before. Error bars: {100 * bars:.2f} %.
The counter ({COUNTER}, faked) has a resolution of 1 ns, cpu.stat of 1 us; against the clock it ran x {self.rate:.4f}.
Between hook and first instruction the runtime itself used: {"; ".join(starts)}."""

    def _shares(self, workload: str, runtime: str, way: str) -> list[float]:
        key = (workload, runtime, way)
        return [run.charged / run.used for run in self.runs if (run.workload, run.runtime, run.way) == key]


def measure(what: GuestPlan, stderr: Output = None) -> Result:
    """Takes some minutes for the whole plan. Raises CannotMeasure, and what kernel.ready() and run_in_guest() raise."""
    kernel.ready()
    if absent := provision.install(("busybox-static", "crun", "gcc", "libc6-dev", "runc")):
        raise NotReady("; ".join(absent))
    if not containers.HOOK.is_file():
        raise CannotMeasure(f"no {containers.HOOK}: run `python3 build.py`")
    with tempfile.TemporaryDirectory(prefix="attribution-") as directory:
        share = Path(directory)
        compile_static(WORK, share / "work")
        command = shlex.join([sys.executable, "-IS", str(GUEST), json.dumps(what._asdict()), str(containers.HOOK)])
        with (share / "out").open("w+", encoding="utf-8") as out:
            shown = [containers.HOOK.parent]
            status = run_in_guest(command, CountingVm(), share=share, shown=shown, stdout=out, stderr=stderr)
            out.seek(0)
            lines = [json.loads(line) for line in out]
    if status != 0:
        raise CannotMeasure(f"the guest's part ended with exit status {status}")
    return Result(what, lines[0]["rate"] / 1e9, [Run(**line) for line in lines[1:]])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = common.parser("attribution", __doc__)
    parser.add_argument("--seconds", type=float, default=2, help="of CPU time for a container [2]")
    parser.add_argument("--forks", type=int, default=1000, help="children of the forking shell [1000]")
    parser.add_argument("--rounds", type=int, default=1, help="with the hook, whose shares hardly differ [1]")
    parser.add_argument("--polls", type=int, default=2, help="with each poller; 0: no pollers [2]")
    parser.add_argument("--seed", type=int, default=1, help="of the pollers' phases [1]")
    given = parser.parse_args(arguments)
    numbers = {name: getattr(given, name) for name in ("seconds", "forks", "rounds", "polls", "seed")}
    try:
        return common.report("attribution", lambda: [measure(GuestPlan(**numbers))], given)
    except (kernel.CannotBuild, GuestFailed, GuestTimeout) as error:
        print(f"attribution: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
