# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of a campaign, and says what became of them.

Each worker is a process of its own, and never has two threads: a child that is made while another thread has a file of
the model open inherits that file, and closes it at exec, when nobody can look at it in /proc, the model neither.
"""

from __future__ import annotations

import multiprocessing
import shlex
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from random import Random
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, TypeVar

from tests.faults.scene import Scene
from tests.support.storm import reaper

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from multiprocessing.connection import Connection
    from pathlib import Path

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


class Failure(NamedTuple):
    """A case that failed; `problem` tells what was wrong, and every command that was run."""

    part: str
    case: str
    problem: str

    def __str__(self) -> str:
        again = f"python3 build.py faults {self.part} --only {shlex.quote(self.case)}"
        return f"FAILED {self.part}: {self.case}\n  again: {again}\n  {self.problem}"


class Failed(Exception):
    """Something was not as it must be: what, and every command that was run."""


class SceneWorker:
    """A process with a scene below `directory`."""

    def __init__(self, directory: Path) -> None:
        fork = multiprocessing.get_context("fork")
        self._pipe, theirs = fork.Pipe()
        self._process = fork.Process(target=_serve, args=(directory, theirs, self._pipe))
        self._process.start()
        theirs.close()

    def __call__(self, step: Step[T]) -> T:
        """Take a step. Raises Failed."""
        self._pipe.send(step)
        result, problem = self._pipe.recv()
        if problem is not None:
            raise Failed(problem)
        done: T = result
        return done

    def close(self) -> None:
        with suppress(BrokenPipeError):  # it was interrupted
            self._pipe.send(None)
        self._process.join()
        self._pipe.close()


def _serve(directory: Path, pipe: Connection, theirs: Connection) -> None:
    """Take steps until there is none, or nobody any more who asks for one."""
    theirs.close()
    with reaper(), Scene.opened(directory) as scene:
        while (step := _received(pipe)) is not None:
            result, problem = None, None
            try:
                result = step(scene)
            except AssertionError as error:
                problem = str(error)
            except Exception:  # noqa: BLE001  it is told, and the next step is to be taken all the same
                problem = traceback.format_exc()
            pipe.send((result, problem))


def _received(pipe: Connection) -> Step[Any] | None:
    try:
        step: Step[Any] | None = pipe.recv()
    except EOFError:
        return None
    return step


class Campaign:
    """`most`: of each kind of case run no more than this many, chosen by `seed`; 0: all. `only`: the case of that name.

    A part has its cases run by `all`, each on a scene, or runs them itself and says by `tally` what became of them.
    `directory` is for scenes, which are opened when the first part asks for one: `jobs` of them. `notes` are for
    whoever reads the table.
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
        self.failures: list[Failure] = []
        self.notes: list[str] = []
        self._open: list[SceneWorker] = []
        self._idle: SimpleQueue[SceneWorker] = SimpleQueue()

    def ask(self, step: Step[T]) -> T:
        """What a step gives that is no case. Raises Failed."""
        self._start()
        worker = self._idle.get()
        try:
            return worker(step)
        finally:
            self._idle.put(worker)

    def all(self, what: str, cases: Iterable[Case]) -> None:
        """Run cases of one kind, a row of the table."""
        chosen = self._chosen(what, list(cases))
        if not chosen:
            return
        self._start()  # while there is one thread
        begin, before = time.monotonic(), len(self.failures)
        with ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(self._try, chosen))
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
        for worker in self._open:
            worker.close()

    def _start(self) -> None:
        while len(self._open) < self.jobs:
            self._open.append(SceneWorker(self.directory / str(len(self._open))))
            self._idle.put(self._open[-1])

    def _chosen(self, what: str, cases: list[Case]) -> list[Case]:
        names = [case.name for case in cases]
        assert len(set(names)) == len(names), "cases of the same name"
        if self.only is not None:
            return [case for case in cases if self.is_chosen(case.name)]
        if not self.most or len(cases) <= self.most:
            return cases
        places = Random(f"{self.seed} {what}").sample(range(len(cases)), self.most)
        return [cases[place] for place in sorted(places)]

    def _try(self, case: Case) -> None:
        try:
            self.ask(case.run)
        except Failed as error:
            self._fail(case.name, str(error))

    def _fail(self, case: str, problem: str) -> None:
        failure = Failure(self.part, case, problem.replace("\n", "\n  "))
        self.failures.append(failure)
        print(failure, file=sys.stderr, flush=True)

    def _add(self, what: str, cases: int, failures: int, begin: float) -> None:
        self.rows.append(PartRow(self.part, what, cases, failures, time.monotonic() - begin))
        print(f"{self.part}: {what}: {cases:,} cases, {failures} failed", file=sys.stderr, flush=True)
