# SPDX-License-Identifier: Apache-2.0
"""The screen of `top`: what each key uses now, of what the whole node uses."""

from __future__ import annotations

from hook.observe.cells import explain_marks, format_name, format_sum
from hook.observe.snapshot import Total
from hook.observe.table import Column, lay_out, numbers, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from hook.observe.rates import Rate, Rates
    from hook.observe.table import Screen

_HEADS = {"core_energy": "POWER(W)", "mbm_total_bytes": "MEMORY(B/s)", "mbm_local_bytes": "LOCAL(B/s)"}
_CACHE = "llc_occupancy"
_LEAST_NAME = 12
_SHORT_KEY = 8
_OTHER_LINES = 10  # around the keys: title, notes, heads, the node, no pod, the legend of marks, and the cursor's


def _most_of(event: str) -> Callable[[Rate], Any]:
    return lambda rate: -rate.use.get(event, Total()).known


SORTS: dict[str, Callable[[Rate], Any]] = {
    "energy": lambda rate: rate.rank(),
    "memory": _most_of("mbm_total_bytes"),
    "cache": lambda rate: -(rate.occupancy or Total()).known,
    "name": lambda rate: format_name(rate.key),
}
"""By what `top` can sort, each by its first letter on a terminal."""


def format_rates(rates: Rates, sort: str, screen: Screen, notes: str = "") -> list[str]:
    """The lines of one table of `top`: the node, what is charged to no pod, and the keys. `notes`: for who watches."""
    listed = sorted(rates.keys, key=lambda rate: (SORTS[sort](rate), rate.key.state.key))
    shown = listed if screen.height is None else listed[: max(1, screen.height - _OTHER_LINES)]
    of_all = f"{len(shown)} of {len(listed)} keys" if len(shown) < len(listed) else f"{len(listed)} keys"
    rest = {**{event: rates.rest.get(event) for event in _HEADS}, _CACHE: rates.rest_occupancy}
    node = {event: _add_up([rest[event], *(_use_of(rate)[event] for rate in listed)]) for event in rest}
    keys = ["", "", *(rate.key.state.key for rate in shown)]
    columns = [
        words("NAME", ["node", "no pod", *(format_name(rate.key) for rate in shown)], least=_LEAST_NAME),
        Column("KEY", keys, [key[:_SHORT_KEY] for key in keys]),
    ]
    for event, head in {**_HEADS, _CACHE: "CACHE(B)"}.items():
        uses = [node[event], rest[event], *(_use_of(rate)[event] for rate in shown)]
        columns.append(numbers(head, [format_sum(total, event) for total in uses]))
    title = f"{rates.time}  over {rates.seconds:.1f} s, {of_all}"
    marks = explain_marks(cell for column in columns[2:] for cell in column.cells)
    return [title, *([screen.faint(notes)] if notes else []), "", *lay_out(columns, screen), *marks]


def _use_of(rate: Rate) -> dict[str, Total | None]:
    return {**{event: rate.use.get(event) for event in _HEADS}, _CACHE: rate.occupancy}


def _add_up(totals: list[Total | None]) -> Total | None:
    """The sum of these; None if there is none of them."""
    there = [total for total in totals if total is not None]
    return sum(there[1:], there[0]) if there else None
