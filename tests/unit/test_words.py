# SPDX-License-Identifier: Apache-2.0
"""How failures, exceptions and names are worded, in one bounded line each."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hook import report, system
from hook.errors import HookError, Reason
from hook.rare import as_hook_error
from hook.words import explain, printable, short_id, who
from tests.support.house import ROOT
from tests.unit.simulated import ID

texts = st.text(st.characters(codec=None))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), "5f3c5f3c5f3c"),
        (("shop", "cart-0", "app"), "shop/cart-0 app (5f3c5f3c5f3c)"),
        (("shop", "cart-0", None), "shop/cart-0 (5f3c5f3c5f3c)"),
        ((None, "stack", "db"), "stack db (5f3c5f3c5f3c)"),
        (("shop", None, "app"), "app (5f3c5f3c5f3c)"),
        (("shop", "a\nb", "\x1b[2J"), "shop/a\\nb \\x1b[2J (5f3c5f3c5f3c)"),
    ],
)
def test_a_container_is_named_as_far_as_it_is_known(names: tuple[str, ...], expected: str) -> None:
    assert who(ID, *names) == expected
    for name in ("my-container", "x" * 64):  # a job's key may have as many characters as an ID
        assert short_id(name) == name, "only the IDs of engines are cut"


def is_a_line(text: str) -> bool:
    """One line of printable ASCII, short enough for a datagram,
    and for a pipe after write_stderr has cut it.
    """
    return (
        len(text.splitlines()) <= 1
        and text.isascii()
        and text.isprintable()
        and len(text) <= 12_000
    )


@given(texts, st.text("".join(map(chr, range(32, 127))), max_size=1000))
@example("\ud800\udcff\u2028\x85\0\x1b[2J\r\n\t", "")
@example("\U0001f600" * 5000, "a" * 1000)
@example("a" * 1_000_000, "")
def test_every_message_is_one_bounded_line_of_printable_ascii(text: str, is_one: str) -> None:
    assert is_a_line(printable(text))
    assert printable(is_one) == is_one


def test_a_cut_line_is_marked() -> None:
    assert printable("a" * 1001) == "a" * 1000 + "..."


@given(st.lists(texts, min_size=4, max_size=4))
def test_a_record_holds_nothing_but_printable_lines(said: list[str]) -> None:
    """The dot: a text may be the name of a kind, which has words of its own."""
    problem, tried, kernel, hint = said
    error = HookError(Reason.IO, f"{problem}.", tried=tried, kernel=kernel, hint=hint)
    failure = report.make_failure(error, "hook", "c1")
    assert all(map(is_a_line, (failure.problem, failure.tried, failure.kernel, failure.hint)))
    assert is_a_line(printable(str(explain(error))))


@pytest.mark.parametrize(
    ("error", "tried", "hint"),
    [
        (
            OSError(errno.ENOSPC, "No space left", "/srv/x"),
            "No space left '/srv/x': ENOSPC",
            "the file system of /srv/x",
        ),
        (
            OSError(errno.ENOSPC, "No space left", b"/run/x"),
            "ENOSPC",
            "the file system of /run/x is full",
        ),
        (
            OSError(errno.ENOSPC, "No space left", b"groups/x"),
            "ENOSPC",
            "the file system of the run directory is full",
        ),
        (
            OSError(errno.EROFS, "Read-only file system"),
            "EROFS",
            "the file system of the run directory is read-only",
        ),
        (OSError(errno.EMFILE, "Too many open files"), "EMFILE", " "),
        (OSError(errno.EIO, "Input/output error", "x"), "Input/output error 'x': EIO", ""),
        # A descriptor.
        (OSError(errno.EIO, "Input/output error", 5), "Input/output error: EIO", ""),
        (OSError(errno.EIO, "Input/output error"), "Input/output error: EIO", ""),
        (OSError(99999, "?"), "OSError", ""),
        (OSError("no number"), "no number: OSError", ""),
        (BlockingIOError(), "BlockingIOError", ""),
    ],
)
def test_a_system_call_that_failed_is_named(error: OSError, tried: str, hint: str) -> None:
    failure = as_hook_error("doing something", error)
    wording = explain(failure)
    assert (failure.reason, wording.problem) == (Reason.IO, "doing something")
    assert tried in wording.tried
    assert hint in wording.hint
    assert bool(hint) is bool(wording.hint)


@pytest.mark.parametrize(("user", "hint"), [(0, ""), (1000, "run it as root")])
def test_who_is_not_root_is_told_to_be(
    monkeypatch: pytest.MonkeyPatch, user: int, hint: str
) -> None:
    monkeypatch.setattr(system, "user_id", lambda: user)
    assert (
        explain(
            as_hook_error("doing something", PermissionError(errno.EACCES, "Permission denied"))
        ).hint
        == hint
    )


def test_an_unforeseen_error_names_its_place() -> None:
    def fail() -> None:
        raise ValueError("a\nb")

    with pytest.raises(ValueError, match="a") as caught:
        fail()
    wording = explain(caught.value)
    assert "ValueError" in wording.problem
    assert "test_words.py" in wording.tried
    assert "in fail" in wording.tried
    assert "at " not in explain(RuntimeError()).tried
    assert str(explain(MemoryError())) == "there is too little memory"


def test_the_parts_of_an_error_have_one_order() -> None:
    whole = HookError("r", "problem", tried="t", kernel="k", hint="h")
    assert str(explain(whole)) == "problem; tried: t; kernel: k; hint: h"
    assert str(explain(HookError("r", "problem"))) == "problem"
    assert (
        str(explain(HookError("r", "bad ctrl_group", name="a/b")))
        == "'a/b' is not a valid name of a ctrl_group"
    )


# --- Each kind of failure in words, by an interpreter with no more codecs than the core phase of
# the ELF file

WITHOUT_CODECS = """
import codecs, encodings, string
from hook import formats, report, words
from hook.errors import HookError, Reason
from hook.models import Failure
codecs.unregister(encodings.search_function)
odd = "a\\n\\0\\x7f\\xe9\\u20ac\\u2028\\ud800\\udcff\\U0001f600" * 300
errors = [OSError(13, odd, b"/\\xff\\n"), OSError(28, odd, odd), OSError()]
errors += [ValueError(odd), KeyError(odd)]
for broken in (lambda: b"\\xff".decode(), lambda: odd.encode(), lambda: odd.encode("ascii")):
    try:
        broken()
    except UnicodeError as error:
        errors.append(error)
