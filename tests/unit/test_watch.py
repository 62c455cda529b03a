# SPDX-License-Identifier: Apache-2.0
"""watch on a machine of made-up processes: what it moves, what it leaves, and what it does about lost events."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hook.base import procfs, system
from hook.base.errors import HookError
from hook.base.models import KeyState, Options, WatchRecord
from hook.reconcile import move_in
from hook.reconcile.plan import Action
from hook.reconcile.survey import Survey
from hook.stages.context import Context
from hook.stages.create import create_runtime
from hook.stages.remove import poststop
from hook.state import records
from hook.state.records import Records
from hook.state.store import RunDir
from hook.watch import look, watch
from hook.watch.bring_in import bring_in
from hook.watch.connector import Lost
from hook.watch.index import Index
from hook.watch.log import Log
from tests.unit.faults import Clock
from tests.unit.test_create import UID, MachineOnDisk, container, machine
from tests.unit.test_rundir import clock, directories

__all__ = ["clock", "directories", "machine"]  # fixtures
ID = "5f3c" * 16
OTHER = "0123" * 16
GROUP = f"oci-{UID}"


def own(name: str = ID) -> str:
    return f"/kubepods/pod{UID}/crio-{name}.scope"


def enter(machine: MachineOnDisk, pid: int, *cgroups: str) -> None:
    """Put a process into cgroups, one for each hierarchy."""
    (machine.proc / str(pid) / "cgroup").write_text("".join(f"{n}:{it}\n" for n, it in enumerate(cgroups)))


def fork(machine: MachineOnDisk, parent: int, pid: int, *cgroups: str) -> None:
    """Make a child, in the group of its parent."""
    groups = procfs.resctrl_groups(parent)
    assert groups is not None
    machine.spawn(pid, ctrl_group=groups[0], mon_group=groups[1])
    enter(machine, pid, *(cgroups or (own_line(machine, parent),)))
    with (machine.proc / str(parent) / "task" / str(parent) / "children").open("a") as children:
        children.write(f"{pid} ")


def own_line(machine: MachineOnDisk, pid: int) -> str:
    return (machine.proc / str(pid) / "cgroup").read_text().strip().partition(":")[2]


@pytest.fixture
def node(machine: MachineOnDisk) -> Context:
    """With a container that runs: process 7, in its group."""
    machine.spawn(7)
    enter(machine, 7, ":" + own())
    node = machine.node()
    create_runtime(node, container(ID, 7))
    assert machine.groups() == {GROUP: {7}}
    return node


def spawn(machine: MachineOnDisk, pid: int = 8, cgroup: str = "", ctrl_group: str = "/", mon_group: str = "") -> None:
    """A process that exec brought into a cgroup, the container's own one by default."""
    machine.spawn(pid, ctrl_group=ctrl_group, mon_group=mon_group)
    enter(machine, pid, ":" + (cgroup or own()))


def moved(machine: MachineOnDisk, node: Context, pid: int = 8) -> set[int]:
    """What one exec of a process has brought into the container's group."""
    before = machine.groups()[GROUP]
    number = bring_in(node, Index(node.run), pid).moved
    found = machine.groups()[GROUP] - before
    assert number == len(found)
    return found


# --- What is moved


def test_exec_in_a_containers_own_cgroup_is_moved_in(machine: MachineOnDisk, node: Context) -> None:
    spawn(machine)
    assert moved(machine, node) == {8}


def test_exec_below_a_containers_own_cgroup_is_moved_in(machine: MachineOnDisk, node: Context) -> None:
    spawn(machine, cgroup=own() + "/init.scope")
    assert moved(machine, node) == {8}


def test_exec_in_one_hierarchy_of_several_is_moved_in(machine: MachineOnDisk, node: Context) -> None:
    spawn(machine)
    enter(machine, 8, "cpu,cpuacct:/", ":" + own())
    assert moved(machine, node) == {8}


def test_threads_and_children_are_moved_in_too(machine: MachineOnDisk, node: Context) -> None:
    spawn(machine)
    machine.spawn(80)
    (machine.proc / "8/task/80").mkdir()
    fork(machine, 8, 9)
    fork(machine, 9, 10)
    assert moved(machine, node) == {8, 80, 9, 10}


