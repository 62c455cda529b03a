# SPDX-License-Identifier: Apache-2.0
"""The service that keeps what consumers see: what it shows of a record,
and that it is right again after anything.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from hook import formats, store, system
from hook.errors import HookError
from hook.models import KeyState, MonGroup, Options
from hook.node.models import ViewRecord
from hook.store import RunDir
from hook.view import View, keep, make_once
from hook.words import explain
from tests.simulator.kernel import RESCTRL
from tests.simulator.machine import RUN
from tests.support.consumers import Entry, read, read_by_path
from tests.support.hook import DEADLINE
from tests.unit.simulated import GROUP, ID, OTHER, UID, Node, node
from tests.unit.stops import RealCalls, Stop, stops
from tests.unit.test_store import make_state

__all__ = ["node"]  # fixtures

OF_KEY = f"{RUN}/mon_groups/{UID}"
LIVE: dict[str, Any] = {"begin": {"d/e": "1"}}
OVER = {**LIVE, "end": {"d/e": "4"}}


def shown(node: Node) -> dict[str, object]:
    """What is in each file of the key's view, and where each link leads."""
    return {name[len(OF_KEY) + 1 :]: text for name, text in node.machine.files(OF_KEY).items()}


def record(_node: Node, *groups: dict[str, Any], **fields: Any) -> None:  # noqa: ANN401
    """Write a record of the key with these groups."""
    paths = [
        MonGroup(**{"path": f"/r/mon_groups/{at}", "ctrl_group": "/", **group})
        for at, group in enumerate(groups)
    ]
    RunDir(RUN).write(KeyState, UID, make_state(UID, groups=paths, **fields))


def update(node: Node) -> dict[str, object]:
    """What the key's view has once the service has made it."""
    assert make_once(node.options()) == []
    return shown(node)


def look_again(node: Node, view: View) -> list[HookError] | None:
    """A look after a quarter of a second."""
    node.kernel.now += 0.25
    return view.update()


def look_until_at_rest(node: Node, view: View) -> None:
    while look_again(node, view) is not None:
        pass


def refuse(node: Node, call: str, place: str) -> None:
    """Let the next such call below a directory of the run directory fail."""
    at_call, calls = node.machine.at_call, count()

    def fail(name: str, path: str) -> None:
        at_call(name, path)
        if name == call and path.startswith(RUN + place) and next(calls) == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    node.patch.setattr(node.machine, "at_call", fail)


def end(node: Node) -> None:
    """The process of the service is gone, and so are its locks."""
    node.machine.release(node.machine.caller)


# --- What is shown of a record


@pytest.mark.parametrize(
    ("fields", "files"),
    [
        (LIVE, {"d/e": "-> /r/mon_groups/0/mon_data/d/e", "d/e.begin": b"1\n"}),
        ({"begin": {}, "before": {"d/e": "2"}}, {"d/e.before": b"2\n"}),
        (
            {**OVER, "before": {"d/e": "Unavailable"}, "known": {"d/e": "2"}},
            {
                "d/e.begin": b"1\n",
                "d/e.end": b"4\n",
                "d/e.before": b"Unavailable\n",
                "d/e.known": b"2\n",
            },
        ),
        (OVER, {"d/e.begin": b"1\n", "d/e.end": b"4\n"}),
        ({**LIVE, "end": {"d/f": "3"}}, {"d/e.begin": b"1\n"}),
        ({"begin": {"../../../etc/x": "2", "d/..": "3"}}, {}),
    ],
    ids=[
        "live",
        "gone from the hardware",
        "known in part",
        "ended",
        "gone at the end",
        "leads elsewhere",
    ],
)
def test_a_counter_is_shown_as_far_as_it_is_known(
    node: Node, fields: dict[str, Any], files: dict[str, object]
) -> None:
    record(node, fields)
    texts = {name[9:]: text for name, text in update(node).items() if name.startswith("mon_data/")}
    assert {name: text for name, text in texts.items() if text != ""} == files


