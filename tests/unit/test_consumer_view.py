# SPDX-License-Identifier: Apache-2.0
"""What consumers see of a key, whatever lies in its place already."""

from __future__ import annotations

import errno
import os
import posix
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from hook.base import system
from hook.base.models import KeyState, MonGroup, Options
from hook.base.resctrl import Resctrl
from hook.reconcile.chase import is_movable
from hook.stages import create, remove
from hook.stages.entry import Context
from hook.state import records
from hook.state.store import RunDir
from tests.simulator.machine import RUN
from tests.support.consumers import Entry, read, read_by_path
from tests.unit.simulated import GROUP, ID, OTHER, UID, Node, fails, node
from tests.unit.stops import KilledHere
from tests.unit.test_create import ENERGY, ROOT_GROUP
from tests.unit.test_store import make_state

__all__ = ["node"]  # fixture


def shown(node: Node) -> dict[str, str]:
    """What is in each file of the key's view, and where each link leads."""
    top = f"{RUN}/mon_groups/{UID}"
    found = {path[len(top) + 1 :]: text for path, text in node.machine.files(top).items() if not path.endswith("/")}
    return {it: text.decode() if isinstance(text, bytes) else text[3:] for it, text in found.items()}


def test_a_removed_view_directory_is_made_again(node: Node) -> None:
    node.start()
    node.remove("mon_groups")
    context = node.start(OTHER, 8)
    assert (context.view.shown(), context.run.complaints) == ([UID], [])
    assert shown(node)["tasks"] == f"{ROOT_GROUP}/tasks"


def test_where_nothing_was_ever_shown_nothing_is(node: Node) -> None:
    assert node.context().view.shown() == []


@pytest.mark.parametrize("name", [UID, f"{UID}.old"])
def test_what_a_killed_hook_has_left_half_made_or_half_removed_does_not_block(node: Node, name: str) -> None:
    node.put(f"building/{name}/half", "")
    context = node.start()
    assert "half" not in shown(node)
    assert node.machine.fs.get_object(f"{RUN}/mon_groups/{UID}").st_mode & 0o777 == 0o755
    node.stop(ID, 7, snapshot_ttl=0)
    assert (context.view.shown(), context.run.complaints) == ([], [])
    assert not [it for it in node.files() if it.startswith("building/")]


def test_a_full_run_directory_costs_the_view_and_nothing_more(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "symlink", fails(errno.ENOSPC))
    (complaint,) = node.start().run.complaints
    assert str(complaint).startswith(f"could not update the published counters of key {UID};")
    assert node.groups() == {GROUP: {7}}


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
def test_a_counter_is_shown_as_far_as_it_is_known(node: Node, fields: dict[str, Any], files: dict[str, str]) -> None:
    group = MonGroup(path="/r/mon_groups/g", ctrl_group="/", **fields)
    node.context().view.show(make_state(UID, groups=[group], generation=1))
    assert {name[9:]: text for name, text in shown(node).items() if name.startswith("mon_data/")} == files


def test_a_counter_on_record_that_leads_elsewhere_is_not_shown(node: Node) -> None:
    begin = {"mon_L3_00/llc_occupancy": "1", "../../../etc/x": "2", "mon_L3_00/..": "3"}
    odd = MonGroup(path=ROOT_GROUP, ctrl_group="/", begin=begin)
    node.context().view.show(make_state(key=UID, groups=[odd], generation=1))
    assert {name for name in shown(node) if name.endswith(".begin")} == {"mon_data/mon_L3_00/llc_occupancy.begin"}


def test_a_key_without_a_record_begins_with_nothing(node: Node) -> None:
    context = node.context()
    with context.run.lock(UID, system.monotonic()) as locked:
        create.begin(context, locked, "/g", made=True, empty=False)
        assert locked.state is None
    assert context.view.shown() == []


