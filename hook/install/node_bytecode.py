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

from hook.base import system
from hook.install import bytecode
from hook.install.steps import Step, remove_file, write_file
from hook.node import door, programs
from hook.node.place import PyzFile
from hook.node.programs import Interpreter

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def list_files(program: str) -> list[str]:
    """The paths of a program's bytecode for all Pythons, also if only a killed step's temporary file exists."""
    directory, name = os.path.split(program)
    pattern = re.compile(rf"\.?({re.escape(name)}\.cpython-\w+)(\.new)?")
    found = [pattern.fullmatch(it) for it in (door.list_names(directory) if os.path.isdir(directory) else ())]
    return sorted({f"{directory}/{it[1]}" for it in found if it})


def plan_bytecode(program: str, pyz: PyzFile, python: Interpreter) -> list[Step]:
    """Compile the program, unless it contains bytecode for this Python. Remove the bytecode for others.

    `pyz`: a file with the same sources as the program.
    """
    needed = [] if pyz.has_bytecode(python.magic) else [compile_program(program, pyz, python)]
    paths = {it.what for it in needed}
    return [*needed, *(remove_file(path) for path in list_files(program) if path not in paths)]


def compile_program(program: str, pyz: PyzFile, python: Interpreter) -> Step:
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
        is_right = is_current(program, pyz, python)
        return None if is_right else f"{python.path} compiled for another Python than {python.tag}"

    return Step("compile", path, do, lambda: is_current(program, pyz, python))


def is_current(program: str, pyz: PyzFile, python: Interpreter) -> bool:
    """Whether a start of the program uses the bytecode beside it. `pyz`: see plan_bytecode."""
    path = f"{program}.{python.tag}"
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & _WRITABLE_BY_OTHERS:
            return False
        found = door.read_head(path, bytecode.HEADER_SIZE)
    except OSError:
        return False
    expected = bytecode.make_header(0, pyz.build_id, python.magic, status.st_size)
    begin = expected.index(pyz.build_id)  # after the size of the first part
    return status.st_uid in (0, system.user_id()) and found[begin:] == expected[begin:]
