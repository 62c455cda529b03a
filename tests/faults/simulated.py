# SPDX-License-Identifier: Apache-2.0
"""Schedules in the simulator: each scenario with every single preemption, kill and errno, and by chance."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests import provision
from tests.faults.campaign import Campaign
from tests.simulator.scenarios import SCENARIOS

RANDOM = 160_000
"""Schedules by chance, of all scenarios together; single preemptions, kills and errnos are some 75,000 more."""


def run(campaign: Campaign) -> None:
    begin = time.monotonic()
    chosen = [it for it in SCENARIOS if campaign.is_chosen(it)]
    if not chosen:
        return
    number = -(-(campaign.most or RANDOM) // len(SCENARIOS))
    every = "50" if campaign.most else "1"
    words = ["--most", "1", "--seed", str(campaign.seed), "--random", str(number), "--preempt", every]
    with ThreadPoolExecutor(campaign.jobs) as pool:
        done = list(pool.map(partial(_simulate, words), chosen))
    problems = {scenario: text for scenario, (_, text) in zip(chosen, done) if text}
    campaign.tally(f"schedules of {len(chosen)} scenarios", sum(count for count, _ in done), problems, begin)


def _simulate(words: list[str], scenario: str) -> tuple[int, str]:
    """How many schedules there were, and what was wrong with one."""
    command = [sys.executable, "-m", "tests.simulator", "--scenario", scenario, *words]
    done = subprocess.run(command, cwd=provision.ROOT, capture_output=True, text=True, check=False)
    found = re.search(r"(\d+) schedules", done.stderr)
    return int(found[1]) if found else 0, "" if done.returncode == 0 else done.stdout + done.stderr
