# SPDX-License-Identifier: Apache-2.0
"""What a hook reports: three traces of a failure, each bounded, none of which depends on another; and how a call is
served whose state is larger than a hook keeps: what is in its head counts, and nothing that only looks like it.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hook import __main__ as program
from hook import entry, report, system
from hook.errors import HookError, Reason, as_hook_error
from hook.identity import Container, Key, Pod
from hook.models import Failure
from hook.node.records import Records
from hook.report import explain, printable, short_id, who
from hook.store import RunDir
from tests.simulator.machine import RUN
from tests.support.house import ROOT
from tests.unit.simulated import ID, UID, Node, fails, node

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
    report.say("what is wrong")
    assert node.machine.caller.stderr == b"resctrl-mon-hook: what is wrong\n"
    opened, *connected, (name, datagram, flags), closed = log.calls
    assert [opened, *connected, closed] == [
        ("socket", 1, 2), ("setblocking", False), ("connect", "/dev/log"), ("close",),
    ]  # fmt: skip
    assert (name, flags) == ("send", 64 | 16384), "nothing that could wait"
    assert str(datagram).startswith("b'<28>")
    assert str(datagram).endswith(f" resctrl-mon-hook[{system.process_id()}]: what is wrong'")
    report.say("x", to_syslog=False)
    assert len(log.calls) == 5
    report.record(None, a_failure())
    assert (node.machine.caller.stderr.count(b"\n"), len(log.calls)) == (2, 5), "no run directory, no record"


ERRORS = [OSError(errno.EAGAIN, "full"), BrokenPipeError(), RuntimeError("x"), MemoryError(), ImportError("_socket")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "broken", [["stderr"], ["socket"], ["connect"], ["send"], ["record"], ["stderr", "send", "record"]]
)
def test_each_trace_is_independent_of_the_others(
    node: Node, log: SpiedSocket, broken: list[str], error: Exception
) -> None:
    run, log.broken = RunDir(RUN), dict.fromkeys(broken, error)
    for name, place, attribute in (("stderr", system, "write_stderr"), ("record", RunDir, "write")):
        if name in broken:
            node.patch.setattr(place, attribute, fails(error))
    report.say("first")
    report.record(run, a_failure())
    calls = [name for name, *_ in log.calls]
    assert (b"first" in node.machine.caller.stderr) is ("stderr" not in broken)
    assert ("send" in calls) is (broken in (["stderr"], ["record"]))
    assert (run.glance(Failure, "c1") is None) is ("record" in broken)
    assert calls.count("close") == calls.count("socket"), "no descriptor is left open"


@pytest.mark.parametrize("has_room", [True, False])
def test_a_record_that_cannot_be_written_is_reported_and_counted(node: Node, has_room: bool) -> None:
    run = RunDir(RUN)
    with Records(run.path) as records:
        assert records.count_events() == {}
        for _ in range(2):
            if has_room:
                node.machine.refusals["rename"] = 2 * [errno.ENOSPC]
            else:  # files are made, as on tmpfs, but get no page; the third write is that to stderr
                node.machine.refusals["write"] = 4 * [errno.ENOSPC]
            report.record(run, a_failure())
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
        report.record(run, a_failure())
    report.record(run, a_failure())
    assert opened == [".unlocked-4711.tmp", ".c1.tmp"]
    assert run.glance(Failure, "c1") == a_failure()


KEY = Key(UID, "pod")


def container() -> Container:
    found = Container("c1", 7, "/bundle", {})
    found.starttime = 99
    found.pod = Pod(UID, ("shop", "cart-0", "app"))
    return found


def test_a_record_has_what_is_known_of_the_container(node: Node) -> None:
    error = HookError(Reason.DENIED, "p\udcff\n\u2028", tried="t", kernel="k", hint="h")
    failure = report.make_failure(error, "createRuntime", container(), KEY, is_monitored=True)
    report.record(RunDir(RUN), failure)
    assert RunDir(RUN).glance(Failure, "c1") == failure
    fields = failure.model_dump()
    assert len(fields.pop("time")) == len("2026-11-21T00:00:00Z")
    assert fields.pop("boottime") == node.kernel.now
    assert fields == {
        **{"version": 1, "container": "c1", "stage": "createRuntime", "monitored": True, "bundle": "/bundle"},
        **{"reason": "denied", "problem": r"p\udcff\n\u2028", "tried": "t", "kernel": "k", "hint": "h"},
        **{"pid": 7, "starttime": 99, "key": UID, "kind": "pod", "namespace": "shop", "pod": "cart-0", "name": "app"},
        **{"history_file": "", "labels": {}},
    }


def test_a_late_poststop_that_fails_leaves_why_the_next_life_is_not_monitored(node: Node) -> None:
    """The simulator found it: reconcile took the record of the poststop for one of a container that is gone."""
    run_dir = node.context().run
    node.spawn(7, born=100)
    failure = Failure(container=ID, stage="createRuntime", reason="denied", problem="p", pid=7, starttime=100)
    run_dir.write(Failure, ID, failure)
    call = entry.Call("poststop", (node.options(), []), ID, "/bundle", None)
    for reason in ("io", Reason.BAD_STATE):
        report.report(call, run_dir, HookError(reason, "p"), [])
        assert node.failures() == {ID: "denied"}
    start = entry.Call("createRuntime", (node.options(), []), ID, "/bundle", None)
    report.report(start, run_dir, HookError("no_rmids", "p"), [])
    assert node.failures() == {ID: "no_rmids"}, "a createRuntime replaces what is there"
    run_dir.write(Failure, ID, failure)
    node.kernel.die(7)
    report.report(call, run_dir, HookError("io", "p"), [])
    assert node.failures() == {ID: "io"}


# --- The head of a state that is too large


VICTIM = "00000000-0000-4000-8000-000000000001"
STATE: dict[str, Any] = {"ociVersion": "1.0.2", "id": "c1", "status": "creating", "pid": 7, "bundle": "/bundle"}
FORGED = {"id": "victim", "pid": 8, "bundle": "/evil", "status": "stopped"}
HEADS = {
    "runc": json.dumps(STATE)[:-1],
    "crun, indented": json.dumps({**STATE, "root": "/r", "status": "created"}, indent=2)[:-2].replace("/", "\\/"),
    "after another object": json.dumps({"x": [{"y": FORGED}], **STATE})[:-1],
    "after a text that looks like it": json.dumps({"x": json.dumps(FORGED), **STATE})[:-1],
}
RESTS = [
    ', "annotations": {"a": "' + "x" * 100,
    ', "annotations": {"a": "b"',
    ', "annotations": {' + json.dumps(json.dumps(FORGED)) + ': "',
    ',\n "annotations": ' + "[" * 100_000,
    ', "annotations": {"pid": 8, "id": "victim"',
    *(', "pi', ",", ', "pid"', ', "pid": ', ', "pid": 8', ', "pid" 8, "id": "victim"', ', 7: 8, "id": "victim"'),
]


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("rest", RESTS, ids=range(len(RESTS)))
def test_members_of_the_outermost_object_that_are_whole_are_the_head(head: str, rest: str) -> None:
    found = report.read_head(head + rest)
    assert (found["id"], found["pid"], found["bundle"]) == ("c1", 7, "/bundle")
    assert "annotations" not in found


@pytest.mark.parametrize(
    "text", ["", " ", "7", "[1, 2", '"id"', "{", "{}", '{"id"', '{"id": "c1"', '{"id": "c1" "pid": 7}']
)
def test_what_is_not_followed_by_another_member_is_no_head(text: str) -> None:
    assert report.read_head(text).keys() <= {"ociVersion"}


# --- A call with such a state. With one of any size, in bounded memory: fuse/test_process.py.


LIMIT = 400
BIG = {"io.kubernetes.pod.uid": UID, "preStop": "<" * 1000}
NAMES = {"io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.name": "web", "io.kubernetes.container.name": "app"}
OPTED = {"monitor.resctrl-mon.io": "false"}


def called(node: Node, state: dict[str, Any], *options: str, verb: str = "hook", config: object = None) -> str:
    """Call the hook, which keeps little enough for tests to be quick; returns its stderr."""
    if config is not None:
        node.machine.add("/bundle/config.json", json.dumps(config).encode())
    node.machine.caller.stdin, node.machine.caller.stderr = json.dumps(state).encode(), b""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry, "STDIN_LIMIT", LIMIT)
        assert program.dispatch([verb, *options]) == 0
    return node.machine.caller.stderr.decode()


def test_a_state_that_is_too_large_is_monitored_by_its_head_and_its_cgroup(node: Node) -> None:
    node.spawn(7)
    said = called(node, {**STATE, "annotations": {"io.kubernetes.cri.sandbox-uid": VICTIM, **BIG}})
    assert node.groups() == {f"oci-{UID}": {7}}
    assert said.count("\n") <= 1
    assert f"bad_state: its state is larger than {LIMIT} bytes" in said
    assert "no filter leaves it out" in said
    assert node.failures() == {}
    node.kernel.die(7)
    assert called(node, {**STATE, "status": "stopped", "annotations": BIG}) == ""
    assert node.groups() == {}


def test_a_state_that_is_too_large_and_has_no_pid_is_a_bad_state(node: Node) -> None:
    state = {name: value for name, value in STATE.items() if name != "pid"}
    assert "bad_state: the state of a container that is being created has no pid" in called(
        node, {**state, "annotations": BIG}, verb="createRuntime"
    )
    assert node.failures() == {"c1": "bad_state"}


def test_without_a_run_directory_a_failure_is_said_all_the_same(node: Node) -> None:
    node.patch.setattr(report, "RunDir", fails(errno.EIO))
    call = entry.Call("createRuntime", (node.options(), []), ID, "/bundle", None)
    assert report.leave_traces(call, None, HookError("io", "p"), is_monitored=False) is None
    assert ": io: " in node.machine.caller.stderr.decode()


@pytest.mark.parametrize("verb", ["hook", "createRuntime"])
def test_a_state_whose_head_comes_last_is_a_bad_state(node: Node, verb: str) -> None:
    node.spawn(7)
    said = called(node, {"annotations": BIG, **STATE}, verb=verb)
    assert node.groups() == {}
    assert "bad_state: no container state on stdin" in said
    assert f"it is larger than {LIMIT} bytes, and only the beginning is used" in said
    ((name, reason),) = node.failures().items()
    assert (name[:4], reason) == ("bad-", "bad_state")


def test_names_of_a_state_that_is_too_large_are_those_of_its_bundle(node: Node) -> None:
    node.spawn(7)
    config = {"annotations": {**NAMES, **BIG}}
    said = called(node, {**STATE, "annotations": BIG}, "--namespace=shop", config=config)
    state = node.state()
    assert (state.pod_namespace, state.pod_name, state.members["c1"].name) == ("shop", "web", "app")
    assert f"larger than {LIMIT} bytes, and only the beginning is used" in said


def test_annotations_that_a_state_begins_with_are_its_own(node: Node) -> None:
    named = {**NAMES, "io.kubernetes.pod.uid": UID}
    node.spawn(7)
    said = called(node, {**STATE, "annotations": named, "more": BIG}, "--namespace=shop", config={})
    assert node.state().pod_name == "web"
    assert "only the beginning is used" in said
    assert "annotations" not in said


@pytest.mark.parametrize(
    "filtered", ["--namespace=another", "--annotation=a=b", "--monitor=opt-in", "--monitor=opt-out"]
)
@pytest.mark.parametrize("is_known", [True, False])
def test_only_annotations_that_were_read_leave_a_container_out(node: Node, filtered: str, is_known: bool) -> None:
    """A pod's author must not evade metering by the size of what he writes."""
    node.spawn(7)
    config = {"annotations": {**NAMES, **OPTED}} if is_known else None
    called(node, {**STATE, "annotations": {**OPTED, **BIG}}, filtered, config=config)
    assert node.groups() == ({} if is_known else {f"oci-{UID}": {7}})


