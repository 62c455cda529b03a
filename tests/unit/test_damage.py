# SPDX-License-Identifier: Apache-2.0
"""Many failures of one reason are the first lines of a minute and a count; and completed keys make room for new ones.

What becomes of records that cannot be read: test_store.py.
"""

from __future__ import annotations

import errno

import pytest

from hook import reclaim, report, system
from hook.entry import Call
from hook.errors import HookError
from hook.identity import Container, Pod
from hook.models import Model, Options
from hook.reconcile import run as reconcile
from hook.store import RunDir
from hook.words import explain
from tests.simulator.kernel import RESCTRL
from tests.simulator.machine import RUN
from tests.unit.simulated import ID, OTHER, UID, Node, node

__all__ = ["node"]  # fixture

REASON = "no_rmids"
MORE = f"{REASON}: and {{}} more failures within a minute; see resctrl-mon-hook list"


def fail(node: Node, number: int, reason: str = REASON, name: str = "") -> None:
    """A container of one pod fails, or one of this name that is in no pod."""
    container = None if name else Container(f"c{number}", 7, "/b", {})
    if container is not None:
        container.pod = Pod(UID)
    call = Call("createRuntime", (Options(), []), name or f"c{number}", None, container)
    report.write_traces(call, node.context().run, HookError(reason, "the problem"), is_monitored=True)


def line(number: int) -> str:
    return f"createRuntime c{number}: {REASON}: the problem"


def test_the_first_ten_of_a_key_and_reason_are_logged_and_the_rest_counted(node: Node) -> None:
    for number in range(25):
        fail(node, number)
    assert node.machine.syslog == [line(number) for number in range(10)]
    fail(node, 25, "io")
    assert len(node.machine.syslog) == 11
    node.kernel.now += 60
    fail(node, 26)
    assert node.machine.syslog[11:] == [MORE.format(15), line(26)]
    assert len(node.machine.caller.stderr.splitlines()) == 27, "stderr gets every failure"
    assert len(node.machine.fs.listdir(f"{RUN}/unmonitored")) == 27, "each has its record"


def test_the_first_failure_of_another_key_is_logged_however_often_one_fails(node: Node) -> None:
    """Ten lines a minute were for all: a pod with a bad annotation hid the failures of the others."""
    for number in range(300):
        fail(node, number, name="bad-" + f"{number:016x}" if number % 2 else "")
    assert len(node.machine.syslog) == 20
    fail(node, 1, name="victim")
    assert node.machine.syslog[20:] == [f"createRuntime victim: {REASON}: the problem"]


def test_all_keys_together_have_a_limit_which_bounds_the_files_too(node: Node) -> None:
    for number in range(300):
        fail(node, number, name=f"d{number}")
    assert len(node.machine.syslog) == 200
    assert len([name for name in node.machine.fs.listdir(RUN) if name.startswith("logged-")]) == 200 + 2
    node.kernel.now += 60
    assert report.sum_up_failures(RunDir(RUN)) == [MORE.format(100)]
    assert not [name for name in node.machine.fs.listdir(RUN) if name.startswith("logged-")]


def test_reconcile_logs_the_count(node: Node) -> None:
    for number in range(12):
        fail(node, number)
    for passed, lines in ((0, 10), (60, 11), (0, 11)):
        node.kernel.now += passed
        reconcile.repair(Options())
        assert len(node.machine.syslog) == lines
    assert node.machine.syslog[10] == MORE.format(2)
    assert not [name for name in node.machine.fs.listdir(RUN) if name.startswith("logged-")]


def test_a_count_that_another_takes_away_meanwhile_is_added_up_by_that_one(node: Node) -> None:
    node.patch.setattr(system, "list_directory", lambda *_: [f"logged-{REASON}-9"])
    assert report.sum_up_failures(RunDir(RUN)) == []


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOSPC, "No space left on device")])
def test_all_are_logged_where_they_cannot_be_counted(node: Node, error: Exception) -> None:
    def append(*_arguments: object) -> None:
        raise error

    node.patch.setattr(system, "append", append)
    for number in range(12):
        fail(node, number)
    assert node.machine.syslog == [line(number) for number in range(12)]


