# SPDX-License-Identifier: Apache-2.0
"""The steps of install and uninstall; --dry-run prints them.

Each step replaces or removes one file at once and durably. A new file is first written under a temporary name, which
readers of hooks.d ignore (they read *.json only). After a crash the earlier steps are done, and no later one is begun.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from hook import system
from hook.install import bytecode
from hook.node import files, programs
from hook.node.paths import INSTALL, NAME, Places, PyzFile, find_origin


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


class Step(NamedTuple):
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
    what = f"{path} -> {target}"
    return _replace("link", what, path, lambda it: os.symlink(target, it), lambda: os.readlink(path) == target)


def _replace(verb: str, what: str, path: str, make: Callable[[str], None], is_right: Callable[[], bool]) -> Step:
    """Make a file under its temporary name, and rename it. `is_right`: whether it is there; may raise OSError."""

    def do() -> None:
        make_directories(os.path.dirname(path))
        with files.replace_file(path, _name_temporary(path)) as temporary:
            make(temporary)

    return Step(verb, what, do, lambda: not os.path.lexists(_name_temporary(path)) and bool(system.try_call(is_right)))


def remove_file(path: str) -> Step:
    """Remove a file or a link, and the temporary file of a step that was killed."""
    both = (path, _name_temporary(path))

    def do() -> None:
        for it in both:
            with suppress(FileNotFoundError):
                os.unlink(it)
                files.sync_directory(os.path.dirname(it))

    return Step("remove", path, do, lambda: not any(map(os.path.lexists, both)))


def remove_unfinished(path: str) -> Step:
    """Remove the temporary file of a step that was killed before it wrote this file."""
    return remove_file(_name_temporary(path))


def make_directory(path: str, mode: int) -> Step:
    """Make a directory, and its parents. One that exists keeps its mode."""
    return Step("make", path, lambda: make_directories(path, mode), lambda: os.path.isdir(path))


def remove_directory(path: str) -> Step:
    """Remove a directory if it is empty."""
    return Step("remove", path, lambda: system.try_call(os.rmdir, path), lambda: not os.path.lexists(path))


def run_command(*command: str) -> Step:
    """Run a program of the system. Its failure is reported and does not stop later steps."""
    return Step("run", shlex.join(command), lambda: programs.run_program(command).problem)


def take_steps(steps: Iterable[Step], *, dry_run: bool, follow: Callable[[str], None] | None = None) -> Taken:
    """Take the steps that are not done yet, in this order. Raises Refused at the first that fails.

    `follow`: gets each step before it is taken.
    """
    taken: Taken = []
    for step in steps:
        if follow is not None:
            follow(str(step))
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
        descriptor = files.open_to_lock(directory)
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


# --- Bytecode that a node compiles for a program without bytecode for its Python, in a file next to the program
#
# A start checks this file (FROM_NODE in packaging/pyz/archive.py). If it is unusable, the program runs from its
# sources, which takes several times as long.


def plan_bytecode(program: str, pyz: PyzFile, python: programs.Interpreter) -> list[Step]:
    """Compile the program, unless it contains bytecode for this Python. Remove the bytecode for others.

    `pyz`: a file with the same sources as the program.
    """
    needed = [] if pyz.has_bytecode(python.magic) else [compile_program(program, pyz, python)]
    paths = {it.what for it in needed}
    return [*needed, *(remove_file(path) for path in list_bytecode(program) if path not in paths)]


def list_bytecode(program: str) -> list[str]:
    """The paths of a program's bytecode for all Pythons, also if only a killed step's temporary file exists."""
    directory, name = os.path.split(program)
    pattern = re.compile(rf"\.?({re.escape(name)}\.cpython-\w+)(\.new)?")
    found = filter(None, map(pattern.fullmatch, files.list_if_there(directory)))
    return sorted({f"{directory}/{it[1]}" for it in found})


def compile_program(program: str, pyz: PyzFile, python: programs.Interpreter) -> Step:
    """Compile a program. A failure stops nothing, because the program also runs from sources."""
    path = f"{program}.{python.tag}"

    def do() -> str | None:
        try:
            with tempfile.NamedTemporaryFile(suffix=".pyz") as copy:  # the program may be replaced meanwhile
                copy.write(pyz.data)
                copy.flush()
                ended = programs.run_program(bytecode.make_command(python.path, copy.name, copy.name))
            if ended.problem is not None:
                return f"cannot compile with {python.path}: {ended.problem}"
            write_file(path, bytecode.parse_answer(ended.output).make_file(pyz.build_id)).do()
        except OSError as error:
            return f"cannot write {path}: {error.strerror or error}"
        except (ValueError, TypeError, SyntaxError):
            return f"cannot compile with {python.path}: unexpected output"
        is_right = has_bytecode(program, pyz, python)
        return None if is_right else f"{python.path} compiled for another Python than {python.tag}"

    return Step("compile", path, do, lambda: has_bytecode(program, pyz, python))


def has_bytecode(program: str, pyz: PyzFile, python: programs.Interpreter) -> bool:
    """Whether a start of the program uses the bytecode beside it. `pyz`: see plan_bytecode."""
    path = f"{program}.{python.tag}"
    status, found = system.try_call(os.lstat, path), system.try_call(files.read_head, path, bytecode.HEADER_SIZE)
    if status is None or found is None:
        return False
    is_of_others = status.st_uid not in (0, system.user_id()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    expected = bytecode.make_header(0, pyz.build_id, python.magic, status.st_size)
    begin = expected.index(pyz.build_id)  # after the size of the first part
    return stat.S_ISREG(status.st_mode) and not is_of_others and found[begin:] == expected[begin:]
