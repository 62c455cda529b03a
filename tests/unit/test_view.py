"""What consumers see of a key, whatever lies in its place already."""

from __future__ import annotations

import errno
import shutil
import stat
from typing import Any

import pytest

from hook import system
from hook.lifecycle import create_runtime, poststop
from hook.models import MonGroup
from hook.node import Node
from tests.unit.faults import fails
from tests.unit.test_lifecycle import GROUP, UID, Machine, container, machine
from tests.unit.test_rundir import directories, state

__all__ = ["directories", "machine"]  # fixtures


def start(machine: Machine, name: str, pid: int) -> Node:
    machine.spawn(pid)
    node = machine.node()
    assert create_runtime(node, container(name, pid))
    assert node.run.complaints == []
    return node


def shown(machine: Machine) -> dict[str, str]:
    """What is in each file of the key's view, and where each link leads."""
    top = machine.run / "mon_groups" / UID
    found = sorted(path for path in top.rglob("*") if path.is_symlink() or path.is_file())
    return {str(it.relative_to(top)): str(it.readlink()) if it.is_symlink() else it.read_text() for it in found}


def test_a_place_that_somebody_cleared_away_is_made_again(machine: Machine) -> None:
    start(machine, "c1", 7)
    shutil.rmtree(machine.run / "mon_groups")
    node = start(machine, "c2", 8)
    assert node.shown() == [UID]
    assert shown(machine)["tasks"] == f"{machine.resctrl}/mon_groups/{GROUP}/tasks"


def test_where_nothing_was_ever_shown_nothing_is(machine: Machine) -> None:
    assert machine.node().shown() == []


def test_what_a_killed_hook_has_left_half_made_is_no_part_of_it(machine: Machine) -> None:
    half = machine.run / "building" / UID
    half.mkdir(parents=True)
    (half / "half").touch()
    start(machine, "c1", 7)
    assert "half" not in shown(machine)
    assert not half.exists()
    assert stat.S_IMODE((machine.run / "mon_groups" / UID).stat().st_mode) == 0o755


def test_what_a_killed_hook_has_left_half_removed_is_in_nobodys_way(machine: Machine) -> None:
    node = start(machine, "c1", 7)
    half = machine.run / "building" / f"{UID}.old"
    half.mkdir()
    (half / "half").touch()
    machine.die(7)
    poststop(machine.node(snapshot_ttl=0), "c1")
    assert node.shown() == []
    assert not half.exists()


def test_a_full_run_directory_costs_the_view_and_nothing_more(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "symlink", fails(errno.ENOSPC))
    machine.spawn(7)
    node = machine.node()
    assert create_runtime(node, container("c1", 7))
    (complaint,) = node.run.complaints
    assert str(complaint).startswith(f"what key {UID} used cannot be shown;")
    assert machine.groups() == {GROUP: {7}}


@pytest.mark.parametrize(
    ("fields", "files"),
    [
        ({"begin": {"d/e": "1"}}, {"d/e": "/r/mon_groups/g/mon_data/d/e", "d/e.begin": "1\n"}),
        ({"begin": {}, "before": {"d/e": "2"}}, {"d/e.before": "2\n"}),
        ({"begin": {"d/e": "1"}, "end": {"d/e": "3"}}, {"d/e.begin": "1\n", "d/e.end": "3\n"}),
        ({"begin": {"d/e": "1"}, "end": {"d/f": "3"}}, {"d/e.begin": "1\n"}),
    ],
    ids=["live", "gone from the hardware", "ended", "gone at the end"],
)
def test_a_counter_is_shown_as_far_as_it_is_known(
    machine: Machine, fields: dict[str, Any], files: dict[str, str]
) -> None:
    group = MonGroup(path="/r/mon_groups/g", ctrl_group="/", **fields)
    machine.node().show(state(UID, groups=[group], generation=1))
    assert {name[9:]: text for name, text in shown(machine).items() if name.startswith("mon_data/")} == files


def test_a_counter_on_record_that_leads_elsewhere_is_not_shown(machine: Machine) -> None:
    begin = {"mon_L3_00/llc_occupancy": "1", "../../../etc/x": "2", "mon_L3_00/..": "3"}
    odd = MonGroup(path=f"{machine.resctrl}/mon_groups/{GROUP}", ctrl_group="/", begin=begin)
    machine.node().show(state(key=UID, groups=[odd], generation=1))
    assert {name for name in shown(machine) if name.endswith(".begin")} == {"mon_data/mon_L3_00/llc_occupancy.begin"}


def test_a_key_without_a_record_begins_with_nothing(machine: Machine) -> None:
    node = machine.node()
    with node.run.lock(UID, system.monotonic()) as locked:
        node.begin(locked, "/g", made=True, empty=False)
        assert locked.state is None
    assert node.shown() == []


@pytest.mark.parametrize(
    ("ctrl_group", "mon_group", "may"),
    [("/", "", True), ("/", "oci-other", True), ("/", "theirs", False), ("gold", "", False)],
)
def test_a_thread_is_moved_within_its_ctrl_group_and_from_nobody_else(
    machine: Machine, ctrl_group: str, mon_group: str, may: bool
) -> None:
    machine.spawn(7, ctrl_group=ctrl_group, mon_group=mon_group)
    assert machine.node().may_move(7, f"{machine.resctrl}/mon_groups/{GROUP}") is may
