"""The layers of hook/__init__'s docstring: who may import whom, and what only one module knows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import hook

HOOK = Path(hook.__file__).parent
TREES = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(HOOK.glob("*.py"))}
FOR_PEOPLE = {
    "inventory",
    "metrics",
    "people",
    "plan",
    "rates",
    "reconcile",
    "records",
    "room",
    "runtimes",
    "screens",
    "survey",
}
FOR_PEOPLE |= {"movein", "rebuild", "tasks", "unhooked", "usage"}
FOR_PEOPLE |= {"cdi", "configured", "containerd", "doctor", "injection", "injector", "selftest"}
FOR_PEOPLE |= {
    "basespec",
    "hooksd",
    "install",
    "machine",
    "origin",
    "places",
    "shipped",
    "steps",
    "uninstall",
    "upkeep",
}
PYDANTIC = {"models"}  # in the .pyz models_compiled stands under this name
HOOK_PATH = sorted(set(TREES) - FOR_PEOPLE - PYDANTIC)
each_module = pytest.mark.parametrize("module", sorted(TREES))


def layers() -> list[str]:
    """The modules in the order of the docstring, the uppermost first."""
    rows = re.findall(r"^    ([a-z]+(?:, [a-z]+)*)  ", hook.__doc__ or "", re.MULTILINE)
    return [name for row in rows for name in row.split(", ")]


ORDER = layers()


def imported(node: ast.AST) -> set[str]:
    """The modules that an import statement names; of `from hook import x` it is `hook.x`."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        return {f"hook.{alias.name}" for alias in node.names} if module == "hook" else {module}
    return set()


def at_start(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported, but for what is for type checkers or a fallback."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Try):
            assert all(isinstance(it.type, ast.Name) and it.type.id == "ImportError" for it in node.handlers)
            waiting += node.body
        elif isinstance(node, (ast.If, ast.With)):
            waiting += node.body
        yield node


def texts(tree: ast.Module) -> list[str]:
    """The text constants of a module, but for docstrings."""
    docstrings = [_docstring(node) for node in ast.walk(tree)]
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in docstrings]
    return [node.value for node in constants if isinstance(node.value, str)]


def _docstring(node: ast.AST) -> ast.expr | None:
    first = node.body[0] if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body else None
    return first.value if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) else None


def users(names: set[str]) -> set[str]:
    """The modules that import one of these, at whatever place."""
    every = {module: set().union(*map(imported, ast.walk(tree))) for module, tree in TREES.items()}
    return {module for module, found in every.items() if {name.partition(".")[0] for name in found} & names}


def test_the_docstring_names_every_module_once() -> None:
    assert sorted(ORDER) == sorted(set(TREES) - {"__init__", "__main__", "models_compiled"})


@each_module
def test_a_module_imports_only_those_above_it(module: str) -> None:
    if module == "__main__":
        above = set(ORDER)
    elif module == "__init__":
        above = set()
    else:
        above = set(ORDER[: ORDER.index("models" if module == "models_compiled" else module)])
    if module == "entry":
        above.add("usage")  # inside of a function, for people
    elif module in ("metrics", "usage"):
        above.add("__version__")
    found = {name for node in ast.walk(TREES[module]) for name in imported(node) if name.partition(".")[0] == "hook"}
    assert {name.removeprefix("hook.") for name in found} <= above


def test_system_calls_are_made_in_one_module() -> None:
    assert users({"posix", "fcntl", "select", "time"}) == {"system"}


def test_pydantic_is_known_to_the_models_alone() -> None:
    assert users({"pydantic", "pydantic_core"}) == {"models"}


def test_os_is_for_people() -> None:
    assert users({"os", "stat", "pathlib", "subprocess", "shutil"}) <= FOR_PEOPLE


@pytest.mark.parametrize(
    ("pattern", "owners"),
    [
        (r"^/proc(/|$)", {"injection", "machine", "process", "system", "tasks"}),
        (r"^/sys/", {"cgroups", "machine", "models", "models_compiled"}),
        (r"^/run/", {"injection", "machine", "models", "models_compiled", "runtimes"}),
        (r"^/dev/log", {"doctor", "report"}),
        (r"/?(last_cmd_status|tasks)$", {"resctrl", "view"}),
        (r"^(groups|members|unmonitored|locks)(/|$)", {"rundir", "records"}),
        (r"^said-|^freed$", {"rundir"}),
    ],
)
def test_a_place_is_known_to_its_owner_alone(pattern: str, owners: set[str]) -> None:
    """The paths under which the options' defaults are is the models' knowledge."""
    fields = {"groups", "members"}  # of the key's state: names of the same spelling, no paths
    shown = {*fields, "unmonitored"}  # what JSON and metrics for people call the same
    other = {"lifecycle": fields, "incarnation": fields, "screens": shown, "metrics": shown}
    found = {
        module
        for module, tree in TREES.items()
        if module not in ("models", "models_compiled") or "models" in owners
        for text in texts(tree)
        if re.search(pattern, text) and text not in other.get(module, ())
    }
    assert found == owners


@pytest.mark.parametrize(
    "module", sorted(FOR_PEOPLE - {"metrics", "movein", "rebuild", "reconcile", "selftest", "steps", "unhooked"})
)
def test_commands_that_look_change_nothing(module: str) -> None:
    """`metrics` alone writes a file, and that where it is told to; `reconcile` and `steps` change things.

    `unhooked` keeps what it found, for `reconcile`. `selftest` makes a group of its own, and removes it.
    """
    changes = {"chmod", "create_exclusively", "link", "make", "mkdir", "open_lock", "put", "remove"}
    changes |= {"remove_tree", "rename", "rmdir", "symlink", "try_flock", "unlink", "write_new"}
    changes |= {"write_once", "makedirs", "mkstemp", "truncate"}
    called = {node.func for node in ast.walk(TREES[module]) if isinstance(node, ast.Call)}
    names = {func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in called}
    assert not names & changes


def test_no_lock_is_taken_for_people_who_look() -> None:
    every = {
        name
        for module in FOR_PEOPLE - {"movein", "plan", "rebuild", "reconcile", "survey"}
        for node in ast.walk(TREES[module])
        for name in imported(node)
    }
    assert not every & {"hook.rundir", "hook.lifecycle", "hook.view", "hook.entry"}


@pytest.mark.parametrize("module", HOOK_PATH)
def test_nothing_costly_is_imported_when_a_container_starts(module: str) -> None:
    cheap = {"__future__", "_imp", "_json", "errno", "fcntl", "gc", "marshal", "posix", "select", "sys", "time", "hook"}
    found = {name for node in at_start(TREES[module]) for name in imported(node)}
    assert {name.partition(".")[0] for name in found} <= cheap
    assert not {name.removeprefix("hook.") for name in found} & FOR_PEOPLE


@pytest.mark.parametrize("module", HOOK_PATH)
def test_typing_is_for_type_checkers(module: str) -> None:
    assert not any(imported(node) & {"typing", "types", "re", "json", "os"} for node in at_start(TREES[module]))


@each_module
def test_annotations_are_never_evaluated(module: str) -> None:
    """3.9 could not."""
    tree = TREES[module]
    annotated = any(isinstance(node, (ast.FunctionDef, ast.AnnAssign)) for node in ast.walk(tree))
    assert not annotated or any("__future__" in imported(node) for node in tree.body)


@each_module
def test_a_module_says_what_it_is_for(module: str) -> None:
    assert ast.get_docstring(TREES[module])
