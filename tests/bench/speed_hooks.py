# SPDX-License-Identifier: Apache-2.0
"""The hook by itself: beside the exit floor, on a node with many groups, and many at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

from tests.bench.common import CannotMeasure
from tests.bench.figures import Figure, Table, ratios
from tests.bench.launcher import ALONE, Step, Taken
from tests.bench.plain_node import MeasuredNode, created, model_node, plain_node, stopped, uid_of
from tests.bench.rounds import Bench
from tests.support.hook import end, task

FLOOR = "exit floor"
EXIT = ("-I", "-S", "-c", "import posix;posix._exit(0)")
FIRST, FURTHER = "createRuntime, first of a key", "createRuntime, a further one"
NOT_LAST, LAST = "poststop, not the last", "poststop, last of a key"
NOTED = f"{LAST}, with --history"
TARGETS = {FIRST: 1.50, FURTHER: 1.40, NOT_LAST: 1.40, LAST: 1.50}
MEMORY_TARGET = 3.0
GROUPS_TARGET = 1.01
LOOKS_TARGET = 6.2
CREATE, STOP = "createRuntime", "poststop"
CROWD_TARGET = 1.25
ONE_KEY_TARGET = 1.15

Python = Sequence[str]
"""The command that starts an interpreter."""


def floor(subject: str, python: Python, times: int = 1) -> Step:
    return Step(subject, FLOOR, [*python, *EXIT], [""] * times, options=() if times > 1 else (ALONE,))


def life(node: MeasuredNode, subject: str, python: Python) -> Iterator[Step]:
    """A pod of two containers, of which the second ends first."""
    key, one, two = node.new_key(), node.new_container(), node.new_container()
    command = node.hook(python).command("hook")

    def alone(name: str, state: str) -> Step:
        return Step(subject, name, command, [state], options=(ALONE,))

    with task() as first, task() as further:
        yield alone(FIRST, created(one, first.pid, key))
        yield alone(FURTHER, created(two, further.pid, key))
        if node.members([key]) != {one, two}:
            raise CannotMeasure(f"{subject}: the hook did not do its work: {node.hook().failures()}")
        end(further)
        yield alone(NOT_LAST, stopped(two, key))
        end(first)
        yield alone(LAST, stopped(one, key))
    if left := node.left():
        raise CannotMeasure(f"{subject}: left behind: {left}")


def noted_end(node: MeasuredNode, subject: str, python: Python) -> Iterator[Step]:
    """The end of a pod of one container, whose use gets a line in the history."""
    key, container = node.new_key(), node.new_container()
    history = node.run_dir.with_name("history.jsonl")
    hook = node.hook(python).with_options(f"--history={history}")
    with task() as init:
        hook(created(container, init.pid, key).encode())
        end(init)
        yield Step(subject, NOTED, hook.command("hook"), [stopped(container, key)], options=(ALONE,))
    if not history.is_file() or key not in history.read_text().splitlines()[-1]:
        raise CannotMeasure(f"{subject}: no line in the history: {hook.failures()}")


# --- Beside the exit floor


def starts(bench: Bench, pythons: Mapping[str, Python]) -> Table:
    """Complete hooks, and the least that a start and an exit of the same Python take."""
    with ExitStack() as stack:

        def sequences(nodes: Mapping[str, MeasuredNode]) -> Iterator[Iterator[Step]]:
            for name, python in pythons.items():
                yield life(nodes[name], name, python)
                yield noted_end(nodes[name], name, python)
                yield iter([floor(name, python)])

        plain = {name: stack.enter_context(plain_node()) for name in pythons}
        times = bench.measure(bench.rounds, lambda: sequences(plain), bench.launcher.run)
        models = {name: stack.enter_context(model_node()) for name in pythons}
        counts = bench.instructions(lambda: sequences(models))
    seconds = {key: [it.seconds for it in values] for key, values in times.items()}
    figures = [it for name in pythons for it in _beside_floor(name, seconds, "wall time")]
    figures += [it for name in pythons for it in _beside_floor(name, counts, "instructions")]
    figures += [_memory(name, times) for name in pythons]
    figures += [it for name in pythons for it in _milliseconds(name, seconds)]
    return Table("hook / exit floor", figures)


def _beside_floor(python: str, found: Mapping[tuple[str, str], Sequence[float]], what: str) -> Iterator[Figure]:
    for step, target in (*TARGETS.items(), (NOTED, None)):
        if found:
            values = ratios(found[python, step], found[python, FLOOR])
            yield Figure(f"{step}: {what}", python, values, target)


def _milliseconds(python: str, seconds: Mapping[tuple[str, str], Sequence[float]]) -> Iterator[Figure]:
    """What a container's start and end take longer, beside the time of the exit floor itself."""
    floors = seconds[python, FLOOR]
    yield Figure(f"{FLOOR}: ms", python, [1000 * it for it in floors], digits=1)
    for step in (FURTHER, NOT_LAST):
        values = [1000 * (taken - least) for taken, least in zip(seconds[python, step], floors)]
        yield Figure(f"{step}: ms more", python, values, digits=1)


