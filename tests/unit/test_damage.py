# SPDX-License-Identifier: Apache-2.0
"""Many failures of one reason are the first lines of a minute and a count, and none is lost.

What becomes of records that cannot be read: test_store.py.
"""

from __future__ import annotations

import errno
import multiprocessing
from pathlib import Path

import pytest

from hook.base import system
from hook.base.errors import HookError
from hook.base.models import Options
from hook.reconcile import run as reconcile
from hook.stages import report
from hook.stages.entry import Call
from hook.stages.identity import Container, Pod
from hook.state import damage
from hook.state.store import RunDir
from tests.simulator.machine import RUN, SimulatedMachine
from tests.unit.simulated import UID
from tests.unit.stops import machine

__all__ = ["machine"]  # fixtures

REASON = "no_rmids"
MORE = f"{REASON}: and {{}} more failures within a minute; see resctrl-mon-hook list"


@pytest.fixture
def run(machine: SimulatedMachine) -> RunDir:
    machine.kernel.now = 600.0
    return RunDir(RUN)


def fail(run: RunDir, number: int, reason: str = REASON, name: str = "") -> None:
    """A container of one pod fails, or one of this name that is in no pod."""
    container = None if name else Container(f"c{number}", 7, "/b", {})
    if container is not None:
        container.pod = Pod(UID)
    call = Call("createRuntime", (Options(), []), name or f"c{number}", None, container)
    report.leave_traces(call, run, HookError(reason, "the problem"), is_monitored=True)


def line(number: int) -> str:
    return f"createRuntime c{number}: {REASON}: the problem"


def test_the_first_ten_of_a_key_and_reason_are_logged_and_the_rest_counted(
    machine: SimulatedMachine, run: RunDir
) -> None:
    for number in range(25):
        fail(run, number)
    assert machine.syslog == [line(number) for number in range(10)]
    fail(run, 25, "io")
    assert len(machine.syslog) == 11
    machine.kernel.now += 60
    fail(run, 26)
    assert machine.syslog[11:] == [MORE.format(15), line(26)]
    assert len(machine.caller.stderr.splitlines()) == 27, "stderr gets every failure"
    assert len(machine.fs.listdir(f"{RUN}/unmonitored")) == 27, "each has its record"


def test_the_first_failure_of_another_key_is_logged_however_often_one_fails(
    machine: SimulatedMachine, run: RunDir
) -> None:
    """Ten lines a minute were for all: a pod with a bad annotation hid the failures of the others."""
    for number in range(300):
        fail(run, number, name="bad-" + f"{number:016x}" if number % 2 else "")
    assert len(machine.syslog) == 20
    fail(run, 1, name="victim")
    assert machine.syslog[20:] == [f"createRuntime victim: {REASON}: the problem"]


def test_all_keys_together_have_a_limit_which_bounds_the_files_too(machine: SimulatedMachine, run: RunDir) -> None:
    for number in range(300):
        fail(run, number, name=f"d{number}")
    assert len(machine.syslog) == 200
    assert len([it for it in machine.fs.listdir(RUN) if it.startswith("logged-")]) == 200 + 2
    machine.kernel.now += 60
    assert damage.sum_up_failures(run) == [MORE.format(100)]
    assert not [it for it in machine.fs.listdir(RUN) if it.startswith("logged-")]


def test_reconcile_logs_the_count(machine: SimulatedMachine, run: RunDir) -> None:
    for number in range(12):
        fail(run, number)
    for passed, lines in ((0, 10), (60, 11), (0, 11)):
        machine.kernel.now += passed
        reconcile.repair(Options())
        assert len(machine.syslog) == lines
    assert machine.syslog[10] == MORE.format(2)
    assert not [name for name in machine.fs.listdir(RUN) if name.startswith("logged-")]


def test_a_count_that_another_takes_away_meanwhile_is_added_up_by_that_one(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "list_directory", lambda *_: [f"logged-{REASON}-9"])
    assert damage.sum_up_failures(run) == []


def test_few_failures_leave_no_count(machine: SimulatedMachine, run: RunDir) -> None:
    for number in range(10):
        fail(run, number)
    machine.kernel.now += 60
    assert damage.sum_up_failures(run) == []
    assert len(machine.syslog) == 10


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOSPC, "No space left on device")])
def test_all_are_logged_where_they_cannot_be_counted(
    machine: SimulatedMachine, run: RunDir, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def append(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr(system, "append", append)
    for number in range(12):
        fail(run, number)
    assert machine.syslog == [line(number) for number in range(12)]


def test_what_is_in_the_place_of_a_count_stops_nothing(machine: SimulatedMachine, run: RunDir) -> None:
    machine.fs.create_dir(f"{RUN}/logged-no_rmids.{UID}-10")
    machine.fs.create_symlink(f"{RUN}/logged-io-9", "/elsewhere")
    machine.add(f"{RUN}/logged-", b"." * 99)
    machine.add(f"{RUN}/logged-io-8", b"." * 99)
    for number in range(12):
        fail(run, number)
    assert len(machine.syslog) == 12
    machine.kernel.now += 60
    assert damage.sum_up_failures(run) == [MORE.format(99).replace(REASON, "io")]
    assert not machine.fs.exists("/elsewhere")


def test_a_failure_whose_count_was_taken_away_meanwhile_is_logged(
    machine: SimulatedMachine, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(11):
        damage.count_failure(run, REASON, UID)
    write = machine.write

    def removed_before(descriptor: int, data: bytes) -> int:
        if machine.fs.exists(f"{RUN}/logged-{REASON}.{UID}-10"):
            machine.unlink(f"{RUN}/logged-{REASON}.{UID}-10".encode())
        return write(descriptor, data)

    monkeypatch.setattr(machine, "write", removed_before)
    assert damage.count_failure(run, REASON, UID) == (True, [])


def count_many(path: str, told: multiprocessing.SimpleQueue[int]) -> None:
    run = RunDir(path)
    told.put(sum(damage.count_failure(run, REASON, UID)[0] for _ in range(100)))


def test_of_many_hooks_at_once_ten_are_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel's own appends."""
    monkeypatch.setattr(system, "boottime", lambda: 600.0)
    fork = multiprocessing.get_context("fork")
    told = fork.SimpleQueue()
    hooks = [fork.Process(target=count_many, args=(str(tmp_path), told)) for _ in range(4)]
    for hook in hooks:
        hook.start()
    assert sum(told.get() for _ in hooks) == 10
    for hook in hooks:
        hook.join()
    monkeypatch.setattr(system, "boottime", lambda: 660.0)
    assert damage.sum_up_failures(RunDir(str(tmp_path))) == [MORE.format(390)]
