# SPDX-License-Identifier: Apache-2.0
"""What watch does about an exec whose process was gone before it could be moved."""

from __future__ import annotations

import os
from typing import Any

import pytest

from hook.base import procfs
from hook.stages.context import Context
from hook.stages.create import create_runtime
from hook.watch import watch
from hook.watch.bring_in import Exec, bring_in
from hook.watch.index import Index
from hook.watch.log import Log
from hook.watch.pursuit import Pursuit
from tests.unit.faults import Clock
from tests.unit.test_create import MachineOnDisk, container, machine
from tests.unit.test_rundir import clock, directories
from tests.unit.test_watch import GROUP, ID, OTHER, FakeConnector, FakeLooks, enter, node, own, said, settle, spawn

__all__ = ["clock", "directories", "machine", "node", "said"]  # fixtures


class CgroupFiles:
    """The lists of threads of containers' cgroups; `reads`: of which one was read. A read takes `seconds`."""

    def __init__(self, machine: MachineOnDisk, clock: Clock) -> None:
        self.reads: list[str] = []
        self.asked: list[int] = []
        self.seconds = 0.0
        self._machine = machine
        self._clock = clock
        self._open = machine.open

    def open(self, path: bytes, flags: int, *arguments: Any, **named: Any) -> int:  # noqa: ANN401
        if path.endswith(b"/cgroup.threads"):
            self.reads.append(os.fsdecode(path))
            self._clock.now += self.seconds
        if path.endswith(b"/cpu_resctrl_groups"):
            self.asked.append(int(path.split(b"/")[2]))
        return self._open(path, flags, *arguments, **named)

    def put(self, name: str, *tids: int) -> None:
        directory = self._machine.cgroups / own(name).lstrip("/")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup.threads").write_text("".join(f"{tid}\n" for tid in tids))


