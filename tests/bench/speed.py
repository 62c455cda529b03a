# SPDX-License-Identifier: Apache-2.0
"""How much the hook costs: beside the least that Python costs, on a busy node, and many at once.

    python3 build.py bench speed [--json | --markdown] [--only TABLE]... [--python PATH]... [--rounds N] [--seed N]

Whatever is compared is measured once in each round, in an order by chance. A figure is the median of the rounds' ratios
± half of what the middle half of them lies within, of fewer rounds of what takes longer; (!) marks a target that is
missed. The exit status is 1 if there is one, or if something could not be measured.

Hooks are the shipped file, started as the kernel starts it, with an empty environment, default options and a state of
CRI-O's on a pipe. The exit floor is `python3 -I -S -c 'import posix;posix._exit(0)'`.

wall time: from just before the exec until the process has been waited for, before all else on the machine (SCHED_FIFO;
many at once: a priority). /run and resctrl are on tmpfs (plain_node.py): what the kernel itself takes to make, fill and
remove a group and to ask the hardware is not in it. instructions: those in user space, counted by valgrind, where there
is one; they repeat to 0.2 %; those of `starts` on the model of resctrl, where a first createRuntime makes the group.
peak memory: the maximum resident set of the process.

starts     createRuntime and poststop with 24 counters, snapshots and all, on each CPython that the machine has; the
           last poststop of a key with a history, too
looks      CPU time (user and system) of `list`, `show` and `metrics` on a node with one pod
groups     the same as starts on nodes with 1 to 5,000 groups
crowds     200 hooks that wait to be let go at the same moment, all before their exec; and as many exit floors
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyz import archive
from tests import provision
from tests.bench import common, speed_hooks
from tests.bench.common import NotReady
from tests.bench.figures import Table
from tests.bench.launcher import Launcher, has_valgrind
from tests.bench.plain_node import TMPFS
from tests.bench.rounds import Bench
from tests.support import interpreters
from tests.support.hook import PYZ

TABLES = ("starts", "looks", "groups", "crowds")


@dataclass(frozen=True)
class Plan:
    """What to measure. `pythons`: programs, all that can be found unless given."""

    tables: Sequence[str] = TABLES
    pythons: Sequence[Path] = ()
    rounds: int = 60
    seed: int = 1
    groups: Sequence[int] = (1, 100, 1000, 5000)
    crowd: int = 200
    counts_instructions: bool = True


def ways(plan: Plan, directory: Path) -> Mapping[str, Callable[[], Table]]:
    """What measures each table. Raises NotReady if nothing can be measured here; `directory`: for a program."""
    check()
    pythons = commands(plan.pythons)
    usual = next(iter(pythons.values())) if plan.pythons else [archive.PYTHON]
    counts = plan.counts_instructions and has_valgrind()
    bench = Bench(Launcher(directory), random.Random(plan.seed), plan.rounds, counts)
    return {
        "starts": lambda: speed_hooks.starts(bench, pythons),
        "looks": lambda: speed_hooks.looks(bench, pythons),
        "groups": lambda: speed_hooks.groups(bench, usual, plan.groups),
        "crowds": lambda: speed_hooks.crowds(bench, usual, plan.crowd),
    }


def measure(plan: Plan) -> Iterator[Table]:
    """The tables, each as soon as it is there; some minutes for all. Raises CannotMeasure."""
    with tempfile.TemporaryDirectory(prefix="speed-") as directory:
        found = ways(plan, Path(directory))
        for name in plan.tables:
            yield found[name]()


def check() -> None:
    """Raises NotReady if nothing can be measured here."""
    if os.geteuid() != 0:
        raise NotReady("not root")
    if absent := provision.install(("gcc", "libc6-dev")):
        raise NotReady("; ".join(absent))
    if not PYZ.is_file():
        raise NotReady(f"no {PYZ}: run `python3 build.py`")
    if not Path(TMPFS).is_dir():
        raise NotReady(f"no {TMPFS}")


def commands(programs: Sequence[Path]) -> dict[str, list[str]]:
    """What starts these interpreters, or all that can be found, by version."""
    found = [interpreters.probe(path) for path in programs] if programs else interpreters.find()
    named = {".".join(map(str, it.minor)): interpreters.start_command(it.path) for it in found if it}
    if None in found or not named:
        raise NotReady("--python: not a base installation of CPython")
    return named


# --- The command


def parser() -> argparse.ArgumentParser:
    options = common.parser("speed", __doc__)
    default = Plan()
    options.add_argument("--only", action="append", choices=TABLES, help="a table; may be given more than once [all]")
    options.add_argument(
        "--python", action="append", type=Path, help="may be given more than once; the first for all [each found]"
    )
    options.add_argument("--rounds", type=int, default=default.rounds, help="fewer of what takes longer [60]")
    options.add_argument("--seed", type=int, default=default.seed, help="of the orders by chance [1]")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    said = parser().parse_args(arguments)
    plan = Plan(said.only or TABLES, said.python or (), max(1, said.rounds), said.seed)
    return common.report("speed", lambda: measure(plan), said)


if __name__ == "__main__":
    sys.exit(main())
