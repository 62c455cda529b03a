# SPDX-License-Identifier: Apache-2.0
"""What consumers see of a key, whatever lies in its place already, and whenever they look."""

from __future__ import annotations

import errno
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from hook import reclaim, system
from hook.context import Context
from hook.models import KeyState, MonGroup, Options
from hook.node import records
from hook.resctrl import Resctrl
from hook.store import RunDir
from hook.words import explain
from tests.simulator.kernel import RESCTRL
from tests.simulator.machine import RUN
from tests.support.consumers import Entry, read, read_by_path
from tests.unit.simulated import GROUP, ID, OTHER, UID, Node, node
from tests.unit.stops import RealCalls, Stop
from tests.unit.test_store import make_state

__all__ = ["node"]  # fixtures

VIEW = f"{RUN}/mon_groups/{UID}"


def shown(node: Node) -> dict[str, object]:
    """What is in each file of the key's view, and where each link leads."""
    return {name[len(VIEW) + 1 :]: text for name, text in node.machine.files(VIEW).items()}


def test_a_removed_view_directory_is_made_again(node: Node) -> None:
    assert node.context().run.list_part("mon_groups") == []
    node.start(ID, 7)
    node.remove("mon_groups")
    node.start(OTHER, 8)
    assert node.context().run.list_part("mon_groups") == [UID]
    assert shown(node)["tasks"] == f"-> {RESCTRL}/mon_groups/{GROUP}/tasks"
    assert node.machine.stat(VIEW).st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("name", [UID, f"{UID}.old"])
def test_what_a_killed_hook_has_left_half_made_or_half_removed_does_not_block(node: Node, name: str) -> None:
    node.put(f"building/{name}/half", "")
    context = node.start()
    assert "half" not in shown(node)
    node.stop(ID, 7, snapshot_ttl=0)
    assert (context.run.list_part("mon_groups"), context.run.complaints) == ([], [])
    assert not [file for file in node.files() if file.startswith("building/")]


def test_a_full_run_directory_costs_the_view_and_nothing_more(node: Node) -> None:
    node.machine.refusals["symlink"] = [errno.ENOSPC]
    (complaint,) = node.start().run.complaints
    assert str(explain(complaint)).startswith(f"could not update the published counters of key {UID};")
    assert node.groups() == {GROUP: {7}}


@pytest.mark.parametrize(
    ("fields", "files"),
    [
        ({"begin": {"d/e": "1"}}, {"d/e": "-> /r/mon_groups/g/mon_data/d/e", "d/e.begin": b"1\n"}),
        ({"begin": {}, "before": {"d/e": "2"}}, {"d/e.before": b"2\n"}),
        (
            {"begin": {"d/e": "1"}, "end": {"d/e": "4"}, "before": {"d/e": "Unavailable"}, "known": {"d/e": "2"}},
            {"d/e.begin": b"1\n", "d/e.end": b"4\n", "d/e.before": b"Unavailable\n", "d/e.known": b"2\n"},
        ),
        ({"begin": {"d/e": "1"}, "end": {"d/e": "3"}}, {"d/e.begin": b"1\n", "d/e.end": b"3\n"}),
        ({"begin": {"d/e": "1"}, "end": {"d/f": "3"}}, {"d/e.begin": b"1\n"}),
        ({"begin": {"../../../etc/x": "2", "d/..": "3"}}, {}),
    ],
    ids=["live", "gone from the hardware", "known in part", "ended", "gone at the end", "leads elsewhere"],
)
def test_a_counter_is_shown_as_far_as_it_is_known(node: Node, fields: dict[str, Any], files: dict[str, object]) -> None:
    group = MonGroup(path="/r/mon_groups/g", ctrl_group="/", **fields)
    node.context().view.show(make_state(UID, groups=[group], generation=1))
    texts = {name[9:]: text for name, text in shown(node).items() if name.startswith("mon_data/")}
    assert {name: text for name, text in texts.items() if text != ""} == files


@pytest.mark.parametrize(("first", "second", "name"), [("/", "gold", "@gold"), ("gold", "/", "@")])
def test_a_further_ctrl_group_has_names_of_its_own(node: Node, first: str, second: str, name: str) -> None:
    paths = {"/": "/r/mon_groups/g", "gold": "/r/gold/mon_groups/g"}
    groups = [
        MonGroup(path=paths[ctrl_group], ctrl_group=ctrl_group, begin={"d/e": "1"}) for ctrl_group in (first, second)
    ]
    node.context().view.show(make_state(UID, groups=groups, generation=1))
    texts = shown(node)
    assert [texts["tasks"], texts["mon_data/d/e"]] == [
        f"-> {paths[first]}/{name}" for name in ("tasks", "mon_data/d/e")
    ]
    further = [texts[f"tasks{name}"], texts[f"mon_data/d{name}/e"]]
    assert further == [f"-> {paths[second]}/{name}" for name in ("tasks", "mon_data/d/e")]


def test_no_reader_sets_the_counters_of_a_group_made_again_against_the_former_begin(node: Node) -> None:
    """While it is made there is no `generation`, without which an entry is none; then its use is unknown."""
    node.start(ID, 7)
    assert "generation" in shown(node)
    states: list[bool] = []
    mkdir = node.kernel.mkdir

    def made(path: str) -> None:
        mkdir(path)
        states.append("generation" in shown(node))

    node.patch.setattr(node.kernel, "mkdir", made)
    node.remove_groups()
    node.kernel.energy = 1000
    node.start(OTHER, 8)
    assert states == [False]
    assert shown(node)["mon_data/mon_PERF_PKG_00/core_energy.before"] == b"Unavailable\n"


