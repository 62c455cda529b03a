# SPDX-License-Identifier: Apache-2.0
"""`doctor`: checks a node and suggests fixes. No check changes anything, except --self-test.

The input of a check is an installation (Site), its output findings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from hook import system
from hook.errors import HookError
from hook.explain import format_count, printable
from hook.models import Options, State
from hook.node import engines, files, hooksd, runtimes
from hook.node.paths import TARGETS, Origin, Places, find_origin, find_prefix
from hook.show.snapshot import Inventory, take_snapshot
from hook.show.terminal import Screen

OK, WARNING, FAILURE = "ok", "warning", "FAIL"


class Finding(NamedTuple):
    """The result of a check. `subject`: the thing that was checked; `remedy`: what to do, empty if the level is ok."""

    level: str
    subject: str
    found: str
    remedy: str = ""


def ok(subject: str, found: str) -> Finding:
    return Finding(OK, subject, found)


def warning(subject: str, found: str, remedy: str) -> Finding:
    return Finding(WARNING, subject, found, remedy)


def failure(subject: str, found: str, remedy: str) -> Finding:
    return Finding(FAILURE, subject, found, remedy)


def format_findings(findings: Sequence[Finding], screen: Screen) -> list[str]:
    """What is well, a count, and what is wrong, worst first: the last lines on a terminal are those to act on.

    If the problems do not fit on the terminal, the count is repeated at the end.
    """
    by_level = {level: [it for it in findings if it.level == level] for level in (OK, FAILURE, WARNING)}
    well, failures, warnings = (_format_level(found, screen.width) for found in by_level.values())
    numbers = [format_count(len(by_level[level]), noun) for level, noun in ((FAILURE, "failure"), (WARNING, "warning"))]
    count = ", ".join([*numbers, f"{len(by_level[OK])} ok"])
    lines = [*well, count, *failures, *warnings]
    is_too_tall = screen.height is not None and len(failures) + len(warnings) + 1 >= screen.height
    return [*lines, count] if is_too_tall else lines


def _format_level(findings: Iterable[Finding], width: int | None) -> list[str]:
    """A line for each finding and one for its remedy, printable; on a terminal wrapped, with an indent."""
    parts = []
    for level, subject, found, remedy in findings:
        parts.append((f"{level:<8} ", printable(f"{subject}: {found}")))
        parts += [(" " * 11, printable(remedy))] if remedy else []
    if width is None:
        return [start + text for start, text in parts]
    from textwrap import TextWrapper

    # A word that is too long for a line, such as a path, stays whole, so that it can be copied.
    wrapper = TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    lines = []
    for start, text in parts:
        wrapper.initial_indent, wrapper.subsequent_indent = start, " " * len(start)
        lines += wrapper.wrap(text)
    return lines


def to_objects(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """The objects that `doctor --json` prints."""
    return [{**it._asdict(), "level": it.level.lower(), "remedy": it.remedy or None} for it in findings]


class Site:
    """The installation to check. `hooks_dirs`: the hooks.d directories, in the order of precedence."""

    def __init__(self, places: Places, options: Options, hooks_dirs: tuple[str, ...] = tuple(hooksd.READERS)) -> None:
        self.places, self.options, self.hooks_dirs = places, options, hooks_dirs

    @cached_property
    def ours(self) -> list[hooksd.Entry]:
        """The hooks.d files that call the hook. Raises OSError."""
        entries = (it for directory in self.hooks_dirs for it in hooksd.read_directory(directory))
        return [it for it in entries if it.own is not None]

    @cached_property
    def programs(self) -> list[str]:
        """The programs that hooks.d calls, or that of `places` if it calls none. Raises OSError."""
        return sorted({it.own.path for it in self.ours if it.own is not None}) or [self.places.program]

    @cached_property
    def origin(self) -> Origin:
        """The owner of the installation that hooks.d calls, or of `places` if it calls none. Raises OSError."""
        called = [(it.path, find_prefix(it.own.path)) for it in self.ours if it.own is not None]
        places = [Places(prefix, os.path.dirname(path)) for path, prefix in called if prefix is not None]
        return find_origin(next(iter(places), self.places))

    def name_remedy(self, path: str, change: str) -> str:
        """The remedy for a file that calls the hook: `change` it, unless its owner writes it again.

        The owner does not write a copy: one with another name, or that overrides its namesake.
        """
        named = [it.path for it in self.ours if it.name == os.path.basename(path)]
        is_copy = named[:1] != [path] or path not in map(Places(hooks_dir=os.path.dirname(path)).json, TARGETS)
        is_rewritten = path.startswith(self.origin.writes) and not is_copy
        return self.origin.again if is_rewritten else f"edit {path}: {change}"

    @cached_property
    def states(self) -> tuple[list[State], list[str]]:
        """The states of the running containers, and a line for each problem with a runtime."""
        return runtimes.find_runtimes().list_states()

    @cached_property
    def containerd(self) -> engines.Configuration:
        """The configuration of containerd."""
        return engines.read_containerd()

    @cached_property
    def snapshot(self) -> Inventory:
        """The node as `list` shows it. Raises HookError, OSError."""
        return take_snapshot(self.options)

    def is_called_by(self, path: str, files: files.Tree = files.HOST) -> bool:
        """Whether a container's config.json (or a base_runtime_spec) has the hook; False if it is unreadable."""
        return self.calls_ours(system.try_call(hooksd.read_programs, path, files) or set())

    def calls_ours(self, programs: set[str]) -> bool:
        """Whether the hook is among these programs. Raises OSError."""
        return not programs.isdisjoint((*self.programs, self.places.link))


Check = Callable[[Site], Iterator[Finding]]


def list_checks() -> dict[str, Check]:
    """The checks in the order of the output, each with its subject."""
    from hook.doctor import installation, kernel, records

    return {
        "root": kernel.check_root,
        "resctrl": kernel.check_resctrl,
        "RMIDs": kernel.check_rmids,
        "memory traffic": kernel.check_traffic,
        "/proc": kernel.check_processes,
        "program": installation.check_programs,
        "hooks.d": installation.check_hooks_directories,
        "runtimes": installation.check_runtimes,
        "annotations": installation.check_pod_annotations,
        "other resctrl tools": kernel.check_other_tools,
        "records": records.check_records,
        "containers": records.check_containers,
        "unhooked": records.check_unhooked,
        "lost": records.check_lost_containers,
        "timer": installation.check_timer,
        "reconcile": records.check_reconcile,
        "watch": records.check_watch,
        "syslog": installation.check_syslog,
    }


def run_check(name: str, check: Check, site: Site) -> Iterator[Finding]:
    """Run a check. One that raises an error is a failure."""
    try:
        yield from check(site)
    except (HookError, OSError) as error:
        found, _, hint = str(error).partition("; hint: ")
        yield failure(name, f"cannot check: {found}", hint or "run doctor as root")
