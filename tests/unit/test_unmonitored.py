# SPDX-License-Identifier: Apache-2.0
"""What ran unmonitored, or joined late: its line in the history, and the count by reason."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Callable
from typing import Any

import pytest

from hook import ending, jobs, system
from hook.entry import run_stage
from hook.errors import HookError
from hook.models import Failure
from hook.show.snapshot import take_snapshot
from tests.simulator.kernel import RESCTRL
from tests.simulator.machine import RUN
from tests.unit.simulated import ID, OTHER, UID, Node, cgroup_of, fails, node
from tests.unit.stops import stops
from tests.unit.test_create import use
from tests.unit.test_ending import FILE, ON, read

__all__ = ["node"]  # fixture
ALL = ["core_energy"]


@pytest.fixture(autouse=True)
def directory(node: Node) -> None:
    node.machine.fs.create_dir("/var/log/jobs")
    node.kernel.rmids = 0


def call(node: Node, stage: str, *words: str, name: str = ID, pid: int = 7, uid: str = UID) -> int:
    """A runtime calls the hook."""
    said = {"io.kubernetes.pod.uid": uid} if uid else {}
    status = "stopped" if stage == "poststop" else "created"
    state = {
        "ociVersion": "1.0.2",
        "id": name,
        "status": status,
        "pid": pid,
        "bundle": "/b",
        "annotations": said,
    }
    node.patch.setattr(system, "read_stdin", lambda *_: (json.dumps(state).encode(), True))
    options = [
        f"--run-dir={RUN}",
        f"--resctrl-root={RESCTRL}",
        f"--history={FILE}",
        "--rmid-wait=0",
    ]
    return run_stage(stage, [*options, *words])


def start(node: Node, *words: str, name: str = ID, pid: int = 7, uid: str = UID) -> None:
    """A container begins, and its createRuntime fails for want of an RMID, or does not."""
    if pid not in node.kernel.tasks:
        node.spawn(pid, cgroup_of(name, uid) if uid else f"/machine.slice/libpod-{name}.scope")
    call(node, "createRuntime", *words, name=name, pid=pid, uid=uid)


def end(node: Node, pid: int = 7, *words: str) -> None:
    node.kernel.now += 12.5
    node.kernel.die(pid)
    call(node, "poststop", *words)


def end_without_poststop(node: Node) -> None:
    node.kernel.now += 12.5
    node.kernel.die(7)
    node.repair(options=ON)


def counted(node: Node) -> dict[str, int]:
    return take_snapshot(node.options()).ended_unmonitored


@pytest.mark.parametrize("ends", [end, end_without_poststop])
def test_a_container_that_no_group_had_has_a_line_with_the_reason_and_is_counted(
    node: Node, ends: Callable[[Node], None]
) -> None:
    start(node)
    assert (read(node), counted(node)) == ([], {})
    ends(node)
    (line,) = read(node)
    assert len(line.pop("id")) == 16
    assert line == {
        "version": 1, "node": "n1", "written": line["written"],
        "kind": "pod", "key": UID, "namespace": None, "pod": None, "labels": {},
        "containers": [{"id": ID, "name": None}], "more_containers": 0,
        "begin": line["begin"], "end": line["end"], "seconds": line["seconds"], "runs": 1,
        "use": {}, "unknown": ALL, "late_cpu_seconds": 0.0, "reason": "no_rmids",
    }  # fmt: skip
    assert line["seconds"] == pytest.approx(node.kernel.now - 1.0, abs=0.1), (
        "since its process began"
    )
    assert not node.context().run.has(Failure, ID)
    node.repair(options=ON)
    call(node, "poststop")
    assert (len(read(node)), counted(node)) == (1, {"no_rmids": 1})


def test_it_has_a_line_where_no_event_can_be_read(node: Node) -> None:
    start(node)
    node.patch.setattr(system, "list_kernel_directory", fails(errno.EIO))
    end(node)
    ((reason, unknown),) = [(line["reason"], line["unknown"]) for line in read(node)]
    assert (reason, unknown) == ("no_rmids", [])


def test_a_killed_poststop_or_reconcile_leaves_one_line_by_id(node: Node) -> None:
    for number, stop in enumerate(stops(node.machine)):
        node.kernel.now += 100
        start(node, pid=number + 10)
        node.kernel.die(number + 10)
        with stop:
            call(node, "poststop")
        node.repair(options=ON)
        assert len({line["id"] for line in read(node)}) == number + 1


def test_no_line_tells_of_what_was_left_out_or_refused_or_never_ran(node: Node) -> None:
    start(node, "--namespace=other")
    end(node)
    start(node, "--strict")
    end(node, 7, "--strict")
    call(node, "createRuntime", pid=99)  # it has ended
    end(node, 99)
    assert (read(node), counted(node)) == ([], {})


@pytest.mark.parametrize("pid", [7, 8])
@pytest.mark.parametrize("succeeds", [True, False])
def test_a_container_that_starts_again_under_its_id_has_the_line_of_its_former_run(
    node: Node, succeeds: bool, pid: int
) -> None:
    """Podman's do, and its poststop may not have come; the number of its process may come again."""
    start(node, uid="")
    node.kernel.die(7)
    node.kernel.rmids = int(succeeds)
    node.spawn(pid, f"/machine.slice/libpod-{ID}.scope", born=300)
    start(node, pid=pid, uid="")
    assert [(line["key"], line["reason"]) for line in read(node)] == [(ID, "no_rmids")]
    end(node, pid)
    assert [line["reason"] for line in read(node)] == ["no_rmids", None if succeeds else "no_rmids"]
    assert counted(node) == {"no_rmids": 1 if succeeds else 2}


