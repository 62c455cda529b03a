# SPDX-License-Identifier: Apache-2.0
"""What is kept of completed keys goes when its time is over, and nothing else does."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hook.base import container_tasks, system
from hook.base.models import Failure, Options
from hook.reconcile.reconcile import run
from hook.stages.create import create_runtime
from hook.stages.remove import poststop
from hook.state.rundir import RunDir
from tests.unit.test_create import UID, MachineOnDisk, container, machine
from tests.unit.test_rundir import clock, directories

__all__ = ["clock", "directories", "machine"]  # fixtures
TTL = 300


@pytest.fixture
def completed(machine: MachineOnDisk) -> MachineOnDisk:
    """With a key that was completed, and one that lives."""
    for name, pid in ((UID, 7), ("other", 8)):
        machine.spawn(pid, uid=UID if name == UID else None)
        create_runtime(machine.node(), container("c1", 7) if name == UID else container(name, pid, None))
    machine.die(7)
    poststop(machine.node(), "c1")
    return machine


def pruned(machine: MachineOnDisk, seconds: float, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What goes that long from now."""
    now = system.boottime()
    monkeypatch.setattr(system, "boottime", lambda: now + seconds)
    monkeypatch.setattr(container_tasks, "table", dict)  # the machine's processes are made up
    done = run(Options(resctrl_root=str(machine.resctrl), run_dir=str(machine.run), snapshot_ttl=TTL))
    return [it.action.key for it in done.outcomes if it.action.verb == "prune" and it.problem is None]


def shown(machine: MachineOnDisk) -> set[str]:
    return set(os.listdir(machine.run / "mon_groups"))


def test_a_snapshot_is_removed_after_its_ttl(completed: MachineOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    before = shown(completed)
    assert UID in before
    assert pruned(completed, TTL - 1, monkeypatch) == []
    assert shown(completed) == before
    assert pruned(completed, TTL + 1, monkeypatch) == [UID]
    assert shown(completed) == before - {UID}
    assert not Path(completed.run, "groups", f"{UID}.json").exists()
    assert not Path(completed.run, "locks", UID).exists()


def test_a_snapshot_of_another_boot_is_removed(completed: MachineOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pruned(completed, -TTL - 1, monkeypatch) == [UID]


def test_a_key_that_came_back_is_kept(completed: MachineOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    completed.spawn(9)
    create_runtime(completed.node(), container("c1", 9))
    assert pruned(completed, 10 * TTL, monkeypatch) == []
    assert UID in shown(completed)


def test_a_busy_key_is_left_for_the_next_reconcile(completed: MachineOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = Path(completed.run, "locks", UID)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert pruned(completed, 10 * TTL, monkeypatch) == []
    assert UID in shown(completed)
    assert pruned(completed, 10 * TTL, monkeypatch) == [UID]


# --- What people have a day to look at


DAY = 86400
ID = "5f3c" * 16


def at(
    machine: MachineOnDisk, seconds: float, monkeypatch: pytest.MonkeyPatch, cgroup: str = ""
) -> list[tuple[str, str]]:
    """What reconcile does when the clock shows that many seconds more, with one process, in this cgroup."""
    monkeypatch.setattr(system, "time", SimpleNamespace(**{**vars(time), "time": lambda: time.time() + seconds}))
    process = container_tasks.Process(9, 1, 100, (cgroup,))
    monkeypatch.setattr(container_tasks, "table", lambda: {9: process} if cgroup else {})
    done = run(Options(resctrl_root=str(machine.resctrl), run_dir=str(machine.run)))
    assert not [it for it in done.outcomes if it.problem is not None]
    return [(it.action.verb, it.action.key or it.action.container) for it in done.outcomes]


def failed(machine: MachineOnDisk, name: str, torn: bool) -> Path:
    """The record of a createRuntime whose state was none: nothing is known of its process."""
    record = Failure(container=name, stage="createRuntime", reason="bad_state", problem="no state")
    RunDir(str(machine.run)).write_failure(record)
    path = machine.run / "unmonitored" / f"{name}.json"
    if torn:
        path.write_text("{")
    return path


clocks = pytest.mark.parametrize("seconds", [DAY + 60, -DAY - 60], ids=["a day later", "the clock was set back a day"])
each_failure = pytest.mark.parametrize("torn", [False, True], ids=["readable", "torn"])


@clocks
@each_failure
@pytest.mark.parametrize("name", [ID, "bad-0123456789abcdef"])
def test_a_failure_record_without_a_pid_is_removed_after_a_day(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch, name: str, torn: bool, seconds: float
) -> None:
    path = failed(machine, name, torn)
    assert at(machine, DAY - 60, monkeypatch) == []
    assert path.exists()
    assert at(machine, seconds, monkeypatch) == [("forget", name)]
    assert not path.exists()


@each_failure
def test_a_failure_record_without_a_pid_is_kept_while_its_container_runs(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    path = failed(machine, ID, torn)
    assert at(machine, 10 * DAY, monkeypatch, f":/kubepods/crio-{ID}.scope") == []
    assert path.exists()
    assert at(machine, 10 * DAY, monkeypatch, ":/kubepods/crio-other.scope") == [("forget", ID)]


def test_a_failure_record_is_kept_while_its_process_lives(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.spawn(7)
    known = Failure(container=ID, stage="createRuntime", reason="bad_key", problem="", pid=7, starttime=100)
    RunDir(str(machine.run)).write_failure(known)
    assert at(machine, 10 * DAY, monkeypatch) == []
    machine.die(7)
    assert at(machine, 0, monkeypatch) == [("forget", ID)]


@clocks
@pytest.mark.parametrize("torn", ["a file", "a directory"])
def test_an_unreadable_state_is_removed_a_day_after_it_was_set_aside(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch, torn: str, seconds: float
) -> None:
    """Not a day after it was written last, which may be long ago."""
    path = machine.run / "groups" / f"{UID}.json"
    if torn == "a file":
        path.write_text("{")
        os.utime(path, (0, 0))
    else:
        (path / "below").mkdir(parents=True)
    assert machine.node().run.read_key(UID) is not None
    (aside,) = (machine.run / "groups").glob("*.unreadable-*")
    at(machine, DAY - 60, monkeypatch)
    assert aside.exists()
    assert ("tidy", UID) in at(machine, seconds, monkeypatch)
    assert not aside.exists()
    assert machine.leftovers() == set()


def test_a_file_that_we_did_not_set_aside_is_kept(machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine.run / "groups" / f"{UID}.json").write_text("{")
    machine.node().run.read_key(UID)
    at(machine, 0, monkeypatch)
    (machine.run / "groups" / "no key.json.unreadable-1").touch()
    assert at(machine, DAY + 60, monkeypatch) == [("tidy", UID)]
    assert [it.name for it in (machine.run / "groups").iterdir()] == ["no key.json.unreadable-1"]
