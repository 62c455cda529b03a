# SPDX-License-Identifier: Apache-2.0
"""Bytecode that a node compiles for a program without bytecode for its Python, in a file next to the program.

A start checks this file (FROM_NODE in packaging/pyz/archive.py). If it is unusable, the program runs from its sources,
which takes several times as long.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from dataclasses import dataclass

from hook.base import system
from hook.install import bytecode
from hook.install.file_steps import Remove, Step, Write
from hook.node import door, programs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.node.machine import Interpreter
    from hook.node.pyz_file import PyzFile

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def list_files(program: str) -> list[str]:
    """The bytecode of a program for any Python; also if only the temporary file of a step that was killed exists."""
    directory, name = os.path.split(program)
    pattern = re.compile(rf"\.?({re.escape(name)}\.cpython-\w+)(\.new)?")
    found = [pattern.fullmatch(it) for it in (door.list_names(directory) if os.path.isdir(directory) else ())]
    return sorted({f"{directory}/{it[1]}" for it in found if it})


def plan(program: str, pyz: PyzFile, python: Interpreter) -> list[Step]:
    """Compile the program, unless it contains bytecode for this Python. Remove the bytecode for others.

    `pyz`: a file with the same sources as the program.
    """
    needed = [] if pyz.has_bytecode(python.magic) else [Compile(program, pyz, python)]
    paths = {it.what for it in needed}
    return [*needed, *(Remove(path) for path in list_files(program) if path not in paths)]


def is_current(program: str, pyz: PyzFile, python: Interpreter) -> bool:
    """Whether a start of the program uses its bytecode. `pyz`: see plan."""
    return Compile(program, pyz, python).is_done()


@dataclass(frozen=True)
class Compile(Step):
    """Compile a program. A failure stops nothing, because the program also runs from sources."""

    program: str
    pyz: PyzFile
    python: Interpreter
    verb = "compile"

    @property
    def what(self) -> str:
        return f"{self.program}.{self.python.tag}"

    def is_done(self) -> bool:
        try:
            status = os.lstat(self.what)
            if not stat.S_ISREG(status.st_mode) or status.st_mode & _WRITABLE_BY_OTHERS:
                return False
            found = door.read_head(self.what, bytecode.HEADER_SIZE)
        except OSError:
            return False
        expected = bytecode.make_header(0, self.pyz.build_id, self.python.magic, status.st_size)
        begin = expected.index(self.pyz.build_id)  # after the size of the first part
        return status.st_uid in (0, system.user_id()) and found[begin:] == expected[begin:]

    def do(self) -> str | None:
        try:
            with tempfile.NamedTemporaryFile(suffix=".pyz") as copy:  # the program may be replaced meanwhile
                copy.write(self.pyz.data)
                copy.flush()
                ended = programs.run(bytecode.make_command(self.python.path, copy.name))
            if ended.problem is not None:
                return f"cannot compile with {self.python.path}: {ended.problem}"
            Write(self.what, bytecode.parse_answer(ended.output).make_file(self.pyz.build_id)).do()
        except OSError as error:
            return f"cannot write {self.what}: {error.strerror or error}"
        except (ValueError, TypeError):
            return f"cannot compile with {self.python.path}: unexpected output"
        return None if self.is_done() else f"{self.python.path} compiled for another Python than {self.python.tag}"
