# SPDX-License-Identifier: Apache-2.0
"""Compiles the modules that are frozen into the ELF file. The CPython of that file runs this.

    PYTHON -ISB -X no_debug_ranges freeze.py ZIP LIBRARY OUTPUT [START]

`start.bin` is one code object: it makes the modules that the start of a container imports, and
starts the program. They have no line tables, nor have those that a stage imports: to read those
takes a twentieth of the hook's time. All other modules of hook/, and those of the standard library
that they import, are in `modules.bin`; `frozen.S` and `frozen.c` are what the linker needs.
"""

from __future__ import annotations

import ast
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyz import bytecode

# What CPython itself imports, at its start, to encode, and to show an exception
PYTHONS = (
    "abc",
    "codecs",
    "encodings",
    "encodings.aliases",
    "encodings.ascii",
    "encodings.latin_1",
    "encodings.utf_8",
    "encodings.cp437",
    "io",
    "os",
    "traceback",
    "zipimport",
)
# The parts of importlib that each start imports first, under the names that CPython has for
# them when it is frozen. The first one is for a hook: the launcher leaves it out of the
# table for all other commands.
HOOK_IMPORTLIB = Path(__file__).with_name("hook_importlib.py")
IMPORTLIB = {
    "_frozen_importlib": "importlib/_bootstrap.py",
    "_frozen_importlib_external": "importlib/_bootstrap_external.py",
}
_NEVER = ("TYPE_CHECKING", "typing.TYPE_CHECKING", "__name__ == '__main__'")
START = """\
import sys
sys.argv[:0] = ["-c"]  # as the first line of the .pyz makes it
for name, code in "MODULES":
    module = sys.modules[name] = type(sys)(name)
    exec(code, module.__dict__)
    package, _, own = name.rpartition(".")
    if package:
        setattr(sys.modules[package], own, module)
sys.modules["hook"].__path__ = []  # not before: to import from what has a __path__ takes longer
module.start()
"""
ASSEMBLY = """\
.section .rodata
.globl frozen_start, frozen_start_end, frozen_modules_data
frozen_start: .incbin "start.bin"
frozen_start_end:
frozen_modules_data: .incbin "modules.bin"
.section .note.GNU-stack, "", %progbits
"""
TABLE = """\
#include <Python.h>
extern const unsigned char frozen_modules_data[];
const struct _frozen frozen_modules[] = {{
{rows}
{{0}}}};
"""


def main(program: str, library: str, output: str, start_text: str = START) -> None:
    with zipfile.ZipFile(program) as file:
        names = [name for name in file.namelist() if name.endswith(".py") and "/" in name]
        texts = {name: file.read(name).decode() for name in names}
    packages = {bytecode.module_name(path) for path in texts if path.endswith("/__init__.py")}
    codes, eager = bytecode.compile_modules(texts, _without_lines)
    modules = tuple((name, codes.pop(name)) for name in eager)
    start = compile(start_text, "<start>", "exec", optimize=2)
    start = start.replace(
        co_consts=tuple(modules if value == "MODULES" else value for value in start.co_consts)
    )
    found = find_standard_library(texts, Path(library))
    for name, path in found.items():
        codes[name] = compile(
            Path(library, path).read_bytes(), f"<{path}>", "exec", dont_inherit=True, optimize=2
        )
        if path.endswith("/__init__.py"):
            packages.add(name)
    for name, path in IMPORTLIB.items():
        codes[name] = _compile_importlib(Path(library, path), bytecode.module_name(path))
    own = _compile_importlib(HOOK_IMPORTLIB, "importlib._bootstrap")
    # CPython reads the table from its beginning, for each module that it imports
    frozen = [("_frozen_importlib", own)]
    frozen += sorted(codes.items(), key=lambda item: (item[0] not in bytecode.STAGES, item[0]))
    rows, blobs, at = [], [], 0
    for name, code in frozen:
        blob = bytecode.stable(code)
        rows.append(
            f'{{"{name}", frozen_modules_data + {at}, {len(blob)}, {int(name in packages)}}},'
        )
        blobs.append(blob)
        at += len(blob)
    target = Path(output)
    (target / "start.bin").write_bytes(bytecode.stable(start))
    (target / "modules.bin").write_bytes(b"".join(blobs))
    (target / "frozen.S").write_text(ASSEMBLY)
    (target / "frozen.c").write_text(TABLE.format(rows="\n".join(rows)))


def _compile_importlib(path: Path, name: str) -> CodeType:
    return _without_lines(bytecode.compile_bare(ast.parse(path.read_bytes()), f"<frozen {name}>"))


def _without_lines(code: CodeType) -> CodeType:
    """Return the code without line tables, and with a method's name for its qualified one,
    which is in no message.
    """
    inner = (
        _without_lines(value) if isinstance(value, CodeType) else value for value in code.co_consts
    )
    return code.replace(co_consts=tuple(inner), co_linetable=b"", co_qualname=code.co_name)  # type: ignore[call-arg]


def find_standard_library(texts: Mapping[str, str], library: Path) -> dict[str, str]:
    """Return the modules of the library that the program needs: by name, the path in `library`.

    Those are what ours import anywhere; what these import anywhere, since ours call their
    functions; and of all modules behind these what they import when they are imported.
    """
    direct = {
        name for text in texts.values() for name in _imports(ast.parse(text), "", in_functions=True)
    }
    waiting = [*direct, *PYTHONS]
    found: dict[str, str | None] = {}
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = path = _path(name, library)
        if path is not None:
            package = name.rpartition(".")[0]
            own = name if path.endswith("/__init__.py") else package
            tree = ast.parse((library / path).read_bytes())
            waiting += filter(None, [package, *_imports(tree, own, in_functions=name in direct)])
    return {name: path for name, path in found.items() if path is not None}


def _path(name: str, library: Path) -> str | None:
    paths = [f"{name.replace('.', '/')}.py", f"{name.replace('.', '/')}/__init__.py"]
    return next((path for path in paths if (library / path).is_file()), None)


def _imports(node: ast.AST, package: str, *, in_functions: bool) -> Iterator[str]:
    """Return the names that are imported: modules, or what is in one."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            above = (
                package.split(".")[: len(package.split(".")) - child.level + 1]
                if child.level
                else []
            )
            base = ".".join([*above, *([child.module] if child.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in child.names)
        elif _is_never_run(child):
            continue
        elif in_functions or not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _imports(child, package, in_functions=in_functions)


def _is_never_run(node: ast.AST) -> bool:
    """Return whether the program runs nothing of this: types, a module as a program,
    or its test by doctest.
    """
    if isinstance(node, ast.FunctionDef):
        return node.name == "_test"
    return isinstance(node, ast.If) and ast.unparse(node.test) in _NEVER


if __name__ == "__main__":
    main(*sys.argv[1:])
