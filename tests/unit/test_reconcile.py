# SPDX-License-Identifier: Apache-2.0
"""What is kept of completed keys goes when its time is over, and nothing else does."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hook.base import container_tasks, system
from hook.base.models import Failure, Options
from hook.host import oci_runtimes
from hook.reconcile.outcome import Follower, Outcome
from hook.reconcile.plan import Action
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


# --- What it costs


def cost(machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch, reads: list[bytes], expected: set[str]) -> int:
    """How often a reconcile that does these actions opens something in /proc. It lists /proc itself once a pass."""
    reads.clear()
    monkeypatch.setattr(oci_runtimes, "has_roots", lambda: False)
    done = run(Options(resctrl_root=str(machine.resctrl), run_dir=str(machine.run)))
    assert {it.action.verb for it in done.outcomes if it.problem is None} == expected
    assert reads.count(b"/proc") <= 1 + len(expected)
    return len(reads)


def costs(machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch, members: int) -> list[int]:
    """The same of a node with that many members and as many other processes, for each kind of work."""
    reads: list[bytes] = []
    opened = machine.open

    def open_noted(path: bytes, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path.startswith(b"/proc"):
            reads.append(path)
        return opened(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(machine, "open", open_noted)
    for pid in range(1000, 1000 + members):
        uid = f"{pid:08d}{UID[8:]}"
        machine.spawn(pid, uid=uid)
        machine.spawn(pid + members)
        (machine.proc / str(pid) / "cgroup").write_text(f"0::/kubepods/pod{uid}/crio-{pid:064d}.scope\n")
        create_runtime(machine.node(), container(f"{pid:064d}", pid, uid))
    found = [cost(machine, monkeypatch, reads, set())]
    for group in (machine.resctrl / "mon_groups").iterdir():
        shutil.rmtree(group)
    found.append(cost(machine, monkeypatch, reads, {"remake"}))
    for record in (machine.run / "groups").glob("*.json"):
        record.write_text("{")
    found.append(cost(machine, monkeypatch, reads, {"rebuild"}))
    return found


def test_the_cost_grows_with_members_and_processes_and_not_with_their_product(
    machine: MachineOnDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = costs(machine, monkeypatch, 10)
    more = MachineOnDisk(tmp_path / "more")
    monkeypatch.setattr(system, "posix", more)
    RunDir(str(more.run))
    many = costs(more, monkeypatch, 40)
    assert [round(big / small, 1) <= 4.2 for big, small in zip(many, few)] == [True] * 3, (few, many)


def test_a_key_whose_group_cannot_be_made_stays_shown(machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was hidden by the last try, after its view had been made again in the same run."""
    monkeypatch.setattr(oci_runtimes, "has_roots", lambda: False)
    machine.spawn(7)
    create_runtime(machine.node(), container("c1", 7))
    (group,) = (machine.resctrl / "mon_groups").iterdir()
    shutil.rmtree(group)
    (machine.run / "mon_groups" / UID / "generation").unlink()
    machine.refusals["mkdir"] = [errno.ENOSPC] * 50
    done = run(Options(resctrl_root=str(machine.resctrl), run_dir=str(machine.run)))
    assert [it.action.verb for it in done.outcomes if it.problem] == ["remake", "retry"]
    assert (machine.run / "mon_groups" / UID / "generation").exists()


# --- A run that is ended


class EndsAfter(Follower):
    """Ends a run after so many actions."""

    def __init__(self, actions: int) -> None:
        self._left = actions
        self.seen: list[str] = []

    def begin(self, action: Action, number: int, total: int) -> None:
        self.seen.append(f"{number}/{total} {action.verb}")

    def end(self, outcome: Outcome) -> None:
        self._left -= outcome.problem is None
        self.is_over = not self._left


def test_a_run_that_is_ended_finishes_the_action_in_hand_and_says_what_is_left(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_tasks, "table", dict)
    for pid in (7, 8, 9):
        machine.spawn(pid, uid=None)
        create_runtime(machine.node(), container(f"c{pid}", pid, None))
        machine.die(pid)
    options = Options(resctrl_root=str(machine.resctrl), run_dir=str(machine.run))
    follower = EndsAfter(2)
    result = run(options, follower=follower)
    assert ([str(it.action)[:7] for it in result.outcomes], result.undone) == (["drop c7", "drop c8"], 1)
    assert (follower.seen, result.is_whole) == (["1/3 drop", "2/3 drop"], False)
    assert [str(it.action)[:7] for it in run(options).outcomes] == ["drop c9"]


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


def test_what_was_set_aside_of_a_key_that_goes_on_is_removed(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.spawn(7, uid=UID)
    create_runtime(machine.node(), container("c1", 7))
    aside = machine.run / "groups" / f"{UID}.json.unreadable-1"
    aside.touch()
    assert at(machine, DAY - 60, monkeypatch) == []
    assert ("tidy", UID) in at(machine, DAY + 60, monkeypatch)
    assert not aside.exists()
    state = machine.node().run.read_key(UID)
    assert state is not None
    assert list(state.members) == ["c1"]


def test_a_file_that_we_did_not_set_aside_is_kept(machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine.run / "groups" / f"{UID}.json").write_text("{")
    machine.node().run.read_key(UID)
    at(machine, 0, monkeypatch)
    (machine.run / "groups" / "no key.json.unreadable-1").touch()
    assert at(machine, DAY + 60, monkeypatch) == [("tidy", UID)]
    assert [it.name for it in (machine.run / "groups").iterdir()] == ["no key.json.unreadable-1"]
