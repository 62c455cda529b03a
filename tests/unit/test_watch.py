# SPDX-License-Identifier: Apache-2.0
"""watch on a machine of made-up processes: what it moves, what it leaves,
and what it looks for that no event names.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from hook import rare, system
from hook.node.models import WatchRecord
from hook.store import RunDir
from hook.watch import Watch
from hook.watch.connector import Lost
from tests.simulator.kernel import RESCTRL, ROOT_CGROUP
from tests.simulator.machine import RUN, SimulatedMachine
from tests.unit.simulated import GROUP, ID, OTHER, UID, Node, cgroup_of, fails
from tests.unit.simulated import node as empty

__all__ = ["empty"]  # fixture


class WatchedNode(Node):
    """`reads`: of which containers the threads were listed, each in `seconds`; `asked`:
    threads, for their groups.
    """

    def __init__(self, machine: SimulatedMachine) -> None:
        super().__init__(machine)
        self.reads: list[str] = []
        self.asked: list[int] = []
        self.seconds = 0.0
        self.run_context = self.context()
        self._open = machine.open
        machine.open = self.open  # type: ignore[method-assign]

    def open(self, path: bytes, *arguments: Any, **keywords: Any) -> int:  # noqa: ANN401
        if path == b"cgroup.threads":
            self.reads.append(self.machine._opened(keywords["dir_fd"]).path)
            self.kernel.now += self.seconds
        if path.endswith(b"/cpu_resctrl_groups") and b"/self/" not in path:
            self.asked.append(int(path.split(b"/")[2]))
        return self._open(path, *arguments, **keywords)


@pytest.fixture
def node(empty: Node) -> WatchedNode:
    """With a container that runs: process 7, in its group."""
    watched = WatchedNode(empty.machine)
    watched.start()
    assert watched.groups() == {GROUP: {7}}
    return watched


class FakeConnector:
    """Events that are there already: pids, and Lost.

    `waits`: how long it might have waited for each.
    """

    def __init__(self, node: Node, *events: int | type[Lost] | None) -> None:
        self.events = list(events)
        self.waits: list[float | None] = []
        self._kernel = node.kernel

    def receive(self, patience: float | None = None) -> int | None:
        self.waits.append(patience)
        self._kernel.now += patience or 0
        event = self.events.pop(0)
        if isinstance(event, type):
            raise event
        return event


def listen(node: WatchedNode, *events: int | type[Lost] | None) -> Watch:
    """A watch that will hear of these execs; it looks at all containers first."""
    return Watch(node.run_context, FakeConnector(node, *events))  # type: ignore[arg-type]


def move_until(node: WatchedNode) -> Watch:
    """The same, which has looked at all containers."""
    watch = listen(node)
    watch.looks_at_all = False
    return watch


def look_at_all(watch: Watch) -> None:
    watch.looks_at_all = True
    watch.look()


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged."""
    lines: list[str] = []
    monkeypatch.setattr(rare, "write_stderr", lambda line: lines.append(line.decode()))
    return lines


def moved(node: WatchedNode, pid: int = 8) -> set[int]:
    """What one exec of a process has brought into the container's group, at once."""
    before = node.groups()[GROUP]
    watch = move_until(node)
    watch.bring_in(pid)
    moved_in = node.groups()[GROUP] - before
    assert watch.moved == len(moved_in)
    return moved_in


# --- What is moved


@pytest.mark.parametrize("cgroup", [cgroup_of(), cgroup_of() + "/init.scope"])
def test_exec_in_or_below_a_containers_own_cgroup_is_moved_in(
    node: WatchedNode, cgroup: str
) -> None:
    node.spawn(8, cgroup)
    assert moved(node) == {8}


def test_exec_in_one_hierarchy_of_several_is_moved_in(node: WatchedNode) -> None:
    node.spawn(8)
    node.kernel.tasks[8].places = ["1:cpu,cpuacct:/", f"0::{cgroup_of()}"]
    assert moved(node) == {8}


def test_exec_in_another_group_of_ours_is_moved_in_with_its_threads(node: WatchedNode) -> None:
    node.spawn(8, group="mon_groups/oci-other")
    node.kernel.add_thread(8, 80, RESCTRL)
    assert moved(node) == {8, 80}


