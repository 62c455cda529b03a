# SPDX-License-Identifier: Apache-2.0
"""What reconcile prints while it runs, and what a signal does."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress

import pytest

from hook.base import system
from hook.base.node_models import LeftUndone
from hook.cli.progress import Progress
from hook.reconcile.diagnose import Action
from hook.reconcile.run import Outcome, Result

Capture = pytest.CaptureFixture[str]
DROP = Action("drop", "k", "c1", why="its process is dead")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """In the test itself: pytest captures anew after each fixture."""
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    return found


def retry(name: str, reason: str | None) -> Outcome:
    action = Action("retry", container=name, why="it is running but not monitored (no_rmids)", reason="no_rmids")
    return Outcome(action, "no RMID is free" if reason else None, reason=reason)


def test_an_action_is_printed_when_it_is_done(capsys: Capture) -> None:
    progress = Progress(is_quiet=False, for_log=False)
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
        progress = Progress(is_quiet=False, for_log=True)
        progress.start(last)
        for outcome in outcomes:
            progress.end(outcome)
        last = progress.finish(Result(outcomes, ["3 threads stay"])) or last
        printed.append(capsys.readouterr().out.splitlines())
    done = "retry c: it is running but not monitored (no_rmids)"
    assert printed == [[done, "left: 3 threads stay", "2 containers still not monitored: no_rmids (see list)"], [done]]


def test_for_json_nothing_is_printed(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = terminal(monkeypatch)
    progress = Progress(is_quiet=True, for_log=False)
    progress.end(Outcome(DROP))
    progress.finish(Result([Outcome(DROP)], ["left"], 3))
    assert (capsys.readouterr().out, stderr.getvalue()) == ("", "\r\x1b[K")


@pytest.mark.parametrize(
    ("begun", "of", "is_in_hand", "line"),
    [
        (2, 9, True, "1 actions done, 7 left for the next run; it was at: drop c1 of k: its process is dead"),
        (1, 2, False, "1 actions done, 1 left for the next run"),  # between two actions
        (1, 1, False, "1 actions done, 0 left for the next run; it was looking for more"),
    ],
)
def test_a_run_that_is_ended_says_what_it_has_done_what_is_left_and_what_it_was_at(
    capsys: Capture, begun: int, of: int, is_in_hand: bool, line: str
) -> None:
    progress = Progress(is_quiet=False, for_log=False)
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
    progress = Progress(is_quiet=False, for_log=False)
    progress.end(Outcome(DROP))
    progress.end(Outcome(DROP))
    assert progress._now == LeftUndone()
    with suppress(BrokenPipeError):
        closed.close()


def test_long_work_shows_its_progress_on_a_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr, now = terminal(monkeypatch), [100.0]
    monkeypatch.setattr(system, "monotonic", lambda: now[0])
    progress = Progress(is_quiet=False, for_log=False)
    progress.begin(DROP, 1, 900)
    assert stderr.getvalue() == ""
    now[0] = 101.1
    progress.begin(DROP, 2, 900)
    progress.begin(DROP, 3, 900)
    assert stderr.getvalue() == "\r\x1b[K2 of 900: drop"
    progress.end(Outcome(DROP))
    assert stderr.getvalue().endswith("drop\r\x1b[K")
    assert capsys.readouterr().out.count("\n") == 1


def test_without_a_terminal_there_is_no_progress(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "monotonic", iter(range(0, 9000, 100)).__next__)
    progress = Progress(is_quiet=False, for_log=False)
    progress.begin(DROP, 1, 900)
    progress.finish(Result([]))
    assert tuple(capsys.readouterr()) == ("", "")