# --- In words


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
    """The dot: a text may be the name of a kind, which has words of its own."""
    problem, tried, kernel, hint = said
    error = HookError(Reason.IO, f"{problem}.", tried=tried, kernel=kernel, hint=hint)
    failure = report.make_failure(error, "hook", "c1")
    assert all(map(is_a_line, (failure.problem, failure.tried, failure.kernel, failure.hint)))
    assert is_a_line(printable(str(explain(error))))


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
    failure = as_hook_error("doing something", error)
    found = explain(failure)
    assert (failure.reason, found.problem) == (Reason.IO, "doing something")
    assert tried in found.tried
    assert hint in found.hint
    assert bool(hint) is bool(found.hint)


@pytest.mark.parametrize(("user", "hint"), [(0, ""), (1000, "run it as root")])
def test_who_is_not_root_is_told_to_be(monkeypatch: pytest.MonkeyPatch, user: int, hint: str) -> None:
    monkeypatch.setattr(system, "user_id", lambda: user)
    assert explain(as_hook_error("doing something", PermissionError(errno.EACCES, "Permission denied"))).hint == hint


def test_an_unforeseen_error_names_its_place() -> None:
    def fail() -> None:
        raise ValueError("a\nb")

    with pytest.raises(ValueError, match="a") as caught:
        fail()
    found = explain(caught.value)
    assert "ValueError" in found.problem
    assert "test_report.py" in found.tried
    assert "in fail" in found.tried
    assert "at " not in explain(MemoryError()).tried