@pytest.mark.parametrize(("first", "second", "name"), [("/", "gold", "@gold"), ("gold", "/", "@")])
def test_a_further_ctrl_group_has_names_of_its_own(
    node: Node, first: str, second: str, name: str
) -> None:
    record(node, *({**LIVE, "ctrl_group": ctrl_group} for ctrl_group in (first, second)))
    texts = update(node)
    assert [texts["tasks"], texts["mon_data/d/e"]] == [
        f"-> /r/mon_groups/0/{at}" for at in ("tasks", "mon_data/d/e")
    ]
    further = [texts[f"tasks{name}"], texts[f"mon_data/d{name}/e"]]
    assert further == [f"-> /r/mon_groups/1/{at}" for at in ("tasks", "mon_data/d/e")]


def test_a_key_is_shown_over_its_whole_life(node: Node) -> None:
    view = View(node.options())
    assert look_again(node, view) == []
    assert store.list_part(node.context().run, "mon_groups") == []
    assert node.machine.files()[f"{RUN}/mon_data"] == f"-> {RESCTRL}/mon_data"
    node.start(ID, 7)
    assert look_again(node, view) == []
    assert shown(node)["tasks"] == f"-> {RESCTRL}/mon_groups/{GROUP}/tasks"
    node.stop(ID, 7)
    assert look_again(node, view) == []
    texts = shown(node)
    assert texts["tasks"] == b""
    assert {
        "created_at",
        "completed_at",
        "mon_data/mon_PERF_PKG_00/core_energy.end",
    } <= texts.keys()
    RunDir(RUN).remove(KeyState, UID)
    assert look_again(node, view) == []
    assert store.list_part(node.context().run, "mon_groups") == []


def test_the_time_since_when_a_key_lingers_is_shown_while_it_does(node: Node) -> None:
    record(node, LIVE, members={}, lingering_since=node.kernel.now)
    assert update(node)["lingering_since"] == f"{formats.format_utc(node.kernel.now)}\n".encode()
    record(node, LIVE, lingering_since=node.kernel.now)
    assert "lingering_since" not in update(node)


@pytest.mark.parametrize("is_reconciled", [True, False])
def test_use_in_a_domain_that_comes_online_after_the_begin_is_shown_as_unknown(
    node: Node, is_reconciled: bool
) -> None:
    late = "mon_PERF_PKG_09/core_energy"
    node.start(ID, 7)
    for path in (RESCTRL, f"{RESCTRL}/mon_groups/{GROUP}"):
        node.kernel.set_counter(path, late, "7.000000")
    if is_reconciled:
        node.repair()
        assert update(node)[f"mon_data/{late}.before"] == b"Unavailable\n"
    node.kernel.set_counter(f"{RESCTRL}/mon_groups/{GROUP}", late, "9.000000")
    node.stop(ID, 7)
    texts = update(node)
    assert texts[f"mon_data/{late}.end"] == b"9.000000\n"
    assert texts[f"mon_data/{late}.before"] == b"Unavailable\n"


# --- When it looks


def test_a_record_that_does_not_change_what_is_shown_leaves_the_view_as_it_is(node: Node) -> None:
    """A reader does not have to begin again for each container of a pod."""
    view = View(node.options())
    node.start(ID, 7)
    look_again(node, view)
    before = system.inode(OF_KEY)
    node.start(OTHER, 8)
    look_again(node, view)
    assert (system.inode(OF_KEY), node.groups()) == (before, {GROUP: {7, 8}})


def test_nothing_is_read_while_no_record_changes(node: Node) -> None:
    view = View(node.options())
    node.start(ID, 7)
    look_until_at_rest(node, view)
    calls = list[str]()
    node.patch.setattr(node.machine, "at_call", lambda name, _path: calls.append(name))
    assert look_again(node, view) is None
    assert {*calls} == {"stat"}


@pytest.mark.parametrize("place", ["mon_groups", f"mon_groups/{UID}", "mon_groups/x", "building"])
def test_what_another_program_removes_or_adds_is_put_right_by_the_next_look(
    node: Node, place: str
) -> None:
    view = View(node.options())
    record(node, LIVE)
    look_until_at_rest(node, view)
    before = shown(node)
    if place == "mon_groups/x":
        node.put(place, "")
    else:
        node.remove(place)
    node.machine.fs.get_object(f"{RUN}/{place}".rpartition("/")[0]).st_mtime = node.kernel.now
    if place == "building":  # which a view needs only while it is made
        record(node, {**LIVE, "before": {"d/e": "2"}})
    assert look_again(node, view) == []
    assert store.list_part(node.context().run, "mon_groups") == [UID]
    assert shown(node).items() >= before.items()


