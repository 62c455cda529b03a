# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of a campaign, and says what became of them.

Each worker is a process with one thread: a child of a process with more could inherit a file of the model that another
thread has open, which nobody can see in /proc.
"""

from __future__ import annotations

import multiprocessing
import os
import shlex
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing.util import Finalize
from pathlib import Path
from random import Random
from typing import Any, Callable, NamedTuple, TypeVar

from tests.faults.scene import Scene

T = TypeVar("T")
Step = Callable[[Scene], T]
"""What a worker does with its scene; it and its result travel between processes."""


class Case(NamedTuple):
    """One thing that goes wrong. Raises AssertionError if something is not as it must be."""

    name: str
    run: Step[Any]


class PartRow(NamedTuple):
    """A line of the table. `seconds`: by the clock."""

    part: str
    what: str
    cases: int
    failures: int
    seconds: float


_scenes: list[Scene] = []
"""In a worker: its own."""


def _open_scene(directory: Path) -> None:
    """Begin a worker; its scene is closed when it ends."""
    stack = ExitStack()
    _scenes.append(stack.enter_context(Scene.opened(directory / str(os.getpid()))))
    Finalize(None, stack.close, exitpriority=1)


def _take(step: Step[T]) -> T:
    return step(_scenes[0])


class Campaign:
    """`most`: of each kind of case run no more than this many, chosen by `seed`; 0: all. `only`: the case of that name.

    A part has its cases run by `all`, each on a scene, or runs them itself and says by `tally` what became of them.
    `directory` is for scenes, which are opened when the first part asks for one: `jobs` of them. `notes` are
    printed below the table.
    """

    def __init__(
        self, directory: Path, *, jobs: int = 2, most: int = 0, seed: int = 1, only: str | None = None
    ) -> None:
        self.directory = directory
        self.jobs = jobs
        self.most = most
        self.seed = seed
        self.only = only
        self.part = ""
        self.rows: list[PartRow] = []
        self.failures: list[str] = []
        self.notes: list[str] = []
        self._workers: ProcessPoolExecutor | None = None

    def ask(self, step: Step[T]) -> T:
        """What a step gives that is no case. Raises AssertionError."""
        return self._start().submit(_take, step).result()

    def all(self, what: str, cases: Iterable[Case]) -> None:
        """Run cases of one kind, a row of the table."""
        chosen = self._chosen(what, list(cases))
        if not chosen:
            return
        begin, before = time.monotonic(), len(self.failures)
        for case, taken in [(case, self._start().submit(_take, case.run)) for case in chosen]:
            error = taken.exception()
            if error is not None:
                is_found = isinstance(error, AssertionError)
                self._fail(case.name, str(error) if is_found else "".join(traceback.format_exception(error)))
        self._add(what, len(chosen), len(self.failures) - before, begin)

    def tally(self, what: str, cases: int, problems: Mapping[str, str], begin: float) -> None:
        """A row of cases that the part has run itself. `problems`: by case, what was wrong; `begin`: time.monotonic."""
        for name, problem in problems.items():
            self._fail(name, problem)
        self._add(what, cases, len(problems), begin)

    def is_chosen(self, name: str) -> bool:
        """Whether a case is to be run, as far as `only` goes."""
        return self.only in (None, name)

    def note(self, text: str) -> None:
        self.notes.append(f"{self.part}: {text}")

    def close(self) -> None:
        if self._workers is not None:
            self._workers.shutdown()

    def _start(self) -> ProcessPoolExecutor:
        if self._workers is None:
            fork = multiprocessing.get_context("fork")
            self._workers = ProcessPoolExecutor(self.jobs, fork, _open_scene, (self.directory,))
        return self._workers

    def _chosen(self, what: str, cases: list[Case]) -> list[Case]:
        names = [case.name for case in cases]
        assert len(set(names)) == len(names), "cases of the same name"
        if self.only is not None:
            return [case for case in cases if self.is_chosen(case.name)]
        if not self.most or len(cases) <= self.most:
            return cases
        places = Random(f"{self.seed} {what}").sample(range(len(cases)), self.most)
        return [cases[place] for place in sorted(places)]

    def _fail(self, case: str, problem: str) -> None:
        again = f"python3 build.py faults {self.part} --only {shlex.quote(case)}"
        shown = problem.replace("\n", "\n  ")
        self.failures.append(f"FAILED {self.part}: {case}\n  again: {again}\n  {shown}")
        print(self.failures[-1], file=sys.stderr, flush=True)

    def _add(self, what: str, cases: int, failures: int, begin: float) -> None:
        self.rows.append(PartRow(self.part, what, cases, failures, time.monotonic() - begin))
        print(f"{self.part}: {what}: {cases:,} cases, {failures} failed", file=sys.stderr, flush=True)
