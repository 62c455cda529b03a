# SPDX-License-Identifier: Apache-2.0
"""What a hook reports: three traces of a failure, each bounded,
none of which depends on another.
"""

from __future__ import annotations

import errno
import sys
from typing import TYPE_CHECKING, Any

import pytest

from hook import rare, report, system
from hook.context import new_call, read_container
from hook.errors import HookError, Reason
from hook.identity import new_pod
from hook.models import Failure
from hook.node.records import Records
from hook.store import RunDir
from tests.simulator.machine import RUN
from tests.unit.simulated import ID, UID, Node, fails, node
from tests.unit.stops import Stop

if TYPE_CHECKING:
    from hook.identity import Container

__all__ = ["node"]  # fixture


class SpiedSocket:
    """In place of the module `_socket`, and of a socket of it: `calls`, and those that fail."""

    AF_UNIX, SOCK_DGRAM, MSG_DONTWAIT, MSG_NOSIGNAL = 1, 2, 64, 16384

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.broken: dict[str, Exception] = {}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  a function
        def call(*arguments: object) -> SpiedSocket:
            if name in self.broken:
                raise self.broken[name]
            self.calls.append((name, *arguments))
            return self

        return call


@pytest.fixture
def log(node: Node) -> SpiedSocket:
    spy = SpiedSocket()
    node.patch.setitem(sys.modules, "_socket", spy)
    return spy


def a_failure() -> Failure:
    return report.make_failure(HookError(Reason.IO, "p"), "hook", "c1")


def test_a_line_on_stderr_and_one_in_syslog(node: Node, log: SpiedSocket) -> None:
    report.write_line("what is wrong")
    assert node.machine.caller.stderr == b"resctrl-mon-hook: what is wrong\n"
    opened, *connected, (name, datagram, flags), closed = log.calls
    assert [opened, *connected, closed] == [
        ("socket", 1, 2), ("setblocking", False), ("connect", "/dev/log"), ("close",),
    ]  # fmt: skip
    assert (name, flags) == ("send", 64 | 16384), "nothing that could wait"
    assert str(datagram).startswith("b'<28>")
    assert str(datagram).endswith(f" resctrl-mon-hook[{system.process_id()}]: what is wrong'")
    report.write_line("x", to_syslog=False)
    assert len(log.calls) == 5
    assert (node.machine.caller.stderr.count(b"\n"), len(log.calls)) == (2, 5)


