"""Bytecode of the program for one CPython: what the second line of the .pyz runs, and the modules behind it.

The first part is marshalled as one: the loader, which has for constants all modules that the start of a container
imports, in the order of their imports, and the places of all others, each of which is marshalled by itself.
"""

from __future__ import annotations
import __future__

import ast
import base64
import importlib.util
import itertools
import json
import marshal
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pyz import ROOT, BuildError

if TYPE_CHECKING:
    from types import CodeType

START = "hook.stages.entry"
"""The module whose start() runs the program."""
LOADER = "hook.stages.loader"
EAGER, LATER = "MODULES", "PLACES"  # in the loader: what the build puts there
MINORS = range(9, 15)  # of the CPythons 3.x that the file is made for
# Alone, so that nothing but its version and the texts has a part in the bytes.
COMMAND = ("-I", "-S", "-B", "-X", "utf8", "-X", "no_debug_ranges", "-c")
CODE = "import sys; sys.path.insert(0, sys.argv[1]); from pyz import bytecode; bytecode.main()"


class Bytecode(NamedTuple):
    """The program as one interpreter compiled it. `size`: of the first part of the content."""

    tag: str
    magic: bytes
    version: tuple[int, ...]
    size: int
    content: bytes

    @property
    def entry(self) -> str:
        """Its name in the zip."""
        return f"bytecode/{self.tag}"


def compile_all(contents: Mapping[str, bytes], interpreters: Iterable[str]) -> list[Bytecode]:
    """The bytecode of the interpreters, in the order of their versions; of two of one version the first counts."""
    found: dict[str, Bytecode] = {}
    for interpreter in interpreters:
        bytecode = compile_by(interpreter, contents)
        found.setdefault(bytecode.tag, bytecode)
    return sorted(found.values(), key=lambda bytecode: bytecode.version)


def compile_by(interpreter: str, contents: Mapping[str, bytes]) -> Bytecode:
    """The bytecode that an interpreter makes of what the zip holds."""
    command = [interpreter, *COMMAND, CODE, str(ROOT / "packaging")]
    texts = {name: text.decode() for name, text in contents.items() if name.endswith(".py") and "/" in name}
    try:
        done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
        raise BuildError(f"{interpreter} cannot compile: {said}") from error
    tag, magic, version, size, content = json.loads(done.stdout)
    return Bytecode(tag, base64.b64decode(magic), tuple(version), size, base64.b64decode(content))


def find_interpreters() -> list[str]:
    """The interpreters that a plain build compiles by."""
    named = [shutil.which(f"python3.{minor}", path=f"{os.environ.get('PATH', '')}:/usr/bin") for minor in MINORS]
    return [path for path in named if path and _works(path)] + [sys.executable]


def _works(path: str) -> bool:
    """Whether it starts at all: what PATH offers may be a shim for a version that is not there."""
    try:
        return subprocess.run([path, "-ISc", ""], capture_output=True, check=False, timeout=60).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


# --- What each interpreter does


def main() -> None:
    """The texts on stdin become code objects on stdout."""
    size, content = make(json.load(sys.stdin))
    magic, code = (base64.b64encode(it).decode() for it in (importlib.util.MAGIC_NUMBER, content))
    print(json.dumps([sys.implementation.cache_tag, magic, list(sys.version_info[:3]), size, code]))


def make(texts: Mapping[str, str]) -> tuple[int, bytes]:
    """The size of the first part, and all parts. `texts`: by path, as in the zip."""
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
    """The name that imports give the module of a path in the zip."""
    name = path[: -len(".py")].replace("/", ".")
    return name[: -len(".__init__")] if name.endswith(".__init__") else name


def find_imports(trees: Mapping[str, ast.Module], start: str) -> list[str]:
    """The modules of ours that are imported with `start`, which is the last; each behind what it imports."""
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
    """What statements import as soon as they run, but for what is for type checkers."""
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
    """Drops annotations, but for those of classes, which dataclasses are made by, and what is for type checkers."""

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
    """The code of a module, which has no assertions and no docstrings: -OO."""
    flags = __future__.annotations.compiler_flag
    found: CodeType = compile(_Bare().visit(tree), path, "exec", flags, dont_inherit=True, optimize=2)
    return found


def _stable(code: Any) -> bytes:  # noqa: ANN401  whatever marshal takes
    """Bytes of code objects. They are unmarshalled first: the marks of references depend on who else held a string."""
    return marshal.dumps(marshal.loads(marshal.dumps(code)))  # noqa: S302  our own