def _memory(python: str, times: Mapping[tuple[str, str], Sequence[Taken]]) -> Figure:
    most = [max(it.memory for it in steps) for steps in zip(*(times[python, step] for step in TARGETS))]
    values = [it - least.memory for it, least in zip(most, times[python, FLOOR])]
    return Figure("peak memory of any of them: MiB more", python, values, MEMORY_TARGET, digits=1)


# --- Commands that look


def looks(bench: Bench, pythons: Mapping[str, Python]) -> Table:
    """What commands that people and Prometheus call again and again take on a node with one pod."""
    with ExitStack() as stack:
        nodes = {name: stack.enter_context(plain_node()) for name in pythons}

        def sequences() -> Iterator[Iterator[Step]]:
            for name, python in pythons.items():
                yield iter([floor(name, python)])
                for words in (["list"], ["show", uid_of(1)], ["metrics"]):
                    command = nodes[name].hook(python).command(words[0])
                    yield iter([Step(name, words[0], [*command, *words[1:]], options=(ALONE,))])

        times = bench.measure(bench.fewer(2), sequences, lambda step: bench.launcher.run_anyhow(step).cpu)
    figures = [
        Figure(f"{verb}: CPU time", name, ratios(times[name, verb], times[name, FLOOR]), LOOKS_TARGET)
        for name in pythons
        for verb in ("list", "show", "metrics")
    ]
    return Table("command / exit floor", figures)


# --- Many groups


def groups(bench: Bench, python: Python, sizes: Sequence[int]) -> Table:
    """The same hooks on nodes with so many groups; the first number is what the others are compared with."""
    base, *others = map(str, sizes)
    with ExitStack() as stack:
        nodes = {str(size): stack.enter_context(plain_node(size)) for size in sizes}

        def sequences() -> Iterator[Iterator[Step]]:
            return (life(node, size, python) for size, node in nodes.items())

        times = bench.measure(bench.fewer(2), sequences, lambda step: bench.launcher.run(step).seconds)
        counts = bench.instructions(sequences)
    figures = [
        Figure(f"{size} groups: {what}", step, ratios(found[size, step], found[base, step]), target, digits=3)
        for found, what, target in ((times, "wall time", None), (counts, "instructions", GROUPS_TARGET))
        if found
        for size in others
        for step in TARGETS
    ]
    return Table(f"hook on a node with N groups / with {base}", figures)


# --- Many at once


def crowds(bench: Bench, python: Python, count: int) -> Table:
    """So many hooks at the same moment, each for a pod of its own or all for one pod; and as many exit floors."""
    different, same = f"{count} on different keys", f"{count} on one key"
    lost: Counter[tuple[str, str]] = Counter()

    def sequences() -> Iterator[Iterator[Step]]:
        yield iter([floor(FLOOR, python, count)])
        yield crowd(different, python, count, count, lost)
        yield crowd(same, python, count, 1, lost)

    times = bench.measure(bench.fewer(6), sequences, lambda step: bench.launcher.run_anyhow(step).seconds)
    floors = times[FLOOR, FLOOR]
    stages = (CREATE, STOP)
    figures = [
        Figure(f"{subject} / {count} exit floors", stage, ratios(times[subject, stage], floors), CROWD_TARGET)
        for subject in (different, same)
        for stage in stages
    ]
    figures += [
        Figure("on one key / on different keys", stage, ratios(times[same, stage], times[different, stage]), target)
        for stage, target in ((CREATE, ONE_KEY_TARGET), (STOP, ONE_KEY_TARGET))
    ]
    figures += [
        Figure(f"{subject}: members lost, things left behind", stage, [lost[subject, stage]], 0, digits=0)
        for subject in (different, same)
        for stage in stages
    ]
    return Table("many hooks at once", figures)


def crowd(subject: str, python: Python, count: int, pods: int, lost: Counter[tuple[str, str]]) -> Iterator[Step]:
    """All containers of some pods come at once, and go at once. Adds to `lost` who is on record of no pod, and what is
    left when all are gone.
    """
    with plain_node() as node, ExitStack() as stack:
        keys = [node.new_key() for _ in range(pods)]
        inits = {node.new_container(): stack.enter_context(task()) for _ in range(count)}
        places = {container: keys[index % pods] for index, container in enumerate(inits)}
        command = node.hook(python).command("hook")
        coming = [created(container, init.pid, places[container]) for container, init in inits.items()]
        yield Step(subject, CREATE, command, coming)
        lost[subject, CREATE] += len(inits.keys() - node.members(keys))
        for init in inits.values():
            end(init)
        yield Step(subject, STOP, command, [stopped(container, key) for container, key in places.items()])
        lost[subject, STOP] += len(node.left())
