# SPDX-License-Identifier: Apache-2.0
"""Only two modules open, list and match files: `system` for the program's records, `files` for all others.

And of what a tenant's process shows in /proc, only what the kernel says of it is read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import hook

HOOK = Path(hook.__file__).parent
IMAGE = HOOK.parent / "packaging/kubernetes/image"
SOURCES = {path.relative_to(HOOK).with_suffix("").as_posix(): path for path in sorted(HOOK.rglob("*.py"))}
SOURCES |= {f"image/{name}": IMAGE / f"{name}.py" for name in ("host", "node")}

DOORS = ("system", "node/files")
OPENERS = {
    "open",
    "listdir",
    "scandir",
    "walk",
    "fwalk",
    "glob",
    "iglob",
    "rglob",
    "iterdir",
    "read_bytes",
    "read_text",
}
OPENERS |= {"ZipFile", "is_zipfile", "TarFile", "FileIO", "NamedTemporaryFile", "TemporaryFile", "mkstemp", "mmap"}
MODULES = {"glob", "pathlib", "shutil", "linecache", "fileinput", "codecs", "tokenize", "tomllib", "gzip", "tarfile"}
BY_DOOR = ("files",)
"""The functions of this module are the door's."""
ELSEWHERE = {
    "show/history": {"gzip"},  # of a descriptor that came through the door
    "show/server": {"gzip"},  # of what it sends
    "install/program": {"ZipFile"},  # of bytes that came through the door
    "node/programs": {"shutil"},  # finds programs
    "jobs/__init__": {"shutil"},  # finds the command
    "image/node": {"listdir", "pathlib", "shutil"},  # what is written in its own pod
}
OWN = {"read_file", "read_counter", "list_directory", "open_directory"}
"""`system` opens these files without a check of their kind: the program or the kernel made them."""
BEHIND = [it for it in SOURCES if "/" in it and it != "node/records" and not it.startswith("image/")]
"""The tools, except the one that reads the program's records."""
OF_THE_KERNEL = {
    "doctor/checks": "resctrl's info",
    "node/processes": "cgroups",
    "show/snapshot": "the mon_groups",
}


OF_PROCESSES = {
    *("stat", "status", "task", "cgroup", "cpu_resctrl_groups", "ns"),
    "cmdline",  # the hook reads the words of the parent of its own parent, if that has the hook's namespaces: conmon's
}
"""The files of /proc/PID that are read: no name or environment of a process, and nothing below its root."""


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


def test_only_the_doors_open_files_and_each_exception_is_needed() -> None:
    found = {module: {*opened_by(module)} for module in SOURCES.keys() - {*DOORS}}
    assert {module: names for module, names in found.items() if names} == ELSEWHERE


def test_tools_do_not_read_files_of_others_as_our_own() -> None:
    found = set()
    for module in BEHIND:
        tree = ast.parse(SOURCES[module].read_text(encoding="utf-8"))
        named = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        found |= {module} if named & {f"system.{name}" for name in OWN} else set()
    assert found == {*OF_THE_KERNEL}


def test_of_a_process_nothing_is_read_that_its_author_decides() -> None:
    texts = {module: path.read_text(encoding="utf-8") for module, path in SOURCES.items()}
    found = {name for text in texts.values() for name in re.findall(r"/proc/\{[^}]*\}/(\w+)", text)}
    assert found == OF_PROCESSES
    assert sum(text.count("}/cmdline") for text in texts.values()) == 1
    assert not [module for module, text in texts.items() if re.search(r"[\"']/proc/[\"'] *\+", text)]
