# SPDX-License-Identifier: Apache-2.0
"""What reconcile prints."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import pytest

from hook.cli.verbs import MOST_FAILURES, RepairLog
from hook.reconcile.diagnose import Action
from hook.reconcile.run import Outcome, Repairs, repair
from tests.unit.simulated import Node, node

__all__ = ["node"]  # fixture
Capture = pytest.CaptureFixture[str]
DROP = Action("drop", "k", "c1", why="its process is dead")


def failed(number: int) -> Outcome:
    return Outcome(Action("evict", path=f"/r/{number}", why="threads"), "it is busy\n")


def test_an_action_is_printed_when_it_is_done_with_why_it_failed(capsys: Capture) -> None:
    log = RepairLog()
    log.note(Outcome(DROP))
    assert capsys.readouterr().out == "drop c1 of k: its process is dead\n"
    log.note(failed(1))
    assert capsys.readouterr().out.splitlines() == [
        "evict /r/1: threads",
        "  failed: it is busy\\n",
    ]


def test_ten_failures_and_ten_problems_are_printed_with_the_number_of_the_others(
    capsys: Capture,
) -> None:
    log = RepairLog()
    for number in range(MOST_FAILURES + 2):
        log.note(failed(number))
    log.note(Outcome(DROP))
    result = Repairs()
    result.left = [f"{number} threads stay" for number in range(MOST_FAILURES + 3)]
    log.end(result)
    lines = capsys.readouterr().out.splitlines()
    assert sum("failed: it is busy" in line for line in lines) == MOST_FAILURES
    assert lines[-2:] == [
        "left: 3 further problems (see reconcile --json)",
        "2 further actions failed: see list",
    ]
    assert str(DROP) in lines


class LimitReached(Exception):
    pass


def test_a_run_that_is_ended_prints_what_it_has_done_what_is_left_and_what_it_was_at(
    node: Node, capsys: Capture
) -> None:
    for number, pid in enumerate((7, 8, 9)):
        node.start(f"c{number}", pid, uid=None)
        node.kernel.die(pid)
    log, ended = RepairLog(), list[Outcome]()

    def note(outcome: Outcome) -> None:
        log.note(outcome)
        ended.append(outcome)
        if len(ended) == 2:
            raise LimitReached

    result = Repairs(note)
    with pytest.raises(LimitReached):
        repair(node.options(), repairs=result)
    result.ended = "after 45 s"
    log.end(result)
    assert (len(result.outcomes), result.ended, result.is_whole) == (2, "after 45 s", False)
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .startswith(
            f"ended after 45 s: 2 actions done, {result.undone} left for the next run; it was at: "
            "drop c"
        )
    )


def test_a_reader_that_goes_away_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    closed = os.fdopen(writer, "w")
    monkeypatch.setattr(sys, "stdout", closed)
    log = RepairLog()
    log.note(Outcome(DROP))
    log.note(Outcome(DROP))
    with suppress(BrokenPipeError):
        closed.close()
