# SPDX-License-Identifier: Apache-2.0
"""Each errno of the kernel is one outcome;
what the kernel says beside it is quoted and nothing is decided by it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from hook import system
from hook.errors import GONE, WRONG_CTRL_GROUP, HookError, Reason
from hook.resctrl import Resctrl
from hook.words import explain
from tests.simulator.kernel import RESCTRL
from tests.unit.simulated import Node, fails, node

__all__ = ["node"]  # fixture

GROUP = RESCTRL + "/mon_groups/oci-c1"
GOLD = RESCTRL + "/gold/mon_groups/oci-c1"
STATUS = RESCTRL + "/info/last_cmd_status"
PID = 4711


OURS = Resctrl(RESCTRL)


def fail(node: Node, call: str, number: int) -> None:
    """Have one of system's calls fail."""
    node.patch.setattr(system, call, fails(number))


def test_a_directory_is_needed_for_anything(node: Node) -> None:
    assert (OURS.exists(RESCTRL), OURS.is_mounted()) == (True, True)
    for content in (None, b""):
        node.kernel.files[RESCTRL + "/mon_groups"] = content
        assert (OURS.exists(RESCTRL), OURS.is_mounted()) == (True, False)
    assert not OURS.exists("/nowhere")


def test_a_group_is_made_once_and_every_user_may_read_in_it(node: Node) -> None:
    modes: list[int] = []
    mkdir = node.machine.mkdir

    def noting(path: bytes, mode: int, *, dir_fd: int | None = None) -> None:
        modes.append(mode)
        mkdir(path, mode, dir_fd=dir_fd)

    node.patch.setattr(node.machine, "mkdir", noting)
    assert (OURS.path("/", "oci-c1"), OURS.path("gold", "oci-c1")) == (GROUP, GOLD)
    assert [OURS.make(GROUP), OURS.make(GROUP)] == [True, False]
    assert modes == [0o755, 0o755]
    assert [OURS.remove(GROUP), OURS.remove(GROUP)] == [True, False]


def test_neither_a_parent_nor_tasks_is_ever_made_by_us(node: Node) -> None:
    with pytest.raises(HookError) as caught:
        OURS.make(GOLD)
    assert caught.value.kind in GONE
    OURS.make(GROUP)
    node.kernel.files[GROUP + "/tasks"] = None
    node.machine.changes.clear()
    with pytest.raises(HookError) as caught:
        OURS.put(GROUP, PID)
    assert caught.value.kind in GONE
    assert node.machine.changes == []


ACTIONS: dict[str, tuple[Callable[[str], object], str]] = {
    "mkdir": (OURS.make, "mkdir {}"),
    "write_once": (lambda group: OURS.put(group, PID), f"write {PID} to {{}}/tasks"),
    "rmdir": (OURS.remove, "rmdir {}"),
}
"""By the call that it makes: an action, and how it is told."""
REFUSALS: list[tuple[str, list[int], str, str]] = [
    *(
        (call, [errno.EACCES, errno.EPERM, errno.EROFS], "refused", Reason.DENIED)
        for call in ACTIONS
    ),
    ("mkdir", [errno.ENOSPC], "no RMIDs", Reason.NO_RMIDS),
    ("mkdir", [errno.EBUSY], "limbo", Reason.RMIDS_IN_LIMBO),
    ("mkdir", [errno.ENOENT, errno.ENODEV], "group gone", Reason.IO),
    ("mkdir", [errno.EINVAL, errno.ESRCH, errno.ENOMEM, errno.EIO], "refused", Reason.IO),
    ("write_once", [errno.ESRCH], "no process", Reason.TASK_GONE),
    ("write_once", [errno.EINVAL], WRONG_CTRL_GROUP, Reason.NO_CTRL_GROUP),
    ("write_once", [errno.ENOENT, errno.ENODEV], "group gone", Reason.IO),
    ("write_once", [errno.ENOSPC, errno.EBUSY, errno.EIO, errno.ELOOP], "refused", Reason.IO),
    ("rmdir", [errno.EBUSY, errno.ENOTEMPTY, errno.ENOTDIR], "refused", Reason.IO),
]


def caught(call: str, group: str = GROUP) -> HookError:
    with pytest.raises(HookError) as info:
        ACTIONS[call][0](group)
    assert "\n" not in str(explain(info.value))
    return info.value


