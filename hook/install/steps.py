# SPDX-License-Identifier: Apache-2.0
"""The steps of install and uninstall; --dry-run prints them.

Each step replaces or removes one file at once and durably. A new file is first written under a temporary name, which
readers of hooks.d ignore (they read *.json only). After a crash the earlier steps are done, and no later one is begun.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from hook import system
from hook.node import files, programs


class Refused(Exception):
    """The command was refused, or stopped. `problems` has the reasons, each with its remedy."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class Step(NamedTuple):
    """One change, which `verb` and `what` describe."""

    verb: str
    what: str
    # makes the change; returns a problem that does not stop later steps, or raises Refused or OSError, which do
    do: Callable[[], str | None]
    # returns whether the change is already in place
    is_done: Callable[[], bool] = lambda: False

    def __str__(self) -> str:
        return f"{self.verb} {self.what}"


Taken = list[tuple[Step, "str | None"]]
"""Steps that were taken, or are planned, each with the problem that it met."""


def write_file(path: str, content: bytes, mode: int = 0o644, check: Callable[[str], None] | None = None) -> Step:
    """Write a file. Before it replaces an old one, `check` gets its temporary path and may raise Refused."""

    def make(temporary: str) -> None:
        files.write_durably(temporary, content, mode)
        if check is not None and os.path.lexists(path):
            check(temporary)

    def is_right() -> bool:
        found = os.lstat(path).st_mode
        return stat.S_ISREG(found) and stat.S_IMODE(found) == mode and files.read(path, len(content)) == content

    return _replace("write", path, path, make, is_right)


def make_link(path: str, target: str) -> Step:
    """Make a symbolic link."""
    what, is_right = f"{path} -> {target}", lambda: os.readlink(path) == target
    return _replace("link", what, path, lambda temporary: os.symlink(target, temporary), is_right)


def _replace(verb: str, what: str, path: str, make: Callable[[str], None], is_right: Callable[[], bool]) -> Step:
    """Make a file under its temporary name, and rename it. `is_right` says whether it is there, or raises OSError."""

    def do() -> None:
        make_directories(os.path.dirname(path))
        with files.replace_file(path, _name_temporary(path)) as temporary:
            make(temporary)

    return Step(verb, what, do, lambda: not os.path.lexists(_name_temporary(path)) and bool(system.try_call(is_right)))


def remove_file(path: str) -> Step:
    """Remove a file or a link, and the temporary file of a step that was killed."""
    both = (path, _name_temporary(path))

    def do() -> None:
        for name in both:
            with suppress(FileNotFoundError):
                os.unlink(name)
                files.sync_directory(os.path.dirname(name))

    return Step("remove", path, do, lambda: not any(map(os.path.lexists, both)))


def make_directory(path: str, mode: int) -> Step:
    """Make a directory, and its parents. One that exists keeps its mode."""
    return Step("make", path, lambda: make_directories(path, mode), lambda: os.path.isdir(path))


def remove_directory(path: str) -> Step:
    """Remove a directory if it is empty."""

    def is_done() -> bool:
        return not os.path.isdir(path) or bool(files.list_if_there(path))

    return Step("remove", path, lambda: system.try_call(os.rmdir, path), is_done)


def run_command(*command: str) -> Step:
    """Run a program of the system. Its failure is reported and does not stop later steps."""
    return Step("run", shlex.join(command), lambda: programs.run_program(command).problem)


def take_steps(steps: Iterable[Step], *, dry_run: bool) -> Taken:
    """Take the steps that are not done yet, in this order. Raises Refused at the first that fails."""
    taken: Taken = []
    for step in steps:
        if step.is_done():
            continue
        try:
            taken.append((step, None if dry_run else step.do()))
        except OSError as error:
            remedy = "the steps after it were not taken; remedy: run as root, or use --prefix=DIR if /usr is read-only"
            raise Refused(f"cannot {step}: {error.strerror or error}; {remedy}") from error
    return taken


@contextmanager
def lock_directories(*directories: str) -> Iterator[None]:
    """Keep other installs and uninstalls out of these directories. No lock is taken of one that does not exist."""
    opened: list[int] = []
    try:
        for directory in dict.fromkeys(map(os.path.realpath, directories)):
            with suppress(FileNotFoundError):
                opened.append(files.open_to_lock(directory))
                if not system.try_flock(opened[-1]):
                    problem = f"another install or uninstall is running in {directory}"
                    raise Refused(f"{problem}; remedy: wait until it ends")
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)


def format_steps(taken: Taken) -> list[str]:
    """Return a line for each step, and one for its problem."""
    return [line for step, problem in taken for line in (str(step), *([f"  failed: {problem}"] if problem else []))]


def make_directories(path: str, mode: int = 0o755) -> None:
    """Make a directory with this mode, and its parents, durably."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    make_directories(above)
    with suppress(FileExistsError):
        os.mkdir(path, mode)
    files.sync_directory(above)


def _name_temporary(path: str) -> str:
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.new")
