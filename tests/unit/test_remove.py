# SPDX-License-Identifier: Apache-2.0
"""How keys linger and end, RMIDs are reclaimed and reconcile works, also with each of their system calls failing."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hook.base import system
from hook.base.models import Options
from hook.reconcile import run as reconcile
from hook.reconcile.run import Result
from hook.stages import reclaim
from hook.stages.create import create_runtime
from hook.stages.remove import poststop
from hook.stages.retry import retire
from hook.state.store import RunDir
from tests.unit.faults import MANNERS, Clock, Faults, Killed, Manner, clock, directories, each_call_fails, fails
from tests.unit.test_create import GROUP, UID, MachineOnDisk, container, machine, refused, with_faults

__all__ = ["clock", "directories", "machine"]  # fixtures
OTHER = "00000000-4084-4186-9c0e-93cf8c32e2ce"
LINGER: dict[str, Any] = {"linger": 60}
each_manner = pytest.mark.parametrize("manner", MANNERS)


def put_right(machine: MachineOnDisk, **options: Any) -> Result:  # noqa: ANN401
    return reconcile.repair(Options(resctrl_root=str(machine.resctrl), run_dir=str(machine.run), **options))


def recorded(machine: MachineOnDisk, key: str = UID) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((machine.run / "groups" / f"{key}.json").read_text())
    return found


def pass_time(machine: MachineOnDisk, key: str = UID, until: float | None = 0.0) -> None:
    """The time that a key may linger is over. `until`: what its record says of that."""
    path = machine.run / "groups" / f"{key}.json"
    path.write_text(json.dumps({**recorded(machine, key), "lingering_until": until}))


def live(machine: MachineOnDisk, name: str, pid: int, uid: str | None = UID, **options: Any) -> None:  # noqa: ANN401
    machine.spawn(pid, uid=uid)
    create_runtime(machine.node(**options), container(name, pid, uid))


def die(machine: MachineOnDisk, name: str, pid: int, **options: Any) -> None:  # noqa: ANN401
    machine.die(pid)
    poststop(machine.node(**options), name)


# --- Linger


@pytest.mark.parametrize("uid", [UID, None])
def test_a_key_lingers_and_comes_back(machine: MachineOnDisk, uid: str | None) -> None:
    key = uid or "c1"
    live(machine, "c1", 7, uid, **LINGER)
    begin = recorded(machine, key)["groups"][0]["begin"]
    die(machine, "c1", 7, **LINGER)
    assert machine.groups() == {f"oci-{key}": set()}
    assert recorded(machine, key)["groups"][0]["last"] == begin
    live(machine, "c1", 8, uid, **LINGER)
    state = recorded(machine, key)
    assert machine.groups() == {f"oci-{key}": {8}}
    assert (state["lingering_since"], state["lingering_until"], state["groups"][0]["last"]) == (None, None, None)
    assert state["groups"][0]["begin"] == begin


def test_a_pod_whose_cgroup_is_gone_does_not_linger(machine: MachineOnDisk) -> None:
    live(machine, "c1", 7, **LINGER)
    (machine.cgroups / f"pod{UID}").rmdir()
    die(machine, "c1", 7, **LINGER)
    assert machine.groups() == {}


def test_use_of_a_lingering_group_that_was_removed_is_kept(machine: MachineOnDisk) -> None:
    live(machine, "c1", 7, **LINGER)
    counter = machine.resctrl / "mon_groups" / GROUP / "mon_data/mon_PERF_PKG_00/core_energy"
    counter.write_text("10.000000\n")
    die(machine, "c1", 7, **LINGER)
    (machine.resctrl / "mon_groups" / GROUP).rename(machine.run.parent / "gone")  # the kernel gives no inode twice
    live(machine, "c1", 8, **LINGER)
    assert recorded(machine)["groups"][0]["before"] == {"mon_PERF_PKG_00/core_energy": "7"}


def test_it_is_ended_when_its_time_is_over_and_what_it_used_stays(machine: MachineOnDisk) -> None:
    live(machine, "c1", 7, **LINGER)
    die(machine, "c1", 7, **LINGER)
    assert put_right(machine, **LINGER).outcomes == []
    pass_time(machine)
    assert [it.action.verb for it in put_right(machine, **LINGER).outcomes] == ["end"]
    assert machine.groups() == {}
    state = recorded(machine)
    assert state["completed_at"] is not None
    assert (state["lingering_since"], state["lingering_until"]) == (None, None)
    assert machine.leftovers() == set()


def test_a_key_whose_group_was_removed_has_lingered(machine: MachineOnDisk) -> None:
    live(machine, "c1", 7, **LINGER)
    die(machine, "c1", 7, **LINGER)
    system.rmdir(str(machine.resctrl / "mon_groups" / GROUP))
    assert [it.action.verb for it in put_right(machine, **LINGER).outcomes] == ["end"]
    assert recorded(machine)["completed_at"] is not None


def test_a_key_that_lingers_until_nobody_knows_when_has_lingered(machine: MachineOnDisk) -> None:
    live(machine, "c1", 7, **LINGER)
    die(machine, "c1", 7, **LINGER)
    pass_time(machine, until=None)
    assert [it.action.verb for it in put_right(machine, **LINGER).outcomes] == ["end"]
    assert machine.groups() == {}


def test_a_poststop_again_does_not_have_it_linger_longer(machine: MachineOnDisk) -> None:
    live(machine, "c1", 7, **LINGER)
    die(machine, "c1", 7, **LINGER)
    before = recorded(machine)
    machine.node().run.write_index("c1", UID)  # the first one was killed before that went
    poststop(machine.node(**LINGER), "c1")
    assert recorded(machine) == before
    assert not (machine.run / "members/c1.json").exists()


def test_counters_that_cannot_be_read_do_not_keep_a_key_from_ending(machine: MachineOnDisk) -> None:
    live(machine, "c1", 7)
    data = machine.resctrl / "mon_groups" / GROUP / "mon_data"
    shutil.rmtree(data)
    data.touch()
    die(machine, "c1", 7)
    assert machine.groups() == {}
    assert recorded(machine)["groups"][0]["end"] == {}


def test_what_was_used_in_the_group_that_went_goes_on_in_the_one_that_stays(machine: MachineOnDisk) -> None:
    machine.add_class("gold")
    live(machine, "c1", 7)
    machine.spawn(8, ctrl_group="gold")
    create_runtime(machine.node(), container("c2", 8))
    for name, energy in ((f"mon_groups/{GROUP}", 10), (f"gold/mon_groups/{GROUP}", 5)):
        (machine.resctrl / name / "mon_data/mon_PERF_PKG_00/core_energy").write_text(f"{energy}.000000\n")
    die(machine, "c1", 7)
    machine.refusals["rmdir"] = [errno.EPERM]  # of the first of the two
    assert refused(lambda: die(machine, "c2", 8)).reason == "denied"
    assert machine.groups() == {GROUP: set()}
    assert [group["before"] for group in recorded(machine)["groups"]] == [{"mon_PERF_PKG_00/core_energy": "2"}]


@pytest.mark.parametrize("linger", [0, 60])
def test_a_group_is_not_taken_off_the_record_of_a_key_that_has_no_other(machine: MachineOnDisk, linger: int) -> None:
    """Whether it has ended since it was looked at, or lingers."""
    live(machine, "c1", 7, linger=linger)
    die(machine, "c1", 7, linger=linger)
    shutil.rmtree(machine.resctrl / "mon_groups" / GROUP, ignore_errors=True)
    before = recorded(machine)
    node = machine.node()
    with node.run.lock(UID, system.monotonic()) as locked:
        retire(node, locked)
    assert recorded(machine) == before


def test_a_key_that_came_back_in_vain_is_shown_as_completed_again(machine: MachineOnDisk) -> None:
    """Killed before its group was made, shown as it was then, and ended: consumers must see that it has."""
    live(machine, "c1", 7)
    die(machine, "c1", 7)
    machine.spawn(8)
    node = machine.node()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.resctrl, "make", killed)
        with pytest.raises(Killed):
            create_runtime(node, container("c1", 8))
    machine.refusals["mkdir"] = [errno.EACCES] * 9
    put_right(machine)
    assert not (machine.run / "mon_groups" / UID / "completed_at").exists()
    machine.die(8)
    put_right(machine)
    assert recorded(machine)["completed_at"] is not None
    assert (machine.run / "mon_groups" / UID / "completed_at").exists()


def killed(_path: str) -> bool:
    raise Killed


# --- Reclaim


def exhausted(machine: MachineOnDisk) -> None:
    machine.refusals["mkdir"] = [errno.ENOSPC]


def test_the_dead_give_their_rmids(machine: MachineOnDisk, clock: Clock) -> None:
    live(machine, "c1", 7)
    machine.die(7)
    exhausted(machine)
    live(machine, "c2", 8, OTHER)
    assert machine.groups() == {f"oci-{OTHER}": {8}}
    assert recorded(machine)["completed_at"] is not None
    assert clock.slept == []


@pytest.mark.parametrize(("dead", "left"), [(["c7"], []), (["c1", "c7", "c8"], ["c7", "c8"])])
def test_a_node_where_looking_takes_long_frees_one_all_the_same(
    machine: MachineOnDisk, clock: Clock, monkeypatch: pytest.MonkeyPatch, dead: list[str], left: list[str]
) -> None:
    """And no more than one, once the time is over. It took an emulated machine a second to look at 150 records."""
    for number in range(9):
        live(machine, f"c{number}", 10 + number, None)
    for name in dead:
        machine.die(10 + int(name[1:]))
    real = RunDir.glance

    def glance(*arguments: Any) -> Any:  # noqa: ANN401  those of RunDir.glance
        clock.sleep(0.5)
        return real(*arguments)

    monkeypatch.setattr(RunDir, "glance", glance)
    exhausted(machine)
    live(machine, "new", 30, None)
    assert machine.groups()["oci-new"] == {30}
    assert [name for name in dead if f"oci-{name}" in machine.groups()] == left


def test_a_dead_key_with_live_tasks_keeps_its_group(machine: MachineOnDisk) -> None:
    live(machine, "c1", 7)
    machine.spawn(9)
    (machine.resctrl / "mon_groups" / GROUP / "tasks").write_text("7\n9\n")
    machine.die(7)
    exhausted(machine)
    machine.spawn(8, uid=OTHER)
    error = refused(lambda: create_runtime(machine.node(), container("c2", 8, OTHER)))
    assert error.reason == "no_rmids"
    assert machine.groups() == {GROUP: {9}}


def test_an_orphan_gives_its_rmid(machine: MachineOnDisk) -> None:
    for name in ("oci-lost", "oci-", "theirs"):
        system.mkdir(str(machine.resctrl / "mon_groups" / name), 0o755)
    exhausted(machine)
    live(machine, "c2", 8, OTHER)
    assert machine.groups() == {f"oci-{OTHER}": {8}, "oci-": set(), "theirs": set()}


def test_an_orphan_with_live_tasks_keeps_its_group(machine: MachineOnDisk) -> None:
    system.mkdir(str(machine.resctrl / "mon_groups" / "oci-lost"), 0o755)
    machine.spawn(9)
    (machine.resctrl / "mon_groups" / "oci-lost" / "tasks").write_text("9\n")
    exhausted(machine)
    machine.spawn(8, uid=OTHER)
    assert refused(lambda: create_runtime(machine.node(), container("c2", 8, OTHER))).reason == "no_rmids"
    assert machine.groups() == {"oci-lost": {9}}


def test_what_is_said_of_an_orphan_is_whether_it_went(machine: MachineOnDisk) -> None:
    live(machine, "c1", 7)
    machine.spawn(9)
    groups = machine.resctrl / "mon_groups"
    for name, tasks in (("oci-lost", ""), ("oci-lived-in", "9\n")):
        system.mkdir(str(groups / name), 0o755)
        (groups / name / "tasks").write_text(tasks)
    names = (GROUP, "oci-lost", "oci-lived-in", "theirs")
    went = [name for name in names if reclaim.remove_orphan(machine.node(), str(groups / name))]
    assert went == ["oci-lost"]
    assert machine.groups() == {GROUP: {7}, "oci-lived-in": {9}}


def test_an_orphan_that_cannot_be_removed_is_skipped(machine: MachineOnDisk) -> None:
    for name in ("oci-lost", "oci-too"):
        system.mkdir(str(machine.resctrl / "mon_groups" / name), 0o755)
    machine.refusals["rmdir"] = [errno.EACCES]
    exhausted(machine)
    live(machine, "c2", 8, OTHER)
    assert len(machine.groups()) == 2
    assert machine.groups()[f"oci-{OTHER}"] == {8}


def test_what_another_hook_has_locked_is_not_waited_for(machine: MachineOnDisk, clock: Clock) -> None:
    live(machine, "c1", 7)
    machine.die(7)
    system.mkdir(str(machine.resctrl / "mon_groups" / "oci-lost"), 0o755)
    exhausted(machine)
    machine.spawn(8, uid=OTHER)
    node = machine.node()
    with node.run.lock(UID, clock.now), node.run.lock("lost", clock.now):
        assert refused(lambda: create_runtime(machine.node(), container("c2", 8, OTHER))).reason == "no_rmids"
    assert machine.groups() == {GROUP: set(), "oci-lost": set()}
    assert clock.slept == []


def test_records_that_cannot_be_listed_are_reported_and_nothing_is_freed(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunDir, "names", fails(errno.EIO))
    exhausted(machine)
    machine.spawn(8)
    node = machine.node()
    assert refused(lambda: create_runtime(node, container("c2", 8))).reason == "no_rmids"
    (complaint,) = node.run.complaints
    assert str(complaint).startswith("RMIDs could not be reclaimed;")


def test_one_start_frees_no_more_than_a_few(machine: MachineOnDisk) -> None:
    for number in range(40):
        system.mkdir(str(machine.resctrl / "mon_groups" / f"oci-lost{number}"), 0o755)
    exhausted(machine)
    live(machine, "c2", 8, OTHER)
    assert len(machine.groups()) == 40 - 32 + 1


def test_a_group_that_is_not_ours_is_no_orphan(machine: MachineOnDisk) -> None:
    path = str(machine.resctrl / "mon_groups" / "theirs")
    system.mkdir(path, 0o755)
    reclaim.remove_orphan(machine.node(), path)
    assert machine.groups() == {"theirs": set()}


def test_a_key_that_comes_back_as_it_is_to_be_ended_stays(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(machine, "c1", 7)
    machine.die(7)
    real = RunDir.glance

    def glance(*arguments: Any) -> Any:  # noqa: ANN401  those of RunDir.glance
        state = real(*arguments)
        monkeypatch.setattr(RunDir, "glance", real)
        live(machine, "c1", 9)
        return state

    monkeypatch.setattr(RunDir, "glance", glance)
    node = machine.node()
    assert not reclaim.reclaim(node, OTHER)
    assert machine.groups() == {GROUP: {9}}


def test_one_that_lingers_goes_only_if_nothing_is_dead(machine: MachineOnDisk) -> None:
    for number, name in enumerate(("c1", "c2")):
        live(machine, name, 10 + number, None, **LINGER)
        die(machine, name, 10 + number, **LINGER)
    exhausted(machine)
    live(machine, "c3", 20, None, **LINGER)
    assert machine.groups() == {"oci-c2": set(), "oci-c3": {20}}
    machine.die(20)
    exhausted(machine)
    live(machine, "c4", 21, None, **LINGER)
    assert machine.groups() == {"oci-c2": set(), "oci-c4": {21}}


def test_one_that_has_lingered_goes_before_one_that_lingers(machine: MachineOnDisk) -> None:
    for number, name in enumerate(("c1", "c2")):
        live(machine, name, 10 + number, None, **LINGER)
        die(machine, name, 10 + number, **LINGER)
    pass_time(machine, "c2")
    exhausted(machine)
    live(machine, "c3", 20, None, **LINGER)
    assert machine.groups() == {"oci-c1": set(), "oci-c3": {20}}


def test_reclaim_is_tried_once_per_start(machine: MachineOnDisk) -> None:
    live(machine, "c1", 7)
    machine.die(7)
    machine.refusals["mkdir"] = [errno.ENOSPC, errno.ENOSPC]
    machine.spawn(8, uid=OTHER)
    error = refused(lambda: create_runtime(machine.node(), container("c2", 8, OTHER)))
    assert error.reason == "no_rmids"


# --- A pid namespace of its own


def test_no_key_lingers_in_another_pid_namespace(machine: MachineOnDisk) -> None:
    machine.be_in_another_pid_namespace()
    live(machine, "c1", 7, **LINGER)
    die(machine, "c1", 7, **LINGER)
    machine.assert_clean()


def test_reclaim_in_another_pid_namespace_frees_nothing_and_complains(machine: MachineOnDisk) -> None:
    live(machine, "c1", 7)
    machine.be_in_another_pid_namespace()
    machine.die(7)  # as it looks from there
    node = machine.node()
    assert reclaim.reclaim(node, "c2") is False
    assert [(it.reason, "on the host" in (it.hint or "")) for it in node.run.complaints] == [("denied", True)]
    assert machine.groups() == {GROUP: set()}


# --- reconcile


def moved(machine: MachineOnDisk, pid: int, ctrl_group: str) -> None:
    """Another tool puts a task into a ctrl_group, and the kernel says so."""
    machine._leave(pid)
    machine.says(pid, ctrl_group, "")


@each_manner
def test_container_moved_to_another_ctrl_group_gets_its_group_there(machine: MachineOnDisk, manner: Manner) -> None:
    """If reconcile is killed after the move, the old group stays, empty, until its key ends."""
    machine.add_class("gold")

    def attempt(faults: Faults) -> None:
        live(machine, "c1", 7)
        moved(machine, 7, "gold")
        with_faults(faults, lambda: put_right(machine))
        put_right(machine)
        there = machine.groups()
        assert there.pop(f"gold/{GROUP}") == {7}
        assert there in ({}, {GROUP: set()} if faults.calls >= faults.at else {})
        assert put_right(machine).outcomes == []
        die(machine, "c1", 7)
        assert machine.groups() == {}
        put_right(machine, snapshot_ttl=0)

    assert each_call_fails(attempt, manner, errno.EIO, machine) > 50


def a_dead_member_beside_one_whose_group_is_gone(machine: MachineOnDisk) -> None:
    live(machine, "c1", 7)
    live(machine, "c2", 8)
    machine.die(7)
    system.rmdir(str(machine.resctrl / "mon_groups" / GROUP))


def a_dead_key_an_orphan_and_a_leftover(machine: MachineOnDisk) -> None:
    live(machine, "c3", 9, None)
    machine.die(9)
    system.mkdir(str(machine.resctrl / "mon_groups" / "oci-lost"), 0o755)
    Path(machine.run, "groups", ".c5.tmp").touch()


def an_unreadable_record(machine: MachineOnDisk) -> None:
    live(machine, "c4", 10, None)
    (machine.run / "groups" / "c4.json").write_text("{")
    machine.die(10)


MESSES = [a_dead_member_beside_one_whose_group_is_gone, a_dead_key_an_orphan_and_a_leftover, an_unreadable_record]
