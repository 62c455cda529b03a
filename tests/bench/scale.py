# SPDX-License-Identifier: Apache-2.0
"""What reconcile costs on a big node, what one scrape of its metrics costs,
and what a long history costs.

    python3 build.py bench scale [--only TABLE...] [--members N] [--processes N] [--rounds N]
                                 [--keys N] [--lines N] [--day N]

CPU seconds of the shipped file as a process, on the model of resctrl, whose own are in no figure.
(!) marks a missed target; the targets are for the default sizes.

nothing to do   `reconcile` right after another one
after a wipe    all groups were removed: reconcile makes each again, and moves the tasks in; all
                runs that this takes
growth          the CPU time with all members, by that with a quarter of the members and of the
                processes
scrape          one request to `metrics --listen`, on a node whose groups are plain directories,
                with 24 counters each
history         `history` of a file of that many lines with 4 events each, and of five times as
                many; the CPU time by that of Python's json.loads of these lines, one after the
                other
sums            what runs each minute on a node whose history gets --day lines a day, after a day,
                beside the same without a history; and to make the sums of a day
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple
from urllib.request import Request, urlopen

from hook import formats
from tests.bench import common
from tests.bench.common import CannotMeasure, Figure, NotReady, Table
from tests.bench.launcher import DEADLINE, Launcher, Step, Taken
from tests.bench.nodes import MeasuredNode, created, fill_group, model_node, plain_node
from tests.resctrlfs.model import Knobs
from tests.support import fleet
from tests.support.cgroups import remove_of_pods
from tests.support.hook import PYZ, shipped

SMALLER = 4
TARGETS = {"nothing to do": 0.6, "after a wipe": 6.0}
GROWTH_TARGET = 4.4
SCRAPE_TARGET = 0.45
LONGER = 5
MINUTES = 24 * 60
PYTHON = "/usr/bin/python3"  # which the first line of the .pyz names
LOADS = "import json, sys\nfor line in open(sys.argv[1], 'rb'): json.loads(line)"
HISTORY_TARGETS = {("--by=day", 200_000): (6.0, 256.0)}
"""The CPU time by that of json.loads, and MiB."""
HISTORY_EVENTS = ("core_energy", "activity", "mbm_total_bytes", "mbm_local_bytes")
HISTORIES = ("--by=day", "--by=name", "--limit=5", "--csv", "--json", "(a table)")
SCRAPES = {
    "text": {},
    "OpenMetrics, gzip, --created": {
        "Accept": "application/openmetrics-text",
        "Accept-Encoding": "gzip",
    },
}
"""What a client asks for."""
# Nothing is forked here that matters, and the model looks again for a pid that it does not know.
LOOK_MS = 3_600_000
_TICKS = os.sysconf("SC_CLK_TCK")


class Sizes(NamedTuple):
    """How big the node is."""

    members: int = 2000
    processes: int = 10000
    rounds: int = 3
    keys: int = 500  # for a scrape
    lines: int = 200_000  # of a history
    day: int = 150_000  # lines a day
    only: Sequence[str] = ("reconcile", "scrape", "history", "sums")


@dataclass
class BusyNode:
    """A node with many members and many more processes.

    Each member is a `sleep` in a pod of its own.
    """

    node: MeasuredNode
    launcher: Launcher

    def reconcile(self) -> tuple[Taken, int]:
        """Run `reconcile` as its unit does; returns how many groups it made again.

        CannotMeasure if it did more.

        On the model, whose calls take longer than the kernel's,
        its time may be over before it has made all.
        """
        command = ["nice", "-n", "5", *self.node.hook().command("reconcile"), "--json"]
        taken = self.launcher.run(Step("reconcile", "", command, alone=False, may_fail=True))
        if not taken.output.startswith("{"):
            raise CannotMeasure(f"reconcile: {taken.output[-1000:].strip()}")
        actions = json.loads(taken.output)["actions"]
        done = [action for action in actions if not action["problem"]]
        if other := [action for action in actions if action["action"] != "remake"]:
            raise CannotMeasure(f"reconcile: {len(other)} actions are odd: {other[0]}")
        return taken, len(done)

    def run_idle(self, rounds: int) -> list[Taken]:
        runs = [self.reconcile() for _ in range(rounds)]
        if runs[-1][1]:
            raise CannotMeasure("reconcile has something to do right after another one")
        return [taken for taken, _ in runs]

    def run_after_wipe(self) -> list[Taken]:
        """Remove all groups, as `pqos -R` or a remount does, and make them again,
        in as many runs as that takes.
        """
        groups = list(self.node.groups.iterdir())
        for path in groups:
            path.rmdir()
        runs: list[Taken] = []
        while lost := [
            path for path in groups if not path.is_dir() or not path.joinpath("tasks").read_text()
        ]:
            taken, done = self.reconcile()
            if not done:
                raise CannotMeasure(f"{len(lost)} of {len(groups)} members are not in their groups")
            runs.append(taken)
        return [Taken(0, sum(run.cpu for run in runs), max(run.memory for run in runs), "")]


@contextmanager
def busy_node(members: int, processes: int) -> Iterator[BusyNode]:
    """A node with that many members among that many processes."""
    limit = members + 100
    # 10 counters a group.
    knobs = Knobs(rmids=limit, aet_rmids=limit, look_ms=LOOK_MS, decay_ms=0, perf=False)
    with ExitStack() as stack:
        node = stack.enter_context(model_node(knobs))
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="scale-"))
        launcher = Launcher(Path(directory))
        stack.callback(remove_of_pods)
        pids = []
        for _ in range(processes):
            process = subprocess.Popen(["/bin/sleep", "infinity"], stdin=subprocess.DEVNULL, env={})
            stack.callback(process.wait)
            stack.callback(process.kill)
            pids.append(process.pid)
        for pid in pids[:members]:
            state = created(node.new_container(), pid, node.new_key())
            launcher.run(
                Step("member", "createRuntime", node.hook().command("hook"), state, alone=False)
            )
        busy = BusyNode(node, launcher)
        busy.reconcile()
        yield busy


def measure(sizes: Sizes) -> Iterator[Table]:
    """Yield each table as soon as it is measured. Raises CannotMeasure."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        raise NotReady("needs root and /dev/fuse")
    if not PYZ.is_file():
        raise NotReady(f"no {PYZ}: run `python3 build.py`")
    if "reconcile" in sizes.only:
        yield from _measure_reconcile(sizes)
    if "scrape" in sizes.only:
        yield _measure_scrapes(sizes)
    if "history" in sizes.only:
        yield from _measure_history(sizes)
    if "sums" in sizes.only:
        yield from _measure_sums(sizes)