def test_a_change_that_left_no_trace_is_seen_within_a_minute(node: Node) -> None:
    view = View(node.options())
    look_until_at_rest(node, view)
    groups = node.machine.fs.get_object(f"{RUN}/groups")
    before = groups.st_mtime
    record(node, LIVE)
    groups.st_mtime = before
    assert look_again(node, view) is None
    node.kernel.now += 60
    assert look_again(node, view) == []
    assert shown(node)


# --- What cannot be made


@pytest.mark.parametrize("is_full", [True, False], ids=["an eighth is left", "a call fails"])
def test_a_view_that_cannot_be_made_is_removed_and_made_once_it_can(
    node: Node, is_full: bool
) -> None:
    """An outdated one would be taken for right.

    The last eighth of the file system is left to the hooks' records.
    """
    view = View(node.options())
    record(node, LIVE)
    assert look_again(node, view) == []
    if is_full:
        node.machine.limit(1000, 1000)
        node.machine.room = [1000, 124]
    else:
        refuse(node, "symlink", "/building/new")
    record(node, {**LIVE, "before": {"d/e": "2"}})
    (problem,) = look_again(node, view) or []
    assert str(explain(problem)).startswith(f"could not make the view of key {UID};")
    left = [store.list_part(node.context().run, part) for part in ("mon_groups", "building")]
    assert left == [[], []]
    node.machine.limit(1000, 1000)
    node.kernel.now += 5
    assert look_again(node, view) == []
    assert shown(node)["mon_data/d/e.before"] == b"2\n"


def test_a_key_whose_view_cannot_be_made_holds_up_no_other(node: Node) -> None:
    record(node, LIVE)
    RunDir(RUN).write(
        KeyState,
        "a",
        make_state("a", groups=[MonGroup(path="/r/mon_groups/a", ctrl_group="/", **LIVE)]),
    )
    refuse(node, "symlink", "/building/new")
    assert len(make_once(node.options())) == 1
    assert store.list_part(node.context().run, "mon_groups") == ["a"]


# --- Killed, or hit by an error, at each of its system calls


def complete(node: Node) -> None:
    record(node, OVER, completed_at="2026-01-02T03:04:05Z", members={})


def make_again(node: Node) -> None:
    record(node, {"begin": {"d/e": "7"}, "before": {"d/e": "3"}})


def forget(_node: Node) -> None:
    RunDir(RUN).remove(KeyState, UID)


CHANGES = {
    "a first look": None,
    "completed": complete,
    "made again": make_again,
    "forgotten": forget,
}
each_change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
Change = Callable[[Node], None]


@each_change
def test_killed_at_any_of_its_calls_it_is_right_after_its_next_start(
    node: Node, change: Change | None
) -> None:
    (change or record)(node)
    wanted = update(node)
    for stop in stops(node.machine):
        end(node)
        node.remove("")
        if change is not None:
            record(node, LIVE)
            update(node)
            change(node)
        else:
            record(node)
        with stop:
            View(node.options()).update()
        end(node)
        assert update(node) == wanted
        assert store.list_part(node.context().run, "building") == []


@each_change
def test_an_error_of_any_of_its_calls_is_said_and_put_right_within_seconds(
    node: Node, change: Change | None
) -> None:
    (change or record)(node)
    wanted = update(node)
    for stop in stops(node.machine, errno.EIO):
        end(node)
        node.remove("")
        if change is not None:
            record(node, LIVE)
        view = View(node.options())
        look_again(node, view)
        (change or record)(node)
        said: list[HookError] | None = [HookError("io", "it raised")]
        with stop:
            said = look_again(node, view)
        assert said or not stop.came or shown(node) == wanted
        node.kernel.now += 5
        look_again(node, view)
        assert shown(node) == wanted
        assert store.list_part(node.context().run, "building") == []


# --- The service


