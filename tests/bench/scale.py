# SPDX-License-Identifier: Apache-2.0
"""What reconcile costs on a big node, and what one scrape of its metrics costs.

    python3 build.py bench scale [--json | --markdown] [--members N] [--processes N] [--adopted N] [--rounds N]
                                 [--only TABLE]

CPU seconds (user and system) of the shipped file as a process: they repeat to a few percent on a busy machine, where
the time of day does not. `without children`: less those of the OCI runtimes that it starts. The node is the project's
model of resctrl; what the model itself takes is in no figure. (!) marks a target that is missed; the exit status is 1
then. The targets are for the default sizes.

nothing to do   `reconcile` right after another one
after a wipe    all groups were removed: each is made again, and the tasks moved in
--adopt         further containers run that were never hooked; a runc of ours knows them
growth          the CPU time with all members, by that with a quarter of the members and of the processes
scrape          one request to `metrics --listen`, on a node whose groups are plain directories, with 24 counters each
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from urllib.request import Request, urlopen

from tests.bench import common
from tests.bench.busy_node import BusyNode, busy_node
from tests.bench.common import CannotMeasure, NotReady
from tests.bench.figures import Figure, Table
from tests.bench.plain_node import TMPFS, make_full_node
from tests.support.hook import PYZ
from tests.support.machine import ScratchMachine

SMALLER = 4
TARGETS = {"nothing to do": 0.6, "after a wipe": 6.0, "--adopt": 6.0}
GROWTH_TARGET = 4.4
KEYS, SCRAPE_TARGET = 500, 0.45
SCRAPES = {
    "text": {},
    "OpenMetrics, gzip, --created": {"Accept": "application/openmetrics-text", "Accept-Encoding": "gzip"},
}
"""What a client asks for."""
DEADLINE = 3600.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sizes:
    """How big the node is. `adopted`: containers that no hook has seen, beside the members. `keys`: for a scrape."""

    members: int = 2000
    processes: int = 10000
    adopted: int = 500
    rounds: int = 3
    keys: int = KEYS


@dataclass(frozen=True)
class Cost:
    """What one run took: CPU seconds with and without its children's, MiB, and the verbs of what it did."""

    cpu: float
    alone: float
    memory: float
    done: Sequence[str]


def measure(sizes: Sizes, only: str | None = None) -> Iterator[Table]:
    """The tables, each as soon as it is there. Raises CannotMeasure."""
    check()
    if only != "scrape":
        yield from _measure_reconcile(sizes)
    if only != "reconcile":
        yield _measure_scrapes(sizes)


