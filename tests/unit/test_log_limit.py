# SPDX-License-Identifier: Apache-2.0
"""Many failures of one reason are the first lines of a minute and a count, and none is lost."""

from __future__ import annotations

import multiprocessing
import os
import posix
from pathlib import Path

import pytest

from hook.base import system
from hook.base.errors import HookError
from hook.base.models import Options
from hook.reconcile import run as reconcile
from hook.stages import report
from hook.stages.entry import Call
from hook.state import damage
from hook.state.store import RunDir

REASON = "no_rmids"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds since boot; the test sets them."""
    now = [600.0]
    monkeypatch.setattr(system, "boottime", lambda: now[0])
    return now


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(str(tmp_path / "run"))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged."""
    found: list[str] = []
    monkeypatch.setattr(report, "_send_to_syslog", found.append)
    monkeypatch.setattr(system, "write_stderr", lambda _line: None)
    return found


def fail(run: RunDir, number: int, reason: str = REASON) -> None:
    call = Call("createRuntime", (Options(), []), f"c{number}", None, None)
    report.report_problem(call, run, HookError(reason, "the problem"))


def test_the_first_ten_of_a_reason_are_logged_and_the_rest_counted(
    run: RunDir, clock: list[float], lines: list[str]
) -> None:
    for number in range(25):
        fail(run, number)
    assert lines == [f"createRuntime c{number}: no_rmids: the problem" for number in range(10)]
    fail(run, 25, "io")
    assert len(lines) == 11
    clock[0] += 60
    fail(run, 26)
    more = "no_rmids: and 15 more failures within a minute; see resctrl-mon-hook list"
    assert lines[11:] == [more, "createRuntime c26: no_rmids: the problem"]
    assert len(list(Path(run.path, "unmonitored").iterdir())) == 27, "each has its record"


@pytest.mark.usefixtures("lines")
def test_stderr_gets_every_failure(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bytes] = []
    monkeypatch.setattr(system, "write_stderr", found.append)
    for number in range(12):
        fail(run, number)
    assert len(found) == 12


def test_reconcile_logs_the_count(run: RunDir, clock: list[float], lines: list[str], tmp_path: Path) -> None:
    for number in range(12):
        fail(run, number)
    options = Options(run_dir=run.path, resctrl_root=str(tmp_path))
    reconcile.repair(options)
    assert len(lines) == 10, "the minute is not over"
    clock[0] += 60
    reconcile.repair(options)
    assert lines[10:] == ["no_rmids: and 2 more failures within a minute; see resctrl-mon-hook list"]
    reconcile.repair(options)
    assert len(lines) == 11
    assert not [name for name in os.listdir(run.path) if name.startswith("logged-")]


def test_few_failures_leave_no_count(run: RunDir, clock: list[float], lines: list[str]) -> None:
    for number in range(10):
        fail(run, number)
    clock[0] += 60
    assert damage.sum_up_failures(run) == []
    assert len(lines) == 10


@pytest.mark.usefixtures("clock")
def test_a_failure_is_logged_whatever_stops_the_count(
    run: RunDir, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(*_arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(damage, "count_failure", count)
    fail(run, 1)
    assert lines == ["createRuntime c1: no_rmids: the problem"]


def test_all_are_logged_where_they_cannot_be_counted(
    run: RunDir, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> tuple[int, bool]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(system, "append", full)
    for number in range(12):
        fail(run, number)
    assert len(lines) == 12


def test_what_is_in_the_place_of_a_count_stops_nothing(
    run: RunDir, clock: list[float], lines: list[str], tmp_path: Path
) -> None:
    Path(run.path, "logged-no_rmids-10").mkdir()
    Path(run.path, "logged-io-9").symlink_to(tmp_path / "elsewhere")
    Path(run.path, "logged-").write_text("." * 99)
    for number in range(12):
        fail(run, number)
    assert len(lines) == 12
    clock[0] += 60
    assert damage.sum_up_failures(run) == [": and 89 more failures within a minute; see resctrl-mon-hook list"]
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.usefixtures("clock")
def test_a_failure_whose_count_was_taken_away_meanwhile_is_logged(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(11):
        damage.count_failure(run, REASON)
    real = posix.write

    def removed_before(descriptor: int, data: bytes) -> int:
        os.unlink(f"{run.path}/logged-{REASON}-10")
        return real(descriptor, data)

    monkeypatch.setattr(posix, "write", removed_before)
    assert damage.count_failure(run, REASON) == (True, [])


def count_many(path: str, told: multiprocessing.SimpleQueue[int]) -> None:
    run = RunDir(path)
    told.put(sum(damage.count_failure(run, REASON)[0] for _ in range(100)))


@pytest.mark.usefixtures("clock")
def test_of_many_hooks_at_once_ten_are_logged(run: RunDir, clock: list[float]) -> None:
    fork = multiprocessing.get_context("fork")
    told = fork.SimpleQueue()
    hooks = [fork.Process(target=count_many, args=(run.path, told)) for _ in range(4)]
    for hook in hooks:
        hook.start()
    assert sum(told.get() for _ in hooks) == 10
    for hook in hooks:
        hook.join()
    clock[0] += 60
    assert damage.sum_up_failures(run) == ["no_rmids: and 390 more failures within a minute; see resctrl-mon-hook list"]
