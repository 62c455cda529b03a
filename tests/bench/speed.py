# SPDX-License-Identifier: Apache-2.0
"""How much the hook costs: beside the least that Python costs, and on a busy node.

    python3 build.py bench speed [--only TABLE...] [--python PATH...] [--rounds N] [--seed N]
    [--groups N...] ...

docs/performance.md says what the figures mean. A figure is the median of the rounds' ratios ± half
of their interquartile range; what takes longer has fewer rounds. (!) marks a missed target. Hooks
are the shipped file, started as the kernel starts it, with an empty environment, default options
and a state of CRI-O's on a pipe.

starts     createRuntime and poststop with 24 counters, snapshots and all: the ELF file, and the
           .pyz on each CPython that the machine has
groups     the same on nodes with 1 to 5,000 groups
crowd      200 hooks at once, each for a pod of its own, by as many exit floors at once
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from fetch import interpreters, provision
from pyz import archive
from tests.bench import common
from tests.bench.common import CannotMeasure, Figure, NotReady, Table, ratios
from tests.bench.launcher import Bench, Launcher, Step, has_valgrind
from tests.bench.nodes import TMPFS, MeasuredNode, created, model_node, plain_node, stopped
from tests.support.hook import NATIVE, PYZ, end, task

FLOOR = "exit floor"
EXIT = ("-I", "-S", "-c", "import posix;posix._exit(0)")
FIRST, FURTHER = "createRuntime, first of a key", "createRuntime, a further one"
NOT_LAST, LAST = "poststop, not the last", "poststop, last of a key"
ELF, WALL = "ELF", "wall time"
TARGETS = {FIRST: 1.50, FURTHER: 1.45, NOT_LAST: 1.42, LAST: 1.52}  # by instructions, which repeat
ELF_TARGETS = {FIRST: 0.68, FURTHER: 0.66, NOT_LAST: 0.64, LAST: 0.66}
CROWD_TARGETS = {ELF: 0.90}
MEMORY_TARGET = 3.0
GROUPS_TARGET = 1.01

Found = Mapping[tuple[str, str], Sequence[float]]


class Form(NamedTuple):
    """A form of the program: what is before the file on its command line, the file,
    and what its floor starts.
    """

    start: Sequence[str]
    program: Path
    python: Sequence[str]

    def command(self, node: MeasuredNode) -> list[str]:
        return node.hook(self.start, self.program).command("hook")

    @property
    def floor(self) -> list[str]:
        return [*self.python, *EXIT]


class SpeedPlan(NamedTuple):
    """What to measure."""

    only: Sequence[str] = ("starts", "groups", "crowd")
    python: Sequence[str] = ("",)  # programs; empty: those that the machine has
    rounds: int = 60
    seed: int = 1
    groups: Sequence[int] = (1, 100, 1000, 5000)
    crowd: int = 200
    instructions: int = 1  # 0: none are counted


def measure(plan: SpeedPlan) -> Iterator[Table]:
    """Yield each table as soon as it is measured; all take some minutes. Raises CannotMeasure."""
    if os.geteuid() != 0:
        raise NotReady("not root")
    if absent := provision.install(("gcc", "libc6-dev")):
        raise NotReady("; ".join(absent))
    for path in (PYZ, Path(TMPFS)):
        if not path.exists():
            raise NotReady(f"no {path}")
    forms = find_forms([Path(name) for name in plan.python if name])
    with tempfile.TemporaryDirectory(prefix="speed-") as directory:
        counts = bool(plan.instructions) and has_valgrind()
        bench = Bench(Launcher(Path(directory)), random.Random(plan.seed), plan.rounds, counts)
        tables: dict[str, Callable[[], Table]] = {
            "starts": lambda: starts(bench, forms),
            "groups": lambda: groups(bench, next(iter(forms.values())), plan.groups),
            "crowd": lambda: crowd(bench, forms, plan.crowd),
        }
        for name in plan.only:
            yield tables[name]()


def find_forms(programs: Sequence[Path]) -> dict[str, Form]:
    """Return the ELF file, beside the usual Python, and the .pyz on these interpreters (none:
    all that are found).
    """
    pythons = [interpreters.probe(path) for path in programs] if programs else interpreters.find()
    if None in pythons or not pythons:
        raise NotReady("--python: not a base installation of CPython")
    starts = {
        ".".join(map(str, one.minor)): interpreters.start_command(one.path)
        for one in pythons
        if one
    }
    forms = {
        name: Form((*start, "-ISc", archive.BOOT), PYZ, start) for name, start in starts.items()
    }
    usual = next(iter(starts.values())) if programs else [archive.PYTHON]
    return {ELF: Form((), NATIVE, usual), **forms} if NATIVE.exists() else forms


def life(node: MeasuredNode, subject: str, form: Form) -> Iterator[Step]:
    """A pod of two containers, of which the second ends first."""
    key, one, two = node.new_key(), node.new_container(), node.new_container()
    command = form.command(node)
    with task() as first, task() as further:
        yield Step(subject, FIRST, command, created(one, first.pid, key))
        yield Step(subject, FURTHER, command, created(two, further.pid, key))
        if node.members([key]) != {one, two}:
            raise CannotMeasure(
                f"{subject}: the hook did not do its work: {node.hook().failures()}"
            )
        end(further)
        yield Step(subject, NOT_LAST, command, stopped(two, key))
        end(first)
        yield Step(subject, LAST, command, stopped(one, key))
    if node.members([key]):
        raise CannotMeasure(f"{subject}: members are still on record: {node.hook().failures()}")


def starts(bench: Bench, forms: Mapping[str, Form]) -> Table:
    """Complete hooks, and the least that a start and an exit of Python take."""
    with ExitStack() as stack:

        def sequences(nodes: Mapping[str, MeasuredNode]) -> Iterator[Iterator[Step]]:
            for name, form in forms.items():
                yield life(nodes[name], name, form)
                yield iter([Step(name, FLOOR, form.floor)])

        plain = {name: stack.enter_context(plain_node()) for name in forms}
        times = bench.measure(bench.rounds, lambda: sequences(plain), bench.launcher.run)
        models = {name: stack.enter_context(model_node()) for name in forms}
        counts = bench.instructions(lambda: sequences(models))
    seconds = {key: [taken.seconds for taken in values] for key, values in times.items()}
    memory = {key: [taken.memory for taken in values] for key, values in times.items()}
    figures = []
    for what, measured in ((WALL, seconds), ("instructions", counts)):
        figures += [figure for name in forms for figure in _beside_floor(name, measured, what)]
    for name in forms:
        most = map(max, zip(*(memory[name, step] for step in TARGETS)))
        more = [value - least for value, least in zip(most, memory[name, FLOOR])]
        figures.append(
            Figure("peak memory of any of them: MiB more", name, more, MEMORY_TARGET, digits=1)
        )
        floors = seconds[name, FLOOR]
        figures.append(Figure(f"{FLOOR}: ms", name, [1000 * value for value in floors], digits=1))
        for step in (FURTHER, NOT_LAST):
            more = [1000 * (taken - least) for taken, least in zip(seconds[name, step], floors)]
            figures.append(Figure(f"{step}: ms more", name, more, digits=1))
    return Table("hook / exit floor", figures)


def _beside_floor(name: str, measured: Found, what: str) -> Iterator[Figure]:
    targets = {} if what == WALL else ELF_TARGETS if name == ELF else TARGETS
    for step in TARGETS if measured else ():
        yield Figure(
            f"{step}: {what}",
            name,
            ratios(measured[name, step], measured[name, FLOOR]),
            targets.get(step),
        )


def groups(bench: Bench, form: Form, sizes: Sequence[int]) -> Table:
    """The same hooks on nodes with so many groups;
    the first number is what the others are compared with.
    """
    base, *others = map(str, sizes)
    with ExitStack() as stack:
        nodes = {str(size): stack.enter_context(plain_node(size)) for size in sizes}

        def sequences() -> Iterator[Iterator[Step]]:
            return (life(node, size, form) for size, node in nodes.items())

        times = bench.measure(
            bench.fewer(2), sequences, lambda step: bench.launcher.run(step).seconds
        )
        counts = bench.instructions(sequences)
    figures = [
        Figure(
            f"{size} groups: {what}",
            step,
            ratios(measured[size, step], measured[base, step]),
            target,
            digits=3,
        )
        for measured, what, target in (
            (times, "wall time", None),
            (counts, "instructions", GROUPS_TARGET),
        )
        if measured
        for size in others
        for step in TARGETS
    ]
    return Table(f"hook on a node with N groups / with {base}", figures)


def crowd(bench: Bench, forms: Mapping[str, Form], size: int) -> Table:
    """So many createRuntime at once, and as many exit floors."""
    figures = []
    for name, form in forms.items():
        hooks, floors = [], []
        with plain_node() as node:
            for _ in range(bench.fewer(10)):
                containers = {node.new_container(): node.new_key() for _ in range(size)}
                with ExitStack() as stack:
                    pids = [stack.enter_context(task()).pid for _ in containers]
                    states = [
                        created(name, pid, key)
                        for pid, (name, key) in zip(pids, containers.items())
                    ]
                    hooks.append(bench.launcher.time_at_once(form.command(node), states))
                if node.members(containers.values()) != containers.keys():
                    raise CannotMeasure(
                        f"not all of {size} hooks did their work: {node.hook().failures()}"
                    )
                floors.append(bench.launcher.time_at_once(form.floor, [""] * size))
        figures.append(
            Figure(
                f"{size} at once: wall time", name, ratios(hooks, floors), CROWD_TARGETS.get(name)
            )
        )
    return Table("hooks / exit floors", figures)


if __name__ == "__main__":
    sys.exit(common.run("speed", __doc__, SpeedPlan(), measure))
