# SPDX-License-Identifier: Apache-2.0
"""Remembers the samples that were exported before, so that a counter does not dip meanwhile.

Prometheus takes a smaller sample for a counter that started again, and adds all of it. `metrics --textfile` remembers
the file that it replaces, `metrics --listen` its last answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hook.base import counters, system
from hook.node import door

_LIMIT = 64 << 20
_TEXT = r'"((?:[^"\\]|\\.)*)"'
_CONTAINER = re.compile(f"[{{,]container={_TEXT},container_id={_TEXT}")


@dataclass(frozen=True)
class Former:
    """Samples in millionths, by series as the text format has it. `age`: seconds since they were written.

    `containers`: the names of containers by the keys that are one.
    """

    age: float = 0.0
    samples: dict[str, int] = field(default_factory=dict)
    containers: dict[str, str] = field(default_factory=dict)

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

    def hold_difference(self, series: str, value: int | None) -> int | None:
        """The same for a difference of counters that are read one after the other.

        It dips by what is used meanwhile. After a mount it starts again, far below: at less than half.
        """
        former = self.samples.get(series)
        if former is None or (value is not None and not former // 2 <= value < former):
            return value
        return former


def read_former(path: str) -> Former:
    """Read the file that is to be replaced; without one, or with another content, nothing is known."""
    try:
        age = system.age(path)
        text = door.read_text(path, _LIMIT)
    except OSError:
        return Former()
    return parse_former(text, age)


def parse_former(text: str, age: float) -> Former:
    """The samples of a text that was exported `age` seconds ago."""
    samples, containers = dict[str, int](), dict[str, str]()
    for line in text.splitlines():
        series, _, number = line.rpartition(" ")
        value = None if line.startswith("#") else counters.number(number)
        if value is not None:
            samples[series] = value
            if found := _CONTAINER.search(series):
                containers[found[2]] = re.sub(r"\\(.)", r"\1", found[1])
    return Former(age, samples, containers)
