# SPDX-License-Identifier: Apache-2.0
"""Compiles the program for one CPython: the loader, which the second line of the .pyz runs, and the modules after it.

The loader (hook/loader.py) is marshalled as one: its constants are the modules that the start of a container
imports, in the order of their imports, and the places of all other modules. Each of those follows, marshalled by
itself. The build puts the result into the .pyz (packaging/pyz/bytecode.py), a node into a file next to the program.
"""

from __future__ import annotations
import __future__

import ast
import importlib.util
import io
import itertools
import marshal
import os
import re
import stat
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

from hook import system
from hook.node import files

if TYPE_CHECKING:
    from hook.install.steps import Step
    from hook.node.programs import Interpreter

START = "hook.__main__"
"""The module whose start() runs the program."""
LOADER = "hook.loader"
EAGER, LATER = "MODULES", "PLACES"  # placeholders in the loader, for the modules and the places
HEADER_SIZE = 66
# The interpreter's options: isolated, so that the bytes depend only on its version and the sources.
_OPTIONS = ("-I", "-S", "-B", "-X", "utf8", "-X", "no_debug_ranges", "-c")
_CODE = "import sys; sys.path.insert(0, sys.argv[1]); from hook.install import bytecode; bytecode.print_bytecode()"


@dataclass(frozen=True)
class Bytecode:
    """The program as one interpreter compiled it."""

    tag: str
    magic: bytes
    version: tuple[int, ...]
    size: int  # bytes of the loader, the first part of the content
    content: bytes

    @property
    def entry(self) -> str:
        """Return its name in the zip."""
        return f"bytecode/{self.tag}"

    def make_file(self, build_id: bytes) -> bytes:
        """Return the content of the file on a node: a header that names the build and the Python, and the bytecode."""
        return make_header(self.size, build_id, self.magic, HEADER_SIZE + len(self.content)) + self.content


def make_header(size: int, build_id: bytes, magic: bytes, file_size: int) -> bytes:
    """Return HEADER_SIZE bytes in marshal's version 2, which every Python reads (FROM_NODE in packaging/pyz)."""
    return marshal.dumps((size, (build_id, magic, file_size)), 2)


def make_command(interpreter: str, compiler: str, program: str) -> list[str]:
    """Return the command that compiles the modules in the .pyz `program`.

    `compiler` is that .pyz, or a directory with hook/.
    """
    return [interpreter, *_OPTIONS, _CODE, compiler, program]


def parse_answer(output: str) -> Bytecode:
    """Parse the output of make_command's command. Raises ValueError, TypeError or SyntaxError for any other output."""
    return Bytecode(*ast.literal_eval(output))


# --- In the compiling interpreter


def print_bytecode() -> None:
    """Compile the modules and print the result; make_command's command calls this."""
    with zipfile.ZipFile(sys.argv[2]) as file:
        names = [name for name in file.namelist() if name.endswith(".py") and "/" in name]
        size, content = make({name: file.read(name).decode() for name in names})
    print((sys.implementation.cache_tag, importlib.util.MAGIC_NUMBER, sys.version_info[:3], size, content))


def make(texts: Mapping[str, str]) -> tuple[int, bytes]:
    """Compile modules; returns the loader's size and all bytes. `texts` has the sources by their path in the zip."""
    trees = {module_name(path): ast.parse(text, path) for path, text in texts.items()}
    codes = {name: _code(tree, path) for path, (name, tree) in zip(texts, trees.items())}
    eager = find_imports(trees, START)
    later = {name: _stable(code) for name, code in codes.items() if name not in (*eager, LOADER)}
    ends = itertools.accumulate(map(len, later.values()))
    places = {name: (end - len(code), len(code)) for (name, code), end in zip(later.items(), ends)}
    constants: dict[object, Any] = {EAGER: tuple((name, codes[name]) for name in eager), LATER: places}
    loader = codes[LOADER]
    first = _stable(loader.replace(co_consts=tuple(constants.get(name, name) for name in loader.co_consts)))
    return len(first), first + b"".join(later.values())


