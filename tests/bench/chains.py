# SPDX-License-Identifier: Apache-2.0
"""How soon `watch` has a chain of forks in its group, on the kernel's own resctrl: part of `bench watch`.

Chains of links that live 4 ms, one after another, each brought into a container of a guest by an exec. The guest's CPUs
are emulated, some ten to thirty times slower than real ones; its clock is real.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.common import CannotMeasure
from tests.bench.figures import Figure, Table
from tests.kernel.vm import Vm, run_in_guest
from tests.support import chains, watching
from tests.support.hook import DEADLINE, Hook

TIMES = 20
RESCTRL = Path("/sys/fs/resctrl")


def measure() -> Table:
    """From the start of each chain's program until one of its links is in the group; what is outside of it then.

    Raises CannotMeasure, and what kernel.ready() and run_in_guest() raise.
    """
    with tempfile.TemporaryDirectory(prefix="chains-") as directory:
        chains.compile_chain(Path(directory))
        command = [sys.executable, "-m", __name__, "/tmp/share"]
        with (Path(directory) / "out").open("w+", encoding="utf-8") as out:
            vm = Vm(smp=2, sockets=1, append="fakerdt.decay_ms=0")
            status = run_in_guest(command, vm, share=Path(directory), stdout=out)
            out.seek(0)
            text = out.read()
    if status != 0:
        raise CannotMeasure(f"the guest's part ended with exit status {status}")
    milliseconds, outside = json.loads(text)
    row = f"{len(milliseconds)} chains"
    figures = [
        Figure(row, "in the group after (ms)", milliseconds, digits=0),
        Figure(row, "at most (ms)", [max(milliseconds)], digits=0),
        Figure(row, "outside afterwards", [outside], 0, digits=0),
    ]
    return Table("chains of forks, in a guest", figures)


def measure_in_guest(share: Path) -> tuple[list[float], int]:
    hook = Hook(RESCTRL, Path("/tmp/run"))
    milliseconds, outside = [], 0
    with chains.container(hook) as it, watching.watching(hook):
        init = chains.threads(it.own)
        for _ in range(TIMES):
            began = time.monotonic()
            with chains.running(share / "chain", it.own):
                while not (hook.tasks(it.group) & chains.threads(it.own)) - init:
                    if time.monotonic() > began + DEADLINE:
                        raise CannotMeasure("a chain does not come in")
                    time.sleep(0.001)
                milliseconds.append(1000 * (time.monotonic() - began))
                outside += bool(chains.outside(hook, it))
    return milliseconds, outside


if __name__ == "__main__":
    print(json.dumps(measure_in_guest(Path(sys.argv[1]))))