@pytest.mark.parametrize("is_reconciled", [True, False])
def test_use_in_a_domain_that_comes_online_after_the_begin_is_shown_as_unknown(node: Node, is_reconciled: bool) -> None:
    late = "mon_PERF_PKG_09/core_energy"
    node.start(ID, 7)
    counters = node.kernel.groups[f"{RESCTRL}/mon_groups/{GROUP}"].counters
    counters[late] = node.kernel.groups[RESCTRL].counters[late] = "7.000000"
    if is_reconciled:
        assert node.verbs() == ["show"]
        assert node.verbs() == []
        assert shown(node)[f"mon_data/{late}.before"] == b"Unavailable\n"
    counters[late] = "9.000000"
    node.stop(ID, 7)
    assert shown(node)[f"mon_data/{late}.end"] == b"9.000000\n"
    assert shown(node)[f"mon_data/{late}.before"] == b"Unavailable\n"


@pytest.mark.parametrize("is_refused", [True, False], ids=["the kernel refuses", "a directory is in its place"])
def test_a_begin_that_cannot_be_hidden_keeps_no_group_from_being_made_again(node: Node, is_refused: bool) -> None:
    node.start(ID, 7)
    node.remove_groups()
    if is_refused:
        node.machine.refusals["unlink"] = [errno.EIO]
    else:
        node.remove(f"mon_groups/{UID}/generation")
        node.machine.fs.create_dir(f"{RUN}/mon_groups/{UID}/generation")
    said = "\n".join(str(explain(complaint)) for complaint in node.start(OTHER, 8).run.complaints)
    assert ("could not hide the outdated counters" in said) is is_refused
    assert node.groups() == {GROUP: {8}}
    assert isinstance(shown(node)["generation"], bytes)


# --- Readers that a change overtakes, on a real file system: what they hold open is theirs


COUNTERS = ("mon_L3_00/mbm_total_bytes", "mon_PERF_PKG_00/core_energy", "mon_PERF_PKG_01/core_energy")


class ViewChange:
    """A live key with two groups that is shown, then completed, shown with one group more, or forgotten."""

    def __init__(self, top: Path, to: str) -> None:
        self.context = Context(Resctrl(str(top)), RunDir(str(top / "run")), Options())
        self.calls = RealCalls()
        self.to = to
        groups = [self._group(top / name, number) for name, number in (("oci-a", 1), ("oci-b", 2))]
        self.place = top / "run/mon_groups" / UID
        self.live = make_state(UID, groups=groups[:1], generation=1)
        ended = MonGroup(**{**dict(groups[0]), "end": dict.fromkeys(COUNTERS, "9")})
        self.over = make_state(UID, groups=[ended], generation=2, completed_at="2026-01-02T03:04:05Z")
        self.more = make_state(UID, groups=groups, generation=2)

    def _group(self, place: Path, number: int) -> MonGroup:
        path = place.parent / "mon_groups" / place.name
        for counter in COUNTERS:
            (path / "mon_data" / counter).parent.mkdir(parents=True, exist_ok=True)
            (path / "mon_data" / counter).write_text("21\n")
        (path / "tasks").write_text("7\n")
        ctrl_group = "/" if number == 1 else "gold"
        return MonGroup(path=str(path), ctrl_group=ctrl_group, begin=dict.fromkeys(COUNTERS, str(number)))

    def show(self, state: KeyState) -> None:
        self.context.view.show(state)
        assert not self.context.run.complaints

    def make(self, at: int = 0) -> int:
        """The change, by a hook that is killed at the `at`-th of its system calls; returns how many it made."""
        stop = Stop(self.calls, at, None)
        with pytest.MonkeyPatch.context() as patch, stop:
            patch.setattr(system, "posix", self.calls)
            if self.to == "forgotten":
                with self.context.run.lock(UID, system.monotonic()) as locked:
                    locked.state = self.live
                    reclaim.forget(self.context.view, locked)
            else:
                self.show(self.over if self.to == "completed" else self.more)
        return stop.calls

    def wholes(self) -> list[Entry | None]:
        """What a reader may see: what it sees while nobody changes anything."""
        calls = []
        for make in (lambda: self.show(self.live), self.make):
            make()
            calls.append(read(self.place))
        return [*calls, None]

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
                records.remove_leftovers(self.context.run, UID)
                self.show(self.live)
                pauses = calls = 0
                look(pause)
        assert at_pause > 3


each_change = pytest.mark.parametrize("to", ["completed", "more", "forgotten"])


@each_change
@pytest.mark.parametrize("reader", [read, read_by_path])
def test_a_reader_that_a_change_overtakes_sees_one_whole_entry_or_none(
    tmp_path: Path, to: str, reader: Callable[[Path, Callable[[], object]], Entry | None]
) -> None:
    change = ViewChange(tmp_path, to)
    wholes = change.wholes()

    def look(pause: Callable[[], object]) -> None:
        assert reader(change.place, pause) in wholes

    change.overtakes(look)


@each_change
def test_a_reader_of_counter_paths_alone_reads_all_live_ones_or_none(tmp_path: Path, to: str) -> None:
    """As Kepler does, which knows the node's domains and nothing of `generation`."""
    change = ViewChange(tmp_path, to)

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
