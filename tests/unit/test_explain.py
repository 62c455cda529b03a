# SPDX-License-Identifier: Apache-2.0
"""Errors and names for people: bounded lines of printable ASCII, and what was tried, failed, and helps."""

from __future__ import annotations

import errno

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hook import report, system
from hook.errors import HookError, Reason
from hook.explain import printable, short_id, system_error, unforeseen_error, who

ID = "5f3c" * 16
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
    assert short_id("my-container") == "my-container", "only the IDs of engines are cut"


def is_a_line(text: str) -> bool:
    """One line of printable ASCII, short enough for a datagram, and for a pipe after write_stderr has cut it."""
    return len(text.splitlines()) <= 1 and text.isascii() and text.isprintable() and len(text) <= 12_000


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
    problem, tried, kernel, hint = said
    error = HookError(Reason.IO, problem, tried=tried, kernel=kernel, hint=hint)
    failure = report.make_failure(error, "hook", "c1")
    assert all(map(is_a_line, (failure.problem, failure.tried, failure.kernel, failure.hint)))
    assert is_a_line(printable(str(error)))


@pytest.mark.parametrize(
    ("error", "tried", "hint"),
    [
        (OSError(errno.ENOSPC, "No space left", "/run/x"), "No space left '/run/x': ENOSPC", "the file system of"),
        (OSError(errno.ENOSPC, "No space left", b"groups/x"), "ENOSPC", "the file system of"),
        (OSError(errno.EROFS, "Read-only file system"), "EROFS", "the file system"),
        (OSError(errno.EMFILE, "Too many open files"), "EMFILE", " "),
        (OSError(errno.EIO, "Input/output error", "x"), "Input/output error 'x': EIO", ""),
        (OSError(errno.EIO, "Input/output error"), "Input/output error: EIO", ""),
        (OSError(99999, "?"), "OSError", ""),
        (OSError("no number"), "no number: OSError", ""),
        (BlockingIOError(), "BlockingIOError", ""),
    ],
)
def test_a_system_call_that_failed_is_named(error: OSError, tried: str, hint: str) -> None:
    found = system_error("doing something", error)
    assert (found.reason, found.problem) == (Reason.IO, "doing something")
    assert tried in found.tried
    assert hint in found.hint
    assert bool(hint) is bool(found.hint)


@pytest.mark.parametrize(("user", "hint"), [(0, ""), (1000, "run it as root")])
def test_who_is_not_root_is_told_to_be(monkeypatch: pytest.MonkeyPatch, user: int, hint: str) -> None:
    monkeypatch.setattr(system, "user_id", lambda: user)
    assert system_error("doing something", PermissionError(errno.EACCES, "Permission denied")).hint == hint


def test_an_unforeseen_error_names_its_place() -> None:
    def fail() -> None:
        raise ValueError("a\nb")

    with pytest.raises(ValueError, match="a") as caught:
        fail()
    found = unforeseen_error(caught.value)
    assert (found.reason, "ValueError" in found.problem) == (Reason.IO, True)
    assert "test_explain.py" in found.tried
    assert "in fail" in found.tried
    assert "at " not in unforeseen_error(MemoryError()).tried


def test_the_parts_of_an_error_have_one_order() -> None:
    whole = HookError("r", "problem", tried="t", kernel="k", hint="h")
    assert str(whole) == "problem; tried: t; kernel: k; hint: h"
    assert str(HookError("r", "problem")) == "problem"
