# SPDX-License-Identifier: Apache-2.0
"""JSON without `json`: the same objects as from `json`, and nothing that is not JSON of ours."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hook import jsontext
from hook.models import Index
from tests.unit.files import examples

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["_json", "fallback"])
def form(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The module as it is on CPython, and as it is where there is no `_json`, on a `json` that has none either."""
    if request.param == "_json":
        yield jsontext
        return
    kept = {name: sys.modules.pop(name) for name in _json_modules()}
    sys.modules["_json"] = None  # type: ignore[assignment]  # the import system's own sign for "there is none"
    try:
        spec = importlib.util.spec_from_file_location("jsontext_without_c", jsontext.__file__)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert importlib.import_module("json.scanner").c_make_scanner is None
        yield module
    finally:
        for name in _json_modules():
            del sys.modules[name]
        sys.modules.update(kept)


def _json_modules() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in ("json", "_json")]


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
padding = st.text(" \t\r\n", max_size=3)


def same(one: object, other: object) -> bool:
    """Equal, and of the same kinds: 1, 1.0 and True are not the same."""
    return repr(one) == repr(other)


def test_loads_is_json_loads(form: ModuleType) -> None:
    @examples(60)
    @given(trees, st.booleans(), st.sampled_from([None, 0, 2]), padding, padding)
    def run(tree: object, ascii_only: bool, indent: int | None, before: str, after: str) -> None:
        text = before + json.dumps(tree, ensure_ascii=ascii_only, indent=indent) + after
        assert same(form.loads(text), reference(text))

    run()


def test_dumps_comes_back_and_is_one_line_of_ascii(form: ModuleType) -> None:
    @examples(60)
    @given(trees)
    @example({"\ud800": "\udcff", "\u2028": [(), {}]})
    def run(tree: object) -> None:
        text = form.dumps(tree)
        assert text.isascii()
        assert text.isprintable()
        assert same(json.loads(text), reference(json.dumps(tree)))
        assert same(form.loads(text), json.loads(text))

    run()


def test_what_one_refuses_the_other_refuses(form: ModuleType) -> None:
    alphabet = '{}[]",: \\u09e-+.truefalsnN\n\t\0\u00e4\ufeff'

    @examples(150)
    @given(st.text(alphabet, max_size=8) | st.builds("[{}]".format, st.text(alphabet, max_size=8)))
    @example("\ufeff{}")
    @example('"\t"')
    @example("1 ")
    def run(text: str) -> None:
        try:
            expected = reference(text)
        except ValueError:
            with pytest.raises(ValueError, match=r"\A[^\n]+\Z"):
                form.loads(text)
        else:
            assert same(form.loads(text), expected)

    run()


def test_real_states_and_models_are_what_json_makes_of_them(form: ModuleType) -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests/states").glob("*.json")]
    assert [form.loads(text) for text in texts] == [json.loads(text) for text in texts] != []
    record = Index(key="k")
    assert json.loads(form.dumps({"one": record, "more": [record]})) == {"one": vars(record), "more": [vars(record)]}


NOT_OURS = [
    *("", " \n", "NaN", "[Infinity]", '{"pid": -Infinity}', "9" * 26, "-" + "9" * 5000, "1." + "0" * 24),
    *("[1e" + "0" * 24 + "]", "[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000, "{}{}", "{} x", "1 2"),
    *("null\0", "word", "'a'", "[1,]", '{"a" 1}', "{1: 2}", "[1", '"abc', '"\\x"', '"\\u12"', "01", "+1", ".5"),
    "\u00a0{}",
]


@pytest.mark.parametrize("text", NOT_OURS, ids=range(len(NOT_OURS)))
def test_what_is_no_json_of_ours_is_a_value_error_of_one_line(form: ModuleType, text: str) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as caught:
        form.loads(text)
    assert text != "NaN" or "NaN" in str(caught.value)


def test_numbers_may_be_as_long_as_the_longest_of_ours_and_the_last_of_duplicates_counts(form: ModuleType) -> None:
    assert form.loads("9" * 25) == int("9" * 25)
    assert form.loads(repr(-sys.float_info.max)) == -sys.float_info.max
    assert form.loads('{"a": 1, "a": 2}') == {"a": 2}


@pytest.mark.parametrize("value", [b"", {1, 2}, object(), [object()], {"a": b""}, {(1,): 2}])
def test_what_has_no_json_form_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError):
        jsontext.dumps(value)


@pytest.mark.parametrize("text", ['{"a', "[1,]", '{"a": 1', "", "nul", "[1}", '"\\u'])
def test_torn_json_is_a_value_error_also_where_json_was_never_loaded(text: str) -> None:
    """Up to 3.12 the C scanner raises SystemError there; pytest has long loaded `json`, hence another process."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from hook import jsontext\n"
        "assert 'json' not in sys.modules\n"
        "try: jsontext.loads(sys.argv[2])\n"
        "except ValueError: pass\n"
        "else: sys.exit('accepted')\n"
    )
    subprocess.run([sys.executable, "-IS", "-c", code, str(ROOT), text], check=True, timeout=300)
