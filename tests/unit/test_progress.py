# SPDX-License-Identifier: Apache-2.0
"""What reconcile prints while it runs, and what a signal does."""

from __future__ import annotations

import io
import os
import sys
import threading
from contextlib import suppress
from typing import Any

import pytest

from hook.cli.progress import Progress, repair_and_print
from hook.models import Failure
from hook.node.models import LeftUndone
from hook.reconcile.diagnose import Action
from hook.reconcile.run import Outcome, Result
from hook.show import terminal as output
from hook.show.terminal import Meter
from hook.store import RunDir
from tests.simulator.machine import RUN
from tests.support.hook import DEADLINE
from tests.unit.simulated import Node, fails, node

__all__ = ["node"]  # fixture
Capture = pytest.CaptureFixture[str]
DROP = Action("drop", "k", "c1", why="its process is dead")


class Terminal(io.StringIO):
    """A terminal of 80 columns, which a thread writes to."""

    def __init__(self) -> None:
        super().__init__()
        self._is_written = threading.Condition()

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return -1

    def flush(self) -> None:
        with self._is_written:
            self._is_written.notify_all()

    def reads(self, text: str) -> bool:
        """Wait until this text is written."""
        with self._is_written:
            return self._is_written.wait_for(lambda: text in self.getvalue(), DEADLINE)


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """In the test itself: pytest captures anew after each fixture."""
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setattr(os, "get_terminal_size", lambda _fd: os.terminal_size((80, 24)))
    monkeypatch.setenv("TERM", "xterm")
    return found


def retry(name: str, reason: str | None) -> Outcome:
    action = Action("retry", container=name, why="it is running but not monitored (no_rmids)", reason="no_rmids")
    return Outcome(action, "no RMID is free" if reason else None, reason=reason)


def test_an_action_is_printed_when_it_is_done(capsys: Capture) -> None:
    progress = Progress(Meter(), is_quiet=False, for_log=False)
    progress.begin(DROP, 1, 2)
    assert capsys.readouterr().out == ""
    progress.end(Outcome(DROP))
    assert capsys.readouterr().out == "drop c1 of k: its process is dead\n"
    progress.end(Outcome(Action("evict", path="/r/x", why="threads"), "it is busy\n", reason="io"))
    assert capsys.readouterr().out.splitlines() == ["evict /r/x: threads", "  failed: it is busy\\n"]


def test_what_fails_again_is_counted_and_a_known_count_is_not_printed(capsys: Capture) -> None:
    outcomes = [retry("a", "no_rmids"), retry("b", "no_rmids"), retry("c", None)]
    last = LeftUndone()
    printed = []
    for _ in range(2):
        progress = Progress(Meter(), is_quiet=False, for_log=True)
        progress.start(last)
        for outcome in outcomes:
            progress.end(outcome)
        last = progress.finish(Result(outcomes, ["3 threads stay"])) or last
        printed.append(capsys.readouterr().out.splitlines())
    done = "retry c: it is running but not monitored (no_rmids)"
    assert printed == [[done, "left: 3 threads stay", "2 containers still not monitored: no_rmids (see list)"], [done]]


def test_containers_without_an_rmid_are_printed_once_as_a_number(node: Node, capsys: Capture) -> None:
    node.kernel.rmids = 0
    line = "{} containers still not monitored: no_rmids (see list)\n"

    def run(*pids: int) -> str:
        for pid in pids:
            node.spawn(pid, "/")
            known: dict[str, Any] = {"key": f"c{pid}", "kind": "container", "pid": pid, "starttime": 100}
            failed = Failure(container=f"c{pid}", stage="createRuntime", reason="no_rmids", problem="", **known)
            RunDir(RUN).write(Failure, f"c{pid}", failed)
        node.machine.caller.calls = 0
        assert repair_and_print(node.options(), None, None, None, is_quiet=False).is_whole == (node.kernel.rmids > 0)
        return capsys.readouterr().out

    assert [run(7, 8), run(), run(9)] == [line.format(2), "", line.format(3)]
    node.put("left-undone.json", "{")
    assert run() == line.format(3)
    node.kernel.rmids = 3
    assert [run().splitlines()[-1] + "\n", run()] == [line.format(0), ""]


