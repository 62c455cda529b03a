"""The installation that the checks look at."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

from hook.host import hooksd, oci_runtimes
from hook.host.paths import PROGRAM, Places, prefix_of
from hook.install import owner as origins
from hook.install.file_steps import Refused
from hook.install.uninstall import programs_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hook.base.models import Options
    from hook.host.hooksd import Entry
    from hook.install.owner import Origin


@dataclass(frozen=True)
class Site:
    """What is to be looked at. `hooks_dirs`: the directories of hooks.d, in the order of their weight."""

    places: Places
    options: Options
    hooks_dirs: tuple[str, ...] = tuple(hooksd.READERS)

    @cached_property
    def ours(self) -> list[Entry]:
        """The files that have the hook called. Raises OSError."""
        return [
            entry for directory in self.hooks_dirs for entry in hooksd.read_directory(directory) if entry.calls(PROGRAM)
        ]

    @cached_property
    def origin(self) -> Origin:
        """Who owns the installation that is called; where none is, the one that would be. Raises OSError."""
        called = [(it.path, prefix_of(it.file.hook.path)) for it in self.ours if it.file is not None]
        places = [Places(prefix, os.path.dirname(path)) for path, prefix in called if prefix is not None]
        try:
            return origins.of(next(iter(places), self.places))
        except Refused:  # the manager of packages does not answer
            return origins.INSTALL

    @cached_property
    def states(self) -> tuple[list[dict[str, Any]], list[str]]:
        """What the OCI runtimes tell of running containers, and a line on each thing that they do not."""
        return oci_runtimes.list_states()

    @property
    def programs(self) -> list[str]:
        """The programs that are called; where none is, the one that would be. Raises OSError."""
        called = {entry.file.hook.path for entry in self.ours if entry.file is not None}
        return sorted(called) or [self.places.program]


def names_hook(site: Site, path: str) -> bool:
    """Whether a specification of containers has the hook; one that cannot be read is no matter of ours."""
    try:
        return bool(programs_in(path) & {*site.programs, site.places.link})
    except (OSError, ValueError):
        return False