def test_child_that_is_forked_while_its_parent_is_moved_is_moved_in_too(machine: MachineOnDisk, node: Context) -> None:
    spawn(machine)
    machine.before_put = lambda: fork(machine, 8, 9)
    assert moved(machine, node) == {8, 9}


def test_cpu_time_from_before_a_task_is_moved_in_is_counted_and_that_of_a_task_that_stays_is_not(
    machine: MachineOnDisk, node: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "cpu_seconds", {8: 0.25, 9: 4.0}.get)
    spawn(machine, 8)
    spawn(machine, 9, mon_group="foreign")
    for pid in (8, 9):
        bring_in(node, Index(node.run), pid)
    assert node.late_cpu == {UID: 0.25}


def test_child_in_another_containers_cgroup_stays(machine: MachineOnDisk, node: Context) -> None:
    spawn(machine)
    fork(machine, 8, 9, ":" + own(OTHER))
    assert moved(machine, node) == {8}


def test_exec_in_another_group_of_ours_is_moved_in(machine: MachineOnDisk, node: Context) -> None:
    spawn(machine, mon_group="oci-other")
    assert moved(machine, node) == {8}


def test_process_in_its_group_already_is_written_nowhere_and_its_init_not_looked_at(
    machine: MachineOnDisk, node: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork(machine, 7, 8)
    machine.calls.clear()
    monkeypatch.setattr(procfs, "is_dead", None)
    assert bring_in(node, Index(node.run), 8).moved == 0
    assert machine.calls == []


def test_without_the_kernels_word_on_groups_the_tasks_file_tells(machine: MachineOnDisk, node: Context) -> None:
    spawn(machine)
    for pid in (7, 8):
        (machine.proc / str(pid) / "cpu_resctrl_groups").unlink()
    assert moved(machine, node) == {8}
    (machine.proc / "8/cpu_resctrl_groups").unlink()
    assert moved(machine, node) == set()


def test_no_lock_is_needed(machine: MachineOnDisk, node: Context) -> None:
    """A hook of another container of the pod may hold it meanwhile."""
    spawn(machine)
    with (machine.run / "locks" / UID).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert moved(machine, node) == {8}


# --- What is left


@pytest.mark.parametrize(
    "cgroup",
    [
        "/",
        "/system.slice/ssh.service",
        "/kubepods/pod" + UID,
        f"/kubepods/pod{UID}/crio-conmon-{ID}.scope",
        own(OTHER),
        f"/elsewhere/crio-{ID}.scope",
        "/../" + ID,
    ],
)
def test_exec_outside_of_the_recorded_cgroup_is_left(machine: MachineOnDisk, node: Context, cgroup: str) -> None:
    spawn(machine, cgroup=cgroup)
    assert moved(machine, node) == set()


def test_cgroup_that_a_container_shares_with_others_is_left(machine: MachineOnDisk) -> None:
    machine.spawn(7)
    enter(machine, 7, ":/user.slice")
    node = machine.node()
    create_runtime(node, container(ID, 7))
    spawn(machine, cgroup=f"/user.slice/{ID}")
    assert moved(machine, node) == set()


@pytest.mark.parametrize(("ctrl_group", "mon_group"), [("gold", ""), ("/", "kepler-1"), ("gold", GROUP)])
def test_exec_in_another_ctrl_group_or_tools_group_is_left(
    machine: MachineOnDisk, node: Context, ctrl_group: str, mon_group: str
) -> None:
    spawn(machine, ctrl_group=ctrl_group, mon_group=mon_group)
    assert moved(machine, node) == set()


def test_process_whose_ctrl_group_changes_meanwhile_is_left(machine: MachineOnDisk, node: Context) -> None:
    spawn(machine)
    machine.before_put = lambda: machine.says(8, "gold", "")
    assert moved(machine, node) == set()


def test_init_before_it_is_a_member_is_left(machine: MachineOnDisk, node: Context) -> None:
    """The container of a pod that is being created: the hook itself will move it, once its counters have begun."""
    spawn(machine, cgroup=own(OTHER))
    assert moved(machine, node) == set()
    create_runtime(node, container(OTHER, 8))
    assert machine.groups()[GROUP] == {7, 8}


def test_init_of_the_next_life_of_a_container_is_left(machine: MachineOnDisk, node: Context) -> None:
    """Podman starts the same ID again in the same cgroup, and its poststop may be late."""
    machine.die(7)
    spawn(machine)
    assert moved(machine, node) == set()
    create_runtime(node, container(ID, 8))
    assert machine.groups() == {GROUP: {8}}


def test_container_whose_inits_pid_another_process_has_is_left(machine: MachineOnDisk, node: Context) -> None:
    machine.die(7)
    machine.spawn(7, born=101, mon_group=GROUP)
    spawn(machine)
    assert moved(machine, node) == set()


def test_container_whose_init_is_not_in_its_group_yet_is_left(machine: MachineOnDisk, node: Context) -> None:
    """A createRuntime in flight has recorded the member, and writes its pid last."""
    machine.says(7, "/", "")
    spawn(machine)
    assert moved(machine, node) == set()


def test_container_that_ended_is_left(machine: MachineOnDisk, node: Context) -> None:
    machine.die(7)
    spawn(machine)
    poststop(node, ID)
    assert bring_in(node, Index(node.run), 8).moved == 0
    assert machine.groups() == {}


def test_process_that_is_gone_is_no_error(machine: MachineOnDisk, node: Context) -> None:
    assert moved(machine, node, 99) == set()
    spawn(machine)
    machine.before_put = lambda: machine.die(8)
    bring_in(node, Index(node.run), 8)
    assert machine.groups() == {GROUP: {7}}


def test_group_that_is_removed_meanwhile_is_left_to_reconcile(machine: MachineOnDisk, node: Context) -> None:
    spawn(machine)
    machine.refusals["put"] = [2]  # ENOENT
    assert moved(machine, node) == set()


def test_torn_index_entry_is_no_container_and_piles_up_nothing(machine: MachineOnDisk, node: Context) -> None:
    spawn(machine)
    (machine.run / "members" / f"{ID}.json").write_text("{")
    assert moved(machine, node) == set()
    assert node.run.complaints == []


# --- The index


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The records that were read."""
    found: list[str] = []
    real = RunDir.glance

    def glance(run: RunDir, model: Any, name: str) -> Any:  # noqa: ANN401  any record
        if model is KeyState:
            found.append(name.removeprefix("groups/"))
        return real(run, model, name)

    monkeypatch.setattr(RunDir, "glance", glance)
    return found


def settle(machine: MachineOnDisk) -> None:
    """Some time passes."""
    os.utime(machine.run / "groups", (0, 0))


def test_records_are_read_once_until_one_changes(
    machine: MachineOnDisk, node: Context, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "is_settled", lambda _run: True)
    settle(machine)
    index = Index(node.run)
    for _ in range(3):
        assert index.find([":" + own()]) is not None
        assert index.find([":/system.slice/ssh.service"]) is None
    assert reads == [UID]
    spawn(machine, 9, own(OTHER))
    assert index.find([":" + own(OTHER)]) is None
    create_runtime(node, container(OTHER, 9))
    found = index.find([":" + own(OTHER)])
    assert found is not None
    assert (found.key, found.container, found.member.pid) == (UID, OTHER, 9)


def test_records_are_read_again_while_the_version_may_be_that_of_an_earlier_commit(
    node: Context, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index(node.run)
    monkeypatch.setattr(records, "is_settled", lambda _run: False)
    assert index.find([":" + own()]) == index.find([":" + own()])
    assert reads == [UID, UID]


def test_a_version_is_settled_when_its_commit_is_a_while_ago(node: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    (Path(node.run.path) / "groups" / "new").touch()
    now = os.stat(Path(node.run.path) / "groups").st_ctime
    monkeypatch.setattr(system, "time", SimpleNamespace(time=lambda: now + 0.01))
    assert not records.is_settled(node.run)
    monkeypatch.setattr(system, "time", SimpleNamespace(time=lambda: now + 1))
    assert records.is_settled(node.run)


def test_index_does_not_grow_with_what_it_was_asked(node: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "is_settled", lambda _run: True)
    index = Index(node.run)
    for number in range(5000):
        assert index.find([f":/system.slice/{number}.service"]) is None
    assert len(index._found) <= 4096


# --- The loop


class FakeConnector:
    """Events that are there already: pids, and Lost."""

    def __init__(self, *events: int | type[Lost] | None) -> None:
        self.events = list(events)

    def receive(self, _patience: float = 1.0) -> int | None:
        event = self.events.pop(0)
        if isinstance(event, type):
            raise event
        return event


class FakeLooks:
    """Counts what it was asked for."""

    def __init__(self) -> None:
        self.asked = self.ticks = 0

    def ask(self) -> None:
        self.asked += 1

    def tick(self) -> None:
        self.ticks += 1


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(system, "write_stderr", lambda line: lines.append(line.decode()))
    return lines


def steps(node: Context, *events: int | type[Lost] | None) -> FakeLooks:
    looks = FakeLooks()
    source = FakeConnector(*events)
    loop = watch.Watch(node, source, looks, Log())  # type: ignore[arg-type]
    while source.events:
        loop.step()
    return looks


def test_each_event_is_acted_on(machine: MachineOnDisk, node: Context, said: list[str]) -> None:
    spawn(machine, 8)
    spawn(machine, 9)
    steps(node, 8, None, 9)
    assert machine.groups() == {GROUP: {7, 8, 9}}
    assert said == []


def test_late_cpu_time_is_saved_once_a_minute(node: Context, clock: Clock) -> None:
    loop = watch.Watch(node, FakeConnector(None, None, None), FakeLooks(), Log())  # type: ignore[arg-type]
    loop.step()
    node.late_cpu[UID] = 0.25
    clock.now += 59
    loop.step()
    assert node.late_cpu, "not yet: a save takes the locks of its keys"
    clock.now += 61
    loop.step()
    assert not node.late_cpu
    state = node.run.glance(KeyState, UID)
    assert state is not None
    assert state.late_cpu == 0.25


def recorded(node: Context) -> WatchRecord | None:
    with Records(node.run.path) as records:
        return records.glance(WatchRecord)


def test_what_it_did_is_on_record_from_the_start_on_and_once_a_minute(
    machine: MachineOnDisk, node: Context, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "unix_time", lambda: 1e9 + clock.now)
    spawn(machine, 8)
    spawn(machine, 9)
    machine.refusals["put"] = [5]  # EIO
    loop = watch.Watch(node, FakeConnector(8, 9, 8, Lost, None, None), FakeLooks(), Log())  # type: ignore[arg-type]
    for _ in range(4):
        loop.step()
    at_start = WatchRecord(started_at=1e9 + 1000, alive_at=1e9 + 1000)
    assert recorded(node) == at_start
    clock.now += 59
    loop.step()
    assert recorded(node) == at_start
    clock.now += 1
    loop.step()
    assert recorded(node) == WatchRecord(started_at=1e9 + 1000, alive_at=1e9 + 1060, moved=2, failed=1, overflows=1)


def test_record_that_cannot_be_written_is_logged_and_the_event_acted_on(
    machine: MachineOnDisk, node: Context, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn(machine)
    monkeypatch.setattr(system, "write_new", refuse_to_write)
    steps(node, 8)
    assert machine.groups() == {GROUP: {7, 8}}
    (line,) = said
    assert "cannot write watch.json" in line


def refuse_to_write(*_arguments: object) -> None:
    raise OSError(28, "No space left on device")


def test_lost_events_ask_for_a_look_and_are_logged(node: Context, said: list[str]) -> None:
    assert steps(node, Lost).asked == 1
    assert "execs were lost" in said[0]


def test_a_refusal_of_the_kernel_is_logged_and_the_next_event_acted_on(
    machine: MachineOnDisk, node: Context, said: list[str]
) -> None:
    spawn(machine, 8)
    spawn(machine, 9)
    machine.refusals["put"] = [5]  # EIO
    steps(node, 8, 9)
    assert machine.groups() == {GROUP: {7, 9}}
    assert len(said) == 1
    assert "cannot move process 8 into its group" in said[0]
    assert "EIO" in said[0]


def test_no_more_than_ten_lines_a_minute_are_logged_and_the_rest_is_counted(said: list[str], clock: Clock) -> None:
    log = Log()
    for number in range(25):
        log.say(f"line {number}")
    assert len(said) == 10
    clock.now += 61
    log.tick()
    assert said[10:] == ["resctrl-mon-hook: watch: 15 more lines were not logged"]
    log.say("again")
    assert len(said) == 12


# --- The look at all


def test_a_look_moves_in_what_no_event_told_of(
    machine: MachineOnDisk, node: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn(machine)
    dead = "89ab" * 16
    machine.spawn(9)
    enter(machine, 9, ":" + own(dead))
    create_runtime(node, container(dead, 9))
    machine.die(9)
    adopted: list[str] = []

    def adopt(node: Context, action: Action, seen: Survey) -> Action | bool:
        adopted.append(action.verb)
        return move_in.adopt(node, action, seen)

    monkeypatch.setattr(look, "move_in", SimpleNamespace(adopt=adopt))
    assert look.adopt_all(node, Log()) == 1
    assert adopted == ["adopt"]
    assert machine.groups() == {GROUP: {7, 8}}
    state = node.run.glance(KeyState, UID)
    assert state is not None
    assert set(state.members) == {ID, dead}, "a look judges nobody dead"


class FakeProcesses:
    """Stands for `os` and `signal`: a child that lives until it is told to end."""

    WNOHANG, SIGKILL = 1, 9

    def __init__(self) -> None:
        self.forks = 0
        self.is_over = False

    def fork(self) -> int:
        self.forks += 1
        self.is_over = False
        return 100

    def waitpid(self, pid: int, _options: int) -> tuple[int, int]:
        return (pid, 0) if self.is_over else (0, 0)

    def kill(self, _pid: int, _number: int) -> None:
        self.is_over = True


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> FakeProcesses:
    fake = FakeProcesses()
    monkeypatch.setattr(look, "os", fake)
    return fake


def test_looks_are_one_at_a_time_and_not_too_often(node: Context, clock: Clock, processes: FakeProcesses) -> None:
    looks = look.Looks(node, Log(), lambda: None)
    looks.tick()
    assert processes.forks == 0
    for _ in range(3):  # at once, and no second one while it is going on
        looks.ask()
        looks.tick()
        clock.now += 1
    assert processes.forks == 1
    processes.is_over = True
    looks.tick()
    for _ in range(9):
        clock.now += 1
        looks.tick()
    assert processes.forks == 1
    clock.now += 2
    looks.tick()
    assert processes.forks == 2


def test_a_look_that_takes_too_long_is_ended(
    node: Context, clock: Clock, processes: FakeProcesses, said: list[str]
) -> None:
    looks = look.Looks(node, Log(), lambda: None)
    looks.ask()
    looks.tick()
    clock.now += 51
    looks.tick()
    assert processes.is_over
    assert "left to reconcile" in said[0]


def test_a_child_looks_and_ends(machine: MachineOnDisk, node: Context) -> None:
    """The real thing: fork(2)."""
    spawn(machine)
    released: list[str] = []
    looks = look.Looks(node, Log(), lambda: released.append("the parent's"))
    looks.ask()
    looks.tick()
    os.waitpid(looks._child, 0)
    assert machine.groups() == {GROUP: {7, 8}}
    assert released == []


# --- Where it cannot begin


def test_a_second_watch_is_refused(node: Context) -> None:
    descriptor = watch.take_lock(node)
    with pytest.raises(HookError, match="another watch runs"):
        watch.take_lock(node)
    os.close(descriptor)
    os.close(watch.take_lock(node))


def test_another_pid_namespace_is_refused(machine: MachineOnDisk) -> None:
    (machine.proc / "self/uid_map").write_text("0 0 4294967295")
    machine.be_in_another_pid_namespace()
    with pytest.raises(HookError, match="not the host's pid namespace"):
        watch.run(Options(run_dir=str(machine.run)))


def test_a_user_namespace_is_refused(machine: MachineOnDisk) -> None:
    (machine.proc / "self/uid_map").write_text("0 1000 1")
    with pytest.raises(HookError, match="user namespace"):
        watch.run(Options(run_dir=str(machine.run)))