ERRORS = [
    OSError(errno.EAGAIN, "full"),
    BrokenPipeError(),
    RuntimeError("x"),
    MemoryError(),
    ImportError("_socket"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "broken",
    [["stderr"], ["socket"], ["connect"], ["send"], ["record"], ["stderr", "send", "record"]],
)
def test_each_trace_is_independent_of_the_others(
    node: Node, log: SpiedSocket, broken: list[str], error: Exception
) -> None:
    run, log.broken = RunDir(RUN), dict.fromkeys(broken, error)
    for name, place, attribute in (("stderr", rare, "write_stderr"), ("record", RunDir, "write")):
        if name in broken:
            node.patch.setattr(place, attribute, fails(error))
    report.write_line("first")
    report.write_record(node.context(), a_failure())
    calls = [name for name, *_ in log.calls]
    assert (b"first" in node.machine.caller.stderr) is ("stderr" not in broken)
    assert ("send" in calls) is (broken in (["stderr"], ["record"]))
    assert (run.glance(Failure, "c1") is None) is ("record" in broken)
    assert calls.count("close") == calls.count("socket"), "no descriptor is left open"


@pytest.mark.parametrize("has_room", [True, False])
def test_a_record_that_cannot_be_written_is_reported_and_counted(
    node: Node, has_room: bool
) -> None:
    run = RunDir(RUN)
    with Records(run.path) as records:
        assert records.count_events() == {}
        for _ in range(2):
            if has_room:
                node.machine.refusals["rename"] = 2 * [errno.ENOSPC]
            else:  # files are made, as on tmpfs, but get no page; the third write is that to stderr
                node.machine.refusals["write"] = 4 * [errno.ENOSPC]
            report.write_record(node.context(), a_failure())
        assert records.count_events() == {"unrecorded": 2 if has_room else 1}
    assert run.glance(Failure, "c1") is None
    if has_room:
        assert "could not write the record" in node.machine.syslog[0]
        assert b"No space left" in node.machine.caller.stderr


def test_a_writer_without_the_lock_shares_its_temporary_file_with_no_other(node: Node) -> None:
    """The record of one was renamed before the other had written it."""
    run = RunDir(RUN)
    opened: list[str] = []
    at_call = node.machine.at_call

    def record_call(name: str, path: str) -> None:
        if name == "open" and path.endswith(".tmp"):
            opened.append(path.rpartition("/")[2])
        at_call(name, path)

    node.patch.setattr(node.machine, "at_call", record_call)
    with run.lock("c1", system.monotonic()):
        report.write_record(node.context(), a_failure())
    report.write_record(node.context(), a_failure())
    assert opened == [".unlocked-4711.tmp", ".c1.tmp"]
    assert run.glance(Failure, "c1") == a_failure()


def container() -> Container:
    made = read_container("c1", 7, "/bundle", {})
    made.starttime = 99
    made.pod = new_pod(UID, ("shop", "cart-0", "app"))
    return made


def test_a_record_has_what_is_known_of_the_container(node: Node) -> None:
    error = HookError(Reason.DENIED, "p\udcff\n\u2028", tried="t", kernel="k", hint="h")
    failure = report.make_failure(
        error, "createRuntime", container(), (UID, "pod"), is_monitored=True
    )
    report.write_record(node.context(), failure)
    assert RunDir(RUN).glance(Failure, "c1") == failure
    fields = failure.model_dump()
    assert len(fields.pop("time")) == len("2026-11-21T00:00:00Z")
    assert fields.pop("boottime") == node.kernel.now
    assert fields == {
        **{
            "version": 1,
            "container": "c1",
            "stage": "createRuntime",
            "monitored": True,
            "bundle": "/bundle",
        },
        **{
            "reason": "denied",
            "problem": r"p\udcff\n\u2028",
            "tried": "t",
            "kernel": "k",
            "hint": "h",
        },
        **{
            "pid": 7,
            "starttime": 99,
            "key": UID,
            "kind": "pod",
            "namespace": "shop",
            "pod": "cart-0",
            "name": "app",
        },
        **{"history_file": "", "job_labels": {}},
    }


def test_a_late_poststop_that_fails_leaves_why_the_next_life_is_not_monitored(node: Node) -> None:
    """The simulator found it: reconcile took the record of the poststop for one of
    a container that is gone.
    """
    run_dir = node.context().run
    node.spawn(7, born=100)
    failure = Failure(
        container=ID, stage="createRuntime", reason="denied", problem="p", pid=7, starttime=100
    )
    run_dir.write(Failure, ID, failure)
    call = new_call("poststop", (node.options(), []), ID, "/bundle", None)
    for reason in ("io", Reason.BAD_STATE):
        report.report_failure(call, run_dir, HookError(reason, "p"), [])
        assert node.failures() == {ID: "denied"}
    start = new_call("createRuntime", (node.options(), []), ID, "/bundle", None)
    report.report_failure(start, run_dir, HookError("no_rmids", "p"), [])
    assert node.failures() == {ID: "no_rmids"}, "a createRuntime replaces what is there"
    run_dir.write(Failure, ID, failure)
    node.kernel.die(7)
    report.report_failure(call, run_dir, HookError("io", "p"), [])
    assert node.failures() == {ID: "io"}


def test_without_a_run_directory_a_failure_is_said_all_the_same(node: Node) -> None:
    node.patch.setattr(report, "RunDir", fails(errno.EIO))
    call = new_call("createRuntime", (node.options(), []), ID, "/bundle", None)
    assert report.write_traces(call, None, HookError("io", "p"), is_monitored=False) is None
    assert node.failures() == {}, "no run directory, no record"
    assert ": io: " in node.machine.caller.stderr.decode()


def test_a_first_time_comes_once_for_each_thing(node: Node) -> None:
    run = RunDir(RUN)
    assert [report.is_first(run, what) for what in ("a", "a", "b")] == [True, False, True]
    with Stop(node.machine, 1, errno.ENOSPC):
        assert report.is_first(run, "c"), "better twice than never"
    assert report.is_first(RunDir(RUN), "a") is False
