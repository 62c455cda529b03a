# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of a campaign, and says what became of them."""

from __future__ import annotations

import shlex
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from random import Random


class Campaign:
    """`most`: of each kind of case run no more than this many, chosen by `seed`; 0: all.

    `only`: the case of that name.

    A part has its cases run by `try_each`, or runs them itself and says by `tally` what became of
    them. `rows` are the lines of the table, and `notes` are printed below it.
    """

    def __init__(self, *, most: int = 0, seed: int = 1, only: str | None = None) -> None:
        self.most = most
        self.seed = seed
        self.only = only
        self.part = ""
        self.rows: list[list[str]] = []
        self.failures: list[str] = []
        self.notes: list[str] = []

    def try_each(self, what: str, cases: Mapping[str, Callable[[], object]]) -> None:
        """Run cases of one kind, by their names.

        One that raises has failed, and the others run all the same.
        """
        names = [name for name in cases if self.is_chosen(name)]
        if self.most and self.most < len(names):
            names = Random(f"{self.seed} {what}").sample(names, self.most)
        begin, problems = time.monotonic(), {}
        for name in names:
            try:
                cases[name]()
            except AssertionError as error:
                problems[name] = str(error)
            except Exception:  # noqa: BLE001  whatever it is, this case led to it
                problems[name] = traceback.format_exc()
        if names:
            self.tally(what, len(names), problems, begin)

    def tally(self, what: str, cases: int, problems: Mapping[str, str], begin: float) -> None:
        """Add a row. `problems`: by case, what was wrong; `begin`: time.monotonic."""
        for name, problem in problems.items():
            again = f"python3 build.py faults {self.part} --only {shlex.quote(name)}"
            shown = problem.replace("\n", "\n  ")
            self.failures.append(f"FAILED {self.part}: {name}\n  again: {again}\n  {shown}")
            print(self.failures[-1], file=sys.stderr, flush=True)
        seconds = time.monotonic() - begin
        self.rows.append([self.part, what, f"{cases:,}", str(len(problems)), f"{seconds:.0f} s"])
        print(
            f"{self.part}: {what}: {cases:,} cases, {len(problems)} failed",
            file=sys.stderr,
            flush=True,
        )

    def is_chosen(self, name: str) -> bool:
        """Whether a case is to be run, as far as `only` goes."""
        return self.only in (None, name)

    def note(self, text: str) -> None:
        self.notes.append(f"{self.part}: {text}")
