# SPDX-License-Identifier: Apache-2.0
"""The layers: the core, which a container's start may run, and the tools in packages above it;
and who opens files.
"""

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
    path.relative_to(HOOK).with_suffix("").as_posix().removesuffix("/__init__"): ast.parse(
        path.read_text("utf-8")
    )
    for path in sorted(HOOK.rglob("*.py"))
}
PACKAGES = re.findall(r"^    (\w+)  ", hook.__doc__ or "", re.MULTILINE)
"""In the order of hook's docstring: each imports only those before it."""
# The .pyz has modules with `_compiled` behind their names instead.
PYDANTIC = {"models", "node/models"}
TOOLS = {name for name in TREES if name.split("/")[0] in PACKAGES}
CORE = TREES.keys() - TOOLS - {"__init__", "__main__"}
BUILTIN = {
    "_json",
    "_signal",
    "_socket",
    "errno",
    "fcntl",
    "marshal",
    "posix",
    "select",
    "sys",
    "time",
}
"""All that the core imports beside itself:
modules of CPython that are built into the static one.
"""
LAZY = {
    "rare": "only to wait, to write a line of history, or after a failure",
    "host": "only if a key may linger, or a task may be in a group without a member",
    "inventory": "only if the kernel refuses a group, or to look for groups or records",
    "report": "only after a failure",
    "words": "only in the report of a failure",
    "odd_state": "only if the state is too large or invalid",
    "refusals": "only if a process or its labels are refused, or a container changes its key",
    "life_turns": (
        "only if a key comes back or gets other names, a group was replaced, or an ID is in use "
        "twice"
    ),
    "reclaim": "only after a failed try of createRuntime, or if a group has lingered long enough",
    "invalid": "only if an input is invalid",
    "damage": "only if something is in the way of a record, or it is unreadable",
    "conmon": "only for Podman's containers",
    "counters": (
        "only if a group was replaced or joins another: 2.5 % of Python's start, with `line`"
    ),
    "line": "only if a key ends that has a history",
    "ending": "as `line`",
    "unmonitored": "only if the record of a failure goes",
}
"""The modules of the core that neither a usual start nor a usual end imports, and why."""
STAGES = {"create": {"create", "life"}, "poststop": {"key", "life_end", "poststop"}}
"""Those that only a createRuntime, and only a poststop imports."""
PURE = {"counters", "errors", "formats", "identity", "life", "life_end", "life_turns", "line"}
PURE |= {"invalid", "models", "names", "validation"}
"""The pure layer of the core: from a record, and what was read, to the next record.

It neither reads nor writes.
"""
LOOKING = {name for name in TOOLS if name.split("/")[0] in ("show", "doctor", "cli")}


