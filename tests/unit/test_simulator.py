# SPDX-License-Identifier: Apache-2.0
"""The simulator finds nothing wrong, and finds what is: see tests.simulator. `build.py faults simulate` plays more."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.simulator.mutants import MUTANTS
from tests.unit.documents import ROOT


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the program has its compiled models there, and may be broken."""
    command = [sys.executable, "-m", "tests.simulator", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_single_preemptions_kills_and_errnos_break_nothing() -> None:
    """Each 50th of them; which ones depends on the program's system calls."""
    done = simulate("--preempt", "50", "--most", "1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_random_schedules_with_faults_break_nothing() -> None:
    done = simulate("--random", "15", "--most", "1")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_broken_program_is_noticed(name: str) -> None:
    """By chance, which often takes one schedule, or by one interruption: each second of them is tried."""
    broken = ["--mutant", name, "--scenario", MUTANTS[name].scenario, "--most", "1"]
    done = simulate(*broken, "--random", "200")
    if done.returncode == 0:
        done = simulate(*broken, "--preempt", "2")
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"--mutant {name} --scenario" in done.stdout


def test_failure_is_printed_as_a_command_that_repeats_it() -> None:
    found = simulate("--mutant", "M10", "--scenario", MUTANTS["M10"].scenario, "--random", "5", "--most", "1")
    by_seed, by_plan, problem = found.stdout.splitlines()
    for command in (by_seed, by_plan):
        words = command.replace("python3", sys.executable, 1)
        again = subprocess.run(words, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S602
        assert again.returncode == 1, command
        assert problem.strip() in again.stdout
