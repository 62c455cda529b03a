# SPDX-License-Identifier: Apache-2.0
"""The time limits of commands: what ends one, in any system call,
and with the programs that it runs.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
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
from hook import rare, system
from hook.cli import command_line as cli
from hook.cli import verbs
from hook.cli.verbs import VERBS, Ended, Limit, Request, Verb
from hook.doctor.checks import Found, Site
from hook.node import programs
from hook.reconcile import run as reconcile
from hook.show import server
from hook.show.findings import OK

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).resolve().parents[2]
ENDING = (signal.SIGTERM, signal.SIGINT)
SOON, NEVER = 0.05, 300.0  # seconds; a test whose command is not ended fails after NEVER
LIMITS = {
    name: verb.limit
    for name, verb in VERBS.items()
    if verb.limit is not None and verb.limit.seconds < 1e9
}


@pytest.fixture
def block() -> Iterator[Callable[[], int]]:
    """A function that blocks in read(2)."""
    reader, writer = os.pipe()
    yield lambda: len(os.read(reader, 1))
    os.close(writer)
    os.close(reader)


def run(command: Callable[[], int | None], seconds: float = NEVER) -> int:
    """The exit status of a command with this limit."""
    limit = Limit(seconds, 2, "it is not complete")
    verb = Verb(lambda *_: command(), (), limit, ())
    given, request = cli.parse_command("metrics", [])
    return cli._run_in_time("metrics", verb, given, request, system.monotonic())


def look_at_handlers() -> tuple[object, ...]:
    """What a command must leave as it was."""
    return (
        *(signal.getsignal(number) for number in (*ENDING, signal.SIGALRM)),
        signal.getitimer(signal.ITIMER_REAL),
    )


def test_a_read_that_blocks_is_ended_when_the_time_is_over(
    block: Callable[[], int], capfd: Capture
) -> None:
    before = look_at_handlers()
    assert run(block, SOON) == 2
    assert (
        capfd.readouterr().err == "resctrl-mon-hook: metrics: ended after 0 s: it is not complete\n"
    )
    assert run(lambda: 5) == 5
    assert look_at_handlers() == before


@pytest.mark.parametrize("number", [*ENDING, signal.SIGALRM])
def test_a_read_that_blocks_is_ended_by_a_signal_also_if_the_caller_had_blocked_it(
    block: Callable[[], int], capfd: Capture, number: int
) -> None:
    def command() -> int:
        os.kill(os.getpid(), number)
        return block()

    former = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        assert run(command, SOON if number == signal.SIGALRM else NEVER) == 2
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
    why = "after 0 s" if number == signal.SIGALRM else f"by {signal.Signals(number).name}"
    assert f"metrics: ended {why}: " in capfd.readouterr().err


def test_a_signal_that_came_just_before_a_call_ends_it_at_the_next_tick(
    block: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while a program is started, which an exception would leave behind."""
    steps: list[str] = []
    monkeypatch.setattr(verbs, "_TICK", SOON)

    def command() -> int:
        monkeypatch.setattr(programs, "is_starting", True, raising=False)
        os.kill(os.getpid(), signal.SIGTERM)
        steps.append("started")
        monkeypatch.setattr(programs, "is_starting", False, raising=False)
        return block()

    assert run(command) == 2
    assert steps == ["started"]


def test_a_command_is_ended_once_and_may_say_what_it_has_done() -> None:
    def command() -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Ended:
            os.kill(os.getpid(), signal.SIGTERM)
            return 7
        return 0

    assert run(command) == 7


def run_after_a_lock(path: Path, block: Callable[[], int]) -> int:
    """Run a command that waits in vain for a lock, and then blocks."""

    def command() -> int:
        assert not rare.wait_for_flock(other.fileno(), system.monotonic() + SOON)
        return block()

    with path.open("w") as holder, path.open("w") as other:
        fcntl.flock(holder, fcntl.LOCK_EX)
        return run(command, 3 * SOON)


def test_a_wait_for_a_lock_leaves_the_limit_as_it_was(
    tmp_path: Path, block: Callable[[], int]
) -> None:
    assert run_after_a_lock(tmp_path / "lock", block) == 2


