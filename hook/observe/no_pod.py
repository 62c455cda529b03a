# SPDX-License-Identifier: Apache-2.0
"""What is charged to no pod: the use of system services, runtimes, and whatever other tools have groups for.

The counters of a ctrl_group are the sums over itself and its mon_groups. Without those of our keys the rest is left.
Source: Documentation/filesystems/resctrl.rst, "mon_data".
"""

from __future__ import annotations

from hook.base import counters
from hook.base.errors import HookError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hook.base.resctrl import Resctrl
    from hook.observe.snapshot import Inventory

    Rest = dict[str, dict[str, int | None]]
    """By path of the ctrl_group and by counter, in millionths; None: unknown."""


def read_rest(kernel: Resctrl, seen: Inventory) -> Rest:
    """The counters of each ctrl_group, without those of our keys' groups in it."""
    groups = [group for key in seen.keys for group in key.groups if not group.is_over]
    found: Rest = {}
    for path in seen.ctrl_groups:
        ours = [group.now for group in groups if group.record.path.startswith(f"{path}/mon_groups/")]
        try:
            sums = kernel.counters(path)
        except HookError:  # it is gone
            continue
        found[path] = {counter: _subtract(text, counter, ours) for counter, text in sums.items()}
    return found


def _subtract(text: str, counter: str, parts: Iterable[Mapping[str, str]]) -> int | None:
    """What is no number (`Unavailable`: no data yet) is in the sum as nothing."""
    whole = counters.number(text)
    if whole is None:
        return None
    rest = whole - sum(counters.number(part.get(counter)) or 0 for part in parts)
    return rest if rest >= 0 else None
