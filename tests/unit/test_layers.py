# SPDX-License-Identifier: Apache-2.0
"""The layers: which package may import which, and what only one module knows."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hook

HOOK = Path(hook.__file__).parent
TREES = {
    path.relative_to(HOOK).with_suffix("").as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(HOOK.rglob("*.py"))
}
PACKAGES = re.findall(r"^    (\w+)  ", hook.__doc__ or "", re.MULTILINE)
"""In the order of hook's docstring: each imports only those before it."""
MODULES = [name for name in TREES if not name.endswith("__init__") and name != "__main__"]
MODULES += ["doctor/__init__", "watch/__init__"]  # the packages with code in them
CORE = [name for name in MODULES if "/" not in name]
TOOLS = {name for name in MODULES if name not in CORE}
PYDANTIC = {
    "models",
    "node/models",
    "cli/options",
}  # in the .pyz modules with `_compiled` behind their names take their place
LOOKS_ONLY = [name for name in MODULES if name.split("/")[0] in ("node", "show", "doctor") and name != "node/records"]
each_module = pytest.mark.parametrize("module", MODULES)


def imported(node: ast.AST) -> set[str]:
    """The modules that an import statement names; `from hook.node import x` names `hook.node.x` if that is one."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        inner = {f"{module}.{alias.name}" for alias in node.names}
        return {name for name in inner if name.replace(".", "/").removeprefix("hook/") in TREES} or {module}
    return set()


def imports_of(module: str) -> set[str]:
    """The modules of hook that a module imports, at whatever place, as they are named here."""
    found = {name for node in ast.walk(TREES[module]) for name in imported(node)}
    return {name.removeprefix("hook.").replace(".", "/") for name in found if name.startswith("hook.")}


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


def test_docstring_names_every_package() -> None:
    assert sorted(PACKAGES) == sorted({name.split("/")[0] for name in TOOLS})


@pytest.mark.parametrize("package", PACKAGES)
def test_package_says_what_it_is_for(package: str) -> None:
    assert ast.get_docstring(TREES[f"{package}/__init__"])


@each_module
def test_module_imports_only_packages_before_its_own(module: str) -> None:
    package = module.split("/", maxsplit=1)[0]
    before = [] if module in CORE else PACKAGES[: PACKAGES.index(package) + 1]
    found = {name.split("/")[0] for name in imports_of(module) if name != "__version__" and name not in CORE}
    if module == "entry":
        found.discard("cli")  # inside of a function, for people
    assert found <= {*before}


def test_no_modules_import_each_other_when_they_are_imported() -> None:
    """What is imported inside of a function may go back: a failure's module knows the one that failed."""
    needs = {
        module: {
            name.removeprefix("hook.").replace(".", "/") for node in at_start(TREES[module]) for name in imported(node)
        }
        & {*MODULES}
        for module in MODULES
    }
    while ready := {module for module, others in needs.items() if not others & needs.keys()}:
        needs = {module: others for module, others in needs.items() if module not in ready}
    assert not needs


def test_system_calls_are_made_in_one_module() -> None:
    assert users({"posix", "fcntl", "time"}) == {"system"}
    assert users({"select", "termios"}) == {"system", "watch/connector"}
    assert users({"selectors"}) == {"node/programs"}


def test_the_http_server_is_imported_only_to_listen() -> None:
    assert users({"http", "socketserver", "asyncio"}) == {"show/server"}
    at_first = {module: set().union(*map(imported, at_start(TREES[module]))) for module in MODULES}
    assert [module for module, names in at_first.items() if "hook.show.server" in names] == []


def test_the_standard_library_is_all_that_is_needed_and_pydantic_is_known_to_the_models_alone() -> None:
    every = {name.partition(".")[0] for tree in TREES.values() for node in ast.walk(tree) for name in imported(node)}
    assert every - sys.stdlib_module_names <= {"hook", "pydantic", "pydantic_core"}
    assert users({"pydantic", "pydantic_core"}) == PYDANTIC


