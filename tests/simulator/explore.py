# SPDX-License-Identifier: Apache-2.0
"""Schedules: one as it is planned or by chance, all with one preemption, and the shortest that still goes wrong."""

from __future__ import annotations

import posixpath
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from hook.base import system
from hook.reconcile import run as reconcile
from tests.simulator.kernel import Kernel
from tests.simulator.node import SimulatedNode
from tests.simulator.oracle import HISTORY
from tests.simulator.schedule import ERRNOS, SimulatedRun, Turn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Played(NamedTuple):
    """What came of a schedule. `happened`: as a plan it repeats the schedule. `points`: how many calls there were."""

    problem: str | None
    happened: list[Turn]
    points: int


def play(
    scenario: str, plan: Sequence[Turn] = (), random: Random | None = None, trace: list[str] | None = None
) -> Played:
    """Play one schedule of a scenario; `trace`: gets its system calls."""
    head, _, steps = scenario.rpartition(";")
    options: dict[str, Any] = {name: int(value) for name, _, value in (word.partition("=") for word in head.split())}
    before, *lanes = steps.split("|")
    run = SimulatedRun(Kernel(options.pop("rmids", 1000), options.pop("limbo", 0)), plan, random)
    run.trace = trace
    if options.pop("history", 0):
        run.fs.create_dir(posixpath.dirname(HISTORY))
        options["history"] = HISTORY
    with run.installed(system), patch.object(reconcile, "_list_unhooked", lambda *_: []):
        try:
            node = SimulatedNode(run, options)
            node.take(before)
            if run.problem is None:
                run.together(**{str(n): lambda steps=steps: node.take(steps) for n, steps in enumerate(lanes)})
                node.finish()
        except Exception as error:  # noqa: BLE001  whatever it is, it is this schedule's
            run.problem = run.problem or error
    problem = f"{type(run.problem).__name__}: {run.problem}" if run.problem is not None else None
    return Played(problem, run.happened, run.points)


def play_at_random(scenario: str, seed: int) -> Played:
    return play(scenario, random=Random(f"{scenario} {seed}"))


def list_single_events(scenario: str) -> Iterator[list[Turn]]:
    """Every schedule in which one process is interrupted once, by all of another one, is killed, or a call fails."""
    lanes = scenario.count("|")
    for first in range(lanes):
        start = [Turn(0, "next", first)]
        yield start
        for at in range(1, play(scenario, start).points + 1):
            yield from ([*start, Turn(at, "to", to)] for to in range(lanes - 1))
            yield [*start, Turn(at, "kill", 0)]
            yield [*start, Turn(at, "errno", ERRNOS[at % len(ERRNOS)])]


def shrink(scenario: str, plan: list[Turn]) -> list[Turn]:
    """Leave out what is not needed for something to go wrong: halves first, in the end single events."""
    size = len(plan)
    while size:
        shorter = (plan[:at] + plan[at + size :] for at in range(0, len(plan), size))
        found = next((it for it in shorter if play(scenario, it).problem), None)
        plan, size = (found, min(size, len(found))) if found is not None else (plan, size // 2)
    return plan
