# SPDX-License-Identifier: Apache-2.0
"""Runs commands and says what they took: wall time and peak memory (launch.c), instructions (valgrind)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.bench.common import CannotMeasure, compile_static

LAUNCH = Path(__file__).with_name("launch.c")
CALLGRIND = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")
ALONE = "-r"
"""One process, which waits for no other: measured as if the machine did nothing else."""
DEADLINE = 300
"""Seconds; only to end what hangs."""


@dataclass(frozen=True)
class Step:
    """One thing to measure: a command, started once for each of `states`, which is its stdin, all at once.

    `subject` and `name` say what it stands for; `options` are launch.c's.
    """

    subject: str
    name: str
    command: Sequence[str]
    states: Sequence[str] = ("",)
    options: Sequence[str] = ()


class Taken(NamedTuple):
    """What a step took: seconds until the last had ended, CPU seconds of all, MiB of the one that needed most.

    And what they said.
    """

    seconds: float
    cpu: float
    memory: float
    said: str


class Launcher:
    """A program of next to no memory that starts what is to be measured. `directory`: for the program."""

    def __init__(self, directory: Path) -> None:
        self._program = directory / "launch"
        compile_static(LAUNCH, self._program)

    def run(self, step: Step) -> Taken:
        """What a step took, which has nothing to say: a hook that reports a failure was not measured at its work."""
        it = self.run_anyhow(step)
        if it.said:
            raise CannotMeasure(f"{step.name}, {step.subject}: {it.said.strip()}")
        return it

    def run_anyhow(self, step: Step) -> Taken:
        """What a step took. CannotMeasure if it could not be started, or its exit status is not 0."""
        command = [str(self._program), *step.options, *step.command]
        done = subprocess.run(
            command,
            input="".join(f"{state}\0" for state in step.states).encode(),
            capture_output=True,
            env={},
            cwd="/",
            timeout=DEADLINE,
            check=False,
        )
        said = done.stderr.decode(errors="replace")
        rows = [tuple(map(int, line.split())) for line in done.stdout.decode().splitlines()]
        failed = [os.waitstatus_to_exitcode(status) for *_, status in rows if status]
        if done.returncode or failed or len(rows) != len(step.states):
            raise CannotMeasure(f"{step.name}, {step.subject}: exit status {done.returncode or failed}: {said.strip()}")
        ends, cpu, memory, _statuses = zip(*rows)
        return Taken(max(ends) / 1e9, sum(cpu) / 1e6, max(memory) / 1024, said)


def has_valgrind() -> bool:
    return shutil.which(CALLGRIND[0]) is not None


def instructions(step: Step) -> int:
    """Instructions of a step in user space, which callgrind prints at the end. What the program says is a failure.

    They repeat to 0.2 %, whatever else the machine does.
    """
    (state,) = step.states
    done = subprocess.run(
        [*CALLGRIND, *step.command],
        input=state.encode(),
        capture_output=True,
        env={},
        cwd="/",
        timeout=DEADLINE,
        check=False,
    )
    if done.returncode != 0:
        raise CannotMeasure(f"{step.name}, {step.subject}: exit status {done.returncode} under valgrind")
    stderr = done.stderr.decode(errors="replace")
    other = [line for line in stderr.splitlines() if not re.match(r"==\d+==", line)]
    count = re.search(r"^==\d+== Collected : (\d+)$", stderr, re.MULTILINE)
    if other or count is None:
        raise CannotMeasure(f"valgrind: {' '.join(other) or stderr.strip()}")
    return int(count[1])
