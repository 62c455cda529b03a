# SPDX-License-Identifier: Apache-2.0
"""The rules for the code of the tests that no linter knows."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_each_class_of_the_tests_has_a_name_of_its_own() -> None:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in TESTS.rglob("*.py")]
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert names["ScratchMachine"] == 1
    assert [name for name, number in names.items() if number > 1] == []
