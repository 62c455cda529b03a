# SPDX-License-Identifier: Apache-2.0
"""The simulator finds nothing wrong, and finds what is: see tests.simulator.

Here are samples. `build.py faults simulate` plays every single event, many random schedules,
and all broken programs.
"""

from __future__ import annotations

import subprocess
import sys

from tests.simulator.mutants import MUTANTS, break_source
from tests.unit.documents import ROOT


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the simulator in a process of its own,
    since it loads the compiled models and may break the program.
    """
    command = [sys.executable, "-m", "tests.simulator", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_two_random_schedules_of_each_scenario_break_nothing() -> None:
    done = simulate("--random", "2", "--most", "1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_200th_single_preemption_kill_and_errno_of_a_scenario_breaks_nothing() -> None:
    """Which ones these are depends on the program's system calls."""
    done = simulate("--preempt", "200", "--most", "1", "--scenario", "c1 c2 | p1 | p2 | c3")
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_broken_rule_fits_the_program() -> None:
    for name in MUTANTS:
        break_source(name)


def test_failure_is_printed_as_a_command_that_repeats_it() -> None:
    done = simulate(
        "--mutant", "M10", "--scenario", MUTANTS["M10"].scenario, "--random", "20", "--most", "1"
    )
    by_seed, by_plan, problem = done.stdout.splitlines()
    for command in (by_seed, by_plan):
        words = command.replace("python3", sys.executable, 1)
        again = subprocess.run(
            ["sh", "-c", words], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert again.returncode == 1, command
        assert problem.strip() in again.stdout
