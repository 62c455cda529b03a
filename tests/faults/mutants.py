# SPDX-License-Identifier: Apache-2.0
"""Mutation testing of the hook path: whatever is changed in it, a test fails.

Each change is a case. Its tests are the unit tests that import its module, those of the module's
own name first; then those that run whole hooks; then, with the mutant built into the .pyz, some
that start it; at last, since it takes longest, the simulator. Before any mutant the program is
tried as it is.

Left out is what no test can see or should look at: annotations, what is for type checkers, the
prose of messages, None for a False that is returned, and the compiled models (`pyz.COMPILED`): they
are generated, and tests of their own compare them with the source.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Any, NamedTuple

from fetch import provision
from pyz import COMPILED
from tests.faults import hook_coverage
from tests.faults.campaign import Campaign

ENOUGH = 0.9
"""Of the mutants are killed, or the part has failed."""
SAMPLE = 400
"""The number of mutants that are tried, chosen at random, without --most: all would take a day."""
PATIENCE = 600.0
"""Seconds for the tests of one mutant: an endless loop is as dead as a failed test."""
WHOLE_HOOKS = (
    *(
        f"tests/unit/test_{name}.py"
        for name in ("create", "key", "entry", "report", "odd_state", "reconcile")
    ),
)
"""They run all of the hook path."""
SIMULATED = ("-m", "tests.simulator", "--random", "3", "--preempt", "250", "--most", "1")
STARTED = tuple(f"tests/fuse/test_{name}.py" for name in ("lifecycle", "process"))
"""They start the .pyz."""
ALONE = ("unshare", "--mount", "--fork", "--kill-child", "setsid")
"""What a command behind this mounts goes with it, and it ends with who started it.

It shares the pid namespace: in one of its own reconcile and reclaim refuse to work.
"""
IGNORED = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "dist", "build"
)
BUILD = "import tests; from pyz import archive; archive.build(interpreters=['/usr/bin/python3'])"
APART = (
    "sh",
    "-ec",
    'mount --make-rprivate /; mount --bind "$0" /mnt; mount -t tmpfs mutants /dev/shm; mount -o '
    "remount,bind,ro /;"
    'cd /mnt; TMPDIR=/dev/shm exec "$@"',
)
"""Behind this and a directory, that one is /mnt, and all else is read-only but /dev/shm:
a mutant may do anything.