def test_the_parts_of_an_error_have_one_order() -> None:
    whole = HookError("r", "problem", tried="t", kernel="k", hint="h")
    assert str(explain(whole)) == "problem; tried: t; kernel: k; hint: h"
    assert str(explain(HookError("r", "problem"))) == "problem"


# --- Each kind of failure in words, by an interpreter with no more codecs than the core phase of the ELF file

WITHOUT_CODECS = """
import codecs, encodings, string
from hook import report, system
from hook.errors import HookError, Reason
from hook.models import Failure
codecs.unregister(encodings.search_function)
odd = "a\\n\\0\\x7f\\xe9\\u20ac\\u2028\\ud800\\udcff\\U0001f600" * 300
errors = [OSError(13, odd, b"/\\xff\\n"), OSError(28, odd, odd), OSError(), ValueError(odd), KeyError(odd)]
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
    for kind, texts in report.WORDS.items():
        fields = [field for text in texts for _, field, form, _ in string.Formatter().parse(text) if field]
        facts = {field: 7 if field in ("mode", "owner", "number", "pid") else odd for field in fields}
        if isinstance(error, OSError):
            for operation in report._OPERATIONS:
                more = {"operation": operation, "path": odd, "pid": 7, "kernel": odd}
                yield HookError(reason, kind, **{**facts, **more, "error": error})
        yield HookError(reason, kind, **{**facts, "parent": odd, "hint": odd, "error": error})
for reason in (value for name, value in vars(Reason).items() if name.isupper()):
    for error in errors:
        for failure in list_failures(reason, error):
            words = system.dumps(report.make_failure(failure, "hook", "c1", is_monitored=True))
            line = report.printable(str(report.explain(failure)))
            assert words.isascii() and words.isprintable() and line.isascii() and line.isprintable(), line
report.say(odd, to_syslog=False)
print("each")
"""


@pytest.mark.skipif(sys.version_info < (3, 10), reason="needs codecs.unregister")
def test_each_kind_of_failure_is_worded_without_a_codec_that_is_not_built_in() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_CODECS], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "each\n"), done.stderr


def test_printable_escapes_each_character_as_python_does() -> None:
    for start in range(0, sys.maxunicode + 1, 1000):
        text = "".join(map(chr, range(start, min(start + 1000, sys.maxunicode + 1))))
        expected = (c if " " <= c <= "~" else c.encode("unicode_escape").decode() for c in text)
        assert report.printable(text) == "".join(expected)
