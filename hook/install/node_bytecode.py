"""Bytecode that a node makes of a program which has none for its Python: a file beside it, that its start looks for.

The start checks that file before it runs it (FROM_NODE in packaging/pyz/archive.py), and otherwise runs from the
sources, which takes several times as long.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass

from hook.base import system
from hook.host import machine
from hook.install import bytecode
from hook.install.file_steps import Remove, Step, Write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.host.machine import Interpreter
    from hook.host.pyz_file import Shipped

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def path_of(program: str, python: Interpreter) -> str:
    """Where the start of a program looks for its bytecode."""
    return f"{program}.{python.tag}"


def files_of(program: str) -> list[str]:
    """All bytecode that is there of a program, by whatever Python, and what a step that was killed left of it."""
    directory, name = os.path.split(program)
    pattern = re.compile(rf"\.?({re.escape(name)}\.cpython-\w+)(\.new)?")
    found = [pattern.fullmatch(it) for it in (os.listdir(directory) if os.path.isdir(directory) else ())]
    return sorted({f"{directory}/{it[1]}" for it in found if it})


def is_current(program: str, shipped: Shipped, python: Interpreter) -> bool:
    """Whether the start of a program runs the file: it is whole, of these sources, by this Python, and root's or ours.

    `shipped`: the program.
    """
    path = path_of(program, python)
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & _OTHERS_WRITE:
            return False
        with open(path, "rb") as file:
            found = file.read(bytecode.HEADER_SIZE)
    except OSError:
        return False
    expected = bytecode.header(0, shipped.build_id, python.magic, status.st_size)
    begin = expected.index(shipped.build_id)  # whatever the first part's size
    return status.st_uid in (0, system.user_id()) and found[begin:] == expected[begin:]


def steps(program: str, shipped: Shipped, python: Interpreter) -> list[Step]:
    """What makes the file, unless the program has bytecode for this Python, and removes what others left."""
    path = path_of(program, python)
    unwanted = [it for it in files_of(program) if it != path or shipped.has_bytecode(python.magic)]
    needed = [] if shipped.has_bytecode(python.magic) else [Compile(program, shipped, python)]
    return [*needed, *map(Remove, unwanted)]


@dataclass(frozen=True)
class Compile(Step):
    """The file of bytecode of a program. Without it the program runs all the same."""

    program: str
    shipped: Shipped
    python: Interpreter
    verb = "compile"

    @property
    def what(self) -> str:
        return path_of(self.program, self.python)

    def is_done(self) -> bool:
        return is_current(self.program, self.shipped, self.python)

    def do(self) -> str | None:
        command = bytecode.command(self.python.path, os.path.abspath(self.shipped.path))
        ended = machine.run(command, stdin=bytecode.write_request(self.shipped.entries))
        if ended.problem is not None:
            return f"{self.python.path}: {ended.problem}"
        try:
            Write(self.what, bytecode.read_answer(ended.output).file(self.shipped.build_id)).do()
        except OSError as error:
            return f"{self.what}: {error.strerror or error}"
        except (ValueError, TypeError):
            return f"{self.python.path} does not compile"
        return None if self.is_done() else f"{self.python.path} compiles for another Python than {self.python.tag}"