def _measure_reconcile(sizes: Sizes) -> Iterator[Table]:
    former, costs = (_run_on(sizes, divisor) for divisor in (SMALLER, 1))
    figures, growth = [], []
    for row, taken in costs.items():
        figures.append(Figure(row, "CPU s", [each.cpu for each in taken], TARGETS[row]))
        figures.append(
            Figure(row, "peak memory, MiB", [each.memory for each in taken], digits=0, beside=None)
        )
    for row, taken in former.items():
        factor = median(each.cpu for each in costs[row]) / median(each.cpu for each in taken)
        growth.append(Figure(row, "growth", [factor], GROWTH_TARGET))
    yield Table(f"{sizes.members} members, {sizes.processes} processes", figures)
    yield Table(f"{sizes.members} / {sizes.members // SMALLER} members", growth)


def _run_on(sizes: Sizes, divisor: int) -> dict[str, list[Taken]]:
    with busy_node(sizes.members // divisor, sizes.processes // divisor) as node:
        return {"nothing to do": node.run_idle(sizes.rounds), "after a wipe": node.run_after_wipe()}


def _measure_scrapes(sizes: Sizes) -> Table:
    """The CPU time of each scrape but the first,
    which begins without the samples of a former one.
    """
    figures = []
    with plain_node(sizes.keys) as node:
        fill_group(node.groups.parent)
        with _serving(node, "--created") as (pid, url):
            for row, headers in SCRAPES.items():
                costs = [_scrape(pid, url, headers) for _ in range(sizes.rounds + 1)][1:]
                figures.append(Figure(row, "CPU s", [cpu for cpu, _ in costs], SCRAPE_TARGET))
                sent = [size / 1024 for _, size in costs]
                figures.append(Figure(row, "KiB sent", sent, digits=0, beside=None))
    return Table(f"one scrape of {sizes.keys} keys", figures)


def _scrape(pid: int, url: str, headers: dict[str, str]) -> tuple[float, int]:
    """Return the CPU seconds of the server for one scrape, and the bytes of its content."""
    time.sleep(1.1)  # until then the last reading is shared
    before = _read_cpu(pid)
    with urlopen(Request(url, headers=headers), timeout=DEADLINE) as answer:  # noqa: S310  our own
        size = len(answer.read())
    return _read_cpu(pid) - before, size


def _measure_history(sizes: Sizes) -> Iterator[Table]:
    with tempfile.TemporaryDirectory(prefix="scale-") as directory:
        file, launcher = Path(directory, "history.jsonl"), Launcher(Path(directory))

        def take(*command: str) -> Taken:
            # The launcher would keep the output.
            shell = ["/bin/sh", "-c", 'exec "$@" > /dev/null', "sh", *command]
            return launcher.run(Step("history", "", shell, alone=False))

        for lines, rows in ((sizes.lines, HISTORIES), (LONGER * sizes.lines, HISTORIES[:1])):
            _write_history(file, lines)
            loads = [take(PYTHON, "-c", LOADS, str(file)).cpu for _ in range(sizes.rounds)]
            figures = [Figure("json.loads", "CPU s", loads)]
            for row in rows:
                options = [row] if row.startswith("--") else []
                command = [str(shipped()), "history", f"--history={file}", *options]
                taken = [take(*command) for _ in range(sizes.rounds)]
                cpu, peak = [each.cpu for each in taken], [each.memory for each in taken]
                ratio, memory = HISTORY_TARGETS.get((row, lines), (None, None))
                figures.append(Figure(row, "CPU s", cpu))
                figures.append(Figure(row, "CPU / json.loads", common.ratios(cpu, loads), ratio))
                figures.append(Figure(row, "peak memory, MiB", peak, memory, digits=0, beside=None))
            yield Table(f"history of {lines} lines", figures)


def _write_history(file: Path, lines: int) -> None:
    """Write lines as hooks write them: a line of a container of
    Podman's every two minutes or so.
    """
    chance, end = random.Random(1), 1.7e9
    with file.open("w", encoding="ascii") as stream:
        for number in range(lines):
            end += chance.uniform(0, 260)
            seconds = round(chance.uniform(1, 5000), 3)
            container = f"{number:064x}"
            use = {event: round(chance.uniform(1, 1e13), 6) for event in HISTORY_EVENTS}
            written = f"{formats.format_utc(end)[:-1]}.{chance.randrange(10**6):06d}Z"
            job = {
                "version": 1,
                "id": f"{number:016x}",
                "node": "node-7",
                "written": written,
                "kind": "container",
                "key": container,
                "namespace": None,
            }
            job |= {
                "pod": None,
                "labels": {},
                "containers": [{"id": container, "name": f"job-{number % 500}"}],
            }
            job |= {
                "more_containers": 0,
                "begin": formats.format_utc(end - seconds),
                "end": formats.format_utc(end),
            }
            job |= {
                "seconds": seconds,
                "runs": 1,
                "use": use,
                "unknown": [],
                "late_cpu_seconds": 0.012,
                "reason": None,
            }
            stream.write(json.dumps(job) + "\n")


def _measure_sums(sizes: Sizes) -> Iterator[Table]:
    """The CPU time of what runs each minute, without a history and with one that grows."""
    minute = sizes.day // MINUTES
    with tempfile.TemporaryDirectory(prefix="scale-") as name, model_node() as node:
        launcher, log = Launcher(Path(name)), Path(name, "log")
        log.mkdir()
        fleet.write_files(Path(name), nodes=1, lines=sizes.day + sizes.rounds * minute, seed=1)
        lines = Path(name, "node-0.jsonl").read_bytes().splitlines(keepends=True)
        minutes = [
            lines[at : at + minute]
            for at in range(sizes.day, sizes.day + sizes.rounds * minute, minute)
        ]
        file = log / "history.jsonl"
        file.write_bytes(b"".join(lines[: sizes.day]))

        def take(history: str, verb: str, *words: str) -> float:
            command = [*node.hook().command(verb), *words, f"--history={history}"]
            shell = ["/bin/sh", "-c", 'exec "$@" > /dev/null', "sh", *command]
            return launcher.run(Step(verb, "", shell, alone=False)).cpu

        made, sums = take(str(file), "reconcile"), log / "sums.json"
        while not json.loads(sums.read_bytes())["is_whole"]:  # a run adds lines up for ten seconds
            made += take(str(file), "reconcile")
        with ExitStack() as stack:
            servers = {}
            for way, history in (("without", ""), ("with", str(file))):
                servers[way] = history, *stack.enter_context(_serving(node, f"--history={history}"))
            taken = defaultdict[tuple[str, str], list[float]](list)
            for added in minutes:
                with file.open("ab") as stream:
                    stream.writelines(added)
                for way, (history, pid, url) in servers.items():
                    taken["reconcile", way].append(take(history, "reconcile"))
                    taken["metrics --textfile", way].append(
                        take(history, "metrics", f"--textfile={name}/prom")
                    )
                    taken["metrics --listen, a scrape", way].append(_scrape(pid, url, {})[0])
    figures = [
        Figure(row, f"{way} a history", values, digits=3) for (row, way), values in taken.items()
    ]
    yield Table(f"CPU s, {sizes.day} lines a day", figures)
    yield Table(
        f"CPU s, {sizes.day} lines",
        [Figure("reconcile makes the sums", "CPU s", [made], beside=None)],
    )


@contextmanager
def _serving(node: MeasuredNode, *words: str) -> Iterator[tuple[int, str]]:
    """`metrics --listen`: its pid and its address."""
    command = [*node.hook().command("metrics"), "--listen=0", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.pid, server.stdout.readline().split()[-1]
        finally:
            server.kill()


def _read_cpu(pid: int) -> float:
    return (
        sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
        / _TICKS
    )


if __name__ == "__main__":
    sys.exit(common.run("scale", __doc__, Sizes(), measure))