def module_name(path: str) -> str:
    """Return the import name of a path in the zip, such as `hook.node` for `hook/node/__init__.py`."""
    name = path[: -len(".py")].replace("/", ".")
    return name[: -len(".__init__")] if name.endswith(".__init__") else name


def find_imports(trees: Mapping[str, ast.Module], start: str) -> list[str]:
    """Return our modules that the import of `start` imports, each after its own imports, and `start` last."""
    found: list[str] = []
    waiting: set[str] = set()

    def add(name: str) -> None:
        if name in trees and name not in waiting:
            waiting.add(name)
            add(name.rpartition(".")[0])
            for imported in _imports(trees[name].body):
                add(imported)
            found.append(name)

    add(start)
    return found


def _imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Return the modules that statements import when they run, without those for type checkers only."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not isinstance(node, ast.FunctionDef) and not _is_for_checkers(node):
            yield from _imports(ast.iter_child_nodes(node))


def _is_for_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


class _Bare(ast.NodeTransformer):
    """Drops code for type checkers, and annotations except those of classes, which dataclasses need."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> Any:  # noqa: ANN401  one node or more
        self.generic_visit(node)
        return node.orelse if _is_for_checkers(node) else node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if node.module == "__future__" else node


def _code(tree: ast.Module, path: str) -> CodeType:
    """Compile a module without assertions and docstrings, as with -OO."""
    flags = __future__.annotations.compiler_flag
    found: CodeType = compile(_Bare().visit(tree), path, "exec", flags, dont_inherit=True, optimize=2)
    return found


def _stable(code: Any) -> bytes:  # noqa: ANN401  all that marshal takes
    """Marshal code objects reproducibly: their copy is marshalled, since reference marks depend on other users."""
    return marshal.dumps(marshal.loads(marshal.dumps(code)))  # noqa: S302  our own


# --- The .pyz as a file: its interpreter, and the files in it that `install` copies

# As in packaging/pyz: how much the kernel reads of the first line, since Linux 5.1 and before.
_LONGEST_LINE = 255
_LONGEST_OLD_LINE = 127
_LIMIT = 64 << 20  # bytes: twenty times as many as it has
_FOR_PEOPLE = b"if atexit."  # begins the part of that line which kernels before 5.1 do not see
_PROGRAM, _DOCSTRING = "hook/__init__.py", b'"""resctrl-mon-hook:'


class PyzFile:
    """A .pyz of this project. Raises ValueError for any other file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.data = files.read(path, _LIMIT)
        try:
            with zipfile.ZipFile(io.BytesIO(self.data)) as archive:
                self._entries = {name: archive.read(name) for name in archive.namelist()}
        except zipfile.BadZipFile as error:
            raise ValueError(f"{path} is not a .pyz: {error}") from None
        if not self.data.startswith(b"#!/") or _DOCSTRING not in self._entries.get(_PROGRAM, b""):
            raise ValueError(f"{path} is not a .pyz of resctrl-mon-hook")
        self._first_line = self.data[: self.data.index(b"\n") + 1]
        # the interpreter in its first line
        self.python = self._first_line[2:].partition(b" ")[0].decode("utf-8", "surrogateescape")
        # the digest of its sources
        self.build_id = self._entries.get("bytecode/build-id", b"")

    def with_python(self, python: str) -> bytes:
        """Return its bytes with another interpreter. Raises ValueError for a path that the kernel rejects.

        The rest is unchanged: neither the zip nor the second line has offsets from the start of the file.
        """
        if not python.startswith("/") or len(python.split()) != 1 or not (python.isprintable() and python.isascii()):
            raise ValueError(f"must be an absolute path without blanks, not {python!r}")
        line = self._first_line
        boot, begin, rest = line[line.index(b" ") :].partition(_FOR_PEOPLE)
        changed = (b"#!" + python.encode("ascii") + boot.rstrip(b" ")).ljust(_LONGEST_OLD_LINE) + begin + rest
        if len(changed) > _LONGEST_LINE:
            limit = f"and the kernel reads {_LONGEST_LINE}"
            raise ValueError(f"too long: the first line would have {len(changed)} bytes, {limit}")
        return changed + self.data[len(line) :]

    def has_bytecode(self, magic: bytes) -> bool:
        """Return whether it has bytecode for a Python. `magic` is that Python's importlib.util.MAGIC_NUMBER."""
        end_of_second_line = self.data.index(b"\n", len(self._first_line))
        return magic in marshal.loads(self.data[end_of_second_line + 1 :])  # noqa: S302  as trusted as the program

    def text(self, name: str) -> str:
        """Return the text of a file of the repository in it."""
        return self._entries[name].decode()