def test_children_are_moved_in_a_moment_later_unless_they_are_in_another_cgroup(
    node: WatchedNode,
) -> None:
    """Also one that is forked while its parent is moved: it is outside, and appears only then."""
    node.start(OTHER, 70)
    node.spawn(8)
    node.spawn(9)
    node.spawn(90, cgroup_of(OTHER))
    node.machine.before_put = lambda: node.spawn(10)
    watch = move_until(node)
    for _ in range(3):
        watch.bring_in(8)
    assert node.groups() == {GROUP: {7, 8, 70}}
    assert node.reads == []
    assert watch.wait() == pytest.approx(0.01)
    node.kernel.now += 0.01
    watch.look()
    assert node.groups() == {GROUP: {7, 8, 9, 10, 70}}
    assert len({*node.reads}) == 1
    assert watch.wait() is None


def test_cpu_time_from_before_a_task_is_moved_in_is_counted_and_that_of_a_task_that_stays_is_not(
    node: WatchedNode,
) -> None:
    node.spawn(8).user_ticks = 25
    node.spawn(9, group="mon_groups/foreign").user_ticks = 400
    watch = move_until(node)
    for pid in (8, 9):
        watch.bring_in(pid)
    assert watch._late.by_key == {UID: 0.25}


def test_process_in_its_group_already_is_written_nowhere_and_its_init_not_looked_at(
    node: WatchedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.spawn(8, group=f"mon_groups/{GROUP}")
    node.machine.changes.clear()
    monkeypatch.setattr(system, "is_dead", None)
    watch = move_until(node)
    watch.bring_in(8)
    assert (watch.moved, watch.wait(), node.machine.changes, node.reads) == (0, None, [], [])


def test_no_lock_is_needed(node: WatchedNode) -> None:
    """A hook of another container of the pod may hold it meanwhile."""
    node.spawn(8)
    with RunDir(RUN).lock(UID, 0.0):
        assert moved(node) == {8}


# --- What is left


@pytest.mark.parametrize(
    "where",
    [
        {"cgroup": "/"},
        {"cgroup": "/system.slice/ssh.service"},
        {"cgroup": "/kubepods/pod" + UID},
        {"cgroup": f"/kubepods/pod{UID}/crio-conmon-{ID}.scope"},
        {"cgroup": cgroup_of(OTHER)},
        {"cgroup": f"{cgroup_of()}/x/crio-{OTHER}.scope"},
        {"cgroup": f"/elsewhere/crio-{ID}.scope"},
        {"cgroup": "/../" + ID},
        {"group": "gold"},
        {"group": "mon_groups/kepler-1"},
        {"group": f"gold/mon_groups/{GROUP}"},
    ],
    ids=str,
)
def test_exec_outside_of_the_recorded_cgroup_or_in_another_tools_place_is_left(
    node: WatchedNode, where: dict[str, Any]
) -> None:
    node.spawn(8, **where)
    assert moved(node) == set()


def test_cgroup_that_a_container_shares_with_others_is_left(node: WatchedNode) -> None:
    node.start(OTHER, 70, cgroup="/user.slice")
    node.spawn(8, f"/user.slice/{OTHER}")
    assert moved(node) == set()


@pytest.mark.parametrize(
    "what",
    [
        lambda node: node.kernel.die(7),
        lambda node: node.spawn(7, group=f"mon_groups/{GROUP}", born=101),
        lambda node: node.kernel.put(RESCTRL, b"7"),
    ],
    ids=["it is dead", "its pid is another's", "it is outside"],
)
def test_container_whose_init_is_not_in_its_group_is_left(
    node: WatchedNode, what: Callable[[Node], object]
) -> None:
    """A createRuntime in flight has recorded the member, and writes its pid last.

    Podman's poststop may come late.
    """
    what(node)
    node.spawn(8)
    assert moved(node) == set()
    watch = move_until(node)
    look_at_all(watch)
    assert (watch.moved, node.groups()[GROUP] - {7}) == (0, set())


@pytest.mark.parametrize(
    "what",
    [
        lambda node: setattr(
            node.machine, "before_put", lambda: node.kernel.put(f"{RESCTRL}/gold", b"8")
        ),
        lambda node: node.put(f"members/{ID}.json", "{"),
    ],
    ids=["another ctrl_group", "a torn index"],
)
def test_what_is_in_the_way_is_left_to_reconcile(
    node: WatchedNode, what: Callable[[Node], object]
) -> None:
    node.kernel.add_class("gold")
    node.spawn(8)
    what(node)
    assert (moved(node), node.run_context.run.complaints) == (set(), [])


# --- An init that a hook after ours has moved to another ctrl_group

each_kernel = pytest.mark.parametrize(
    "shows_groups", [True, False], ids=["the kernel shows groups", "it does not"]
)


@pytest.fixture
def gold(node: WatchedNode) -> str:
    """The ctrl_group to which the init of the container has been moved."""
    gold = node.kernel.add_class("gold")
    node.kernel.put(gold, b"7")
    return gold


@each_kernel
def test_init_in_another_ctrl_group_is_followed_at_its_exec(
    node: WatchedNode, gold: str, shows_groups: bool
) -> None:
    """Its group is recorded before it is made,
    and its counters are read before the init is in it.
    """
    node.kernel.shows_groups = shows_groups
    node.kernel.fork(7, 8)  # just after the exec
    watch = move_until(node)
    node.machine.changes.clear()
    watch.bring_in(7)
    path = f"{gold}/mon_groups/{GROUP}"
    calls = [(call, where) for call, where in node.machine.changes if "resctrl/" in where]
    assert calls == [("mkdir", path), ("put", path), ("rmdir", f"{RESCTRL}/mon_groups/{GROUP}")]
    (group,) = node.state().groups
    assert (group.path, group.begin is not None, node.member().group) == (path, True, path)
    assert (watch.followed, watch.failed) == (1, 0)
    node.kernel.now += watch.wait() or 0
    watch.look()
    assert node.groups() == {f"gold/{GROUP}": {7, 8}}
    node.assert_settled()


@pytest.mark.usefixtures("gold")
def test_group_of_a_followed_container_stays_if_another_container_needs_it(
    node: WatchedNode,
) -> None:
    node.start(OTHER, 70)
    move_until(node).bring_in(7)
    assert node.groups() == {GROUP: {70}, f"gold/{GROUP}": {7}}


@each_kernel
@pytest.mark.parametrize("ctrl_group", ["", "gold/"])
def test_init_in_a_group_of_another_tool_is_not_followed(
    node: WatchedNode, gold: str, shows_groups: bool, ctrl_group: str
) -> None:
    node.kernel.shows_groups = shows_groups
    theirs = f"{RESCTRL}/{ctrl_group}mon_groups/theirs"
    node.kernel.mkdir(theirs)
    node.kernel.move(7, theirs)
    node.spawn(8)
    watch = move_until(node)
    watch.bring_in(7)
    watch.bring_in(8)
    assert (watch.followed, watch.failed, node.groups()) == (
        0,
        0,
        {GROUP: set(), f"{ctrl_group}theirs": {7}},
    )
    assert gold


def test_init_of_a_namesake_is_not_followed(node: WatchedNode, gold: str) -> None:
    node.spawn(7, group="gold", born=101)
    watch = move_until(node)
    watch.bring_in(7)
    assert (watch.followed, node.groups(), gold in node.kernel.groups) == (0, {GROUP: set()}, True)


@pytest.mark.parametrize("why", ["a lock", "no RMID"])
def test_what_cannot_be_followed_at_once_is_left_to_reconcile(
    node: WatchedNode, gold: str, lines: list[str], why: str
) -> None:
    before = node.kernel.now
    watch = move_until(node)
    if why == "a lock":
        with RunDir(RUN).lock(UID, 0.0):
            watch.bring_in(7)
    else:
        node.machine.refusals["mkdir"] = [28]
        watch.bring_in(7)
    assert (watch.followed, watch.failed, node.kernel.now - before) == (0, 1, 0)
    assert f"cannot move {ID}, which is in {gold} now, into its group: " in lines[0]
    watch.bring_in(7)
    assert watch.failed == 1, "not again and again, however often it execs"
    node.repair()
    assert node.groups() == {f"gold/{GROUP}": {7}}
    node.assert_settled()


def test_container_is_followed_again_a_minute_later(node: WatchedNode, gold: str) -> None:
    watch = move_until(node)
    watch.bring_in(7)
    node.kernel.put(RESCTRL, b"7")
    watch.bring_in(7)
    assert node.groups() == {f"gold/{GROUP}": set()}
    watch._forget()
    watch.bring_in(7)
    assert (watch.followed, node.groups(), gold in node.kernel.groups) == (2, {GROUP: {7}}, True)


def test_next_life_of_a_container_is_followed_at_once(node: WatchedNode, gold: str) -> None:
    watch = move_until(node)
    for _ in range(2):
        watch.bring_in(7)
        assert node.groups()[f"gold/{GROUP}"] == {7}
        node.stop(ID, 7)
        node.spawn(7, born=101)
        node.start()
        node.kernel.put(gold, b"7")
    assert watch.followed == 2


# --- Which container a process is in


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the records that were read, or looked for."""
    names: list[str] = []
    real = RunDir.read

    def read(run: RunDir, model: Any, name: str = "") -> Any:  # noqa: ANN401
        names.append(name)
        return real(run, model, name)

    monkeypatch.setattr(RunDir, "read", read)
    return names


def test_records_are_read_once_until_one_changes(node: WatchedNode, reads: list[str]) -> None:
    node.kernel.now += 1
    watch = move_until(node)
    for _ in range(3):
        assert watch.find([":" + cgroup_of()]) is not None
        assert watch.find([":/system.slice/ssh.service"]) is None
    assert reads.count(UID) == 1
    node.spawn(9, cgroup_of(OTHER))
    assert watch.find([":" + cgroup_of(OTHER)]) is None
    node.start(OTHER, 9)
    place = watch.find([":" + cgroup_of(OTHER)])
    assert place is not None
    assert (place.key, place.container, place.member.pid) == (UID, OTHER, 9)


def test_records_are_read_again_while_the_version_may_be_that_of_an_earlier_commit(
    node: WatchedNode, reads: list[str]
) -> None:
    watch = move_until(node)
    assert watch.find([":" + cgroup_of()]) == watch.find([":" + cgroup_of()])
    assert reads.count(UID) == 2


@pytest.mark.parametrize("below", ["a-" * 100 + "a", "x"])
def test_a_container_is_found_by_few_looks_up_however_it_names_its_cgroups(
    node: WatchedNode, reads: list[str], below: str
) -> None:
    """Each split of each name was looked up: 7 ms for each exec."""
    node.spawn(8, cgroup_of() + f"/{below}" * 400)
    assert moved(node) == {8}
    assert ID in reads
    assert len(reads) <= 64 + 3, "of the container itself a look needs some more"


def test_what_is_remembered_of_cgroups_does_not_grow(node: WatchedNode) -> None:
    node.kernel.now += 1
    watch = move_until(node)
    for number in range(5000):
        node.machine.caller.calls = 0
        assert watch.find([f":/system.slice/{number}.service"]) is None
    assert len(watch._found) <= 4096


# --- What cannot be read


DEEP = "".join(f"/{number}{'x' * 240}" for number in range(20))


def test_exec_in_a_cgroup_whose_path_no_call_takes_is_found_by_a_look_at_all(
    node: WatchedNode,
) -> None:
    node.spawn(8, cgroup_of() + DEEP)
    node.kernel.denied["/proc/8/cgroup"] = errno.ENAMETOOLONG
    watch = move_until(node)
    watch.bring_in(8)
    assert watch.wait() == 0
    watch.look()
    assert (watch.moved, watch.failed, node.groups()) == (1, 0, {GROUP: {7, 8}})


def test_record_that_could_not_be_read_is_read_again(node: WatchedNode, lines: list[str]) -> None:
    """The container was taken for none until any record changed."""
    node.kernel.now += 1
    watch = move_until(node)
    node.spawn(8)
    real, failures = RunDir.read, [errno.ENOMEM]

    def read(run: RunDir, model: Any, name: str) -> Any:  # noqa: ANN401
        if failures:
            fails(failures.pop())()
        return real(run, model, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDir, "read", read)
        watch.bring_in(8)
        assert (watch.moved, watch.failed, len(lines)) == (0, 1, 1)
        watch.bring_in(8)
    assert (watch.moved, node.groups()) == (1, {GROUP: {7, 8}})


@pytest.mark.parametrize("pid", [7, 8], ids=["of the init", "of the process"])
def test_group_of_a_thread_that_cannot_be_read_is_logged_and_nothing_is_moved(
    node: WatchedNode, lines: list[str], pid: int
) -> None:
    node.spawn(8, group="mon_groups/theirs")
    node.kernel.denied[f"/proc/{pid}/cpu_resctrl_groups"] = errno.EIO
    watch = move_until(node)
    watch.bring_in(8)
    look_at_all(watch)
    assert (watch.moved, watch.failed, len(lines)) == (0, 2, 2)
    assert node.kernel.group_of(8).endswith("theirs")


def test_cgroups_that_cannot_be_read_are_logged_once_a_minute(
    node: WatchedNode, lines: list[str]
) -> None:
    node.spawn(8, cgroup_of() + "/below")
    node.kernel.denied[f"{ROOT_CGROUP}{cgroup_of()}/below"] = errno.EACCES
    watch = move_until(node)
    for _ in range(2):
        look_at_all(watch)
    assert (watch.failed, len(lines)) == (1, 1)
    assert "cannot read 1 cgroup of 5f3c" in lines[0]
    watch._forget()
    look_at_all(watch)
    assert watch.failed == 2


# --- What ends before it is moved


def test_what_a_process_forked_before_it_ended_is_moved_in_at_once(node: WatchedNode) -> None:
    node.spawn(9)
    node.spawn(8)
    node.machine.before_put = lambda: node.kernel.die(8)
    watch = move_until(node)
    watch.bring_in(8)
    assert (watch.moved, watch.wait(), node.groups()) == (1, None, {GROUP: {7, 9}})


def test_process_that_is_gone_leads_to_a_look_at_all_containers_also_at_new_ones(
    node: WatchedNode,
) -> None:
    node.kernel.now += 1
    node.spawn(9)
    watch = move_until(node)
    watch.bring_in(99)
    assert watch.wait() == 0
    watch.look()
    assert (watch.moved, watch.wait()) == (1, None)
    node.start(OTHER, 70)
    node.spawn(90, cgroup_of(OTHER))
    watch.bring_in(99)
    watch.look()
    assert node.groups() == {GROUP: {7, 9, 70, 90}}


def test_execs_without_end_do_not_put_off_the_look(node: WatchedNode) -> None:
    watch = move_until(node)
    for pid in (8, 9, 10):
        node.spawn(pid)
        watch.bring_in(pid)
        node.kernel.now += 0.005
    assert watch.wait() == 0


def slow_look(node: WatchedNode, seconds: float = 0.01) -> Watch:
    """After a look that took so long."""
    node.seconds = seconds
    watch = move_until(node)
    look_at_all(watch)
    return watch


def test_looks_take_a_twentieth_of_the_time(node: WatchedNode) -> None:
    watch = slow_look(node)
    assert watch.wait() is None
    watch.looks_at_all = True
    assert watch.wait() == pytest.approx(0.2)
    node.kernel.now += 0.2
    assert watch.wait() == pytest.approx(0, abs=1e-6)


def test_a_look_amid_which_watch_was_stopped_does_not_put_off_the_next_one_for_minutes(
    node: WatchedNode,
) -> None:
    watch = slow_look(node, 11.0)
    watch.looks_at_all = True
    assert watch.wait() == pytest.approx(8)


def test_move_that_is_not_due_yet_waits_for_the_next_look(node: WatchedNode) -> None:
    watch = slow_look(node)
    node.spawn(9)
    node.spawn(8)
    node.machine.before_put = lambda: node.kernel.die(8)
    node.reads.clear()
    watch.bring_in(8)
    assert node.reads == []
    node.kernel.now += 1
    assert watch.wait() == 0
    watch.look()
    assert node.groups() == {GROUP: {7, 9}}


def test_look_that_takes_too_long_goes_on_later_from_there(node: WatchedNode) -> None:
    node.start(OTHER, 70)
    watch = slow_look(node, 0.3)
    assert len(node.reads) == 1
    assert watch.wait() == pytest.approx(6)
    node.kernel.now += 6
    watch.look()
    assert len({*node.reads}) == 2
    assert watch.wait() is None


def test_thread_that_was_in_its_group_is_not_asked_about_for_a_minute(node: WatchedNode) -> None:
    watch = slow_look(node)
    for expected in (set(), {7}):
        node.asked.clear()
        look_at_all(watch)
        assert {*node.asked} == expected
        watch._forget()


@pytest.mark.parametrize("number", [2, 5], ids=["ENOENT", "EIO"])
def test_refusal_of_the_kernel_is_logged_unless_the_group_is_gone(
    node: WatchedNode, lines: list[str], number: int
) -> None:
    node.spawn(9)
    node.machine.refusals["put"] = [number]
    watch = move_until(node)
    look_at_all(watch)
    assert (watch.moved, watch.failed, len(lines)) == (0, int(number == 5), int(number == 5))


def test_container_that_stays_outside_gives_the_others_a_look_first(node: WatchedNode) -> None:
    node.start(OTHER, 70)
    node.spawn(80, cgroup_of(OTHER))
    for place in (cgroup_of(), cgroup_of(OTHER)):
        node.kernel.files[f"{ROOT_CGROUP}{place}/cgroup.threads"] = (
            b"7\n99\n" if place == cgroup_of() else b"70\n80\n98\n"
        )
    watch = move_until(node)
    before = node.kernel.now
    node.seconds = 0.01
    look_at_all(watch)
    assert (watch.moved, watch.failed, node.groups()[GROUP]) == (1, 2, {7, 70, 80})
    assert node.kernel.now - before <= 0.25


def test_container_that_stays_outside_is_logged_and_chased_again(
    node: WatchedNode, lines: list[str]
) -> None:
    node.spawn(9)
    # The last is never there.
    node.kernel.files[f"{ROOT_CGROUP}{cgroup_of()}/cgroup.threads"] = b"7\n9\n99\n"
    node.seconds = 0.05
    watch = move_until(node)
    look_at_all(watch)
    assert (watch.moved, watch.failed, node.groups()) == (1, 1, {GROUP: {7, 9}})
    (line,) = lines
    assert f"cannot move all of {ID} into its group: 1 of its threads are still outside" in line
    assert watch.wait(), "not at once: others have to be looked at, too"
    node.spawn(99)
    watch.look()
    assert (watch.moved, watch.failed, node.groups()) == (2, 1, {GROUP: {7, 9, 99}})
    assert watch.wait() is None


# --- The loop


def test_it_waits_no_longer_than_until_the_next_look(node: WatchedNode) -> None:
    node.seconds = 0.01
    watch = listen(node, None, 99, None)
    watch.step()  # with a look at all
    node.spawn(9)
    watch.step()
    watch.step()
    assert watch._source.waits == [0, None, pytest.approx(0.2)]  # type: ignore[attr-defined]
    assert node.groups() == {GROUP: {7, 9}}


def test_what_it_did_is_on_record_from_the_start_on_and_once_a_minute(
    node: WatchedNode, lines: list[str]
) -> None:
    started = node.kernel.now
    watch = listen(node, None, 8, 9, 8, Lost, None, None)
    watch.step()  # a look at all
    for pid in (8, 9):
        node.spawn(pid)
    node.machine.refusals["put"] = [5]  # EIO
    for _ in range(4):
        watch.step()
        watch._waiting.clear()
    assert "cannot move process 8 into its group" in lines[0]
    assert "EIO" in lines[0]
    assert "execs were lost" in lines[1]
    at_start = WatchRecord(started_at=started, alive_at=started)
    assert RunDir(RUN).glance(WatchRecord, "watch") == at_start
    node.kernel.now = started + 59
    watch.step()
    assert RunDir(RUN).glance(WatchRecord, "watch") == at_start
    node.kernel.now = started + 60
    watch.step()
    now = WatchRecord(started_at=started, alive_at=started + 60, moved=2, failed=1, overflows=1)
    assert RunDir(RUN).glance(WatchRecord, "watch") == now


def test_record_that_cannot_be_written_is_logged_and_the_event_acted_on(
    node: WatchedNode, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "write_new", fails(28))
    node.spawn(8)
    listen(node, 8).step()
    assert node.groups() == {GROUP: {7, 8}}
    (line,) = lines
    assert "cannot write watch.json" in line