try:
    Failure.model_validate({odd: odd})
except ValueError as error:
    errors.append(error)
def list_failures(reason, error):
    yield HookError(reason, odd, tried=odd, kernel=odd, hint=odd)
    yield HookError(reason, "defect", error=error)
    if isinstance(error, OSError):
        yield HookError(reason, "system call", problem=odd, error=error)
    assert words._HINTS.keys() <= words.PROBLEMS.keys()
    for kind, problem in words.PROBLEMS.items():
        texts = problem + words._HINTS.get(kind, "")
        fields = [field for _, field, form, _ in string.Formatter().parse(texts) if field]
        numbers = ("mode", "owner", "number", "pid")
        facts = {field: 7 if field in numbers else odd for field in fields}
        if isinstance(error, OSError):
            for operation in words._OPERATIONS:
                more = {"operation": operation, "path": odd, "pid": 7, "kernel": odd}
                yield HookError(reason, kind, **{**facts, **more, "error": error})
        yield HookError(reason, kind, **{**facts, "parent": odd, "hint": odd, "error": error})
reasons = [value for name, value in vars(Reason).items() if name.isupper()]
for number in range(max(len(reasons), len(errors))):
    reason, error = reasons[number % len(reasons)], errors[number % len(errors)]
    for failure in list_failures(reason, error):
        record = formats.dumps(report.make_failure(failure, "hook", "c1", is_monitored=True))
        line = words.printable(str(words.explain(failure)))
        assert record.isascii() and record.isprintable(), record
        assert line.isascii() and line.isprintable(), line
report.write_line(odd, to_syslog=False)
print("each")
"""


@pytest.mark.skipif(sys.version_info < (3, 10), reason="needs codecs.unregister")
def test_each_kind_of_failure_is_worded_without_a_codec_that_is_not_built_in() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_CODECS],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout) == (0, "each\n"), done.stderr


def test_printable_escapes_each_character_as_python_does() -> None:
    for start in range(0, sys.maxunicode + 1, 1000):
        text = "".join(map(chr, range(start, min(start + 1000, sys.maxunicode + 1))))
        expected = (c if " " <= c <= "~" else c.encode("unicode_escape").decode() for c in text)
        assert printable(text) == "".join(expected)
