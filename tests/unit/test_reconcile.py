# SPDX-License-Identifier: Apache-2.0
"""What is kept of completed keys goes when its time is over, and nothing else does."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from hook.base import container_tasks, system
from hook.base.errors import HookError
from hook.base.models import Failure, KeyState, Options, ReconcileRecord
from hook.cli.deadline import Ended
from hook.node import runtimes
from hook.reconcile import bring_in, chase
from hook.reconcile.diagnose import Action
from hook.reconcile.run import Follower, Outcome, Result, plan_repairs, repair
from hook.reconcile.survey import Survey
from hook.stages.create import create_runtime
from hook.stages.remove import poststop
from hook.state.records import Records
from hook.state.store import LockedKey, RunDir
from tests.unit.faults import Clock
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
    done = repair(Options(resctrl_root=str(machine.resctrl), run_dir=str(machine.run), snapshot_ttl=TTL))
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
    monkeypatch.setattr(runtimes, "_ROOTS", ())
    done = repair(Options(resctrl_root=str(machine.resctrl), run_dir=str(machine.run)))
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
    monkeypatch.setattr(runtimes, "_ROOTS", ())
    machine.spawn(7)
    create_runtime(machine.node(), container("c1", 7))
    (group,) = (machine.resctrl / "mon_groups").iterdir()
    shutil.rmtree(group)
    (machine.run / "mon_groups" / UID / "generation").unlink()
    machine.refusals["mkdir"] = [errno.ENOSPC] * 50
    done = repair(Options(resctrl_root=str(machine.resctrl), run_dir=str(machine.run)))
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
        if not self._left:
            raise Ended("by SIGTERM")

    def end(self, outcome: Outcome | None) -> None:
        assert outcome is not None
        self._left -= outcome.problem is None


def test_a_run_that_is_ended_counts_what_it_has_done_and_the_next_one_does_the_rest(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_tasks, "table", dict)
    for pid in (7, 8, 9):
        machine.spawn(pid, uid=None)
        create_runtime(machine.node(), container(f"c{pid}", pid, None))
        machine.die(pid)
    options = Options(resctrl_root=str(machine.resctrl), run_dir=str(machine.run))
    follower = EndsAfter(2)
    with pytest.raises(Ended):
        repair(options, follower=follower)
    assert follower.seen == ["1/3 drop", "2/3 drop", "3/3 drop"]
    with Records(options.run_dir) as records:
        found = records.glance(ReconcileRecord)
    assert found is not None
    assert (found.actions, found.ended_at) == ({"drop": 2}, None)
    assert [str(it.action)[:7] for it in repair(options).outcomes] == ["drop c9"]


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
    done = repair(Options(resctrl_root=str(machine.resctrl), run_dir=str(machine.run)))
    assert not [it for it in done.outcomes if it.problem is not None]
    return [(it.action.verb, it.action.key or it.action.container) for it in done.outcomes]


def failed(machine: MachineOnDisk, name: str, torn: bool) -> Path:
    """The record of a createRuntime whose state was none: nothing is known of its process."""
    record = Failure(container=name, stage="createRuntime", reason="bad_state", problem="no state")
    RunDir(str(machine.run)).write(Failure, record.container, record)
    path = machine.run / "unmonitored" / f"{name}.json"
    if torn:
        path.write_text("{")
    return path


HOUR = 3600
BAD = "bad-0123456789abcdef"
clocks = pytest.mark.parametrize("seconds", [DAY + 60, -DAY - 60], ids=["a day later", "the clock was set back a day"])
each_failure = pytest.mark.parametrize("torn", [False, True], ids=["readable", "torn"])


@each_failure
@pytest.mark.parametrize("back", [1, -1], ids=["later", "the clock was set back"])
@pytest.mark.parametrize(("name", "kept"), [(ID, DAY), (BAD, HOUR)])
def test_a_failure_record_without_a_pid_is_removed_after_a_day_or_of_no_container_after_an_hour(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch, name: str, torn: bool, kept: int, back: int
) -> None:
    path = failed(machine, name, torn)
    assert at(machine, kept - 60, monkeypatch) == []
    assert path.exists()
    assert at(machine, back * (kept + 60), monkeypatch) == [("forget", name)]
    assert not path.exists()


@pytest.mark.parametrize(
    ("name", "cgroup"),
    [(BAD, f":/{BAD}"), (BAD, f":/crio-{BAD}.scope"), (ID, f":/kubepods/{'1' * 64}/crio-{ID}.scope")],
)
def test_a_failure_record_is_not_kept_by_a_cgroup_that_a_tenant_named_like_it(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch, name: str, cgroup: str
) -> None:
    failed(machine, name, torn=False)
    assert at(machine, DAY + 60, monkeypatch, cgroup) == [("forget", name)]


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
    RunDir(str(machine.run)).write(Failure, known.container, known)
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


# --- A hook that runs between the plan and the action


def reconcile_after(
    hook: Callable[[], object], machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, str | None]]:
    """What reconcile does if this happens just before its first action takes the lock: each verb, and its problem."""
    waiting = [hook]
    real = RunDir.lock

    def lock(self: RunDir, key: str, deadline: float) -> LockedKey:
        if waiting:
            waiting.pop()()
        return real(self, key, deadline)

    monkeypatch.setattr(container_tasks, "table", dict)
    monkeypatch.setattr(RunDir, "lock", lock)
    done = repair(Options(resctrl_root=str(machine.resctrl), run_dir=str(machine.run)))
    assert not waiting, "no action was planned"
    return [(it.action.verb, it.problem) for it in done.outcomes]


def start_container(machine: MachineOnDisk, name: str, pid: int) -> None:
    machine.spawn(pid)
    assert create_runtime(machine.node(linger=60), container(name, pid)) is not None


def linger(machine: MachineOnDisk) -> None:
    """A key that lingers, and whose linger time is over."""
    start_container(machine, "c1", 7)
    machine.die(7)
    poststop(machine.node(linger=60), "c1")
    path = machine.run / "groups" / f"{UID}.json"
    state = json.loads(path.read_text())
    assert state["lingering_until"] > state["lingering_since"]
    path.write_text(json.dumps({**state, "lingering_until": state["lingering_since"]}))


def assert_lives(machine: MachineOnDisk, name: str, pid: int) -> None:
    state = machine.node().run.read_key(UID)
    assert state is not None
    assert ({it: member.pid for it, member in state.members.items()}, state.completed_at) == ({name: pid}, None)
    assert machine.groups() == {f"oci-{UID}": {pid}}


def test_a_dead_member_that_came_back_after_the_plan_is_not_dropped(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_container(machine, "c1", 7)
    machine.die(7)
    done = reconcile_after(lambda: start_container(machine, "c1", 9), machine, monkeypatch)
    assert_lives(machine, "c1", 9)
    assert done == []


@pytest.mark.parametrize("lingers", [True, False], ids=["it lingered", "its group could not be removed"])
def test_a_key_that_got_a_member_after_the_plan_is_not_ended(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch, lingers: bool
) -> None:
    if lingers:
        linger(machine)
    else:
        start_container(machine, "c1", 7)
        machine.die(7)
        machine.refusals["rmdir"] = [errno.EIO]
        with pytest.raises(HookError):
            poststop(machine.node(), "c1")
    done = reconcile_after(lambda: start_container(machine, "c2", 9), machine, monkeypatch)
    assert_lives(machine, "c2", 9)
    assert "end" not in dict(done)


def test_a_key_that_lingers_again_since_the_plan_is_not_ended(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def live_again() -> None:
        start_container(machine, "c2", 9)
        machine.die(9)
        poststop(machine.node(linger=60), "c2")

    linger(machine)
    assert reconcile_after(live_again, machine, monkeypatch) == []
    assert machine.groups() == {f"oci-{UID}": set()}
    state = machine.node().run.read_key(UID)
    assert state is not None
    assert state.lingering_since is not None


def test_a_key_that_another_reconcile_ended_after_the_plan_is_not_ended_again(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(resctrl_root=str(machine.resctrl), run_dir=str(machine.run))
    linger(machine)
    others: list[str] = []
    done = reconcile_after(
        lambda: others.extend(it.action.verb for it in repair(options).outcomes), machine, monkeypatch
    )
    assert (others, done) == (["end"], [])


def test_an_index_entry_that_got_its_member_after_the_plan_is_kept(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a poststop that comes without annotations finds no key."""
    machine.node().run.write_index("c1", UID)
    assert reconcile_after(lambda: start_container(machine, "c1", 9), machine, monkeypatch) == []
    assert machine.node().run.read_index("c1") == UID