# --- On a node: bytecode for its Python, in a file next to a program that contains none
#
# A start checks this file (FROM_NODE in packaging/pyz/archive.py). If it is unusable, the program runs from its
# sources, which takes several times as long. The compiling interpreter may lack pydantic, which `steps` needs.


def plan_bytecode(program: str, pyz: PyzFile, python: Interpreter) -> list[Step]:
    """Compile the program, unless it contains bytecode for this Python, and remove the bytecode for others.

    `pyz` is a file with the same sources as the program.
    """
    from hook.install.steps import remove_file

    needed = [] if pyz.has_bytecode(python.magic) else [compile_program(program, pyz, python)]
    paths = {step.what for step in needed}
    return [*needed, *(remove_file(path) for path in list_bytecode(program) if path not in paths)]


def list_bytecode(program: str) -> list[str]:
    """Return the paths of a program's bytecode for all Pythons, also if only a killed step's temporary file exists."""
    directory, name = os.path.split(program)
    pattern = re.compile(rf"\.?({re.escape(name)}\.cpython-\w+)(\.new)?")
    found = filter(None, map(pattern.fullmatch, files.list_if_there(directory)))
    return sorted({f"{directory}/{match[1]}" for match in found})


def compile_program(program: str, pyz: PyzFile, python: Interpreter) -> Step:
    """Compile a program. A failure stops nothing, because the program also runs from sources."""
    from hook.install.steps import Step, write_file
    from hook.node.programs import run_program

    path = f"{program}.{python.tag}"

    def do() -> str | None:
        try:
            with tempfile.NamedTemporaryFile(suffix=".pyz") as copy:  # another install may replace the program now
                copy.write(pyz.data)
                copy.flush()
                ended = run_program(make_command(python.path, copy.name, copy.name))
            if ended.problem is not None:
                return f"cannot compile with {python.path}: {ended.problem}"
            write_file(path, parse_answer(ended.output).make_file(pyz.build_id)).do()
        except OSError as error:
            return f"cannot write {path}: {error.strerror or error}"
        except (ValueError, TypeError, SyntaxError):
            return f"cannot compile with {python.path}: unexpected output"
        is_right = has_bytecode(program, pyz, python)
        return None if is_right else f"{python.path} compiled for another Python than {python.tag}"

    return Step("compile", path, do, lambda: has_bytecode(program, pyz, python))


def has_bytecode(program: str, pyz: PyzFile, python: Interpreter) -> bool:
    """Return whether a start of the program uses the bytecode beside it. `pyz` is as for plan_bytecode."""
    path = f"{program}.{python.tag}"
    status, found = system.try_call(os.lstat, path), system.try_call(files.read_head, path, HEADER_SIZE)
    if status is None or found is None:
        return False
    is_of_others = status.st_uid not in (0, system.user_id()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    expected = make_header(0, pyz.build_id, python.magic, status.st_size)
    begin = expected.index(pyz.build_id)  # after the size of the first part
    return stat.S_ISREG(status.st_mode) and not is_of_others and found[begin:] == expected[begin:]
