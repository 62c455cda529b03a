"""How fast keys use what they use: the difference of two looks at a node."""

from __future__ import annotations

from dataclasses import dataclass

from hook.base import counters
from hook.observe.snapshot import Total

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.observe.snapshot import Group, Inventory, Key


@dataclass(frozen=True)
class Rate:
    """A key's use by event, in millionths of its unit a second, and its cache as it is now. None: no such counter."""

    key: Key
    use: dict[str, Total]
    occupancy: Total | None

    def rank(self) -> tuple[int, int, str]:
        """Who uses most comes first: by watts, then by bytes a second, then by name."""
        return (-self._known("core_energy"), -self._known("mbm_total_bytes"), self.key.state.key)

    def _known(self, event: str) -> int:
        return self.use.get(event, Total()).known


@dataclass(frozen=True)
class Rates:
    """The rates of all keys that are not completed, sorted. `seconds`: between the looks. `time`: RFC 3339, UTC."""

    time: str
    seconds: float
    keys: list[Rate]


def between(first: Inventory, second: Inventory, time: str) -> Rates:
    """The rates from one look to a later one; a key that only one of them has seen has none."""
    former = {(key.state.key, group.record.path): group for key in first.keys for group in key.groups}
    rates = [_rate(key, former) for key in second.keys if key.state.completed_at is None]
    return Rates(time, second.at - first.at, sorted(rates, key=Rate.rank))


def _rate(key: Key, former: dict[tuple[str, str], Group]) -> Rate:
    use: dict[str, Total] = {}
    occupancy: Total | None = None
    for group in key.groups:
        if group.is_over:
            continue
        earlier = former.get((key.state.key, group.record.path))
        for counter, text in group.now.items():
            name = counter.rpartition("/")[2]
            if counters.is_cumulative(counter) and earlier is not None and _same_life(earlier, group):
                speed, from_nothing = _speed(earlier, group, counter)
                use[name] = use.get(name, Total()).plus(speed, from_nothing=from_nothing)
            elif name == "llc_occupancy":
                occupancy = (occupancy or Total()).plus(counters.number(text))
    return Rate(key, use, occupancy)


def _same_life(earlier: Group, group: Group) -> bool:
    """Whether both looks saw the same incarnation: another one's counters start elsewhere."""
    return earlier.record == group.record and group.read_at > earlier.read_at


def _speed(earlier: Group, group: Group, counter: str) -> tuple[int | None, bool]:
    """The use a second between the looks, None if it is unknown, and whether it is counted from nothing."""
    begin = earlier.now.get(counter)
    used = counters.used(counter, begin, group.now[counter])
    speed = None if used is None else round(used / (group.read_at - earlier.read_at))
    return speed, counters.starts_from_nothing(counter, begin)
