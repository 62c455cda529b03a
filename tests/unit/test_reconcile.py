# SPDX-License-Identifier: Apache-2.0
"""reconcile on a simulated machine: what it makes of records, whatever happened to them,
and beside hooks that run.

What it does about processes and by the kernel's rules: tests/fuse/test_reconcile.py.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from hook import counters, rare, store, system, validation
from hook.errors import HookError
from hook.models import Failure, Index, KeyState, State
from hook.node import naming, processes
from hook.node.processes import Groups
from hook.reconcile import act as acting
from hook.reconcile import diagnose, move, run, survey
from hook.reconcile.move import Mover
from hook.reconcile.run import Repairs
from hook.reconcile.survey import Survey
from hook.resctrl import Resctrl
from hook.show.snapshot import get_event, sum_key, take_snapshot
from hook.store import RunDir
from hook.words import explain
from tests.simulator import machine
from tests.simulator.kernel import RESCTRL, ROOT_CGROUP
from tests.simulator.machine import RUN
from tests.unit.simulated import GROUP, ID, OTHER, OTHER_UID, UID, Node, cgroup_of, fails, node
from tests.unit.stops import stops

if TYPE_CHECKING:
    from hook.context import Context
    from hook.identity import Container

__all__ = ["node"]  # fixture
HOUR, DAY, TTL = 3600, 86400, 300

# --- Counters that start again, and groups that are renamed

BANDWIDTH = "mon_L3_00/mbm_total_bytes"


def set_traffic(node: Node, *paths: str, text: str | None) -> None:
    """Let a counter of these groups, and the root group's, say this; None:
    its domain is offline.
    """
    domains = node.kernel.resctrl.counters.domains
    domains["mon_L3_00"] = tuple(event for event in domains["mon_L3_00"] if event not in BANDWIDTH)
    for path in (RESCTRL, *paths) if text is not None else ():
        node.kernel.set_counter(path, BANDWIDTH, str(text))


def read_traffic(node: Node) -> tuple[int, bool]:
    """What the pod is known to have used, and whether that is all."""
    (key,) = take_snapshot(node.options()).keys
    total = sum_key(key)[get_event(BANDWIDTH)]
    return total.known // counters.MILLION, not total.unknown


@pytest.mark.parametrize(
    "mode", ["[mbm_event]\ndefault\n", "[mbm_cntr_assign]\n", "mbm_event\n[default]\n", None]
)
@pytest.mark.parametrize("gap", ["Unassigned", None])
def test_traffic_before_its_counter_stopped_is_kept_if_a_run_read_it(
    node: Node, mode: str | None, gap: str | None
) -> None:
    if mode is not None:
        node.kernel.files[f"{RESCTRL}/info/L3_MON/mbm_assign_mode"] = mode.encode()
    set_traffic(node, text="0")
    node.start()
    path = f"{RESCTRL}/mon_groups/{GROUP}"
    is_read = "[mbm" in (mode or "")
    kept = 2000 if is_read else 0
    set_traffic(node, path, text="2000")
    assert (node.verbs(), read_traffic(node)) == ([], (2000, True))
    set_traffic(node, path, text=gap)
    assert node.verbs() == (["mark"] if is_read or gap is None else [])
    node.assert_settled()
    assert read_traffic(node) == (kept, False)
    set_traffic(node, path, text="300")
    node.verbs()
    is_marked = is_read or gap is None
    assert read_traffic(node) == (kept + 300, not is_marked)
    set_traffic(node, path, text="5000")
    assert (node.verbs(), read_traffic(node)) == ([], (kept + 5000, not is_marked))
    node.stop(ID, 7)
    assert read_traffic(node) == (kept + 5000, not is_marked)
    assert len(node.reconciled().counted) == is_read


def test_what_a_counter_had_in_a_former_directory_is_not_added_to_that_of_the_next(
    node: Node,
) -> None:
    set_traffic(node, text="0")
    node.kernel.files[f"{RESCTRL}/info/L3_MON/mbm_assign_mode"] = b"[mbm_event]\n"
    node.start()
    path = f"{RESCTRL}/mon_groups/{GROUP}"
    set_traffic(node, path, text="2000")
    assert node.verbs() == []
    node.kernel.mount()  # inodes come again
    assert node.verbs() == ["remake"]
    set_traffic(node, path, text="300")
    assert (node.verbs(), read_traffic(node)) == ([], (300, False))


@pytest.mark.parametrize("to", ["gold/mon_groups/" + GROUP, "mon_groups/oci-renamed"])
def test_a_group_that_is_renamed_is_followed_by_another_and_nothing_stays(
    node: Node, to: str
) -> None:
    """README: the use until then is unknown."""
    node.kernel.add_class("gold")
    node.start()
    node.kernel.rename(f"{RESCTRL}/mon_groups/{GROUP}", f"{RESCTRL}/{to}")
    node.verbs()
    node.assert_settled()
    (key,) = take_snapshot(node.options()).keys
    assert (key.condition, sum_key(key)["core_energy"].unknown > 0) == ("live", True)
    node.stop(ID, 7)
    node.verbs()
    assert node.groups() == {}


# --- Keys that are over


def test_a_snapshot_is_removed_after_its_ttl_or_if_it_is_of_another_boot(node: Node) -> None:
    for seconds in (TTL + 1, -TTL - 1):
        node.start()
        node.stop(ID, 7)
        node.kernel.now += TTL - 1
        assert node.verbs() == []
        assert node.files() == {f"groups/{UID}.json"}
        node.kernel.now += seconds - TTL + 1
        assert node.verbs() == ["prune"]
        assert node.files() == set()


def test_an_old_group_gives_its_rmid_to_the_new_one_in_another_ctrl_group(node: Node) -> None:
    node.start()
    node.kernel.move(7, node.kernel.add_class("gold"))
    node.kernel.rmids = 2
    node.repair()
    node.repair()
    assert (node.groups(), node.failures()) == ({f"gold/{GROUP}": {7}}, {})
    node.assert_settled()


def test_a_ctrl_group_that_was_made_again_for_a_sibling_is_not_the_first_containers(
    node: Node,
) -> None:
    """The group on record is there, but the first container cannot be in it any more."""
    gold = node.kernel.add_class("gold")
    node.spawn(7, group="gold")
    node.start()
    node.kernel.rmdir(gold)
    node.kernel.add_class("gold")
    node.spawn(8, cgroup_of(OTHER), group="gold")
    node.start(OTHER, 8)
    node.repair()
    assert node.groups() == {GROUP: {7}, f"gold/{GROUP}": {8}}
    node.assert_settled()


@pytest.mark.parametrize(
    "moves", [True, False], ids=["one moves to another ctrl_group then", "none moves"]
)
def test_groups_are_read_again_for_a_remade_group_only_if_its_process_has_moved_since_the_survey(
    node: Node, monkeypatch: pytest.MonkeyPatch, *, moves: bool
) -> None:
    node.kernel.shows_groups = False
    gold = node.kernel.add_class("gold")
    for number, name in enumerate((ID, OTHER, "c3"), 7):
        node.start(name, number, uid=None)
        node.kernel.rmdir(f"{RESCTRL}/mon_groups/oci-{name}")
    monitor, read_groups, readings = acting._monitor, move.read_groups, []

    def move_and_monitor(
        survey: Survey,
        container: Container,
        *others: Any,  # noqa: ANN401
        **options: Any,  # noqa: ANN401
    ) -> bool | Mover:
        if moves and container.id == OTHER:
            node.kernel.put(gold, b"8")
        return monitor(survey, container, *others, **options)

    def count_readings(context: Context) -> Groups:
        readings.append(context)
        return read_groups(context)

    monkeypatch.setattr(acting, "_monitor", move_and_monitor)
    monkeypatch.setattr(acting, "read_groups", count_readings)
    assert node.repair().is_whole
    place = f"gold/oci-{OTHER}" if moves else f"oci-{OTHER}"
    assert (node.groups(), len(readings)) == ({f"oci-{ID}": {7}, place: {8}, "oci-c3": {9}}, moves)


# --- What another tool has moved to its own group, or to another ctrl_group

each_kernel = pytest.mark.parametrize(
    "shows_groups", [True, False], ids=["the kernel shows groups", "it does not"]
)


@pytest.fixture(params=[True, False], ids=["the kernel shows groups", "it does not"])
def taken(node: Node, request: pytest.FixtureRequest) -> Node:
    """A container of two processes, and a thread that exec has brought in,
    of which another tool has taken the init.
    """
    node.kernel.shows_groups = request.param
    node.start()
    node.spawn(8, group=f"mon_groups/{GROUP}")
    node.spawn(9)
    node.kernel.move(7, node.make_group("theirs"))
    return node


@each_kernel
@pytest.mark.parametrize("ctrl_group", ["", "gold/"])
def test_a_container_that_another_tool_has_taken_is_noted_once_and_left_alone(
    node: Node, shows_groups: bool, ctrl_group: str
) -> None:
    node.kernel.shows_groups = shows_groups
    node.kernel.add_class("gold")
    node.start()
    theirs = f"{RESCTRL}/{ctrl_group}mon_groups/theirs"
    node.kernel.mkdir(theirs)
    node.kernel.move(7, theirs)
    node.spawn(9)
    before = node.groups()
    done = node.repair()
    assert [outcome.action.verb for outcome in done.outcomes] == ["note"]
    assert f"moved it to {theirs}: a part of its use is unknown" in done.outcomes[0].action.why
    assert done.left == [f"another tool has moved {ID[:12]} of {UID} to {theirs}, where it stays"]
    for _ in range(2):
        again = node.repair()
        assert (again.outcomes, again.is_whole, again.outside, again.left) == (
            [],
            True,
            {},
            done.left,
        )
    assert (node.groups(), node.state().taken, node.reconciled().left) == (before, True, 1)
    assert node.reconciled().elsewhere == {}, "they are the taken container's"
    node.stop(ID, 7, 9)
    assert node.groups() == {f"{ctrl_group}theirs": set()}


def test_a_container_that_is_given_back_is_moved_in_and_stays_noted(taken: Node) -> None:
    taken.verbs()
    taken.kernel.rmdir(f"{RESCTRL}/mon_groups/theirs")
    assert taken.verbs() == ["adopt"]
    assert (taken.groups(), taken.state().taken) == ({GROUP: {7, 8, 9}}, True)
    taken.assert_settled()


@each_kernel
def test_threads_in_a_group_of_another_tool_or_in_another_ctrl_group_stay_and_are_named(
    node: Node, shows_groups: bool
) -> None:
    node.kernel.shows_groups = shows_groups
    node.start()
    theirs, gold = node.make_group("theirs"), node.kernel.add_class("gold")
    for pid, path in ((8, theirs), (9, theirs), (10, gold), (11, RESCTRL)):
        node.spawn(pid)
        node.kernel.move(pid, path)
    done = node.repair()
    assert [(outcome.action.verb, outcome.action.why) for outcome in done.outcomes] == [
        ("adopt", "1 of its threads were not in its group")
    ]
    assert {line.split(",")[0] for line in done.left} == {
        f"2 threads of {ID[:12]} of {UID} in {theirs}",
        f"1 thread of {ID[:12]} of {UID} in {gold}",
    }
    again = node.repair()
    assert (again.outcomes, again.outside, again.is_whole) == ([], {}, True)
    assert node.groups() == {GROUP: {7, 11}, "theirs": {8, 9}}
    assert (node.reconciled().elsewhere, node.state().taken) == ({theirs: 2, gold: 1}, False)


@each_kernel
@pytest.mark.parametrize("pid", [7, 8], ids=["its init", "another process"])
def test_a_group_on_record_with_another_prefix_is_not_another_tools(
    node: Node, shows_groups: bool, pid: int
) -> None:
    """Its tasks were left there for ever, as those of another tool."""
    node.kernel.shows_groups = shows_groups
    node.start("c1", 70, uid=None, group_prefix="k8s-", linger=600)
    node.stop("c1", 70, group_prefix="k8s-", linger=600)
    node.start()
    if pid == 8:
        node.spawn(8)
    node.kernel.move(pid, f"{RESCTRL}/mon_groups/k8s-c1")
    done = node.repair()
    assert ([outcome.action.verb for outcome in done.outcomes], done.left) == (["adopt"], [])
    assert node.groups() == {GROUP: {7, pid}, "k8s-c1": set()}


def test_a_container_whose_runtime_does_not_answer_for_adopt_is_a_failed_action(node: Node) -> None:
    done = node.repair(
        asks=lambda _known: ({}, {ID: "/adopt/runc: cannot start: ENOENT (#!/usr/bin/env python3)"})
    )
    assert (done.is_whole, len(done.left), node.reconciled().failed) == (False, 1, 1)


# --- A container below another one's cgroup, as `--cgroup-parent` makes it


def test_what_is_in_a_cgroup_of_another_container_is_that_ones(node: Node) -> None:
    """Its processes were moved into the group of the container above, and back."""
    inner = f"{cgroup_of()}/libpod-{OTHER}.scope"
    node.start()
    node.start(OTHER, 8, None, cgroup=inner)
    assert node.verbs() == []
    node.spawn(9, f"{inner}/init.scope")
    node.spawn(10, f"{cgroup_of()}/init.scope")
    assert node.verbs() == ["adopt", "adopt"]
    assert node.groups() == {GROUP: {7, 10}, f"oci-{OTHER}": {8, 9}}


FOREIGN = [
    f"/libpod-{OTHER}.scope",
    f"/x/cri-containerd-{OTHER}.scope/init.scope",
    f"/y/pod{OTHER_UID}/{OTHER}",
]


@pytest.mark.parametrize("below", FOREIGN)
@pytest.mark.parametrize(
    "is_recorded", [True, False], ids=["its hook failed", "it was never hooked"]
)
def test_a_container_that_is_not_monitored_is_not_brought_in_with_the_one_above(
    node: Node, below: str, is_recorded: bool
) -> None:
    node.start()
    node.spawn(8, cgroup_of() + below.removesuffix("/init.scope"))
    node.spawn(9, cgroup_of() + below)
    if is_recorded:
        known = Failure(
            container=OTHER,
            stage="createRuntime",
            reason="bad_key",
            problem="",
            pid=8,
            starttime=100,
        )
        RunDir(RUN).write(Failure, OTHER, known)
    done = node.repair()
    assert (done.outcomes, done.is_whole, node.groups()) == ([], True, {GROUP: {7}})
    said = f"below another one's, with processes in no group: {cgroup_of()}/"
    assert [said in line for line in done.left] == ([] if is_recorded else [True])


@pytest.mark.parametrize("below", FOREIGN)
def test_what_a_container_has_begun_itself_is_its_own_whatever_it_calls_its_cgroup(
    node: Node, below: str
) -> None:
    """Podman in a container makes cgroups as the host's Podman does.

    Also after another tool has removed the group.
    """
    node.start()
    node.kernel.fork(7, 8).places = [f"0::{cgroup_of()}{below}"]
    assert (node.verbs(), node.repair().left) == ([], [])
    node.remove_groups()
    assert (node.verbs(), node.groups()) == (["remake"], {GROUP: {7, 8}})
    node.put(f"groups/{UID}.json", "{")
    node.kernel.tasks[8].parent = 1
    assert node.verbs() == ["rebuild"]
    assert (node.groups(), node.member().cgroup) == ({GROUP: {7, 8}}, f":{cgroup_of()}")


# --- CPU time before a task was in its group

SECOND = os.sysconf("SC_CLK_TCK")


def test_what_exec_used_before_it_was_adopted_is_counted_once(node: Node) -> None:
    node.spawn(7).user_ticks = SECOND
    node.start()
    node.spawn(8, cgroup_of()).user_ticks = 2 * SECOND
    for verb in ("adopt", "remake"):
        assert node.verbs() == [verb]
        assert (node.state().late_cpu, node.reconciled().late_cpu) == (2, 2)
        node.remove_groups()


@pytest.mark.parametrize("runs", [1, 3])
def test_a_thread_that_another_tool_takes_and_gives_up_again_and_again_is_counted_once(
    node: Node, runs: int
) -> None:
    """Each time all of its life was counted: 2.0 s were 4.0."""
    node.start()
    node.spawn(8, cgroup_of()).user_ticks = 2 * SECOND
    theirs = node.make_group("theirs")
    for number in range(3):
        assert node.verbs() == ["adopt"]
        assert (node.state().late_cpu, node.reconciled().late_cpu) == (2, 2)
        node.kernel.now += 60 * (runs > 1)
        node.kernel.move(8, theirs)
        if runs > 1:
            node.repair()
        node.kernel.move(8, RESCTRL)
        node.kernel.tasks[8].user_ticks += number  # in its group


@pytest.mark.parametrize("has_left", [False, True])
def test_a_thread_older_than_a_look_that_left_some_outside_counts_the_time_since_it(
    node: Node, has_left: bool
) -> None:
    node.start()
    node.spawn(8, cgroup_of(), GROUP and f"mon_groups/{GROUP}").user_ticks = 100 * SECOND
    if has_left:
        node.spawn(9, cgroup_of())
        node.machine.refusals["put"] = [errno.EACCES] * 20
    assert node.repair().is_whole is not has_left
    node.machine.refusals.clear()
    node.kernel.now += 60
    node.kernel.move(8, RESCTRL)
    young = node.spawn(10, cgroup_of(), born=int((node.kernel.now - 5) * SECOND))
    young.user_ticks = 4 * SECOND
    node.repair()
    assert node.state().late_cpu == pytest.approx(4 + 60 * has_left, abs=1)


def test_what_a_container_used_before_it_was_monitored_is_counted(node: Node) -> None:
    node.spawn(7).user_ticks = 2 * SECOND
    known = Failure(
        container=ID, stage="createRuntime", reason="no_rmids", problem="", key=UID, kind="pod"
    )
    RunDir(RUN).write(Failure, ID, validation.replace(known, pid=7, starttime=100))
    assert node.verbs() == ["retry"]
    assert node.state().late_cpu == 2


# --- What it costs


def count_reads(node: Node, expected: set[str], **scope: Any) -> int:  # noqa: ANN401
    """How often a reconcile that does these actions opens something in /proc,
    or the record of a key.

    It lists /proc itself once a pass.
    """
    paths: list[bytes] = []
    real = node.machine.open

    def open_noted(path: bytes, *arguments: int, **keywords: int) -> int:
        if path.startswith((b"/proc", b"groups/")):
            paths.append(path)
        return real(path, *arguments, **keywords)

    node.machine.open = open_noted  # type: ignore[method-assign,assignment]
    assert {*node.verbs(**scope)} == expected
    node.machine.open = real  # type: ignore[method-assign]
    assert paths.count(b"/proc") <= 1 + len(expected)
    return len(paths)


def measure(node: Node, first: int, members: int) -> list[int]:
    """The same with that many members and as many other processes, for each kind of work."""
    for pid in range(first, first + members):
        node.start(f"{pid:064d}", pid, f"{pid:08d}{UID[8:]}")
        node.spawn(pid + members, "/system.slice")
    counts = [count_reads(node, set())]
    node.remove_groups()
    counts.append(count_reads(node, {"remake"}))
    for key in store.list_records(RunDir(RUN), KeyState):
        node.put(f"groups/{key}.json", "{")
    counts.append(count_reads(node, {"rebuild"}))
    return counts


def test_the_cost_grows_with_members_and_processes_and_not_with_their_product(node: Node) -> None:
    few = measure(node, 1000, 10)
    many = measure(node, 2000, 30)  # and the ten from before
    assert [round(big / small, 1) <= 4.2 for big, small in zip(many, few)] == [True] * 3, (
        few,
        many,
    )


def test_the_cost_of_adoption_grows_with_the_adopted_and_not_with_their_product_with_the_keys(
    node: Node,
) -> None:
    """For each one it read the records of all keys."""
    counts = []
    for pids in (range(1000, 1010), range(2000, 2040)):
        states = {}
        for pid in pids:
            name = f"{pid:064d}"
            node.spawn(pid, cgroup_of(name, f"{pid:08d}{UID[8:]}"))
            known = {"ociVersion": "1.0", "id": name, "status": "running", "pid": pid}
            states[name] = State.model_validate({**known, "bundle": "/nowhere", "annotations": {}})
        counts.append(count_reads(node, {"adopt"}, asks=lambda _known, states=states: (states, {})))
    assert counts[1] <= 4.5 * counts[0], counts


# --- What people have a day to look at

BAD = "bad-0123456789abcdef"


def at(node: Node, seconds: float, cgroup: str = "") -> list[str]:
    """What reconcile does so many seconds later, with one process, in this cgroup."""
    node.kernel.tasks.pop(9, None)
    if cgroup:
        node.spawn(9, cgroup)
    node.kernel.now += seconds
    done = node.repair()
    node.kernel.now -= seconds
    assert not [outcome for outcome in done.outcomes if outcome.problem is not None]
    return [outcome.action.id for outcome in done.outcomes]


def fail(name: str, pid: int | None = None) -> None:
    """A createRuntime failed; if no more is known, its state was none."""
    record = Failure(container=name, stage="createRuntime", reason="bad_state", problem="no state")
    RunDir(RUN).write(
        Failure, name, validation.replace(record, pid=pid, starttime=100 if pid else None)
    )


@pytest.mark.parametrize("text", ["", "{"], ids=["readable", "torn"])
@pytest.mark.parametrize("back", [1, -1], ids=["later", "the clock was set back"])
@pytest.mark.parametrize(("name", "kept"), [(ID, DAY), (BAD, HOUR)])
def test_a_failure_record_without_a_pid_is_removed_after_a_day_or_of_no_container_after_an_hour(
    node: Node, name: str, text: str, kept: int, back: int
) -> None:
    fail(name)
    if text:
        node.put(f"unmonitored/{name}.json", text)
    assert at(node, kept - 60) == []
    assert at(node, back * (kept + 60)) == [f"forget {name}"]
    assert node.failures() == {}


@pytest.mark.parametrize(
    "seconds", [DAY + 60, -DAY - 60], ids=["a day later", "the clock was set back a day"]
)
@pytest.mark.parametrize("torn", ["a file", "a directory"])
def test_an_unreadable_state_is_removed_a_day_after_it_was_set_aside(
    node: Node, torn: str, seconds: float
) -> None:
    """Not a day after it was written last, which may be long ago.

    A file that we did not set aside is kept.
    """
    node.put(f"groups/{UID}.json/below" if torn == "a directory" else f"groups/{UID}.json", "{")
    node.put("groups/no key.json.unreadable-1", "")
    assert RunDir(RUN).read_key(UID) is not None
    (aside,) = (path for path in node.files() if "unreadable" in path and UID in path)
    at(node, DAY - 60)
    assert aside in node.files()
    assert f"tidy {UID} {aside.removesuffix('/below')}" in at(node, seconds)
    assert {path for path in node.files() if not path.startswith("groups/no key")} == set()


def test_a_container_whose_id_looks_like_a_file_that_was_set_aside_is_a_container(
    node: Node,
) -> None:
    """Its record was removed after a day."""
    name = "c1.json.unreadable-1"
    node.start(name, 9, None)
    node.kernel.now += DAY + 60
    assert node.verbs() == []
    node.put(f"groups/{name}.json.unreadable-7", "{")
    node.kernel.now += DAY + 60
    assert [outcome.action.path for outcome in node.repair().outcomes] == [
        f"groups/{name}.json.unreadable-7"
    ]
    assert node.members(name) == {name: 9}


# --- Records that are torn, lost or half written


def test_a_rebuild_in_which_any_call_fails_takes_nobody_out_and_is_repeated(node: Node) -> None:
    """Where one of its groups could not be read, a key was complete without it,
    and its task was taken out.
    """
    node.kernel.add_class("gold")
    node.start()
    node.spawn(8, cgroup_of(OTHER), group="gold")
    node.start(OTHER, 8)
    for stop in stops(node.machine, errno.EIO):
        node.put(f"groups/{UID}.json", "{")
        with stop:
            node.repair()
        assert node.groups() == {GROUP: {7}, f"gold/{GROUP}": {8}}, stop.at
        node.repair()
        assert (node.members(), node.state().recovering) == ({ID: 7, OTHER: 8}, False), stop.at
        for aside in (path for path in node.files() if ".unreadable-" in path):
            node.remove(aside)


def test_the_failure_of_another_life_stays_on_record(node: Node) -> None:
    """It was removed when the group of its namesake, whose process still lived, was made again."""
    node.start()
    node.spawn(8)
    node.remove_groups()
    failure = {
        "container": ID,
        "stage": "createRuntime",
        "reason": "io",
        "problem": "p",
        "key": UID,
        "kind": "pod",
    }
    node.put(f"unmonitored/{ID}.json", json.dumps({**failure, "pid": 8, "starttime": 100}))
    assert node.verbs() == ["remake", "retry"]
    assert sorted(node.members().values()) == [7, 8]


@pytest.mark.parametrize("part", ["", "groups", "locks", "members", "unmonitored"])
@pytest.mark.parametrize("has_next", [False, True], ids=["reconcile is next", "a hook is next"])
def test_a_lost_run_directory_or_part_of_it_is_made_again(
    node: Node, part: str, has_next: bool
) -> None:
    """Hooks rely on it. The pod's next container makes a record in which the first one is not."""
    node.start()
    node.remove(part)
    if has_next:
        node.start(OTHER, 8)
    node.verbs()
    assert node.members() == {ID: 7, **({OTHER: 8} if has_next else {})}
    assert node.groups() == {GROUP: {7, 8} if has_next else {7}}
    assert node.failures() == {}
    node.assert_settled()
    node.stop(ID, 7)
    node.stop(OTHER, 8)
    assert node.groups() == {}


