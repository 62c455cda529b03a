"""What is kept of completed keys goes when its time is over, and nothing else does."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from hook import system, tasks
from hook.lifecycle import create_runtime, poststop
from hook.models import Options
from hook.reconcile import run
from tests.unit.test_lifecycle import UID, Machine, container, machine
from tests.unit.test_rundir import clock, directories

__all__ = ["clock", "directories", "machine"]  # fixtures
TTL = 300


@pytest.fixture
def completed(machine: Machine) -> Machine:
    """With a key that was completed, and one that lives."""
    for name, pid in ((UID, 7), ("other", 8)):
        machine.spawn(pid, uid=UID if name == UID else None)
        create_runtime(machine.node(), container("c1", 7) if name == UID else container(name, pid, None))
    machine.die(7)
    poststop(machine.node(), "c1")
    return machine


def pruned(machine: Machine, seconds: float, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What goes that long from now."""
    now = system.boottime()
    monkeypatch.setattr(system, "boottime", lambda: now + seconds)
    monkeypatch.setattr(tasks, "table", dict)  # the machine's processes are made up
    done = run(Options(resctrl_root=str(machine.resctrl), run_dir=str(machine.run), snapshot_ttl=TTL))
    return [it.action.key for it in done.outcomes if it.action.verb == "prune" and it.problem is None]


def shown(machine: Machine) -> set[str]:
    return set(os.listdir(machine.run / "mon_groups"))


def test_it_goes_when_its_time_is_over(completed: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    before = shown(completed)
    assert UID in before
    assert pruned(completed, TTL - 1, monkeypatch) == []
    assert shown(completed) == before
    assert pruned(completed, TTL + 1, monkeypatch) == [UID]
    assert shown(completed) == before - {UID}
    assert not Path(completed.run, "groups", f"{UID}.json").exists()
    assert not Path(completed.run, "locks", UID).exists()


def test_a_snapshot_of_another_boot_is_not_kept_until_this_one_is_as_old(
    completed: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pruned(completed, -TTL - 1, monkeypatch) == [UID]


def test_a_key_that_came_back_stays(completed: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    completed.spawn(9)
    create_runtime(completed.node(), container("c1", 9))
    assert pruned(completed, 10 * TTL, monkeypatch) == []
    assert UID in shown(completed)


def test_a_busy_key_is_left_for_the_next_time(completed: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = Path(completed.run, "locks", UID)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert pruned(completed, 10 * TTL, monkeypatch) == []
    assert UID in shown(completed)
    assert pruned(completed, 10 * TTL, monkeypatch) == [UID]
