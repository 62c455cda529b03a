# SPDX-License-Identifier: Apache-2.0
"""Compiles the program for one CPython: the loader, which the second line of the .pyz runs, and the modules after it.

The loader (hook/loader.py) is marshalled as one: its constants are the modules that the start of a container
imports, in the order of their imports, and the places of all other modules. Each of those follows, marshalled by
itself. The build puts the result into the .pyz (packaging/pyz/bytecode.py), a node into a file (steps.py).
"""

from __future__ import annotations
import __future__

import ast
import importlib.util
import itertools
import marshal
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

START = "hook.entry"
"""The module whose start() runs the program."""
LOADER = "hook.loader"
EAGER, LATER = "MODULES", "PLACES"  # placeholders in the loader, for the modules and the places
HEADER_SIZE = 66
# The interpreter's options: isolated, so that the bytes depend only on its version and the sources.
_OPTIONS = ("-I", "-S", "-B", "-X", "utf8", "-X", "no_debug_ranges", "-c")
_CODE = "import sys; sys.path.insert(0, sys.argv[1]); from hook.install import bytecode; bytecode.print_bytecode()"


@dataclass(frozen=True)
class Bytecode:
    """The program as one interpreter compiled it. `size`: bytes of the loader, the first part of the content."""

    tag: str
    magic: bytes
    version: tuple[int, ...]
    size: int
    content: bytes

    @property
    def entry(self) -> str:
        """Its name in the zip."""
        return f"bytecode/{self.tag}"

    def make_file(self, build_id: bytes) -> bytes:
        """The content of the file on a node: a header, which names the build and the Python, and the bytecode."""
        return make_header(self.size, build_id, self.magic, HEADER_SIZE + len(self.content)) + self.content


def make_header(size: int, build_id: bytes, magic: bytes, file_size: int) -> bytes:
    """HEADER_SIZE bytes in marshal's version 2, which every Python reads: FROM_NODE in packaging/pyz/archive.py."""
    return marshal.dumps((size, (build_id, magic, file_size)), 2)


def make_command(interpreter: str, compiler: str, program: str) -> list[str]:
    """The command that compiles the modules in the .pyz `program`. `compiler`: that .pyz, or a directory with hook/."""
    return [interpreter, *_OPTIONS, _CODE, compiler, program]


def parse_answer(output: str) -> Bytecode:
    """Parse the output of make_command's command. ValueError, TypeError, SyntaxError: it printed something else."""
    return Bytecode(*ast.literal_eval(output))


# --- In the compiling interpreter


def print_bytecode() -> None:
    """Compile and print: the main function of make_command's command."""
    with zipfile.ZipFile(sys.argv[2]) as file:
        names = [name for name in file.namelist() if name.endswith(".py") and "/" in name]
        size, content = make({name: file.read(name).decode() for name in names})
    print((sys.implementation.cache_tag, importlib.util.MAGIC_NUMBER, sys.version_info[:3], size, content))


def make(texts: Mapping[str, str]) -> tuple[int, bytes]:
    """Compile the modules; returns the loader's size and all bytes. `texts`: sources by their path in the zip."""
    trees = {module_name(path): ast.parse(text, path) for path, text in texts.items()}
    codes = {name: _code(tree, path) for path, (name, tree) in zip(texts, trees.items())}
    eager = find_imports(trees, START)
    later = {name: _stable(code) for name, code in codes.items() if name not in (*eager, LOADER)}
    ends = itertools.accumulate(map(len, later.values()))
    places = {name: (end - len(code), len(code)) for (name, code), end in zip(later.items(), ends)}
    constants: dict[object, Any] = {EAGER: tuple((name, codes[name]) for name in eager), LATER: places}
    loader = codes[LOADER]
    first = _stable(loader.replace(co_consts=tuple(constants.get(it, it) for it in loader.co_consts)))
    return len(first), first + b"".join(later.values())


def module_name(path: str) -> str:
    """The import name of a path in the zip: `hook.node` for `hook/node/__init__.py`."""
    name = path[: -len(".py")].replace("/", ".")
    return name[: -len(".__init__")] if name.endswith(".__init__") else name


def find_imports(trees: Mapping[str, ast.Module], start: str) -> list[str]:
    """Our modules that the import of `start` imports, each after its own imports, and `start` last."""
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
    """The modules that statements import when they run, without those for type checkers only."""
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


def _stable(code: Any) -> bytes:  # noqa: ANN401  whatever marshal takes
    """Marshal code objects reproducibly: their copy is marshalled, since reference marks depend on other users."""
    return marshal.dumps(marshal.loads(marshal.dumps(code)))  # noqa: S302  our own
