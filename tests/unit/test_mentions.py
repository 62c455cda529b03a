# SPDX-License-Identifier: Apache-2.0
"""What docstrings and comments name exists: files of the project, and what modules of hook/ have."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [ROOT / "build.py", *(path for top in ("hook", "packaging", "tests") for path in (ROOT / top).rglob("*.py"))]
OF_OTHERS = {"config.md", "config.toml", "resctrl.rst", "text.strip", "resctrl.control", "resctrl.events"}
"""Looks like a name of ours, and is none: a document of the kernel's, methods, files of the model of resctrl."""


def texts(path: Path) -> Iterator[str]:
    """The docstrings and comments of a module."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def defined(path: Path) -> set[str]:
    """What a module defines, at whatever place."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
    return found


MODULES: dict[str, set[str]] = {}
for module in (ROOT / "hook").rglob("*.py"):
    MODULES.setdefault(module.stem, set()).update(defined(module))


def wrong_mentions(text: str) -> list[str]:
    paths = re.findall(r"(?<![\w/.-])((?:hook|packaging|tests|oci-hooks)/[\w./-]*\w)", text)
    names = re.findall(r"(?<![\w/.-])([a-z_]+)\.([A-Za-z_]\w*)(?![\w/.])", text)
    return [
        *(path for path in paths if not (ROOT / path).exists()),
        *(
            f"{module}.{name}"
            for module, name in names
            if module in MODULES and name not in {*MODULES[module], "conf", "json", "py"}
        ),
    ]


OTHER_FILES = sorted(
    path for path in (ROOT / "packaging").rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc", ".json"}
)


@pytest.mark.parametrize("path", OTHER_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_named_by_a_unit_the_chart_or_the_man_page_exists(path: Path) -> None:
    found = re.findall(r"(?<![\w/.-])((?:hook|packaging|tests|docs|oci-hooks)/[\w./-]*\w)", path.read_text("utf-8"))
    assert [it for it in found if not (ROOT / it).exists()] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_named_exists(path: Path) -> None:
    wrong = {it for text in texts(path) for it in wrong_mentions(text)} - OF_OTHERS
    # What tests call `kernel` is a module of theirs.
    assert {it for it in wrong if not (path.is_relative_to(ROOT / "tests") and it.startswith("kernel."))} == set()


def test_a_stale_name_is_found() -> None:
    text = "see hook/base/nothing.py, errors.Nothing, errors.HookError, e.g. hook/errors.py"
    assert wrong_mentions(text) == ["hook/base/nothing.py", "errors.Nothing"]