Not /tmp, which would hide the interpreter of a checkout that lies there.
"""


NONE = ast.Constant(None)
FALSE = ast.dump(ast.Constant(False))
SWAPPED: dict[type, type[Any]] = {
    **{
        ast.Eq: ast.NotEq,
        ast.Is: ast.IsNot,
        ast.In: ast.NotIn,
        ast.Lt: ast.LtE,
        ast.Gt: ast.GtE,
        ast.And: ast.Or,
    },
    **{
        ast.NotEq: ast.Eq,
        ast.IsNot: ast.Is,
        ast.NotIn: ast.In,
        ast.LtE: ast.Lt,
        ast.GtE: ast.Gt,
        ast.Or: ast.And,
    },
    **{
        ast.Add: ast.Sub,
        ast.Sub: ast.Add,
        ast.Mult: ast.FloorDiv,
        ast.Div: ast.Mult,
        ast.FloorDiv: ast.Mult,
    },
    **{ast.Mod: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift},
}
CHANGES: dict[type, Callable[[Any], list[Any]]] = {
    ast.Compare: lambda node: [
        ast.Compare(node.left, [_swapped(node.ops[0]), *node.ops[1:]], node.comparators)
    ],
    ast.BoolOp: lambda node: [ast.BoolOp(_swapped(node.op), node.values)],
    ast.BinOp: lambda node: [ast.BinOp(node.left, _swapped(node.op), node.right)],
    ast.UnaryOp: lambda node: [node.operand],
    ast.Constant: lambda node: [ast.Constant(_other_value(node.value))],
    ast.Call: lambda node: [
        ast.Call(node.func, [*node.args[:place], NONE, *node.args[place + 1 :]], node.keywords)
        for place in range(len(node.args))
    ],
    ast.Break: lambda _: [ast.Continue()],
    ast.Continue: lambda _: [ast.Break()],
    ast.Raise: lambda _: [ast.Pass()],
    ast.Expr: lambda _: [ast.Pass()],
    ast.Return: lambda node: [] if ast.dump(node.value or NONE) == FALSE else [ast.Return(NONE)],
    ast.Assign: lambda node: [ast.Assign(node.targets, NONE)],
    ast.AugAssign: lambda node: [ast.Assign([node.target], node.value)],
}
"""What takes the place of a statement or an expression, one by one."""
UNSEEN = ("TYPE_CHECKING", "if TYPE_CHECKING", '"', "'")
"""What is left out begins like this."""
PLAIN = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
"""A condition of these has no operator to be changed: it is negated."""


class Mutant(NamedTuple):
    """One change. `module`: such as `create`; `text`: all of it, changed."""

    module: str
    change: str
    text: str

    def __str__(self) -> str:
        return f"{self.module}:{self.change}"


def run(campaign: Campaign) -> None:
    begin = time.monotonic()
    chosen = [
        mutant
        for mutant in find_mutants(hook_coverage.hook_path())
        if campaign.is_chosen(str(mutant))
    ]
    if not chosen:
        return
    of, most = len(chosen), campaign.most or SAMPLE
    unchanged = Mutant(
        chosen[0].module, "unchanged", (provision.ROOT / f"hook/{chosen[0].module}.py").read_text()
    )
    if not find_survivors([unchanged], 1):
        campaign.tally("mutants", 1, {str(unchanged): "a test fails all the same"}, begin)
        return
    if most < of:
        chosen = Random(campaign.seed).sample(chosen, most)
    survivors = [str(mutant) for mutant in find_survivors(chosen, os.cpu_count() or 1)]
    killed = 1 - len(survivors) / len(chosen)
    problems = dict.fromkeys(survivors, "no test fails") if killed < ENOUGH or campaign.only else {}
    campaign.tally("mutants", len(chosen), problems, begin)
    campaign.note(f"{killed:.1%} of {len(chosen)} killed, out of {of}")
    for name in survivors:
        campaign.note(f"survived: {name}")


def find_mutants(modules: Sequence[str]) -> list[Mutant]:
    """Return all mutants of these modules, none twice."""
    mutants: dict[tuple[str, str], Mutant] = {}
    for module in modules:
        if f"hook/{module}.py" not in COMPILED.values():
            text = (provision.ROOT / f"hook/{module}.py").read_text(encoding="utf-8")
            for change, changed in _find_changes(text):
                mutants.setdefault((module, changed), Mutant(module, change, changed))
    return [*mutants.values()]


def _find_changes(text: str) -> Iterator[tuple[str, str]]:
    """Each change, as its line and what becomes of that, and the changed text."""
    source = text.encode()
    lines = source.splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
    for field, node in _list_nodes(ast.parse(text)):
        others = CHANGES[type(node)](node) if type(node) in CHANGES else []
        others += (
            [ast.UnaryOp(ast.Not(), node)] if field == "test" and isinstance(node, PLAIN) else []
        )
        start, end = (
            starts[node.lineno - 1] + node.col_offset,
            starts[node.end_lineno - 1] + node.end_col_offset,
        )
        former = " ".join(source[start:end].decode().split())
        for other in [candidate for candidate in others if ast.dump(candidate) != ast.dump(node)]:
            new = ast.unparse(ast.fix_missing_locations(other))
            if isinstance(other, ast.expr):
                new = f"({new})"
            yield (
                f"{node.lineno}: {former} => {new}",
                (source[:start] + new.encode() + source[end:]).decode(),
            )


def _list_nodes(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Return the statements and expressions that do something,
    each with the field of its parent that it is in.
    """
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            is_unseen = field in ("annotation", "returns") or isinstance(child, ast.JoinedStr)
            if isinstance(child, (ast.If, ast.Assign, ast.Expr)):
                is_unseen = ast.unparse(child).startswith(UNSEEN)
            if isinstance(child, ast.AST) and not is_unseen:
                if isinstance(child, (ast.stmt, ast.expr)):
                    yield field, child
                yield from _list_nodes(child)


