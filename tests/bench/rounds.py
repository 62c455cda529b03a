# SPDX-License-Identifier: Apache-2.0
"""Rounds in which everything that is to be compared is measured once, in an order by chance."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from tests.bench.launcher import Launcher, Step, instructions

T = TypeVar("T")


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
        self, rounds: int, sequences: Callable[[], Iterable[Iterable[Step]]], take: Callable[[Step], T]
    ) -> dict[tuple[str, str], list[T]]:
        """Takes each step of all sequences once a round; by subject and name, one value a round."""
        found: dict[tuple[str, str], list[T]] = defaultdict(list)
        for _ in range(rounds):
            for step in mixed(sequences(), self.chance):
                found[step.subject, step.name].append(take(step))
        return dict(found)

    def instructions(self, sequences: Callable[[], Iterable[Iterable[Step]]]) -> dict[tuple[str, str], list[int]]:
        """What they take of those, in a few rounds, since they hardly differ; nothing where that cannot be had."""
        return self.measure(self.fewer(30), sequences, instructions) if self.counts_instructions else {}


def mixed(sequences: Iterable[Iterable[T]], chance: random.Random) -> Iterator[T]:
    """The items of all sequences at random; those of one stay in their order."""
    live = [iter(sequence) for sequence in sequences]
    while live:
        sequence = chance.choice(live)
        try:
            yield next(sequence)
        except StopIteration:
            live.remove(sequence)
