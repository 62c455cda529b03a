# SPDX-License-Identifier: Apache-2.0
"""createRuntime and poststop, case by case. With each of their system calls failing: tests.simulator."""

from __future__ import annotations

import errno
import fcntl
import os
import posix
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hook.base import system
from hook.base.errors import HookError, Reason
from hook.base.explain import GroupGone, InLimbo, WrongCtrlGroup
from hook.base.models import Failure, KeyState, MonGroup, Options
from hook.base.resctrl import Resctrl
from hook.stages import retry
from hook.stages.create import create_runtime
from hook.stages.entry import Context
from hook.stages.identity import Container
from hook.stages.remove import poststop
from hook.state.store import LockedKey, RunDir
from tests.unit.faults import Clock, Faults, Killed, Manner, clock, directories, each_call_fails, fails, names_in

__all__ = ["clock", "directories"]  # fixtures

UID = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"
GROUP = f"oci-{UID}"


class MachineOnDisk:
    """Stands for `posix`: a /proc of made-up processes, and a resctrl of plain directories with a `tasks` in each."""

    def __init__(self, place: Path) -> None:
        self.proc = place / "proc"
        self.resctrl = place / "resctrl"
        self.run = place / "run"
        self.cgroups = place / "cgroup"
        (self.proc / "1").mkdir(parents=True)
        (self.proc / "self/ns").mkdir(parents=True)
        (self.proc / "self/ns/pid").symlink_to("pid:[4026531836]")
        (self.resctrl / "mon_groups").mkdir(parents=True)
        self.refusals: dict[str, list[int]] = {"mkdir": [], "rmdir": [], "put": []}
        self.calls: list[str] = []
        self.energy = 3  # joules that the next RMID to be given out begins with
        self.before_put: Callable[[], object] | None = None
        self._tasks: dict[int, Path] = {}
        self._classes: dict[int, str] = {}

    # What the tests do

    def spawn(
        self, pid: int, born: int = 100, ctrl_group: str = "/", mon_group: str = "", uid: str | None = UID
    ) -> None:
        """`uid`: of the pod that the kubelet made its cgroup for."""
        place = self.proc / str(pid)
        place.mkdir()
        fields = ["S", *["0"] * 16, "1", "0", str(born)]
        (place / "stat").write_text(f"{pid} (init) {' '.join(fields)}\n")
        (place / "task" / str(pid)).mkdir(parents=True)
        pod = f"pod{uid}" if uid else "user"
        (place / "cgroup").write_text(f"0::/{pod}/{pid}\n")
        (self.cgroups / pod).mkdir(parents=True, exist_ok=True)
        self.says(pid, ctrl_group, mon_group)

    def says(self, pid: int, ctrl_group: str, mon_group: str) -> None:
        self._classes[pid] = ctrl_group
        (self.proc / str(pid) / "cpu_resctrl_groups").write_text(f"res:{ctrl_group}\nmon:{mon_group}\n")

    def die(self, pid: int) -> None:
        shutil.rmtree(self.proc / str(pid))
        self._leave(pid)

    def be_in_another_pid_namespace(self) -> None:
        (self.proc / "self/ns/pid").unlink()
        (self.proc / "self/ns/pid").symlink_to("pid:[4026532201]")

    def add_class(self, name: str) -> None:
        (self.resctrl / name / "mon_groups").mkdir(parents=True)

    def groups(self) -> dict[str, set[int]]:
        """The tasks of each mon_group, by `[<ctrl_group>/]<name>`."""
        found = sorted(self.resctrl.glob("**/tasks"))
        names = [str(path.parent.relative_to(self.resctrl)).replace("mon_groups/", "") for path in found]
        return {name: set(map(int, path.read_text().split())) for name, path in zip(names, found, strict=True)}

    def node(self, **options: Any) -> Context:  # noqa: ANN401
        """What a hook that is started now works on."""
        return Context(Resctrl(str(self.resctrl)), RunDir(str(self.run)), Options(lock_timeout=0.0, **options))

    def leftovers(self) -> set[str]:
        """What the run directory holds, but for what is kept, and shown, of completed keys."""
        done = {path.stem for path in self.run.glob("groups/*.json") if b'"completed_at": "' in path.read_bytes()}
        kept = {f"groups/{key}.json" for key in done}
        return {name for name in names_in(self.run) if name not in kept and not name.startswith("mon_groups/")}

    def assert_clean(self) -> None:
        assert (self.groups(), self.leftovers()) == ({}, set())

    # What the hook does

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever posix has
        return getattr(posix, name)

    def open(self, path: bytes, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        descriptor = posix.open(self._here(path), flags, mode, dir_fd=dir_fd)
        if path.endswith(b"/tasks") and flags & os.O_WRONLY:
            self._tasks[descriptor] = Path(os.fsdecode(path))
        return descriptor

    def write(self, descriptor: int, data: bytes) -> int:
        if descriptor not in self._tasks:
            return posix.write(descriptor, data)
        tasks, pid = self._tasks[descriptor], int(data)
        if self.before_put is not None:
            action, self.before_put = self.before_put, None
            action()
        self._refuse("put")
        ctrl_group = "/" if tasks.parents[2] == self.resctrl else tasks.parents[2].name
        if not (self.proc / str(pid)).exists():
            raise ProcessLookupError(errno.ESRCH, "No such process")
        if self._classes[pid] != ctrl_group:
            raise OSError(errno.EINVAL, "Invalid argument")
        self._leave(pid)
        with tasks.open("a") as out:
            out.write(f"{pid}\n")
        self.says(pid, ctrl_group, tasks.parent.name)
        return len(data)

    def close(self, descriptor: int) -> None:
        self._tasks.pop(descriptor, None)
        posix.close(descriptor)

    def stat(self, path: bytes, **named: Any) -> os.stat_result:  # noqa: ANN401
        return posix.stat(self._here(path), **named)

    def readlink(self, path: bytes) -> bytes:
        return posix.readlink(self._here(path))

    def mkdir(self, path: bytes, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if dir_fd is None and self._is_group(path):
            self._refuse("mkdir")
            posix.mkdir(path, mode)
            Path(os.fsdecode(path), "tasks").touch()
            domain = Path(os.fsdecode(path), "mon_data/mon_PERF_PKG_00")
            domain.mkdir(parents=True)
            (domain / "core_energy").write_text(f"{self.energy}.000000\n")
        else:
            posix.mkdir(path, mode, dir_fd=dir_fd)

    def rmdir(self, path: bytes, *, dir_fd: int | None = None) -> None:
        if dir_fd is None:
            self._refuse("rmdir")
            tasks = Path(os.fsdecode(path), "tasks")
            for pid in map(int, tasks.read_text().split() if tasks.exists() else []):
                if (self.proc / str(pid)).exists():
                    self.says(pid, self._classes[pid], "")
            shutil.rmtree(path)
        else:
            posix.rmdir(path, dir_fd=dir_fd)

    def _here(self, path: bytes) -> bytes:
        if path.startswith(b"/sys/fs/cgroup/"):
            return os.fsencode(self.cgroups) + path[14:]
        return os.fsencode(self.proc) + path[5:] if path.startswith(b"/proc/") or path == b"/proc" else path

    def _is_group(self, path: bytes) -> bool:
        return os.fsdecode(path).startswith(str(self.resctrl)) and b"/mon_groups/" in path

    def _refuse(self, call: str) -> None:
        self.calls.append(call)
        if self.refusals[call]:
            number = self.refusals[call].pop(0)
            raise OSError(number, os.strerror(number))

    def _leave(self, pid: int) -> None:
        for tasks in self.resctrl.glob("**/tasks"):
            kept = [line for line in tasks.read_text().split() if line != str(pid)]
            tasks.write_text("".join(f"{line}\n" for line in kept))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directories: None) -> MachineOnDisk:  # noqa: ARG001
    machine = MachineOnDisk(tmp_path)
    monkeypatch.setattr(system, "posix", machine)
    RunDir(str(machine.run))
    return machine


def container(name: str, pid: int, uid: str | None = UID, bundle: str = "/nowhere") -> Container:
    annotations = {"io.kubernetes.pod.uid": uid} if uid else {}
    return Container(name, pid, bundle, annotations)


def refused(action: Callable[[], object]) -> HookError:
    with pytest.raises(HookError) as caught:
        action()
    return caught.value


def with_faults(faults: Faults, action: Callable[[], object]) -> bool:
    """Whether it went through; what else it raises than it may is the test's failure."""
    with faults.injected():
        try:
            action()
        except (HookError, OSError, Killed):
            return False
    return True


NUMBERS = [errno.EIO, errno.ENOSPC, errno.EINVAL, errno.EBUSY, errno.EACCES]
each_way = pytest.mark.parametrize(
    ("manner", "number"),
    [*(("refused", number) for number in NUMBERS), ("killed", 0)],
    ids=lambda it: errno.errorcode.get(it) if isinstance(it, int) else it,
)


def live_and_die(machine: MachineOnDisk, uid: str | None = UID) -> None:
    """The next hooks of a key: what a crash has left of it, they put right."""
    machine.spawn(9, uid=uid)
    create_runtime(machine.node(), container("c1", 9, uid))
    machine.die(9)
    poststop(machine.node(), "c1")


# --- Each system call fails


@each_way
def test_a_change_of_key_that_failed_anywhere_ends_in_one_key(
    machine: MachineOnDisk, manner: Manner, number: int
) -> None:
    """Podman's restart with another life of the same ID: the former key's group is empty by then."""

    def attempt(faults: Faults) -> None:
        machine.spawn(7, uid=None)
        create_runtime(machine.node(), container("c1", 7, uid=None))
        machine.die(7)
        machine.spawn(8)
        node = machine.node(rmid_wait=0.0)
        with_faults(faults, lambda: create_runtime(node, container("c1", 8)))
        create_runtime(machine.node(), container("c1", 8))
        assert machine.groups().pop(GROUP) == {8}
        assert machine.groups().keys() == {GROUP} or machine.node().run.read_key("c1") is not None
        machine.die(8)
        poststop(machine.node(), "c1")
        live_and_die(machine, uid=None)
        machine.assert_clean()

    assert each_call_fails(attempt, manner, number, machine) > 40


def test_a_full_run_directory_does_not_keep_a_key_from_ending(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is left to do then is to unlink, and poststop comes but once."""
    machine.spawn(7)
    create_runtime(machine.node(), container("c1", 7))
    machine.die(7)

    def full(path: str, *_rest: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(system, "write_new", full)
    poststop(machine.node(), "c1")
    machine.assert_clean()


# --- createRuntime


def test_what_is_on_record(machine: MachineOnDisk) -> None:
    machine.spawn(7, born=1234)
    create_runtime(machine.node(), container("c1", 7))
    state = machine.node().run.read_key(UID)
    assert state is not None
    path = str(machine.resctrl / "mon_groups" / GROUP)
    begin = {"mon_PERF_PKG_00/core_energy": "3.000000"}
    inode = os.stat(path).st_ino
    assert state.groups == [MonGroup(path=path, ctrl_group="/", inode=inode, begin=begin)]
    member = {"pid": 7, "starttime": 1234, "group": path, "cgroup": f":/pod{UID}/7", "taken_from": None, "name": None}
    assert {name: member.model_dump() for name, member in state.members.items()} == {"c1": member}
    assert machine.leftovers() == {f"groups/{UID}.json", f"locks/{UID}", "members/c1.json"}


def test_again_changes_nothing(machine: MachineOnDisk) -> None:
    machine.spawn(7, mon_group="theirs")
    create_runtime(machine.node(), container("c1", 7))
    before = (machine.run / "groups" / f"{UID}.json").read_bytes()
    create_runtime(machine.node(), container("c1", 7))
    assert (machine.run / "groups" / f"{UID}.json").read_bytes() == before
    assert machine.groups() == {GROUP: {7}}


def test_what_is_not_wanted_is_not_touched(machine: MachineOnDisk) -> None:
    assert create_runtime(machine.node(monitor="opt-in"), container("c1", 7)) is None
    assert (machine.calls, machine.leftovers()) == ([], set())


def test_a_process_that_is_gone(machine: MachineOnDisk) -> None:
    assert refused(lambda: create_runtime(machine.node(), container("c1", 7))).reason == Reason.TASK_GONE
    machine.spawn(7)
    machine.before_put = lambda: shutil.rmtree(machine.proc / "7")
    assert refused(lambda: create_runtime(machine.node(), container("c1", 7))).reason == Reason.TASK_GONE
    assert (machine.groups(), machine.leftovers()) == ({}, set())


def test_a_proc_that_cannot_tell(machine: MachineOnDisk) -> None:
    machine.spawn(7)
    (machine.proc / "7" / "stat").write_text("7 (init) S")
    assert refused(lambda: create_runtime(machine.node(), container("c1", 7))).reason == Reason.IO
    shutil.rmtree(machine.proc)
    error = refused(lambda: create_runtime(machine.node(), container("c1", 7)))
    assert error.reason == Reason.IO
    assert "No such file" in error.tried
    assert machine.leftovers() == set()


def test_not_mounted(machine: MachineOnDisk) -> None:
    machine.spawn(7)
    (machine.resctrl / "mon_groups").rmdir()
    assert refused(lambda: create_runtime(machine.node(), container("c1", 7))).reason == Reason.NOT_MOUNTED
    assert machine.leftovers() == set()
    assert os.listdir(machine.resctrl) == []


@pytest.mark.parametrize("mon_group", ["", "theirs", f"oci-{UID[::-1]}"])
def test_whom_a_task_was_taken_from_is_noted_and_stays_noted(machine: MachineOnDisk, mon_group: str) -> None:
    machine.spawn(7, mon_group=mon_group)
    for _ in range(3):
        create_runtime(machine.node(), container("c1", 7))
        state = machine.node().run.read_key(UID)
        assert state is not None
        assert state.members["c1"].taken_from == (mon_group or None)


def test_what_an_earlier_life_was_taken_from_is_not_noted_of_the_next(machine: MachineOnDisk) -> None:
    machine.spawn(7, born=100, mon_group="theirs")
    create_runtime(machine.node(), container("c1", 7))
    machine.die(7)
    machine.spawn(7, born=200)
    create_runtime(machine.node(), container("c1", 7))
    state = machine.node().run.read_key(UID)
    assert state is not None
    assert (state.members["c1"].starttime, state.members["c1"].taken_from) == (200, None)


def test_a_group_that_was_made_under_another_prefix_is_used_on(machine: MachineOnDisk) -> None:
    machine.spawn(7)
    machine.spawn(8)
    create_runtime(machine.node(group_prefix="old-"), container("c1", 7))
    create_runtime(machine.node(), container("c2", 8))
    assert machine.groups() == {f"old-{UID}": {7, 8}}
    for name, pid in (("c1", 7), ("c2", 8)):
        machine.die(pid)
        poststop(machine.node(group_prefix="new-"), name)
    machine.assert_clean()


def test_a_key_has_a_group_in_each_ctrl_group(machine: MachineOnDisk) -> None:
    machine.add_class("gold")
    machine.spawn(7)
    machine.spawn(8, ctrl_group="gold")
    create_runtime(machine.node(), container("c1", 7))
    create_runtime(machine.node(), container("c2", 8))
    assert machine.groups() == {GROUP: {7}, f"gold/{GROUP}": {8}}
    for name, pid in (("c1", 7), ("c2", 8)):
        machine.die(pid)
        poststop(machine.node(), name)
    machine.assert_clean()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ('{"linux": {"intelRdt": {"closID": "gold"}}}', f"gold/{GROUP}"),
        ('{"linux": {"intelRdt": {}}}', GROUP),
        ('{"linux": null}', GROUP),
        ('{"linux": {"intelRdt": {"closID": ""}}}', GROUP),
        ('{"linux": {"intelRdt": {"closID": 7}}}', GROUP),
        ("{", GROUP),
        (None, GROUP),
    ],
)
def test_where_the_kernel_does_not_tell_the_bundle_does(
    machine: MachineOnDisk, tmp_path: Path, config: str | None, expected: str
) -> None:
    machine.add_class("gold")
    machine.spawn(7, ctrl_group="gold" if expected != GROUP else "/")
    (machine.proc / "7" / "cpu_resctrl_groups").unlink()
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    create_runtime(machine.node(), container("c1", 7, bundle=str(tmp_path)))
    assert machine.groups() == {expected: {7}}
    state = machine.node().run.read_key(UID)
    assert state is not None
    assert state.members["c1"].taken_from is None


@pytest.mark.parametrize(
    ("size", "ctrl_group", "group"), [(16 << 20, "gold", f"gold/{GROUP}"), (1 + (16 << 20), "/", GROUP)]
)
def test_a_config_of_more_than_16_mib_is_none(
    machine: MachineOnDisk, tmp_path: Path, size: int, ctrl_group: str, group: str
) -> None:
    machine.add_class("gold")
    machine.spawn(7, ctrl_group=ctrl_group)
    (machine.proc / "7" / "cpu_resctrl_groups").unlink()
    (tmp_path / "config.json").write_text('{"linux": {"intelRdt": {"closID": "gold"}}}'.ljust(size))
    create_runtime(machine.node(), container("c1", 7, bundle=str(tmp_path)))
    assert machine.groups() == {group: {7}}


def test_the_kernels_word_counts_more_than_the_bundles(machine: MachineOnDisk, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"linux": {"intelRdt": {"closID": "gold"}}}')
    machine.spawn(7)
    create_runtime(machine.node(), container("c1", 7, bundle=str(tmp_path)))
    assert machine.groups() == {GROUP: {7}}


@pytest.mark.parametrize("name", ["..", "a/b", "../../etc", "."])
def test_a_class_that_would_lead_elsewhere_is_refused(machine: MachineOnDisk, name: str) -> None:
    machine.spawn(7, ctrl_group=name)
    assert refused(lambda: create_runtime(machine.node(), container("c1", 7))).reason == Reason.NO_CTRL_GROUP
    assert (machine.groups(), machine.leftovers()) == ({}, set())


def test_a_class_that_does_not_exist_is_named(machine: MachineOnDisk) -> None:
    machine.spawn(7, ctrl_group="gold")
    error = refused(lambda: create_runtime(machine.node(), container("c1", 7)))
    assert error.reason == Reason.NO_CTRL_GROUP
    assert str(machine.resctrl / "gold") in error.problem
    assert (machine.groups(), machine.leftovers()) == ({}, set())
    assert not (machine.resctrl / "gold").exists()


@pytest.mark.parametrize("file", ["cgroup", "cpu_resctrl_groups"])
def test_names_that_are_not_utf_8_are_no_surprise(machine: MachineOnDisk, file: str) -> None:
    machine.spawn(7)
    text = {"cgroup": b"0::/a\xff\n", "cpu_resctrl_groups": b"res:/\nmon:\xff\n"}[file]
    (machine.proc / "7" / file).write_bytes(text)
    assert create_runtime(machine.node(), container("c1", 7)) is not None
    machine.die(7)
    poststop(machine.node(), "c1")
    assert machine.leftovers() == set()


# --- Tries again


def test_a_group_that_vanishes_is_made_again_three_times(machine: MachineOnDisk) -> None:
    machine.spawn(7)
    machine.refusals["put"] = [errno.ENODEV, errno.ENOENT, errno.ENODEV]
    assert create_runtime(machine.node(), container("c1", 7)) is not None
    assert machine.calls.count("put") == 4
    assert machine.groups() == {GROUP: {7}}


@pytest.mark.parametrize("call", ["mkdir", "put"])
def test_a_group_that_vanishes_a_fourth_time_is_given_up(machine: MachineOnDisk, call: str) -> None:
    machine.spawn(7)
    machine.refusals[call] = [errno.ENODEV] * 4
    error = refused(lambda: create_runtime(machine.node(), container("c1", 7)))
    assert isinstance(error, GroupGone)
    assert error.reason == Reason.IO
    assert machine.calls.count(call) == 4
    assert (machine.groups(), machine.leftovers()) == ({}, set())


def test_a_group_that_really_vanishes_is_made_again(machine: MachineOnDisk) -> None:
    machine.spawn(7)
    machine.refusals["put"] = [errno.ENODEV]
    machine.before_put = lambda: shutil.rmtree(machine.resctrl / "mon_groups" / GROUP)
    assert create_runtime(machine.node(), container("c1", 7)) is not None
    assert machine.groups() == {GROUP: {7}}


def test_a_task_that_was_moved_to_another_class_is_followed_once(machine: MachineOnDisk) -> None:
    machine.add_class("gold")
    machine.spawn(7)
    machine.before_put = lambda: machine.says(7, "gold", "")
    assert create_runtime(machine.node(), container("c1", 7)) is not None
    assert machine.groups()[f"gold/{GROUP}"] == {7}
    machine.die(7)
    poststop(machine.node(), "c1")
    assert (machine.groups(), machine.leftovers()) == ({}, set())


def test_a_task_that_is_in_another_class_twice_is_given_up(machine: MachineOnDisk) -> None:
    machine.spawn(7)
    machine.refusals["put"] = [errno.EINVAL] * 2
    error = refused(lambda: create_runtime(machine.node(), container("c1", 7)))
    assert isinstance(error, WrongCtrlGroup)
    assert error.reason == Reason.NO_CTRL_GROUP
    assert machine.calls.count("put") == 2
    assert (machine.groups(), machine.leftovers()) == ({}, set())


def test_the_group_in_the_class_that_the_task_had_left_gives_its_rmid_back(machine: MachineOnDisk) -> None:
    machine.add_class("gold")
    machine.spawn(7)
    machine.before_put = lambda: machine.says(7, "gold", "")
    create_runtime(machine.node(), container("c1", 7))
    assert machine.groups() == {f"gold/{GROUP}": {7}}


def test_an_unused_group_that_cannot_be_removed_stays_on_record(machine: MachineOnDisk) -> None:
    machine.add_class("gold")
    machine.spawn(7)
    machine.before_put = lambda: machine.says(7, "gold", "")
    machine.refusals["rmdir"] = [errno.EACCES]
    node = machine.node()
    assert create_runtime(node, container("c1", 7))
    assert [complaint.reason for complaint in node.run.complaints] == [Reason.DENIED]
    assert machine.groups() == {GROUP: set(), f"gold/{GROUP}": {7}}
    machine.die(7)
    poststop(machine.node(), "c1")
    assert machine.groups() == {}


def test_what_was_used_in_a_group_made_in_vain_goes_on_in_the_other(machine: MachineOnDisk) -> None:
    """A pod that lingered, whose group somebody removed, comes back and is moved to another class meanwhile."""
    machine.add_class("gold")
    machine.spawn(7)
    create_runtime(machine.node(), container("c1", 7))
    group = machine.resctrl / "mon_groups" / GROUP
    (group / "mon_data/mon_PERF_PKG_00/core_energy").write_text("10.000000\n")
    machine.die(7)
    poststop(machine.node(linger=60), "c1")
    group.rename(machine.run.parent / "gone")  # the kernel gives no inode twice
    machine.spawn(8)
    machine.before_put = lambda: machine.says(8, "gold", "")
    create_runtime(machine.node(), container("c1", 8))
    state = machine.node().run.read_key(UID)
    assert state is not None
    found = [(it.ctrl_group, it.before) for it in state.groups]
    assert found == [("gold", {"mon_PERF_PKG_00/core_energy": "7"})]


def test_a_full_run_directory_does_not_fail_a_start_that_made_a_group_in_vain(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.add_class("gold")
    machine.spawn(7)
    machine.before_put = lambda: machine.says(7, "gold", "")
    node = machine.node()
    real = retry.drop_made

    def fill_and_drop(*arguments: Any) -> None:  # noqa: ANN401  those of drop_made
        monkeypatch.setattr(system, "write_new", fails(errno.ENOSPC))
        real(*arguments)

    monkeypatch.setattr(retry, "drop_made", fill_and_drop)
    assert create_runtime(node, container("c1", 7)) is not None
    (complaint,) = node.run.complaints
    assert str(complaint).startswith("could not take removed groups off key")
    assert machine.groups() == {f"gold/{GROUP}": {7}}
    monkeypatch.undo()


def test_a_start_that_failed_is_undone_beside_a_sibling_in_another_class(machine: MachineOnDisk) -> None:
    machine.add_class("gold")
    machine.spawn(7)
    machine.spawn(8, ctrl_group="gold")
    create_runtime(machine.node(), container("c1", 7))
    machine.refusals["put"] = [errno.ESRCH]
    assert refused(lambda: create_runtime(machine.node(), container("c2", 8))).reason == Reason.TASK_GONE
    assert machine.groups() == {GROUP: {7}}


@pytest.mark.parametrize(
    ("call", "number", "reason"),
    [
        ("mkdir", errno.ENOSPC, Reason.NO_RMIDS),
        ("mkdir", errno.EBUSY, Reason.RMIDS_IN_LIMBO),
        ("mkdir", errno.EPERM, Reason.DENIED),
        ("put", errno.ESRCH, Reason.TASK_GONE),
        ("put", errno.EACCES, Reason.DENIED),
        ("put", errno.EIO, Reason.IO),
    ],
)
def test_what_waiting_cannot_help_is_tried_once_and_undone(
    machine: MachineOnDisk,
    clock: Clock,
    call: str,
    number: int,
    reason: str,
) -> None:
    machine.spawn(7)
    machine.refusals[call] = [number]
    assert refused(lambda: create_runtime(machine.node(), container("c1", 7))).reason == reason
    assert machine.calls.count(call) == 1
    assert clock.slept == []
    assert (machine.groups(), machine.leftovers()) == ({}, set())


def test_what_no_rmid_can_help_takes_none_from_the_dead(machine: MachineOnDisk, clock: Clock) -> None:  # noqa: ARG001
    machine.spawn(6, uid=None)
    create_runtime(machine.node(), container("dead", 6, uid=None))
    machine.die(6)
    machine.spawn(7)
    machine.refusals["mkdir"] = [errno.EPERM]
    assert refused(lambda: create_runtime(machine.node(), container("c1", 7))).reason == Reason.DENIED
    assert machine.groups() == {"oci-dead": set()}


def test_limbo_is_waited_for_without_a_lock_when_something_was_freed(
    machine: MachineOnDisk,
    clock: Clock,
) -> None:
    machine.spawn(7)
    node = machine.node(rmid_wait=1.5)
    node.run.note_freed()
    machine.refusals["mkdir"] = [errno.EBUSY] * 3
    seen = []

    def look() -> None:
        with (machine.run / "locks" / UID).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        seen.append(True)

    clock.during = look
    assert create_runtime(node, container("c1", 7)) is not None
    assert seen == [True]
    assert len(clock.slept) == 3
    assert machine.groups() == {GROUP: {7}}


def test_limbo_is_waited_for_no_longer_than_it_may(machine: MachineOnDisk, clock: Clock) -> None:
    machine.spawn(7)
    node = machine.node(rmid_wait=1.5)
    node.run.note_freed()
    machine.refusals["mkdir"] = [errno.EBUSY] * 10_000
    error = refused(lambda: create_runtime(node, container("c1", 7)))
    assert isinstance(error, InLimbo)
    assert "come back within seconds" in (error.hint or "")
    assert 1.4 < sum(clock.slept) < 1.6
    assert (machine.groups(), machine.leftovers()) == ({}, set())


def test_limbo_is_not_waited_for_long_after_something_was_freed(
    machine: MachineOnDisk,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine.spawn(7)
    node = machine.node(rmid_wait=1.5)
    monkeypatch.setattr(system, "boottime", lambda: 1000.0)
    node.run.note_freed()
    monkeypatch.setattr(system, "boottime", lambda: 1002.0)
    machine.refusals["mkdir"] = [errno.EBUSY]
    assert isinstance(refused(lambda: create_runtime(node, container("c1", 7))), InLimbo)
    assert clock.slept == []


def test_a_member_stays_one_when_a_repeat_of_its_start_fails(machine: MachineOnDisk) -> None:
    machine.spawn(7)
    create_runtime(machine.node(), container("c1", 7))
    before = machine.leftovers()
    machine.refusals["put"] = [errno.EACCES]
    assert refused(lambda: create_runtime(machine.node(), container("c1", 7))).reason == Reason.DENIED
    assert (machine.groups(), machine.leftovers()) == ({GROUP: {7}}, before)
    state = machine.node().run.read_key(UID)
    assert state is not None
    assert set(state.members) == {"c1"}


def test_a_failed_undo_is_reported_beside_the_failure(machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.spawn(7)
    machine.spawn(8)
    create_runtime(machine.node(), container("c1", 7))

    def full(path: str, *_rest: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    machine.before_put = lambda: monkeypatch.setattr(system, "write_new", full)
    machine.refusals["put"] = [errno.EACCES]
    node = machine.node()
    assert refused(lambda: create_runtime(node, container("c2", 8))).reason == Reason.DENIED
    assert ["ENOSPC" in str(complaint) for complaint in node.run.complaints] == [True]
    state = machine.node().run.read_key(UID)
    assert state is not None
    assert set(state.members) == {"c1", "c2"}, "for reconcile"


# --- poststop


def test_the_record_of_a_failure_goes_when_its_container_goes(machine: MachineOnDisk) -> None:
    failure = Failure(container="c1", stage="createRuntime", reason="io", problem="p", pid=7, starttime=100)
    machine.spawn(7)
    machine.node().run.write(Failure, failure.container, failure)
    poststop(machine.node(), "c1")
    assert machine.leftovers() == {"unmonitored/c1.json"}, "of the next life: Podman's clean-up can come late"
    machine.die(7)
    poststop(machine.node(), "c1")
    assert machine.leftovers() == set()


def test_the_record_of_a_failure_goes_when_its_pid_is_anothers(machine: MachineOnDisk) -> None:
    failure = Failure(container="c1", stage="createRuntime", reason="io", problem="p", pid=7, starttime=100)
    machine.spawn(7, born=200)
    machine.node().run.write(Failure, failure.container, failure)
    poststop(machine.node(), "c1")
    assert machine.leftovers() == set()


def test_of_a_stranger_and_twice_there_is_nothing_to_do(machine: MachineOnDisk) -> None:
    poststop(machine.node(), "never-seen")
    machine.spawn(7)
    create_runtime(machine.node(), container("c1", 7))
    machine.die(7)
    for _ in range(3):
        poststop(machine.node(), "c1")
    assert (machine.groups(), machine.leftovers(), machine.calls.count("rmdir")) == ({}, set(), 1)


def test_a_member_that_lives_is_not_dropped(machine: MachineOnDisk) -> None:
    machine.spawn(7)
    create_runtime(machine.node(), container("c1", 7))
    before = machine.leftovers()
    poststop(machine.node(), "c1")
    assert (machine.groups(), machine.leftovers()) == ({GROUP: {7}}, before)


def test_a_member_whose_pid_is_anothers_by_now_is_dropped(machine: MachineOnDisk) -> None:
    machine.spawn(7)
    create_runtime(machine.node(), container("c1", 7))
    machine.die(7)
    machine.spawn(7, born=200)
    poststop(machine.node(), "c1")
    assert (machine.groups(), machine.leftovers()) == ({}, set())


def test_a_member_of_whom_proc_cannot_tell_is_dropped(machine: MachineOnDisk) -> None:
    machine.spawn(7)
    create_runtime(machine.node(), container("c1", 7))
    shutil.rmtree(machine.proc)
    poststop(machine.node(), "c1")
    assert (machine.groups(), machine.leftovers()) == ({}, set())


def test_its_own_poststop_ends_a_group_whatever_is_in_it(machine: MachineOnDisk) -> None:
    machine.spawn(7)
    create_runtime(machine.node(), container("c1", 7))
    machine.spawn(9)
    (machine.resctrl / "mon_groups" / GROUP / "tasks").write_text("9\n")
    shutil.rmtree(machine.proc / "7")
    poststop(machine.node(), "c1")
    assert (machine.groups(), machine.leftovers()) == ({}, set())


def test_a_group_with_a_live_task_is_not_ended_by_other_hooks(machine: MachineOnDisk) -> None:
    """A change of key ends the former membership, but what still runs in the former group stays there."""
    machine.spawn(7, uid=None)
    machine.spawn(9)
    create_runtime(machine.node(), container("c1", 7, uid=None))
    (machine.resctrl / "mon_groups" / "oci-c1" / "tasks").write_text("7\n9\n")
    create_runtime(machine.node(), container("c1", 7))
    assert machine.groups() == {GROUP: {7}, "oci-c1": {9}}
    former = machine.node().run.read_key("c1")
    assert former is not None
    assert (len(former.groups), former.members) == (1, {})


def test_a_key_that_is_recovering_is_left_to_reconcile(machine: MachineOnDisk) -> None:
    machine.spawn(7)
    create_runtime(machine.node(), container("c1", 7))
    (machine.run / "groups" / f"{UID}.json").write_text("torn")
    machine.spawn(8)
    create_runtime(machine.node(), container("c2", 8))
    for name, pid in (("c2", 8), ("c1", 7)):
        machine.die(pid)
        poststop(machine.node(), name)
    state = machine.node().run.read_key(UID)
    assert state is not None
    assert (state.recovering, state.members, len(state.groups)) == (True, {}, 1)
    assert machine.groups() == {GROUP: set()}


def test_a_group_that_cannot_be_removed_stays_on_record_for_the_next_poststop(machine: MachineOnDisk) -> None:
    machine.spawn(7)
    create_runtime(machine.node(), container("c1", 7))
    machine.die(7)
    machine.refusals["rmdir"] = [errno.EACCES]
    assert refused(lambda: poststop(machine.node(), "c1")).reason == Reason.DENIED
    assert machine.groups() == {GROUP: set()}
    poststop(machine.node(), "c1")
    assert (machine.groups(), machine.leftovers()) == ({}, set())


def test_one_group_that_cannot_be_removed_does_not_keep_the_others(machine: MachineOnDisk) -> None:
    machine.add_class("gold")
    machine.spawn(7)
    machine.spawn(8, ctrl_group="gold")
    create_runtime(machine.node(), container("c1", 7))
    create_runtime(machine.node(), container("c2", 8))
    machine.die(7)
    machine.die(8)
    poststop(machine.node(), "c1")
    machine.refusals["rmdir"] = [errno.EACCES]
    refused(lambda: poststop(machine.node(), "c2"))
    assert machine.groups() == {GROUP: set()}
    node = machine.node()
    state = node.run.read_key(UID)
    assert state is not None
    assert node.view.is_current(state)
    poststop(machine.node(), "c2")
    assert (machine.groups(), machine.leftovers()) == ({}, set())


def test_a_ctrl_group_that_the_runtime_removed_takes_our_group_along(machine: MachineOnDisk) -> None:
    machine.add_class("gold")
    machine.spawn(7, ctrl_group="gold")
    create_runtime(machine.node(), container("c1", 7))
    machine.die(7)
    shutil.rmtree(machine.resctrl / "gold")
    poststop(machine.node(), "c1")
    assert (machine.groups(), machine.leftovers()) == ({}, set())


def test_a_lock_that_another_holds_ends_in_its_reason(machine: MachineOnDisk, clock: Clock) -> None:
    machine.spawn(7)
    create_runtime(machine.node(), container("c1", 7))
    machine.die(7)
    machine.spawn(8)
    with machine.node().run.lock(UID, clock.now):
        assert refused(lambda: create_runtime(machine.node(), container("c2", 8))).reason == Reason.LOCK_TIMEOUT
        assert refused(lambda: poststop(machine.node(), "c1")).reason == Reason.LOCK_TIMEOUT
    poststop(machine.node(), "c1")
    assert (machine.groups(), machine.leftovers()) == ({}, set())


# --- What the fault campaign has found


def test_use_is_not_counted_twice_when_a_return_fails_before_its_begin(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key's next life took the group that had no end, and its `before`, once more."""
    machine.spawn(7)
    create_runtime(machine.node(), container("c1", 7))
    (machine.resctrl / f"mon_groups/{GROUP}/mon_data/mon_PERF_PKG_00/core_energy").write_text("5.000000\n")
    machine.die(7)
    poststop(machine.node(), "c1")
    machine.spawn(8)
    with monkeypatch.context() as broken:
        broken.setattr(Resctrl, "counters", fails(errno.EMFILE))
        with pytest.raises(OSError, match="open files"):
            create_runtime(machine.node(), container("c1", 8))
    create_runtime(machine.node(), container("c1", 8))
    state = machine.node().run.glance(KeyState, UID)
    assert state is not None
    assert [group.before for group in state.groups] == [{"mon_PERF_PKG_00/core_energy": "2"}]


def test_an_unrecorded_begin_is_not_read_later_with_tasks_in_the_group(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they had used by then would have been nobody's, and nothing would have said so."""
    machine.spawn(7)
    commit, kept = LockedKey.commit, []

    def full(locked: LockedKey, state: KeyState) -> None:
        if any(group.begin is not None for group in state.groups):
            raise OSError(errno.ENOSPC, "No space left on device")
        kept.append(state)
        commit(locked, state)

    with monkeypatch.context() as broken:
        broken.setattr(LockedKey, "commit", full)
        node = machine.node()
        create_runtime(node, container("c1", 7))
    assert kept
    assert [it.problem for it in node.run.complaints] == [
        f"could not save the initial counters of key {UID}; its use will be unknown"
    ]
    machine.spawn(8)
    create_runtime(machine.node(), container("c2", 8))
    state = machine.node().run.glance(KeyState, UID)
    assert state is not None
    assert [group.before for group in state.groups] == [{"mon_PERF_PKG_00/core_energy": "Unavailable"}]


def test_a_poststop_that_cannot_read_its_index_fails(machine: MachineOnDisk) -> None:
    """It did nothing, and was counted among those that had nothing to do."""
    machine.spawn(7)
    create_runtime(machine.node(), container("c1", 7))
    (machine.run / "members/c1.json").write_text("{")
    machine.die(7)
    assert refused(lambda: poststop(machine.node(), "c1")).reason == Reason.IO


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ENOMEM])
def test_a_resctrl_that_cannot_be_looked_at_is_not_taken_for_none(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """`no resctrl here` was said once a boot, and no container was monitored, without a record."""
    monkeypatch.setattr(machine, "stat", fails(number), raising=False)
    with pytest.raises(OSError, match=os.strerror(number)):
        Resctrl(str(machine.resctrl)).exists()


# --- One container ID, several processes: two root directories of a runtime, or a poststop that is late


def members(machine: MachineOnDisk, key: str) -> dict[str, int]:
    state = machine.node().run.read_key(key)
    return {name: member.pid for name, member in state.members.items()} if state is not None else {}


def start_both(machine: MachineOnDisk, *, other_key: bool = False) -> None:
    """Two live processes, each the init of a container `x`."""
    for pid in (7, 8):
        uid = UID if other_key and pid == 7 else None
        machine.spawn(pid, born=100 + pid, uid=uid)
        create_runtime(machine.node(), container("x", pid, uid))


@pytest.mark.parametrize("first_to_go", [7, 8])
def test_poststop_of_one_of_two_containers_of_an_id_keeps_the_other_in_its_group(
    machine: MachineOnDisk, first_to_go: int
) -> None:
    start_both(machine)
    assert members(machine, "x") == {"x@7-107": 7, "x": 8}
    machine.die(first_to_go)
    poststop(machine.node(), "x")
    other = 15 - first_to_go
    assert machine.groups() == {"oci-x": {other}}
    assert members(machine, "x") == {"x": other}
    assert machine.node().run.read_index("x") == "x"
    machine.die(other)
    poststop(machine.node(), "x")
    machine.assert_clean()


def test_one_poststop_takes_all_dead_lives_of_an_id_out(machine: MachineOnDisk) -> None:
    start_both(machine)
    for pid in (7, 8):
        machine.die(pid)
    poststop(machine.node(), "x")
    machine.assert_clean()


def test_two_live_containers_of_an_id_may_call_again_in_any_order(machine: MachineOnDisk) -> None:
    start_both(machine)
    create_runtime(machine.node(), container("x", 7, None))
    assert members(machine, "x") == {"x@8-108": 8, "x": 7}
    create_runtime(machine.node(), container("x", 7, None))
    assert members(machine, "x") == {"x@8-108": 8, "x": 7}
    assert machine.groups() == {"oci-x": {7, 8}}


def test_a_start_that_fails_gives_the_id_back_to_the_live_container_that_had_it(machine: MachineOnDisk) -> None:
    for pid in (7, 8):
        machine.spawn(pid, uid=None)
    create_runtime(machine.node(), container("x", 7, None))
    machine.refusals["put"] = [errno.EIO]
    refused(lambda: create_runtime(machine.node(), container("x", 8, None)))
    assert members(machine, "x") == {"x": 7}
    assert machine.node().run.read_index("x") == "x"
    assert machine.groups() == {"oci-x": {7}}


def test_a_late_poststop_beside_the_next_life_of_an_id_ends_nothing(machine: MachineOnDisk) -> None:
    """Podman's: the former process was still dying when the container was started again."""
    start_both(machine)
    poststop(machine.node(), "x")
    assert members(machine, "x") == {"x@7-107": 7, "x": 8}
    machine.die(7)
    poststop(machine.node(), "x")
    assert members(machine, "x") == {"x": 8}
    assert machine.groups() == {"oci-x": {8}}


def test_a_live_container_stays_in_its_key_when_another_key_gets_its_id(machine: MachineOnDisk) -> None:
    start_both(machine, other_key=True)
    assert members(machine, UID) == {"x@7-107": 7}
    assert members(machine, "x") == {"x": 8}
    assert machine.groups() == {GROUP: {7}, "oci-x": {8}}
    machine.die(8)
    poststop(machine.node(), "x")
    assert machine.groups() == {GROUP: {7}}


def test_a_container_that_changes_keys_is_a_member_of_its_own_alone(machine: MachineOnDisk) -> None:
    """The other container of its ID, in the other key, stays one of that."""
    start_both(machine, other_key=True)
    create_runtime(machine.node(), container("x", 7))
    assert members(machine, UID) == {"x": 7}
    assert members(machine, "x") == {"x@8-108": 8}
    create_runtime(machine.node(), container("x", 8, None))
    assert members(machine, UID) == {"x@7-107": 7}
    assert members(machine, "x") == {"x": 8}
    assert machine.groups() == {GROUP: {7}, "oci-x": {8}}


def test_a_container_that_is_hooked_twice_with_different_keys_leaves_the_first_key(machine: MachineOnDisk) -> None:
    machine.spawn(7)
    create_runtime(machine.node(), container("x", 7))
    create_runtime(machine.node(key="container"), container("x", 7))
    assert members(machine, UID) == {}
    assert members(machine, "x") == {"x": 7}


# --- The names of a pod


def named(name: str, pid: int, pod: str) -> Container:
    names = {"io.kubernetes.pod.uid": UID, "io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.name": pod}
    return Container(name, pid, "/nowhere", names)


def pod_of(machine: MachineOnDisk) -> tuple[str | None, str | None]:
    state = machine.node().run.read_key(UID)
    assert state is not None
    return state.pod_namespace, state.pod_name


def test_a_key_that_was_rebuilt_without_names_takes_them_from_its_next_container(machine: MachineOnDisk) -> None:
    for pid in (7, 8, 9):
        machine.spawn(pid)
    create_runtime(machine.node(), container("c1", 7))
    assert pod_of(machine) == (None, None)
    create_runtime(machine.node(), named("c2", 8, "web"))
    assert pod_of(machine) == ("shop", "web")
    create_runtime(machine.node(), named("c3", 9, "other"))
    assert pod_of(machine) == ("shop", "web")
