# SPDX-License-Identifier: Apache-2.0
"""What consumers see of a key, whatever lies in its place already."""

from __future__ import annotations

import errno
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from hook.base import system
from hook.base.models import KeyState, MonGroup
from hook.reconcile.chase import is_movable
from hook.stages import create, remove
from hook.stages.create import create_runtime
from hook.stages.entry import Context
from hook.stages.remove import poststop
from hook.state import records
from tests.support.consumers import Entry, read, read_by_path
from tests.unit.faults import Faults, Killed, directories, fails
from tests.unit.test_create import GROUP, UID, MachineOnDisk, container, machine
from tests.unit.test_store import make_state as state

__all__ = ["directories", "machine"]  # fixtures


def start(machine: MachineOnDisk, name: str, pid: int) -> Context:
    machine.spawn(pid)
    node = machine.node()
    assert create_runtime(node, container(name, pid))
    assert node.run.complaints == []
    return node


def shown(machine: MachineOnDisk) -> dict[str, str]:
    """What is in each file of the key's view, and where each link leads."""
    top = machine.run / "mon_groups" / UID
    found = sorted(path for path in top.rglob("*") if path.is_symlink() or path.is_file())
    return {str(it.relative_to(top)): str(it.readlink()) if it.is_symlink() else it.read_text() for it in found}


def test_a_removed_view_directory_is_made_again(machine: MachineOnDisk) -> None:
    start(machine, "c1", 7)
    shutil.rmtree(machine.run / "mon_groups")
    node = start(machine, "c2", 8)
    assert node.view.shown() == [UID]
    assert shown(machine)["tasks"] == f"{machine.resctrl}/mon_groups/{GROUP}/tasks"


def test_where_nothing_was_ever_shown_nothing_is(machine: MachineOnDisk) -> None:
    assert machine.node().view.shown() == []


def test_what_a_killed_hook_has_left_half_made_is_no_part_of_it(machine: MachineOnDisk) -> None:
    half = machine.run / "building" / UID
    half.mkdir(parents=True)
    (half / "half").touch()
    start(machine, "c1", 7)
    assert "half" not in shown(machine)
    assert not half.exists()
    assert stat.S_IMODE((machine.run / "mon_groups" / UID).stat().st_mode) == 0o755


def test_a_half_removed_entry_of_a_killed_hook_does_not_block(machine: MachineOnDisk) -> None:
    node = start(machine, "c1", 7)
    half = machine.run / "building" / f"{UID}.old"
    half.mkdir()
    (half / "half").touch()
    machine.die(7)
    poststop(machine.node(snapshot_ttl=0), "c1")
    assert node.view.shown() == []
    assert not half.exists()


def test_a_full_run_directory_costs_the_view_and_nothing_more(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "symlink", fails(errno.ENOSPC))
    machine.spawn(7)
    node = machine.node()
    assert create_runtime(node, container("c1", 7))
    (complaint,) = node.run.complaints
    assert str(complaint).startswith(f"could not update the published counters of key {UID};")
    assert machine.groups() == {GROUP: {7}}


@pytest.mark.parametrize(
    ("fields", "files"),
    [
        ({"begin": {"d/e": "1"}}, {"d/e": "/r/mon_groups/g/mon_data/d/e", "d/e.begin": "1\n"}),
        ({"begin": {}, "before": {"d/e": "2"}}, {"d/e.before": "2\n"}),
        (
            {"begin": {"d/e": "1"}, "end": {"d/e": "4"}, "before": {"d/e": "Unavailable"}, "known": {"d/e": "2"}},
            {"d/e.begin": "1\n", "d/e.end": "4\n", "d/e.before": "Unavailable\n", "d/e.known": "2\n"},
        ),
        ({"begin": {"d/e": "1"}, "end": {"d/e": "3"}}, {"d/e.begin": "1\n", "d/e.end": "3\n"}),
        ({"begin": {"d/e": "1"}, "end": {"d/f": "3"}}, {"d/e.begin": "1\n"}),
    ],
    ids=["live", "gone from the hardware", "known in part", "ended", "gone at the end"],
)
def test_a_counter_is_shown_as_far_as_it_is_known(
    machine: MachineOnDisk, fields: dict[str, Any], files: dict[str, str]
) -> None:
    group = MonGroup(path="/r/mon_groups/g", ctrl_group="/", **fields)
    machine.node().view.show(state(UID, groups=[group], generation=1))
    assert {name[9:]: text for name, text in shown(machine).items() if name.startswith("mon_data/")} == files


