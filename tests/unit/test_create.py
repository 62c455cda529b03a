# SPDX-License-Identifier: Apache-2.0
"""createRuntime: what it records, what it makes of odd input, and what it says when it fails.

Beside other hooks, and with each of its system calls failing: tests.simulator.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from hook import identity, life_turns, reclaim, system
from hook.context import read_container
from hook.create import create_runtime
from hook.errors import HookError, Reason
from hook.models import KeyState, MonGroup
from hook.resctrl import Resctrl
from hook.store import LockedKey, RunDir
from hook.validation import replace
from hook.words import explain
from tests.simulator.kernel import BEGIN, RESCTRL
from tests.simulator.machine import RUN
from tests.unit.simulated import GROUP, ID, OTHER, OTHER_UID, UID, Node, cgroup_of, fails, node
from tests.unit.stops import stops

__all__ = ["node"]  # fixture
ENERGY = "mon_PERF_PKG_00/core_energy"
ROOT_GROUP, GOLD_GROUP = f"{RESCTRL}/mon_groups/{GROUP}", f"{RESCTRL}/gold/mon_groups/{GROUP}"


def expect_refusal(action: Callable[[], object]) -> HookError:
    with pytest.raises(HookError) as caught:
        action()
    return caught.value


def use(node: Node, energy: float, path: str = ROOT_GROUP) -> None:
    """Let a group's counter be at so many joules; it began at 3."""
    node.kernel.set_counter(path, ENERGY, f"{energy:.6f}")


def move(node: Node, pid: int, group: str) -> Callable[[], None]:
    """Another tool's move of a process."""
    return lambda: node.kernel.put(f"{RESCTRL}/{group}", str(pid).encode())


def assert_over(node: Node) -> None:
    """No key has a group, a member or a lock."""
    left = [
        file
        for file in node.files()
        if file.startswith(("members/", "locks/", "unmonitored/", "building/"))
    ]
    assert (node.groups(), left) == ({}, [])


# --- What is on record


def test_what_is_on_record(node: Node) -> None:
    node.spawn(7, born=1234)
    node.start()
    inode, mounted = node.kernel.identify(ROOT_GROUP), node.kernel.mounts
    assert (node.state().created_at, node.state().created_boottime) == ("1970-01-12T13:46:40Z", 1e6)
    assert node.state().groups == [
        MonGroup(path=ROOT_GROUP, ctrl_group="/", inode=inode, mounted=mounted, begin=BEGIN)
    ]
    assert {name: member.model_dump() for name, member in node.state().members.items()} == {
        ID: {
            "pid": 7, "starttime": 1234, "group": ROOT_GROUP, "cgroup": f":{cgroup_of()}",
            "taken_from": None,
            "name": None,
        }
    }  # fmt: skip
    assert {file for file in node.files() if not file.startswith("mon_groups/")} == {
        f"groups/{UID}.json", f"locks/{UID}", f"members/{ID}.json",
    }  # fmt: skip


@pytest.mark.parametrize(
    "identify", [Resctrl.identify, lambda *_: (None, None)], ids=["seen", "not seen before mkdir"]
)
def test_key_whose_record_was_lost_may_have_members(
    node: Node, identify: Callable[..., tuple[int | None, int | None]]
) -> None:
    node.start()
    RunDir(RUN).remove(KeyState, UID)
    node.patch.setattr(Resctrl, "identify", identify)
    node.start(OTHER, 8)
    assert (node.state().recovering, set(node.members())) == (True, {OTHER})


def test_tasks_of_a_group_that_is_on_no_record_are_read_once(node: Node) -> None:
    node.make_group(GROUP)
    real, paths = system.read_file, list[str]()

    def read(path: str, *more: Any, **named: Any) -> str:  # noqa: ANN401  those of read_file
        paths.append(path)
        return real(path, *more, **named)

    node.patch.setattr(system, "read_file", read)
    node.start()
    assert paths.count(f"{ROOT_GROUP}/tasks") == 1
    assert (node.state().recovering, node.state().groups[0].before) == (False, {})


