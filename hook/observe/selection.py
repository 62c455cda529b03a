# SPDX-License-Identifier: Apache-2.0
"""Which keys a screen shows, and in which order."""

from __future__ import annotations

from dataclasses import dataclass

from hook.observe.snapshot import sum_by_event
from hook.observe.table import format_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from hook.observe.snapshot import Key

STATES = {
    "live": "live",
    "missing": "group missing",
    "recovering": "recovering",
    "lingering": "lingering",
    "completed": "completed",
}
"""Words for Key.condition, in the order in which keys are shown: what runs before what is over."""
_ORDER = list(STATES.values())


@dataclass(frozen=True)
class Selection:
    """What was asked for. `namespaces`, `states` (words of STATES): none: all. `most`: rows; None: all."""

    namespaces: Sequence[str] = ()
    states: Sequence[str] = ()
    sort: str = "energy"
    most: int | None = None

    def choose(self, keys: Sequence[Key]) -> tuple[list[Key], list[Key]]:
        """The keys that match, in order, and those of them that are shown."""
        wanted = {STATES[word] for word in self.states}
        found = [
            key
            for key in keys
            if (not wanted or key.condition in wanted)
            and (not self.namespaces or key.state.pod_namespace in self.namespaces)
        ]
        order = SORTS[self.sort]
        found.sort(key=lambda key: (_ORDER.index(key.condition), order(key), format_name(key), key.state.key))
        return found, found[: self.most]


def _most_of(event: str) -> Callable[[Key], int]:
    def order(key: Key) -> int:
        total = sum_by_event(key.groups).get(event)
        return -(total.known if total is not None else 0)

    return order


SORTS: dict[str, Callable[[Key], Any]] = {
    "energy": lambda key: (_most_of("core_energy")(key), _most_of("mbm_total_bytes")(key)),
    "memory": _most_of("mbm_total_bytes"),
    "age": lambda key: key.age if key.age is not None else float("inf"),
    "name": format_name,
}
"""By what a list can be sorted: the most first, the youngest first, or by name."""