def test_a_counter_on_record_that_leads_elsewhere_is_not_shown(machine: MachineOnDisk) -> None:
    begin = {"mon_L3_00/llc_occupancy": "1", "../../../etc/x": "2", "mon_L3_00/..": "3"}
    odd = MonGroup(path=f"{machine.resctrl}/mon_groups/{GROUP}", ctrl_group="/", begin=begin)
    machine.node().view.show(state(key=UID, groups=[odd], generation=1))
    assert {name for name in shown(machine) if name.endswith(".begin")} == {"mon_data/mon_L3_00/llc_occupancy.begin"}


def test_a_key_without_a_record_begins_with_nothing(machine: MachineOnDisk) -> None:
    node = machine.node()
    with node.run.lock(UID, system.monotonic()) as locked:
        create.begin(node, locked, "/g", made=True, empty=False)
        assert locked.state is None
    assert node.view.shown() == []


@pytest.mark.parametrize(
    ("ctrl_group", "mon_group", "may"),
    [("/", "", True), ("/", "oci-other", True), ("/", "theirs", False), ("gold", "", False)],
)
def test_a_thread_is_moved_only_within_its_ctrl_group_and_from_own_groups(
    machine: MachineOnDisk, ctrl_group: str, mon_group: str, may: bool
) -> None:
    assert is_movable(machine.node(), (ctrl_group, mon_group), f"{machine.resctrl}/mon_groups/{GROUP}") is may


