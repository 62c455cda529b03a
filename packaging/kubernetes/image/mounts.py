# SPDX-License-Identifier: Apache-2.0
"""Finds out whether the directories that a container has mounted are still the node's.

A container keeps the directory that it got when it started. An administrator may remove that on the
node, or mount another file system over it. Then hooks use a new directory, and nothing writes the
records that the container reads.

The node is what our parent sees: conmon or containerd's shim, which also starts the hooks. On
most nodes this is what pid 1 sees. Its table of mounts can be read without a capability; its
root directory could not.
"""

from __future__ import annotations

import os

Directory = tuple[str, str]
"""A directory, whatever it is mounted as: the device of its file system, and its path in there."""


def find_problem(path: str) -> str | None:
    """Say why the directory `path` of this container is not the node's; None if it is.

    Raises OSError.
    """
    if removal := find_removal(path):
        return removal
    ours, nodes = (locate(_read(f"/proc/{pid}/mountinfo"), path) for pid in ("self", os.getppid()))
    return (
        None
        if ours == nodes
        else f"another file system or directory was put over {path} on the node"
    )


def find_removal(path: str) -> str | None:
    """Say that the directory `path` of this container was removed on the node; None if not.

    Enough for a directory to which a link may lead on the node, as one in /var/log: `locate`
    follows none. Raises OSError.
    """
    return f"{path} was removed on the node" if os.stat(path).st_nlink == 0 else None


def locate(mountinfo: str, path: str) -> Directory | None:
    """Find the directory that a path leads to,
    in the text of a /proc/PID/mountinfo (proc_pid_mountinfo(5)).

    A mount covers what was there before, also other mounts below it, so this goes from mount to
    mount as the kernel does. None: there is no such root.
    """
    mounts = [line.split(" ", 5)[:5] for line in mountinfo.splitlines()]
    above = [mount for mount in mounts if (path + "/").startswith(mount[4].rstrip("/") + "/")]
    numbers = {mount[0] for mount in above}
    current = next((mount for mount in above if mount[4] == "/" and mount[1] not in numbers), None)
    while current is not None:
        number, _, device, root, point = current
        on_it = [mount for mount in above if mount[1] == number and mount[0] != number]
        if not on_it:
            return device, f"{root.rstrip('/')}{path[len(point.rstrip('/')) :]}" or "/"
        current = min(on_it, key=lambda mount: len(mount[4]))
    return None


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