def test_a_record_is_rebuilt_of_a_container_whose_processes_outlived_its_init(node: Node) -> None:
    """The rebuild failed as long as they lived, and the dead container stayed a member."""
    node.start()
    node.spawn(8, group=f"mon_groups/{GROUP}")
    node.put(f"groups/{UID}.json", "{")
    node.start()
    node.kernel.die(7)
    node.verbs()
    assert (node.members(), node.state().recovering, node.groups()) == ({}, False, {GROUP: {8}})
    node.kernel.die(8)
    node.verbs()
    assert node.groups() == {}


def test_a_record_is_not_rebuilt_where_proc_hides_the_tasks(node: Node) -> None:
    """It was, without its members, which then lived on in a group of a key that was over."""
    node.start()
    node.put(f"groups/{UID}.json", "{")
    node.kernel.files.update(
        {"/proc": ["self"], "/proc/1": None, "/proc/7/cgroup": None, "/proc/7/stat": None}
    )
    assert {outcome.problem for outcome in node.repair().outcomes} == {
        "its group has tasks that match no known container: process 7"
    }
    assert node.state().recovering
    node.kernel.files.clear()
    node.verbs()
    assert node.members() == {ID: 7}


@pytest.mark.parametrize("torn", [False, True])
def test_a_group_of_a_longer_prefix_stays_its_keys(node: Node, torn: bool) -> None:
    """Its name without our prefix, `k8s-UID`, looks like a key."""
    node.start(group_prefix="oci-k8s-")
    if torn:
        node.put(f"groups/{UID}.json", "{")
    node.spawn(8)
    assert node.verbs() == (["rebuild", "adopt"] if torn else ["adopt"])
    assert store.list_records(RunDir(RUN), KeyState) == [UID]
    assert RunDir(RUN).read_index(ID) == UID
    assert (node.members(), node.groups()) == ({ID: 7}, {f"oci-k8s-{UID}": {7, 8}})
    node.assert_settled()
    node.stop(ID, 7, 8)
    assert node.groups() == {}


