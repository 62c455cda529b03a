# SPDX-License-Identifier: Apache-2.0
"""Schedules: one as it is planned or by chance, all with one preemption,
and the shortest that still goes wrong.
"""

from __future__ import annotations

import argparse
import posixpath
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple
from unittest.mock import patch

from hook import system
from hook.reconcile import run as reconcile
from tests.simulator.kernel import Kernel
from tests.simulator.node import SimulatedNode
from tests.simulator.oracle import HISTORY
from tests.simulator.scenarios import SCENARIOS, read_scenario
from tests.simulator.schedule import ERRNOS, SimulatedRun, Turn, read_turn


class Played(NamedTuple):
    """What came of a schedule.

    `happened`: as a plan it repeats the schedule. `points`: how many calls there were.
    """

    problem: str | None
    happened: list[Turn]
    points: int


def play(
    scenario: str,
    plan: Sequence[Turn] = (),
    random: Random | None = None,
    trace: list[str] | None = None,
) -> Played:
    """Play one schedule of a scenario; `trace`: gets its system calls."""
    options, before, lanes = read_scenario(scenario)
    run = SimulatedRun(Kernel(options.pop("rmids", 1000), options.pop("limbo", 0)), plan, random)
    run.kernel.shows_groups = bool(options.pop("shows_groups", 1))
    run.trace = trace
    if options.pop("history", 0):
        run.fs.create_dir(posixpath.dirname(HISTORY))
        options["history"] = HISTORY
    with run.installed(system), patch.object(reconcile, "_list_unhooked", lambda *_: []):
        try:
            node = SimulatedNode(run, options)
            node.take(before)
            if run.problem is None:
                run.together(
                    **{
                        str(n): lambda steps=steps: node.take(steps)
                        for n, steps in enumerate(lanes)
                    }
                )
                node.finish()
        except Exception as error:  # noqa: BLE001  whatever it is, it is this schedule's
            run.problem = run.problem or error
    problem = f"{type(run.problem).__name__}: {run.problem}" if run.problem is not None else None
    return Played(problem, run.happened, run.points)


def list_single_events(scenario: str) -> Iterator[list[Turn]]:
    """Every schedule in which one process is interrupted once, by all of another one,
    is killed, or a call fails.
    """
    lanes = scenario.count("|")
    for first in range(lanes):
        start = [Turn(0, "next", first)]
        yield start
        for at in range(1, play(scenario, start).points + 1):
            yield from ([*start, Turn(at, "to", to)] for to in range(lanes - 1))
            yield [*start, Turn(at, "kill", 0)]
            yield [*start, Turn(at, "errno", ERRNOS[at % len(ERRNOS)])]


def shrink(scenario: str, plan: list[Turn]) -> list[Turn]:
    """Leave out what is not needed for something to go wrong: halves first,
    in the end single events.
    """
    size = len(plan)
    while size:
        shorter = (plan[:at] + plan[at + size :] for at in range(0, len(plan), size))
        simpler = next(
            (candidate for candidate in shorter if play(scenario, candidate).problem), None
        )
        plan, size = (
            (simpler, min(size, len(simpler))) if simpler is not None else (plan, size // 2)
        )
    return plan


# --- As the command line says


def explore(given: argparse.Namespace) -> int:
    """Play schedules; 1 if something goes wrong in one."""
    if given.plan is not None:
        trace: list[str] = []
        outcome = play(
            given.scenario, [read_turn(text) for text in given.plan.split()], trace=trace
        )
        print(*trace, outcome.problem or "nothing goes wrong", sep="\n")
        return int(outcome.problem is not None)
    began, count, problems = time.process_time(), 0, 0
    for scenario, how, outcome in _play_all(given):
        count += 1
        if outcome.problem is None:
            continue
        problems += 1
        again = f"python3 -m tests.simulator{' --mutant ' + given.mutant if given.mutant else ''}"
        again += f" --scenario {shlex.quote(scenario)}"
        plan = shrink(scenario, outcome.happened)
        print(
            *[again + how] if how else [], f"{again} --plan '{' '.join(map(str, plan))}'", sep="\n"
        )
        print(f"  {play(scenario, plan).problem or outcome.problem}", flush=True)
        if problems >= given.most:
            break
    seconds = max(time.process_time() - began, 0.001)
    print(
        f"{count} schedules, {problems} problems, {count / seconds:.0f} schedules a second",
        file=sys.stderr,
    )
    return int(problems > 0)


def _play_all(given: argparse.Namespace) -> Iterator[tuple[str, str, Played]]:
    """Each schedule: its scenario, the options by which it comes again, and what came of it."""
    chosen = [given.scenario] if given.scenario else SCENARIOS
    for scenario in chosen if given.preempt else ():
        for plan in [*list_single_events(scenario)][given.seed % given.preempt :: given.preempt]:
            yield scenario, "", play(scenario, plan)
    for seed in range(given.seed, given.seed + given.random):
        for scenario in chosen:
            yield (
                scenario,
                f" --seed {seed} --random 1",
                play(scenario, random=Random(f"{scenario} {seed}")),
            )