@pytest.mark.parametrize(
    ("ctrl_group", "mon_group", "may"),
    [("/", "", True), ("/", "oci-other", True), ("/", "theirs", False), ("gold", "", False)],
)
def test_a_thread_is_moved_only_within_its_ctrl_group_and_from_own_groups(
    node: Node, ctrl_group: str, mon_group: str, may: bool
) -> None:
    assert is_movable(node.context(), (ctrl_group, mon_group), ROOT_GROUP) is may


def test_no_reader_sets_the_counters_of_a_group_made_again_against_the_former_begin(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.start()
    node.remove_groups()
    node.kernel.energy = 1000
    seen: list[bool] = []

    def changed(call: str, path: str) -> None:
        if (call, path) == ("mkdir", ROOT_GROUP):
            seen.append("generation" in shown(node))

    monkeypatch.setattr(node.machine, "changed", changed)
    assert "generation" in shown(node)
    node.start(OTHER, 8)
    assert seen == [False]
    entry = shown(node)
    assert (entry[f"mon_data/{ENERGY}.begin"], entry[f"mon_data/{ENERGY}.before"]) == ("1000.000000\n", "Unavailable\n")


# --- Readers that a change overtakes


COUNTERS = ("mon_L3_00/mbm_total_bytes", "mon_PERF_PKG_00/core_energy", "mon_PERF_PKG_01/core_energy")


class Killer:
    """In place of `posix`: the process is killed at the `at`-th call; 0: it is not."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.calls = 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever posix has
        real = getattr(posix, name)

        def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401
            self.calls += 1
            is_over = 0 < self.at <= self.calls
            if is_over and name != "close":  # which the end of a process does
                raise KilledHere
            return real(*arguments, **named)

        return call if callable(real) else real


class ViewChange:
    """A live key with two groups that is shown, then completed, shown with one group more, or forgotten."""

    def __init__(self, top: Path, run: RunDir, to: str) -> None:
        self.node = Context(Resctrl(str(top)), run, Options())
        self.top = top
        self.to = to
        self.groups = [self._group(name, number) for name, number in (("oci-a", 1), ("oci-b", 2))]
        self.place = top / "run/mon_groups" / UID
        self.live = make_state(UID, groups=self.groups[:1], generation=1)
        ended = MonGroup(**{**dict(self.groups[0]), "end": dict.fromkeys(COUNTERS, "9")})
        self.over = make_state(UID, groups=[ended], generation=2, completed_at="2026-01-02T03:04:05Z")
        self.more = make_state(UID, groups=self.groups, generation=2)

    def _group(self, name: str, number: int) -> MonGroup:
        path = self.top / "mon_groups" / name
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
        killer = Killer(at)
        with pytest.MonkeyPatch.context() as patch, suppress(KilledHere):
            patch.setattr(system, "posix", killer)
            if self.to == "forgotten":
                with self.node.run.lock(UID, system.monotonic()) as locked:
                    locked.state = self.live
                    remove.forget(self.node, locked)
            else:
                self.show(self.over if self.to == "completed" else self.more)
        return killer.calls

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


@pytest.fixture
def change(tmp_path: Path, to: str) -> Iterator[ViewChange]:
    run = RunDir(str(tmp_path / "run"))
    yield ViewChange(tmp_path, run, to)
    os.close(run.descriptor)


each_change = pytest.mark.parametrize("to", ["completed", "more", "forgotten"])


@each_change
@pytest.mark.parametrize("reader", [read, read_by_path])
def test_a_reader_that_a_change_overtakes_sees_one_whole_entry_or_none(
    change: ViewChange, reader: Callable[[Path, Callable[[], object]], Entry | None]
) -> None:
    wholes = change.wholes()

    def look(pause: Callable[[], object]) -> None:
        assert reader(change.place, pause) in wholes

    change.overtakes(look)


@each_change
def test_a_reader_of_counter_paths_alone_reads_all_live_ones_or_none(change: ViewChange) -> None:
    """As Kepler does, which knows the node's domains and nothing of `generation`."""

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


@pytest.mark.parametrize("to", ["completed"])
def test_an_entry_half_replaced_by_a_killed_hook_is_repaired_by_the_next(change: ViewChange) -> None:
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
        assert list((change.top / "run/building").iterdir()) == []
