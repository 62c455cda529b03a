# SPDX-License-Identifier: Apache-2.0
"""The layers: the core, which a container's start may run, and the tools in packages above it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import hook

HOOK = Path(hook.__file__).parent
TREES = {
    path.relative_to(HOOK).with_suffix("").as_posix().removesuffix("/__init__"): ast.parse(path.read_text("utf-8"))
    for path in sorted(HOOK.rglob("*.py"))
}
PACKAGES = re.findall(r"^    (\w+)  ", hook.__doc__ or "", re.MULTILINE)
"""In the order of hook's docstring: each imports only those before it."""
PYDANTIC = {"models", "node/models", "cli/options"}  # the .pyz has modules with `_compiled` behind their names instead
TOOLS = {name for name in TREES if name.split("/")[0] in PACKAGES}
CORE = TREES.keys() - TOOLS - {"__init__", "__main__"}
BUILTIN = {"_json", "_signal", "_socket", "errno", "fcntl", "marshal", "posix", "select", "sys", "time"}
"""All that the core imports beside itself: modules of CPython that are built into the static one."""
LAZY = {
    "report": "words and reports a failure, and reads an odd state",
    "retry": "only after a failed try of createRuntime",
    "reclaim": "only if RMIDs or room are lacking, or a record is unreadable",
    "conmon": "only for Podman's containers",
    "counters": "only if a group was replaced or joins another: 2.5 % of Python's start, with `ending`",
    "ending": "only if a key ends that has a history",
}
"""The modules of the core that a usual start does not import, and why."""
LOOKING = {name for name in TOOLS if name.split("/")[0] in ("show", "doctor", "cli")}


def imported(node: ast.AST) -> set[str]:
    """The modules that a statement imports: those of hook/ as in TREES, others by their first name."""
    if isinstance(node, ast.Import):
        names = {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
        inner = {f"{node.module}.{alias.name}" for alias in node.names}
        names = {name for name in inner if name.removeprefix("hook.").replace(".", "/") in TREES} or {node.module or ""}
    else:
        return set()
    ours = {name.removeprefix("hook.").replace(".", "/") for name in names if name.startswith("hook.")}
    return ours | {name.partition(".")[0] for name in names if not name.startswith("hook.")}


def running(node: ast.AST, *, lazily: bool) -> Iterator[ast.AST]:
    """The statements that run, without what is for type checkers; `lazily`: those in functions as well."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        if lazily or not isinstance(child, ast.FunctionDef):
            yield child
            yield from running(child, lazily=lazily)


def imports_of(module: str, *, lazily: bool = True) -> set[str]:
    return {name for node in running(TREES[module], lazily=lazily) for name in imported(node)}


def users(*names: str) -> set[str]:
    """The modules that import one of these, at any place."""
    return {module for module in TREES if imports_of(module) & {*names}}


def test_docstring_of_hook_lists_every_package_and_each_module_says_what_it_is_for() -> None:
    assert sorted(PACKAGES) == sorted({name.split("/")[0] for name in TOOLS})
    assert [name for name, tree in TREES.items() if not ast.get_docstring(tree)] == []


def test_core_imports_builtin_modules_and_no_tool() -> None:
    offenders = {name: imports_of(name) - CORE - BUILTIN - {"__future__", "hook"} for name in CORE - PYDANTIC}
    assert {name: found for name, found in offenders.items() if found} == {}
    assert BUILTIN - {"_json", "_socket", "fcntl", "select"} <= {*sys.builtin_module_names}, "these four may be shared"


def test_modules_of_the_core_do_not_import_each_other_in_circles_even_lazily() -> None:
    graph = {name: imports_of(name) & CORE for name in CORE}
    assert {*TopologicalSorter(graph).static_order()} == CORE


def test_core_imports_lazily_only_what_the_list_names() -> None:
    found = {name: (imports_of(name) - imports_of(name, lazily=False)) & CORE for name in CORE}
    assert set().union(*found.values()) == LAZY.keys()
    eager = {name for name in CORE - LAZY.keys() if imports_of(name, lazily=False) & LAZY.keys()}
    assert eager == set()


def test_first_word_decides_above_both_rooms() -> None:
    assert imports_of("__main__", lazily=False) & TREES.keys() == {"entry", "system"}
    assert imports_of("__main__") & TOOLS == {"cli/command_line"}


def test_packages_import_only_the_core_and_packages_before_them() -> None:
    offenders = {}
    for name in TOOLS:
        before = PACKAGES[: PACKAGES.index(name.split("/")[0]) + 1]
        strangers = {it for it in imports_of(name) & TREES.keys() if it not in CORE and it.split("/")[0] not in before}
        if strangers - {"__init__"}:
            offenders[name] = strangers
    assert offenders == {}
    graph = {name: imports_of(name, lazily=False) & TREES.keys() for name in TREES}
    assert {*TopologicalSorter(graph).static_order()} >= TREES.keys()


def test_system_calls_are_made_in_one_module() -> None:
    assert users("posix", "fcntl", "time") == {"system"}
    assert users("os", "stat", "pathlib", "subprocess", "shutil") <= TOOLS


def test_standard_library_is_enough_and_only_the_models_know_pydantic() -> None:
    every = set().union(*(imports_of(name) for name in TREES))
    assert every - sys.stdlib_module_names - TREES.keys() <= {"hook", "pydantic", "pydantic_core"}
    assert users("pydantic", "pydantic_core") == PYDANTIC


def test_people_who_look_take_no_lock() -> None:
    assert {name for name in LOOKING if imports_of(name) & {"store", "create", "poststop", "key", "view"}} == set()
