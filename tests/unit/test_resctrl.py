# SPDX-License-Identifier: Apache-2.0
"""Each errno of the kernel is one outcome; what the kernel says beside it is quoted and nothing is decided by it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from hook.base import procfs, system
from hook.base.errors import HookError, Reason
from hook.base.explain import GroupGone, InLimbo, WrongCtrlGroup
from hook.base.resctrl import Resctrl
from tests.support.memory import MachineInMemory
from tests.unit.faults import fails

ROOT = "/sys/fs/resctrl"
GROUP = ROOT + "/mon_groups/oci-c1"
GOLD = ROOT + "/gold/mon_groups/oci-c1"
STATUS = ROOT + "/info/last_cmd_status"
PID = 4711


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> MachineInMemory:
    """A resctrl with nothing in it."""
    machine = MachineInMemory()
    monkeypatch.setattr(system, "posix", machine)
    machine.add(STATUS, b"ok\n")
    return machine


@pytest.fixture
def resctrl(kernel: MachineInMemory) -> Resctrl:
    assert kernel.exists(ROOT)
    return Resctrl(ROOT)


Fail = Callable[[str, int], None]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Fail:
    def arrange(call: str, number: int) -> None:
        monkeypatch.setattr(system, call, fails(number))

    return arrange


def test_a_directory_is_needed_for_anything(kernel: MachineInMemory, resctrl: Resctrl) -> None:
    assert (resctrl.exists(), resctrl.is_mounted()) == (True, True)
    kernel.remove(ROOT + "/mon_groups")
    assert (resctrl.exists(), resctrl.is_mounted()) == (True, False)
    kernel.add(ROOT + "/mon_groups", b"")
    assert (resctrl.exists(), resctrl.is_mounted()) == (True, False)
    assert not Resctrl("/nowhere").exists()


def test_where_groups_are(resctrl: Resctrl) -> None:
    assert resctrl.path("/", "oci-c1") == GROUP
    assert resctrl.path("gold", "oci-c1") == GOLD


def test_a_group_is_made_once_and_every_user_may_read_in_it(kernel: MachineInMemory, resctrl: Resctrl) -> None:
    assert resctrl.make(GROUP) is True
    assert resctrl.make(GROUP) is False
    assert kernel.stat(GROUP.encode()).st_mode & 0o7777 == 0o755


def test_no_parent_is_ever_made(kernel: MachineInMemory, resctrl: Resctrl) -> None:
    with pytest.raises(GroupGone):
        resctrl.make(GOLD)
    assert not kernel.exists(ROOT + "/gold")


MKDIR: list[tuple[int, type[HookError], str]] = [
    (errno.ENOSPC, HookError, Reason.NO_RMIDS),
    (errno.EBUSY, InLimbo, Reason.RMIDS_IN_LIMBO),
    (errno.EACCES, HookError, Reason.DENIED),
    (errno.EPERM, HookError, Reason.DENIED),
    (errno.EROFS, HookError, Reason.DENIED),
    (errno.ENOENT, GroupGone, Reason.IO),
    (errno.ENODEV, GroupGone, Reason.IO),
    (errno.EINVAL, HookError, Reason.IO),
    (errno.ESRCH, HookError, Reason.IO),
    (errno.ENOMEM, HookError, Reason.IO),
    (errno.EIO, HookError, Reason.IO),
]
PUT: list[tuple[int, type[HookError], str]] = [
    (errno.ESRCH, HookError, Reason.TASK_GONE),
    (errno.EINVAL, WrongCtrlGroup, Reason.NO_CTRL_GROUP),
    (errno.ENOENT, GroupGone, Reason.IO),
    (errno.ENODEV, GroupGone, Reason.IO),
    (errno.EACCES, HookError, Reason.DENIED),
    (errno.EPERM, HookError, Reason.DENIED),
    (errno.EROFS, HookError, Reason.DENIED),
    (errno.ENOSPC, HookError, Reason.IO),
    (errno.EBUSY, HookError, Reason.IO),
    (errno.EIO, HookError, Reason.IO),
    (errno.ELOOP, HookError, Reason.IO),
]
RMDIR: list[tuple[int, type[HookError], str]] = [
    (errno.EACCES, HookError, Reason.DENIED),
    (errno.EPERM, HookError, Reason.DENIED),
    (errno.EROFS, HookError, Reason.DENIED),
    (errno.EBUSY, HookError, Reason.IO),
    (errno.ENOTEMPTY, HookError, Reason.IO),
    (errno.ENOTDIR, HookError, Reason.IO),
]


def caught(action: Callable[[], object]) -> HookError:
    with pytest.raises(HookError) as info:
        action()
    assert "\n" not in str(info.value)
    return info.value


def by_name(value: object) -> str | None:
    return errno.errorcode[value] if isinstance(value, int) else None


@pytest.mark.parametrize(("number", "kind", "reason"), MKDIR, ids=by_name)
def test_mkdir_refused(resctrl: Resctrl, fail: Fail, number: int, kind: type[HookError], reason: str) -> None:
    fail("mkdir", number)
    error = caught(lambda: resctrl.make(GROUP))
    assert (type(error), error.reason) == (kind, reason)
    assert error.tried == f"mkdir {GROUP}: {errno.errorcode[number]}"


@pytest.mark.parametrize(("number", "kind", "reason"), PUT, ids=by_name)
def test_a_write_to_tasks_refused(
    resctrl: Resctrl, fail: Fail, number: int, kind: type[HookError], reason: str
) -> None:
    fail("write_once", number)
    error = caught(lambda: resctrl.put(GROUP, PID))
    assert (type(error), error.reason) == (kind, reason)
    assert error.tried == f"write {PID} to {GROUP}/tasks: {errno.errorcode[number]}"


@pytest.mark.parametrize(("number", "kind", "reason"), RMDIR, ids=by_name)
def test_rmdir_refused(resctrl: Resctrl, fail: Fail, number: int, kind: type[HookError], reason: str) -> None:
    fail("rmdir", number)
    error = caught(lambda: resctrl.remove(GROUP))
    assert (type(error), error.reason) == (kind, reason)
    assert error.tried == f"rmdir {GROUP}: {errno.errorcode[number]}"


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENODEV])
def test_a_group_that_is_gone_is_as_good_as_removed(resctrl: Resctrl, fail: Fail, number: int) -> None:
    fail("rmdir", number)
    assert resctrl.remove(GROUP) is False


def test_a_group_is_removed(kernel: MachineInMemory, resctrl: Resctrl) -> None:
    resctrl.make(GROUP)
    assert resctrl.remove(GROUP) is True
    assert not kernel.exists(GROUP)


@pytest.mark.parametrize("call", ["mkdir", "write_once"])
def test_what_is_gone_is_named(kernel: MachineInMemory, resctrl: Resctrl, fail: Fail, call: str) -> None:
    """The group, the ctrl_group above it, or all of resctrl."""
    fail(call, errno.ENOENT)

    def attempt() -> None:
        if call == "mkdir":
            resctrl.make(GOLD)
        else:
            resctrl.put(GOLD, PID)

    kernel.add(STATUS, b"Out of luck\n")
    kernel.add_directory(ROOT + "/gold/mon_groups")
    errors = [caught(attempt)]
    kernel.remove(ROOT + "/gold")
    errors.append(caught(attempt))
    kernel.remove(ROOT + "/mon_groups")
    errors.append(caught(attempt))
    assert [it.reason for it in errors] == [Reason.IO, Reason.NO_CTRL_GROUP, Reason.NOT_MOUNTED]
    assert ROOT + "/gold" in errors[1].problem
    assert all(it.kernel == "Out of luck" and GOLD in it.tried for it in errors)


@pytest.mark.parametrize(
    ("said", "quoted"),
    [
        ("Out of RMIDs\n", "Out of RMIDs"),
        ("ok\n", ""),
        ("", ""),
        ("Task list parsing error pid x\n", "Task list parsing error pid x"),
        ("okay\n", "okay"),
    ],
)
def test_the_last_command_status_is_quoted_unless_it_is_ok(
    kernel: MachineInMemory, resctrl: Resctrl, fail: Fail, said: str, quoted: str
) -> None:
    kernel.add(STATUS, said.encode())
    for call in ("mkdir", "write_once", "rmdir"):
        fail(call, errno.EPERM)
    actions: list[Callable[[], object]] = [
        lambda: resctrl.make(GROUP),
        lambda: resctrl.put(GROUP, PID),
        lambda: resctrl.remove(GROUP),
    ]
    for action in actions:
        error = caught(action)
        assert error.kernel == quoted
        assert error.reason == Reason.DENIED, "nothing is decided by it"
        assert ("kernel:" in str(error)) is bool(quoted)


def test_a_kernel_without_a_status_is_not_quoted(kernel: MachineInMemory, resctrl: Resctrl, fail: Fail) -> None:
    kernel.remove(STATUS)
    fail("mkdir", errno.ENOSPC)
    assert caught(lambda: resctrl.make(GROUP)).kernel == ""


def test_a_denied_call_has_a_hint(resctrl: Resctrl, fail: Fail) -> None:
    hints = set()
    for number in (errno.EACCES, errno.EPERM, errno.EROFS):
        fail("mkdir", number)
        hints.add(caught(lambda: resctrl.make(GROUP)).hint)
    assert len(hints - {""}) == 3


def test_the_pid_is_written_at_once_and_alone(
    kernel: MachineInMemory, resctrl: Resctrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.add(GROUP + "/tasks", b"")
    writes: list[bytes] = []

    def write(_descriptor: int, data: bytes) -> int:
        writes.append(data)
        return len(data)

    monkeypatch.setattr("hook.base.system.posix.write", write)
    resctrl.put(GROUP, PID)
    assert writes == [b"4711"]


def test_tasks_is_never_made_by_us(kernel: MachineInMemory, resctrl: Resctrl) -> None:
    kernel.add_directory(GROUP)
    with pytest.raises(GroupGone):
        resctrl.put(GROUP, PID)
    assert kernel.files(GROUP) == {GROUP + "/": ""}


@pytest.mark.parametrize(
    ("tasks", "dead", "expected"),
    [
        ("", {}, False),
        ("\n", {}, False),
        ("1\n", {1: True}, False),
        ("1\n", {1: False}, True),
        ("1\n", {1: None}, True),
        ("1\n2\n3\n", {1: True, 2: True, 3: False}, True),
        ("1\n2\n3\n", {1: True, 2: True, 3: None}, True),
        ("1\n2\n3\n", {1: True, 2: True, 3: True}, False),
    ],
)
def test_a_task_lives_unless_it_is_known_to_be_dead(
    kernel: MachineInMemory,
    resctrl: Resctrl,
    monkeypatch: pytest.MonkeyPatch,
    tasks: str,
    dead: dict[int, bool | None],
    expected: bool,
) -> None:
    kernel.add(GROUP + "/tasks", tasks.encode())
    monkeypatch.setattr(procfs, "is_dead", dead.__getitem__)
    assert resctrl.has_live_task(GROUP) is expected


@pytest.mark.parametrize("tasks", ["", "1\n"])
def test_in_another_pid_namespace_no_group_is_known_to_be_empty(
    kernel: MachineInMemory, resctrl: Resctrl, monkeypatch: pytest.MonkeyPatch, tasks: str
) -> None:
    """`tasks` leaves out who has no pid there."""
    kernel.add(GROUP + "/tasks", tasks.encode())
    monkeypatch.setattr(procfs, "is_dead", lambda _pid: True)
    monkeypatch.setattr(procfs, "in_host_pid_namespace", lambda: False)
    assert resctrl.has_live_task(GROUP) is True
    assert resctrl.has_live_task(GROUP + "-gone") is False


def test_all_threads_of_a_large_node_are_in_one_group(
    kernel: MachineInMemory, resctrl: Resctrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = set(range(1_000_000, 1_200_000))
    kernel.add(GROUP + "/tasks", "".join(f"{tid}\n" for tid in many).encode())
    assert resctrl.tasks(GROUP) == many
    monkeypatch.setattr(procfs, "is_dead", many.__contains__)
    assert resctrl.has_live_task(GROUP) is False


def test_an_expelled_task_is_in_the_ctrl_group_above(kernel: MachineInMemory) -> None:
    root = "/root/mon_groups/resctrl"
    kernel.add(f"{root}/gold/tasks", b"")
    Resctrl(root).expel(f"{root}/gold/mon_groups/oci-c1", PID)
    assert kernel.files(f"{root}/gold/tasks") == {f"{root}/gold/tasks": str(PID).encode()}


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.ENOENT, False), (errno.ENODEV, False), (errno.EACCES, True), (errno.EIO, True), (errno.EFBIG, True)],
)
def test_what_cannot_be_read_may_hold_live_tasks(
    resctrl: Resctrl, monkeypatch: pytest.MonkeyPatch, number: int, expected: bool
) -> None:
    monkeypatch.setattr(system, "read_file", fails(number))
    assert resctrl.has_live_task(GROUP) is expected


def test_counters_are_what_the_kernel_gives_and_nothing_beside_them(tmp_path: Path) -> None:
    """A directory in a domain is part of its sums (sub-NUMA clusters), and AMD keeps a setting there."""
    data = tmp_path / "mon_groups/oci-c1/mon_data"
    for place in ("mon_L3_00/mon_sub_L3_00", "mon_L3_01"):
        (data / place).mkdir(parents=True)
        (data / place / "llc_occupancy").write_text("1024\n")
    (data / "mon_L3_00/llc_occupancy").write_text("4096\n")
    (data / "mon_L3_00/mbm_total_bytes").write_text("Unavailable\n")
    (data / "mon_L3_00/mbm_L3_assignments").write_text("0=e\n")
    found = Resctrl(str(tmp_path)).counters(str(data.parent))
    domain = {"mon_L3_00/llc_occupancy": "4096", "mon_L3_00/mbm_total_bytes": "Unavailable"}
    assert found == {**domain, "mon_L3_01/llc_occupancy": "1024"}


def test_a_counter_that_cannot_be_read_is_an_error_and_the_others_are_read(
    kernel: MachineInMemory, resctrl: Resctrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        kernel.add(f"{GROUP}/mon_data/mon_L3_00/{name}", b"7\n")
    real = system.read_counter

    def read(path: str) -> str:
        if path.endswith("/a"):
            fails(errno.EIO)()
        return real(path)

    monkeypatch.setattr(system, "read_counter", read)
    assert resctrl.counters(GROUP) == {"mon_L3_00/a": "Error", "mon_L3_00/b": "7"}


@pytest.mark.parametrize("call", ["list_directory", "read_counter"])
@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENODEV])
def test_a_group_that_goes_while_its_counters_are_read_is_gone(
    kernel: MachineInMemory, resctrl: Resctrl, fail: Fail, call: str, number: int
) -> None:
    kernel.add(GROUP + "/mon_data/mon_L3_00/llc_occupancy", b"4096\n")
    fail(call, number)
    with pytest.raises(GroupGone) as caught:
        resctrl.counters(GROUP)
    assert f"read {GROUP}/mon_data: {errno.errorcode[number]}" in str(caught.value)


def test_counters_that_cannot_be_looked_for_are_refused(resctrl: Resctrl, fail: Fail) -> None:
    fail("list_directory", errno.EACCES)
    with pytest.raises(HookError) as caught:
        resctrl.counters(GROUP)
    assert caught.value.reason == Reason.DENIED
    assert f"reading the counters; tried: read {GROUP}/mon_data: EACCES" in str(caught.value)
