# SPDX-License-Identifier: Apache-2.0
"""All groups of the resctrl file system, and how many there may be. Not for a start that succeeds: it grows with the
node.

Source: Documentation/filesystems/resctrl.rst of the kernel.
"""

from __future__ import annotations

from hook.base import system

_NO_CTRL_GROUPS = ("info", "mon_data", "mon_groups")


def list_ctrl_groups(root: str) -> dict[str, list[str]]:
    """The paths of all ctrl_groups, each with the paths of its mon_groups.

    Empty: nothing is mounted, or nothing can be monitored.
    """
    directories = [name for name in _list(root) if name not in _NO_CTRL_GROUPS]
    paths = [root, *(f"{root}/{name}" for name in directories)]
    return {
        path: [f"{path}/mon_groups/{name}" for name in _list(path + "/mon_groups")]
        for path in paths
        if system.is_directory(path + "/mon_groups")
    }


def list_mon_groups(root: str) -> list[str]:
    """The paths of all mon_groups, in whatever ctrl_group."""
    return [path for paths in list_ctrl_groups(root).values() for path in paths]


def read_rmid_limit(root: str) -> int | None:
    """The smallest of info/*/num_rmids: there is one for each kind of counter, and a group takes an RMID of all."""
    limits = []
    for name in _list(root + "/info"):
        try:
            limits.append(int(system.read_file(f"{root}/info/{name}/num_rmids", 64)))
        except (OSError, ValueError):
            pass
    return min(limits, default=None)


def _list(directory: str) -> list[str]:
    """What is in a directory; nothing where there is none, or it cannot be read."""
    try:
        return system.list_directory(directory)
    except OSError:
        return []