def imported(node: ast.AST) -> set[str]:
    """The modules that a statement imports: those of hook/ as in TREES,
    others by their first name.
    """
    if isinstance(node, ast.Import):
        names = {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
        inner = {f"{node.module}.{alias.name}" for alias in node.names}
        names = {
            name for name in inner if name.removeprefix("hook.").replace(".", "/") in TREES
        } or {node.module or ""}
    else:
        return set()
    ours = {
        name.removeprefix("hook.").replace(".", "/") for name in names if name.startswith("hook.")
    }
    return ours | {name.partition(".")[0] for name in names if not name.startswith("hook.")}


def running(node: ast.AST, *, lazily: bool) -> Iterator[ast.AST]:
    """The statements that run, without what is for type checkers; `lazily`:
    those in functions as well.
    """
    for child in ast.iter_child_nodes(node):
        if (
            isinstance(child, ast.If)
            and isinstance(child.test, ast.Name)
            and child.test.id == "TYPE_CHECKING"
        ):
            continue
        if lazily or not isinstance(child, ast.FunctionDef):
            yield child
            yield from running(child, lazily=lazily)


EAGER = {
    name: {module for node in running(tree, lazily=False) for module in imported(node)}
    for name, tree in TREES.items()
}
EVER = {
    name: {module for node in running(tree, lazily=True) for module in imported(node)}
    for name, tree in TREES.items()
}
"""The modules that each module imports: when it is imported, and at any time."""
NAMED = {
    name: {module for node in ast.walk(tree) for module in imported(node)}
    for name, tree in TREES.items()
}
"""The modules that each module imports at any time, or for type checkers."""


def users(*names: str) -> set[str]:
    """The modules that import one of these, at any place."""
    return {module for module, imported_modules in EVER.items() if imported_modules & {*names}}


def test_docstring_of_hook_lists_every_package_and_each_module_says_what_it_is_for() -> None:
    assert sorted(PACKAGES) == sorted({name.split("/")[0] for name in TOOLS})
    assert [name for name, tree in TREES.items() if not ast.get_docstring(tree)] == []


def test_core_imports_builtin_modules_and_no_tool() -> None:
    offenders = {
        name: EVER[name] - CORE - BUILTIN - {"__future__", "hook"} for name in CORE - PYDANTIC
    }
    assert {name: modules for name, modules in offenders.items() if modules} == {}
    assert BUILTIN - {"_json", "_socket", "fcntl", "select"} <= {*sys.builtin_module_names}, (
        "these four may be shared"
    )


def test_no_import_leads_back_up_at_any_time_or_for_type_checkers() -> None:
    graph = {name: NAMED[name] & TREES.keys() for name in TREES}
    assert {*TopologicalSorter(graph).static_order()} == TREES.keys()


def test_pure_layer_imports_only_itself_and_reads_no_clock() -> None:
    assert {name: modules for name in PURE if (modules := NAMED[name] & TREES.keys() - PURE)} == {}
    assert set().union(*(EVER[name] & BUILTIN for name in PURE)) == {"_json", "sys", "time"}
    nodes = {
        ast.unparse(node) for node in ast.walk(TREES["formats"]) if isinstance(node, ast.Attribute)
    }
    assert {node for node in nodes if node.startswith("time.")} == {"time.strftime", "time.gmtime"}


TRANSITIONS = ("life", "life_end", "life_turns")
FUNCTIONS = [
    (name, node)
    for name, tree in TREES.items()
    for node in tree.body
    if isinstance(node, ast.FunctionDef)
]


def test_a_call_says_whether_it_only_makes_a_record_or_writes() -> None:
    """What holds a key's lock is called like no transition,
    and a transition is called by its module.
    """
    pure = {function.name for module, function in FUNCTIONS if module in TRANSITIONS}
    locked = {
        function.name.strip("_")
        for module, function in FUNCTIONS
        if module not in PURE
        and "locked" in {argument.arg.strip("_") for argument in function.args.args}
    }
    assert {"settle", "enter", "remove_members"} <= locked
    assert pure & locked == set()
    bare = {
        alias.name
        for module in TREES.keys() - PURE
        for node in ast.walk(TREES[module])
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").removeprefix("hook.") in TRANSITIONS
        for alias in node.names
    }
    assert bare & pure == set()


def list_started(*modules: str) -> set[str]:
    """The modules of the core that these import at once."""
    started, further = set[str](), {*modules}
    while further:
        started |= further
        further = set().union(*(EAGER[name] & CORE for name in further)) - started
    return started


def test_a_usual_start_and_end_import_all_of_the_core_but_what_the_list_names() -> None:
    common = list_started("entry")
    assert {stage: list_started(stage) - common for stage in STAGES} == STAGES
    assert CORE - common - {"models_compiled"} - set().union(*STAGES.values()) == LAZY.keys()


def test_first_word_decides_above_both_rooms() -> None:
    assert EAGER["__main__"] & TREES.keys() == {"entry", "system"}
    assert EVER["__main__"] & TOOLS == {"cli/command_line"}


def test_packages_import_only_the_core_and_packages_before_them() -> None:
    offenders = {}
    for name in TOOLS:
        before = PACKAGES[: PACKAGES.index(name.split("/")[0]) + 1]
        strangers = {
            module
            for module in EVER[name] & TREES.keys()
            if module not in CORE and module.split("/")[0] not in before
        }
        offenders[name] = strangers - {"__init__"}
    assert {name: modules for name, modules in offenders.items() if modules} == {}


def test_system_calls_are_made_in_one_module_and_only_the_models_know_pydantic() -> None:
    assert users("posix", "fcntl") == {"system"}
    assert users("time") == {"formats", "system"}  # the former formats times, and reads no clock
    assert users("os", "stat", "pathlib", "subprocess", "shutil") <= TOOLS
    assert set().union(*EVER.values()) - sys.stdlib_module_names - TREES.keys() <= {
        "hook",
        "pydantic",
        "pydantic_core",
    }
    assert users("pydantic", "pydantic_core") == PYDANTIC


OF_TESTS = {"test_verb", "faults_verb", "_say_what_is_built_first"}
"""The functions of build.py that import tests/: those of the verbs that run tests."""


def test_what_is_built_takes_nothing_from_the_tests() -> None:
    paths = [path for top in (HOOK, HOOK.parent / "packaging") for path in top.rglob("*.py")]
    trees: dict[str, ast.AST] = {
        str(path.relative_to(HOOK.parent)): ast.parse(path.read_text()) for path in paths
    }
    parts = ast.parse((HOOK.parent / "build.py").read_text("utf-8")).body
    trees |= {
        part.name if isinstance(part, ast.FunctionDef) else f"build.py:{part.lineno}": part
        for part in parts
    }
    importing = {
        name for name, tree in trees.items() for node in ast.walk(tree) if "tests" in imported(node)
    }
    assert importing == OF_TESTS


def test_people_who_look_take_no_lock() -> None:
    assert {
        name for name in LOOKING if EVER[name] & {"store", "create", "poststop", "key"}
    } == set()


# --- Only two modules open, list and match files: `system` for the program's records, `files` for
# all others

IMAGE = HOOK.parent / "packaging/kubernetes/image"
SOURCES = {
    **TREES,
    **{f"image/{name}": ast.parse((IMAGE / f"{name}.py").read_text()) for name in ("host", "node")},
}
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
}
OPENERS |= {
    "read_text",
    "ZipFile",
    "is_zipfile",
    "TarFile",
    "FileIO",
    "NamedTemporaryFile",
    "TemporaryFile",
}
OPENERS |= {"mkstemp", "mmap"}
MODULES = {
    "glob",
    "pathlib",
    "shutil",
    "linecache",
    "fileinput",
    "codecs",
    "tokenize",
    "tomllib",
    "gzip",
    "tarfile",
}
ELSEWHERE = {
    "node/lines": {"gzip"},  # of a descriptor that came through the door
    "reconcile/rotate": {"gzip"},
    "show/server": {"gzip"},  # of what it sends
    "install/install": {"ZipFile"},  # of bytes that came through the door
    "node/programs": {"shutil"},  # finds programs
    "image/node": {"listdir", "pathlib", "shutil"},  # what is written in its own pod
}
OWN = {
    f"system.{name}" for name in ("read_file", "read_counter", "list_directory", "open_directory")
}
"""`system` opens these files without a check of their kind: the program or the kernel made them."""
OF_THE_KERNEL = {
    "doctor/checks",
    "jobs/wait",
    "node/processes",
    "reconcile/survey",
    "show/snapshot",
}
"""The tools that read resctrl's info, cgroups and mon_groups, or which files they have open."""


