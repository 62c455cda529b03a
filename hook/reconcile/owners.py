# SPDX-License-Identifier: Apache-2.0
"""Finds whose a group without a record is: by its tasks, their cgroups, and the containers these are named after."""

from __future__ import annotations

from hook.base import cgroups, container_tasks
from hook.stages import orphans

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from hook.base.container_tasks import Process, Processes
    from hook.stages.context import Context

    Index = Mapping[str, str | None]
    """The key of each container in the index; None: its entry is unreadable."""


def find_owner(context: Context, path: str, index: Index, processes: Processes) -> str | None:
    """The key of a group without a record: the key of its containers, or that in its name if they have none.

    A name has no key after our prefix if the group was made with a longer prefix. Then it must not take over containers
    of another key. None if the containers have several keys, and the name is none of them.
    """
    name = orphans.key_of(context, path)
    found = find_containers(context, path, index, processes)
    keys = {key for key in map(index.get, found) if key is not None}
    if name in keys or not keys:
        return name
    return keys.pop() if len(keys) == 1 else None


def find_containers(context: Context, path: str, index: Index, processes: Processes) -> dict[str, Process]:
    """The containers that have processes in a group, each with its init: the one that started first.

    By the cgroups' names: a container of the index, the group's own key, or any that looks like one.
    """
    known = {*index, orphans.key_of(context, path) or ""}
    found: dict[str, Process] = {}
    for it in sorted(_list_processes(context, path, processes), key=lambda it: (it.starttime, it.pid)):
        for name in (cgroups.find_container(place, known) for place in it.cgroups):
            if name is not None:
                found.setdefault(name, it)
    return found


def _list_processes(context: Context, path: str, processes: Processes) -> list[Process]:
    """The processes in a group that were there at the look, as they are now."""
    now = map(container_tasks.look_at, (context.resctrl.tasks(path) or set()) & processes.by_pid.keys())
    return [it for it in now if it is not None and it.starttime == processes.by_pid[it.pid].starttime]
