# SPDX-License-Identifier: Apache-2.0
"""Where a cgroup is. What its path says of containers: `cgroups`, which a container's start does not need."""

from __future__ import annotations

from hook.base import system

_MOUNT = "/sys/fs/cgroup"


def exists(cgroup: str) -> bool:
    """Whether a cgroup is there."""
    return find_directory(cgroup) is not None


def find_directory(cgroup: str) -> str | None:
    """The directory of a cgroup, in one of the places where its hierarchy is mounted by all known systems."""
    controllers, _, path = cgroup.partition(":")
    if not path.startswith("/") or ".." in path.split("/"):
        return None
    name = controllers.partition("name=")[2] or controllers
    places = (name, name.partition(",")[0]) if name else ("", "unified")
    directories = (f"{_MOUNT}/{place}{path}".replace("//", "/") for place in places)
    return next((it for it in directories if system.is_directory(it)), None)