def test_for_json_nothing_is_printed(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = terminal(monkeypatch)
    progress = Progress(Meter(), is_quiet=True, for_log=False)
    progress.end(Outcome(DROP))
    progress.finish(Result([Outcome(DROP)], ["left"], 3))
    assert (capsys.readouterr().out, stderr.getvalue()) == ("", "")


@pytest.mark.parametrize(
    ("begun", "of", "is_in_hand", "line"),
    [
        (2, 9, True, "1 action done, 7 left for the next run; it was at: drop c1 of k: its process is dead"),
        (1, 2, False, "1 action done, 1 left for the next run"),  # between two actions
        (1, 1, False, "1 action done, 0 left for the next run; it was looking for more"),
    ],
)
def test_a_run_that_is_ended_says_what_it_has_done_what_is_left_and_what_it_was_at(
    capsys: Capture, begun: int, of: int, is_in_hand: bool, line: str
) -> None:
    progress = Progress(Meter(), is_quiet=False, for_log=False)
    progress.end(Outcome(DROP, "its state cannot be read", reason="bad_state"))  # never begun, as of an invalid state
    progress.begin(DROP, 1, of)
    progress.end(Outcome(DROP))
    for number in range(2, begun + 1):
        progress.begin(DROP, number, of)
        progress.end(None)
    if is_in_hand:
        progress.begin(DROP, begun + 1, of)
    result = progress.end_run("after 45 s")
    assert (len(result.outcomes), result.undone, result.ended) == (
        2,
        int(line.split(", ")[1].split(maxsplit=1)[0]),
        "after 45 s",
    )
    assert not result.is_whole
    assert capsys.readouterr().out.splitlines()[-1] == f"ended after 45 s: {line}"


def test_a_reader_that_goes_away_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    closed = os.fdopen(writer, "w")
    monkeypatch.setattr(sys, "stdout", closed)
    progress = Progress(Meter(), is_quiet=False, for_log=False)
    progress.end(Outcome(DROP))
    progress.end(Outcome(DROP))
    assert progress._now == LeftUndone()
    with suppress(BrokenPipeError):
        closed.close()


def test_long_work_shows_its_progress_on_a_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = terminal(monkeypatch)
    monkeypatch.setattr(output, "PATIENCE", 0.0)
    with Meter() as line:
        progress = Progress(line, is_quiet=False, for_log=False)
        progress.begin(DROP, 2, 900)
        assert stderr.reads("2 of 900: drop")
        progress.end(Outcome(DROP))
        assert stderr.getvalue().endswith("\r\x1b[K")
        assert capsys.readouterr().out.count("\n") == 1
        progress.begin(DROP, 900, 900)
        progress.end(None)
        assert stderr.reads("looking for what is to be repaired")
    assert stderr.getvalue().endswith("\r\x1b[K")


def test_a_line_of_progress_has_one_row_and_nothing_that_a_terminal_obeys(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = terminal(monkeypatch)
    monkeypatch.setattr(output, "PATIENCE", 0.0)
    with Meter() as line:
        line.show("\x1b[2J\n" + "x" * 100)
        assert stderr.reads("\\x1b[2J\\nx")
    shown = stderr.getvalue().split("\r\x1b[K")[1]
    assert len(shown) == 79
    assert shown.isprintable()


@pytest.mark.parametrize(("is_terminal", "kind"), [(False, "xterm"), (True, "dumb"), (True, None)])
def test_without_a_terminal_that_can_erase_a_line_there_is_no_progress(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, kind: str | None
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr := Terminal() if is_terminal else io.StringIO())
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("it has begun to draw"))
    if kind is None:
        monkeypatch.delenv("TERM", raising=False)
    else:
        monkeypatch.setenv("TERM", kind)
    with Meter() as line:
        line.show("reading key 1 of 2")
    assert stderr.getvalue() == ""


def test_work_goes_on_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = terminal(monkeypatch)
    monkeypatch.setattr(threading.Thread, "start", fails(RuntimeError("can't start new thread")))
    with Meter() as line:
        line.show("reading key 1 of 2")
    assert stderr.getvalue() == ""
