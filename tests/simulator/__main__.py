# SPDX-License-Identifier: Apache-2.0
"""The command line of the simulator: see the package."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from typing import TYPE_CHECKING

from tests import simulator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.simulator.explore import Played


def main(arguments: Sequence[str]) -> int:
    """Play schedules; 1 if something goes wrong in one."""
    given = _parse(arguments)
    simulator.prepare(given.mutant)
    from tests.simulator import explore  # noqa: PLC0415  with the modules that are prepared
    from tests.simulator.schedule import read_turn  # noqa: PLC0415

    if given.plan is not None:
        trace: list[str] = []
        outcome = explore.play(given.scenario, [read_turn(text) for text in given.plan.split()], trace=trace)
        print(*trace, outcome.problem or "nothing goes wrong", sep="\n")
        return int(outcome.problem is not None)
    began, count, problems = time.process_time(), 0, 0
    for scenario, how, outcome in _play(given):
        count += 1
        if outcome.problem is None:
            continue
        problems += 1
        again = f"python3 -m tests.simulator{' --mutant ' + given.mutant if given.mutant else ''}"
        again += f" --scenario {shlex.quote(scenario)}"
        plan = explore.shrink(scenario, outcome.happened)
        print(*[again + how] if how else [], f"{again} --plan '{' '.join(map(str, plan))}'", sep="\n")
        print(f"  {explore.play(scenario, plan).problem or outcome.problem}", flush=True)
        if problems >= given.most:
            break
    seconds = max(time.process_time() - began, 0.001)
    print(f"{count} schedules, {problems} problems, {count / seconds:.0f} schedules a second", file=sys.stderr)
    return int(problems > 0)


def _play(given: argparse.Namespace) -> Iterator[tuple[str, str, Played]]:
    """Each schedule: its scenario, the options by which it comes again, and what came of it."""
    from tests.simulator import explore, scenarios  # noqa: PLC0415  as above

    chosen = [given.scenario] if given.scenario else scenarios.SCENARIOS
    for scenario in chosen if given.preempt else ():
        plans = list(explore.list_single_events(scenario))
        for plan in plans[given.seed % given.preempt :: given.preempt]:
            yield scenario, "", explore.play(scenario, plan)
    for seed in range(given.seed, given.seed + given.random):
        for scenario in chosen:
            yield scenario, f" --seed {seed} --random 1", explore.play_at_random(scenario, seed)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.simulator",
        description=simulator.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scenario", help="this one instead of all (tests/simulator/scenarios.py)")
    parser.add_argument("--seed", type=int, default=1, help="of the first random schedule of each scenario [1]")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="N random schedules of each scenario")
    every = "each schedule with one preemption, one kill or one errno, or every N-th of them"
    parser.add_argument("--preempt", type=int, nargs="?", const=1, default=0, metavar="N", help=every)
    parser.add_argument("--plan", help="one schedule, as a failure prints it, with all its system calls")
    parser.add_argument("--most", type=int, default=5, metavar="N", help="end after so many problems [5]")
    parser.add_argument("--mutant", help="break the program first (tests/simulator/mutants.py)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
