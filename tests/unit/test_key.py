# SPDX-License-Identifier: Apache-2.0
"""poststop, keys that linger, and the RMIDs that a start frees:
what is on record and shown, and what is said.

Beside other hooks, and with each of their system calls failing: tests.simulator.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from hook import damage, key, reclaim, store, system
from hook.errors import HookError, Reason
from hook.models import Failure, Index, KeyState
from hook.reconcile import run as reconcile
from hook.store import LockedKey, RunDir
from hook.validation import replace
from hook.words import explain
from tests.simulator.kernel import BEGIN, RESCTRL
from tests.unit.simulated import GROUP, ID, OTHER, OTHER_UID, UID, Node, fails, node
from tests.unit.stops import stops
from tests.unit.test_create import ENERGY, ROOT_GROUP, assert_over, expect_refusal, move, use

if TYPE_CHECKING:
    from hook.context import Context

__all__ = ["node"]  # fixture
RECORD = f"groups/{UID}.json"
LINGER: dict[str, Any] = {"linger": 60}


def linger(node: Node, name: str = ID, pid: int = 7, uid: str | None = UID) -> None:
    """A container begins and ends, and its key lingers."""
    node.start(name, pid, uid, **LINGER)
    node.stop(name, pid, **LINGER)


# --- poststop


@pytest.mark.parametrize(
    ("lives", "born", "is_kept"),
    [(True, 100, True), (True, 200, False), (False, 100, False)],
    ids=["Podman's clean-up came late", "its pid is another's", "it is gone"],
)
def test_the_record_of_a_failure_goes_when_its_container_goes(
    node: Node, lives: bool, born: int, is_kept: bool
) -> None:
    failure = Failure(
        container=ID, stage="createRuntime", reason="io", problem="p", pid=7, starttime=100
    )
    node.context().run.write(Failure, ID, failure)
    if lives:
        node.spawn(7, born=born)
    node.stop()
    assert node.failures() == ({ID: "io"} if is_kept else {})


def test_a_container_whose_key_has_lost_its_record_goes_all_the_same(node: Node) -> None:
    node.start()
    node.remove(f"groups/{UID}.json")
    node.stop(ID, 7)
    assert not [file for file in node.files() if file.startswith(("members/", "groups/"))]


def test_a_late_poststop_that_cannot_read_why_the_next_life_failed_leaves_it(node: Node) -> None:
    """The simulator found it. A record that is damaged goes with the container."""
    node.context().run.write(
        Failure, ID, Failure(container=ID, stage="createRuntime", reason="io", problem="p")
    )
    refuse, real = fails(errno.EINVAL), system.read_file

    def read_others(path: str, *more: Any) -> str:  # noqa: ANN401  those of read_file
        return (refuse if path.startswith("unmonitored/") else real)(path, *more)

    with node.patch.context() as patch:
        patch.setattr(system, "read_file", refuse)
        with pytest.raises(HookError):  # nor can it read the index
            node.stop()
        patch.setattr(system, "read_file", read_others)
        node.stop()
    assert node.failures() == {ID: "io"}
    node.put(f"unmonitored/{ID}.json", "{")
    node.stop()
    assert node.failures() == {}


@pytest.mark.parametrize("fails_to", ["read /proc", "write its record", "read the counters"])
def test_a_key_ends_whatever_fails(node: Node, fails_to: str) -> None:
    """All that is left to do then is to unlink, and poststop comes but once."""
    node.start()
    node.kernel.die(7)
    if fails_to == "read /proc":
        node.kernel.files.update({"/proc/1": None, "/proc/7/stat": None})
    elif fails_to == "write its record":
        node.patch.setattr(system, "write_new", fails(errno.ENOSPC))
    else:
        node.kernel.files[f"{ROOT_GROUP}/mon_data"] = b""
    node.stop()
    assert_over(node)
    if "counters" in fails_to:
        assert node.state().groups[0].end == {}


def start_in_two_groups(node: Node) -> None:
    node.kernel.add_class("gold")
    node.start()
    node.spawn(8, group="gold")
    node.start(OTHER, 8)


def test_one_group_that_cannot_be_removed_does_not_keep_the_others(node: Node) -> None:
    """It stays on record for the next poststop, and what was used in the others goes on in it."""
    start_in_two_groups(node)
    use(node, 10)
    use(node, 5, f"{RESCTRL}/gold/mon_groups/{GROUP}")
    node.stop(ID, 7)
    node.machine.refusals["rmdir"] = [errno.EACCES]
    assert expect_refusal(lambda: node.stop(OTHER, 8)).reason == Reason.DENIED
    assert node.groups() == {GROUP: set()}
    assert [group.before for group in node.state().groups] == [{ENERGY: "2"}]
    node.stop(OTHER)
    assert_over(node)


def test_a_ctrl_group_that_the_runtime_removed_takes_our_group_along(node: Node) -> None:
    start_in_two_groups(node)
    node.kernel.rmdir(f"{RESCTRL}/gold")
    node.stop(OTHER, 8)
    assert node.groups() == {GROUP: {7}}
    node.stop(ID, 7)
    assert_over(node)


# --- Lingering


@pytest.mark.parametrize("uid", [UID, None])
def test_a_key_lingers_and_comes_back(node: Node, uid: str | None) -> None:
    key = uid or ID
    linger(node, uid=uid)
    assert node.groups() == {f"oci-{key}": set()}
    assert node.state(key).groups[0].last == BEGIN
    node.start(ID, 8, uid, **LINGER)
    state = node.state(key)
    assert node.groups() == {f"oci-{key}": {8}}
    assert (state.lingering_since, state.lingering_until, state.groups[0].last) == (
        None,
        None,
        None,
    )
    assert state.groups[0].begin == BEGIN


OVER: dict[str, Callable[[Node], object]] = {
    "its time is over": lambda node: setattr(node.kernel, "now", node.kernel.now + 61),
    "its group was removed": Node.remove_groups,
    "its record does not say until when": lambda node: node.edit(RECORD, lingering_until=None),
}


@pytest.mark.parametrize("happens", OVER.values(), ids=OVER)
def test_a_key_that_has_lingered_is_ended_and_what_it_used_stays(
    node: Node, happens: Callable[[Node], object]
) -> None:
    linger(node)
    assert node.verbs(options=LINGER) == []
    happens(node)
    assert node.verbs(options=LINGER) == ["end"]
    state = node.state()
    assert state.completed_at is not None
    assert (state.lingering_since, state.lingering_until) == (None, None)
    assert_over(node)


def stop_again(node: Node) -> None:
    node.context().run.write(Index, ID, Index(key=UID))
    node.stop()


ENDERS: dict[str, Callable[[Node], object]] = {
    "reconcile": lambda node: node.verbs(options=LINGER),
    "a start that lacks an RMID": lambda node: start_without_rmid(node),  # noqa: PLW0108  it is below
    "poststop again, without --linger": stop_again,
    "uninstall": lambda node: reconcile.end_all_keys(node.options()),
}


@pytest.mark.parametrize("end", ENDERS.values(), ids=ENDERS)
def test_key_that_has_lingered_ends_though_a_task_outlived_its_container(
    node: Node, end: Callable[[Node], object]
) -> None:
    node.start(**LINGER)
    node.kernel.fork(7, 9)
    node.stop(ID, 7, **LINGER)
    assert node.verbs(options=LINGER) == []
    assert node.groups() == {GROUP: {9}}
    node.kernel.now += 61
    end(node)
    assert (GROUP in node.groups(), node.kernel.group_of(9)) == (False, RESCTRL)


def test_key_that_comes_back_and_loses_its_poststop_keeps_what_outlived_its_containers(
    node: Node,
) -> None:
    """Its former poststop says nothing of the next container."""
    for pid in (7, 8):
        node.start(ID, pid, **LINGER)
        node.kernel.fork(pid, pid + 10)
        if pid == 7:
            node.stop(ID, 7, **LINGER)
    node.kernel.die(8)
    assert node.verbs(options=LINGER) == ["drop"]
    node.kernel.now += 61
    assert start_without_rmid(node) == Reason.NO_RMIDS
    assert (node.verbs(options=LINGER), node.groups()) == ([], {GROUP: {17, 18}})
    node.kernel.die(17)
    node.kernel.die(18)
    assert (node.verbs(options=LINGER), node.groups()) == (["end"], {})


def test_a_start_goes_on_with_a_key_that_cannot_be_ended_after_its_linger_time_and_says_so(
    node: Node,
) -> None:
    linger(node)
    node.kernel.now += 61
    node.patch.setattr(key, "write_end", fails(errno.EIO))
    (complaint,) = node.start(**LINGER).run.complaints
    assert "a key that has lingered long enough could not be ended" in str(explain(complaint))
    assert node.groups() == {GROUP: {7}}


@pytest.mark.parametrize("lingers", [True, False])
def test_end_with_a_task_that_outlived_its_container_is_finished_after_a_kill_at_each_step(
    node: Node, lingers: bool
) -> None:
    options = LINGER if lingers else {}
    for stop in stops(node.machine):
        node.start(**LINGER)
        node.kernel.fork(7, 9)
        node.kernel.die(7)
        if lingers:
            node.stop(**LINGER)
            node.kernel.now += 61
        with stop:
            (reclaim.reclaim(node.context(), OTHER) if lingers else node.stop())
        node.machine.release(node.machine.caller)
        if UID in store.list_records(node.context().run, KeyState) and node.state().members:
            node.stop()  # it was killed before its commit, as if it had not been called
        node.repair(options=options)
        assert node.groups() == {}
        node.kernel.die(9)
    assert stop.at > 20


def test_group_that_the_kernel_kept_at_the_last_poststop_goes_with_the_task_in_it(
    node: Node,
) -> None:
    node.start()
    node.kernel.fork(7, 9)
    node.machine.refusals["rmdir"] = [errno.EACCES]
    assert expect_refusal(lambda: node.stop(ID, 7)).reason == Reason.DENIED
    assert (node.verbs(), node.groups()) == (["end", "forget"], {})


@pytest.mark.parametrize(
    "why", ["its pod's cgroup is gone", "another pid namespace", "another time namespace"]
)
def test_what_does_not_linger(node: Node, why: str) -> None:
    if why == "another pid namespace":
        node.kernel.pid_namespace = "pid:[4026532201]"
    if why == "another time namespace":
        node.kernel.time_namespace = "time:[4026532201]"
    node.start(**LINGER)
    if "namespace" not in why:
        node.kernel.cgroups = {"/"}
    node.stop(ID, 7, **LINGER)
    assert_over(node)


def test_a_poststop_again_does_not_have_it_linger_longer(node: Node) -> None:
    linger(node)
    before = node.state()
    node.context().run.write(Index, ID, Index(key=UID))  # the first one was killed before that went
    node.stop(ID, **LINGER)
    assert node.state() == before
    assert f"members/{ID}.json" not in node.files()


@pytest.mark.parametrize("seconds", [0, 60])
def test_a_group_is_not_taken_off_the_record_of_a_key_that_has_no_other(
    node: Node, seconds: int
) -> None:
    """Whether it has ended since it was looked at, or lingers."""
    node.start(linger=seconds)
    node.stop(ID, 7, linger=seconds)
    node.remove_groups()
    before = node.state()
    context = node.context()
    with context.run.lock(UID, node.kernel.now) as locked:
        reclaim.remove_retired(context, locked)
    assert node.state() == before


# --- Reclaim: no RMID is free


def start_without_rmid(
    node: Node, name: str = OTHER, pid: int = 20, uid: str | None = OTHER_UID
) -> str | None:
    """Why a container of another key does not get a group, where all RMIDs are in use."""
    node.kernel.rmids = len(node.kernel.groups) - 1
    began = node.kernel.now
    try:
        node.start(name, pid, uid, **LINGER)
    except HookError as error:
        return error.reason
    finally:
        assert node.kernel.now == began, "it does not wait"
    return None


def fill(node: Node) -> None:
    """A dead key, a live one, a dead one with a live task; two that linger; an orphan,
    and one with a task.
    """
    for name, pid in (("dead", 10), ("live", 11), ("outlived", 15)):
        node.start(name, pid, None)
    for name, pid in (("first", 12), ("second", 13)):
        linger(node, name, pid, None)
        node.kernel.now += 1
    for name in ("oci-lost", "oci-lived-in", "oci-", "theirs"):
        node.make_group(name)
    node.spawn(14)
    move(node, 14, "mon_groups/oci-lived-in")()
    node.spawn(16, group="mon_groups/oci-outlived")
    for pid in (10, 15):
        node.kernel.die(pid)


def test_the_dead_and_orphans_give_their_rmids_and_then_those_that_linger(node: Node) -> None:
    fill(node)
    for number, gone in enumerate([{"oci-dead", "oci-lost"}, {"oci-first"}, {"oci-second"}, set()]):
        before = set(node.groups())
        reason = start_without_rmid(node, f"new{number}", 20 + number, None)
        assert (before - set(node.groups()), reason) == (gone, None if gone else Reason.NO_RMIDS)
    assert {"oci-live", "oci-outlived", "oci-lived-in", "oci-", "theirs"} < set(node.groups())
    assert node.state("dead").completed_at is not None
    assert node.context().run.read_index("dead") is None


def test_one_that_has_lingered_goes_before_one_that_lingers(node: Node) -> None:
    for name, pid in (("first", 12), ("second", 13)):
        linger(node, name, pid, None)
    node.edit("groups/second.json", lingering_until=0.0)
    assert start_without_rmid(node) is None
    assert node.groups() == {"oci-first": set(), f"oci-{OTHER_UID}": {20}}


def test_an_orphan_that_cannot_be_removed_is_skipped(node: Node) -> None:
    for name in ("oci-lost", "oci-too"):
        node.make_group(name)
    node.machine.refusals["rmdir"] = [errno.EACCES]
    assert start_without_rmid(node) is None
    assert len(node.groups()) == 2
    assert node.groups()[f"oci-{OTHER_UID}"] == {20}


def test_what_is_said_of_an_orphan_is_whether_it_went(node: Node) -> None:
    fill(node)
    removed = {
        name: reclaim.remove_orphan(node.context(), f"{RESCTRL}/mon_groups/{name}")
        for name in node.groups()
    }
    assert [name for name, went in removed.items() if went] == ["oci-lost"]
    assert removed.keys() - node.groups().keys() == {"oci-lost"}


def test_a_key_that_came_back_after_it_was_looked_at_is_not_ended(node: Node) -> None:
    node.start()
    stale = replace(node.state(), members={})
    node.patch.setattr(RunDir, "glance", lambda _run, _model, name: stale if name == UID else None)
    assert start_without_rmid(node) == Reason.NO_RMIDS
    assert node.groups() == {GROUP: {7}}


def test_what_another_hook_has_locked_is_not_waited_for(node: Node) -> None:
    node.start()
    node.kernel.die(7)
    node.make_group("oci-lost")
    run = node.context().run
    with run.lock(UID, node.kernel.now), run.lock("lost", node.kernel.now):
        assert start_without_rmid(node) == Reason.NO_RMIDS
    assert node.groups() == {GROUP: set(), "oci-lost": set()}


def test_reclaim_is_tried_once_per_start(node: Node) -> None:
    node.start()
    node.kernel.die(7)
    node.machine.refusals["mkdir"] = [errno.ENOSPC, errno.ENOSPC]
    assert start_without_rmid(node) == Reason.NO_RMIDS


def test_a_key_that_lives_again_when_its_lock_is_held_is_not_ended(node: Node) -> None:
    node.start()
    node.kernel.die(7)
    real, starts = RunDir.glance, [partial(node.start, OTHER, 8)]

    def glance(*arguments: Any) -> Any:  # noqa: ANN401  those of RunDir.glance
        state = real(*arguments)
        while starts:
            starts.pop()()
        return state

    node.patch.setattr(RunDir, "glance", glance)
    assert reclaim.reclaim(node.context(), OTHER_UID) is False
    state = node.find_state()
    assert state is not None
    assert (starts, OTHER in state.members) == ([], True)


def test_one_start_frees_no_more_than_a_few(node: Node) -> None:
    for number in range(40):
        node.make_group(f"oci-lost{number}")
    assert start_without_rmid(node) is None
    assert len(node.groups()) == 40 - 32 + 1


@pytest.mark.parametrize(("dead", "left"), [(["c7"], []), (["c1", "c7", "c8"], ["c7", "c8"])])
def test_a_node_where_looking_takes_long_frees_one_all_the_same(
    node: Node, dead: list[str], left: list[str]
) -> None:
    """And no more than one, once the time is over.

    It took an emulated machine a second to look at 150 records.
    """
    for number in range(9):
        node.start(f"c{number}", 10 + number, None)
    for name in dead:
        node.kernel.die(10 + int(name[1:]))
    node.kernel.rmids = len(node.kernel.groups) - 1
    real = RunDir.glance

    def glance(*arguments: Any) -> Any:  # noqa: ANN401  those of RunDir.glance
        node.kernel.now += 0.5
        return real(*arguments)

    node.patch.setattr(RunDir, "glance", glance)
    node.start("new", 30, None)
    assert [name for name in dead if f"oci-{name}" in node.groups()] == left


@pytest.mark.parametrize("has_freed", [True, False])
def test_a_lock_that_is_held_for_a_moment_after_a_long_reclaim_is_waited_for(
    node: Node, has_freed: bool
) -> None:
    """The wait for it was over already, and what was freed was lost.

    Where nothing was, there is no need to wait.
    """
    if has_freed:
        node.start()
        node.kernel.die(7)
    real, held = reclaim.reclaim, []

    def search(context: Context, key: str) -> bool:
        freed = real(context, key)
        node.kernel.now += 5.0
        held.append(context.run.lock(key, node.kernel.now))
        return freed

    def release(_is_over: object, _until: float) -> None:
        held.pop().__exit__()

    node.patch.setattr(reclaim, "reclaim", search)
    node.patch.setattr(node.machine, "wait", release)
    node.kernel.rmids = len(node.kernel.groups) - 1
    if has_freed:
        node.start(OTHER, 20, OTHER_UID)
    else:
        assert expect_refusal(lambda: node.start(OTHER, 20, OTHER_UID)).reason == Reason.NO_RMIDS
    assert (held == []) is has_freed, "it was waited for"
    assert node.groups() == ({f"oci-{OTHER_UID}": {20}} if has_freed else {})
    assert (node.find_state(OTHER_UID) is not None) is has_freed


def test_records_that_cannot_be_listed_are_reported_and_nothing_is_freed(node: Node) -> None:
    node.patch.setattr(store, "list_records", fails(errno.EIO))
    context = node.context()
    assert reclaim.reclaim(context, OTHER) is False
    (complaint,) = context.run.complaints
    assert str(explain(complaint)).startswith("RMIDs could not be reclaimed;")


def test_reclaim_in_another_pid_namespace_frees_nothing_and_complains(node: Node) -> None:
    node.start()
    node.kernel.pid_namespace = "pid:[4026532201]"
    node.kernel.die(7)  # as it looks from there
    context = node.context()
    assert reclaim.reclaim(context, OTHER) is False
    assert [
        (complaint.reason, "on the host" in (explain(complaint).hint or ""))
        for complaint in context.run.complaints
    ] == [("denied", True)]
    assert node.groups() == {GROUP: set()}


def test_the_record_of_a_failure_is_removed_under_its_writers_lock(node: Node) -> None:
    """The next life fails between the first look and the lock.

    Without the lock, reconcile removes the record.
    """
    former = Failure(
        container=ID, stage="createRuntime", reason="io", problem="p", pid=7, starttime=100
    )
    node.context().run.write(Failure, ID, former)
    node.spawn(9)
    real = RunDir.lock

    def lock(run: RunDir, key: str, deadline: float) -> LockedKey:
        run.write(Failure, ID, replace(former, reason="next", pid=9))
        return real(run, key, deadline)

    node.patch.setattr(RunDir, "lock", lock)
    node.stop()
    assert node.failures() == {ID: "next"}
    node.patch.setattr(RunDir, "lock", fails(errno.ENOSPC))
    node.kernel.die(9)
    node.stop()
    assert node.failures() == {ID: "next"}
    node.patch.undo()
    node.stop()
    assert node.failures() == {}
    assert not [file for file in node.files() if file.startswith("locks/")]


# --- Room for records


def test_of_a_key_without_a_record_its_name_tells_the_kind() -> None:
    kinds = [damage.unknown_state(name).kind for name in (UID, ID, UID.replace("-", "_"))]
    assert kinds == ["pod", "container", "container"]


def test_a_group_is_recorded_while_its_key_has_it(node: Node) -> None:
    paths = [f"{RESCTRL}/mon_groups/{name}" for name in (GROUP, f"oci-{OTHER_UID}")]
    node.start()
    assert [reclaim.is_recorded(node.context(), path) for path in paths] == [True, False]


@pytest.mark.parametrize("call", ["mkdir", "put"])
@pytest.mark.parametrize("was", ["live", "lingering", "completed"])
def test_a_start_that_fails_leaves_its_key_as_it_was(node: Node, was: str, call: str) -> None:
    node.start(OTHER, 7)
    if was != "live":
        node.stop(OTHER, 7, linger=60 * (was == "lingering"))
    before, groups = node.state(), node.groups()
    node.kernel.now += 1
    node.machine.refusals[call] = [errno.EACCES]
    assert expect_refusal(lambda: node.start(ID, 8, **LINGER)).reason == Reason.DENIED
    assert (node.state(), node.groups()) == (before, groups)
    assert node.context().run.read_index(ID) is None
    node.assert_settled()


@pytest.mark.parametrize("lingers", [True, False])
def test_a_group_that_a_failed_start_has_made_again_is_its_keys(node: Node, lingers: bool) -> None:
    node.start(OTHER, 7)
    use(node, 10)
    if lingers:
        node.stop(OTHER, 7, linger=60)
    node.remove_groups()
    node.machine.refusals["put"] = [errno.EACCES]
    assert expect_refusal(lambda: node.start(ID, 8, **LINGER)).reason == Reason.DENIED
    assert (node.groups(), node.members()) == ({GROUP: set()}, {} if lingers else {OTHER: 7})
    assert (node.state().lingering_since is not None) == lingers
    assert [group.before for group in node.state().groups] == [
        {ENERGY: "7" if lingers else "Unavailable"}
    ]
    assert {*node.verbs()} == (set() if lingers else {"adopt"})
    assert node.groups() == {GROUP: set() if lingers else {7}}


def test_a_group_that_cannot_be_looked_at_after_a_failed_start_stays(node: Node) -> None:
    node.start(OTHER, 7)
    node.machine.before_put = lambda: node.patch.setattr(system, "inode", fails(errno.EIO))
    node.machine.refusals["put"] = [errno.EACCES]
    assert expect_refusal(lambda: node.start(ID, 8)).reason == Reason.DENIED
    assert (node.groups(), node.members()) == ({GROUP: {7}}, {OTHER: 7})


def test_a_key_is_deserted_if_it_has_a_group_and_its_members_are_dead(node: Node) -> None:
    node.start(ID, 7)
    assert not reclaim.is_deserted(node.state())
    node.kernel.die(7)
    state = node.state()
    assert reclaim.is_deserted(state)
    changes: tuple[dict[str, Any], ...] = (
        {"completed_at": "now"},
        {"recovering": True},
        {"groups": []},
    )
    for change in changes:
        assert not reclaim.is_deserted(replace(state, **change))


def test_counters_of_a_group_are_read_whatever_is_known_of_those_before_it(node: Node) -> None:
    start_in_two_groups(node)
    first, second = (group.path for group in node.state().groups)
    assert key.read_finals(node.context(), node.state(), [first]).keys() == {second}
