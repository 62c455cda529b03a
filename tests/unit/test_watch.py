# SPDX-License-Identifier: Apache-2.0
"""watch on a machine of made-up processes: what it moves, what it leaves, and what it looks for that no event names."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hook.base import procfs, system
from hook.base.errors import HookError
from hook.base.models import KeyState, Options, WatchRecord
from hook.stages.create import create_runtime
from hook.stages.entry import Context
from hook.stages.remove import poststop
from hook.state import records
from hook.state.records import Records
from hook.state.store import RunDir
from hook.watch import watch
from hook.watch.connector import Lost
from hook.watch.pursuit import Pursuit
from tests.unit.faults import Clock
from tests.unit.test_create import UID, MachineOnDisk, container, machine
from tests.unit.test_rundir import clock, directories

__all__ = ["clock", "directories", "machine"]  # fixtures
ID = "5f3c" * 16
OTHER = "0123" * 16
GROUP = f"oci-{UID}"


def own(name: str = ID) -> str:
    return f"/kubepods/pod{UID}/crio-{name}.scope"


class WatchedCgroups:
    """Processes in containers' cgroups. `reads`: of which ones the threads were listed, each in `seconds`."""

    def __init__(self, machine: MachineOnDisk, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads: list[str] = []
        self.asked: list[int] = []
        self.seconds = 0.0
        self._machine, self._clock, self._open = machine, clock, machine.open
        monkeypatch.setattr(machine, "open", self.open)

    def open(self, path: bytes, flags: int, *arguments: Any, **named: Any) -> int:  # noqa: ANN401
        if path.endswith(b"/cgroup.threads"):
            self.reads.append(os.fsdecode(path))
            self._clock.now += self.seconds
        if path.endswith(b"/cpu_resctrl_groups"):
            self.asked.append(int(path.split(b"/")[2]))
        return self._open(path, flags, *arguments, **named)

    def spawn(self, pid: int, cgroup: str = own(), ctrl_group: str = "/", mon_group: str = "") -> None:
        """A process that exec brought into a cgroup, the container's own one by default."""
        self._machine.spawn(pid, ctrl_group=ctrl_group, mon_group=mon_group)
        self.enter(pid, ":" + cgroup)
        self.list(cgroup, pid)

    def enter(self, pid: int, *cgroups: str) -> None:
        """Put a process into cgroups, one for each hierarchy."""
        (self._machine.proc / str(pid) / "cgroup").write_text("".join(f"{n}:{it}\n" for n, it in enumerate(cgroups)))

    def list(self, cgroup: str, *tids: int) -> None:
        """Have threads listed in a cgroup, too."""
        if ".." not in cgroup:
            path = self._machine.cgroups / cgroup.lstrip("/") / "cgroup.threads"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as threads:
                threads.writelines(f"{tid}\n" for tid in tids)

    def end(self, pid: int) -> None:
        self._machine.die(pid)
        for path in self._machine.cgroups.rglob("cgroup.threads"):
            path.write_text("".join(it for it in path.read_text().splitlines(keepends=True) if int(it) != pid))


@pytest.fixture
def cgroups(machine: MachineOnDisk, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> WatchedCgroups:
    return WatchedCgroups(machine, clock, monkeypatch)


@pytest.fixture
def node(machine: MachineOnDisk, cgroups: WatchedCgroups) -> Context:
    """With a container that runs: process 7, in its group."""
    node = machine.node()
    start(node, cgroups, ID, 7)
    assert machine.groups() == {GROUP: {7}}
    return node


def start(node: Context, cgroups: WatchedCgroups, name: str = OTHER, pid: int = 70) -> None:
    """A container of the pod."""
    cgroups.spawn(pid, own(name))
    create_runtime(node, container(name, pid))


def pursue(node: Context) -> Pursuit:
    return Pursuit(node, lambda _line: None)


def moved(machine: MachineOnDisk, node: Context, pid: int = 8) -> set[int]:
    """What one exec of a process has brought into the container's group, at once."""
    before = machine.groups()[GROUP]
    it = pursue(node)
    it.bring_in(pid)
    found = machine.groups()[GROUP] - before
    assert it.moved == len(found)
    return found


# --- What is moved


@pytest.mark.parametrize("cgroup", [own(), own() + "/init.scope"])
def test_exec_in_or_below_a_containers_own_cgroup_is_moved_in(
    machine: MachineOnDisk, node: Context, cgroups: WatchedCgroups, cgroup: str
) -> None:
    cgroups.spawn(8, cgroup)
    assert moved(machine, node) == {8}


def test_exec_in_one_hierarchy_of_several_is_moved_in(
    machine: MachineOnDisk, node: Context, cgroups: WatchedCgroups
) -> None:
    cgroups.spawn(8)
    cgroups.enter(8, "cpu,cpuacct:/", ":" + own())
    assert moved(machine, node) == {8}


def test_exec_in_another_group_of_ours_is_moved_in_with_its_threads(
    machine: MachineOnDisk, node: Context, cgroups: WatchedCgroups
) -> None:
    cgroups.spawn(8, mon_group="oci-other")
    cgroups.spawn(80)
    (machine.proc / "8/task/80").mkdir()
    assert moved(machine, node) == {8, 80}


def test_children_are_moved_in_a_moment_later_unless_they_are_in_another_cgroup(
    machine: MachineOnDisk, node: Context, cgroups: WatchedCgroups, clock: Clock
) -> None:
    """Also one that is forked while its parent is moved: it is outside, and appears only then."""
    start(node, cgroups)
    cgroups.spawn(8)
    cgroups.spawn(9)
    cgroups.spawn(90, own(OTHER))
    machine.before_put = lambda: cgroups.spawn(10)
    it = pursue(node)
    for _ in range(3):
        it.bring_in(8)
    assert machine.groups() == {GROUP: {7, 8, 70}}
    assert cgroups.reads == []
    assert it.wait() == pytest.approx(0.01)
    clock.now += 0.01
    it.look()
    assert machine.groups() == {GROUP: {7, 8, 9, 10, 70}}
    assert len({*cgroups.reads}) == 1
    assert it.wait() is None


def test_cpu_time_from_before_a_task_is_moved_in_is_counted_and_that_of_a_task_that_stays_is_not(
    node: Context, cgroups: WatchedCgroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "cpu_seconds", {8: 0.25, 9: 4.0}.get)
    cgroups.spawn(8)
    cgroups.spawn(9, mon_group="foreign")
    for pid in (8, 9):
        pursue(node).bring_in(pid)
    assert node.late_cpu == {UID: 0.25}


def test_process_in_its_group_already_is_written_nowhere_and_its_init_not_looked_at(
    machine: MachineOnDisk, node: Context, cgroups: WatchedCgroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    cgroups.spawn(8, mon_group=GROUP)
    machine.calls.clear()
    monkeypatch.setattr(procfs, "is_dead", None)
    it = pursue(node)
    it.bring_in(8)
    assert (it.moved, it.wait(), machine.calls, cgroups.reads) == (0, None, [], [])


def test_where_the_kernel_does_not_show_groups_the_tasks_file_tells(
    machine: MachineOnDisk, node: Context, cgroups: WatchedCgroups
) -> None:
    cgroups.spawn(8)
    for expected in ({8}, set()):
        for pid in (7, 8):
            (machine.proc / str(pid) / "cpu_resctrl_groups").unlink(missing_ok=True)
        assert moved(machine, node) == expected


def test_no_lock_is_needed(machine: MachineOnDisk, node: Context, cgroups: WatchedCgroups) -> None:
    """A hook of another container of the pod may hold it meanwhile."""
    cgroups.spawn(8)
    with (machine.run / "locks" / UID).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert moved(machine, node) == {8}


# --- What is left


@pytest.mark.parametrize(
    "where",
    [
        {"cgroup": "/"},
        {"cgroup": "/system.slice/ssh.service"},
        {"cgroup": "/kubepods/pod" + UID},
        {"cgroup": f"/kubepods/pod{UID}/crio-conmon-{ID}.scope"},
        {"cgroup": own(OTHER)},
        {"cgroup": f"/elsewhere/crio-{ID}.scope"},
        {"cgroup": "/../" + ID},
        {"ctrl_group": "gold"},
        {"mon_group": "kepler-1"},
        {"ctrl_group": "gold", "mon_group": GROUP},
    ],
)
def test_exec_outside_of_the_recorded_cgroup_or_in_another_tools_place_is_left(
    machine: MachineOnDisk, node: Context, cgroups: WatchedCgroups, where: dict[str, str]
) -> None:
    cgroups.spawn(8, **where)
    assert moved(machine, node) == set()


def test_cgroup_that_a_container_shares_with_others_is_left(machine: MachineOnDisk, cgroups: WatchedCgroups) -> None:
    cgroups.spawn(7, "/user.slice")
    node = machine.node()
    create_runtime(node, container(ID, 7))
    cgroups.spawn(8, f"/user.slice/{ID}")
    assert moved(machine, node) == set()


def die(machine: MachineOnDisk) -> None:
    machine.die(7)


def give_its_pid_to_another(machine: MachineOnDisk) -> None:
    machine.die(7)
    machine.spawn(7, born=101, mon_group=GROUP)


def be_outside(machine: MachineOnDisk) -> None:
    machine.says(7, "/", "")


@pytest.mark.parametrize("what", [die, give_its_pid_to_another, be_outside])
def test_container_whose_init_is_not_in_its_group_is_left(
    machine: MachineOnDisk, node: Context, cgroups: WatchedCgroups, what: Callable[[MachineOnDisk], None]
) -> None:
    """A createRuntime in flight has recorded the member, and writes its pid last. Podman's poststop may come late."""
    what(machine)
    cgroups.spawn(8)
    assert moved(machine, node) == set()
    it = pursue(node)
    it.look_at_all()
    it.look()
    assert (it.moved, machine.groups()[GROUP] - {7}) == (0, set())


def test_init_before_it_is_a_member_and_after_its_container_ended_is_left(
    machine: MachineOnDisk, node: Context, cgroups: WatchedCgroups
) -> None:
    """The container of a pod that is being created: the hook itself will move it, once its counters have begun."""
    cgroups.spawn(8, own(OTHER))
    assert moved(machine, node) == set()
    create_runtime(node, container(OTHER, 8))
    assert machine.groups() == {GROUP: {7, 8}}
    for name, pid in ((ID, 7), (OTHER, 8)):
        cgroups.end(pid)
        poststop(node, name)
    cgroups.spawn(9)
    pursue(node).bring_in(9)
    assert machine.groups() == {}


def change_ctrl_group(machine: MachineOnDisk) -> None:
    machine.before_put = lambda: machine.says(8, "gold", "")


def remove_group(machine: MachineOnDisk) -> None:
    machine.refusals["put"] = [2]  # ENOENT


def tear_index(machine: MachineOnDisk) -> None:
    (machine.run / "members" / f"{ID}.json").write_text("{")


@pytest.mark.parametrize("what", [change_ctrl_group, remove_group, tear_index])
def test_what_is_in_the_way_is_left_to_reconcile(
    machine: MachineOnDisk, node: Context, cgroups: WatchedCgroups, what: Callable[[MachineOnDisk], None]
) -> None:
    cgroups.spawn(8)
    what(machine)
    assert (moved(machine, node), node.run.complaints) == (set(), [])


# --- Which container a process is in


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The records that were read."""
    found: list[str] = []
    real = RunDir.glance

    def glance(run: RunDir, model: Any, name: str = "") -> Any:  # noqa: ANN401
        if model is KeyState:
            found.append(name)
        return real(run, model, name)

    monkeypatch.setattr(RunDir, "glance", glance)
    return found


def test_records_are_read_once_until_one_changes(
    machine: MachineOnDisk, node: Context, cgroups: WatchedCgroups, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "is_settled", lambda _run: True)
    os.utime(machine.run / "groups", (0, 0))
    it = pursue(node)
    for _ in range(3):
        assert it.find([":" + own()]) is not None
        assert it.find([":/system.slice/ssh.service"]) is None
    assert reads == [UID]
    cgroups.spawn(9, own(OTHER))
    assert it.find([":" + own(OTHER)]) is None
    create_runtime(node, container(OTHER, 9))
    found = it.find([":" + own(OTHER)])
    assert found is not None
    assert (found.key, found.container, found.member.pid) == (UID, OTHER, 9)


def test_records_are_read_again_while_the_version_may_be_that_of_an_earlier_commit(
    node: Context, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "is_settled", lambda _run: False)
    it = pursue(node)
    assert it.find([":" + own()]) == it.find([":" + own()])
    assert reads == [UID, UID]


def test_a_version_is_settled_when_its_commit_is_a_while_ago(node: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    (Path(node.run.path) / "groups" / "new").touch()
    now = os.stat(Path(node.run.path) / "groups").st_ctime
    for later, is_settled in ((0.01, False), (1, True)):
        monkeypatch.setattr(system, "time", SimpleNamespace(time=lambda at=now + later: at))
        assert records.is_settled(node.run) is is_settled


def test_what_is_remembered_of_cgroups_does_not_grow(node: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "is_settled", lambda _run: True)
    it = pursue(node)
    for number in range(5000):
        assert it.find([f":/system.slice/{number}.service"]) is None
    assert len(it._found) <= 4096


# --- What ends before it is moved


def test_what_a_process_forked_before_it_ended_is_moved_in_at_once(
    machine: MachineOnDisk, node: Context, cgroups: WatchedCgroups
) -> None:
    cgroups.spawn(9)
    cgroups.spawn(8)
    machine.before_put = lambda: cgroups.end(8)
    it = pursue(node)
    it.bring_in(8)
    assert (it.moved, it.wait(), machine.groups()) == (1, None, {GROUP: {7, 9}})


def test_what_a_process_forked_before_it_was_moved_and_ended_is_moved_in_too(
    machine: MachineOnDisk, node: Context, cgroups: WatchedCgroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    cgroups.spawn(9)
    cgroups.spawn(8)
    monkeypatch.setattr(procfs, "is_dead", lambda pid, _born=None: pid == 8)  # a zombie, once it was moved
    pursue(node).bring_in(8)
    assert machine.groups() == {GROUP: {7, 8, 9}}


def test_process_that_is_gone_leads_to_a_look_at_all_containers_also_at_new_ones(
    machine: MachineOnDisk, node: Context, cgroups: WatchedCgroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "is_settled", lambda _run: True)
    os.utime(machine.run / "groups", (0, 0))
    cgroups.spawn(9)
    it = pursue(node)
    it.bring_in(99)
    assert it.wait() == 0
    it.look()
    assert (it.moved, it.wait()) == (1, None)
    start(node, cgroups)
    cgroups.spawn(90, own(OTHER))
    it.bring_in(99)
    it.look()
    assert machine.groups() == {GROUP: {7, 9, 70, 90}}


def test_execs_without_end_do_not_put_off_the_look(node: Context, cgroups: WatchedCgroups, clock: Clock) -> None:
    it = pursue(node)
    for pid in (8, 9, 10):
        cgroups.spawn(pid)
        it.bring_in(pid)
        clock.now += 0.005
    assert it.wait() == 0


def slow_look(node: Context, cgroups: WatchedCgroups, seconds: float = 0.01) -> Pursuit:
    """After a look that took so long."""
    cgroups.seconds = seconds
    it = pursue(node)
    it.look_at_all()
    it.look()
    return it


def test_looks_take_a_twentieth_of_the_time(node: Context, cgroups: WatchedCgroups, clock: Clock) -> None:
    it = slow_look(node, cgroups)
    assert it.wait() is None
    it.look_at_all()
    assert it.wait() == pytest.approx(0.2)
    clock.now += 0.2
    assert it.wait() == pytest.approx(0.0)


def test_chase_that_is_not_due_yet_waits_for_the_next_look(
    machine: MachineOnDisk, node: Context, cgroups: WatchedCgroups, clock: Clock
) -> None:
    it = slow_look(node, cgroups)
    cgroups.spawn(9)
    cgroups.spawn(8)
    machine.before_put = lambda: cgroups.end(8)
    cgroups.reads.clear()
    it.bring_in(8)
    assert cgroups.reads == []
    clock.now += 1
    assert it.wait() == 0
    it.look()
    assert machine.groups() == {GROUP: {7, 9}}


def test_look_that_takes_too_long_goes_on_later_from_there(
    node: Context, cgroups: WatchedCgroups, clock: Clock
) -> None:
    start(node, cgroups)
    it = slow_look(node, cgroups, 0.3)
    assert len(cgroups.reads) == 1
    assert it.wait() == pytest.approx(6)
    clock.now += 6
    it.look()
    assert len({*cgroups.reads}) == 2
    assert it.wait() is None


def test_thread_that_was_in_its_group_is_not_asked_about_for_a_minute(
    node: Context, cgroups: WatchedCgroups, clock: Clock
) -> None:
    it = slow_look(node, cgroups)
    for seconds, expected in ((0, []), (61, [7])):
        cgroups.asked.clear()
        clock.now += seconds
        it.look_at_all()
        it.look()
        assert cgroups.asked == expected


@pytest.mark.parametrize("number", [2, 5], ids=["ENOENT", "EIO"])
def test_refusal_of_the_kernel_is_logged_unless_the_group_is_gone(
    node: Context, cgroups: WatchedCgroups, machine: MachineOnDisk, number: int
) -> None:
    cgroups.spawn(9)
    machine.refusals["put"] = [number]
    lines: list[str] = []
    it = Pursuit(node, lines.append)
    it.look_at_all()
    it.look()
    assert (it.moved, it.failed, len(lines)) == (0, int(number == 5), int(number == 5))


def test_container_that_stays_outside_is_logged(node: Context, cgroups: WatchedCgroups, machine: MachineOnDisk) -> None:
    cgroups.spawn(9)
    cgroups.list(own(), 99)  # listed each time, and ended each time
    cgroups.seconds = 0.05
    lines: list[str] = []
    it = Pursuit(node, lines.append)
    it.look_at_all()
    it.look()
    assert (it.moved, it.failed, machine.groups()) == (1, 1, {GROUP: {7, 9}})
    (line,) = lines
    assert f"cannot move all of {ID} into its group: 1 of its threads are still outside" in line


# --- The loop


class FakeConnector:
    """Events that are there already: pids, and Lost. `waits`: how long it might have waited for each."""

    def __init__(self, *events: int | type[Lost] | None, clock: Clock | None = None) -> None:
        self.events = list(events)
        self.waits: list[float] = []
        self._clock = clock

    def receive(self, patience: float = 1.0) -> int | None:
        self.waits.append(patience)
        if self._clock is not None:
            self._clock.now += patience
        event = self.events.pop(0)
        if isinstance(event, type):
            raise event
        return event


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(system, "write_stderr", lambda line: found.append(line.decode()))
    return found


def loop(node: Context, source: FakeConnector) -> watch.Watch:
    return watch.Watch(node, source)  # type: ignore[arg-type]


def take_steps(node: Context, *events: int | type[Lost] | None) -> None:
    source = FakeConnector(*events)
    it = loop(node, source)
    while source.events:
        it.step()


def test_each_event_is_acted_on(
    machine: MachineOnDisk, node: Context, cgroups: WatchedCgroups, lines: list[str], clock: Clock
) -> None:
    cgroups.seconds = 1.0
    cgroups.spawn(8)
    source = FakeConnector(8, None, 9)
    it = loop(node, source)
    for _ in range(2):  # a look at all, an event
        it.step()
    cgroups.spawn(9)
    clock.now -= 1000  # no look is due
    for _ in range(2):
        it.step()
    assert machine.groups() == {GROUP: {7, 8, 9}}
    assert (source.events, lines) == ([], [])


def test_it_looks_at_all_containers_when_it_starts_and_after_events_were_lost(
    machine: MachineOnDisk, node: Context, cgroups: WatchedCgroups, clock: Clock, lines: list[str]
) -> None:
    cgroups.spawn(8)
    it = loop(node, FakeConnector(Lost, None))
    it.step()
    assert machine.groups() == {GROUP: {7, 8}}
    cgroups.spawn(9)
    it.step()
    clock.now += 1
    it.step()
    assert machine.groups() == {GROUP: {7, 8, 9}}
    assert ["execs were lost" in line for line in lines] == [True]


def test_it_waits_no_longer_than_until_the_next_look(
    machine: MachineOnDisk, node: Context, cgroups: WatchedCgroups, clock: Clock
) -> None:
    source = FakeConnector(99, None, clock=clock)
    cgroups.seconds = 0.01
    it = loop(node, source)
    for _ in range(2):  # a look at all, an event
        it.step()
    cgroups.spawn(9)
    clock.now = it._pursuit._due - 0.15
    it.step()
    assert source.waits == [1.0, pytest.approx(0.15)]
    assert machine.groups() == {GROUP: {7, 9}}


def recorded(node: Context) -> WatchRecord | None:
    with Records(node.run.path) as found:
        return found.glance(WatchRecord)


def test_what_it_did_is_on_record_from_the_start_on_and_once_a_minute(
    machine: MachineOnDisk, node: Context, cgroups: WatchedCgroups, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "unix_time", lambda: 1e9 + clock.now)
    it = loop(node, FakeConnector(8, 9, 8, Lost, None, None))
    it.step()  # a look at all
    for pid in (8, 9):
        cgroups.spawn(pid)
    machine.refusals["put"] = [5]  # EIO
    node.late_cpu[UID] = 0.25
    for _ in range(4):
        it.step()
        it._pursuit._waiting.clear()
    at_start = WatchRecord(started_at=1e9 + 1000, alive_at=1e9 + 1000)
    assert recorded(node) == at_start
    clock.now += 59
    it.step()
    assert recorded(node) == at_start
    assert node.late_cpu, "not yet: a save takes the locks of its keys"
    clock.now += 1
    it.step()
    assert recorded(node) == WatchRecord(started_at=1e9 + 1000, alive_at=1e9 + 1060, moved=2, failed=1, overflows=1)
    state = node.run.glance(KeyState, UID)
    assert state is not None
    assert (state.late_cpu, node.late_cpu) == (0.25, {})


def test_record_that_cannot_be_written_is_logged_and_the_event_acted_on(
    machine: MachineOnDisk, node: Context, cgroups: WatchedCgroups, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(system, "write_new", refuse)
    cgroups.spawn(8)
    take_steps(node, None)
    assert machine.groups() == {GROUP: {7, 8}}
    (line,) = lines
    assert "cannot write watch.json" in line


def test_refusal_of_the_kernel_is_logged_and_the_next_event_acted_on(
    machine: MachineOnDisk, node: Context, cgroups: WatchedCgroups, lines: list[str]
) -> None:
    it = loop(node, FakeConnector(8, 9))
    it.step()  # a look at all
    for pid in (8, 9):
        cgroups.spawn(pid)
    machine.refusals["put"] = [5]  # EIO
    it.step()
    it.step()
    assert machine.groups() == {GROUP: {7, 9}}
    (line,) = lines
    assert "cannot move process 8 into its group" in line
    assert "EIO" in line


# --- Where it cannot begin


def test_a_second_watch_is_refused(node: Context) -> None:
    descriptor = watch.take_lock(node)
    with pytest.raises(HookError, match="another watch runs"):
        watch.take_lock(node)
    os.close(descriptor)
    os.close(watch.take_lock(node))


@pytest.mark.parametrize(
    ("uid_map", "problem"), [("0 0 4294967295", "not the host's pid namespace"), ("0 1000 1", "user namespace")]
)
def test_another_namespace_is_refused(machine: MachineOnDisk, uid_map: str, problem: str) -> None:
    (machine.proc / "self/uid_map").write_text(uid_map)
    machine.be_in_another_pid_namespace()
    with pytest.raises(HookError, match=problem):
        watch.run(Options(run_dir=str(machine.run)))