@pytest.mark.parametrize("is_alive", [True, False])
def test_what_tasks_used_before_the_begin_of_their_group_was_read_is_unknown(
    node: Node, *, is_alive: bool
) -> None:
    """As of a hook that was killed before it had read the begin of the group that it had made."""
    node.start()
    with RunDir(RUN).lock(UID, 0) as locked:
        locked.commit(
            replace(node.state(), groups=[replace(node.state().groups[0], inode=None, begin=None)])
        )
    if not is_alive:
        node.kernel.die(7)
    node.start(OTHER, 8)
    assert node.state().groups[0].before == (
        {"mon_PERF_PKG_00/core_energy": "Unavailable"} if is_alive else {}
    )


@pytest.mark.parametrize("mon_group", ["", "theirs", f"oci-{OTHER_UID}"])
def test_whom_a_task_was_taken_from_is_noted_and_stays_noted_of_this_life(
    node: Node, mon_group: str
) -> None:
    node.spawn(7, group=f"mon_groups/{mon_group}" if mon_group else "")
    for _ in range(3):
        node.start()
        assert node.member().taken_from == (mon_group or None)
    node.kernel.die(7)
    node.spawn(7, born=200)
    node.start()
    assert (node.member().starttime, node.member().taken_from) == (200, None)


def test_a_container_whose_cgroup_cannot_be_read_again_keeps_the_recorded_one(node: Node) -> None:
    """It was forgotten, and a later `exec` into that cgroup was not found."""
    node.start()
    node.patch.setattr(identity, "choose_cgroup", lambda _places, _name: None)
    node.start()
    assert node.member().cgroup == f":{cgroup_of()}"
    node.kernel.die(7)
    node.spawn(7, born=200)
    node.start()
    assert node.member().cgroup is None


def test_a_group_that_was_made_under_another_prefix_is_used_on(node: Node) -> None:
    node.start(group_prefix="old-")
    node.start(OTHER, 8)
    assert node.groups() == {f"old-{UID}": {7, 8}}
    node.stop(ID, 7, group_prefix="new-")
    node.stop(OTHER, 8, group_prefix="new-")
    assert_over(node)


def test_a_key_that_was_rebuilt_without_names_takes_them_from_its_next_container(
    node: Node,
) -> None:
    for pid, pod, known in (
        (7, None, (None, None)),
        (8, "web", ("shop", "web")),
        (9, "other", ("shop", "web")),
    ):
        node.start(f"c{pid}", pid, pod=pod)
        assert (node.state().pod_namespace, node.state().pod_name) == known
        assert {*node.state().metric_labels.values()} == (set() if pid == 7 else {""}), (
            "its metrics keep theirs"
        )


def test_a_container_that_comes_back_under_another_name_keeps_its_series(node: Node) -> None:
    """It was renamed; or conmon was gone, and its name could not be read."""
    for pid, name, known in ((7, "old", "old"), (8, "new", "new"), (9, None, "new")):
        node.spawn(pid, cgroup_of(ID, "none"))
        container = read_container(ID, pid, "/nowhere", {})
        container.pod.container = name
        create_runtime(node.context(), container)
        assert (
            node.state(ID).name,
            life_turns.read_metric_labels(node.state(ID))["container"],
        ) == (known, "old")
        node.stop(ID, pid)


# --- Where a container is


GOLD = b'{"linux": {"intelRdt": {"closID": "gold"}}}'


@pytest.mark.parametrize(
    ("config", "shows", "expected"),
    [
        (GOLD, False, f"gold/{GROUP}"),
        (GOLD, True, GROUP),  # the kernel's word counts
        (b'{"linux": null}', False, GROUP),
        (b'{"linux": {"intelRdt": {"closID": ""}}}', False, GROUP),
        (b"{", False, GROUP),
        (None, False, GROUP),
        (GOLD.ljust(16 << 20), False, f"gold/{GROUP}"),
        (GOLD.ljust(1 + (16 << 20)), False, GROUP),  # larger than we read
    ],
    ids=range(8),
)
def test_where_the_kernel_does_not_tell_the_bundle_does(
    node: Node, config: bytes | None, shows: bool, expected: str
) -> None:
    node.kernel.add_class("gold")
    node.kernel.shows_groups = shows
    node.spawn(7, group=expected.removesuffix(GROUP).rstrip("/"))
    if config is not None:
        node.machine.add("/bundle/config.json", config)
    node.start(bundle="/bundle")
    assert node.groups() == {expected: {7}}
    assert node.member().taken_from is None