def test_what_is_in_the_place_of_a_count_stops_nothing(node: Node) -> None:
    node.kernel.now = 600.0
    node.machine.fs.create_dir(f"{RUN}/logged-no_rmids.{UID}-10")
    node.machine.fs.create_symlink(f"{RUN}/logged-io-9", "/elsewhere")
    node.machine.add(f"{RUN}/logged-", b"." * 99)
    node.machine.add(f"{RUN}/logged-io-8", b"." * 99)
    for number in range(12):
        fail(node, number)
    assert len(node.machine.syslog) == 12
    node.kernel.now += 60
    assert report.sum_up_failures(RunDir(RUN)) == [MORE.format(99).replace(REASON, "io")]
    assert not node.machine.fs.exists("/elsewhere")


def test_a_failure_whose_count_was_taken_away_meanwhile_is_logged(node: Node) -> None:
    node.kernel.now = 600.0
    for _ in range(11):
        report.count_failure(RunDir(RUN), REASON, UID)
    write = node.machine.write

    def removed_before(descriptor: int, data: bytes) -> int:
        if node.machine.fs.exists(f"{RUN}/logged-{REASON}.{UID}-10"):
            node.machine.unlink(f"{RUN}/logged-{REASON}.{UID}-10".encode())
        return write(descriptor, data)

    node.patch.setattr(node.machine, "write", removed_before)
    assert report.count_failure(RunDir(RUN), REASON, UID)


# --- Room in the run directory

SMALL = 8 << 20 >> 12
"""Blocks of a run directory of 8 MiB."""
FILE = "/var/log/history.jsonl"


def count(node: Node, name: str) -> int:
    return len(node.machine.files().get(f"{RUN}/runs/{name}", b""))


def keep(node: Node, *names: str) -> None:
    """Keys that have completed, the oldest first."""
    for pid, name in enumerate(names, 100):
        node.start(name, pid, None)
        node.stop(name, pid)
        node.kernel.now += 1


def kept(node: Node) -> dict[str, bool]:
    """The completed keys, and whether their snapshots are there."""
    states = node.context().run.list_states()
    return {state.key: bool(state.groups) for state in states if state.completed_at is not None}


def domains(node: Node, number: int) -> None:
    """Give the machine more counters."""
    events = {f"mon_PERF_PKG_{domain:02}/core_energy": "3.000000" for domain in range(number)}
    node.kernel.groups[RESCTRL].counters.update(events)
    make = node.kernel._new_group

    def make_group(*arguments: object) -> object:
        group = make(*arguments)
        group.counters.update(events)
        return group

    node.kernel._new_group = make_group  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize(
    ("limits", "number"), [((SMALL, 1 << 20), 1000), ((1 << 20, 500), 200)], ids=["bytes", "inodes"]
)
def test_a_thousand_containers_are_monitored_and_recorded_in_eight_mebibytes(
    node: Node, limits: tuple[int, int], number: int
) -> None:
    domains(node, 8)
    node.machine.limit(*limits)
    for each in range(number):
        name, node.machine.caller.calls = f"c{each}", 0
        context = node.start(name, 7, None)
        assert node.groups() == {f"oci-{name}": {7}}
        assert not context.run.complaints
        view = f"{RUN}/mon_groups/{name}/mon_data/mon_PERF_PKG_07/core_energy.begin"
        assert view in node.machine.files(f"{RUN}/mon_groups/{name}")
        node.stop(name, 7)
        assert node.state(name).groups[0].end
        if each % 25 == 24:
            node.kernel.now += 60
            assert set(node.verbs()) <= {"prune"}
        node.kernel.now += 1
    assert node.failures() == {}
    assert count(node, "dropped_snapshots") > number * 0.6


def test_reconcile_leaves_a_quarter_to_completed_keys_the_newest_of_them(node: Node) -> None:
    names = [f"c{number}" for number in range(20)]
    node.machine.limit(400, 10_000)
    keep(node, *names)
    verbs = node.verbs()
    assert {*verbs} == {"prune"}
    assert {*kept(node)} == {*names[len(verbs) :]}
    assert count(node, "dropped_snapshots") == len(verbs)
    assert node.machine.room is not None
    assert 80 < 400 - node.machine.room[0] <= 100
    node.assert_settled()


def test_completed_keys_stay_where_there_is_room(node: Node) -> None:
    node.machine.limit(4000, 10_000)
    keep(node, *(f"c{number}" for number in range(20)))
    assert (node.verbs(), len(kept(node))) == ([], 20)


