# SPDX-License-Identifier: Apache-2.0
"""Compiles the program for the .pyz by each CPython found: the loader,
which its second line runs, and the modules.

The loader (loader.py) is marshalled as one: its constants are the modules that the start of a
container imports, in the order of their imports, and the places of all other modules. Each of those
follows, marshalled by itself; those of STAGES with the modules that only they need.
"""

from __future__ import annotations
import __future__

import ast
import importlib.util
import itertools
import marshal
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from pyz import ROOT, BuildError

START = "hook.__main__"
"""The module whose start() runs the program."""
LOADER = Path(__file__).with_name("loader.py")
STAGES = ("hook.create", "hook.poststop", "hook.ending")
"""A start imports the first, an end the second, and one with a history the third.

With the modules that no earlier one has made each is one code: to read several takes longer.
"""
EAGER, LATER = "MODULES", "PLACES"  # placeholders in the loader, for the modules and the places
LAST = "LAST"  # and in a bundle, for its last module
BUNDLE = """\
import sys
for _name, _code in "MODULES":
    if _name not in sys.modules:
        _made = sys.modules[_name] = type(sys)(_name)
        exec(_code, _made.__dict__)
        setattr(sys.modules["hook"], _name.rpartition(".")[2], _made)
exec("LAST", globals())
"""
# The interpreter's options: isolated, so that the bytes depend only on its version and the sources.
_OPTIONS = ("-I", "-S", "-B", "-X", "utf8", "-X", "no_debug_ranges", "-c")
_CODE = (
    "import sys; sys.path.insert(0, sys.argv[1]); from pyz import bytecode; "
    "bytecode.print_bytecode()"
)
MINORS = range(9, 15)  # of the CPythons 3.x that the file is made for


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


def make_command(interpreter: str, program: str) -> list[str]:
    """Return the command that compiles the modules in the .pyz `program`."""
    return [interpreter, *_OPTIONS, _CODE, str(ROOT / "packaging"), program]


def parse_answer(output: str) -> Bytecode:
    """Parse the output of make_command's command.

    Raises ValueError, TypeError or SyntaxError for any other output.
    """
    return Bytecode(*ast.literal_eval(output))


def compile_all(contents: Mapping[str, bytes], interpreters: Iterable[str]) -> list[Bytecode]:
    """Compile the zip's content by each interpreter;
    of two interpreters of one version the first counts.
    """
    found: dict[str, Bytecode] = {}
    with tempfile.NamedTemporaryFile(suffix=".zip") as program:
        with zipfile.ZipFile(program, "w") as file:
            for name, content in contents.items():
                file.writestr(name, content)
        program.flush()
        for interpreter in interpreters:
            command = make_command(interpreter, program.name)
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, check=True, timeout=120
                )
            except (OSError, subprocess.SubprocessError) as error:
                why = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
                raise BuildError(f"{interpreter} cannot compile: {why}") from error
            compiled = parse_answer(done.stdout)
            found.setdefault(compiled.tag, compiled)
    return sorted(found.values(), key=lambda compiled: compiled.version)


def find_interpreters() -> list[str]:
    """Return the interpreters of a build without --bytecode:
    python3.9 to 3.14 on PATH and in /usr/bin, and ours.
    """
    named = [
        shutil.which(f"python3.{minor}", path=f"{os.environ.get('PATH', '')}:/usr/bin")
        for minor in MINORS
    ]
    return [path for path in named if path and _works(path)] + [sys.executable]


def _works(path: str) -> bool:
    """Return whether an interpreter starts:
    a name on PATH may be a shim for a version that is not installed.
    """
    try:
        return (
            subprocess.run(
                [path, "-ISc", ""], capture_output=True, check=False, timeout=60
            ).returncode
            == 0
        )
    except (OSError, subprocess.SubprocessError):
        return False


# --- In the compiling interpreter


def print_bytecode() -> None:
    """Compile the modules and print the result; make_command's command calls this."""
    with zipfile.ZipFile(sys.argv[2]) as file:
        names = [name for name in file.namelist() if name.endswith(".py") and "/" in name]
        size, content = make({name: file.read(name).decode() for name in names})
    print(
        (
            sys.implementation.cache_tag,
            importlib.util.MAGIC_NUMBER,
            sys.version_info[:3],
            size,
            content,
        )
    )