# --- A program that lives as a chain of forks


OWN = f"/kubepods/pod{UID}/crio-{ID}.scope"


class ChainOfForks:
    """In a container's cgroup, beside its init, 7: each link ends as soon as the cgroup has been read.

    `ends_early`: how often; after that the link of the time lives on. `is_inside`: its next links are in the group.
    """

    is_inside = False

    def __init__(self, machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch, ends_early: int) -> None:
        self.ends_early = ends_early
        self._machine = machine
        self._open = machine.open
        self._link = 1000
        self._list = machine.cgroups / OWN[1:] / "cgroup.threads"
        self._list.parent.mkdir(parents=True)
        self._enter(7)
        self._begin()
        create_runtime(machine.node(), container(ID, 7))
        monkeypatch.setattr(machine, "open", self.open)

    def open(self, path: bytes, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        goes_on = path.endswith(b"/cgroup.threads") and self.ends_early > 0
        if goes_on and self.is_inside:  # what is read is newer than the list of the group's tasks that was read before
            self.go_on()
        descriptor = self._open(path, flags, mode, dir_fd=dir_fd)
        if goes_on:
            self.ends_early -= 1
            self.go_on()
        return descriptor

    def go_on(self) -> None:
        self.end()
        self._begin()

    def end(self) -> None:
        self._machine.die(self._link)
        self._link += 1
        self._replace("7\n")

    def _begin(self) -> None:
        self._enter(self._link)
        self._replace(f"7\n{self._link}\n")

    def _replace(self, text: str) -> None:
        """As a new file: who has the former one open reads what was in it."""
        self._list.unlink(missing_ok=True)
        self._list.write_text(text)

    def _enter(self, pid: int) -> None:
        self._machine.spawn(pid, mon_group=f"oci-{UID}" if self.is_inside else "")
        if self.is_inside:
            with (self._machine.resctrl / "mon_groups" / f"oci-{UID}" / "tasks").open("a") as tasks:
                tasks.write(f"{pid}\n")
        (self._machine.proc / str(pid) / "cgroup").write_text(f"0::{OWN}\n")


def after_each_adoption(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    real = bring_in.adopt

    def adopt(seen: Survey, state: KeyState, name: str) -> int:
        try:
            return real(seen, state, name)
        finally:
            act()

    monkeypatch.setattr(bring_in, "adopt", adopt)


def put_right(machine: MachineOnDisk) -> Result:
    return repair(Options(resctrl_root=str(machine.resctrl), run_dir=str(machine.run)))


def count_outside(machine: MachineOnDisk) -> tuple[dict[str, int], int]:
    with Records(str(machine.run)) as records:
        found = records.glance(ReconcileRecord)
    assert found is not None
    return found.outside, found.outside_total


@pytest.fixture
def no_runtimes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "_ROOTS", ())


@pytest.mark.usefixtures("no_runtimes")
@pytest.mark.parametrize("ends_early", [0, 1, 5])
def test_chain_of_forks_is_adopted_and_counted_once(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch, ends_early: int
) -> None:
    """Its links were gone when they were to be moved, which was said to have been done."""
    ChainOfForks(machine, monkeypatch, ends_early)
    done = put_right(machine)
    assert [str(it.action).partition(": ")[2] for it in done.outcomes] == ["1 of its threads were not in its group"]
    assert machine.groups() == {f"oci-{UID}": {7, 1000 + ends_early}}
    assert (done.is_whole, count_outside(machine)) == (True, ({}, 0))


@pytest.mark.usefixtures("no_runtimes")
def test_chain_of_forks_that_stays_outside_is_a_failure_and_on_record_until_a_run_without_it(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    clock.now = 1000.0
    chain = ChainOfForks(machine, monkeypatch, 10**6)
    read = chain.open

    def open_slowly(path: bytes, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        clock.now += 0.01 * path.endswith(b"/cgroup.threads")
        return read(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(machine, "open", open_slowly)
    done = put_right(machine)
    assert {(it.action.verb, it.outside, (it.problem or "").partition(";")[0]) for it in done.outcomes} == {
        ("adopt", 1, "1 of its threads are still outside its group, after 0 were moved in")
    }
    assert (done.is_whole, count_outside(machine)) == (False, ({ID: 1}, 1))
    assert machine.groups() == {f"oci-{UID}": {7}}
    chain.ends_early = 0
    chain.end()
    done = put_right(machine)
    assert (done.outcomes, count_outside(machine)) == ([], ({}, 0))


@pytest.mark.usefixtures("no_runtimes")
def test_chain_that_stayed_outside_and_is_gone_at_the_last_look_is_no_failure(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """On a machine that gives reconcile little time, what is inside by now may have looked as if it were outside."""
    clock.now = 1000.0
    chain = ChainOfForks(machine, monkeypatch, 10**6)
    monkeypatch.setattr(chase, "_CHASE", 0.0)
    monkeypatch.setattr(chase, "_LOOKS", 1)

    def end() -> None:
        chain.ends_early = 0
        chain.end()

    after_each_adoption(monkeypatch, end)
    done = put_right(machine)
    assert [(it.outside, it.has_failed) for it in done.outcomes] == [(1, False)]
    assert (done.is_whole, count_outside(machine)) == (True, ({}, 0))


@pytest.mark.usefixtures("no_runtimes")
def test_chain_that_is_inside_and_whose_links_end_before_they_are_asked_is_not_planned_for(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = ChainOfForks(machine, monkeypatch, 0)
    put_right(machine)
    chain.is_inside = True
    chain.ends_early = 3
    options = Options(resctrl_root=str(machine.resctrl), run_dir=str(machine.run))
    assert plan_repairs(options).outcomes == []
    assert chain.ends_early == 0


@pytest.mark.usefixtures("no_runtimes")
def test_container_whose_group_is_made_again_while_a_chain_stays_outside_is_monitored(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no failure of a hook: the next run adopts the chain, and does not begin again."""
    ChainOfForks(machine, monkeypatch, 10**6)
    system.rmdir(str(machine.resctrl / "mon_groups" / f"oci-{UID}"))
    done = put_right(machine)
    assert (done.outcomes[0].action.verb, done.outcomes[0].outside) == ("remake", 1)
    assert (done.is_whole, count_outside(machine)) == (False, ({ID: 1}, 1))
    assert machine.groups() == {f"oci-{UID}": {7}}
    assert list((machine.run / "unmonitored").iterdir()) == []


@pytest.mark.usefixtures("no_runtimes")
def test_what_comes_in_during_a_run_is_adopted_in_its_next_pass(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the plan has the same words as before: such an action was taken for one that was tried."""
    chain = ChainOfForks(machine, monkeypatch, 0)

    def go_on_once() -> None:
        if chain._link == 1000:
            chain.go_on()

    after_each_adoption(monkeypatch, go_on_once)
    assert len(put_right(machine).outcomes) == 2
    assert machine.groups() == {f"oci-{UID}": {7, 1001}}


@pytest.mark.usefixtures("no_runtimes")
def test_what_is_outside_again_after_each_pass_is_a_failure_in_the_end(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pass had moved something in, so nothing had failed, and nothing was said."""
    chain = ChainOfForks(machine, monkeypatch, 0)
    after_each_adoption(monkeypatch, chain.go_on)
    done = put_right(machine)
    assert [(it.outside, it.has_failed) for it in done.outcomes] == [(0, False)] * 10 + [(1, True)]
    assert (done.is_whole, count_outside(machine)) == (False, ({ID: 1}, 1))


@pytest.mark.usefixtures("no_runtimes")
def test_container_with_more_cgroups_than_are_read_is_named(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = ChainOfForks(machine, monkeypatch, 0)
    monkeypatch.setattr(system, "count_links", lambda _path: 1002)
    done = put_right(machine)
    assert done.left == [
        f"1000 cgroups of {ID[:12]} of {UID} were not read: it has too many; a program there may stay outside"
    ]
    assert machine.groups() == {f"oci-{UID}": {7, chain._link}}
