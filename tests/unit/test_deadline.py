# SPDX-License-Identifier: Apache-2.0
"""What ends a command whose time is over, and at a signal: in any system call, and with its children."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hook.doctor.checks
from hook import system
from hook.cli import command_line as cli
from hook.cli import deadline, verbs
from hook.cli.deadline import Ended
from hook.cli.verbs import VERBS
from hook.doctor import FAILURE, OK, Check, Finding, Site
from hook.errors import HookError, Reason
from hook.models import Options
from hook.node import programs
from hook.node.paths import Places
from hook.reconcile import run as reconcile
from hook.show import server

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).resolve().parents[2]
ENDING = (signal.SIGTERM, signal.SIGINT)
SOON, NEVER = 0.05, 300.0  # seconds; a test whose command is not ended fails after NEVER


def start_thread(target: Callable[..., object], *words: object) -> None:
    """Start one that leaves the signals to the main thread, as all others do that the program has."""
    former = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    threading.Thread(target=target, args=words, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_SETMASK, former)


@pytest.fixture
def block() -> Iterator[Callable[[], int]]:
    """A function that blocks in read(2)."""
    reader, writer = os.pipe()
    yield lambda: len(os.read(reader, 1))
    os.close(writer)
    os.close(reader)


def run(command: Callable[[], int | None], seconds: float = NEVER) -> int:
    """The exit status of a command with this limit."""
    return deadline.run_limited("metrics", (seconds, 2, "it is not complete"), command)


LIMITS = {name: verb.limit for name, verb in VERBS.items() if verb.limit is not None}


def test_a_read_that_blocks_is_ended_when_the_time_is_over(block: Callable[[], int], capfd: Capture) -> None:
    assert run(block, SOON) == 2
    assert capfd.readouterr().err == "resctrl-mon-hook: metrics: ended after 0 s: it is not complete\n"


@pytest.mark.parametrize("is_blocked", [False, True])
@pytest.mark.parametrize("number", ENDING)
def test_a_read_that_blocks_is_ended_by_a_signal_also_if_the_caller_had_blocked_it(
    block: Callable[[], int], capfd: Capture, number: int, is_blocked: bool
) -> None:
    former = signal.pthread_sigmask(signal.SIG_BLOCK, [number, signal.SIGURG] if is_blocked else [])

    def command() -> int:
        start_thread(os.kill, os.getpid(), number)
        return block()

    try:
        assert run(command) == 2
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
    assert f"metrics: ended by {signal.Signals(number).name}: " in capfd.readouterr().err


def test_a_poke_that_came_before_the_call_is_sent_again(block: Callable[[], int]) -> None:
    def command() -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGURG])
        signal.sigwait([signal.SIGURG])  # the first one has no effect
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGURG])
        return block()

    assert run(command, SOON) == 2


def test_it_is_ended_once_and_may_say_what_it_has_done(block: Callable[[], int]) -> None:
    def command() -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            block()
        except Ended:
            os.kill(os.getpid(), signal.SIGTERM)
            return 7
        return 0

    assert run(command) == 7


def look_at_process() -> tuple[object, ...]:
    """What a command must leave as it was."""
    handlers = [signal.getsignal(it) for it in (*ENDING, signal.SIGURG)]
    watchers = [it for it in threading.enumerate() if isinstance(it, deadline._Watcher)]
    return handlers, signal.pthread_sigmask(signal.SIG_BLOCK, []), os.listdir("/proc/self/fd"), watchers


def test_a_command_that_ends_in_time_leaves_nothing_behind() -> None:
    def fail() -> int:
        raise HookError(Reason.IO, "x")

    before = look_at_process()
    assert run(lambda: 5) == 5
    assert run(lambda: None) == 0
    with pytest.raises(HookError):
        run(fail)
    assert look_at_process() == before


@pytest.mark.parametrize("step", ["begin", "stop"])
def test_what_ends_it_before_it_begins_or_when_it_is_done_leaves_nothing_behind(
    step: str, block: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that was left would end the whole process."""
    taken = getattr(deadline._Watcher, step)

    def take(watcher: threading.Thread) -> None:
        monkeypatch.setattr(deadline._Watcher, step, taken)
        if step == "begin":
            taken(watcher)
        os.kill(os.getpid(), signal.SIGTERM)
        block()

    before = look_at_process()
    monkeypatch.setattr(deadline._Watcher, step, take)
    assert run(int) == 2
    assert look_at_process() == before


