# SPDX-License-Identifier: Apache-2.0
"""The words in sources: what docstrings and comments name exists, and no text counts "1 containers"."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.support import house

ROOT = Path(__file__).resolve().parents[2]
PATHS = re.compile(r"(?<![\w/.-])((?:hook|packaging|tests|docs|oci-hooks)/[\w./-]*\w)")
NAMES = re.compile(r"(?<![\w/.-])([a-z_]+)\.([A-Za-z_]\w*)(?![\w/.])")
OF_OTHERS = {"config.md", "config.toml", "resctrl.rst", "text.strip", "resctrl.control", "resctrl.events"}
OF_OTHERS |= {"docs/systemd.md", "docs/cri/config.md"}
"""These look like names of this project, and are documents of others, methods, and files of the model of resctrl."""
NOUNS = re.compile(
    " (actions|cgroups|checks|connections|containers|counters|errors|events|failures|files|findings|groups|hooks|jobs|"
    "keys|lines|members|mon_groups|nodes|orphans|pods|problems|processes|records|samples|series|services|steps|tasks|"
    r"things|threads|times|warnings)\b"
)


def find_texts(source: str) -> Iterator[str]:
    """Find the docstrings and comments of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def find_definitions(source: str) -> Iterator[str]:
    """Find the names that a module defines, at any depth."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


HOOK = house.sources("hook")
MODULES: dict[str, set[str]] = {}
for module, source in HOOK.items():
    MODULES.setdefault(Path(module).stem, {"conf", "json", "py"}).update(find_definitions(source))


def find_wrong_mentions(text: str, *, in_tests: bool = False) -> set[str]:
    """Find what a text names and there is not. What tests call `kernel` is a module of theirs."""
    known = {name: has for name, has in MODULES.items() if not (in_tests and name == "kernel")}
    names = {f"{name}.{has}" for name, has in NAMES.findall(text) if name in known and has not in known[name]}
    return (names | {path for path in PATHS.findall(text) if not (ROOT / path).exists()}) - OF_OTHERS


def test_comments_and_docstrings_name_what_exists() -> None:
    sources = {**HOOK, **house.sources("packaging"), **house.sources("tests")}
    sources["build.py"] = (ROOT / "build.py").read_text("utf-8")
    wrong = {
        path: find_wrong_mentions("\n".join(find_texts(text)), in_tests=path.startswith("tests/"))
        for path, text in sources.items()
    }
    assert {path: found for path, found in wrong.items() if found} == {}
    text = "see hook/base/nothing.py, errors.Nothing, errors.HookError, e.g. hook/errors.py"
    assert find_wrong_mentions(text) == {"hook/base/nothing.py", "errors.Nothing"}


def test_units_chart_and_man_page_name_files_that_exist() -> None:
    paths = [path for path in (ROOT / "packaging").rglob("*") if path.is_file()]
    texts = {it: it.read_text("utf-8") for it in paths if it.suffix not in {".py", ".pyc", ".json"}}
    wrong = {path: [it for it in PATHS.findall(text) if not (ROOT / it).exists()] for path, text in texts.items()}
    assert {path: found for path, found in wrong.items() if found} == {}


def find_counts(source: str) -> Iterator[str]:
    """Find the f-strings in which a noun in the plural follows a number of any size."""
    for node in ast.walk(ast.parse(source)):
        for value, text in zip(node.values, node.values[1:]) if isinstance(node, ast.JoinedStr) else ():
            if isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant):
                is_constant = ast.unparse(value.value).rpartition(".")[2].isupper()
                if not is_constant and NOUNS.match(str(text.value)):
                    yield ast.unparse(node)


def test_no_noun_in_the_plural_follows_a_number_that_may_be_1() -> None:
    assert {path: [*find_counts(text)] for path, text in HOOK.items() if [*find_counts(text)]} == {}
    assert [*find_counts('f"at {len(x)} groups", f"at {_MOST} groups, {x} group, {y}"')] == ["f'at {len(x)} groups'"]
