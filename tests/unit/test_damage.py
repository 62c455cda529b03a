# SPDX-License-Identifier: Apache-2.0
"""Many failures of one reason are the first lines of a minute and a count;
and completed keys make room for new ones.

What becomes of records that cannot be read: test_store.py.
"""

from __future__ import annotations

import errno

import pytest

from hook import report, store, system
from hook.context import new_call, read_container
from hook.errors import HookError
from hook.identity import new_pod
from hook.models import Options
from hook.node import records
from hook.reconcile import run as reconcile
from hook.store import RunDir
from tests.simulator.kernel import RESCTRL
from tests.simulator.machine import RUN
from tests.unit.simulated import ID, UID, Node, node

__all__ = ["node"]  # fixture

REASON = "no_rmids"
MORE = f"{REASON}: and {{}} more failures within a minute; see resctrl-mon-hook list"


def fail(node: Node, number: int, reason: str = REASON, name: str = "") -> None:
    """A container of one pod fails, or one of this name that is in no pod."""
    container = None if name else read_container(f"c{number}", 7, "/b", {})
    if container is not None:
        container.pod = new_pod(UID)
    call = new_call("createRuntime", (Options(), []), name or f"c{number}", None, container)
    report.write_traces(
        call, node.context().run, HookError(reason, "the problem"), is_monitored=True
    )


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
    """Ten lines a minute were for all: a pod with a bad annotation hid
    the failures of the others.
    """
    for number in range(300):
        fail(node, number, name="bad-" + f"{number:016x}" if number % 2 else "")
    assert len(node.machine.syslog) == 20
    fail(node, 1, name="victim")
    assert node.machine.syslog[20:] == [f"createRuntime victim: {REASON}: the problem"]


def test_all_keys_together_have_a_limit_which_bounds_the_files_too(node: Node) -> None:
    for number in range(300):
        fail(node, number, name=f"d{number}")
    assert len(node.machine.syslog) == 200
    assert (
        len([name for name in node.machine.fs.listdir(RUN) if name.startswith("logged-")])
        == 200 + 2
    )
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
    states = store.list_states(node.context().run)
    return {state.key: bool(state.groups) for state in states if state.completed_at is not None}


def domains(node: Node, number: int) -> None:
    """Give the machine more counters."""
    events = {f"mon_PERF_PKG_{domain:02}/core_energy": "3.000000" for domain in range(number)}
    for event, text in events.items():
        node.kernel.set_counter(RESCTRL, event, text)
    node.kernel.resctrl.begins.update(events)


def test_completed_keys_stay_by_number_the_newest_of_them_with_the_lines_that_they_owe(
    node: Node,
) -> None:
    node.patch.setattr(records, "MOST_COMPLETED", 3)
    keep(node, "c0", "c1", "c2", "c3", "c4")
    owe(node, "c0")
    done = node.repair()
    assert [outcome.action.verb for outcome in done.outcomes if outcome.problem is None] == [
        "prune",
        "prune",
    ]
    assert kept(node) == {"c0": False, "c2": True, "c3": True, "c4": True}
    assert count(node, "dropped_snapshots") == 2


def test_a_completed_key_with_eight_packages_takes_two_pages(node: Node) -> None:
    """So that a thousand of them fit into eight mebibytes of /run."""
    domains(node, 8)
    node.machine.limit(4000, 10_000)
    assert node.machine.room is not None
    node.start("c0", 7, None)
    node.stop("c0", 7)
    before = node.machine.room[0]
    node.start("c1", 8, None)
    node.stop("c1", 8)
    assert before - node.machine.room[0] <= 2


def test_a_full_run_directory_ends_nothing_and_the_start_fails(node: Node) -> None:
    keep(node, "c0", "c1")
    owe(node, "c0")
    node.machine.limit(4000, 10_000)
    fill(node)
    with pytest.raises((HookError, OSError)):
        node.start(ID, 7, None)
    assert (node.groups(), kept(node)) == ({}, {"c0": True, "c1": True})
    assert count(node, "dropped_lines") == 0


def owe(node: Node, *names: str) -> None:
    for name in names:
        node.edit(
            f"groups/{name}.json",
            owed={"lines": ["{}"], "why": "x: ENOENT"},
            history_file="/gone/history",
        )


def fill(node: Node) -> None:
    """The file system of the run directory has no room left."""
    node.machine.room = [0, 0]
