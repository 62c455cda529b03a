# SPDX-License-Identifier: Apache-2.0
"""What `watch` itself uses: CPU time for each exec on the machine, at two rates, and memory.

    python3 build.py bench watch [--json | --markdown] [--seconds N]

On this machine's kernel, which must have the process connector, and the model of resctrl. Programs are started one
after another, most of them in no container, and one in twenty in a container's cgroup, outside of its group, as a
runtime's exec does it. CPU time is what the kernel's scheduler counts for watch (/proc/PID/schedstat), and execs are
counted by a listener of our own, for other programs on the machine do execs as well. A share is that of one core, if
nothing else did any exec.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from hook.errors import HookError
from hook.watch import connector
from tests.bench import common
from tests.bench.common import CannotMeasure, NotReady
from tests.bench.figures import Figure, Table
from tests.resctrlfs import mounted
from tests.support import watching
from tests.support.cgroups import cgroup
from tests.support.hook import Hook, created, task

RATES = (500, 20)
MOST = {500: 8.0, 20: 0.5}
"""Per cent of one core: what watch may use at these rates."""
MOST_MEMORY = 20.0  # MiB
IN_CONTAINER = 20  # one exec of so many
ID = "5f3c" * 16
ENTER = 'echo $$ >"$0" && exec /bin/true'


class Execs(threading.Thread):
    """Counts the execs of the machine, in `number`."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.number = 0
        self._events = connector.subscribe()
        self.start()

    def run(self) -> None:
        while True:
            self.number += self._events.receive() is not None


def load(rate: int, seconds: float, tasks: Path) -> float:
    """Do execs at a rate, if the machine can; returns the rate that was reached."""
    began, ours = time.monotonic(), 0
    while (now := time.monotonic()) - began < seconds:
        time.sleep(max(0.0, began + ours / rate - now))
        inside = ours % IN_CONTAINER == 0
        words = ["sh", "-c", ENTER, str(tasks)] if inside else ["true"]
        os.waitpid(os.posix_spawnp(words[0], words, os.environ), 0)
        ours += 2 if inside else 1
    return ours / (time.monotonic() - began)


def measure_use(seconds: float) -> Table:
    """A row for each rate, and the memory of watch. The share is at the rate that was wanted. HookError, OSError."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="watch-")))
        resctrl = stack.enter_context(mounted(directory))
        own = stack.enter_context(cgroup(f"/bench-{os.getpid()}-libpod-{ID}.scope"))
        init = stack.enter_context(task())
        own.add(init.pid)
        hook = Hook(resctrl.root, directory / "run")
        hook(created(ID, init.pid))
        process = stack.enter_context(watching.watching(hook))
        time.sleep(3)  # the look at the start is not to be beside this
        execs = Execs()
        figures = []
        for rate in RATES:
            before, number = cpu_of(process), execs.number
            reached = load(rate, seconds, own.directory / "cgroup.procs")
            time.sleep(1)  # both have seen the last ones
            each = (cpu_of(process) - before) / (execs.number - number)
            row = f"{rate} execs a second"
            figures += [
                Figure(row, "reached", [reached], digits=0),
                Figure(row, "all execs", [execs.number - number], digits=0),
                Figure(row, "CPU time for each (us)", [1e6 * each], digits=0),
                Figure(row, "share of a core (%)", [100 * rate * each], MOST[rate]),
            ]
        figures.append(Figure("memory", "MiB", [memory_of(process) / 1024], MOST_MEMORY, digits=0))
        return Table("watch", figures)


def measure(seconds: float) -> Iterator[Table]:
    """The table, on a machine where it can be measured."""
    if reason := watching.missing() or ("" if os.geteuid() == 0 else "not root"):
        raise NotReady(reason)
    try:
        yield measure_use(seconds)
    except (HookError, OSError) as error:
        raise CannotMeasure(str(error)) from error


def cpu_of(process: subprocess.Popen[bytes]) -> float:
    return int(Path(f"/proc/{process.pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


def memory_of(process: subprocess.Popen[bytes]) -> int:
    text = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = common.parser("watch", __doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each rate [20]")
    given = parser.parse_args(arguments)
    return common.report("watch", lambda: measure(given.seconds), given)


if __name__ == "__main__":
    sys.exit(main())
