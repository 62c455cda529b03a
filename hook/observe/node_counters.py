# SPDX-License-Identifier: Apache-2.0
"""Reads what tasks outside of all mon_groups used: what is charged to no pod.

A ctrl_group's counters are the sum over its own RMID and those of its mon_groups (resctrl.rst, "mon_data").
When a mon_group is removed, its count vanishes from the sum; when one gets an RMID that another one had, the former
count appears in it. So the sum is no counter, but what is left without the mon_groups is one.
"""

from __future__ import annotations

from hook.base import all_groups, counters, system
from hook.base.errors import HookError
from hook.base.resctrl import Resctrl

_MOST_READS = 5

Uncharged = dict[str, dict[str, "int | None"]]
"""By ctrl_group (`/` is the root one) and counter, in millionths; None: no number."""


def read_uncharged(root: str) -> Uncharged:
    """What each ctrl_group's own tasks used; empty if resctrl is not mounted.

    A ctrl_group whose mon_groups change faster than they can be read is left out.
    """
    kernel = Resctrl(root)
    paths = all_groups.list_ctrl_groups(root) if kernel.is_mounted() else {}
    found = {("/" if path == root else path.rpartition("/")[2]): _read_own(kernel, path) for path in paths}
    return {name: values for name, values in found.items() if values is not None}


def _read_own(kernel: Resctrl, path: str) -> dict[str, int | None] | None:
    """The counters of a ctrl_group less those of its mon_groups. None: it is gone, or too busy."""
    for _ in range(_MOST_READS):
        before = _list_inodes(kernel, path)
        try:
            # The sum first: what is used meanwhile makes the difference too low, and it catches up with the next read.
            whole = kernel.counters(path)
            parts = [kernel.counters(mon_group) for mon_group in before]
        except HookError:
            continue
        if _list_inodes(kernel, path) == before:
            return {counter: _subtract(counter, text, parts) for counter, text in whole.items()}
    return None


def _list_inodes(kernel: Resctrl, path: str) -> dict[str, int | None]:
    """The mon_groups of a ctrl_group, with the numbers that tell them from others of the same names."""
    top = path + "/mon_groups"
    try:
        names = system.list_directory(top)
    except OSError:
        return {}
    return {f"{top}/{name}": kernel.inode(f"{top}/{name}") for name in names}


def _subtract(counter: str, whole: str, parts: list[dict[str, str]]) -> int | None:
    """The kernel leaves what is no number out of the sum."""
    total = counters.number(whole)
    others = (counters.number(part.get(counter)) for part in parts)
    return None if total is None else max(0, total - sum(it for it in others if it is not None))