def owe(node: Node, *names: str) -> None:
    for name in names:
        node.edit(f"groups/{name}.json", owed={"lines": ["{}"], "why": "x: ENOENT"}, history_file="/gone/history")


def test_what_owes_lines_goes_last_and_reconcile_counts_the_lines(node: Node) -> None:
    node.machine.limit(36, 10_000)
    keep(node, "c0", "c1", "c2")
    owe(node, "c0", "c1", "c2")
    done = node.repair()
    assert [outcome.action.verb for outcome in done.outcomes if outcome.problem is None] == ["prune"] * 3
    assert (kept(node), count(node, "dropped_lines")) == (dict.fromkeys(("c0", "c1", "c2"), False), 0)
    node.machine.limit(8, 10_000)
    node.machine.room = [0, 50]
    done = node.repair()
    assert {outcome.action.verb for outcome in done.outcomes} == {"write"}
    assert kept(node) == {"c1": False, "c2": False}


def fill(node: Node) -> None:
    """The file system of the run directory has no room left."""
    node.machine.room = [0, 0]


def test_a_hook_makes_room_by_the_oldest_snapshots_and_asks_no_busy_key(node: Node) -> None:
    keep(node, *(f"c{number}" for number in range(12)))
    owe(node, "c0")
    with node.context().run.lock("c1", 0.0):
        node.machine.limit(4000, 10_000)
        fill(node)
        node.machine.room = [0, 1]
        node.start(ID, 7, None)
    assert node.groups() == {f"oci-{ID}": {7}}
    assert sorted(kept(node)) == sorted(["c0", "c1", "c10", "c11"])
    assert count(node, "dropped_snapshots") == 8


def test_a_hook_drops_lines_for_a_record_only_if_nothing_else_is_left(node: Node) -> None:
    names = [f"c{number}" for number in range(9)]
    keep(node, *names)
    owe(node, *names)
    node.machine.limit(4000, 10_000)
    node.machine.room = [0, 1]
    node.start(ID, 7, None)
    assert (len(kept(node)), sum(kept(node).values()), count(node, "dropped_lines")) == (9, 1, 0)
    node.repair(options={"snapshot_ttl": 0})
    node.machine.room = [0, 50]
    context = node.start(OTHER, 8, None)
    assert node.groups() == {f"oci-{ID}": {7}, f"oci-{OTHER}": {8}}
    assert "wait to be written; dropped: 1; tried: " in str(explain(context.run.complaints[0]))
    left = [*kept(node)]
    assert left == names[-len(left) :]
    assert count(node, "dropped_lines") == 9 - len(left) < 9


def test_for_a_failure_and_for_what_reconcile_did_no_line_is_dropped(node: Node) -> None:
    keep(node, "c0")
    owe(node, "c0")
    node.repair()
    node.machine.limit(4000, 10_000)
    node.machine.room = [0, 9]
    node.machine.kernel.now += 5
    report.write_record(node.context(), report.make_failure(HookError(REASON, "the problem"), "createRuntime", "c1"))
    node.repair()
    assert kept(node) == {"c0": False}


def test_without_an_inode_for_a_lock_a_view_goes_first(node: Node) -> None:
    keep(node, "c0", "c1")
    node.machine.limit(4000, 10_000)
    node.machine.room = [100, 0]
    node.start(ID, 7, None)
    assert node.groups() == {f"oci-{ID}": {7}}
    assert not [file for file in node.files() if file.startswith(("building", "mon_groups/c0/"))]


def test_all_that_is_kept_is_looked_at_before_the_oldest_goes(node: Node) -> None:
    keep(node, "c2", "c1", "c0")
    assert reclaim.make_room(node.context().run, drops_lines=False)
    assert kept(node) == {}


def test_where_nothing_is_kept_a_full_run_directory_is_searched_once(node: Node) -> None:
    looks, list_names = list[object](), RunDir.list_names

    def look(run: RunDir, model: type[Model]) -> list[str]:
        looks.append(model)
        return list_names(run, model)

    node.patch.setattr(RunDir, "list_names", look)
    node.start(OTHER, 8, None)
    node.machine.limit(4000, 10_000)
    fill(node)
    with pytest.raises((HookError, OSError)):
        node.start(ID, 7, None)
    assert len(looks) == 1