def test_a_lingering_group_of_a_longer_prefix_is_no_orphan(node: Node) -> None:
    node.start("c1", uid=None, group_prefix="oci-k8s-", linger=600)
    node.stop("c1", 7, group_prefix="oci-k8s-", linger=600)
    node.assert_settled()
    assert node.groups() == {"oci-k8s-c1": set()}


@pytest.mark.parametrize("torn", [False, True])
def test_an_unrecorded_group_takes_no_container_over_that_has_a_key(node: Node, torn: bool) -> None:
    """Another program made it, with the name of another key,
    and put a container of ours into it.
    """
    node.start()
    path = node.make_group(f"oci-{OTHER_UID}")
    if torn:
        node.put(f"groups/{OTHER_UID}.json", "{")
    node.kernel.put(path, b"7")
    node.repair()
    node.repair()
    assert (RunDir(RUN).read_index(ID), node.members(), node.groups()) == (
        UID,
        {ID: 7},
        {GROUP: {7}},
    )
    assert node.find_state(OTHER_UID) is None
    node.assert_settled()


def test_what_a_killed_hook_left_half_written_goes(node: Node) -> None:
    node.start()
    there = node.files()
    half = [
        "groups/.c1.tmp",
        f"members/.{UID}.tmp",
        "locks/c3",
        "unmonitored/.c5.tmp",
    ]
    for path in half:
        node.put(path, "")
    node.put("members/c9.json", json.dumps({"version": 1, "key": UID}))
    assert {*node.verbs()} == {"forget", "tidy"}
    assert node.files() == there