def test_a_line_that_cannot_be_written_keeps_the_record_until_it_can(node: Node) -> None:
    start(node)
    with node.patch.context() as broken:
        broken.setattr(ending, "append_lines", fails(errno.ENOSPC))
        end(node)
        (outcome,) = [
            outcome for outcome in node.repair(options=ON).outcomes if outcome.problem is not None
        ]
    assert outcome.action.verb == "forget"
    assert (read(node), node.context().run.has(Failure, ID)) == ([], True)
    node.repair(options=ON)
    assert [line["reason"] for line in read(node)] == ["no_rmids"]


def test_events_are_none_while_resctrl_is_not_mounted(node: Node) -> None:
    node.kernel.unmount()
    start(node)
    end(node)
    assert [(line["unknown"], line["reason"]) for line in read(node)] == [([], "not_mounted")]


# --- Who joins late


def let_in(node: Node) -> None:
    node.kernel.rmids = 8
    node.kernel.tasks[7].user_ticks = 1200
    assert node.verbs(options=ON) == ["retry"]


@pytest.mark.parametrize("is_first", [True, False], ids=["the first of its key", "beside another"])
def test_a_container_that_reconcile_lets_in_has_a_part_unknown(node: Node, is_first: bool) -> None:
    """It had used 12 CPU seconds, and only they said so: its line looked whole."""
    start(node)
    if not is_first:
        node.kernel.rmids = 1
        node.start(OTHER, 8, **ON)
    let_in(node)
    use(node, 5)
    node.stop(ID, 7, **ON)
    if not is_first:
        node.stop(OTHER, 8, **ON)
    assert [(line["use"], line["unknown"], line["reason"]) for line in read(node)] == [
        ({"core_energy": 2.0}, ALL, None)
    ]
    assert counted(node) == {}


def test_the_next_run_of_a_key_that_was_let_in_late_is_whole(node: Node) -> None:
    start(node)
    let_in(node)
    node.stop(ID, 7, **ON)
    node.start(OTHER, 8, **ON)
    use(node, 5)
    node.stop(OTHER, 8, **ON)
    lines: list[dict[str, Any]] = read(node)
    assert [line["unknown"] for line in lines] == [ALL, []]


@pytest.mark.parametrize("who", ["it", "its child", "none"])
def test_a_process_that_has_run_before_assign_has_a_part_unknown(node: Node, who: str) -> None:
    node.kernel.rmids = 8
    node.spawn(7, "/user.slice")
    node.kernel.fork(7, 9)
    if who != "none":
        node.kernel.tasks[7 if who == "it" else 9].user_ticks = 100
    jobs.assign(node.context(**ON), "nightly", {7: ""}, {})
    node.kernel.tasks[7].user_ticks = 900
    jobs.assign(node.context(**ON), "nightly", {7: ""}, {})  # it is a member
    jobs.release(node.context(**ON), "nightly")
    assert [line["unknown"] for line in read(node)] == [[] if who == "none" else ALL]


def test_joins_of_jobs_are_counted_by_result(node: Node) -> None:
    for pid, rmids in ((7, 0), (8, 8), (9, 8)):
        node.spawn(pid, "/user.slice")
        node.kernel.rmids = rmids
        found = jobs.find_processes([pid])
        with (
            contextlib.suppress(HookError),
            jobs.open_node("assign", node.options(), "nightly", found) as context,
        ):
            jobs.assign(context, "nightly", {pid: ""}, {}, found)
    runs = take_snapshot(node.options()).runs
    assert (runs["job", "monitored"], runs["job", "failed"]) == (2, 1)
