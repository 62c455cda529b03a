# SPDX-License-Identifier: Apache-2.0
"""Remembers the samples of the file that `metrics --textfile` replaces, so that a counter does not dip meanwhile.

Prometheus takes a smaller sample for a counter that started again, and adds all of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hook.base import counters, system

_LIMIT = 64 << 20


@dataclass(frozen=True)
class Former:
    """Samples in millionths, by series as the text format has it. `age`: seconds since they were written."""

    age: float = 0.0
    samples: dict[str, int] = field(default_factory=dict)

    def hold(self, series: str, value: int | None, age: float | None, *, may_start_again: bool) -> int | None:
        """The sample of a counter: the former one in place of none, or of a smaller one that is no new start.

        `age`: seconds for which its key exists; the samples of an earlier key of that name do not count.
        """
        former = self.samples.get(series)
        if former is None or age is None or age < self.age:
            return value
        if value is None or (value < former and not may_start_again):
            return former
        return value


def read_former(path: str) -> Former:
    """Read the file that is to be replaced; without one, or with another content, nothing is known."""
    try:
        age = system.age(path)
        lines = system.read_file(path, _LIMIT).splitlines()
    except (OSError, ValueError):
        return Former()
    pairs = (line.rpartition(" ")[::2] for line in lines if not line.startswith("#"))
    numbers = {series: counters.number(text) for series, text in pairs}
    return Former(age, {series: number for series, number in numbers.items() if number is not None})
