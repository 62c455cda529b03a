# SPDX-License-Identifier: Apache-2.0
"""`doctor`: checks a node and suggests fixes. No check changes anything.

The input of a check is an installation (Site), its output findings. `checks` has the table of all checks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from textwrap import TextWrapper
from typing import Any, NamedTuple

from hook.errors import HookError, as_hook_error
from hook.install import install, steps
from hook.models import Options
from hook.node import engines, hooksd, programs
from hook.node.paths import TARGETS, Origin, Places, find_origin, find_prefix, is_stub
from hook.report import explain, format_count, printable
from hook.show.snapshot import Inventory, take_snapshot
from hook.show.terminal import Screen

OK, WARNING, FAILURE = "ok", "warning", "FAIL"
_CONTAINERDS = ("containerd", "k3s", "rke2")
Facts = Mapping[str, object]
"""What a check found, by the names that stand in braces in the texts of its row."""


class Finding(NamedTuple):
    """The result of a check."""

    level: str
    subject: str
    """The thing that was checked."""
    found: str
    remedy: str = ""
    """What to do. It is empty if the level is ok."""


class Check(NamedTuple):
    """A row of the table: what may be wrong, how it is found, and the remedy. The texts have names in braces."""

    find: Callable[[Site], bool | Iterable[Facts]]
    """Returns the facts of each case, or whether there is one. Raises HookError, OSError."""
    text: str
    """The level, the subject, a colon, and what was found."""
    remedy: str = ""

    @property
    def subject(self) -> str:
        """The thing that it checks."""
        return self.text.partition(": ")[0].partition(" ")[2]

    def run(self, site: Site) -> Iterator[Finding]:
        """Yield the findings. A check that raises an error is a failure, which is reported once."""
        subject, level = self.subject, self.text.partition(" ")[0]
        what = self.text.partition(": ")[2]
        try:
            found = self.find(site)
            for facts in ([{}] if found else []) if isinstance(found, bool) else found:
                known = {**site.facts, **facts}
                remedy = str(known.get("remedy") or self.remedy.format_map(known))
                yield Finding(level, subject.format_map(known), what.format_map(known), remedy)
        except (HookError, OSError) as error:
            problem, _, hint = str(explain(as_hook_error("a file could not be read", error))).partition("; hint: ")
            if problem not in site.errors:
                site.errors.add(problem)
                yield Finding(FAILURE, subject, f"cannot check: {problem}", hint or "run doctor as root")


class Site:
    """The installation to check. `hooks_dirs` are the hooks.d directories, in the order of precedence."""

    def __init__(self, places: Places, options: Options, hooks_dirs: tuple[str, ...] = tuple(hooksd.READERS)) -> None:
        self.places, self.options, self.hooks_dirs = places, options, hooks_dirs
        self.errors: set[str] = set()
        """The errors of checks that were reported."""
        self.facts: Facts = {"root": options.resctrl_root, "run_dir": options.run_dir}
        """What the texts of every row may name."""

    @cached_property
    def entries(self) -> list[hooksd.Entry]:
        """The files of hooks.d. Raises OSError."""
        return [entry for directory in self.hooks_dirs for entry in hooksd.read_directory(directory)]

    @property
    def ours(self) -> list[hooksd.Entry]:
        """The hooks.d files that call the hook. Raises OSError."""
        return [entry for entry in self.entries if entry.own is not None]

    @cached_property
    def programs(self) -> list[str]:
        """The programs that hooks.d calls, or that of `places` if it calls none. Raises OSError."""
        return sorted({entry.own.path for entry in self.ours if entry.own is not None}) or [self.places.program]

    @cached_property
    def verdicts(self) -> dict[str, str]:
        """Why each program does not run, or an empty text if it does. A stub is no program. Raises OSError."""
        found = {path: "" if os.path.exists(path) else f"{path} is missing" for path in self.programs}
        for path in [path for path, why in found.items() if not why]:
            if is_stub(path):
                del found[path]
                continue
            try:
                install.try_program(path)
            except steps.Refused as error:
                found[path] = str(error)
        return found

    @cached_property
    def origin(self) -> Origin:
        """The owner of the installation that hooks.d calls, or of `places` if it calls none. Raises OSError."""
        called = [(entry.path, find_prefix(entry.own.path)) for entry in self.ours if entry.own is not None]
        places = [Places(prefix, os.path.dirname(path)) for path, prefix in called if prefix is not None]
        return find_origin(next(iter(places), self.places))

    def is_rewritten(self, path: str) -> bool:
        """Whether the owner of the installation writes a hooks.d file again.

        The owner does not write a copy: a file with another name, or that overrides its namesake.
        """
        named = [entry.path for entry in self.ours if entry.name == os.path.basename(path)]
        is_copy = named[:1] != [path] or path not in map(Places(hooks_dir=os.path.dirname(path)).json, TARGETS)
        return path.startswith(self.origin.writes) and not is_copy

    @cached_property
    def containerd(self) -> engines.Configuration | None:
        """The configuration of containerd, if it starts the containers of Kubernetes, and not CRI-O."""
        is_used = any(map(programs.find_program, _CONTAINERDS)) and not programs.find_program("crio")
        return engines.read_containerd() if is_used else None

    @cached_property
    def snapshot(self) -> Inventory:
        """The node as `list` shows it. Raises HookError, OSError."""
        return take_snapshot(self.options)


def format_findings(findings: Sequence[Finding], screen: Screen) -> list[str]:
    """Return what is well, a count, and what is wrong, worst first: the last lines on a terminal are those to act on.

    If the problems do not fit on the terminal, the count is repeated at the end.
    """
    by_level = {level: [found for found in findings if found.level == level] for level in (OK, FAILURE, WARNING)}
    well, failures, warnings = (_format_level(found, screen.width) for found in by_level.values())
    numbers = [format_count(len(by_level[level]), noun) for level, noun in ((FAILURE, "failure"), (WARNING, "warning"))]
    count = ", ".join([*numbers, f"{len(by_level[OK])} ok"])
    lines = [*well, count, *failures, *warnings]
    is_too_tall = screen.height is not None and len(failures) + len(warnings) + 1 >= screen.height
    return [*lines, count] if is_too_tall else lines


def _format_level(findings: Iterable[Finding], width: int | None) -> list[str]:
    """Return a line for each finding and one for its remedy, printable; on a terminal wrapped, with an indent."""
    parts = []
    for level, subject, found, remedy in findings:
        parts.append((f"{level:<8} ", printable(f"{subject}: {found}")))
        parts += [(" " * 11, printable(remedy))] if remedy else []
    if width is None:
        return [start + text for start, text in parts]
    # A word that is too long for a line, such as a path, stays whole, so that it can be copied.
    wrapper = TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    lines = []
    for start, text in parts:
        wrapper.initial_indent, wrapper.subsequent_indent = start, " " * len(start)
        lines += wrapper.wrap(text)
    return lines


def to_objects(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return the objects that `doctor --json` prints."""
    return [{**found._asdict(), "level": found.level.lower(), "remedy": found.remedy or None} for found in findings]