def test_no_reader_sets_the_counters_of_a_group_made_again_against_the_former_begin(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(machine, "c1", 7)
    place, group = machine.run / "mon_groups" / UID, machine.resctrl / "mon_groups" / GROUP
    seen: list[Entry | None] = []
    mkdir = machine.mkdir

    def made(path: bytes, *arguments: Any, **named: Any) -> None:  # noqa: ANN401  mkdir's
        mkdir(path, *arguments, **named)
        if path.endswith(GROUP.encode()):
            seen.append(read(place))

    monkeypatch.setattr(machine, "mkdir", made)
    before = read(place)
    assert before is not None
    assert not before.gone
    shutil.rmtree(group)
    machine.energy = 1000
    start(machine, "c2", 8)
    assert seen == [None]
    after = read(place)
    assert after is not None
    assert after.use() == {"mon_PERF_PKG_00/core_energy": None}


# --- Readers that a change overtakes


COUNTERS = ("mon_L3_00/mbm_total_bytes", "mon_PERF_PKG_00/core_energy", "mon_PERF_PKG_01/core_energy")


class ViewChange:
    """A live key with two groups that is shown, then completed, shown with one group more, or forgotten."""

    def __init__(self, machine: MachineOnDisk, to: str) -> None:
        self.node = machine.node()
        self.machine = machine
        self.to = to
        self.groups = [self._group(name, number) for name, number in (("oci-a", 1), ("oci-b", 2))]
        self.place = machine.run / "mon_groups" / UID
        self.live = state(UID, groups=self.groups[:1], generation=1)
        ended = MonGroup(**{**dict(self.groups[0]), "end": dict.fromkeys(COUNTERS, "9")})
        self.over = state(UID, groups=[ended], generation=2, completed_at="2026-01-02T03:04:05Z")
        self.more = state(UID, groups=self.groups, generation=2)

    def _group(self, name: str, number: int) -> MonGroup:
        path = self.machine.resctrl / "mon_groups" / name
        for counter in COUNTERS:
            (path / "mon_data" / counter).parent.mkdir(parents=True, exist_ok=True)
            (path / "mon_data" / counter).write_text("21\n")
        (path / "tasks").write_text("7\n")
        ctrl_group = "/" if number == 1 else "gold"
        return MonGroup(path=str(path), ctrl_group=ctrl_group, begin=dict.fromkeys(COUNTERS, str(number)))

    def show(self, state: KeyState) -> None:
        self.node.view.show(state)
        assert not self.node.run.complaints

    def make(self, at: int = 0) -> int:
        """The change, by a hook that is killed at the `at`-th of its system calls; returns how many it made."""
        faults = Faults(at, "killed", beneath=self.machine)
        with faults.injected(), suppress(Killed):
            if self.to == "forgotten":
                with self.node.run.lock(UID, system.monotonic()) as locked:
                    locked.state = self.live
                    remove.forget(self.node, locked)
            else:
                self.show(self.over if self.to == "completed" else self.more)
        return faults.calls

    def wholes(self) -> list[Entry | None]:
        """What a reader may see: what it sees while nobody changes anything."""
        found = []
        for make in (lambda: self.show(self.live), self.make):
            make()
            found.append(read(self.place))
        return [*found, None]

    def overtakes(self, look: Callable[[Callable[[], object]], object]) -> None:
        """Look at the live key while at each pause of the look, in turn, the hook is stopped at each of its calls.

        `look` is given a function that it calls before each of its own system calls.
        """
        at_pause, at_call, pauses, calls = 0, 0, 0, 0

        def pause() -> None:
            nonlocal pauses, calls
            pauses += 1
            if pauses == at_pause:
                calls = self.make(at_call)

        while pauses >= at_pause:
            at_pause += 1
            at_call, calls = 0, 0
            while calls >= at_call:
                at_call += 1
                records.remove_half_written(self.node.run, KeyState, UID)
                self.node.view.tidy(UID)
                self.show(self.live)
                pauses = calls = 0
                look(pause)
        assert at_pause > 3


each_change = pytest.mark.parametrize("to", ["completed", "more", "forgotten"])


@each_change
@pytest.mark.parametrize("reader", [read, read_by_path])
def test_a_reader_that_a_change_overtakes_sees_one_whole_entry_or_none(
    machine: MachineOnDisk, to: str, reader: Callable[[Path, Callable[[], object]], Entry | None]
) -> None:
    change = ViewChange(machine, to)
    wholes = change.wholes()

    def look(pause: Callable[[], object]) -> None:
        assert reader(change.place, pause) in wholes

    change.overtakes(look)


@each_change
def test_a_reader_of_counter_paths_alone_reads_all_live_ones_or_none(machine: MachineOnDisk, to: str) -> None:
    """As Kepler does, which knows the node's domains and nothing of `generation`."""
    change = ViewChange(machine, to)

    def look(pause: Callable[[], object]) -> None:
        try:
            pause()
            tasks = (change.place / "tasks").read_text().split()
            joules = Decimal(0)
            for domain in ("mon_PERF_PKG_00", "mon_PERF_PKG_01"):
                pause()
                joules += Decimal((change.place / "mon_data" / domain / "core_energy").read_text())
        except FileNotFoundError:
            return
        assert (tasks, joules) == (["7"], Decimal(42))

    change.overtakes(look)


def test_an_entry_half_replaced_by_a_killed_hook_is_repaired_by_the_next(
    machine: MachineOnDisk,
) -> None:
    change = ViewChange(machine, "completed")
    wholes = change.wholes()
    at, calls = 0, 0
    while calls >= at:
        at += 1
        change.show(change.live)
        calls = change.make(at)
        entry = read(change.place)
        assert entry is None or entry in wholes
        assert (entry is not None and entry.completed) == change.node.view.is_current(change.over)
        change.make()
        assert change.node.view.is_current(change.over)
        assert list((machine.run / "building").iterdir()) == []
