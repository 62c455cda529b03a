# SPDX-License-Identifier: Apache-2.0
"""Files are opened, listed and matched by two modules only: `system` for our own records, `files` for all else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import hook

HOOK = Path(hook.__file__).parent
IMAGE = HOOK.parent / "packaging/kubernetes/image"
SOURCES = {path.relative_to(HOOK).with_suffix("").as_posix(): path for path in sorted(HOOK.rglob("*.py"))}
SOURCES |= {f"image/{name}": IMAGE / f"{name}.py" for name in ("host", "node")}

DOORS = ("system", "node/files")
OPENERS = {"open", "listdir", "scandir", "walk", "fwalk", "glob", "iglob", "rglob", "iterdir", "read_bytes"}
OPENERS |= {
    "read_text",
    "ZipFile",
    "is_zipfile",
    "TarFile",
    "FileIO",
    "NamedTemporaryFile",
    "TemporaryFile",
    "mkstemp",
    "mmap",
}
MODULES = {"glob", "pathlib", "shutil", "linecache", "fileinput", "codecs", "tokenize", "tomllib", "gzip", "tarfile"}
BY_DOOR = ("files", "tree", "self.files", "self", "HOST")
"""What a function of that name is called on, where it is the door's."""
ELSEWHERE = {
    "node/paths": {"ZipFile"},  # of bytes that came through the door
    "install/bytecode": {"ZipFile"},  # of the program itself, in the interpreter that compiles it
    "install/steps": {"NamedTemporaryFile"},  # a copy of the program for that interpreter
    "image/node": {"pathlib"},  # what it writes into its own pod
}
OWN = {"read_file", "read_counter", "list_directory", "open_directory"}
"""What `system` opens without a look at what it is: a file of ours or of the kernel's."""
BEHIND = [it for it in SOURCES if "/" in it and it != "node/records" and not it.startswith("image/")]
"""The tools, but for what reads our own records."""
OF_THE_KERNEL = {
    "doctor/kernel": "resctrl's info",
    "node/processes": "cgroups",
    "show/hardware": "resctrl's info",
    "show/snapshot": "the mon_groups",
}


def opened_by(module: str) -> Iterator[str]:
    """What a module opens files with, or could."""
    for node in ast.walk(ast.parse(SOURCES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (it.name.partition(".")[0] for it in node.names if it.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom):
            yield from {(node.module or "").partition(".")[0]} & MODULES
            yield from ({it.name for it in node.names} & OPENERS if not (node.module or "").startswith("hook") else ())
        elif isinstance(node, ast.Name) and node.id == "open":
            yield "open"
        elif isinstance(node, ast.Attribute) and node.attr in OPENERS and ast.unparse(node.value) not in BY_DOOR:
            yield node.attr


@pytest.mark.parametrize("module", sorted(SOURCES.keys() - {*DOORS}))
def test_files_are_opened_by_the_doors_alone(module: str) -> None:
    assert {*opened_by(module)} <= ELSEWHERE.get(module, set())


@pytest.mark.parametrize("module", sorted(ELSEWHERE))
def test_exceptions_are_needed(module: str) -> None:
    assert {*opened_by(module)} == ELSEWHERE[module]


@pytest.mark.parametrize("module", BEHIND)
def test_what_is_not_ours_is_not_read_as_our_own(module: str) -> None:
    tree = ast.parse(SOURCES[module].read_text(encoding="utf-8"))
    named = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert bool(named & {f"system.{name}" for name in OWN}) == (module in OF_THE_KERNEL)
