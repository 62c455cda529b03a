# SPDX-License-Identifier: Apache-2.0
"""The three traces of a failure: each is one bounded line or one record, and none depends on the other two."""

from __future__ import annotations

import errno
import posix
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hook.base import procfs, system
from hook.base.errors import HookError, Reason
from hook.base.explain import printable, system_error, unforeseen_error
from hook.base.models import Failure
from hook.stages import report
from hook.stages.identity import Container, Key, Pod
from hook.state.records import Records
from hook.state.store import RunDir

UID = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"


class Traces:
    """What got to stderr, to syslog and on record, and what stands in the way of each."""

    def __init__(self) -> None:
        self.stderr: list[bytes] = []
        self.syslog: list[bytes] = []
        self.records: list[Failure] = []
        self.flags: list[object] = []
        self.closed = 0
        self.broken: dict[str, Exception] = {}

    def _try(self, what: str) -> None:
        if what in self.broken:
            raise self.broken[what]

    def write_stderr(self, line: bytes) -> None:
        self._try("stderr")
        self.stderr.append(line)

    def write(self, _model: object, _name: str, failure: Failure) -> None:
        self._try("record")
        self.records.append(failure)

    # A socket of _socket

    def setblocking(self, blocking: bool) -> None:
        self.flags.append(blocking)

    def connect(self, path: str) -> None:
        self.flags.append(path)
        self._try("connect")

    def send(self, datagram: bytes, flags: int) -> None:
        self.flags.append(flags)
        self._try("send")
        self.syslog.append(datagram)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Traces:
    traces = Traces()

    def socket(_family: int, _kind: int) -> Traces:
        traces._try("socket")
        return traces

    constants = {"AF_UNIX": 1, "SOCK_DGRAM": 2, "MSG_DONTWAIT": 64, "MSG_NOSIGNAL": 16384}
    monkeypatch.setitem(sys.modules, "_socket", SimpleNamespace(socket=socket, **constants))
    monkeypatch.setattr(system, "write_stderr", traces.write_stderr)
    return traces


def as_run(traces: Traces) -> Any:  # noqa: ANN401  stands for a RunDir
    return SimpleNamespace(write=traces.write, count_run=lambda _name: None)


def test_a_line_on_stderr_and_one_in_syslog(traces: Traces) -> None:
    report.say("what is wrong")
    assert traces.stderr == [b"resctrl-mon-hook: what is wrong"]
    assert len(traces.syslog) == 1
    assert traces.syslog[0].startswith(b"<28>")
    assert traces.syslog[0].endswith(f" resctrl-mon-hook[{system.process_id()}]: what is wrong".encode())
    assert traces.flags == [False, "/dev/log", 64 | 16384], "nothing that could wait"
    assert traces.closed == 1


def test_syslog_can_be_left_out(traces: Traces) -> None:
    report.say("x", to_syslog=False)
    assert (len(traces.stderr), traces.syslog) == (1, [])


