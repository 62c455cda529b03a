# SPDX-License-Identifier: Apache-2.0
"""Runs commands in rounds, and measures them: wall time, CPU time and memory (load.c),
instructions (valgrind).
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from tests.bench.common import LOAD, CannotMeasure, compile_static

T = TypeVar("T")
_COUNTS = 5  # one count differs from the next by 0.2 %, of hashes and addresses
CALLGRIND = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")
DEADLINE = 3600
"""Seconds; only to end what hangs."""


@dataclass(frozen=True)
class Step:
    """One thing to measure: a command, with a state on its stdin."""

    subject: str
    name: str
    command: Sequence[str]
    state: str = ""
    alone: bool = True  # measured as if the machine did nothing else
    # And print what it likes: a hook that reports a failure was not measured at its work.
    may_fail: bool = False


class Taken(NamedTuple):
    """What a step took."""

    seconds: float
    cpu: float  # seconds, with the children that it waited for
    memory: float  # MiB
    output: str  # stdout and stderr


class Launcher:
    """A program of next to no memory that starts what is to be measured.

    `directory`: for the program.
    """

    def __init__(self, directory: Path) -> None:
        self._program = directory / "load"
        compile_static(LOAD, self._program)

    def run(self, step: Step) -> Taken:
        """Measure a step.

        CannotMeasure if it could not be started, failed, or printed something that it should not.
        """
        command = [str(self._program), "start", *(["-r"] if step.alone else []), *step.command]
        failed, stdout, output = _run(command, step.state)
        time, cpu, memory, status = map(int, stdout.split() or (0, 0, 0, 0))
        if failed or (not step.may_fail and (status or output)):
            status = failed or os.waitstatus_to_exitcode(status)
            raise CannotMeasure(
                f"{step.name}, {step.subject}: exit status {status}: {output.strip()}"
            )
        return Taken(time / 1e9, cpu / 1e6, memory / 1024, output)

    def time_at_once(self, command: Sequence[str], states: Sequence[str]) -> float:
        """Return the seconds from the first start of a command to the last end,
        with each of these states on a stdin.

        CannotMeasure if one of them failed.
        """
        with tempfile.TemporaryDirectory() as directory:
            files = [Path(directory, str(number)) for number in range(len(states))]
            for file, state in zip(files, states):
                file.write_text(state, encoding="utf-8")
            failed, stdout, output = _run(
                [str(self._program), "crowd", *map(str, files), "--", *command], ""
            )
        time, status = map(int, stdout.split() or (0, 1))
        if failed or status:
            raise CannotMeasure(f"{len(states)} at once: {output.strip()}")
        return time / 1e9


def _run(command: Sequence[str], stdin: str) -> tuple[int, str, str]:
    done = subprocess.run(
        command,
        input=stdin.encode(),
        capture_output=True,
        env={},
        cwd="/",
        timeout=DEADLINE,
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode(errors="replace")


def has_valgrind() -> bool:
    return shutil.which(CALLGRIND[0]) is not None


def count_instructions(step: Step) -> int:
    """Return the instructions of a step in user space, which callgrind prints at the end.

    Other output is a failure.

    They repeat to 0.2 % on a busy machine, too.
    """
    status, _, stderr = _run([*CALLGRIND, *step.command], step.state)
    other = [line for line in stderr.splitlines() if not re.match(r"==\d+==", line)]
    count = re.search(r"^==\d+== Collected : (\d+)$", stderr, re.MULTILINE)
    if status or other or count is None:
        raise CannotMeasure(
            f"{step.name}, {step.subject} under valgrind: {status}: {' '.join(other) or stderr}"
        )
    return int(count[1])


@dataclass(frozen=True)
class Bench:
    """What measures, and how often: `rounds` of what takes milliseconds."""

    launcher: Launcher
    chance: random.Random
    rounds: int
    counts_instructions: bool

    def fewer(self, times: int) -> int:
        """The rounds of what takes that much longer."""
        return max(1, self.rounds // times)

    def measure(
        self,
        rounds: int,
        sequences: Callable[[], Iterable[Iterable[Step]]],
        take: Callable[[Step], T],
    ) -> dict[tuple[str, str], list[T]]:
        """Take each step of all sequences once a round; return one value a round,
        by subject and name.
        """
        values: dict[tuple[str, str], list[T]] = defaultdict(list)
        for _ in range(rounds):
            mixed = list(sequences())
            for sequence in self.chance.sample(mixed, len(mixed)):
                for step in sequence:
                    values[step.subject, step.name].append(take(step))
        return dict(values)

    def instructions(
        self, sequences: Callable[[], Iterable[Iterable[Step]]]
    ) -> dict[tuple[str, str], list[int]]:
        """Count them in a few rounds, since they hardly differ; without valgrind there are none."""
        return (
            self.measure(max(_COUNTS, self.fewer(10)), sequences, count_instructions)
            if self.counts_instructions
            else {}
        )