def opened_by(module: str) -> Iterator[str]:
    """What a module opens files with, or could; the functions of `files` are the door's."""
    for node in ast.walk(SOURCES[module]):
        if isinstance(node, ast.Import):
            yield from {alias.name.partition(".")[0] for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom):
            yield from {(node.module or "").partition(".")[0]} & MODULES
            yield from (
                {alias.name for alias in node.names} & OPENERS
                if not (node.module or "").startswith("hook")
                else ()
            )
        elif isinstance(node, ast.Name) and node.id == "open":
            yield "open"
        elif (
            isinstance(node, ast.Attribute)
            and node.attr in OPENERS
            and ast.unparse(node.value) != "files"
        ):
            yield node.attr


def test_only_the_doors_open_files_and_each_exception_is_needed() -> None:
    openers = {module: {*opened_by(module)} for module in SOURCES.keys() - {"system", "node/files"}}
    assert {module: names for module, names in openers.items() if names} == ELSEWHERE


def test_tools_do_not_read_files_of_others_as_our_own() -> None:
    """But the one that reads the program's records."""
    names = {
        module: {
            ast.unparse(node) for node in ast.walk(TREES[module]) if isinstance(node, ast.Attribute)
        }
        for module in TOOLS - {"node/records"}
    }
    assert {module for module, names in names.items() if names & OWN} == OF_THE_KERNEL


OF_PROCESSES = {
    *("stat", "status", "task", "cgroup", "cpu_resctrl_groups", "ns"),
    # The hook reads the words of the parent of its own parent, if that has the hook's namespaces:
    # conmon's.
    "cmdline",
}
"""The files of /proc/PID that are read: no name or environment of a process,
and nothing below its root.
"""


def test_of_a_process_nothing_is_read_that_its_author_decides() -> None:
    texts = [
        path.read_text("utf-8")
        for path in (*HOOK.rglob("*.py"), IMAGE / "host.py", IMAGE / "node.py")
    ]
    assert {
        name for text in texts for name in re.findall(r"/proc/\{[^}]*\}/(\w+)", text)
    } == OF_PROCESSES
    assert sum(text.count("}/cmdline") for text in texts) == 1
    assert not [text for text in texts if re.search(r"[\"']/proc/[\"'] *\+", text)]