def test_a_list_of_live_keys_never_costs_a_live_task_its_group(node: Node) -> None:
    node.start()
    node.repair(live=set())
    assert node.groups() == {GROUP: {7}}


def test_named_linger_shortens_and_never_prolongs_a_recorded_one(node: Node) -> None:
    for seconds, is_ended in ((0, True), (300, False), (3600, False), (None, False)):
        node.start("c1", uid=None, linger=600)
        node.stop("c1", 7, linger=600)
        assert node.verbs(linger=seconds) == (["end"] if is_ended else [])
    node.kernel.now += 601
    assert node.verbs(linger=3600) == ["end"]
    assert node.groups() == {}


def test_a_pod_lingers_only_as_long_as_its_cgroup_is_there(node: Node) -> None:
    node.start(linger=60)
    node.stop(ID, 7, linger=60)
    assert (node.verbs(), node.groups()) == ([], {GROUP: set()})
    node.kernel.remove_cgroups(f"/kubepods/pod{UID}")
    assert (node.verbs(), node.groups()) == (["end"], {})


def test_an_action_that_failed_and_is_still_needed_is_a_failure_whatever_followed(
    node: Node,
) -> None:
    """The removal of a temporary file of the same key hid it: exit status 0,
    and 1 only at the next run.
    """
    node.start(linger=5)
    node.stop(ID, 7, linger=5)
    node.put(f"members/.{UID}.tmp", "")
    node.kernel.now += 5
    node.machine.refusals["rmdir"] = [errno.EACCES] * 99
    first = node.repair()
    assert {(outcome.action.verb, outcome.problem is not None) for outcome in first.outcomes} == {
        ("end", True),
        ("tidy", False),
    }
    assert ([outcome.action.verb for outcome in first.failed], first.is_whole) == (["end"], False)
    node.machine.refusals.clear()
    assert node.verbs()[0] == "end"
    assert node.repair().is_whole


