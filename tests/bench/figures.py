# SPDX-License-Identifier: Apache-2.0
"""What benchmarks print: numbers with their spread and their targets, in tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import comb
from statistics import median, quantiles

MISSED = "(!)"


@dataclass(frozen=True)
class Figure:
    """A number of a table, which has a value from each round. `target`: what their median is to be at most."""

    row: str
    column: str
    values: Sequence[float]
    target: float | None = None
    digits: int = 2

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> float:
        """Half of what the middle half of the values lies within."""
        if len(self.values) == 1:
            return 0
        low, _, high = quantiles(self.values, n=4, method="inclusive")
        return (high - low) / 2

    @property
    def is_missed(self) -> bool:
        return self.target is not None and self.median > self.target

    def __str__(self) -> str:
        return f"{self.median:.{self.digits}f}{self._beside()}{' ' + MISSED if self.is_missed else ''}"

    def _beside(self) -> str:
        """How far the values lie apart."""
        return f" ±{self.spread:.{self.digits}f}" if self.digits else ""


class WithInterval(Figure):
    """One that is printed with the 95 % interval of its median, which shows whether two medians differ."""

    def _beside(self) -> str:
        low, high = interval(self.values)
        return f" ({low:.{self.digits}f} to {high:.{self.digits}f})"


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Two values between which the median lies at that level, of the same rank from both ends (order statistics).

    At most k of n values are below their median with the chance of k heads in n throws of a coin, or fewer. The least
    and the greatest, where they are too few.
    """
    ordered, count = sorted(values), len(values)
    rank, chance = 0, 0.0
    while (chance := chance + comb(count, rank) / 2**count) <= (1 - level) / 2:
        rank += 1
    return ordered[max(rank - 1, 0)], ordered[-max(rank, 1)]


@dataclass(frozen=True)
class Table:
    title: str
    figures: Sequence[Figure]

    def lines(self) -> list[list[str]]:
        """The head, and a line for each row, in the order in which rows and columns first come."""
        columns = list(dict.fromkeys(it.column for it in self.figures))
        rows = list(dict.fromkeys(it.row for it in self.figures))
        return [[self.title, "target", *columns], *(self._line(row, columns) for row in rows)]

    def _line(self, row: str, columns: Sequence[str]) -> list[str]:
        found = {it.column: it for it in self.figures if it.row == row}
        targets = {f"≤ {it.target:.{it.digits}f}" for it in found.values() if it.target is not None}
        cells = [str(found[column]) if column in found else "-" for column in columns]
        return [row, " ".join(sorted(targets)) or "-", *cells]

    def as_json(self) -> object:
        return asdict(self)

    def notes(self) -> str:
        return ""

    def missed(self) -> list[str]:
        """Each target that was not reached, as a sentence."""
        missed = [it for it in self.figures if it.is_missed]
        return [f"{self.title}: {it.row}, {it.column}: {it.median:.3f}, target {it.target:g}" for it in missed]


def ratios(values: Iterable[float], to: Iterable[float]) -> list[float]:
    """Round by round."""
    return [value / other for value, other in zip(values, to)]
