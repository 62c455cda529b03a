# SPDX-License-Identifier: Apache-2.0
"""Adds up use over domains, groups and keys, and computes its rates between two snapshots."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from hook.base import counters
from hook.observe.snapshot import Group, Inventory, SeenKey

_Name = TypeVar("_Name")
Uses = dict[str, "Total"]
"""Totals by event, or by counter; an event without any counter is absent."""
_CACHE = "llc_occupancy"


class Total(NamedTuple):
    """A sum of counters, in millionths. Of these, `counted` have a known value, and of `unknown` a part is unknown.

    `from_nothing`: the number of counters that are counted from 0 without an initial value
    (counters.starts_from_nothing).
    """

    known: int = 0
    counted: int = 0
    unknown: int = 0
    from_nothing: int = 0

    @property
    def at_least(self) -> bool:
        """Whether the value is only a part of the sum."""
        return self.unknown > 0 and self.counted > 0

    @property
    def value(self) -> int | None:
        """The sum of the known values; None: no value is known."""
        return self.known if self.counted else None


_NOTHING = Total()


@dataclass(frozen=True)
class KeyUse:
    """A key and its use, or the rates of its use."""

    key: SeenKey
    use: Uses

    def get_known(self, event: str) -> int:
        """The known part of its use of an event; 0 if no part is known."""
        return self.use[event].known if event in self.use else 0


def make_total(value: int | None, *, in_part: bool = False, from_nothing: bool = False) -> Total:
    """The Total of one counter, whose value may be unknown (None), or known `in_part`."""
    return Total(value or 0, int(value is not None), int(in_part or value is None), int(from_nothing))


def add_up(parts: Iterable[tuple[_Name, Total]]) -> dict[_Name, Total]:
    """Add up the parts of each name."""
    found: dict[_Name, Total] = {}
    for name, part in parts:
        found[name] = Total(*map(operator.add, found.get(name, _NOTHING), part))
    return found


def sum_uses(uses: Iterable[Uses]) -> Uses:
    """Add up uses, by event."""
    return add_up(part for use in uses for part in use.items())


def count_use(group: Group) -> Uses:
    """The lifetime use of each cumulative counter of a group."""
    zero = {it: counters.starts_from_nothing(it, group.begin.get(it), group.now.get(it)) for it in group.use}
    measured = group.measured.items()
    return {it: make_total(known, in_part=not is_all, from_nothing=zero[it]) for it, (known, is_all) in measured}


def sum_use(groups: Iterable[Group]) -> Uses:
    """Add up the lifetime use of these groups, over all domains, by event."""
    return add_up((get_event(counter), total) for group in groups for counter, total in count_use(group).items())


def sum_gauges(groups: Iterable[Group]) -> Uses:
    """Add up the present values of the gauges of these groups, by event."""
    return add_up((get_event(counter), make_total(value)) for group in groups for counter, value in group.list_gauges())


def get_event(counter: str) -> str:
    """The event of a counter `<domain>/<event>`."""
    return counter.rpartition("/")[2]


def to_number(millionths: int | None) -> int | float | None:
    """Convert millionths to whole units, as exactly as JSON readers allow."""
    if millionths is None:
        return None
    return millionths / counters.MILLION if millionths % counters.MILLION else millionths // counters.MILLION


# --- Rates


@dataclass(frozen=True)
class Rates:
    """The rates of the keys that are not completed, in millionths per second; for the cache, its present occupancy.

    `rest`: of tasks in no key; `node`: of these and all keys. `seconds`: between the snapshots. `time`: RFC 3339, UTC.
    """

    time: str
    seconds: float
    keys: list[KeyUse]
    rest: Uses
    node: Uses


def compare(first: Inventory, second: Inventory, time: str) -> Rates:
    """The rates between two snapshots; none for a key that only one of them has."""
    former = {(key.state.key, group.record.path): group for key in first.keys for group in key.groups}
    rates = [
        KeyUse(key, add_up(_list_speeds_of_key(key, former))) for key in second.keys if key.state.completed_at is None
    ]
    seconds = second.at - first.at
    rest = add_up(
        speed
        for path, now in second.uncharged.items()
        for speed in _list_speeds(first.uncharged.get(path, {}), now, seconds)
    )
    node = sum_uses([rest, *(rate.use for rate in rates)])
    return Rates(time, seconds, rates, rest, node)


def _list_speeds_of_key(key: SeenKey, former: dict[tuple[str, str], Group]) -> Iterator[tuple[str, Total]]:
    for group in key.groups:
        earlier = former.get((key.state.key, group.record.path), group)
        if earlier.record != group.record:
            earlier = group  # another incarnation: there is nothing to compare with
        if not group.is_over:
            yield from _list_speeds(earlier.now, group.now, group.read_at - earlier.read_at)


def _list_speeds(before: dict[str, str], now: dict[str, str], seconds: float) -> Iterator[tuple[str, Total]]:
    """The use of each counter per second, if any have passed; of the cache, what is in use now."""
    for counter, text in now.items():
        event, begin = get_event(counter), before.get(counter)
        if counters.is_cumulative(counter) and seconds > 0:
            used = counters.used(counter, begin, text)
            speed = None if used is None else round(used / seconds)
            yield event, make_total(speed, from_nothing=counters.starts_from_nothing(counter, begin, text))
        elif event == _CACHE:
            yield event, make_total(counters.number(text))
