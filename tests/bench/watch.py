# SPDX-License-Identifier: Apache-2.0
"""What `watch` itself uses: CPU time for each exec on the machine, at two rates, and memory.

    python3 build.py bench watch [--seconds N]

It needs a kernel with the process connector, and runs on the model of resctrl. One exec in twenty
is into a container, outside of its group. CPU time is what the scheduler counts for watch
(/proc/PID/schedstat), execs are those of the whole machine, and a share is that of one core.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.bench import common
from tests.bench.common import CannotMeasure, Figure, NotReady, Table
from tests.bench.nodes import created, model_node
from tests.support import watching
from tests.support.cgroups import container_cgroup
from tests.support.hook import task

RATES = (500, 20)
MOST = {500: 8.0, 20: 0.5}
"""Per cent of one core: what watch may use at these rates."""
MOST_MEMORY = 20.0  # MiB
IN_CONTAINER = 20  # one exec of so many
ENTER = 'echo $$ >"$0" && exec /bin/true'


class WatchPlan(NamedTuple):
    seconds: float = 20.0  # for each rate


def load(rate: int, seconds: float, tasks: Path) -> float:
    """Do execs at a rate, if the machine can; returns how many it did in a second."""
    began, ours = time.monotonic(), 0
    while (now := time.monotonic()) - began < seconds:
        time.sleep(max(0.0, began + ours / rate - now))
        inside = ours % IN_CONTAINER == 0
        words = ["sh", "-c", ENTER, str(tasks)] if inside else ["true"]
        os.waitpid(os.posix_spawnp(words[0], words, os.environ), 0)
        ours += 2 if inside else 1
    return ours / (time.monotonic() - began)


def measure(plan: WatchPlan) -> Iterator[Table]:
    """Yield the table: a row for each rate, whose share is at the rate that was wanted,
    and the memory of watch.
    """
    if reason := watching.missing() or ("" if os.geteuid() == 0 else "not root"):
        raise NotReady(reason)
    figures = []
    try:
        with ExitStack() as stack:
            node, init = stack.enter_context(model_node()), stack.enter_context(task())
            key, container = node.new_key(), node.new_container()
            cgroup = stack.enter_context(container_cgroup(key, container))
            cgroup.add(init.pid)
            node.hook()(created(container, init.pid, key).encode())
            process = stack.enter_context(watching.watching(node.hook()))
            time.sleep(3)  # the look at the start must not be beside this
            for rate in RATES:
                before, number = read_cpu(process), _count_forks()
                reached = load(rate, plan.seconds, cgroup.directory / "cgroup.procs")
                time.sleep(1)  # it has seen the last ones
                execs = _count_forks() - number + reached * plan.seconds / IN_CONTAINER
                each = (read_cpu(process) - before) / execs
                row = f"{rate} execs a second"
                figures += [
                    Figure(row, "reached", [reached], digits=0, beside=None),
                    Figure(row, "all execs", [execs], digits=0, beside=None),
                    Figure(row, "CPU time for each, us", [1e6 * each], digits=0, beside=None),
                    Figure(row, "share of a core, %", [100 * rate * each], MOST[rate], beside=None),
                ]
            figures.append(
                Figure("memory", "MiB", [read_peak(process)], MOST_MEMORY, digits=0, beside=None)
            )
    except OSError as error:
        raise CannotMeasure(str(error)) from error
    yield Table("watch", figures)


def _count_forks() -> int:
    """Count those of the machine since its boot: other programs do execs as well,
    and before each is a fork.

    Of the two execs into a container one is without a fork.
    """
    lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("processes "))


def read_cpu(process: subprocess.Popen[bytes]) -> float:
    """Read the CPU time of a process, in seconds."""
    return int(Path(f"/proc/{process.pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


def read_peak(process: subprocess.Popen[bytes]) -> float:
    """Read the peak memory of a process, in MiB."""
    lines = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    sys.exit(common.run("watch", __doc__, WatchPlan(), measure))
