"""The functions that a container's usual start and end run, of which hook/hot_path.txt is the list for the build.

    python -m tests.support.hot_path > hook/hot_path.txt

They are seen at work: on the model of resctrl, in a file without bytecode, under sys.setprofile.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import build
from tests.resctrlfs import mounted
from tests.support.hook import UID, created, end, stopped, task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HEAD = """\
# What a container's usual start and end run, as module:function, and which part of the bytecode it is to be in:
# `start`, `end`: what only starts, or ends, of any container of a key run; `edge`: what only the first start and the
# last end of a key run; `first`: all the others (see build.py, hook/loader.py).
# Made by `python -m tests.support.hot_path > hook/hot_path.txt`
"""
TRACER = """\
import sys
pyz, output = sys.argv[1:3]
del sys.argv[1:3]
sys.path.insert(0, pyz)
found = set()
def trace(frame, event, argument):
    code = frame.f_code
    if event == "call" and pyz in code.co_filename:
        found.add((code.co_filename[len(pyz) + 1:], code.co_firstlineno))
def leave(status):
    raise SystemExit(status)
import posix
posix._exit = leave
sys.argv[:0] = ["-c"]
sys.setprofile(trace)
try:
    import hook.start
except SystemExit:
    pass
sys.setprofile(None)
with open(output, "a") as file:
    for name, line in found:
        print(name, line, file=file)
"""


def functions(directory: Path, resctrl_root: Path) -> list[str]:
    """The list, sorted, of the sources as they are now: each function with its part."""
    directory.mkdir()
    pyz = build.build(output=directory / "traced.pyz", bytecode=())
    trace = directory / "trace"
    with task() as one, task() as other:
        options = (f"--resctrl-root={resctrl_root}", f"--run-dir={directory}/run")
        command = [sys.executable, "-I", "-c", TRACER, str(pyz), str(trace), "hook", *options]

        def hook(state: Mapping[str, object]) -> set[tuple[str, int]]:
            subprocess.run(command, input=json.dumps(state).encode(), check=True, stderr=subprocess.DEVNULL)
            rows = (row.partition(" ") for row in trace.read_text().splitlines())
            trace.unlink()
            return {(name, int(line)) for name, _, line in rows}

        pod = {"pod_uid": UID, "io.kubernetes.pod.namespace": "default"}
        hook(created("first", one.pid))  # the first of all makes the run directory
        first = hook(created("c1", one.pid, **pod))
        further = hook(created("c2", other.pid, **pod))
        end(other)
        early = hook(stopped("c2"))
        end(one)
        last = hook(stopped("c1")) | hook(stopped("first"))
    edge = (first | last) - further - early
    parts = {"start": further - early - last, "end": early - further - first, "edge": edge}
    seen = first | further | early | last
    with zipfile.ZipFile(pyz) as file:
        trees = {name: ast.parse(file.read(name)) for name in {name for name, _ in seen}}
    found = {
        f"{Path(name).stem}:{function} {next((part for part, own in parts.items() if (name, line) in own), 'first')}"
        for name, tree in trees.items()
        for function, line in named(tree)
        if (name, line) in seen
    }
    return sorted(found)


def named(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, int]]:
    """The functions of a module and the methods of its classes, each with its first line."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from named(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield prefix + node.name, min([node.lineno, *(it.lineno for it in node.decorator_list)])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        stdout, sys.stdout = sys.stdout, sys.stderr
        with mounted(Path(name)) as model:
            lines = functions(Path(name) / "traced", model.root)
        print(HEAD, *(f"{line}\n" for line in lines), sep="", end="", file=stdout)
