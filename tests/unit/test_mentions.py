# SPDX-License-Identifier: Apache-2.0
"""The words in sources: what docstrings and comments name exists,
and no text counts "1 containers".
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support import house

ROOT = Path(__file__).resolve().parents[2]
PATHS = re.compile(r"(?<![\w/.-])((?:hook|packaging|tests|docs|oci-hooks)/[\w./-]*\w)")
NAMES = re.compile(r"(?<![\w/.-])([a-z_]+)\.([A-Za-z_]\w*)(?![\w/.])")
OF_OTHERS = {
    "config.md",
    "config.toml",
    "resctrl.rst",
    "text.strip",
    "resctrl.control",
    "resctrl.events",
}
OF_OTHERS |= {"docs/systemd.md", "docs/cri/config.md", "_compiled.py", "unzip", "j1"}
"""These look like names of this project, and are documents of others, methods,
and files of the model of resctrl.
"""
FILES = re.compile(r"(?<![\w/.-])(\w+\.py)\b")
QUOTED = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)*)`")
CLASSES = re.compile(r"(?<![\w/.-])([a-z_]+)\.[A-Z][a-z]\w*(?![\w/.])")
SEE = re.compile(r"\bsee `(\w+)`")
NOUNS = re.compile(
    " "
    "(actions|cgroups|checks|connections|containers|counters|errors|events|failures|files|findings|groups|hooks|jobs|"
    "keys|lines|members|mon_groups|nodes|orphans|pods|problems|processes|records|samples|series|services|steps|tasks|"
    r"things|threads|times|warnings)\b"
)


parse = cache(ast.parse)


def find_texts(source: str) -> Iterator[str]:
    """Find the docstrings and comments of a module."""
    for node in ast.walk(parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def find_definitions(source: str) -> Iterator[str]:
    """Find the names that a module defines, at any depth."""
    for node in ast.walk(parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


HOOK = house.sources("hook")
MODULES: dict[str, set[str]] = {}
for module, source in HOOK.items():
    MODULES.setdefault(Path(module).stem, {"conf", "json", "py"}).update(find_definitions(source))


def find_words(source: str) -> Iterator[str]:
    """Find the names that a module uses, and the words of its texts that are no docstrings."""
    tree = parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and id(node) not in docstrings
            and isinstance(node.value, (str, bytes))
        ):
            yield from re.findall(r"\w+", str(node.value))
        else:
            fields = (getattr(node, field, None) for field in ("id", "attr", "arg", "name"))
            yield from (field for field in fields if isinstance(field, str))


SHIPPED = {**HOOK, **house.sources("packaging"), "build.py": (ROOT / "build.py").read_text("utf-8")}
SOURCES = {**SHIPPED, **house.sources("tests")}
PLACES = {word for path in SOURCES for word in Path(path).parts} | {
    Path(path).stem for path in SOURCES
}


class Names:
    """The names of modules, functions, classes and constants;
    and all names and words that sources use.
    """

    def __init__(self, sources: dict[str, str]) -> None:
        nodes = [node for source in sources.values() for node in ast.walk(parse(source))]
        self.defined = {
            *MODULES,
            *(node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))),
        }
        self.defined |= {
            node.id for node in nodes if isinstance(node, ast.Name) and node.id.isupper()
        }
        self.used = PLACES.union(*map(find_words, sources.values()))


IN_TESTS = {False: Names(SHIPPED), True: Names(SOURCES)}


def find_wrong_mentions(text: str, *, in_tests: bool = False) -> set[str]:
    """Find what a text names and there is not. What tests call `kernel` is a module of theirs."""
    known = {name: has for name, has in MODULES.items() if not (in_tests and name == "kernel")}
    wrong = {
        f"{name}.{has}"
        for name, has in NAMES.findall(text)
        if name in known and has not in known[name]
    }
    wrong |= {path for path in PATHS.findall(text) if not (ROOT / path).exists()}
    names = IN_TESTS[in_tests]
    wrong |= {*FILES.findall(text)} - PLACES | {*SEE.findall(text)} - names.defined
    wrong |= {*CLASSES.findall(text)} - names.used
    wrong |= {name for name in QUOTED.findall(text) if {*name.split(".")} - names.used}
    return wrong - OF_OTHERS


def test_comments_and_docstrings_name_what_exists() -> None:
    wrong = {
        path: find_wrong_mentions("\n".join(find_texts(text)), in_tests=path.startswith("tests/"))
        for path, text in SOURCES.items()
    }
    assert {path: mentions for path, mentions in wrong.items() if mentions} == {}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("see hook/base/nothing.py, e.g. hook/errors.py", {"hook/base/nothing.py"}),
        ("errors.Nothing, errors.HookError", {"errors.Nothing"}),
        ("as in node_models.py, models.py", {"node_models.py"}),
        ("node_models.Job, models.Model", {"node_models"}),
        ("(see `runc`), but `runc` is a program; see `programs`", {"runc"}),
        (
            "`no_such_name`, `names.no_such_name`, `names.check_path`",
            {"no_such_name", "names.no_such_name"},
        ),
    ],
)
def test_a_name_of_what_does_not_exist_is_found(text: str, wrong: set[str]) -> None:
    assert find_wrong_mentions(text) == wrong


def test_units_chart_and_man_page_name_files_that_exist() -> None:
    paths = [path for path in (ROOT / "packaging").rglob("*") if path.is_file()]
    texts = {
        path: path.read_text("utf-8")
        for path in paths
        if path.suffix not in {".py", ".pyc", ".json"}
    }
    wrong = {
        path: [mention for mention in PATHS.findall(text) if not (ROOT / mention).exists()]
        for path, text in texts.items()
    }
    assert {path: mentions for path, mentions in wrong.items() if mentions} == {}


def find_counts(source: str) -> Iterator[str]:
    """Find the f-strings in which a noun in the plural follows a number of any size."""
    for node in ast.walk(parse(source)):
        for value, text in (
            zip(node.values, node.values[1:]) if isinstance(node, ast.JoinedStr) else ()
        ):
            if isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant):
                is_constant = ast.unparse(value.value).rpartition(".")[2].isupper()
                if not is_constant and NOUNS.match(str(text.value)):
                    yield ast.unparse(node)


def test_no_noun_in_the_plural_follows_a_number_that_may_be_1() -> None:
    assert {path: [*find_counts(text)] for path, text in HOOK.items() if [*find_counts(text)]} == {}
    assert [*find_counts('f"at {len(x)} groups", f"at {_MOST} groups, {x} group, {y}"')] == [
        "f'at {len(x)} groups'"
    ]
