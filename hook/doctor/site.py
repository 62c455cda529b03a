# SPDX-License-Identifier: Apache-2.0
"""The installation that doctor checks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

from hook.node import door, hooksd, runtimes
from hook.node.hooksd import PROGRAM, read_programs
from hook.node.place import Origin, Places, find_origin, find_prefix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hook.base.models import Options
    from hook.node.door import Tree
    from hook.node.hooksd import Entry


@dataclass(frozen=True)
class Site:
    """The installation to check. `hooks_dirs`: the hooks.d directories, in the order of precedence."""

    places: Places
    options: Options
    hooks_dirs: tuple[str, ...] = tuple(hooksd.READERS)

    @cached_property
    def ours(self) -> list[Entry]:
        """The hooks.d files that call the hook. Raises OSError."""
        return [
            entry for directory in self.hooks_dirs for entry in hooksd.read_directory(directory) if entry.calls(PROGRAM)
        ]

    @cached_property
    def origin(self) -> Origin:
        """The owner of the installation that hooks.d calls, or of `places` if it calls none. Raises OSError."""
        called = [(it.path, find_prefix(it.file.hook.path)) for it in self.ours if it.file is not None]
        places = [Places(prefix, os.path.dirname(path)) for path, prefix in called if prefix is not None]
        return find_origin(next(iter(places), self.places))

    @cached_property
    def states(self) -> tuple[list[dict[str, Any]], list[str]]:
        """The states of the running containers, and a line for each problem with a runtime."""
        return runtimes.find_runtimes().list_states()

    @property
    def programs(self) -> list[str]:
        """The programs that hooks.d calls, or that of `places` if it calls none. Raises OSError."""
        called = {entry.file.hook.path for entry in self.ours if entry.file is not None}
        return sorted(called) or [self.places.program]


def names_hook(site: Site, path: str, files: Tree = door.HOST) -> bool:
    """Whether a container's config.json (or a base_runtime_spec) has the hook; False if it is unreadable."""
    try:
        return bool(read_programs(path, files) & {*site.programs, site.places.link})
    except OSError:
        return False
