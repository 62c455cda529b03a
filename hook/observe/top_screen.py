# SPDX-License-Identifier: Apache-2.0
"""The screen of `top`: what each key uses now, of what the whole node uses."""

from __future__ import annotations

from hook.observe.snapshot import Total
from hook.observe.table import (
    LEAST_NAME,
    SHORT_KEY,
    Column,
    explain_marks,
    format_name,
    format_sum,
    lay_out,
    numbers,
    words,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from hook.observe.rates import Rate, Rates
    from hook.observe.table import Screen

_HEADS = {
    "core_energy": "POWER(W)",
    "mbm_total_bytes": "MEMORY(B/s)",
    "mbm_local_bytes": "LOCAL(B/s)",
    "llc_occupancy": "CACHE(B)",
}
_OTHER_LINES = 10  # around the keys: title, notes, heads, the node, no pod, the legend of marks, and the cursor's


def _most_of(event: str) -> Callable[[Rate], Any]:
    return lambda rate: -rate.use.get(event, Total()).known


SORTS: dict[str, Callable[[Rate], Any]] = {
    "energy": lambda rate: rate.rank(),
    "memory": _most_of("mbm_total_bytes"),
    "cache": _most_of("llc_occupancy"),
    "name": lambda rate: format_name(rate.key),
}
"""By what `top` can sort, each by its first letter on a terminal."""


def format_rates(rates: Rates, sort: str, screen: Screen, notes: str = "") -> list[str]:
    """The lines of one table of `top`: the node, what is charged to no pod, and the keys. `notes`: for who watches."""
    listed = sorted(rates.keys, key=lambda rate: (SORTS[sort](rate), rate.key.state.key))
    shown = listed if screen.height is None else listed[: max(1, screen.height - _OTHER_LINES)]
    of_all = f"{len(shown)} of {len(listed)} keys" if len(shown) < len(listed) else f"{len(listed)} keys"
    keys = ["", "", *(rate.key.state.key for rate in shown)]
    columns = [
        words("NAME", ["node", "no pod", *(format_name(rate.key) for rate in shown)], least=LEAST_NAME),
        Column("KEY", keys, [key[:SHORT_KEY] for key in keys]),
    ]
    uses = [rates.node, rates.rest, *(rate.use for rate in shown)]
    columns += [numbers(head, [format_sum(use.get(event), event) for use in uses]) for event, head in _HEADS.items()]
    title = f"{rates.time}  over {rates.seconds:.1f} s, {of_all}"
    marks = explain_marks(cell for column in columns[2:] for cell in column.cells)
    return [title, *([screen.faint(notes)] if notes else []), "", *lay_out(columns, screen), *marks]