def test_a_program_that_it_runs_is_killed_with_it(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    os.mkfifo(path)
    pids: list[str] = []

    def end_it_once_it_runs() -> None:
        pids.append(path.read_text())
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=end_it_once_it_runs, daemon=True)
    script = f"echo $$ >{path}; exec sleep {NEVER:.0f}"
    thread.start()
    assert run(lambda: programs.run_program(["sh", "-c", script]).status) == 2
    thread.join(NEVER)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pids[0]), 0)


def test_the_time_before_a_command_began_to_work_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may need a minute to read the program and the hooks.d files."""
    now = [1000.0]

    def read(_name: str, _given: object, request: Request) -> Request:
        now[0] += 20.0
        return request

    def command(*_arguments: object) -> int:
        for _ in range(2):
            now[0] += 20.0
            os.kill(os.getpid(), signal.SIGALRM)  # a tick
        return 0

    monkeypatch.setattr(system, "monotonic", lambda: now[0])
    monkeypatch.setattr(cli, "_add_options_of_files", read)
    monkeypatch.setitem(VERBS, "reconcile", VERBS["reconcile"]._replace(run=command))
    assert [cli.main(["reconcile"], began) for began in (1000.0, 0.0)] == [1, 1]
    assert now[0] == 1000.0 + 60.0 + 40.0, (
        "the second one, which began late, is ended at its first tick"
    )


def test_a_command_that_drops_its_end_is_killed() -> None:
    """As code does whose exceptions Python drops: of a finalizer,
    a callback of a weak reference.
    """
    code = """if True:
        import threading
        from hook import system
        from hook.cli import verbs
        from hook.cli.verbs import Ended, limit_time
        verbs._GRACE = 0.05
        with limit_time(system.monotonic() + 0.05, 0.05):
            try:
                threading.Event().wait()
            except Ended:
                print("dropped", flush=True)
            threading.Event().wait()
    """
    pipe = subprocess.PIPE
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdout=pipe, text=True, check=False, timeout=NEVER
    )
    assert (ended.returncode, ended.stdout) == (-signal.SIGALRM, "dropped\n")


def test_a_timer_that_goes_off_as_a_wait_for_a_lock_begins_is_not_lost(
    tmp_path: Path, block: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left of its time then, and 0 would stop it."""
    monkeypatch.setattr(_signal, "getitimer", lambda _which: (0.0, SOON))
    assert run_after_a_lock(tmp_path / "lock", block) == 2


# --- Which commands, and what they say


def test_a_command_that_no_person_may_watch_has_a_limit(
    monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    def command(*_arguments: object) -> int:
        raise Ended("by SIGTERM")

    for verb in LIMITS:
        monkeypatch.setitem(VERBS, verb, VERBS[verb]._replace(run=command))
        assert cli.main([verb]) == (1 if verb in ("reconcile", "doctor") else 2)
        assert capfd.readouterr().err.startswith(f"resctrl-mon-hook: {verb}: ended by SIGTERM: ")


def test_metrics_that_are_served_have_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    former, former_handlers = look_at_handlers(), list[object]()
    monkeypatch.setattr(server, "serve", lambda *_: former_handlers.append(look_at_handlers()))
    assert cli.main(["metrics", "--listen=9753"]) == 0
    assert former_handlers == [former]


def test_the_documents_state_each_limit() -> None:
    for path in ("docs/commands.md", "packaging/man/resctrl-mon-hook.8"):
        text = " ".join((ROOT / path).read_text(encoding="utf-8").split())
        stated = dict(re.findall(r"(?:\| `|\.D1 Cm )([a-z]+)`?(?: \|| No) ([0-9]+) s\b", text))
        assert stated == {verb: f"{limit.seconds:.0f}" for verb, limit in LIMITS.items()}


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


def test_doctor_that_is_ended_has_its_findings_until_then_and_names_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def find(_site: Site) -> Found:
        yield OK, "well", ""

    def end(_site: Site) -> Found:
        yield OK, "well", ""
        raise Ended("after 100 s")

    monkeypatch.setattr(hook.doctor.checks, "CHECKS", [("a", find), ("b", end), ("c", find)])
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().out.splitlines()[:4] == [
        "ok       a: well",
        "ok       b: well",
        "FAIL     b: doctor ended after 100 s, during this check",
        "           see why this takes so long; this check and those after it are not complete",
    ]
