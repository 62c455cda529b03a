# SPDX-License-Identifier: Apache-2.0
"""What the kernel is asked on the way in, where it is of no help."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fetch.interpreters import find, start_command
from hook import rare, system
from hook.models import Index
from tests.unit.simulated import fails
from tests.unit.stops import RealCalls


@pytest.mark.parametrize(
    ("read_size", "limit", "patience", "expected"),
    [
        (10, 100, 2.0, b"0123456789"),
        (4, 100, 4.0, b"0123456789"),
        (3, 7, 5.0, b"0123456"),  # it is too long: its beginning
        (10, 100, 0.0, b""),
    ],
)
def test_of_a_stdin_that_does_not_end_the_beginning_is_read(
    monkeypatch: pytest.MonkeyPatch, read_size: int, limit: int, patience: float, expected: bytes
) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(system, "_own_stdin", lambda: (reading, True))
    monkeypatch.setattr(system, "READ_SIZE", read_size)
    monkeypatch.setattr(system, "monotonic", itertools.count().__next__)  # a second passes before each read
    os.write(writing, b"0123456789")
    assert system.read_stdin(limit, patience) == (expected, False)
    os.close(reading)
    os.close(writing)


def test_a_stdin_that_cannot_be_looked_at_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "posix", SimpleNamespace(fstat=fails(errno.EIO)))
    assert system._own_stdin() == (0, True)


def test_an_append_returns_the_end_of_its_text_behind_that_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which comes between the open and the write: of many hooks that fail at once, each counts once."""
    calls, directory = RealCalls(), os.open(tmp_path, os.O_RDONLY)
    with (tmp_path / "file").open("ab", buffering=0) as other:
        vars(calls)["at_call"] = lambda name, _path: other.write(b"..") if name == "write" else None
        monkeypatch.setattr(system, "posix", calls)
        assert system.append("file", ".", directory) == (3, True)
    os.close(directory)


def test_lines_are_appended_to_a_regular_file_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="Not a regular file"):
        rare.append_lines(str(tmp_path / "fifo"), ["line"])


def test_the_age_of_a_link_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    assert rare.age(str(tmp_path / "link")) < 3600


@pytest.mark.parametrize("held", ["held", "free", "free in the instant in which the wait is over"])
def test_a_wait_for_a_lock_puts_the_handler_of_the_alarm_and_the_mask_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    def handler(*_: object) -> None:
        pass

    def ring(which: int, seconds: float, interval: float = 0.0) -> None:
        set_timer(which, seconds, interval)
        if not seconds:
            signal.raise_signal(signal.SIGALRM)

    former, set_timer = signal.signal(signal.SIGALRM, handler), signal.setitimer
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    if "instant" in held:
        monkeypatch.setattr("_signal.setitimer", ring)
    try:
        with (tmp_path / "lock").open("w") as holder, (tmp_path / "lock").open("w") as other:
            if held == "held":
                fcntl.flock(holder, fcntl.LOCK_EX)
            patience = 0.02 if held == "held" else 1e9
            assert rare.wait_for_flock(other.fileno(), system.monotonic() + patience) is (held != "held")
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        assert signal.getsignal(signal.SIGALRM) is handler
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == {*mask, signal.SIGALRM}
    finally:
        signal.signal(signal.SIGALRM, former)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


# --- JSON


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
    @given(trees, st.booleans(), st.sampled_from([None, 0, 2]), st.sampled_from(["", " ", "\t\r\n"]))
    @example({"\ud800": "\udcff", "\u2028": [(), {}]}, True, None, "")
    def run(tree: object, ascii_only: bool, indent: int | None, padding: str) -> None:
        text = padding + json.dumps(tree, ensure_ascii=ascii_only, indent=indent) + padding
        assert same(system.loads(text), reference(text))
        dumped = system.dumps(tree)
        assert dumped.isascii()
        assert dumped.isprintable()
        assert same(json.loads(dumped), reference(text))

    run()
    record = Index(key="k")
    assert json.loads(system.dumps({"one": record, "more": [record]})) == {"one": vars(record), "more": [vars(record)]}


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
                system.loads(text)
        else:
            assert same(system.loads(text), expected)

    run()


NOT_OURS = [
    *("", " \n", "NaN", "[Infinity]", '{"pid": -Infinity}', "9" * 26, "-" + "9" * 5000, "1." + "0" * 24),
    *("[1e" + "0" * 24 + "]", "[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000, "{}{}", "{} x", "1 2"),
    *("null\0", "word", "'a'", "[1,]", '{"a" 1}', "{1: 2}", "[1", '"abc', '"\\x"', '"\\u12"', "01", "+1", ".5"),
    "\u00a0{}",
]


def test_text_that_is_no_json_of_ours_is_a_value_error_of_one_line() -> None:
    for text in NOT_OURS:
        with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as caught:
            system.loads(text)
        assert text != "NaN" or "NaN" in str(caught.value)


def test_numbers_may_be_as_long_as_the_longest_of_ours_and_the_last_of_duplicates_counts() -> None:
    assert system.loads("9" * 25) == int("9" * 25)
    assert system.loads(repr(-sys.float_info.max)) == -sys.float_info.max
    assert system.loads('{"a": 1, "a": 2}') == {"a": 2}


def test_value_without_a_json_form_is_a_type_error() -> None:
    for value in (b"", {1, 2}, object(), [object()], {"a": b""}, {(1,): 2}):
        with pytest.raises(TypeError):
            system.dumps(value)


def test_torn_json_is_a_value_error_also_where_json_cannot_be_imported() -> None:
    """The C scanner looks for an exception of `json`; pytest has long loaded that, hence another process."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from hook import system\n"
        "assert 'json' not in sys.modules\n"
        "sys.path.clear()\n"
        "for text in sys.argv[2:]:\n"
        " try: system.loads(text)\n"
        " except ValueError: pass\n"
        " else: sys.exit('accepted')\n"
    )
    torn = ['{"a', "[1,]", '{"a": 1', "", "nul", "[1}", '"\\u']
    for interpreter in find():
        subprocess.run([*start_command(interpreter.path), "-IS", "-c", code, str(ROOT), *torn], check=True, timeout=300)


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
def test_json_is_cut_where_it_is_too_deep_and_what_is_in_texts_does_not_count(text: str, kept: str | None) -> None:
    assert system.cut_deep(text) == (text if kept is None else kept)
    if kept is None:
        assert system.loads(text) == json.loads(text)
    else:
        with pytest.raises(ValueError, match="nested too deeply"):
            system.loads(text)


def test_syslog_has_the_local_time_of_the_machine_whatever_tz_says() -> None:
    """The process is another one, since TZ is the whole process's."""
    code = "from hook import rare, system; rare.syslog_time(); print(system.time.tzname)"
    there, none = (
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
        for env in ({"TZ": "XXX-14"}, {})
    )
    assert there.stdout == none.stdout
