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
from dataclasses import dataclass
from typing import Any

from hook.base import system
from hook.node import door, programs
from hook.node.place import INSTALL, NAME, Places, find_origin


class Refused(Exception):
    """The command was refused, or stopped. `problems`: the reasons, each with its remedy."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def refuse_others(places: Places) -> None:
    """Raise Refused if an installation has another owner than `install`."""
    found = find_origin(places)
    if found is not INSTALL:
        raise Refused(f"{NAME} was installed by {found.name}; remedy: {found.away} first, or --force")


@dataclass(frozen=True)
class Step:
    """One change. `verb` and `what` describe it; `is_done`: whether it is already in place.

    `do` makes it. It returns a problem that does not stop later steps, or raises Refused or OSError, which do.
    """

    verb: str
    what: str
    do: Callable[[], str | None]
    is_done: Callable[[], bool] = lambda: False

    def __str__(self) -> str:
        return f"{self.verb} {self.what}"


Taken = list[tuple[Step, "str | None"]]
"""Steps that were taken, or are planned, each with the problem that it met."""


def write_file(path: str, content: bytes, mode: int = 0o644, check: Callable[[str], None] | None = None) -> Step:
    """Write a file. Before it replaces an old one, `check` gets its temporary path and may raise Refused."""

    def do() -> None:
        with _replace(path) as temporary:
            door.write_durably(temporary, content, mode)
            if check is not None and os.path.lexists(path):
                check(temporary)

    def is_done() -> bool:
        try:
            found = os.lstat(path)
            is_right = stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) == mode and not _has_leftover(path)
            return is_right and door.read(path, len(content)) == content
        except OSError:
            return False

    return Step("write", path, do, is_done)


def make_link(path: str, target: str) -> Step:
    """Make a symbolic link."""

    def do() -> None:
        with _replace(path) as temporary:
            os.symlink(target, temporary)

    def is_done() -> bool:
        return os.path.islink(path) and os.readlink(path) == target and not _has_leftover(path)

    return Step("link", f"{path} -> {target}", do, is_done)


def remove_file(path: str) -> Step:
    """Remove a file or a link, and the temporary file of a step that was killed."""
    both = (path, _name_temporary(path))

    def do() -> None:
        for it in both:
            with suppress(FileNotFoundError):
                os.unlink(it)
                door.sync_directory(os.path.dirname(it))

    return Step("remove", path, do, lambda: not any(map(os.path.lexists, both)))


def remove_directory(path: str) -> Step:
    """Remove a directory if it is empty."""

    def do() -> None:
        with suppress(OSError):
            os.rmdir(path)

    return Step("remove", path, do, lambda: not os.path.lexists(path))


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
            raise Refused(f"cannot {step}: {error.strerror or error}; the steps after it were not taken") from error
    return taken


@contextmanager
def lock_directory(directory: str) -> Iterator[None]:
    """Keep other installs and uninstalls out of this directory. No lock if it does not exist."""
    try:
        descriptor = door.open_to_lock(directory)
    except FileNotFoundError:
        yield
        return
    try:
        if not system.try_flock(descriptor):
            raise Refused(f"another install or uninstall is running in {directory}; remedy: wait until it ends")
        yield
    finally:
        os.close(descriptor)


def format_steps(taken: Taken) -> list[str]:
    """A line for each step, and one for its problem."""
    return [line for step, problem in taken for line in (str(step), *([f"  failed: {problem}"] if problem else []))]


def steps_to_json(taken: Taken) -> list[dict[str, Any]]:
    """The objects that `install --json` and `uninstall --json` print for steps."""
    return [{"step": step.verb, "what": step.what, "problem": problem} for step, problem in taken]


def make_directory(path: str) -> None:
    """Make a directory and its parents, durably."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    make_directory(above)
    with suppress(FileExistsError):
        os.mkdir(path, 0o755)
    door.sync_directory(above)


@contextmanager
def _replace(path: str) -> Iterator[str]:
    """Yield the temporary name at which to make the new content of a file."""
    make_directory(os.path.dirname(path))
    with door.replace_file(path, _name_temporary(path)) as temporary:
        yield temporary


def _name_temporary(path: str) -> str:
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.new")


def _has_leftover(path: str) -> bool:
    """Whether a step that was killed left its temporary file."""
    return os.path.lexists(_name_temporary(path))
