# SPDX-License-Identifier: Apache-2.0
"""The program stays as small and as plain as it is; and the rules for the code of the tests that no linter knows."""

from __future__ import annotations

from tests.support import house

HOOK, TESTS = house.sources("hook"), house.sources("tests")
MOST_LINES, MOST_FILES = 10_863, 73
TWO_FORMS = {"Model": ["hook/models.py", "hook/validation.py"]}
"""Pydantic's base of all models, and that of the compiled ones."""


def test_program_does_not_grow() -> None:
    """What has to grow raises these: look first for what can go instead."""
    assert sum(map(house.count_code, HOOK.values())) <= MOST_LINES
    assert len(HOOK) <= MOST_FILES


def test_lines_of_code_are_neither_blank_nor_comments_nor_docstrings() -> None:
    text = '"""Doc\nstring."""\n\nx = """a\nb"""  # a comment\n# another\ndef f():\n    """Doc."""\n    return x\n'
    assert house.count_code(text) == 4


def test_each_class_and_function_has_a_name_of_its_own() -> None:
    assert house.find_same_classes(HOOK) == TWO_FORMS
    assert house.find_same_functions(HOOK) == {}


def test_each_class_of_the_tests_has_a_name_of_its_own() -> None:
    assert house.find_same_classes(TESTS) == {}


def test_no_function_of_one_statement_is_used_once() -> None:
    assert house.find_thin_functions(HOOK) == []


def test_what_is_looked_for_is_found() -> None:
    one = "def _thin():\n    return 1\n\n\ndef both():\n    return _thin()\n\n\nclass Both:\n    pass\n"
    texts = {"one.py": one, "two.py": "def both():\n    pass\n\n\nclass Both:\n    pass\n"}
    assert house.find_same_classes(texts) == {"Both": ["one.py", "two.py"]}
    assert house.find_same_functions(texts) == {"both": ["one.py", "two.py"]}
    assert house.find_thin_functions(texts) == ["one.py:1 _thin"]