def test_os_is_for_people() -> None:
    assert users({"os", "stat", "pathlib", "subprocess", "shutil"}) <= TOOLS


OWNERS = {
    r"^/proc(/|$)": "conmon node/podman node/processes procfs show/hardware system",
    r"^/sys/": "install/install procfs",
    r"^/run/": "node/programs node/runtimes",
    r"^/dev/log": "report",
    r"(^|/)(last_cmd_status|tasks)$": "explain node/processes resctrl view",
    r"^(groups|members|unmonitored|locks)(/|$)": "damage node/records store",
    r"^said-|^freed$": "store",
}
"""Which modules know a place, by a pattern of its paths. The models know those that are defaults of options."""
FIELDS = {"groups", "members"}  # of the key's state: names of the same spelling, no paths
SHOWN = {*FIELDS, "unmonitored"}  # what JSON and metrics for people call the same
NO_PATHS = {
    **dict.fromkeys(("create", "record", "reconcile/diagnose"), FIELDS),
    **dict.fromkeys(("cli/verbs", "cli/options", "show/lists", "show/prometheus"), SHOWN),
}


@pytest.mark.parametrize("pattern", OWNERS)
def test_a_place_is_known_to_its_owners_alone(pattern: str) -> None:
    found = {
        module
        for module in TREES.keys() - {"models", "models_compiled", "cli/options_compiled"}
        for text in texts(TREES[module])
        if re.search(pattern, text) and text not in NO_PATHS.get(module, ())
    }
    assert found == {*OWNERS[pattern].split()}


@pytest.mark.parametrize(
    "module",
    [name for name in LOOKS_ONLY if name not in ("node/files", "node/runtimes", "show/prometheus")],
)
def test_module_that_looks_changes_nothing(module: str) -> None:
    """`prometheus` writes the file that its option names, `runtimes` keeps what it found, `files` is for install."""
    changes = {"chmod", "create_exclusively", "link", "make", "mkdir", "open_lock", "put", "remove"}
    changes |= {"remove_tree", "rename", "rmdir", "symlink", "try_flock", "unlink", "write_durably", "write_new"}
    changes |= {"write_once", "makedirs", "mkstemp", "truncate"}
    calls = [node for node in ast.walk(TREES[module]) if isinstance(node, ast.Call)]
    called = [it.args[0] if getattr(it.func, "attr", "") == "try_call" else it.func for it in calls]
    names = {func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in called}
    assert not names & changes


def test_no_lock_is_taken_for_people_who_look() -> None:
    every = {
        name for module in MODULES if module.split("/")[0] in ("show", "doctor", "cli") for name in imports_of(module)
    }
    assert not every & {"store", "create", "poststop", "view"}


def test_watch_loads_nothing_of_the_other_commands() -> None:
    """It runs for months, and its memory is to be small."""
    found, waiting = set[str](), ["cli/command_line", "watch/__init__"]
    while waiting:
        module = waiting.pop()
        names = {name for node in at_start(TREES[module]) for name in imported(node)}
        new = {name.removeprefix("hook.").replace(".", "/") for name in names} & {*MODULES} - found
        found |= new
        waiting += new
    assert {name.split("/")[0] for name in {*found} - {*CORE}} == {"node", "reconcile", "watch", "show", "cli"}
    assert {name for name in found if name.startswith("show/")} == {"show/terminal"}
    assert not found & {"cli/progress", "reconcile/run"}


@pytest.mark.parametrize("module", sorted({*CORE} - PYDANTIC))
def test_nothing_costly_is_imported_when_a_container_starts(module: str) -> None:
    cheap = {"__future__", "_imp", "_json", "errno", "fcntl", "gc", "marshal", "posix", "select", "sys", "time", "hook"}
    found = {name for node in at_start(TREES[module]) for name in imported(node)}
    assert {name.partition(".")[0] for name in found} <= cheap
    assert not {name.partition(".")[0] for name in found} & {"typing", "types", "re", "json", "os"}


@each_module
def test_module_says_what_it_is_for(module: str) -> None:
    assert ast.get_docstring(TREES[module])