@pytest.mark.parametrize(
    ("domains", "listed"),
    [
        (
            {
                "mon_L3_00": ("a", "b"),
                "mon_L3_01": ("a", "b"),
                "mon_P_00": ("c",),
                "mon_P_100": ("c",),
            },
            "mon_L3_00 mon_P_00",
        ),
        (
            {"mon_L3_00": ("a", "b"), "mon_L3_01": ("b", "c"), "mon_L3_02": ("b", "c")},
            "mon_L3_00 mon_L3_01",
        ),
        ({"mon_L3_00": (), "mon_L3_01": ("a",), "mon_L3_02": ("a",)}, "mon_L3_00 mon_L3_01"),
        ({"mon_L3_00": ("llc_occupancy",), "mon_L3_01": ("llc_occupancy",)}, "mon_L3_00"),
        ({"mon_L3_00": ("a", "mon_sub_L3_00"), "mon_L3_01": ("a", "mon_sub_L3_01")}, "mon_L3_00"),
    ],
    ids=["two kinds", "others in the second", "none in the first", "no sums", "sub-NUMA clusters"],
)
def test_one_domain_of_each_resource_is_listed_and_no_level_is_read(
    node: Node, domains: dict[str, tuple[str, ...]], listed: str
) -> None:
    """What the others have is the same, as the kernel makes them;
    a file that is missing all the same is noticed.
    """
    OURS.make(GROUP)
    node.kernel.resctrl.counters.domains.clear()
    paths, real = list[str](), system.list_kernel_directory
    for domain, events in domains.items():
        node.kernel.resctrl.counters.domains[domain] = ()
        for event in events:
            node.kernel.set_counter(GROUP, f"{domain}/{event}", "7")
            if event.startswith("mon_sub"):
                node.kernel.files[f"{GROUP}/mon_data/{domain}/{event}"] = ["a"]

    def list_directory(path: str) -> list[str]:
        paths.append(path)
        return real(path)

    node.patch.setattr(system, "list_kernel_directory", list_directory)
    every = {
        f"{domain}/{event}"
        for domain, events in domains.items()
        for event in events
        if "sub" not in event
    }
    read = OURS.counters(GROUP, is_quick=True)
    assert [path.rpartition("/")[2] for path in paths] == ["mon_data", *listed.split()]
    assert read == {
        name: "Unavailable" if name.endswith("/llc_occupancy") else "7" for name in every
    }
    node.kernel.set_counter(GROUP, "mon_L3_01/more", "7")
    assert OURS.counters(GROUP) == dict.fromkeys({*every, "mon_L3_01/more"}, "7"), (
        "tools list each domain"
    )


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENODEV])
def test_a_group_that_goes_while_its_second_domain_is_read_is_gone(node: Node, number: int) -> None:
    OURS.make(GROUP)
    for domain in ("mon_L3_00", "mon_L3_01"):
        node.kernel.set_counter(GROUP, f"{domain}/mbm_total_bytes", "7")
    real = system.read_counter

    def read(path: str) -> str:
        if "mon_L3_01" in path:
            node.kernel.rmdir(GROUP)
            raise OSError(number, os.strerror(number), path)
        return real(path)

    node.patch.setattr(system, "read_counter", read)
    with pytest.raises(HookError) as caught:
        OURS.counters(GROUP, is_quick=True)
    assert caught.value.kind == "group gone"


@pytest.mark.parametrize(
    ("call", "number", "kind", "reason"),
    [(row[0], number, *row[2:]) for row in REFUSALS for number in row[1]],
)
def test_each_errno_is_one_outcome(
    node: Node, call: str, number: int, kind: str, reason: str
) -> None:
    fail(node, call, number)
    error = caught(call)
    assert (error.kind, error.reason) == (kind, reason)
    assert explain(error).tried == f"{ACTIONS[call][1].format(GROUP)}: {errno.errorcode[number]}"
    assert explain(error).hint or reason != Reason.DENIED


@pytest.mark.parametrize("call", ["mkdir", "write_once"])
def test_what_is_gone_is_named(node: Node, call: str) -> None:
    """The group, the ctrl_group above it, or all of resctrl."""
    fail(node, call, errno.ENOENT)
    gold = node.kernel.add_class("gold")
    node.kernel.resctrl.status = "Out of luck\n"
    errors = [caught(call, GOLD)]
    node.kernel.rmdir(gold)
    errors.append(caught(call, GOLD))
    node.kernel.files[RESCTRL + "/mon_groups"] = None
    errors.append(caught(call, GOLD))
    assert [error.reason for error in errors] == [
        Reason.IO,
        Reason.NO_CTRL_GROUP,
        Reason.NOT_MOUNTED,
    ]
    assert gold in explain(errors[1]).problem
    assert all(
        explain(error).kernel == "Out of luck" and GOLD in explain(error).tried for error in errors
    )


@pytest.mark.parametrize("call", ACTIONS)
@pytest.mark.parametrize(
    ("said", "quoted"),
    [
        *(
            (text + b"\n", text.decode())
            for text in (b"Out of RMIDs", b"Task list parsing error pid x", b"okay")
        ),
        *((text, "") for text in (b"ok\n", b"", None)),
    ],
)
def test_the_last_command_status_is_quoted_unless_it_is_ok(
    node: Node, said: bytes | None, quoted: str, call: str
) -> None:
    node.kernel.files[STATUS] = said
    fail(node, call, errno.EPERM)
    error = caught(call)
    assert explain(error).kernel == quoted
    assert error.reason == Reason.DENIED, "nothing is decided by it"
    assert ("kernel:" in str(explain(error))) is bool(quoted)


