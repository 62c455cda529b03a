# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of a campaign, and says what became of them."""

from __future__ import annotations

import shlex
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Callable, NamedTuple

from tests.faults.scene import Scene

Step = Callable[[Scene], Any]
"""What is done with a scene."""


class Case(NamedTuple):
    """One thing that goes wrong. Raises AssertionError if something is not as it must be."""

    name: str
    run: Step


class PartRow(NamedTuple):
    """A line of the table. `seconds`: by the clock."""

    part: str
    what: str
    cases: int
    failures: int
    seconds: float


class Campaign:
    """`most`: of each kind of case run no more than this many, chosen by `seed`; 0: all. `only`: the case of that name.

    A part has its cases run by `all`, each on the scene, or runs them itself and says by `tally` what became of them.
    `directory` is for the scene, which is opened when the first part asks for it. `notes` are printed below the table.
    """

    def __init__(self, directory: Path, *, most: int = 0, seed: int = 1, only: str | None = None) -> None:
        self.directory = directory
        self.most = most
        self.seed = seed
        self.only = only
        self.part = ""
        self.rows: list[PartRow] = []
        self.failures: list[str] = []
        self.notes: list[str] = []
        self._stack = ExitStack()

    @cached_property
    def scene(self) -> Scene:
        return self._stack.enter_context(Scene.opened(self.directory / "scene"))

    def all(self, what: str, cases: Iterable[Case]) -> None:
        """Run cases of one kind, a row of the table."""
        chosen = self._chosen(what, list(cases))
        if not chosen:
            return
        begin, before = time.monotonic(), len(self.failures)
        for case in chosen:
            try:
                case.run(self.scene)
            except AssertionError as error:
                self._fail(case.name, str(error))
            except Exception:  # noqa: BLE001  the other cases run all the same
                self._fail(case.name, traceback.format_exc())
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
        self._stack.close()

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
