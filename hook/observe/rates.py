# SPDX-License-Identifier: Apache-2.0
"""Calculates rates of use from two snapshots of a node."""

from __future__ import annotations

from dataclasses import dataclass

from hook.base import counters
from hook.observe.snapshot import Total, add_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.observe.node_counters import Uncharged
    from hook.observe.snapshot import Group, Inventory, Key

_CACHE = "llc_occupancy"


@dataclass(frozen=True)
class Rate:
    """A key's use by event: in millionths of its unit per second; of the cache, what it holds now."""

    key: Key
    use: dict[str, Total]

    def rank(self) -> tuple[int, int, str]:
        """The sort key: highest watts first, then highest bytes per second, then the name."""
        return (-self._get_known("core_energy"), -self._get_known("mbm_total_bytes"), self.key.state.key)

    def _get_known(self, event: str) -> int:
        return self.use.get(event, Total()).known


@dataclass(frozen=True)
class Rates:
    """The rates of the keys that are not completed, most watts first.

    `rest`: of what is charged to no key; `node`: the same and all keys. Both by event, as in Rate. `seconds`: between
    the looks. `time`: RFC 3339, UTC.
    """

    time: str
    seconds: float
    keys: list[Rate]
    rest: dict[str, Total]
    node: dict[str, Total]


@dataclass(frozen=True)
class Look:
    """A snapshot, and what is charged to no pod, as node_counters has it."""

    seen: Inventory
    rest: Uncharged


def compare(first: Look, second: Look, time: str) -> Rates:
    """The rates between two looks; none for a key that only one of them has."""
    former = {(key.state.key, group.record.path): group for key in first.seen.keys for group in key.groups}
    rates = [_make_rate(key, former) for key in second.seen.keys if key.state.completed_at is None]
    seconds = second.seen.at - first.seen.at
    rest = _compare_rest(first.rest, second.rest, seconds)
    node = add_up([rest, *(rate.use for rate in rates)])
    return Rates(time, seconds, sorted(rates, key=Rate.rank), rest, node)


def _compare_rest(first: Uncharged, second: Uncharged, seconds: float) -> dict[str, Total]:
    found: dict[str, Total] = {}
    for path, of_group in second.items():
        for counter, now in of_group.items():
            before, name = first.get(path, {}).get(counter), counter.rpartition("/")[2]
            if counters.is_cumulative(counter) and seconds > 0:
                used = None if now is None or before is None else now - before
                # Less than before: the ctrl_group is another one.
                speed = round(used / seconds) if used is not None and used >= 0 else None
                found[name] = found.get(name, Total()).add(speed)
            elif name == _CACHE:
                found[name] = found.get(name, Total()).add(now)
    return found


def _make_rate(key: Key, former: dict[tuple[str, str], Group]) -> Rate:
    use: dict[str, Total] = {}
    for group in key.groups:
        if group.is_over:
            continue
        earlier = former.get((key.state.key, group.record.path))
        for counter, text in group.now.items():
            name = counter.rpartition("/")[2]
            if counters.is_cumulative(counter) and earlier is not None and _is_same_life(earlier, group):
                speed, from_nothing = _calculate_speed(earlier, group, counter)
                use[name] = use.get(name, Total()).add(speed, from_nothing=from_nothing)
            elif name == _CACHE:
                use[name] = use.get(name, Total()).add(counters.number(text))
    return Rate(key, use)


def _is_same_life(earlier: Group, group: Group) -> bool:
    """Whether both snapshots have the same incarnation: another one has other initial values."""
    return earlier.record == group.record and group.read_at > earlier.read_at


def _calculate_speed(earlier: Group, group: Group, counter: str) -> tuple[int | None, bool]:
    """The use per second, None if unknown, and whether it counts from 0 without an initial value."""
    begin = earlier.now.get(counter)
    used = counters.used(counter, begin, group.now[counter])
    speed = None if used is None else round(used / (group.read_at - earlier.read_at))
    return speed, counters.starts_from_nothing(counter, begin)