def no_proc(node: Node) -> None:
    node.kernel.files.update({"/proc/7/stat": None, "/proc/1": None})


def is_shown_in(ctrl_group: str) -> Callable[[Node], object]:
    return lambda node: node.machine.add(
        "/proc/7/cpu_resctrl_groups", f"res:{ctrl_group}\nmon:\n".encode()
    )


REFUSED: dict[str, tuple[Callable[[Node], object], str, str]] = {
    "it is gone": (lambda node: node.kernel.die(7), Reason.TASK_GONE, ""),
    "it goes": (
        lambda node: setattr(node.machine, "before_put", lambda: node.kernel.die(7)),
        Reason.TASK_GONE,
        "",
    ),
    "a torn /proc/7/stat": (
        lambda node: node.machine.add("/proc/7/stat", b"7 (init) S"),
        Reason.IO,
        "",
    ),
    "no /proc": (no_proc, Reason.IO, "No such file"),
    "no resctrl": (lambda node: node.kernel.unmount(), Reason.NOT_MOUNTED, RESCTRL),
    "no such ctrl_group": (is_shown_in("gold"), Reason.NO_CTRL_GROUP, f"{RESCTRL}/gold"),
    **{
        f"the ctrl_group {name}": (is_shown_in(name), Reason.NO_CTRL_GROUP, name)
        for name in ("..", ".", "a/b", "../../etc")
    },
}


@pytest.mark.parametrize(("arrange", "reason", "said"), REFUSED.values(), ids=REFUSED)
def test_what_a_start_is_refused_for(
    node: Node, arrange: Callable[[Node], object], reason: str, said: str
) -> None:
    node.spawn(7)
    context = node.context()
    arrange(node)
    error = expect_refusal(
        lambda: create_runtime(
            context, read_container(ID, 7, "/nowhere", {"io.kubernetes.pod.uid": UID})
        )
    )
    assert error.reason == reason
    assert said in str(explain(error))
    assert (node.groups(), node.files()) == ({}, set())


# --- Tries again


@pytest.mark.parametrize(
    ("call", "numbers", "reason", "tries"),
    [
        ("put", [errno.ENODEV, errno.ENOENT, errno.ENODEV], None, 3),
        ("put", [errno.ENODEV] * 9, Reason.IO, 4),
        ("mkdir", [errno.ENODEV] * 9, Reason.IO, 4),
        ("put", [errno.EINVAL] * 9, Reason.NO_CTRL_GROUP, 2),
        ("mkdir", [errno.ENOSPC] * 9, Reason.NO_RMIDS, 1),
        ("mkdir", [errno.EBUSY] * 9, Reason.RMIDS_IN_LIMBO, 1),
        ("mkdir", [errno.EPERM] * 9, Reason.DENIED, 1),
        ("put", [errno.ESRCH] * 9, Reason.TASK_GONE, 1),
        ("put", [errno.EACCES] * 9, Reason.DENIED, 1),
        ("put", [errno.EIO] * 9, Reason.IO, 1),
    ],
)
def test_how_often_is_tried_what_fails(
    node: Node, call: str, numbers: list[int], reason: str | None, tries: int
) -> None:
    node.machine.refusals[call] = left = list(numbers)
    began = node.kernel.now
    if reason is None:
        node.start()
        assert node.groups() == {GROUP: {7}}
    else:
        assert expect_refusal(node.start).reason == reason
        assert (node.groups(), node.files()) == ({}, set())
    assert len(numbers) - len(left) == tries
    assert node.kernel.now == began


def test_a_group_that_was_made_in_vain_gives_its_rmid_back_and_what_was_used_in_it_goes_on(
    node: Node,
) -> None:
    """A pod lingered, its group was removed, it came back,
    and was moved to another ctrl_group meanwhile.
    """
    node.kernel.add_class("gold")
    node.start()
    use(node, 10)
    node.stop(ID, 7, linger=60)
    node.remove_groups()
    node.machine.before_put = move(node, 8, "gold")
    node.start(pid=8)
    assert node.groups() == {f"gold/{GROUP}": {8}}
    assert [(group.ctrl_group, group.before) for group in node.state().groups] == [
        ("gold", {ENERGY: "7"})
    ]


