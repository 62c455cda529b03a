# SPDX-License-Identifier: Apache-2.0
"""JSON as the hook reads and writes it: equal to that of the standard library, within bounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fetch.interpreters import find, start_command
from hook import formats
from hook.models import Index

ROOT = Path(__file__).resolve().parents[2]


def refuse(text: str) -> None:
    raise ValueError(text)


def reference(text: str) -> Any:  # noqa: ANN401
    return json.loads(text, parse_constant=refuse)


numbers = st.integers(-(10**23), 10**23) | st.floats(allow_nan=False, allow_infinity=False)
trees = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


def same(one: object, other: object) -> bool:
    """Equal, and of the same kinds: 1, 1.0 and True are not the same."""
    return repr(one) == repr(other)


def test_loads_and_dumps_are_those_of_json_and_a_dump_is_one_line_of_ascii() -> None:
    @settings(max_examples=100)
    @given(
        trees, st.booleans(), st.sampled_from([None, 0, 2]), st.sampled_from(["", " ", "\t\r\n"])
    )
    @example({"\ud800": "\udcff", "\u2028": [(), {}]}, True, None, "")
    def run(tree: object, ascii_only: bool, indent: int | None, padding: str) -> None:
        text = padding + json.dumps(tree, ensure_ascii=ascii_only, indent=indent) + padding
        assert same(formats.loads(text), reference(text))
        dumped = formats.dumps(tree)
        assert dumped.isascii()
        assert dumped.isprintable()
        assert same(json.loads(dumped), reference(text))

    run()
    record = Index(key="k")
    assert json.loads(formats.dumps({"one": record, "more": [record]})) == {
        "one": vars(record),
        "more": [vars(record)],
    }


def test_what_one_refuses_the_other_refuses() -> None:
    alphabet = '{}[]",: \\u09e-+.truefalsnN\n\t\0\u00e4\ufeff'

    @settings(max_examples=150)
    @given(st.text(alphabet, max_size=8) | st.builds("[{}]".format, st.text(alphabet, max_size=8)))
    @example("\ufeff{}")
    @example('"\t"')
    @example("1 ")
    def run(text: str) -> None:
        try:
            expected = reference(text)
        except ValueError:
            with pytest.raises(ValueError, match=r"\A[^\n]+\Z"):
                formats.loads(text)
        else:
            assert same(formats.loads(text), expected)

    run()


NOT_OURS = [
    "",
    " \n",
    "NaN",
    "[Infinity]",
    '{"pid": -Infinity}',
    "9" * 26,
    "-" + "9" * 5000,
    "1." + "0" * 24,
    "[1e" + "0" * 24 + "]",
    "[" * 100_000,
    '{"a":' * 100_000,
    "[" * 100_000 + "]" * 100_000,
    "{}{}",
    "{} x",
    "1 2",
    "null\0",
    "word",
    "'a'",
    "[1,]",
    '{"a" 1}',
    "{1: 2}",
    "[1",
    '"abc',
    '"\\x"',
    '"\\u12"',
    "01",
    "+1",
    ".5",
    "\u00a0{}",
]


def test_text_that_is_no_json_of_ours_is_a_value_error_of_one_line() -> None:
    for text in NOT_OURS:
        with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as caught:
            formats.loads(text)
        assert text != "NaN" or "NaN" in str(caught.value)


def test_numbers_may_be_as_long_as_the_longest_of_ours_and_the_last_of_duplicates_counts() -> None:
    assert formats.loads("9" * 25) == int("9" * 25)
    assert formats.loads(repr(-sys.float_info.max)) == -sys.float_info.max
    assert formats.loads('{"a": 1, "a": 2}') == {"a": 2}


def test_value_without_a_json_form_is_a_type_error() -> None:
    for value in (b"", {1, 2}, object(), [object()], {"a": b""}, {(1,): 2}):
        with pytest.raises(TypeError):
            formats.dumps(value)


def test_torn_json_is_a_value_error_also_where_json_cannot_be_imported() -> None:
    """The C scanner looks for an exception of `json`; pytest has long loaded that,
    hence another process.
    """
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from hook import formats\n"
        "assert 'json' not in sys.modules\n"
        "sys.path.clear()\n"
        "for text in sys.argv[2:]:\n"
        " try: formats.loads(text)\n"
        " except ValueError: pass\n"
        " else: sys.exit('accepted')\n"
    )
    torn = ['{"a', "[1,]", '{"a": 1', "", "nul", "[1}", '"\\u']
    for interpreter in find():
        subprocess.run(
            [*start_command(interpreter.path), "-IS", "-c", code, str(ROOT), *torn],
            check=True,
            timeout=300,
        )


DEEPEST = 100


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("[" * DEEPEST + "]" * DEEPEST, None),
        ("[" * (DEEPEST + 1), ""),
        ('{"a": ' * (DEEPEST + 1), '{"a": ' * (DEEPEST - 1) + '{"a'),
        ('{"id": "c1", "x": ' + "[" * 1000, '{"id": "c1", "x'),
        (json.dumps(["[{" * 1000, "\\", '"' + "[" * 1000, "\\" * 3 + '"', "[" * 1000]), None),
        (json.dumps([[], {}] * 1000), None),
        ('"' + "\\\\" * 3 + '"' + "[" * 1000, '"' + "\\\\" * 3),
    ],
)
def test_json_is_cut_where_it_is_too_deep_and_what_is_in_texts_does_not_count(
    text: str, kept: str | None
) -> None:
    assert formats.cut_deep(text) == (text if kept is None else kept)
    if kept is None:
        assert formats.loads(text) == json.loads(text)
    else:
        with pytest.raises(ValueError, match="nested too deeply"):
            formats.loads(text)