@pytest.mark.parametrize("linger", [0, 60])
def test_key_that_cannot_end_yet_is_no_action_and_is_named_once(node: Node, linger: int) -> None:
    """It was printed three times each minute as ended."""
    node.start()
    node.kernel.fork(7, 9)
    node.kernel.die(7)
    assert node.verbs(options={"linger": linger}) == ["drop"] if linger else True
    node.kernel.now += linger
    runs = [node.repair() for _ in range(3)]
    said = [[line for line in run.left if "cannot end yet" in line] for run in runs]
    assert [len(lines) for lines in said] == [1, 0, 0]
    assert UID[:12] in said[0][0]
    assert said[0][0].endswith(f"what outlived its containers: process 9 in {cgroup_of()}")
    assert [outcome.action.verb for run in runs for outcome in run.outcomes] == (
        [] if linger else ["drop"]
    )
    assert all(run.is_whole for run in runs)
    assert (node.reconciled().left, node.groups()) == (1, {GROUP: {9}})
    node.kernel.die(9)
    assert (node.verbs(), node.groups()) == (["end"], {})
    assert (node.reconciled().left, node.reconciled().held) == (0, [])


def fail_to_monitor(node: Node) -> None:
    node.spawn(9, cgroup_of(OTHER))
    process = {"pid": 9, "starttime": 100, "key": UID, "kind": "pod"}
    failure = Failure(container=OTHER, stage="createRuntime", reason="io", problem="", **process)  # type: ignore[arg-type]
    node.context().run.write(Failure, OTHER, failure)


def lose_class(node: Node) -> None:
    node.kernel.add_class("gold")
    node.spawn(8, cgroup_of(OTHER), "gold")
    node.start(OTHER, 8)
    node.kernel.rmdir(f"{RESCTRL}/gold")
    node.stop(OTHER, 8)


def owe(node: Node) -> None:
    node.start(OTHER, 8, None, history="/var/log/none/history")
    node.stop(OTHER, 8)
    node.machine.fs.create_dir("/var/log/none")


def end_and_wait(node: Node, seconds: int, **options: Any) -> None:  # noqa: ANN401
    node.stop(ID, 7, **options)
    node.kernel.now += seconds


def add_domain(node: Node) -> None:
    """CPUs of another package come online."""
    for path in node.kernel.groups:
        node.kernel.set_counter(path, "mon_PERF_PKG_01/core_energy", "1.000000")


NEEDS: dict[str, Callable[[Node], object]] = {
    "rebuild": lambda node: node.put(f"groups/{UID}.json", "{"),
    "drop": lambda node: node.kernel.die(7),
    "end": lambda node: end_and_wait(node, 6, linger=5),
    "remove": lambda node: node.make_group("oci-lost"),
    "evict": lambda node: node.spawn(9, "/user.slice", group=f"mon_groups/{GROUP}"),
    "remake": Node.remove_groups,
    "adopt": lambda node: node.spawn(9),
    "retry": fail_to_monitor,
    "note": lambda node: node.kernel.move(7, node.make_group("theirs")),
    "retire": lose_class,
    "forget": lambda node: node.context().run.write(Index, OTHER, Index(key=UID)),
    "name": lambda node: node.edit(f"groups/{UID}.json", kind="sandbox", pod_name=ID[:12]),
    "prune": lambda node: end_and_wait(node, TTL),
    "mark": add_domain,
    "tidy": lambda node: node.put(f"groups/.{UID}.tmp", ""),
    "write": owe,
}


@pytest.mark.parametrize("verb", diagnose.VERBS)
def test_each_action_is_done_once_and_a_second_run_finds_nothing_to_do(
    node: Node, verb: str
) -> None:
    node.patch.setattr(naming.PodmanNames, "find_pod", lambda *_: "web")
    node.start()
    NEEDS[verb](node)
    first = node.repair()
    done = [outcome.action.id for outcome in first.outcomes if outcome.problem is None]
    assert verb in [words.split()[0] for words in done]
    assert len(done) == len({*done}) == len(first.outcomes)
    second = node.repair()
    assert (second.outcomes, second.is_whole) == ([], True)


def test_action_that_changes_nothing_has_failed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.start()
    node.kernel.die(7)
    monkeypatch.setattr(acting, "remove_members", lambda *_: None)
    outcomes = node.repair().outcomes
    assert [(outcome.action.verb, outcome.problem) for outcome in outcomes] == [
        ("drop", None), ("drop", "it was done, and is needed again"),
    ]  # fmt: skip


# --- A hook that holds the lock. What else runs beside reconcile: tests/simulator


def test_a_busy_key_is_left_for_the_next_run(node: Node) -> None:
    node.start()
    node.spawn(8)  # to adopt
    node.start("c2", 9, None)
    node.kernel.die(9)  # to drop
    with RunDir(RUN).lock(UID, 0.0), RunDir(RUN).lock("c2", 0.0):
        done = node.repair().outcomes
    # What is outside is a failure, whatever the reason.
    assert [(outcome.action.verb, outcome.problem is not None) for outcome in done] == [
        ("adopt", True)
    ]
    assert node.verbs() == ["drop", "adopt"]