def test_an_unused_group_that_cannot_be_removed_stays_on_record(node: Node) -> None:
    node.kernel.add_class("gold")
    node.machine.before_put = move(node, 7, "gold")
    node.machine.refusals["rmdir"] = [errno.EACCES] * 2
    context = node.start()
    assert [complaint.reason for complaint in context.run.complaints] == [Reason.DENIED] * 2
    assert node.groups() == {GROUP: set(), f"gold/{GROUP}": {7}}
    node.stop(ID, 7)
    assert_over(node)


def test_a_full_run_directory_does_not_fail_a_start_that_made_a_group_in_vain(node: Node) -> None:
    node.kernel.add_class("gold")
    node.machine.before_put = move(node, 7, "gold")
    node.machine.refusals["rmdir"] = [errno.EACCES]
    real = reclaim.drop_left

    def fill_and_drop(*arguments: Any) -> None:  # noqa: ANN401  those of drop_left
        node.patch.setattr(system, "write_new", fails(errno.ENOSPC))
        real(*arguments)

    node.patch.setattr(reclaim, "drop_left", fill_and_drop)
    complaint = node.start().run.complaints[-1]
    assert str(explain(complaint)).startswith(
        "could not clean up a mon_group created by a failed attempt"
    )
    assert {group.path for group in node.state().groups} == {ROOT_GROUP, GOLD_GROUP}, (
        "it goes with its key"
    )


def test_a_failed_start_keeps_the_member_that_reconcile_has_moved_in_meanwhile(node: Node) -> None:
    """The simulator found it: its container was in its group, and on no record."""

    def put(_kernel: Resctrl, path: str, pid: int) -> None:
        node.kernel.put(path, str(pid).encode())
        raise HookError(Reason.NO_RMIDS, "none is left")

    node.patch.setattr(Resctrl, "put", put)
    with pytest.raises(HookError):
        node.start()
    assert node.groups() == {GROUP: {7}}
    assert node.members() == {ID: 7}


def test_a_failed_undo_is_reported_beside_the_failure(node: Node) -> None:
    node.start()
    node.spawn(8)
    node.machine.before_put = lambda: node.patch.setattr(system, "write_new", fails(errno.ENOSPC))
    node.machine.refusals["put"] = [errno.EACCES]
    context = node.context()
    container = read_container(OTHER, 8, "/nowhere", {"io.kubernetes.pod.uid": UID})
    assert expect_refusal(lambda: create_runtime(context, container)).reason == Reason.DENIED
    assert ["ENOSPC" in str(explain(complaint)) for complaint in context.run.complaints] == [True]
    assert node.members() == {ID: 7, OTHER: 8}, "for reconcile"


@pytest.mark.parametrize(
    ("freed", "times", "waits"),
    [(0, 3, 0.15), (0, 9999, 1.5), (2, 3, None)],
    ids=["lately", "for ever", "long ago"],
)
def test_limbo_is_waited_for_without_a_lock_if_something_was_freed_lately(
    node: Node, freed: int, times: int, waits: float | None
) -> None:
    node.context().run.note_freed()
    node.kernel.now += freed
    node.machine.refusals["mkdir"] = [errno.EBUSY] * times
    began = node.kernel.now

    def sleep(seconds: float) -> None:
        assert not node.machine.file_locks
        node.kernel.now += seconds

    with pytest.MonkeyPatch.context() as patch:  # undone before the machine is
        patch.setattr(system, "sleep", sleep)
        if times == 3 and waits:
            node.start(rmid_wait=1.5)
            assert node.groups() == {GROUP: {7}}
        else:
            error = expect_refusal(lambda: node.start(rmid_wait=1.5))
            assert "sooner with a higher info/L3_MON/max_threshold_occupancy" in (
                explain(error).hint or ""
            )
            assert (node.groups(), node.files()) == ({}, set())
    assert node.kernel.now - began == pytest.approx(waits or 0, abs=0.06)


# --- Its initial counters


def test_use_is_not_counted_twice_when_a_return_fails_before_its_begin(node: Node) -> None:
    """The key's next life took the group that had no end, and its `before`, once more."""
    node.start()
    use(node, 5)
    node.stop(ID, 7)
    with node.patch.context() as broken:
        broken.setattr(Resctrl, "counters", fails(errno.EMFILE))
        with pytest.raises(OSError, match="open files"):
            node.start(pid=8)
    node.start(pid=8)
    assert [group.before for group in node.state().groups] == [{ENERGY: "2"}]


