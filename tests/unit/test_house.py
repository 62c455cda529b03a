# SPDX-License-Identifier: Apache-2.0
"""The program does not grow unnoticed; and no two classes share a name."""

from __future__ import annotations

from tests.support import house

HOOK, TESTS = house.sources("hook"), house.sources("tests")
MOST_LINES, MOST_FILES = 9_357, 70
TWO_FORMS = {"Model": ["hook/models.py", "hook/validation.py"]}
"""Pydantic's base of all models, and that of the compiled ones."""


def test_program_does_not_grow() -> None:
    """Raise these numbers only if nothing else can go instead."""
    assert sum(map(house.count_code, HOOK.values())) <= MOST_LINES
    assert len(HOOK) <= MOST_FILES


def test_lines_of_code_are_neither_blank_nor_comments_nor_docstrings() -> None:
    text = '"""Doc\nstring."""\n\nx = """a\nb"""  # a comment\n# another\ndef f():\n    """Doc."""\n    return x\n'
    assert house.count_code(text) == 4


def test_no_two_classes_share_a_name() -> None:
    assert house.find_same_classes(HOOK) == TWO_FORMS
    assert house.find_same_classes(TESTS) == {}
    twins = dict.fromkeys(("one.py", "two.py"), "class Both:\n    pass\n")
    assert house.find_same_classes(twins) == {"Both": ["one.py", "two.py"]}