@pytest.fixture
def files(machine: MachineOnDisk, node: Context, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> CgroupFiles:  # noqa: ARG001
    """With one container, which runs, and in whose cgroup there is one process more, 9, of which no event tells."""
    files = CgroupFiles(machine, clock)
    monkeypatch.setattr(machine, "open", files.open)
    spawn(machine, 9)
    files.put(ID, 7, 9)
    return files


def start(machine: MachineOnDisk, node: Context, files: CgroupFiles, pid: int = 70) -> None:
    """One more container of the pod."""
    machine.spawn(pid)
    enter(machine, pid, ":" + own(OTHER))
    files.put(OTHER, pid)
    create_runtime(node, container(OTHER, pid))


def pursue(node: Context) -> Pursuit:
    return Pursuit(node, Index(node.run), lambda _line: None)


GONE = Exec(has_vanished=True)


def test_what_a_process_forked_before_it_ended_is_moved_in_at_once(
    machine: MachineOnDisk, node: Context, files: CgroupFiles
) -> None:
    spawn(machine)
    machine.before_put = lambda: machine.die(8)
    found = bring_in(node, Index(node.run), 8)
    assert (found.moved, found.has_vanished) == (0, True)
    it = pursue(node)
    it.follow(found)
    assert (it.moved, it.wait()) == (1, None)
    assert machine.groups() == {GROUP: {7, 9}}
    assert files.reads


def test_what_a_process_forked_before_it_was_moved_and_ended_is_moved_in_too(
    machine: MachineOnDisk, node: Context, files: CgroupFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn(machine)
    monkeypatch.setattr(procfs, "is_dead", lambda pid, _born=None: pid == 8)  # a zombie, once it was moved
    found = bring_in(node, Index(node.run), 8)
    assert (found.moved, found.has_vanished) == (1, True)
    pursue(node).follow(found)
    assert machine.groups() == {GROUP: {7, 8, 9}}
    assert files.reads


def test_after_an_ordinary_exec_its_container_is_read_once_a_moment_later(
    machine: MachineOnDisk, node: Context, files: CgroupFiles, clock: Clock
) -> None:
    """What a process was forking while it was moved is outside, and is no child of it that can be seen."""
    start(machine, node, files)
    spawn(machine)
    it = pursue(node)
    for _ in range(3):
        it.follow(bring_in(node, Index(node.run), 8))
    assert machine.groups() == {GROUP: {7, 8, 70}}
    assert files.reads == []
    assert it.wait() == pytest.approx(0.01)
    clock.now += 0.01
    it.look()
    assert machine.groups() == {GROUP: {7, 8, 9, 70}}
    assert len(set(files.reads)) == 1
    assert it.wait() is None


def test_execs_without_end_do_not_put_off_the_look(node: Context, clock: Clock) -> None:
    place = Index(node.run).find([":" + own()])
    it = pursue(node)
    for _ in range(3):
        it.follow(Exec(moved=1, place=place))
        clock.now += 0.005
    assert it.wait() == 0


def test_exec_that_was_in_its_group_already_reads_nothing(node: Context, files: CgroupFiles) -> None:
    it = pursue(node)
    it.follow(bring_in(node, Index(node.run), 7))
    assert (files.reads, it.wait()) == ([], None)


def test_process_that_is_gone_leads_to_a_look_at_all_containers(
    machine: MachineOnDisk, node: Context, files: CgroupFiles
) -> None:
    start(machine, node, files)
    spawn(machine, 90, own(OTHER))
    files.put(OTHER, 70, 90)
    found = bring_in(node, Index(node.run), 99)
    assert found == GONE
    it = pursue(node)
    it.follow(found)
    assert it.wait() == 0
    it.look()
    assert (it.moved, it.wait()) == (2, None)
    assert machine.groups() == {GROUP: {7, 9, 70, 90}}


def test_container_that_was_recorded_meanwhile_is_looked_at(
    machine: MachineOnDisk, node: Context, files: CgroupFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hook.state.records.is_settled", lambda _run: True)
    settle(machine)
    it = pursue(node)
    it.follow(GONE)
    it.look()
    start(machine, node, files)
    spawn(machine, 90, own(OTHER))
    files.put(OTHER, 70, 90)
    it.follow(GONE)
    it.look()
    assert machine.groups() == {GROUP: {7, 9, 70, 90}}


def test_looks_take_a_twentieth_of_the_time(node: Context, files: CgroupFiles, clock: Clock) -> None:
    files.put(ID, 7)
    files.seconds = 0.01
    it = pursue(node)
    it.follow(GONE)
    it.look()
    assert it.wait() is None
    it.follow(GONE)
    assert it.wait() == pytest.approx(0.2)
    clock.now += 0.2
    assert it.wait() == pytest.approx(0.0)


def test_known_container_that_is_not_due_yet_waits_for_the_next_look(
    machine: MachineOnDisk, node: Context, files: CgroupFiles, clock: Clock
) -> None:
    files.put(ID, 7)
    files.seconds = 0.01
    it = pursue(node)
    it.follow(GONE)
    it.look()
    files.put(ID, 7, 9)
    files.reads.clear()
    place = Index(node.run).find([":" + own()])
    it.follow(Exec(place=place, has_vanished=True))
    assert files.reads == []
    clock.now += 1
    assert it.wait() == 0
    it.look()
    assert machine.groups() == {GROUP: {7, 9}}


def test_look_that_takes_too_long_goes_on_later_from_there(
    machine: MachineOnDisk, node: Context, files: CgroupFiles, clock: Clock
) -> None:
    start(machine, node, files)
    files.put(ID, 7)
    files.seconds = 0.3
    it = pursue(node)
    it.follow(GONE)
    it.look()
    assert len(files.reads) == 1
    assert it.wait() == pytest.approx(6)
    clock.now += 6
    it.look()
    assert len(set(files.reads)) == 2
    assert it.wait() is None


def test_thread_that_was_in_its_group_is_not_asked_about_for_a_minute(
    node: Context, files: CgroupFiles, clock: Clock
) -> None:
    files.put(ID, 7)
    it = pursue(node)
    it.follow(GONE)
    it.look()
    files.asked.clear()
    it.follow(GONE)
    it.look()
    assert files.asked == []
    clock.now += 61
    it.follow(GONE)
    it.look()
    assert files.asked == [7]


def test_container_whose_init_is_not_in_its_group_is_left(
    machine: MachineOnDisk, node: Context, files: CgroupFiles
) -> None:
    """A createRuntime in flight has recorded the member, and writes its pid last."""
    machine.says(7, "/", "")
    it = pursue(node)
    it.follow(GONE)
    it.look()
    assert (it.moved, files.asked[-1]) == (0, 7)
    assert machine.groups() == {GROUP: {7}}


@pytest.mark.parametrize("number", [2, 5], ids=["ENOENT", "EIO"])
def test_refusal_of_the_kernel_is_logged_unless_the_group_is_gone(
    node: Context, files: CgroupFiles, machine: MachineOnDisk, said: list[str], number: int
) -> None:
    machine.refusals["put"] = [number]
    it = Pursuit(node, Index(node.run), Log().say)
    it.follow(GONE)
    it.look()
    assert files.reads
    assert (it.moved, it.failed, len(said)) == (0, int(number == 5), int(number == 5))


def test_container_that_stays_outside_is_logged(
    node: Context, files: CgroupFiles, machine: MachineOnDisk, said: list[str]
) -> None:
    files.put(ID, 7, 9, 99)  # listed each time, and ended each time
    files.seconds = 0.05
    it = Pursuit(node, Index(node.run), Log().say)
    it.follow(GONE)
    it.look()
    assert (it.moved, it.failed) == (1, 1)
    (line,) = said
    assert f"cannot move all of {ID} into its group: 1 of its threads are still outside" in line
    assert machine.groups() == {GROUP: {7, 9}}


# --- The loop of watch


def test_watch_looks_as_soon_as_it_is_due_and_goes_on_with_events(
    machine: MachineOnDisk, node: Context, files: CgroupFiles
) -> None:
    spawn(machine)
    loop = watch.Watch(node, FakeConnector(99, 8, None), FakeLooks(), Log())  # type: ignore[arg-type]
    loop.step()
    assert machine.groups() == {GROUP: {7}}
    loop.step()
    assert machine.groups() == {GROUP: {7, 9}}
    loop.step()
    assert machine.groups() == {GROUP: {7, 8, 9}}
    assert files.reads


class PatientConnector(FakeConnector):
    """Notes how long it may wait, and waits."""

    def __init__(self, clock: Clock, *events: int | None) -> None:
        super().__init__(*events)
        self.waits: list[float] = []
        self._clock = clock

    def receive(self, patience: float = 1.0) -> int | None:
        self.waits.append(patience)
        self._clock.now += patience
        return super().receive()


def test_watch_waits_no_longer_than_until_the_next_look(
    machine: MachineOnDisk, node: Context, files: CgroupFiles, clock: Clock
) -> None:
    files.put(ID, 7)
    files.seconds = 0.01
    source = PatientConnector(clock, 99, 99, None, None)
    loop = watch.Watch(node, source, FakeLooks(), Log())  # type: ignore[arg-type]
    for _ in range(3):  # an event, a look, an event
        loop.step()
    files.put(ID, 7, 9)
    clock.now = loop._pursuit._due - 0.15
    loop.step()
    assert source.waits == [1.0, 1.0, pytest.approx(0.15)]
    assert machine.groups() == {GROUP: {7, 9}}