def test_a_start_whose_begin_cannot_be_saved_fails_and_leaves_nothing(node: Node) -> None:
    """A start that was killed before its begin has the same record, and its container never ran."""
    commit = LockedKey.commit

    def full(locked: LockedKey, state: KeyState) -> None:
        if any(group.begin is not None for group in state.groups):
            raise OSError(errno.ENOSPC, "No space left on device")
        commit(locked, state)

    with node.patch.context() as broken:
        broken.setattr(LockedKey, "commit", full)
        with pytest.raises(OSError, match="No space"):
            node.start()
    assert_over(node)
    assert node.kernel.group_of(7) == RESCTRL


# --- One container ID, several processes: two root directories of a runtime, or a poststop that is
# late

LIVES = [
    # + start, * start in the pod's key, ! a start that fails, - end; p: poststop
    ("+7 +8", {"x": {"x@7-107": 7, "x": 8}}),
    ("+7 +8 +7 +7", {"x": {"x@8-108": 8, "x": 7}}),
    ("+7 +8 p", {"x": {"x@7-107": 7, "x": 8}}),  # Podman's, as the former process was still dying
    ("+7 +8 p -7 p", {"x": {"x": 8}}),
    ("+7 +8 -8 p -7 p", {}),
    ("+7 +8 -7 -8 p", {}),
    ("+7 !8", {"x": {"x": 7}}),
    ("*7 +8 -8 p", {UID: {"x@7-107": 7}}),
    ("*7 +8 *7 +8", {UID: {"x@7-107": 7}, "x": {"x": 8}}),
    ("*7 +7", {UID: {}, "x": {"x": 7}}),  # a hook that runs twice, with different options
]


@pytest.mark.parametrize(("steps", "expected"), LIVES, ids=[steps for steps, _ in LIVES])
def test_of_processes_that_share_an_id_each_is_a_member_of_its_own_key(
    node: Node, steps: str, expected: dict[str, dict[str, int]]
) -> None:
    for step in steps.split():
        what, pid = step[0], int(step[1:] or 0)
        if what in "+*!" and pid not in node.kernel.tasks:
            node.spawn(pid, cgroup_of("x"), born=100 + pid)
        if what in "+*":
            node.start("x", pid, UID, key="auto" if what == "*" else "container")
        elif what == "!":
            node.machine.refusals["put"] = [errno.EIO]
            expect_refusal(lambda pid=pid: node.start("x", pid, UID, key="container"))  # type: ignore[misc]
        elif what == "-":
            node.kernel.die(pid)
        else:
            node.stop("x")
    states = {key: node.find_state(key) for key in (UID, "x")}
    known = {
        key: node.members(key)
        for key, state in states.items()
        if state and state.completed_at is None
    }
    assert known == expected
    assert node.groups() == {
        f"oci-{key}": set(members.values()) for key, members in expected.items()
    }
    for key, members in expected.items():
        assert "x" not in members or RunDir(RUN).read_index("x") == key


@pytest.mark.parametrize("number", [errno.EIO, None])
def test_a_change_of_key_that_failed_anywhere_ends_in_one_key(
    node: Node, number: int | None
) -> None:
    """Podman's restart with another life of the same ID:
    the former key's group is empty by then.
    """
    for stop in stops(node.machine, number):
        node.start(ID, 7, None)
        node.kernel.die(7)
        node.spawn(8)
        with stop:
            node.start(ID, 8, rmid_wait=0.0)
        node.machine.release(node.machine.caller)
        node.start(ID, 8)
        assert node.groups().pop(GROUP) == {8}
        assert node.groups().keys() == {GROUP} or node.find_state(ID) is not None
        node.stop(ID, 8)
        node.start(ID, 9, None)
        node.stop(ID, 9)
        assert_over(node)
    assert stop.at > 40


def test_what_still_runs_in_the_group_of_a_former_key_stays_there(node: Node) -> None:
    node.start(ID, 7, None)
    node.spawn(9)
    move(node, 9, f"mon_groups/oci-{ID}")()
    node.start()
    assert node.groups() == {GROUP: {7}, f"oci-{ID}": {9}}
    assert (len(node.state(ID).groups), node.members(ID)) == (1, {})
