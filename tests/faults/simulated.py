# SPDX-License-Identifier: Apache-2.0
"""Schedules in the simulator: each scenario with every single preemption,
kill and errno, and by chance.

Then the program is broken in each way that tests.simulator.mutants knows,
and the simulator has to notice.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from fetch import provision
from tests.faults.campaign import Campaign
from tests.simulator.mutants import MUTANTS
from tests.simulator.scenarios import SCENARIOS

RANDOM = 160_000
"""Schedules by chance, of all scenarios together; single preemptions,
kills and errnos are some 225,000 more.
"""


def run(campaign: Campaign) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        chosen, begin = (
            [scenario for scenario in SCENARIOS if campaign.is_chosen(scenario)],
            time.monotonic(),
        )
        number = -(-(campaign.most or RANDOM) // len(SCENARIOS))
        every = "50" if campaign.most else "1"
        words = ["--seed", str(campaign.seed), "--random", str(number), "--preempt", every]
        done = dict(zip(chosen, pool.map(partial(_simulate, words), chosen)))
        if chosen:
            wrong = {
                name: outcome.stdout + outcome.stderr
                for name, outcome in done.items()
                if outcome.returncode
            }
            campaign.tally(
                f"schedules of {len(chosen)} scenarios",
                sum(map(_count, done.values())),
                wrong,
                begin,
            )
        broken, begin = (
            [mutant for mutant in MUTANTS if campaign.is_chosen(mutant)],
            time.monotonic(),
        )
        missed = {
            name: "nothing went wrong"
            for name, is_noticed in zip(broken, pool.map(_is_noticed, broken))
            if not is_noticed
        }
        if broken:
            campaign.tally("broken programs, of which each is noticed", len(broken), missed, begin)


def _simulate(words: list[str], scenario: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "tests.simulator",
        "--scenario",
        scenario,
        "--most",
        "1",
        *words,
    ]
    return subprocess.run(command, cwd=provision.ROOT, capture_output=True, text=True, check=False)


def _count(done: subprocess.CompletedProcess[str]) -> int:
    match = re.search(r"(\d+) schedules", done.stderr)
    return int(match[1]) if match else 0


def _is_noticed(name: str) -> bool:
    """Try chance first, which often takes one schedule; then each second single event."""
    broken = partial(_simulate, scenario=MUTANTS[name].scenario)
    return any(
        "problems" in (done := broken(["--mutant", name, *words])).stderr and done.returncode == 1
        for words in (["--random", "200"], ["--preempt", "2"])
    )