def make(texts: Mapping[str, str]) -> tuple[int, bytes]:
    """Compile modules; returns the loader's size and all bytes.

    `texts` has the sources by their path in the zip.
    """
    codes, eager = compile_modules(texts)
    later = {name: stable(code) for name, code in codes.items() if name not in eager}
    ends = itertools.accumulate(map(len, later.values()))
    places = {name: (end - len(code), len(code)) for (name, code), end in zip(later.items(), ends)}
    constants: dict[object, Any] = {
        EAGER: tuple((name, codes[name]) for name in eager),
        LATER: places,
    }
    loader = compile_bare(ast.parse(LOADER.read_text("utf-8")), f"<{LOADER.name}>")
    first = stable(
        loader.replace(co_consts=tuple(constants.get(name, name) for name in loader.co_consts))
    )
    return len(first), first + b"".join(later.values())


def compile_modules(
    texts: Mapping[str, str], finish: Callable[[CodeType], CodeType] = lambda code: code
) -> tuple[dict[str, CodeType], list[str]]:
    """Compile modules; returns all by their names,
    and the names of those that the start of a container imports.

    The code of a module of STAGES first makes the modules that only it imports. `finish` may change
    the code of what a start imports, at once or as a stage. The names of files are in brackets: any
    other name is a path in the working directory to Python, and a traceback would read what is
    there.
    """
    trees = {module_name(path): ast.parse(text, path) for path, text in texts.items()}
    codes = {
        name: compile_bare(tree, f"<{path}>") for path, (name, tree) in zip(texts, trees.items())
    }
    eager = find_imports(trees, START)
    stages: dict[str, list[str]] = {}
    for stage in STAGES:
        made = {*eager, *itertools.chain(*stages.values())}
        stages[stage] = [name for name in find_imports(trees, stage) if name not in made]
    codes.update(
        (name, finish(codes[name])) for name in {*eager, *itertools.chain(*stages.values())}
    )
    bundles = {
        stage: _bundle([(name, codes[name]) for name in names])
        for stage, names in stages.items()
        if names[1:]
    }
    return {**codes, **bundles}, eager


def _bundle(modules: list[tuple[str, CodeType]]) -> CodeType:
    """Return the code of the last module, which makes the others before it runs."""
    *others, (_, code) = modules
    constants: dict[object, Any] = {EAGER: tuple(others), LAST: code}
    whole = compile(BUNDLE, code.co_filename, "exec", optimize=2)
    return whole.replace(co_consts=tuple(constants.get(value, value) for value in whole.co_consts))


def module_name(path: str) -> str:
    """Return the import name of a path in the zip,
    such as `hook.node` for `hook/node/__init__.py`.
    """
    name = path[: -len(".py")].replace("/", ".")
    return name[: -len(".__init__")] if name.endswith(".__init__") else name


def find_imports(trees: Mapping[str, ast.Module], start: str) -> list[str]:
    """Return our modules that the import of `start` imports,
    each after its own imports, and `start` last.
    """
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
    """Return the modules that statements import when they run,
    without those for type checkers only.
    """
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not isinstance(node, ast.FunctionDef) and not _is_for_checkers(node):
            yield from _imports(ast.iter_child_nodes(node))


def _is_for_checkers(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


class _Bare(ast.NodeTransformer):
    """Drops code for type checkers, and annotations except those of classes,
    which dataclasses need.
    """

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


def compile_bare(tree: ast.Module, path: str) -> CodeType:
    """Compile a module without assertions and docstrings, as with -OO,
    and without annotations of functions.
    """
    flags = __future__.annotations.compiler_flag
    found: CodeType = compile(
        _Bare().visit(tree), path, "exec", flags, dont_inherit=True, optimize=2
    )
    return found


def stable(code: Any) -> bytes:  # noqa: ANN401  all that marshal takes
    """Marshal code objects reproducibly: their copy is marshalled,
    since reference marks depend on other users.
    """
    return marshal.dumps(marshal.loads(marshal.dumps(code)))  # noqa: S302  our own