def keep_until(node: Node, *steps: Callable[[], object]) -> str:
    """Run the service: at each of its pauses one of these steps,
    and SIGTERM after the last one; what it has said.
    """
    pauses = iter(steps)
    former = signal.getsignal(signal.SIGTERM)

    def sleep(seconds: float) -> None:
        node.kernel.now += seconds
        step = next(pauses, lambda: os.kill(os.getpid(), signal.SIGTERM))
        step()

    node.patch.setattr(system, "sleep", sleep)
    node.machine.caller.stderr = b""
    try:
        keep(node.options())
    finally:
        signal.signal(signal.SIGTERM, former)
    end(node)
    return node.machine.caller.stderr.decode()


def test_the_service_shows_what_changes_until_sigterm(node: Node) -> None:
    texts = list[dict[str, object]]()
    said = keep_until(
        node,
        lambda: record(node, LIVE),
        lambda: texts.append(shown(node)),
        lambda: complete(node),
        lambda: None,
    )
    assert said == f"resctrl-mon-hook: view: keeping {RUN}/mon_groups\n"
    assert (texts[0]["tasks"], shown(node)["tasks"]) == ("-> /r/mon_groups/0/tasks", b"")


def test_the_service_says_what_it_cannot_do_once_and_goes_on(node: Node) -> None:
    def harm() -> None:
        node.remove("mon_groups")
        node.put("mon_groups", "")

    def repair() -> None:
        node.remove("mon_groups")
        node.kernel.now += 5

    record(node, LIVE)
    said = keep_until(node, harm, lambda: None, lambda: None, repair, lambda: None)
    assert said.count("\n") == 2
    assert "Not a directory 'mon_groups'" in said
    assert shown(node)


def test_of_many_problems_the_first_are_said_and_the_rest_is_counted(node: Node) -> None:
    for key in "abcdefgh":
        group = MonGroup(path=f"/r/mon_groups/{key}", ctrl_group="/", **LIVE)
        RunDir(RUN).write(KeyState, key, make_state(key, groups=[group]))
    node.machine.limit(1000, 1000)
    node.machine.room = [100, 100]
    said = keep_until(node, lambda: None)
    assert re.findall("view of key (.)", said) == [*"abcde"]
    assert said.endswith("view: 3 further problems\n")


@pytest.mark.parametrize("is_replaced", [True, False])
def test_the_service_goes_on_in_a_new_run_directory(node: Node, is_replaced: bool) -> None:
    def remove() -> None:
        node.remove("")
        if is_replaced:
            record(node, LIVE)

    record(node, OVER)
    keep_until(node, remove, lambda: record(node, LIVE), lambda: None)
    assert shown(node)["tasks"] == "-> /r/mon_groups/0/tasks"


def test_of_two_processes_that_would_keep_the_view_the_second_one_says_so(node: Node) -> None:
    view = View(node.options())
    for second in make_once, keep:
        with pytest.raises(HookError, match="usage") as refused:
            second(node.options())
        assert "another process keeps the view" in str(explain(refused.value))
    view.close()
    assert make_once(node.options()) == []


def test_the_record_of_the_service_says_when_all_was_right(node: Node) -> None:
    def read_time() -> float | None:
        kept = RunDir(RUN).glance(ViewRecord, "view")
        return kept.alive_at if kept is not None else None

    view = View(node.options())
    record(node, LIVE)
    refuse(node, "symlink", "/building/new")
    assert (len(look_again(node, view) or []), read_time()) == (1, None)
    node.kernel.now += 5
    assert (look_again(node, view), read_time()) == ([], node.kernel.now)
    node.kernel.now += 60
    assert (look_again(node, view), read_time()) == ([], node.kernel.now)


# --- Readers that a change overtakes, on a real file system: what they hold open is theirs


COUNTERS = ("mon_PERF_PKG_00/core_energy", "mon_PERF_PKG_01/core_energy")