def _measure_reconcile(sizes: Sizes) -> Iterator[Table]:
    small = replace(sizes, members=sizes.members // SMALLER, processes=sizes.processes // SMALLER, adopted=0)
    with busy_node(small.members, small.processes) as node:
        former = {"nothing to do": _idle(node, sizes.rounds), "after a wipe": [_after_wipe(node)]}
    with busy_node(sizes.members, sizes.processes, sizes.adopted) as node:
        costs = {"nothing to do": _idle(node, sizes.rounds), "after a wipe": [_after_wipe(node)]}
        costs["--adopt"] = [_adopt(node)]
    yield Table(f"{sizes.members} members, {sizes.processes} processes", list(_figures(costs)))
    yield Table(f"{sizes.members} / {small.members} members", list(_growth(costs, former)))


def check() -> None:
    """Raises NotReady if nothing can be measured here."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        raise NotReady("needs root and /dev/fuse")
    if not PYZ.is_file():
        raise NotReady(f"no {PYZ}: run `python3 build.py`")


# --- What is measured


def _idle(node: BusyNode, rounds: int) -> list[Cost]:
    _run(node)
    costs = [_run(node) for _ in range(rounds)]
    _expect(costs[-1].done, [], "right after a reconcile")
    return costs


def _after_wipe(node: BusyNode) -> Cost:
    node.wipe()
    cost = _run(node)
    _expect(cost.done, ["remake"] * len(node.members), "after a wipe")
    node.check()
    return cost


def _adopt(node: BusyNode) -> Cost:
    with tempfile.TemporaryDirectory(prefix="scale-", dir="/dev/shm") as directory:
        machine = ScratchMachine(Path(directory))
        node.write_runtime(machine.directory)
        cost = _run(node, "--adopt", wrapper=machine.enter())
    _expect(cost.done, ["adopt"] * len(node.others), "--adopt")
    return cost


def _measure_scrapes(sizes: Sizes) -> Table:
    """The CPU time of each scrape but the first, which begins without the samples of a former one."""
    figures = []
    with tempfile.TemporaryDirectory(prefix="scale-", dir=TMPFS) as directory:
        command = make_full_node(Path(directory), sizes.keys).command("metrics")
        command += ["--listen=0", "--created"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                url = server.stdout.readline().split()[-1]
                for row, headers in SCRAPES.items():
                    costs = [_scrape(server.pid, url, headers) for _ in range(sizes.rounds + 1)][1:]
                    figures.append(Figure(row, "CPU s", [cpu for cpu, _ in costs], SCRAPE_TARGET))
                    figures.append(Figure(row, "KiB sent", [size / 1024 for _, size in costs], digits=0))
            finally:
                server.kill()
    return Table(f"one scrape of {sizes.keys} keys", figures)


def _scrape(pid: int, url: str, headers: dict[str, str]) -> tuple[float, int]:
    """The CPU seconds of the server for one scrape, and the bytes of its content."""
    time.sleep(1.1)  # until then the last reading is shared
    before = _read_cpu(pid)
    with urlopen(Request(url, headers=headers), timeout=DEADLINE) as answer:  # noqa: S310  our own
        size = len(answer.read())
    return _read_cpu(pid) - before, size


def _read_cpu(pid: int) -> float:
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])) / _TICKS


def _expect(done: Sequence[str], expected: Sequence[str], when: str) -> None:
    if sorted(it.partition(" ")[0] for it in done) != sorted(expected):
        some = "; ".join(done[:5])
        raise CannotMeasure(f"reconcile {when} did {len(done)} actions, not {len(expected)}: {some}")


def _run(node: BusyNode, *options: str, wrapper: Sequence[str] = ()) -> Cost:
    """Run `reconcile` as its unit does.

    It may run into its time limit: each call of the model takes longer than one of the kernel's.
    """
    command = [*wrapper, "nice", "-n", "5", *node.hook.command("reconcile"), "--json", *options]
    with tempfile.TemporaryFile() as output:
        actions = [(os.POSIX_SPAWN_DUP2, output.fileno(), descriptor) for descriptor in (1, 2)]
        pid = os.posix_spawnp(command[0], command, {"PATH": os.environ["PATH"]}, file_actions=actions)
        memory = _wait(pid)
        children = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15])) / _TICKS
        _, status, used = os.wait4(pid, 0)
        output.seek(0)
        said = output.read().decode(errors="replace")
    if not said.startswith("{") or (status and json.loads(said)["ended"] is None):
        raise CannotMeasure(f"reconcile: wait status {status}: {said[-1000:].strip()}")
    actions_done = json.loads(said)["actions"]
    if problems := [it["problem"] for it in actions_done if it["problem"]]:
        raise CannotMeasure(f"reconcile: {len(problems)} actions failed: {problems[0]}")
    cpu = used.ru_utime + used.ru_stime
    return Cost(
        cpu,
        cpu - children,
        memory,
        [f"{it['action']} {it['container'] or it['path']}: {it['why']}" for it in actions_done],
    )


def _wait(pid: int) -> float:
    """Wait for the end of a process, which stays a zombie; returns its peak memory in MiB.

    From /proc, and not from wait4(2): there a process begins with the peak memory of the one that started it.
    """
    peak, deadline = 0, time.monotonic() + DEADLINE
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        peak = max([peak, *(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))])
        if time.monotonic() > deadline:
            raise CannotMeasure("reconcile does not end")
        time.sleep(0.02)
    return peak / 1024


# --- What is printed


def _figures(costs: dict[str, list[Cost]]) -> Iterator[Figure]:
    for row, found in costs.items():
        yield Figure(row, "CPU s", [it.cpu for it in found])
        yield Figure(row, "CPU s without children", [it.alone for it in found], TARGETS[row])
        yield Figure(row, "peak memory, MiB", [it.memory for it in found], digits=0)


def _growth(costs: dict[str, list[Cost]], former: dict[str, list[Cost]]) -> Iterator[Figure]:
    for row, found in former.items():
        factor = median(it.cpu for it in costs[row]) / median(it.cpu for it in found)
        yield Figure(row, "growth", [factor], GROWTH_TARGET)


# --- The command


def parser() -> argparse.ArgumentParser:
    options = common.parser("scale", __doc__)
    default = Sizes()
    options.add_argument("--members", type=int, default=default.members, help="containers on record [2000]")
    options.add_argument("--processes", type=int, default=default.processes, help="processes in all [10000]")
    options.add_argument("--adopted", type=int, default=default.adopted, help="containers without a hook [500]")
    options.add_argument("--rounds", type=int, default=default.rounds, help="of what has nothing to do [3]")
    options.add_argument("--only", choices=("reconcile", "scrape"), help="only these tables")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    sizes = Sizes(given.members, given.processes, given.adopted, max(1, given.rounds))
    return common.report("scale", lambda: measure(sizes, given.only), given)


if __name__ == "__main__":
    sys.exit(main())