def test_a_command_that_could_not_be_ended_does_not_begin(monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    begun: list[object] = []
    before = look_at_process()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(VERBS["doctor"], "run", lambda *_: begun.append(1))
    assert cli.main(["doctor"]) == 2
    assert "cannot watch the time of this command: can't start new thread; hint: raise" in capfd.readouterr().err
    assert (begun, look_at_process()) == ([], before)


def test_the_alarm_of_a_wait_for_a_lock_ends_the_wait_and_not_the_command(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as holder, path.open("w") as other:
        fcntl.flock(holder, fcntl.LOCK_EX)
        status = run(lambda: system.wait_for_flock(other.fileno(), system.monotonic() + SOON))
        assert status == 0


def test_a_program_that_it_runs_is_killed_with_it(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    os.mkfifo(path)
    said: list[str] = []

    def end_it_once_it_runs() -> None:
        said.append(path.read_text())
        os.kill(os.getpid(), signal.SIGTERM)

    start_thread(end_it_once_it_runs)
    script = f"echo $$ >{path}; exec sleep {NEVER:.0f}"
    assert run(lambda: programs.run_program(["sh", "-c", script]).status) == 2
    with pytest.raises(ProcessLookupError):
        os.kill(int(said[0]), 0)


STUCK = """
import os
from hook.cli import deadline
deadline.GRACE = 0.1
deadline._Watcher.end = lambda *_: None
reader, writer = os.pipe()

def command():
    print("ready", flush=True)
    os.read(reader, 1)

deadline.run_limited("doctor", ({seconds}, 1, "not everything was checked"), command)
"""


@pytest.mark.parametrize("number", [None, *ENDING])
def test_what_goes_on_all_the_same_is_ended_with_the_process(number: int | None) -> None:
    """As in a call that no signal interrupts, which the end of the process does."""
    script = STUCK.format(seconds=SOON if number is None else NEVER)
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=-1, stderr=-1, text=True)
    assert process.stdout is not None
    if number is not None:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
    _, error = process.communicate(timeout=NEVER)
    why = "after 0 s" if number is None else f"by {signal.Signals(number).name}"
    assert (process.returncode, error) == (1, f"resctrl-mon-hook: doctor: ended {why}: not everything was checked\n")


# --- Which commands, and what they say


@pytest.mark.parametrize("verb", LIMITS)
def test_a_command_that_no_person_may_watch_has_a_limit(
    monkeypatch: pytest.MonkeyPatch, capfd: Capture, verb: str
) -> None:
    def command(*_arguments: object) -> int:
        assert callable(signal.getsignal(signal.SIGURG))
        raise Ended("by SIGTERM")

    monkeypatch.setattr(VERBS[verb], "run", command)
    assert cli.main([verb]) == (1 if verb in ("reconcile", "doctor") else 2)
    assert capfd.readouterr().err.startswith(f"resctrl-mon-hook: {verb}: ended by SIGTERM: ")


def test_metrics_that_are_served_have_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    former, seen = signal.getsignal(signal.SIGURG), []
    monkeypatch.setattr(server, "serve", lambda *_: seen.append(signal.getsignal(signal.SIGURG)))
    assert cli.main(["metrics", "--listen=9753"]) == 0
    assert seen == [former]


@pytest.mark.parametrize("path", [ROOT / "docs" / "commands.md", ROOT / "packaging" / "man" / "resctrl-mon-hook.8"])
def test_the_documents_state_each_limit(path: Path) -> None:
    text = " ".join(path.read_text(encoding="utf-8").split())
    stated = dict(re.findall(r"(?:\| `|\.D1 Cm )([a-z]+)`?(?: \|| No) ([0-9]+) s\b", text))
    assert stated == {verb: f"{limit[0]:.0f}" for verb, limit in LIMITS.items()}


def test_reconcile_that_is_ended_prints_what_it_has_done_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def run(*_arguments: object, **_more: object) -> None:
        raise Ended("after 45 s")

    monkeypatch.setattr(reconcile, "repair", run)
    assert cli.main(["reconcile"]) == 1
    line = "ended after 45 s: 0 actions done, 0 left for the next run; it was looking for more\n"
    assert capsys.readouterr().out == line
    assert cli.main(["reconcile", "--json"]) == 1
    answer = '{"dry_run":false,"actions":[],"left":[],"ended":"after 45 s","undone":0}'
    assert capsys.readouterr().out.replace(" ", "").strip() == answer.replace(" ", "")


def test_doctor_that_is_ended_has_its_findings_until_then_and_names_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(_site: Site) -> Iterator[dict[str, object]]:
        yield {}
        raise Ended("after 100 s")

    def other(_site: Site) -> bool:
        return True

    checks = [Check(other, "ok a: well"), Check(check, "ok b: well"), Check(other, "ok c: well")]
    monkeypatch.setattr(hook.doctor.checks, "CHECKS", checks)
    *found, last = verbs.examine(Site(Places("/usr", "/h"), Options(), ()))
    assert found == [Finding(OK, "a", "well"), Finding(OK, "b", "well")]
    assert (last.level, last.subject, last.found) == (FAILURE, "b", "doctor ended after 100 s, during this check")
