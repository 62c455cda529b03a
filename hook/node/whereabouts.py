# SPDX-License-Identifier: Apache-2.0
"""Finds the resctrl group that a task is in, also on a kernel without /proc/PID/cpu_resctrl_groups.

There the `tasks` of all groups are read, once for all tasks. Not for the hook path: the cost grows with the node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property

from hook import explain, procfs, resctrl
from hook.resctrl import Resctrl


class Groups:
    """The groups of a node, by whose `tasks` a task is found if need be.

    A mon_group is ours if its name has our `prefix`, or if it is on record, with whatever prefix; any other one is
    another tool's. `list_recorded`: lists the paths on record; called only if a mon_group has another prefix. What
    cannot be read raises HookError or OSError: a task in it would be taken for a free one.
    """

    def __init__(self, kernel: Resctrl, prefix: str, list_recorded: Callable[[], Collection[str]]) -> None:
        self._kernel = kernel
        self._prefix = prefix
        self._list_recorded = list_recorded

    def find(self, tid: int) -> str | None:
        """The path of the mon_group that a task is in, or else of its ctrl_group; None: it has ended, or is unknown.

        Where the kernel does not show it, the answer is from the first such call, after which tasks may have begun; and
        of a task in a mon_group of ours, it is the ctrl_group.
        """
        groups = procfs.resctrl_groups(tid)
        if groups is not None:
            return self._kernel.path(*groups).removesuffix("/mon_groups/")
        return None if self._shows_groups else self._places.get(tid)

    def find_taker(self, tid: int) -> str | None:
        """The path of the mon_group of another tool that a task is in; None: it is in none, as far as is known."""
        path = self.find(tid)
        return path if path is not None and self.is_others(path) else None

    def is_others(self, path: str) -> bool:
        """Whether a group is another tool's mon_group."""
        above, _, name = path.rpartition("/")
        is_free = not above.endswith("/mon_groups") or name.startswith(self._prefix)
        return not is_free and path not in self._recorded

    def name_ctrl_group(self, path: str) -> str:
        """The name of the ctrl_group that a group is, or is in, as the kernel shows it: `/` for the root one."""
        return find_ctrl_group(path)[len(self._kernel.root) + 1 :] or "/"

    def read_others(self, ctrl_groups: Mapping[str, list[str]] | None = None) -> dict[int, str]:
        """The tasks that are in mon_groups of other tools now, each with the path of its group.

        `ctrl_groups`: as from resctrl.list_ctrl_groups; None: those of now.
        """
        listed = ctrl_groups if ctrl_groups is not None else resctrl.list_ctrl_groups(self._kernel.root)
        others = (path for paths in listed.values() for path in paths if self.is_others(path))
        return {tid: path for path in others for tid in self._read(path)}

    @cached_property
    def _recorded(self) -> Collection[str]:
        return self._list_recorded()

    @cached_property
    def _shows_groups(self) -> bool:
        return procfs.resctrl_groups("self") is not None

    @cached_property
    def _places(self) -> dict[int, str]:
        """The group of each task. A ctrl_group lists the tasks of its mon_groups, too, so that these come last."""
        listed = resctrl.list_ctrl_groups(self._kernel.root)
        found = {tid: path for path in listed for tid in self._read(path)}
        return {**found, **self.read_others(listed)}

    def _read(self, path: str) -> set[int]:
        try:
            return self._kernel.tasks(path) or set()
        except OSError as error:
            raise explain.system_error(f"cannot read which tasks are in {path}", error) from error


def find_ctrl_group(path: str) -> str:
    """The path of the ctrl_group that a group is, or is in."""
    above, _, name = path.rpartition("/mon_groups/")
    return above or name
