# SPDX-License-Identifier: Apache-2.0
"""`doctor`: checks a node and suggests fixes. No check changes anything.

The input of a check is an installation (Site), its output findings. `checks` has the table of all checks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from textwrap import wrap
from typing import Any, NamedTuple

from hook.models import Options
from hook.node import hooksd
from hook.node.models import HookProgram
from hook.node.paths import Origin, Places, find_origin, find_prefix
from hook.report import format_count, printable
from hook.show import Screen
from hook.show.snapshot import Inventory, take_snapshot

# A word that is too long for a line, such as a path, stays whole, so that it can be copied.
_WHOLE: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
OK, WARNING, FAILURE = "ok", "warning", "FAIL"


class Finding(NamedTuple):
    """The result of a check."""

    level: str
    subject: str
    """The thing that was checked."""
    found: str
    remedy: str = ""
    """What to do. It is empty if the level is ok."""


class Site:
    """The installation to check. `hooks_dirs` are the hooks.d directories, in the order of precedence."""

    def __init__(self, places: Places, options: Options, hooks_dirs: tuple[str, ...] = tuple(hooksd.READERS)) -> None:
        self.places, self.options, self.hooks_dirs = places, options, hooks_dirs
        self.errors: set[str] = set()
        """The errors of checks that were reported."""
        self.checking = ""
        """What is being checked."""

    @cached_property
    def entries(self) -> list[hooksd.Entry]:
        """The files of hooks.d. Raises OSError."""
        return [entry for directory in self.hooks_dirs for entry in hooksd.read_directory(directory)]

    @property
    def ours(self) -> list[tuple[hooksd.Entry, HookProgram]]:
        """The hooks.d files that call the hook, and how. Raises OSError."""
        return [(entry, own) for entry in self.entries if (own := entry.own) is not None]

    @property
    def programs(self) -> list[str]:
        """The programs that hooks.d calls, or that of `places` if it calls none. Raises OSError."""
        return sorted({own.path for _, own in self.ours}) or [self.places.program]

    @cached_property
    def origin(self) -> Origin:
        """The owner of the installation that hooks.d calls, or of `places` if it calls none. Raises OSError."""
        called = [(os.path.dirname(entry.path), find_prefix(own.path)) for entry, own in self.ours]
        places = [Places(prefix, directory) for directory, prefix in called if prefix is not None]
        return find_origin(next(iter(places), self.places))

    @cached_property
    def snapshot(self) -> Inventory:
        """The node as `list` shows it. Raises HookError, OSError."""
        return take_snapshot(self.options)


def format_findings(findings: Sequence[Finding], screen: Screen) -> list[str]:
    """Return what is well, a count, and what is wrong, worst first: a terminal ends with what to act on."""
    by_level = {level: [found for found in findings if found.level == level] for level in (OK, FAILURE, WARNING)}
    numbers = [format_count(len(by_level[level]), noun) for level, noun in ((FAILURE, "failure"), (WARNING, "warning"))]
    count = ", ".join([*numbers, f"{len(by_level[OK])} ok"])
    problems = [*by_level[FAILURE], *by_level[WARNING]]
    return [*_format_lines(by_level[OK], screen.width), count, *_format_lines(problems, screen.width)]


def _format_lines(findings: Iterable[Finding], width: int | None) -> Iterator[str]:
    """Yield a line for each finding and one for its remedy, printable; on a terminal wrapped, with an indent."""
    for level, subject, found, remedy in findings:
        for start, text in ((f"{level:<8} ", f"{subject}: {found}"), (" " * 11, remedy)):
            shown, indent = printable(text), " " * len(start)
            if width is not None:
                yield from wrap(shown, width, initial_indent=start, subsequent_indent=indent, **_WHOLE)
            elif shown:
                yield start + shown


def to_objects(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return the objects that `doctor --json` prints."""
    return [{**found._asdict(), "level": found.level.lower(), "remedy": found.remedy or None} for found in findings]
