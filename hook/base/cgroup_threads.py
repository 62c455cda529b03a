# SPDX-License-Identifier: Apache-2.0
"""The threads in a container's own cgroup, as the cgroup file system lists them: all at once, in one read.

A look at /proc takes one process after another: it never sees a program that goes on living in a child and ends itself,
again and again. Whatever is in the cgroup at the time of the read is in the list.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

from hook.base import cgroup_mounts, system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_CGROUPS = 256  # of one container: a tenant with a writable cgroup makes as many as he likes
_MOST_BYTES = 4 << 20  # of one list: half a million threads
_GONE = (errno.ENOENT, errno.ENODEV)  # ENODEV: removed while its file was open


class Reading(NamedTuple):
    """The threads of a container's cgroups. `unread`: how many cgroups below its own one are left out, at least."""

    tids: set[int]
    unread: int


def read_threads(cgroup: str, is_other: Callable[[str], bool]) -> Reading | None:
    """The threads in a cgroup and in those below it; None if it is not there, or mounted at an unusual place.

    `is_other`: whether a cgroup below it is another container's. Source: cgroups(7); cgroup v2 has `cgroup.threads`,
    also where threads of one process are in several cgroups, v1 has `tasks`.
    """
    top = cgroup_mounts.find_directory(cgroup)
    if top is None:
        return None
    file = "cgroup.threads" if cgroup.startswith(":") else "tasks"
    tids: set[int] = set()
    unread = 0
    waiting = [""]
    for below in waiting:  # which grows meanwhile
        path = top + below
        try:
            tids.update(map(int, system.read_file(f"{path}/{file}", _MOST_BYTES).split()))
            children = system.count_links(path) - 2  # as many as a directory has links beyond its own two
            if children > _MOST_CGROUPS - len(waiting):
                unread += children
            elif children:
                waiting += (it for it in _list_below(path, below) if not is_other(cgroup + it))
        except OSError as error:
            unread += error.errno not in _GONE
    return Reading(tids, unread)


def _list_below(path: str, below: str) -> list[str]:
    return [f"{below}/{name}" for name in system.list_directory(path) if system.is_directory(f"{path}/{name}")]