@pytest.mark.parametrize("group", [GROUP, GOLD])
def test_the_pid_is_written_at_once_and_alone(node: Node, group: str) -> None:
    """Out of a group it goes to the ctrl_group above."""
    writes: list[tuple[str, bytes]] = []
    node.kernel.add_class("gold")
    node.kernel.mkdir(group)
    node.patch.setattr(node.kernel, "put", lambda path, data: writes.append((path, data)))
    OURS.put(group, PID)
    OURS.expel(group, PID)
    assert writes == [(group, b"4711"), (group.rpartition("/mon_groups/")[0], b"4711")]


def test_another_process_with_the_number_is_not_moved_for_a_moment_either(node: Node) -> None:
    node.spawn(PID, born=200)
    node.kernel.mkdir(GROUP)
    writes: list[tuple[str, bytes]] = []
    node.patch.setattr(node.kernel, "put", lambda path, data: writes.append((path, data)))
    with pytest.raises(HookError, match="no process"):
        OURS.put_process(GROUP, PID, 100)
    assert writes == []


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
    node: Node, tasks: str, dead: dict[int, bool | None], expected: bool
) -> None:
    """In another pid namespace no group is known to be empty:
    `tasks` leaves out who has no pid there.
    """
    node.kernel.files[GROUP + "/tasks"] = tasks.encode()
    node.patch.setattr(system, "is_dead", dead.__getitem__)
    OURS.make(GROUP)
    assert OURS.has_live_task(GROUP) is expected
    node.kernel.pid_namespace = "pid:[4026532201]"
    assert OURS.has_live_task(GROUP) is True
    assert OURS.has_live_task(GROUP + "-gone") is False


def test_all_threads_of_a_large_node_are_in_one_group(node: Node) -> None:
    many = set(range(1_000_000, 1_200_000))
    OURS.make(GROUP)
    node.kernel.files[GROUP + "/tasks"] = "".join(f"{tid}\n" for tid in many).encode()
    assert OURS.tasks(GROUP) == many
    node.patch.setattr(system, "is_dead", many.__contains__)
    assert OURS.has_live_task(GROUP) is False


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOENT, False),
        (errno.ENODEV, False),
        (errno.EACCES, True),
        (errno.EIO, True),
        (errno.EFBIG, True),
    ],
)
def test_what_cannot_be_read_may_hold_live_tasks(node: Node, number: int, expected: bool) -> None:
    fail(node, "read_file", number)
    assert OURS.has_live_task(GROUP) is expected


def test_counters_are_what_the_kernel_gives_and_nothing_beside_them(node: Node) -> None:
    """A directory in a domain is part of its sums (sub-NUMA clusters),
    and AMD keeps a setting there.
    """
    OURS.make(GROUP)
    node.kernel.resctrl.counters.domains.clear()
    texts = {f"mon_L3_00/{name}": "0=e" for name in ("mbm_L3_assignments", "mon_sub_L3_00")}
    texts.update(
        {"mon_L3_00/llc_occupancy": "4096", "mon_L3_01/a": "Unavailable", "mon_L3_01/b": "broken"}
    )
    for counter, text in texts.items():
        node.kernel.set_counter(GROUP, counter, text)
    node.kernel.files[f"{GROUP}/mon_data/mon_L3_00/mon_sub_L3_00"] = ["llc_occupancy"]
    real = node.machine.read

    def read(descriptor: int, size: int) -> bytes:
        data = real(descriptor, size)
        if data == b"broken\n":
            raise OSError(errno.EIO, "Input/output error")
        return data

    node.patch.setattr(node.machine, "read", read)
    expected = {
        "mon_L3_00/llc_occupancy": "4096",
        "mon_L3_01/a": "Unavailable",
        "mon_L3_01/b": "Error",
    }
    assert OURS.counters(GROUP) == expected


@pytest.mark.parametrize(
    ("call", "number", "kind", "reason"),
    [
        *(
            (call, number, "group gone", Reason.IO)
            for call in ("list_kernel_directory", "read_counter")
            for number in (2, errno.ENODEV)
        ),
        ("list_kernel_directory", errno.EACCES, "refused", Reason.DENIED),
    ],
)
def test_a_group_whose_counters_cannot_be_looked_for_is_gone_or_refused(
    node: Node, call: str, number: int, kind: str, reason: str
) -> None:
    OURS.make(GROUP)
    fail(node, call, number)
    with pytest.raises(HookError) as caught:
        OURS.counters(GROUP)
    assert (caught.value.kind, caught.value.reason) == (kind, reason)
    assert f"read {GROUP}/mon_data: {errno.errorcode[number]}" in str(explain(caught.value))
