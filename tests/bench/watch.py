# SPDX-License-Identifier: Apache-2.0
"""What `watch` itself uses: CPU time for each exec on the machine, at two rates, and memory.

    python3 build.py bench watch [--json] [--seconds N] [--containers N]

On this machine's kernel, which must have the process connector, and the model of resctrl. Programs are started one
after another, most of them in no container, and one in twenty in a container's cgroup, outside of its group, as a
runtime's exec does it. CPU time is what the kernel's scheduler counts for watch (/proc/PID/schedstat), and execs are
counted by a listener of our own, for other programs on the machine do execs as well. A share is that of one core, if
nothing else did any exec.

Then the churn of a node with many containers (tests/bench/exec_churn.py), and chains of forks in a guest
(tests/bench/chains.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from hook.base.errors import HookError
from hook.watch import connector
from tests.bench import chains, common
from tests.bench.common import CannotMeasure
from tests.bench.exec_churn import churn
from tests.kernel.vm import GuestFailed, GuestTimeout
from tests.resctrlfs import mounted
from tests.support import watching
from tests.support.cgroups import cgroup
from tests.support.hook import Hook, created, task
from tests.support.tables import as_markdown, as_text

RATES = (500, 20)
MOST = {500: 0.08, 20: 0.005}
"""Of one core: what watch may use at these rates."""
MEMORY = 20 << 10  # KiB
IN_CONTAINER = 20  # one exec of so many
ID = "5f3c" * 16
ENTER = 'echo $$ >"$0" && exec /bin/true'


class WatchRow(NamedTuple):
    """One rate. `wanted`, `reached`: execs a second; `execs`: all that there were; `cpu`: of watch, in seconds."""

    wanted: int
    reached: float
    execs: int
    cpu: float

    @property
    def micros(self) -> float:
        """CPU time for each exec, in microseconds."""
        return 1e6 * self.cpu / self.execs

    @property
    def share(self) -> float:
        """Of one core, at the rate that was wanted."""
        return self.wanted * self.cpu / self.execs


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


def measure(seconds: float) -> tuple[list[WatchRow], int]:
    """A row for each rate, and the memory of watch in KiB. Raises HookError, OSError."""
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
        rows = []
        for rate in RATES:
            before, number = cpu_of(process), execs.number
            reached = load(rate, seconds, own.directory / "cgroup.procs")
            time.sleep(1)  # both have seen the last ones
            rows.append(WatchRow(rate, reached, execs.number - number, cpu_of(process) - before))
        return rows, memory_of(process)


def cpu_of(process: subprocess.Popen[bytes]) -> float:
    return int(Path(f"/proc/{process.pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


def memory_of(process: subprocess.Popen[bytes]) -> int:
    text = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM"))


def cells(row: WatchRow) -> list[str]:
    """A line of the table."""
    reached = f"{row.reached:.0f}/s"
    return [str(row.wanted), reached, str(row.execs), f"{row.micros:.0f} us", f"{100 * row.share:.2f} %"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = common.parser("watch", __doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each rate [20]")
    parser.add_argument("--containers", type=int, default=2000, help="that programs are brought into [2000]")
    given = parser.parse_args(arguments)
    if reason := watching.missing() or ("" if os.geteuid() == 0 else "not root"):
        print(f"watch: {reason}", file=sys.stderr)
        return 1
    try:
        rows, memory = measure(given.seconds)
        churned = churn(given.containers)
        chained = chains.measure()
    except (CannotMeasure, GuestFailed, GuestTimeout, HookError, OSError) as error:
        print(f"watch: {error}", file=sys.stderr)
        return 1
    head = ["execs/s", "reached", "all execs", "CPU for each", "share of a core"]
    tables = [[head, *(cells(row) for row in rows)], churned.table(), chained.table()]
    if given.json:
        found = [{**row._asdict(), "share": row.share} for row in rows]
        print(
            json.dumps(
                {"rows": found, "memory_kib": memory, "churn": churned._asdict(), "chains": chained._asdict()}, indent=2
            )
        )
    elif given.markdown:
        print("\n\n".join(as_markdown(table, names=0) for table in tables))
    else:
        print("\n\n".join(map(as_text, tables)), f"\n\nMemory: {memory} KiB (VmHWM).")
    is_well = all(it.share <= MOST[it.wanted] for it in rows) and memory <= MEMORY and churned.after == 0
    return 0 if is_well and chained.outside == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
