# SPDX-License-Identifier: Apache-2.0
"""The steps of install and uninstall; --dry-run prints them.

Each step replaces or removes one file at once and durably. A new file is first written under a temporary name, which
readers of hooks.d ignore (they read *.json only). After a crash the earlier steps are done, and no later one is begun.
"""

from __future__ import annotations

import os
import shlex
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from hook.base import system
from hook.node import door, files, programs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any


class Refused(Exception):
    """The command was not carried out. `problems`: why, each with its remedy."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class Step:
    """One change. `verb` and `what` describe it; `is_done`: whether it is already in place."""

    verb = ""

    @property
    def what(self) -> str:
        raise NotImplementedError

    def is_done(self) -> bool:
        return False

    def do(self) -> str | None:
        """Do it. Returns a problem that does not stop later steps. Raises Refused, OSError."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.verb} {self.what}"


@dataclass(frozen=True)
class Write(Step):
    """Write a file. Before it replaces an old one, `check` gets its temporary path and may raise Refused."""

    path: str
    content: bytes
    mode: int = 0o644
    check: Callable[[str], None] | None = None
    verb = "write"

    @property
    def what(self) -> str:
        return self.path

    def is_done(self) -> bool:
        try:
            found = os.lstat(self.path)
            if not stat.S_ISREG(found.st_mode) or stat.S_IMODE(found.st_mode) != self.mode or _has_leftover(self.path):
                return False
            return door.read(self.path, len(self.content)) == self.content
        except OSError:
            return False

    def do(self) -> None:
        make_directory(os.path.dirname(self.path))
        with files.replace(self.path, _name_temporary(self.path)) as temporary:
            files.write_new(temporary, self.content, self.mode)
            if self.check is not None and os.path.lexists(self.path):
                self.check(temporary)


@dataclass(frozen=True)
class Link(Step):
    """A symbolic link."""

    path: str
    target: str
    verb = "link"

    @property
    def what(self) -> str:
        return f"{self.path} -> {self.target}"

    def is_done(self) -> bool:
        is_there = os.path.islink(self.path) and os.readlink(self.path) == self.target
        return is_there and not _has_leftover(self.path)

    def do(self) -> None:
        make_directory(os.path.dirname(self.path))
        with files.replace(self.path, _name_temporary(self.path)) as temporary:
            os.symlink(self.target, temporary)


@dataclass(frozen=True)
class Remove(Step):
    """Remove a file or a link."""

    path: str
    verb = "remove"

    @property
    def what(self) -> str:
        return self.path

    def is_done(self) -> bool:
        return not os.path.lexists(self.path) and not _has_leftover(self.path)

    def do(self) -> None:
        """Remove it, and the temporary file of a step that was killed."""
        for path in (self.path, _name_temporary(self.path)):
            with suppress(FileNotFoundError):
                os.unlink(path)
                files.sync_directory(os.path.dirname(path))


@dataclass(frozen=True)
class RemoveDirectory(Remove):
    """Remove a directory if it is empty."""

    def do(self) -> None:
        with suppress(OSError):
            os.rmdir(self.path)


@dataclass(frozen=True)
class Run(Step):
    """Run a program of the system. Its failure is reported and does not stop later steps."""

    command: tuple[str, ...]
    verb = "run"

    @property
    def what(self) -> str:
        return shlex.join(self.command)

    def do(self) -> str | None:
        return programs.run(list(self.command)).problem


@dataclass(frozen=True)
class Try(Step):
    """Check an installed file; `check` may raise Refused."""

    path: str
    check: Callable[[str], None]
    verb = "try"

    @property
    def what(self) -> str:
        return self.path

    def do(self) -> None:
        self.check(self.path)


@dataclass(frozen=True)
class Outcome:
    """A step that was taken, or is planned. `problem`: why it failed."""

    step: Step
    problem: str | None = None


def take_steps(steps: Iterable[Step], *, dry_run: bool) -> list[Outcome]:
    """Take the steps that are not done yet, in this order. Raises Refused for the first that fails."""
    outcomes = []
    for step in steps:
        if step.is_done():
            continue
        try:
            outcomes.append(Outcome(step, None if dry_run else step.do()))
        except OSError as error:
            raise Refused(f"cannot {step}: {error.strerror or error}; the steps after it were not taken") from error
    return outcomes


@contextmanager
def lock_directory(directory: str) -> Iterator[None]:
    """Keep other installs and uninstalls out of this directory. No lock if it does not exist."""
    try:
        descriptor = door.open_directory(directory)
    except FileNotFoundError:
        yield
        return
    try:
        if not system.try_flock(descriptor):
            raise Refused(f"another install or uninstall is running in {directory}; remedy: wait until it ends")
        yield
    finally:
        os.close(descriptor)


def format_outcomes(outcomes: Iterable[Outcome]) -> list[str]:
    """A line for each step, and one for its problem."""
    return [line for it in outcomes for line in (str(it.step), *([f"  failed: {it.problem}"] if it.problem else []))]


def to_json(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """The same as objects for JSON."""
    return [{"step": it.step.verb, "what": it.step.what, "problem": it.problem} for it in outcomes]


def _name_temporary(path: str) -> str:
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.new")


def _has_leftover(path: str) -> bool:
    """Whether a step that was killed left its temporary file."""
    return os.path.lexists(_name_temporary(path))


def make_directory(path: str) -> None:
    """Make a directory and its parents, durably."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    make_directory(above)
    with suppress(FileExistsError):
        os.mkdir(path, 0o755)
    files.sync_directory(above)
