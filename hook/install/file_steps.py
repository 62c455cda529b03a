"""What install and uninstall do to the file system: steps that can be told before they are done.

Each puts one whole thing in its place, or takes it away, durably and at once: it is written beside its place under a
name that no reader of hooks.d takes (they read *.json alone), brought to the disk, and renamed. So between any two
steps, and after a loss of power, what earlier ones did is there, and of later ones nothing.
"""

from __future__ import annotations

import os
import shlex
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from hook.base import system
from hook.host import files, programs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any


class Refused(Exception):
    """What is not going to be done, and why, each with its remedy."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class Step:
    """Something that is to be done. `verb` and `what` tell it to people, `is_done` whether nothing is left to do."""

    verb = ""

    @property
    def what(self) -> str:
        raise NotImplementedError

    def is_done(self) -> bool:
        return False

    def do(self) -> str | None:
        """Do it; returns what went wrong, if that is to stop nothing. Raises Refused, OSError."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.verb} {self.what}"


@dataclass(frozen=True)
class Write(Step):
    """A file with this content. `proven` is given its path beside its place, where that is taken: it may refuse."""

    path: str
    content: bytes
    mode: int = 0o644
    proven: Callable[[str], None] | None = None
    verb = "write"

    @property
    def what(self) -> str:
        return self.path

    def is_done(self) -> bool:
        try:
            found = os.lstat(self.path)
            if not stat.S_ISREG(found.st_mode) or stat.S_IMODE(found.st_mode) != self.mode or _is_half_done(self.path):
                return False
            with open(self.path, "rb") as file:
                return file.read() == self.content
        except OSError:
            return False

    def do(self) -> None:
        make_directory(os.path.dirname(self.path))
        with files.replace(self.path, _temporary(self.path)) as temporary:
            files.write_new(temporary, self.content, self.mode)
            if self.proven is not None and os.path.lexists(self.path):
                self.proven(temporary)


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
        return is_there and not _is_half_done(self.path)

    def do(self) -> None:
        make_directory(os.path.dirname(self.path))
        with files.replace(self.path, _temporary(self.path)) as temporary:
            os.symlink(self.target, temporary)


@dataclass(frozen=True)
class Remove(Step):
    """A file or a link that is not to be there."""

    path: str
    verb = "remove"

    @property
    def what(self) -> str:
        return self.path

    def is_done(self) -> bool:
        return not os.path.lexists(self.path) and not _is_half_done(self.path)

    def do(self) -> None:
        """What a step that was killed left beside it goes, too."""
        for path in (self.path, _temporary(self.path)):
            with suppress(FileNotFoundError):
                os.unlink(path)
                files.sync_directory(os.path.dirname(path))


@dataclass(frozen=True)
class RemoveDirectory(Remove):
    """A directory that is not to be there, unless something is in it."""

    def do(self) -> None:
        with suppress(OSError):
            os.rmdir(self.path)


@dataclass(frozen=True)
class Run(Step):
    """A program of the system's, whose failure is told and stops nothing."""

    command: tuple[str, ...]
    verb = "run"

    @property
    def what(self) -> str:
        return shlex.join(self.command)

    def do(self) -> str | None:
        return programs.run(list(self.command)).problem


@dataclass(frozen=True)
class Try(Step):
    """A look whether what is in place works, which may refuse."""

    path: str
    proven: Callable[[str], None]
    verb = "try"

    @property
    def what(self) -> str:
        return self.path

    def do(self) -> None:
        self.proven(self.path)


@dataclass(frozen=True)
class Outcome:
    """What became of a step: `problem` is what went wrong with it."""

    step: Step
    problem: str | None = None


def take(steps: Iterable[Step], *, dry_run: bool) -> list[Outcome]:
    """Do, in this order, what is not done yet. Raises Refused with the first that cannot be done."""
    outcomes = []
    for step in steps:
        if step.is_done():
            continue
        try:
            outcomes.append(Outcome(step, None if dry_run else step.do()))
        except OSError as error:
            raise Refused(f"{step}: {error.strerror or error}; nothing after it was done") from error
    return outcomes


@contextmanager
def alone(directory: str) -> Iterator[None]:
    """While no other install or uninstall works with this directory. Nobody has begun where it is not there."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        yield
        return
    try:
        if not system.try_flock(descriptor):
            raise Refused(f"another install or uninstall is at work on {directory}; remedy: wait for it")
        yield
    finally:
        os.close(descriptor)


def told(outcomes: Iterable[Outcome]) -> list[str]:
    """A line on each step, and on each problem."""
    return [line for it in outcomes for line in (str(it.step), *([f"  failed: {it.problem}"] if it.problem else []))]


def objects(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [{"step": it.step.verb, "what": it.step.what, "problem": it.problem} for it in outcomes]


def _temporary(path: str) -> str:
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.new")


def _is_half_done(path: str) -> bool:
    """Whether a step that was killed left something beside a place."""
    return os.path.lexists(_temporary(path))


def make_directory(path: str) -> None:
    """Make a directory and those above it, durably."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    make_directory(above)
    with suppress(FileExistsError):
        os.mkdir(path, 0o755)
    files.sync_directory(above)
