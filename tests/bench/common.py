# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: their command line, their figures and tables, their errors."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple, TypeVar

from tests.support.tables import as_markdown

MISSED = "(!)"
PlanT = TypeVar("PlanT", bound=NamedTuple)
LOAD = Path(__file__).with_name("load.c")


class CannotMeasure(Exception):
    """Something went wrong; the message says what."""


class NotReady(CannotMeasure):
    """Something is missing here, and cannot be installed."""


def spread(values: Sequence[float]) -> tuple[float]:
    """Return half of the interquartile range."""
    if len(values) == 1:
        return (0,)
    low, _, high = quantiles(values, n=4, method="inclusive")
    return ((high - low) / 2,)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median:
    two values of the same rank from both ends (order statistics).

    The rank is that of the normal approximation of the sign test; of few values it is the first.
    """
    ordered, count = sorted(values), len(values)
    rank = max(1, int(count / 2 - 0.98 * count**0.5))
    return ordered[rank - 1], ordered[-rank]


def limits(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


@dataclass(frozen=True)
class Figure:
    """A number of a table, with a value from each round."""

    row: str
    column: str
    values: Sequence[float]
    target: float | None = None
    digits: int = 2
    unit: str = ""
    # Whether the target is the least that the number may be; otherwise it is the most.
    at_least: bool = False
    center: Callable[[Sequence[float]], float] = median
    # What is printed beside it.
    beside: Callable[[Sequence[float]], Sequence[float]] | None = spread

    @property
    def is_missed(self) -> bool:
        if self.target is None:
            return False
        return (
            self.center(self.values) < self.target
            if self.at_least
            else self.center(self.values) > self.target
        )

    @property
    def numbers(self) -> list[float]:
        """The number, and the least and the most beside it, as they are printed."""
        center = self.center(self.values)
        around = tuple(self.beside(self.values)) if self.beside else (0.0,)
        low, high = around if len(around) == 2 else (center - around[0], center + around[0])
        return [round(number, self.digits) for number in (center, low, high)]

    @property
    def aim(self) -> str:
        return (
            "-"
            if self.target is None
            else f"{'≥' if self.at_least else '≤'} {self.target:.{self.digits}f}"
        )

    def __str__(self) -> str:
        text = f"{self.center(self.values):.{self.digits}f}{self.unit}"
        around = [
            f"{value:.{self.digits}f}"
            for value in (self.beside(self.values) if self.beside else ())
        ]
        text += (
            f" ({' to '.join(around)})"
            if len(around) == 2
            else "".join(f" ±{value}" for value in around)
        )
        return f"{text} {MISSED}" if self.is_missed else text


@dataclass(frozen=True)
class Table:
    title: str
    figures: Sequence[Figure]

    def lines(self) -> list[list[str]]:
        """The head, and a line for each row, in the order in which rows and columns first come."""
        columns = list(dict.fromkeys(figure.column for figure in self.figures))
        rows = list(dict.fromkeys(figure.row for figure in self.figures))
        return [[self.title, "target", *columns], *(self._line(row, columns) for row in rows)]

    def _line(self, row: str, columns: Sequence[str]) -> list[str]:
        figures = {figure.column: figure for figure in self.figures if figure.row == row}
        aims = dict.fromkeys(figure.aim for figure in figures.values() if figure.target is not None)
        return [row, ", ".join(aims) or "-", *(str(figures.get(column, "-")) for column in columns)]

    def missed(self) -> list[str]:
        """Each target that was not reached, as a sentence."""
        missed = [figure for figure in self.figures if figure.is_missed]
        return [
            f"{self.title}: {figure.row}, {figure.column}: {figure}, target {figure.aim}"
            for figure in missed
        ]


def save(path: Path, tables: Iterable[Table]) -> None:
    """Put the figures into this file, one on a line,
    in place of those with the same table, row and column.
    """
    figures = {
        tuple(line[:3]): line[3:]
        for line in (json.loads(path.read_bytes()) if path.exists() else ())
    }
    for table in tables:
        figures |= {
            (table.title, figure.row, figure.column): figure.numbers for figure in table.figures
        }
    lines = (
        json.dumps([*names, *numbers], ensure_ascii=False) for names, numbers in figures.items()
    )
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def ratios(values: Iterable[float], to: Iterable[float]) -> list[float]:
    """Divide round by round."""
    return [value / other for value, other in zip(values, to)]


def run(
    name: str, about: str | None, default: PlanT, measure: Callable[[PlanT], Iterable[Table]]
) -> int:
    """Be a benchmark's command: print each table as soon as it is measured;
    returns the exit status.

    Each field of the plan is an option, and `--figures` saves the figures for `bench plot`. The
    status is 1 if a target was missed, or if something cannot be measured.
    """
    options = argparse.ArgumentParser(
        prog=f"python3 build.py bench {name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for option, value in default._asdict().items():
        first = value[0] if isinstance(value, tuple) else value
        options.add_argument(
            f"--{option}",
            type=type(first),
            default=value,
            nargs="+" if first is not value else None,
            help=f"[{value}]",
        )
    options.add_argument(
        "--figures", type=Path, metavar="FILE", help="put the figures into this file, too"
    )
    plan = vars(options.parse_args())
    file, missed = plan.pop("figures"), []
    try:
        for table in measure(default._replace(**plan)):
            print(f"{as_markdown(table.lines())}\n", flush=True)
            missed += table.missed()
            if file:
                save(file, [table])
    except CannotMeasure as error:
        missed.append(str(error))
    for line in missed:
        print(f"{name}: {line}", file=sys.stderr)
    return 1 if missed else 0


def compile_static(source: Path, target: Path) -> None:
    """Make a program that needs nothing where it runs."""
    command = ["gcc", "-static", "-O1", "-Wall", "-Wextra", "-o", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or done.stderr:
        raise CannotMeasure(f"gcc: {done.stderr.strip()}")
