# SPDX-License-Identifier: Apache-2.0
"""Schedules: one as it is planned or by chance, all with one preemption, and the shortest that still goes wrong."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from hook.base import system
from hook.reconcile import run as reconcile
from tests.simulator.kernel import Kernel
from tests.simulator.node import SimulatedNode
from tests.simulator.schedule import ERRNOS, SimulatedRun, Turn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Played(NamedTuple):
    """What came of a schedule. `happened`: as a plan it repeats the schedule. `points`: how many calls there were."""

    problem: str | None
    happened: list[Turn]
    points: int
    trace: list[str]


def play(scenario: str, plan: Sequence[Turn] = (), random: Random | None = None, *, traces: bool = False) -> Played:
    """Play one schedule of a scenario."""
    head, _, steps = scenario.rpartition(";")
    options = {name: int(value) for name, _, value in (word.partition("=") for word in head.split())}
    before, *lanes = steps.split("|")
    run = SimulatedRun(Kernel(options.pop("rmids", 1000), options.pop("limbo", 0)), plan, random)
    run.traces = traces
    former, reconcile._list_unhooked = reconcile._list_unhooked, lambda *_: []
    try:
        with run.installed(system):
            node = SimulatedNode(run, options)
            problem = None
            try:
                node.take(before)
                if run.problem is None:
                    run.together(**{str(n): lambda steps=steps: node.take(steps) for n, steps in enumerate(lanes)})
                    node.finish()
            except Exception as error:  # noqa: BLE001  whatever it is, it is this schedule's
                problem = f"{type(error).__name__}: {error}"
            if run.problem is not None:
                problem = str(run.problem)
    finally:
        reconcile._list_unhooked = former
    return Played(problem, run.happened, run.points, run.trace)


def play_at_random(scenario: str, seed: int) -> Played:
    return play(scenario, random=Random(f"{scenario} {seed}"))


def list_preemptions(scenario: str) -> Iterator[list[Turn]]:
    """Every schedule in which one process is interrupted once, by all of another one."""
    lanes = scenario.count("|")
    for first in range(lanes):
        start = [Turn(0, "next", first)]
        points = play(scenario, start).points
        yield start
        for at in range(1, points + 1):
            for to in range(lanes - 1):
                yield [*start, Turn(at, "to", to)]


def list_faults(scenario: str) -> Iterator[list[Turn]]:
    """Every schedule in which one process is killed at one of its system calls, or one of them fails."""
    for first in range(scenario.count("|")):
        start = [Turn(0, "next", first)]
        for at in range(1, play(scenario, start).points + 1):
            yield [*start, Turn(at, "kill", 0)]
            yield [*start, Turn(at, "errno", ERRNOS[at % len(ERRNOS)])]


def shrink(scenario: str, plan: list[Turn]) -> list[Turn]:
    """Leave out what is not needed for something to go wrong."""
    size = len(plan)
    while size:
        size = (size + 1) // 2 if size > 1 else 1
        shorter = next(
            (it for at in range(0, len(plan), size) if play(scenario, it := plan[:at] + plan[at + size :]).problem),
            None,
        )
        if shorter is not None:
            plan, size = shorter, len(shorter)
        elif size == 1:
            break
    return plan