def test_strangers_are_moved_out_once_no_hook_holds_the_lock(node: Node) -> None:
    """The hook may be about to record the container that the task belongs to."""
    node.start()
    node.spawn(9, "/user.slice", group=f"mon_groups/{GROUP}")
    with RunDir(RUN).lock(UID, 0.0):
        assert node.verbs() == []
    assert node.groups() == {GROUP: {7, 9}}
    assert node.verbs() == ["evict"]
    assert node.groups() == {GROUP: {7}}


# --- A program that lives as a chain of forks


class ChainOfForks:
    """In a container's cgroup, beside its init, 7:
    each link ends as soon as the cgroup has been read.

    `ends_early`: how often; after that the link of the time lives on. `is_inside`:
    its next links are in the group.
    """

    is_inside = False

    def __init__(self, node: Node, ends_early: int, seconds: float = 0.0) -> None:
        self.ends_early = ends_early
        self.link = 1000
        self._node = node
        self._seconds = seconds
        node.start()
        node.spawn(self.link)
        self._lists: set[int] = set()  # the descriptors of the cgroup's list
        self._open, self._read = node.machine.open, node.machine.read
        node.machine.open, node.machine.read = self.open, self.read  # type: ignore[method-assign,assignment]

    def open(self, path: bytes, *arguments: int, **keywords: int) -> int:
        descriptor = self._open(path, *arguments, **keywords)
        if path == b"cgroup.threads":
            self._lists.add(descriptor)
            self._node.kernel.now += self._seconds
            # What is read is newer than the list of the group's tasks.
            if self.is_inside and self.ends_early > 0:
                self.go_on()
        return descriptor

    def read(self, descriptor: int, size: int) -> bytes:
        data = self._read(descriptor, size)
        if descriptor in self._lists and self.ends_early > 0:
            self.ends_early -= 1
            self.go_on()
        self._lists.discard(descriptor)
        return data

    def go_on(self) -> None:
        """The link forks the next one, and ends."""
        self._node.kernel.die(self.link)
        self.link += 1
        self._node.spawn(self.link, group=f"mon_groups/{GROUP}" if self.is_inside else "")

    def end(self) -> None:
        self.ends_early = 0
        self._node.kernel.die(self.link)


def after_each_adoption(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    real = acting.bring_in

    def bring_in(
        node: Survey, key: str, container: str, longest_late: float | None
    ) -> Mover | None:
        try:
            return real(node, key, container, longest_late)
        finally:
            act()

    monkeypatch.setattr(acting, "bring_in", bring_in)


def test_actions_whose_process_ends_before_they_move_it_have_no_outcome(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.start()
    node.spawn(8)
    real = acting.bring_in

    def bring_in(*arguments: Any) -> Mover | None:  # noqa: ANN401
        node.kernel.die(8)
        return real(*arguments)

    monkeypatch.setattr(acting, "bring_in", bring_in)
    node.spawn(9, cgroup_of(OTHER))
    fail(OTHER, 9)
    node.edit(f"unmonitored/{OTHER}.json", key=OTHER, kind="container", reason="no_rmids")
    node.machine.before_put = lambda: node.kernel.die(9)
    planned = {outcome.action.verb for outcome in run.plan_repairs(node.options()).outcomes}
    done = node.repair()
    assert (planned, done.is_whole) == ({"adopt", "retry"}, True)
    assert [outcome.action.verb for outcome in done.outcomes] == ["forget"], (
        "the record of its failure"
    )


def count_outside(node: Node) -> tuple[dict[str, int], int]:
    return node.reconciled().outside, node.reconciled().outside_total


def test_chain_is_in_its_group_after_one_run_though_its_first_links_end_before_they_are_moved(
    node: Node,
) -> None:
    chain = ChainOfForks(node, 3, seconds=0.0001)
    done = node.repair()
    assert (done.is_whole, count_outside(node), node.groups()) == (
        True,
        ({}, 0),
        {GROUP: {7, chain.link}},
    )
    assert chain.link == 1003


def test_chain_that_stays_outside_is_a_failure_and_on_record_until_a_run_without_it(
    node: Node,
) -> None:
    chain = ChainOfForks(node, 10**6, seconds=0.01)
    done = node.repair()
    assert {
        (outcome.action.verb, outcome.outside, (outcome.problem or "").partition(";")[0])
        for outcome in done.outcomes
    } == {("adopt", 1, "1 of its threads are still outside its group, after 0 were moved in")}
    assert (done.is_whole, count_outside(node), node.groups()) == (
        False,
        ({ID: 1}, 1),
        {GROUP: {7}},
    )
    chain.end()
    assert (node.repair().outcomes, count_outside(node)) == ([], ({}, 0))


def before_each_survey(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], object]) -> None:
    """Something happens before the first look at the node, the second one, ..."""
    numbers = count()

    def look(context: Context, *arguments: Any) -> Survey:  # noqa: ANN401  Survey's
        act(next(numbers))
        return Survey(context, *arguments)

    monkeypatch.setattr(run, "Survey", look)