class ViewChange:
    """A live key that is shown, then completed, shown with one group more,
    made again, or forgotten.
    """

    def __init__(self, top: Path, to: str) -> None:
        self.options = Options(resctrl_root=str(top), run_dir=str(top / "run"))
        self.run = RunDir(self.options.run_dir)
        self.view = View(self.options)
        self.calls = RealCalls()
        groups = [self._group(top / name, number) for name, number in (("oci-a", 1), ("oci-b", 2))]
        self.place = top / "run/mon_groups" / UID
        self.live = make_state(UID, groups=groups[:1])
        ended = MonGroup(**{**dict(groups[0]), "end": dict.fromkeys(COUNTERS, "9")})
        again = MonGroup(
            **{
                **dict(groups[0]),
                "begin": dict.fromkeys(COUNTERS, "20"),
                "before": {COUNTERS[0]: "8"},
            }
        )
        self.to = {
            "completed": make_state(UID, groups=[ended], completed_at="2026-01-02T03:04:05Z"),
            "more": make_state(UID, groups=groups),
            "made again": make_state(UID, groups=[again]),
            "forgotten": None,
        }[to]

    def _group(self, place: Path, number: int) -> MonGroup:
        path = place.parent / "mon_groups" / place.name
        for counter in COUNTERS:
            (path / "mon_data" / counter).parent.mkdir(parents=True, exist_ok=True)
            (path / "mon_data" / counter).write_text("21\n")
        (path / "tasks").write_text("7\n")
        ctrl_group = "/" if number == 1 else "gold"
        return MonGroup(
            path=str(path), ctrl_group=ctrl_group, begin=dict.fromkeys(COUNTERS, str(number))
        )

    def begin(self) -> None:
        """Show the live key, by a service that starts now."""
        self.view.close()
        self.view = View(self.options)
        self.run.write(KeyState, UID, self.live)
        assert self.view.update() == []

    def make(self, at: int = 0) -> int:
        """The change, by a service that is killed at the `at`-th of its system calls;
        returns how many it made.
        """
        if self.to is None:
            self.run.remove(KeyState, UID)
        else:
            self.run.write(KeyState, UID, self.to)
        stop = Stop(self.calls, at, None)
        with pytest.MonkeyPatch.context() as patch, stop:
            patch.setattr(system, "posix", self.calls)
            self.view.update()
        return stop.calls

    def wholes(self) -> list[Entry | None]:
        """What a reader may see: what it sees while nobody changes anything."""
        entries = []
        for make in (self.begin, self.make):
            make()
            entries.append(read(self.place))
        return [*entries, None]

    def overtakes(self, look: Callable[[Callable[[], object]], object]) -> None:
        """Look at the live key while the service is stopped at each of its calls, in turn:
        one reader waits for it at each pause of the look.

        `look` is given a function that it calls before each of its own system calls.
        """
        pauses = list[None]()
        self.begin()
        look(lambda: pauses.append(None))
        assert len(pauses) > 2
        everyone = threading.Barrier(len(pauses) + 1, timeout=DEADLINE)

        def look_later(at_pause: int) -> None:
            numbers = count()

            def pause() -> None:
                if next(numbers) == at_pause:
                    everyone.wait()  # all are there
                    everyone.wait()  # the change is over

            look(pause)

        with ThreadPoolExecutor(len(pauses)) as pool:
            at_call = calls = 0
            while calls >= at_call:
                at_call += 1
                self.begin()
                looks = [pool.submit(look_later, number) for number in range(len(pauses))]
                everyone.wait()
                calls = self.make(at_call)
                everyone.wait()
                for each in looks:
                    each.result()
        assert at_call > 3


each_end = pytest.mark.parametrize("to", ["completed", "more", "made again", "forgotten"])


@each_end
@pytest.mark.parametrize("reader", [read, read_by_path])
def test_a_reader_that_a_change_overtakes_sees_one_whole_entry_or_none(
    tmp_path: Path, to: str, reader: Callable[[Path, Callable[[], object]], Entry | None]
) -> None:
    change = ViewChange(tmp_path, to)
    wholes = change.wholes()

    def look(pause: Callable[[], object]) -> None:
        assert reader(change.place, pause) in wholes

    change.overtakes(look)


@each_end
def test_a_reader_of_counter_paths_alone_reads_all_live_ones_or_none(
    tmp_path: Path, to: str
) -> None:
    """As Kepler does, which knows the node's domains and not the rule for readers."""
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