ERRORS = [OSError(errno.EAGAIN, "full"), BrokenPipeError(), RuntimeError("x"), MemoryError(), ImportError("_socket")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("broken", ["stderr", "socket", "connect", "send", "record"])
def test_each_trace_is_independent_of_the_others(traces: Traces, broken: str, error: Exception) -> None:
    traces.broken[broken] = error
    failure = report.make_failure(HookError(Reason.IO, "p"), "c1", "hook")
    report.say("first")
    report.record(as_run(traces), failure)
    assert any(b"first" in line for line in traces.stderr) is (broken != "stderr")
    assert any(b"first" in line for line in traces.syslog) is (broken not in ("socket", "connect", "send"))
    assert bool(traces.records) is (broken != "record")
    assert traces.closed == len(traces.syslog) + (broken in ("connect", "send")), "no descriptor is left open"


def test_a_record_that_cannot_be_written_is_reported(traces: Traces) -> None:
    traces.broken["record"] = OSError(errno.ENOSPC, "No space left on device")
    report.record(as_run(traces), report.make_failure(HookError(Reason.IO, "p"), "c1", "hook"))
    assert b"could not write the record" in traces.stderr[0]
    assert b"No space left" in traces.syslog[0]


@pytest.mark.parametrize("has_room", [True, False])
def test_a_record_that_cannot_be_written_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_room: bool
) -> None:
    run, failure = RunDir(str(tmp_path)), report.make_failure(HookError(Reason.IO, "p"), "c1", "hook")

    def refuse(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run.make_parts()
    with Records(run.path) as records:
        assert records.unrecorded() == 0
        monkeypatch.setattr(RunDir, "write", refuse)
        if not has_room:  # the file is made, as on tmpfs, but gets no page
            monkeypatch.setattr(posix, "write", refuse)
        report.record(run, failure)
        report.record(run, failure)
        assert records.unrecorded() == (2 if has_room else 1)
        assert records.runs() == {}


def test_nothing_gets_out_when_all_three_fail(traces: Traces) -> None:
    traces.broken = {"stderr": OSError(), "socket": OSError(), "record": OSError()}
    report.say("x")
    report.record(as_run(traces), report.make_failure(HookError(Reason.IO, "p"), "c1", "hook"))


def test_where_there_is_no_run_directory_there_is_no_record(traces: Traces) -> None:
    report.record(None, report.make_failure(HookError(Reason.IO, "p"), "c1", "hook"))
    assert (traces.stderr, traces.syslog) == ([], [])


def is_a_line(text: str) -> bool:
    """One line of printable ASCII, short enough for a datagram, and for a pipe after write_stderr has cut it."""
    return len(text.splitlines()) <= 1 and text.isascii() and text.isprintable() and len(text) <= 12_000


@settings(deadline=None)
@given(st.text(st.characters(codec=None)))
@example("\ud800\udcff\u2028\x85\0\x1b[2J\r\n\t")
@example("\U0001f600" * 5000)
@example("a" * 1_000_000)
def test_every_message_is_one_bounded_line_of_printable_ascii(text: str) -> None:
    assert is_a_line(printable(text))


@settings(deadline=None)
@given(st.text("".join(map(chr, range(32, 127))), max_size=1000))
def test_what_is_printable_already_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_a_cut_line_is_marked() -> None:
    assert printable("a" * 1001) == "a" * 1000 + "..."


@settings(deadline=None)
@given(st.lists(st.text(st.characters(codec=None)), min_size=4, max_size=4))
def test_a_record_holds_nothing_but_printable_lines(texts: list[str]) -> None:
    problem, tried, kernel, hint = texts
    error = HookError(Reason.IO, problem, tried=tried, kernel=kernel, hint=hint)
    failure = report.make_failure(error, "hook", "c1")
    assert all(map(is_a_line, (failure.problem, failure.tried, failure.kernel, failure.hint)))
    assert is_a_line(printable(str(error)))


def container() -> Container:
    found = Container("c1", 7, "/bundle", {})
    found.starttime = 99
    found.pod = Pod(UID, "shop", "cart-0", "app")
    return found


KEY = Key(UID, "pod")


def test_a_record_has_what_is_known_of_the_container() -> None:
    error = HookError(Reason.DENIED, "p", tried="t", kernel="k", hint="h")
    failure = report.make_failure(error, "createRuntime", container(), KEY, is_monitored=True).model_dump()
    assert len(failure.pop("time")) == len("2026-11-21T00:00:00Z")
    assert failure.pop("boottime") > 0
    assert failure == {
        "version": 1,
        "container": "c1",
        "stage": "createRuntime",
        "reason": "denied",
        "problem": "p",
        "tried": "t",
        "kernel": "k",
        "hint": "h",
        "monitored": True,
        "bundle": "/bundle",
        "pid": 7,
        "starttime": 99,
        "key": UID,
        "kind": "pod",
        "namespace": "shop",
        "pod": "cart-0",
        "name": "app",
    }


@pytest.mark.parametrize("change", [None, "pid", "key", "starttime"])
def test_record_omits_what_is_not_known(change: str | None) -> None:
    """No key where it is a bad one, no container where the state was none."""
    known = container()
    if change in ("pid", "starttime"):
        setattr(known, change, 0 if change == "pid" else None)
    key = KEY if change in ("pid", "starttime") else None
    failure = report.make_failure(HookError(Reason.IO, "p"), "hook", known if change else "c1", key).model_dump()
    for name in [change] if change else ["pid", "key", "kind", "starttime", "bundle"]:
        assert failure[name] is None
    assert Failure.model_validate(failure).model_dump() == failure


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), ValueError(), IndexError()])
def test_unreadable_start_time_does_not_stop_the_container_from_being_made(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "starttime", lambda _pid: fail(error)())
    assert Container("c1", 7, "/bundle", {}).starttime is None


def test_a_record_comes_back_from_the_run_directory(tmp_path: Path) -> None:
    run = RunDir(str(tmp_path / "run"))
    failure = report.make_failure(HookError(Reason.IO, "\udcff\n\u2028"), "createRuntime", container(), KEY)
    report.record(run, failure)
    assert run.glance(Failure, "c1") == failure


def fail(error: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


def test_a_failed_call_is_reported_with_its_file_and_a_hint() -> None:
    error = system_error("p", OSError(errno.ENOSPC, "No space left on device", "/run/x"))
    assert str(error).startswith("p; tried: No space left on device '/run/x': ENOSPC; hint: the file system of")
    assert str(system_error("p", OSError(errno.EIO, "Input/output error"))) == "p; tried: Input/output error: EIO"


def test_an_unforeseen_error_names_its_place() -> None:
    with pytest.raises(ValueError, match="a") as caught:
        fail(ValueError("a\nb"))()
    found = unforeseen_error(caught.value)
    assert found.reason == Reason.IO
    assert "ValueError" in found.problem
    assert "test_failures.py" in found.tried
    assert "in action" in found.tried
    assert "at " not in unforeseen_error(MemoryError()).tried


@pytest.mark.parametrize(
    ("error", "tried", "hinted"),
    [
        (OSError(errno.ENOSPC, "No space left on device", b"groups/x"), "ENOSPC", True),
        (OSError(errno.EROFS, "Read-only file system"), "EROFS", True),
        (OSError(errno.EMFILE, "Too many open files"), "EMFILE", True),
        (OSError(errno.EIO, "Input/output error", "x"), "'x': EIO", False),
        (OSError(99999, "?"), "OSError", False),
        (OSError("no number"), "no number: OSError", False),
        (BlockingIOError(), "BlockingIOError", False),
    ],
)
def test_a_system_call_that_failed_is_named(error: OSError, tried: str, hinted: bool) -> None:
    found = system_error("doing something", error)
    assert (found.reason, found.problem) == (Reason.IO, "doing something")
    assert tried in found.tried
    assert bool(found.hint) is hinted


@pytest.mark.parametrize(("user", "hint"), [(0, ""), (1000, "run it as root")])
def test_who_is_not_root_is_told_to_be(monkeypatch: pytest.MonkeyPatch, user: int, hint: str) -> None:
    monkeypatch.setattr(system, "user_id", lambda: user)
    assert system_error("doing something", PermissionError(errno.EACCES, "Permission denied")).hint == hint


def test_the_parts_of_an_error_have_one_order() -> None:
    whole = HookError("r", "problem", tried="t", kernel="k", hint="h")
    assert str(whole) == "problem; tried: t; kernel: k; hint: h"
    assert str(HookError("r", "problem")) == "problem"