def _swapped(operator: ast.AST) -> Any:  # noqa: ANN401  an operator
    return SWAPPED.get(type(operator), type(operator))()


def _other_value(value: object) -> Any:  # noqa: ANN401  a constant
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return f"XX{value}" if isinstance(value, str) and " " not in value else value


def find_survivors(mutants: Sequence[Mutant], jobs: int) -> list[Mutant]:
    """Those of which no test fails."""
    with (
        tempfile.TemporaryDirectory(dir=provision.find_scratch()) as directory,
        ThreadPoolExecutor(jobs) as pool,
    ):
        idle: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copy = Path(directory) / str(number)
            shutil.copytree(provision.ROOT, copy, ignore=IGNORED)
            idle.put(copy)

        def judge(mutant: Mutant) -> bool:
            copy = idle.get()
            try:
                return is_killed(copy, mutant)
            finally:
                idle.put(copy)

        killed = []
        for number, is_dead in enumerate(pool.map(judge, mutants), 1):
            killed.append(is_dead)
            said = f"{number} of {len(mutants)}: {sum(killed)} killed"
            print(
                said,
                end="\r" if is_dead else f"; survived: {mutants[number - 1]}\n",
                file=sys.stderr,
                flush=True,
            )
        return [mutant for mutant, is_dead in zip(mutants, killed) if not is_dead]


def is_killed(copy: Path, mutant: Mutant) -> bool:
    """Whether a test fails of a mutant, in a copy of the checkout."""
    path = copy / f"hook/{mutant.module}.py"
    sources = path.read_text(encoding="utf-8")
    path.write_text(mutant.text, encoding="utf-8")
    try:
        pytest = ("-m", "pytest", "-qx", "-p", "no:cacheprovider")
        return (
            fails(copy, *pytest, *unit_tests(mutant.module))
            or fails(copy, "-c", BUILD)
            or fails(copy, *pytest, *STARTED)
            or fails(copy, *SIMULATED)
        )
    finally:
        path.write_text(sources, encoding="utf-8")


def fails(copy: Path, *words: str) -> bool:
    """Whether Python, in a copy of the checkout, does not end well or in time."""
    command = [*ALONE, *APART, str(copy), sys.executable, "-B", *words]
    null = subprocess.DEVNULL
    try:
        return (
            subprocess.run(
                command, stdin=null, stdout=null, stderr=null, timeout=PATIENCE, check=False
            ).returncode
            != 0
        )
    except subprocess.TimeoutExpired:
        return True


@cache
def unit_tests(module: str) -> list[str]:
    """The files of unit tests for a module: of its name, that import it, of what imports it,
    that run whole hooks.
    """
    of_name, importing = f"tests/unit/test_{module}.py", _importing(module, "tests/unit/test_*.py")
    users = (
        Path(path.removesuffix("/__init__.py")).stem for path in _importing(module, "hook/**/*.py")
    )
    chosen = [of_name, *importing, *(f"tests/unit/test_{user}.py" for user in users)]
    known = {*hook_coverage.test_files()}
    return list(dict.fromkeys([*(path for path in chosen if path in known), *WHOLE_HOOKS]))


def _importing(module: str, pattern: str) -> list[str]:
    """The files that import a module of hook/."""
    imports = re.compile(
        rf"^\s*(from hook\.{module} import|import hook\.{module}|"
        rf"from hook import (\([^)]*|[^(\n]*)\b{module}\b)",
        re.M,
    )
    return [
        str(path.relative_to(provision.ROOT))
        for path in sorted(provision.ROOT.glob(pattern))
        if imports.search(path.read_text(encoding="utf-8"))
    ]