def test_chain_that_stayed_outside_and_is_gone_at_the_last_look_is_no_failure(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that gives reconcile little time,
    what is inside by now may have looked as if it were outside.
    """
    chain = ChainOfForks(node, 10**6, seconds=0.01)
    before_each_survey(monkeypatch, lambda number: chain.end() if number else None)
    done = node.repair()
    assert (done.is_whole, done.failed, count_outside(node)) == (True, [], ({}, 0))
    assert node.reconciled().failed == 0


def test_chain_that_is_inside_and_whose_links_end_before_they_are_asked_is_not_planned_for(
    node: Node,
) -> None:
    chain = ChainOfForks(node, 0)
    node.verbs()
    chain.is_inside, chain.ends_early = True, 3
    node.assert_settled()
    assert chain.ends_early == 0


def test_chains_whose_links_end_too_early_are_looked_at_again_in_bounds(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each container had twenty looks, however many there were."""
    monkeypatch.setattr(survey, "_MOST_REREADS", 5)
    chain = ChainOfForks(node, 0)
    node.verbs()
    chain.is_inside, chain.ends_early = True, 1000
    assert run.plan_repairs(node.options()).outcomes
    assert chain.ends_early == 1000 - (1 + 5), "one link ends after each look"


def test_container_whose_group_is_made_again_while_a_chain_stays_outside_is_monitored(
    node: Node,
) -> None:
    """It is no failure of a hook: the next run adopts the chain, and does not begin again."""
    ChainOfForks(node, 10**6, seconds=0.01)
    node.remove_groups()
    done = node.repair()
    assert [
        (outcome.action.verb, outcome.outside, outcome.problem is None) for outcome in done.outcomes
    ] == [
        ("remake", 1, False),
        ("adopt", 1, False),
    ]
    assert (done.is_whole, count_outside(node)) == (False, ({ID: 1}, 1))
    assert (node.groups(), node.failures()) == ({GROUP: {7}}, {})


@pytest.mark.parametrize("times", [1, 100])
def test_what_comes_in_during_a_run_is_adopted_next_and_after_the_last_pass_a_failure(
    node: Node, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Also if the plan has the same words as before:
    such an action was taken for one that was tried.
    """
    chain = ChainOfForks(node, 0)

    def go_on() -> None:
        if chain.link < 1000 + times:
            chain.go_on()

    after_each_adoption(monkeypatch, go_on)
    done = node.repair()
    tried = 3 if times == 100 else 2
    assert [outcome.outside for outcome in done.outcomes] == (
        [0] * tried + [1] if times == 100 else [0] * tried
    )
    assert (done.is_whole, count_outside(node)[1]) == (times == 1, int(times == 100))
    assert node.groups() == {GROUP: {7} if times == 100 else {7, 1001}}


# --- What cannot be read is not taken for empty, or gone

DEEP = "".join(f"/{number}{'x' * 240}" for number in range(20))
UNREAD = [errno.EACCES, errno.EIO, errno.ENOMEM, errno.ENAMETOOLONG]
each_refusal = pytest.mark.parametrize("number", UNREAD)


def other(node: Node) -> None:
    """Another pod, into which exec has brought a process."""
    node.start(OTHER, 90, OTHER_UID)
    node.spawn(91, cgroup_of(OTHER, OTHER_UID))


def test_exec_whose_cgroup_proc_refuses_is_adopted_and_reported(node: Node) -> None:
    """As kernels do for such a path. A process without a cgroup may be in any container's."""
    node.start()
    node.spawn(8, cgroup_of() + DEEP)
    node.kernel.denied["/proc/8/cgroup"] = errno.ENAMETOOLONG
    done = node.repair()
    assert node.groups() == {GROUP: {7, 8}}
    assert done.left == ["1 of the processes in /proc not read: they may be outside their groups"]
    assert (done.is_whole, done.failed, node.reconciled().unread) == (False, [], 1)


@each_refusal
@pytest.mark.parametrize("what", ["", "/cgroup.threads", "/below", "/below/cgroup.threads"])
def test_exec_in_a_cgroup_that_cannot_be_read_is_looked_for_in_proc_and_reported(
    node: Node, what: str, number: int
) -> None:
    node.start()
    node.spawn(8, cgroup_of() + "/below")
    node.kernel.denied[f"{ROOT_CGROUP}{cgroup_of()}{what}"] = number
    done = node.repair()
    assert node.groups() == {GROUP: {7, 8}}
    assert [line.partition(":")[0] for line in done.left] == [
        f"1 cgroup of {ID[:12]} of {UID} not read"
    ]
    assert (done.is_whole, node.reconciled().unread, node.reconciled().left) == (False, 1, 1)
    node.kernel.denied.clear()
    assert node.repair().is_whole


@each_refusal
@pytest.mark.parametrize(
    "what",
    [
        f"{RESCTRL}/mon_groups/{GROUP}",
        f"{RESCTRL}/mon_groups/{GROUP}/tasks",
        "/proc/8/cpu_resctrl_groups",
    ],
    ids=["its group", "its tasks", "the group of a thread"],
)
def test_key_that_cannot_be_looked_at_is_left_as_it_is_and_reported_beside_others(
    node: Node, what: str, number: int
) -> None:
    """Its group was made again, a task of another tool's taken; or the exec not seen."""
    node.start()
    node.make_group("theirs")
    node.spawn(8, group="mon_groups/theirs")
    other(node)
    node.kernel.denied[what] = number
    before = node.state()
    done = node.repair()
    assert node.groups() == {GROUP: {7}, "theirs": {8}, f"oci-{OTHER_UID}": {90, 91}}
    assert [outcome.action.verb for outcome in done.outcomes] == ["adopt"]
    (line,) = [line for line in done.left if line.startswith(f"{UID} not looked at: cannot read")]
    assert what in line
    assert (done.is_whole, node.reconciled().unread, node.state()) == (False, 1, before)


def test_resctrl_that_cannot_be_looked_at_is_not_taken_for_unmounted(node: Node) -> None:
    """reconcile did nothing, and said nothing."""
    node.start()
    node.spawn(8)
    node.kernel.denied[f"{RESCTRL}/mon_groups"] = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        node.repair()


def test_run_directory_that_cannot_be_looked_at_is_an_error(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "open_directory", fails(errno.EACCES))
    with pytest.raises(HookError) as caught:
        node.repair()
    assert "EACCES" in str(explain(caught.value))


@each_refusal
def test_pod_whose_cgroup_cannot_be_looked_at_is_not_deleted(node: Node, number: int) -> None:
    """Its key ended, and its next container began another RMID."""
    node.start(linger=60)
    node.kernel.denied[f"{ROOT_CGROUP}/kubepods/pod{UID}"] = number
    node.stop(ID, 7, linger=60)
    assert (node.verbs(), node.groups()) == ([], {GROUP: set()})
    node.kernel.denied[f"{RESCTRL}/mon_groups/{GROUP}"] = number
    assert node.repair().outcomes == []
    node.kernel.denied.clear()
    assert (node.verbs(), node.groups()) == ([], {GROUP: set()})


def test_record_is_rebuilt_whose_task_is_in_a_cgroup_that_proc_does_not_show(node: Node) -> None:
    node.start()
    node.spawn(8, cgroup_of() + DEEP, group=f"mon_groups/{GROUP}")
    node.put(f"groups/{UID}.json", "{")
    node.kernel.denied["/proc/8/cgroup"] = errno.ENAMETOOLONG
    node.repair()
    assert (node.members(), node.state().recovering) == ({ID: 7}, False)


# --- One budget of time for all containers

WAITS = 22


def uid_of(number: int) -> str:
    return f"{number:08d}{UID[8:]}"


def crowd(node: Node, number: int = WAITS) -> list[str]:
    """So many containers, each with a process of exec, and one more;
    returns the lists of the threads of the former.
    """
    lists = []
    for pid in range(1000, 1000 + number):
        node.start(f"{pid:064d}", pid, uid_of(pid))
        cgroup = cgroup_of(f"{pid:064d}", uid_of(pid))
        node.spawn(pid + 1000, cgroup)
        lists.append(f"{ROOT_CGROUP}{cgroup}/cgroup.threads")
    node.start(OTHER, 90, OTHER_UID)
    node.spawn(91, cgroup_of(OTHER, OTHER_UID))
    return lists


def left_over(node: Node) -> None:
    """What later actions are for: a container that was not monitored, and an old snapshot."""
    node.spawn(95, "/elsewhere")
    fail(ID, 95)
    node.edit(f"unmonitored/{ID}.json", key=ID, kind="container", reason="no_rmids")
    node.start("over", 96, None)
    node.stop("over", 96)
    node.kernel.now += TTL


def test_containers_that_stay_outside_hold_up_no_other_and_nothing_that_comes_later(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each held up the run for two seconds, and the run ended by its own limit,
    always before the same ones.
    """
    monkeypatch.setattr(machine, "MOST_CALLS", 10**6)
    for pid, path in enumerate(crowd(node), 1000):
        node.kernel.files[path] = f"{pid}\n{pid + 1000}\n9999\n".encode()  # the last is never there
    read_threads = processes.read_threads

    def read_slowly(*arguments: Any) -> processes.Reading | None:  # noqa: ANN401
        node.kernel.now += 0.001
        return read_threads(*arguments)

    monkeypatch.setattr(processes, "read_threads", read_slowly)
    left_over(node)
    began = node.kernel.now
    done = node.repair()
    assert node.kernel.now - began <= 10
    groups = node.groups()
    assert groups[f"oci-{OTHER_UID}"] == {90, 91}
    assert [groups[f"oci-{uid_of(pid)}"] for pid in range(1000, 1000 + WAITS)] == [
        {pid, pid + 1000} for pid in range(1000, 1000 + WAITS)
    ]
    assert groups[f"oci-{ID}"] == {95}
    assert {outcome.action.verb for outcome in done.outcomes if not outcome.problem} == {
        "adopt",
        "retry",
        "prune",
    }
    problems = [outcome.problem or "" for outcome in done.failed]
    assert len(problems) == WAITS
    assert all(
        "1 of its threads are still outside its group, after 1 were" in problem
        for problem in problems
    )
    assert (done.is_whole, node.reconciled().failed, count_outside(node)[1]) == (
        False,
        WAITS,
        WAITS,
    )
    node.kernel.files.clear()
    assert node.repair().is_whole, "all are in their groups by now"


def test_container_that_is_not_reached_is_named_and_another_one_is_the_first_in_the_next_run(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is no bringing in is done nevertheless."""
    monkeypatch.setattr(run, "_MOST_NAMED", 2)
    crowd(node, 5)
    left_over(node)
    put = Resctrl.put

    def slow(self: Resctrl, path: str, pid: int) -> None:
        node.kernel.now += 7.001
        put(self, path, pid)

    monkeypatch.setattr(Resctrl, "put", slow)
    done = node.repair()
    late = {
        outcome.action.container
        for outcome in done.failed
        if "next run begins with another" in (outcome.problem or "")
    }
    assert (len(late), done.is_whole) == (4, False)
    assert {outcome.action.verb for outcome in done.outcomes if not outcome.problem} == {
        "adopt",
        "prune",
    }
    places, total = count_outside(node)
    assert (len(places), total) == (2, 3)
    first = set()
    for _ in range(40):
        node.kernel.now += 60.001
        planned = rare.start_elsewhere(sorted(late))
        first.add(planned[0])
    assert first == late


def test_containers_that_wait_for_an_rmid_wait_once_a_pass(node: Node) -> None:
    """Each of them waited for --rmid-wait, beside what other containers needed."""
    node.kernel.rmids = 1
    node.kernel.set_limbo(3600.0)
    node.start("over", 96, None)
    node.stop("over", 96, snapshot_ttl=0)
    for pid in range(1000, 1000 + WAITS):
        node.spawn(pid, f"/{pid}")
        fail(f"{pid:064d}", pid)
        node.edit(
            f"unmonitored/{pid:064d}.json", key=f"{pid:064d}", kind="container", reason="no_rmids"
        )
    began = node.kernel.now
    done = node.repair()
    assert ({*node.failures().values()}, len(done.failed)) == ({"rmids_in_limbo"}, WAITS)
    assert node.kernel.now - began <= 2


def test_lock_of_a_failure_is_not_waited_for(node: Node) -> None:
    for number in range(30):
        fail(f"{number:064d}", 5000 + number)
    began = node.kernel.now
    locks = [RunDir(RUN).lock(f"{number:064d}", 0.0) for number in range(30)]
    assert node.repair().outcomes == []
    assert node.kernel.now == began
    for lock in locks:
        lock.__exit__()
    assert node.verbs() == ["forget"] * 30


def test_container_with_more_cgroups_than_are_read_is_named(node: Node) -> None:
    node.start()
    for number in range(300):
        node.kernel.cgroups.add(f"{cgroup_of()}/{number}")
    node.spawn(8)
    done: Repairs = node.repair()
    assert done.left == [
        f"300 cgroups of {ID[:12]} of {UID} not read: too many, or refused; a program there may "
        "stay outside"
    ]
    assert (done.is_whole, node.reconciled().unread) == (False, 300)
    assert node.groups() == {GROUP: {7, 8}}


# --- The end of all keys: an administrator takes the hook off


def there(node: Node) -> list[str]:
    """What is left below /run of the run directory, and the groups."""
    files = [path for path in node.machine.files("/run") if path.startswith(RUN)]
    return [*files, *sorted(node.groups())]


def test_all_keys_end_whatever_their_members_do_and_the_run_directory_goes(node: Node) -> None:
    node.start()
    node.start(OTHER, 8, None, linger=HOUR)
    node.stop(OTHER, 8, linger=HOUR)
    node.start("third", 9, OTHER_UID)
    node.stop("third", 9)  # its snapshot is kept
    node.make_group("oci-lone")
    node.verbs()
    assert run.has_keys(node.options())
    assert run.end_all_keys(node.options()) == ([], [])
    assert there(node) == []
    assert not run.has_keys(node.options())
    assert node.kernel.group_of(7) == RESCTRL
    node.start()  # the hook was installed again while that container runs
    assert node.groups() == {GROUP: {7}}


def test_the_end_of_all_keys_goes_on_after_a_kill_at_each_step(node: Node) -> None:
    for name, pid in ((ID, 7), (OTHER, 8)):
        node.spawn(pid, cgroup_of(name))

    def begin() -> None:
        node.start(ID, 7)
        node.start(OTHER, 8, OTHER_UID, linger=HOUR)

    begin()
    for stop in stops(node.machine):
        node.machine.caller.calls = 0
        with stop:
            run.end_all_keys(node.options())
        assert run.end_all_keys(node.options()) == ([], [])
        assert there(node) == []
        begin()


def test_a_key_that_cannot_be_ended_keeps_its_record_and_is_named_and_the_next_call_ends_it(
    node: Node,
) -> None:
    node.start()
    node.start(OTHER, 8, OTHER_UID)
    node.machine.refusals = {"rmdir": [errno.EPERM]}
    (problem,), left = run.end_all_keys(node.options())
    assert problem.startswith(f"key {OTHER_UID}: ")
    assert "rmdir" in problem
    assert left == []
    assert [*node.groups()] == [f"oci-{OTHER_UID}"]
    assert node.find_state(UID) is None
    assert [group.path for group in node.state(OTHER_UID).groups] == [
        f"{RESCTRL}/mon_groups/oci-{OTHER_UID}"
    ]
    assert run.end_all_keys(node.options()) == ([], [])
    assert there(node) == []


def test_a_key_whose_lock_is_held_is_waited_for_and_named(node: Node) -> None:
    node.start()
    with node.context().run.lock(UID, 0.0):
        (problem,), _ = run.end_all_keys(node.options())
    assert problem.startswith(f"key {UID}: ")
    assert node.members() == {ID: 7}


def test_what_cannot_be_read_is_named_and_kept_when_all_keys_end(node: Node) -> None:
    """Its group ends all the same: it has the key's name."""
    node.start()
    node.start(OTHER, 8, OTHER_UID)
    node.put(f"groups/{UID}.json", "{")
    unfinished, left = run.end_all_keys(node.options())
    (aside,) = [path for path in node.machine.files() if ".unreadable-" in path]
    assert (unfinished, left) == ([], [f"{aside}: it cannot be read"])
    assert node.machine.files()[aside] == b"{"
    assert node.groups() == {}
    assert node.find_state(UID) is None


def test_a_group_of_no_record_that_has_a_live_task_stays_when_all_keys_end(node: Node) -> None:
    path = node.make_group("oci-theirs")
    node.spawn(9, group="mon_groups/oci-theirs")
    holder = f"process 9 in {cgroup_of()}"
    assert run.end_all_keys(node.options()) == (
        [],
        [f"{path}: it has a live task, and is on no record: {holder}"],
    )
    assert node.groups() == {"oci-theirs": {9}}


def test_a_directory_of_others_is_not_taken_for_the_run_directory(node: Node) -> None:
    node.machine.fs.create_file("/srv/data/x")
    assert run.end_all_keys(node.options(run_dir="/srv/data")) == ([], [])
    assert node.machine.fs.exists("/srv/data/x")
