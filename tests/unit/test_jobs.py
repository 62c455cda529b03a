# SPDX-License-Identifier: Apache-2.0
"""Jobs on a simulated node: which keys and processes may join,
and that a call puts in all of them or none.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from hook import context as contexts
from hook import ending, entry, jobs, reclaim, refusals, report, store, system
from hook.context import read_container
from hook.create import create_runtime
from hook.errors import HookError, Reason
from hook.jobs import wait
from hook.models import Failure, Index, Member, Options, State
from hook.node import command
from hook.node.processes import Processes
from hook.reconcile import act, diagnose
from hook.reconcile.run import end_all_keys
from hook.reconcile.survey import Survey
from hook.report import make_failure, write_record
from hook.show.findings import name_failed
from hook.show.snapshot import take_snapshot
from hook.store import LockedKey
from hook.words import explain
from tests.simulator.kernel import RESCTRL
from tests.simulator.machine import RUN
from tests.unit.simulated import GROUP, ID, OTHER, UID, Node, cgroup_of, fails, node
from tests.unit.stops import KilledHere

if TYPE_CHECKING:
    from hook.context import Context

__all__ = ["node"]  # fixture

STAT = "9 (kworker/0:1) S 2 0 0 0 -1 69238880 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0"


def expect_refusal(node: Node, key: str | None, *pids: int) -> HookError:
    with pytest.raises(HookError) as caught:
        jobs.assign(node.context(), key, dict.fromkeys(pids, ""))
    return caught.value


@pytest.mark.parametrize(
    "key",
    [
        "",
        ".",
        "..",
        "/",
        "a/b",
        "../a",
        "--force",
        "-a",
        "a b",
        "a\n",
        "a\0",
        "a@1-2",
        "\u00e9",
        "x" * 65,
        UID,
        UID.upper(),
        UID.replace("-", ""),
        ID,
        ID.upper(),
    ],
)
def test_key_that_is_none_or_may_be_of_a_pod_or_container_is_refused(node: Node, key: str) -> None:
    node.spawn(7, "/user.slice")
    assert expect_refusal(node, key, 7).reason == Reason.BAD_KEY
    assert (node.groups(), node.files()) == ({}, set())


@pytest.mark.parametrize("key", ["a", "nightly-17", "A_b.c+d,e", "x" * 64, "job-1-2"])
def test_key_of_a_job(node: Node, key: str) -> None:
    node.spawn(7, "/user.slice")
    assert jobs.assign(node.context(), key, {7: ""}) == key
    assert node.groups() == {f"oci-{key}": {7}}
    assert node.state(key).kind == "job"
    node.assert_settled()


def test_key_and_id_of_a_container_on_record_are_refused_with_what_failed(node: Node) -> None:
    node.spawn(8, "/user.slice")
    node.start("web", uid=None, cgroup="/web")
    node.start("cache", 9, UID)
    node.put(
        "unmonitored/broken.json",
        '{"version": 1, "container": "broken", "stage": "s", "reason": "r", "problem": "p"}',
    )
    groups = node.groups()
    for key in ("web", "cache", "broken"):
        assert expect_refusal(node, key, 8).reason == Reason.BAD_KEY
    with pytest.raises(HookError, match="other kind"):
        jobs.release(node.context(), "web")
    assert node.groups() == groups


def test_container_does_not_join_a_job(node: Node) -> None:
    node.spawn(7, "/user.slice")
    node.spawn(8, "/web")
    jobs.assign(node.context(), "web", {7: ""})
    with pytest.raises(HookError, match="other kind"):
        create_runtime(node.context(), read_container("web", 8, "/nowhere", {}))
    assert (node.groups(), node.members("web")) == ({"oci-web": {7}}, {"job-7-100": 7})


# --- Labels

ALICE = {"user": "alice", "project": "x y"}


def test_labels_are_those_of_the_call_that_begins_a_run(node: Node) -> None:
    """A later call gives some of them, or none.

    One of other labels is refused, also for a process of the job.
    """
    for pid in (7, 8, 9):
        node.spawn(pid, "/user.slice")
    jobs.assign(node.context(), "a", {7: ""}, ALICE)
    jobs.assign(node.context(), "a", {8: ""})
    jobs.assign(node.context(), "a", {8: ""}, {"user": "alice"})
    before = node.state("a")
    assert (before.job_labels, len(before.members)) == (ALICE, 2)
    for labels in ({"user": "bob"}, {**ALICE, "task": "1"}, {"task": "1"}):
        for pid in (7, 9):
            with pytest.raises(HookError) as caught:
                jobs.assign(node.context(), "a", {pid: ""}, labels)
            assert caught.value.reason == Reason.BAD_KEY
            assert "labels user=alice, project=x y, not" in str(explain(caught.value))
    assert (node.state("a"), node.groups()) == (before, {"oci-a": {7, 8}})
    node.assert_settled()


@pytest.mark.parametrize("ttl", [0, 300])
def test_next_run_of_a_job_has_the_labels_of_its_first_call(node: Node, ttl: int) -> None:
    node.spawn(7, "/user.slice")
    for labels in (ALICE, {"user": "bob"}, {}):
        jobs.assign(node.context(), "a", {7: ""}, labels)
        assert node.state("a").job_labels == labels
        jobs.release(node.context(snapshot_ttl=ttl), "a")


def test_of_two_calls_with_other_labels_that_begin_a_run_one_is_refused(node: Node) -> None:
    """The second one saw no job yet: the lock of the key decides."""
    for pid in (7, 8):
        node.spawn(pid, "/user.slice")
    jobs.assign(node.context(), "a", {7: ""}, ALICE)
    other = read_container("job-8-100", 8, "", {}, [])
    other.job_labels = {"user": "bob"}
    with pytest.raises(HookError, match="other labels"):
        create_runtime(node.context(), other, ("a", "job"))
    assert (node.state("a").job_labels, node.groups()) == (ALICE, {"oci-a": {7}})


@pytest.mark.parametrize("is_left", [False, True])
def test_run_of_other_labels_ends_the_one_before_unless_a_process_of_that_lives(
    node: Node, *, is_left: bool
) -> None:
    """It was not released, and reconcile has not come by since its member died."""
    for pid in (7, 9):
        node.spawn(pid, "/user.slice")
    jobs.assign(node.context(), "a", {7: ""}, ALICE)
    node.kernel.fork(7, 8).parent = 1
    node.kernel.die(7)
    if is_left:
        with pytest.raises(HookError, match="other labels") as caught:
            jobs.assign(node.context(), "a", {9: ""}, {"user": "bob"})
        assert (caught.value.reason, node.state("a").job_labels) == (Reason.BAD_KEY, ALICE)
        assert node.groups() == {"oci-a": {8}}
    else:
        node.kernel.die(8)
        jobs.assign(node.context(), "a", {9: ""}, {"user": "bob"})
        assert (node.state("a").job_labels, node.groups()) == ({"user": "bob"}, {"oci-a": {9}})
        assert node.state("a").members.keys() == {"job-9-100"}
        node.assert_settled()


def test_labels_of_a_job_that_could_not_join_are_those_of_its_retry(node: Node) -> None:
    node.spawn(7, "/user.slice")
    process = read_container("job-7-100", 7, "", {}, [])
    process.job_labels = ALICE
    failure = make_failure(HookError(Reason.NO_RMIDS, "no RMIDs"), "assign", process, ("a", "job"))
    write_record(node.context(), failure)
    assert "retry" in node.verbs()
    assert (node.state("a").job_labels, node.groups()) == (ALICE, {"oci-a": {7}})


# --- Processes that cannot join


def end(node: Node) -> None:
    node.kernel.die(9)


def become_zombie(node: Node) -> None:
    node.kernel.tasks[9].state = "Z"


def become_kernel_thread(node: Node) -> None:
    node.kernel.files["/proc/9/stat"] = f"{STAT}\n".encode()


def become_thread(node: Node) -> None:
    node.kernel.files["/proc/9/status"] = b"Name:\tx\nTgid:\t8\n"


def change_class(node: Node) -> None:
    node.kernel.move(9, node.kernel.add_class("gold"))


def be_taken(node: Node) -> None:
    node.kernel.move(9, node.make_group("theirs"))


def be_container(node: Node) -> None:
    node.start(ID, 9)


def be_child_of_container(node: Node) -> None:
    node.start(ID, 5)
    node.kernel.tasks[9].parent = 5


def be_job(node: Node) -> None:
    jobs.assign(node.context(), "other", {9: ""})


def be_left_by_job(node: Node) -> None:
    node.spawn(5, "/user.slice")
    jobs.assign(node.context(), "other", {5: ""})
    node.kernel.move(9, f"{RESCTRL}/mon_groups/oci-other")


@pytest.mark.parametrize("shows_groups", [True, False])
@pytest.mark.parametrize(
    ("happens", "reason", "words"),
    [
        (end, Reason.TASK_GONE, "no process 9"),
        (become_zombie, Reason.TASK_GONE, "zombie"),
        (become_kernel_thread, Reason.USAGE, "9 is a kernel thread"),
        (become_thread, Reason.USAGE, "thread of process 8"),
        (change_class, Reason.NO_CTRL_GROUP, "ctrl_group gold"),
        (be_taken, Reason.NO_CTRL_GROUP, "mon_groups/theirs"),
        (be_container, Reason.USAGE, ID),
        (be_child_of_container, Reason.USAGE, ID),
        (be_job, Reason.USAGE, "other"),
        (be_left_by_job, Reason.USAGE, "oci-other"),
    ],
)
def test_process_that_cannot_join_is_named_and_the_others_do_not_join_either(
    node: Node, happens: Callable[[Node], None], reason: str, words: str, *, shows_groups: bool
) -> None:
    node.kernel.shows_groups = shows_groups
    node.spawn(7, "/user.slice")
    node.spawn(9, "/user.slice")
    happens(node)
    groups, files = node.groups(), node.files()
    error = expect_refusal(node, "a", 7, 9)
    assert (error.reason, "9" in error.kind, words in error.kind) == (reason, True, True)
    assert (node.groups(), node.files()) == (groups, files)


def test_first_process_is_refused(node: Node) -> None:
    node.spawn(1, "/init.scope")
    assert expect_refusal(node, "a", 1).reason == Reason.USAGE


@pytest.mark.parametrize("kind", ["pid", "time"])
@pytest.mark.parametrize("verb", ["run", "assign", "release"])
def test_outside_of_the_hosts_namespaces_nothing_joins_ends_or_is_recorded(
    node: Node, verb: str, kind: str
) -> None:
    """A pid there is another process's here, and a start time is another one."""
    node.spawn(7, "/user.slice")
    setattr(node.kernel, f"{kind}_namespace", f"{kind}:[4026532000]")
    found = jobs.find_processes([7])
    with (
        pytest.raises(HookError, match="pid and time namespace"),
        jobs.open_node(verb, node.options(), "a", found),
    ):
        pass
    assert node.failures() == {}


@pytest.mark.parametrize("verb", ["run", "assign", "release"])
def test_who_is_not_root_reads_that_root_is_needed(node: Node, verb: str) -> None:
    node.patch.setattr(system, "user_id", lambda: 1000)
    found = jobs.find_processes([7])
    with (
        pytest.raises(HookError, match=f"{verb} needs root"),
        jobs.open_node(verb, node.options(), "a", found),
    ):
        pass


def test_job_is_in_the_class_of_its_first_process(node: Node) -> None:
    gold = node.kernel.add_class("gold")
    node.kernel.move(node.spawn(7, "/user.slice").pid, gold)
    node.kernel.move(node.spawn(8, "/user.slice").pid, gold)
    node.spawn(9, "/user.slice")
    jobs.assign(node.context(), "a", {7: ""})
    jobs.assign(node.context(), "a", {8: ""})
    assert node.groups() == {"gold/oci-a": {7, 8}}
    assert expect_refusal(node, "a", 9).reason == Reason.NO_CTRL_GROUP


# --- Failures: the traces, and another try


def unmount(node: Node) -> Callable[[], object]:
    node.kernel.unmount()
    return node.kernel.mount


def use_up_rmids(node: Node) -> Callable[[], object]:
    rmids, node.kernel.rmids = node.kernel.rmids, 0
    return lambda: setattr(node.kernel, "rmids", rmids)


def hold_lock(node: Node) -> Callable[[], object]:
    lock = node.context().run.lock("a", 0.0)
    return lambda: lock.__exit__(None)


def lose_process(node: Node) -> Callable[[], object]:
    node.kernel.die(9)
    return lambda: None


def refuse(node: Node) -> Callable[[], object]:
    mkdir = node.kernel.mkdir
    node.patch.setattr(node.kernel, "mkdir", fails(errno.EROFS))
    return lambda: node.patch.setattr(node.kernel, "mkdir", mkdir)


def read_failures(node: Node) -> dict[str, Failure]:
    run_dir = node.context().run
    failures = {
        name: run_dir.glance(Failure, name) for name in store.list_records(run_dir, Failure)
    }
    return {name: failure for name, failure in failures.items() if failure is not None}


def assign(node: Node, key: str | None, *pids: int, **options: Any) -> Exception | None:  # noqa: ANN401
    """`assign` as the command does it; returns its failure."""
    try:
        found = jobs.find_processes(pids, node.options(**options).history)
        with jobs.open_node("assign", node.options(**options), key, found) as context:
            jobs.assign(context, key, dict.fromkeys(pids, ""), found=found)
    except (HookError, OSError) as error:
        return error
    return None


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(report, "send_to_syslog", lines.append)
    return lines


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (unmount, Reason.NOT_MOUNTED),
        (use_up_rmids, Reason.NO_RMIDS),
        (hold_lock, Reason.LOCK_TIMEOUT),
        (refuse, Reason.DENIED),
        (lose_process, Reason.TASK_GONE),
    ],
)
def test_failed_assign_is_logged_and_recorded_and_reconcile_lets_the_process_join(
    node: Node, log: list[str], happens: Callable[[Node], Callable[[], object]], reason: str
) -> None:
    """With its children, and in the history of its own options;
    the other processes of the call have failed, too.
    """
    for pid in (7, 8, 9):
        node.spawn(pid, "/user.slice")
    node.kernel.fork(7, 70)
    mend = happens(node)
    error = assign(node, "a", 7, 8, 9, lock_timeout=0.0, history="/var/log/jobs.jsonl")
    assert isinstance(error, HookError)
    assert (error.reason, [line.startswith(f"assign of a: {reason}: ") for line in log]) == (
        reason,
        [True],
    )
    failures = read_failures(node)
    assert failures.keys() == {f"job-{pid}-100" for pid in (7, 8, 9) if pid in node.kernel.tasks}
    known = {
        (
            failure.stage,
            failure.reason,
            failure.key,
            failure.kind,
            failure.history_file,
            failure.monitored,
        )
        for failure in failures.values()
    }
    assert known == {("assign", reason, "a", "job", "/var/log/jobs.jsonl", False)}
    assert (node.groups(), node.find_state("a")) == ({}, None)
    assert "a (job-7-100)" in map(name_failed, take_snapshot(node.options()).failures)
    mend()
    assert "retry" in node.verbs()
    assert node.groups() == {"oci-a": {7, 70, 8} | {9} & node.kernel.tasks.keys()}
    assert (node.state("a").kind, node.state("a").history_file, node.failures()) == (
        "job",
        "/var/log/jobs.jsonl",
        {},
    )
    node.assert_settled()


def test_failure_of_a_job_that_lasts_is_told_once_and_stays_on_record(node: Node) -> None:
    use_up_rmids(node)
    node.spawn(7, "/user.slice")
    assign(node, "a", 7)
    (done,) = node.repair().outcomes
    assert (done.action.verb, str(done.action).startswith("retry a (job-7-100)")) == ("retry", True)
    assert done.problem is not None
    (failure,) = read_failures(node).values()
    assert (failure.stage, failure.reason, failure.key, failure.kind) == (
        "reconcile",
        Reason.NO_RMIDS,
        "a",
        "job",
    )
    node.kernel.die(7)
    assert node.verbs() == ["forget"]
    assert node.files() == set()


def test_bad_key_is_on_record_without_the_key_and_not_tried_again(
    node: Node, log: list[str]
) -> None:
    node.spawn(7, "/user.slice")
    for key in ("../x", UID):
        assign(node, key, 7)
        (failure,) = read_failures(node).values()
        assert (failure.reason, failure.key) == (Reason.BAD_KEY, None)
        assert str(log.pop()).startswith(f"assign of {key}: bad_key")
    assert node.verbs() == []
    node.kernel.die(7)
    assert node.verbs() == ["forget"]


@pytest.mark.parametrize("happens", [be_container, be_child_of_container, be_job, be_left_by_job])
def test_process_that_is_monitored_is_on_no_record_as_if_it_were_not(
    node: Node, happens: Callable[[Node], None], log: list[str]
) -> None:
    node.spawn(9, "/user.slice")
    happens(node)
    assert assign(node, "a", 9) is not None
    assert (node.failures(), len(log)) == ({}, 1)


def test_process_on_record_as_failed_joins_and_the_record_goes_but_not_that_of_others(
    node: Node,
) -> None:
    rmids = use_up_rmids(node)
    for pid in (7, 8):
        node.spawn(pid, "/user.slice")
        assign(node, "a", pid)
    rmids()
    assert assign(node, "b", 7) is None
    assert (node.groups(), {*node.failures()}) == ({"oci-b": {7}}, {"job-8-100"})
    assert assign(node, "a", 8) is None
    assert node.failures() == {}


def test_member_whose_failure_record_was_left_is_not_tried_again(node: Node) -> None:
    """`assign` was killed before it removed the record of an earlier try, for another job."""
    rmids = use_up_rmids(node)
    node.spawn(7, "/user.slice")
    assign(node, "a", 7)
    text = node.machine.files()[f"{RUN}/unmonitored/job-7-100.json"]
    assert isinstance(text, bytes)
    rmids()
    assign(node, "b", 7)
    node.put("unmonitored/job-7-100.json", text.decode())
    assert node.verbs() == ["forget"]
    assert node.groups() == {"oci-b": {7}}


def test_try_that_was_killed_without_an_rmid_still_has_its_failure_on_record_until_one_is_free(
    node: Node,
) -> None:
    """The process is a member by then, of a group that cannot be made."""
    rmids = use_up_rmids(node)
    node.spawn(7, "/user.slice")
    assign(node, "a", 7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reclaim, "undo", be_killed)
        with pytest.raises(KilledHere):
            node.repair()
    node.repair()
    assert (node.groups(), node.failures()) == ({}, {"job-7-100": Reason.NO_RMIDS})
    rmids()
    node.repair()
    assert (node.groups(), node.failures()) == ({"oci-a": {7}}, {})


def test_failure_of_a_member_whose_group_cannot_be_looked_at_stays_and_stops_nothing(
    node: Node,
) -> None:
    rmids = use_up_rmids(node)
    node.spawn(7, "/user.slice")
    assign(node, "a", 7)
    text = node.machine.files()[f"{RUN}/unmonitored/job-7-100.json"]
    assert isinstance(text, bytes)
    rmids()
    assign(node, "a", 7)
    node.put("unmonitored/job-7-100.json", text.decode())
    survey = Survey(node.context())
    node.patch.setattr(survey.context.resctrl, "exists", fails(errno.EIO))
    (action,) = diagnose.diagnose_failure(survey, "job-7-100")
    assert action.verb == "retry"
    node.repair()
    assert (node.groups(), node.failures()) == ({"oci-a": {7}}, {})


def be_killed(*_: object) -> None:
    raise KilledHere


def test_process_that_may_not_join_by_now_does_not_join_at_another_try(node: Node) -> None:
    rmids = use_up_rmids(node)
    node.spawn(9, "/user.slice")
    assign(node, "a", 9)
    rmids()
    be_child_of_container(node)
    node.repair()
    assert node.groups() == {f"oci-{UID}": {5, 9}}
    assert node.failures() == {"job-9-100": Reason.USAGE}
    assert node.verbs() == []


def test_release_forgets_the_failures_of_its_key_alone_so_that_no_process_joins_later(
    node: Node,
) -> None:
    node.start(ID, 10)
    rmids = use_up_rmids(node)
    for pid, key in ((7, "a"), (8, "b"), (9, "a")):
        node.spawn(pid, "/user.slice")
        assign(node, key, pid)
    jobs.release(node.context(), "a")
    assert node.failures().keys() == {"job-8-100"}
    rmids()
    node.repair()
    assert node.groups() == {"oci-b": {8}, f"oci-{UID}": {10}}


def test_lock_that_is_not_free_in_time_is_in_words_for_jobs(node: Node) -> None:
    node.spawn(7, "/user.slice")
    jobs.assign(node.context(), "a", {7: ""})
    hold_lock(node)
    with (
        pytest.raises(HookError) as caught,
        jobs.open_node("release", node.options(lock_timeout=0.0), "a") as context,
    ):
        jobs.release(context, "a")
    assert "another run, assign or release of this job holds its lock" in str(explain(caught.value))


# --- One process, one job


def test_of_two_keys_that_want_a_process_at_once_one_gets_it(node: Node) -> None:
    """Another `assign` comes when all checks are done, just before the process is on record."""
    node.spawn(7, "/user.slice")
    look = act.check_job_processes
    others: list[object] = []

    def come_between(*given: Any) -> str:  # noqa: ANN401
        place = look(*given)
        if not others:
            others.append(None)
            others.append(assign(node, "b", 7))
        return place

    node.patch.setattr(jobs, "check_job_processes", come_between)
    error = expect_refusal(node, "a", 7)
    assert (others, error.reason) == ([None, None], Reason.USAGE)
    assert "a member of key b" in str(explain(error))
    assert node.groups() == {"oci-b": {7}}
    node.assert_settled()


def test_check_of_many_processes_looks_at_each_member_of_other_keys_once(node: Node) -> None:
    for pid, container in ((7, ID), (8, OTHER)):
        node.start(container, pid)
    pids = range(20, 25)
    for pid in pids:
        node.spawn(pid, "/user.slice")
    survey = Survey(node.context())
    find_pids, looks = Processes.find_pids, list[Member]()

    def count(seen: Processes, member: Member) -> set[int]:
        looks.append(member)
        return find_pids(seen, member)

    node.patch.setattr(Processes, "find_pids", count)
    joining = [read_container(f"job-{pid}-100", pid, "", {}, []) for pid in pids]
    assert act.check_job_processes(survey, "a", joining) == "/"
    assert len(looks) == 2


@pytest.mark.parametrize("shows_groups", [True, False])
@pytest.mark.parametrize("is_first", ["assign", "adopt"])
def test_what_has_joined_a_key_since_the_survey_joins_no_second_one(
    node: Node, is_first: str, *, shows_groups: bool
) -> None:
    """Of `assign` and `reconcile --adopt` each has surveyed the node before the
    other one puts the process in.
    """
    node.kernel.shows_groups = shows_groups
    node.spawn(9)
    state = write_bundle(node, 9)
    ways: dict[str, Callable[[], object]] = {
        "assign": lambda: assign(node, "a", 9),
        "adopt": lambda: adopt_it(node, state),
    }
    first = ways.pop(is_first)
    lock, waiting = act.lock_process, [first]

    def come_between(context: Context, pid: int, born: int | None) -> LockedKey:
        while waiting:
            waiting.pop()()
        return lock(context, pid, born)

    node.patch.setattr(act, "lock_process", come_between)
    for second in ways.values():
        second()
    key, other = ("a", UID) if is_first == "assign" else (UID, "a")
    assert (node.groups(), node.find_state(other)) == ({f"oci-{key}": {9}}, None)
    node.assert_settled()


BUNDLE = f"/b/{ID}"


def write_bundle(node: Node, pid: int) -> dict[str, Any]:
    """Write the bundle of a container of a pod; return its state, as its runtime has it."""
    said = {"io.container.manager": "cri-o", "io.kubernetes.pod.uid": UID}
    config = json.dumps({"annotations": said, "linux": {"cgroupsPath": cgroup_of()}})
    node.machine.add(f"{BUNDLE}/config.json", config.encode())
    return {
        "ociVersion": "1.0",
        "id": ID,
        "status": "running",
        "pid": pid,
        "bundle": BUNDLE,
        "annotations": said,
    }


def retry_it(node: Node, state: dict[str, Any]) -> None:
    """Reconcile, after its hook had failed."""
    if not node.failures():
        container = read_container(ID, state["pid"], BUNDLE, state["annotations"])
        failure = make_failure(
            HookError(Reason.NO_RMIDS, "no RMIDs"), "createRuntime", container, (UID, "pod")
        )
        write_record(node.context(), failure)
    node.repair()


def adopt_it(node: Node, state: dict[str, Any]) -> None:
    """Reconcile --adopt, after it never had a hook."""
    node.repair(asks=lambda _: ({ID: State.model_validate(state)}, {}))


def call_hook_again(node: Node, state: dict[str, Any]) -> None:
    call = contexts.make_call(
        "createRuntime", (node.options(), []), State.model_validate(state), state["annotations"]
    )
    entry.serve_call(call)


@pytest.mark.parametrize("shows_groups", [True, False])
@pytest.mark.parametrize("bring_in", [retry_it, adopt_it, call_hook_again])
@pytest.mark.parametrize("is_there", [True, False], ids=["in its group", "whose group is gone"])
def test_container_whose_init_is_of_a_job_joins_no_second_key_until_the_job_lets_it_go(
    node: Node,
    bring_in: Callable[[Node, dict[str, Any]], None],
    *,
    is_there: bool,
    shows_groups: bool,
) -> None:
    node.kernel.shows_groups = shows_groups
    node.spawn(9)
    state = write_bundle(node, 9)
    assert assign(node, "a", 9) is None
    if not is_there:
        node.remove_groups()
    bring_in(node, state)
    node.repair()
    # A hook looks where the kernel shows it.
    is_seen = bring_in is not call_hook_again or (is_there and shows_groups)
    key, other = ("a", UID) if is_seen else (UID, "a")
    assert (node.groups().get(f"oci-{key}"), node.groups().get(f"oci-{other}", set())) == (
        {9},
        set(),
    )
    assert node.failures() == ({ID: Reason.USAGE} if is_seen else {})
    bring_in(node, state)
    node.assert_settled()
    jobs.release(node.context(), "a")
    node.repair()
    assert (node.groups(), node.failures()) == ({GROUP: {9}}, {})
    node.assert_settled()


def test_process_that_two_keys_have_after_all_stays_in_the_one_whose_group_it_is_in(
    node: Node,
) -> None:
    """A hook and `assign` came at one moment."""
    node.spawn(8, "/user.slice")
    for pid, name, last in ((9, ID, "hook"), (10, OTHER, "job")):
        node.spawn(pid, cgroup_of(name))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(refusals, "_refuse_second_key", lambda *_: None)
            patch.setattr(jobs, "check_job_processes", lambda *_: "/")
            for joins in (last == "job", last == "hook"):
                _ = (
                    node.start(name, pid)
                    if joins
                    else jobs.assign(node.context(), "a", {pid: "", 8: ""})
                )
    assert ({*node.members("a")}, {*node.members()}) == (
        {"job-9-100", "job-10-100", "job-8-100"},
        {ID, OTHER},
    )
    node.repair()
    assert node.groups() == {GROUP: {9}, "oci-a": {8, 10}}
    assert ({*node.members("a")}, {*node.members()}) == ({"job-10-100", "job-8-100"}, {ID})
    node.assert_settled()


def take_the_number(node: Node) -> None:
    node.kernel.die(9)
    node.spawn(9, "/user.slice", born=300)


@pytest.mark.parametrize("place", ["Survey", "lock_joining"])
def test_failed_assign_records_the_process_that_was_there_at_its_start(
    node: Node, place: str
) -> None:
    """It has ended while the call waited, and another one has its number:
    that one has asked for nothing.
    """
    node.spawn(9, "/user.slice")
    go_on = getattr(jobs, place)

    def wait(*given: Any, **named: Any) -> Any:  # noqa: ANN401
        take_the_number(node)
        if place == "lock_joining":
            raise HookError(Reason.LOCK_TIMEOUT, "job locked", key="a")
        return go_on(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, place, wait)
        assert isinstance(assign(node, "a", 9), HookError)
    assert node.failures().keys() == {"job-9-100"}
    node.repair()
    assert (node.groups(), node.failures()) == ({}, {})


def test_index_that_a_killed_assign_left_keeps_no_process_from_another_job(node: Node) -> None:
    node.spawn(7, "/user.slice")
    node.put("members/job-7-100.json", '{"version": 1, "key": "b"}')
    assert assign(node, "a", 7) is None
    assert node.groups() == {"oci-a": {7}}
    node.assert_settled()


# --- All or none


@pytest.mark.parametrize("has_former", [True, False])
def test_process_that_ends_before_its_turn_takes_the_others_out_again(
    node: Node, *, has_former: bool
) -> None:
    for pid in (6, 7, 9):
        node.spawn(pid, "/user.slice")
    node.kernel.fork(7, 70)
    if has_former:
        jobs.assign(node.context(), "a", {6: ""})
    before, members = node.groups(), node.members("a") if has_former else {}
    put = node.kernel.put

    def end_before_its_turn(path: str, data: bytes) -> None:
        if data.strip() == b"9":
            node.kernel.die(9)
        put(path, data)

    node.kernel.put = end_before_its_turn  # type: ignore[method-assign]
    assert expect_refusal(node, "a", 7, 9).reason == Reason.TASK_GONE
    assert node.groups() == before
    assert node.kernel.group_of(7) == node.kernel.group_of(70) == RESCTRL
    state = node.find_state("a")
    assert (state.members.keys() if state is not None else set()) == members.keys()
    node.assert_settled()


def descend_from_a_member(node: Node) -> None:
    jobs.assign(node.context(), "a", {6: ""})
    node.kernel.fork(6, 7)


def be_left_behind(node: Node) -> None:
    descend_from_a_member(node)
    node.kernel.die(6)
    node.repair()


@pytest.mark.parametrize("happens", [descend_from_a_member, be_left_behind])
def test_what_was_in_the_group_before_a_failed_call_stays_there_and_what_came_by_it_leaves(
    node: Node, happens: Callable[[Node], None]
) -> None:
    """Of both what is forked during the call, too."""
    for pid in (6, 8, 9):
        node.spawn(pid, "/user.slice")
    happens(node)
    node.kernel.add_thread(7, 71, f"{RESCTRL}/mon_groups/oci-a")
    node.kernel.add_thread(7, 72, RESCTRL)
    before = node.find_state("a")
    now, put = int(node.kernel.now * system.TICKS) + 1, node.kernel.put

    def fork_and_fail(path: str, data: bytes) -> None:
        if data.strip() == b"9":
            for pid in (7, 8):
                node.kernel.fork(pid, 10 * pid, born=now)
            node.kernel.die(9)
        put(path, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.kernel, "put", fork_and_fail)
        assert expect_refusal(node, "a", 7, 8, 9).reason == Reason.TASK_GONE
    assert node.groups() == {"oci-a": {6, 7, 70, 71} & {*node.kernel.tasks, 71}}
    assert node.find_state("a") == before
    assert not {"job-7-100", "job-7-200", "job-8-100"} & {
        *store.list_records(node.context().run, Index)
    }


def test_failure_that_was_on_record_before_a_failed_call_stays(node: Node) -> None:
    rmids = use_up_rmids(node)
    for pid in (7, 9):
        node.spawn(pid, "/user.slice")
    assign(node, "a", 7)
    rmids()
    lock, others = act.lock_process, [9]

    def come_between(context: Context, pid: int, born: int | None) -> LockedKey:
        while pid in others:
            others.remove(pid)
            assert assign(node, "b", pid) is None
        return lock(context, pid, born)

    node.patch.setattr(act, "lock_process", come_between)
    error = assign(node, "a", 7, 9)
    assert isinstance(error, HookError)
    assert "process 9 is job-9-100, a member of key b" in str(explain(error))
    assert (node.groups(), node.failures()) == ({"oci-b": {9}}, {"job-7-100": Reason.NO_RMIDS})


def test_threads_and_children_come_along(node: Node) -> None:
    node.spawn(7, "/user.slice")
    node.kernel.add_thread(7, 71)
    node.kernel.fork(7, 8)
    jobs.assign(node.context(), "a", {7: ""})
    assert node.groups() == {"oci-a": {7, 71, 8}}
    node.assert_settled()


def test_second_call_changes_nothing(node: Node) -> None:
    node.spawn(7, "/user.slice")
    jobs.assign(node.context(), "a", {7: ""})
    state = node.state("a")
    jobs.assign(node.context(), "a", {7: ""})
    assert node.state("a") == state


# --- What the kernel shows outranks ancestry


def be_job_b(node: Node) -> str:
    node.spawn(8, "/user.slice")
    jobs.assign(node.context(), "b", {8: ""})
    return "oci-b"


def be_container_of_own_cgroup(node: Node) -> str:
    node.start(ID, 8)
    return f"oci-{UID}"


def be_container_of_shared_cgroup(node: Node) -> str:
    node.start("web", 8, None, cgroup="/user.slice")
    return "oci-web"


@pytest.mark.parametrize("shows_groups", [True, False])
@pytest.mark.parametrize("comes_first", [True, False])
@pytest.mark.parametrize(
    "become", [be_job_b, be_container_of_own_cgroup, be_container_of_shared_cgroup]
)
def test_what_a_job_left_behind_stays_in_its_group_whatever_parent_it_gets(
    node: Node, become: Callable[[Node], str], *, comes_first: bool, shows_groups: bool
) -> None:
    """A subreaper of another key took it along, with its threads and children."""
    node.kernel.shows_groups = shows_groups
    node.spawn(7, "/user.slice")
    jobs.assign(node.context(), "a", {7: ""})
    node.kernel.fork(7, 9)
    node.kernel.add_thread(9, 91)
    node.kernel.fork(9, 10)
    group = become(node) if comes_first else ""
    node.kernel.die(7)
    node.kernel.tasks[9].parent = 8
    group = group or become(node)
    node.repair()
    assert node.groups() == {"oci-a": {9, 91, 10}, group: {8}}
    assert (
        expect_refusal(node, "c", 9).kind
        == f"process 9 is in {RESCTRL}/mon_groups/oci-a, the group of another key"
    )
    jobs.assign(node.context(), "a", {9: ""})
    assert node.members("a") == {"job-9-200": 9}
    node.assert_settled()


@pytest.mark.parametrize(
    "cgroup",
    [f"/machine.slice/libpod-{ID}.scope", "/user.slice"],
    ids=["in its own cgroup", "in a shared one"],
)
def test_container_that_a_job_starts_is_its_own_with_what_it_had_forked_before(
    node: Node, cgroup: str
) -> None:
    node.spawn(7, "/user.slice")
    jobs.assign(node.context(), "a", {7: ""})
    node.kernel.fork(7, 8).places = [f"0::{cgroup}"]
    node.kernel.fork(8, 9)
    node.start(ID, 8, None)
    assert node.verbs() == ["adopt"]
    assert node.groups() == {"oci-a": {7}, f"oci-{ID}": {8, 9}}
    node.assert_settled()


# --- The end


def test_release_ends_the_job_with_its_processes_and_a_second_one_finds_none(node: Node) -> None:
    node.spawn(7, "/user.slice")
    jobs.assign(node.context(), "a", {7: ""})
    assert jobs.release(node.context(), "a")
    assert (node.groups(), node.kernel.group_of(7)) == ({}, RESCTRL)
    assert node.state("a").completed_at is not None
    assert not jobs.release(node.context(), "a")
    assert not jobs.release(node.context(), "never")
    with pytest.raises(HookError, match="key of a job"):
        jobs.release(node.context(), "../a")


@pytest.mark.parametrize("is_recovering", [False, True])
def test_release_ends_a_job_at_once_with_what_outlived_its_processes(
    node: Node, *, is_recovering: bool
) -> None:
    node.spawn(7, "/user.slice")
    jobs.assign(node.context(), "a", {7: ""})
    node.spawn(8, "/user.slice", group="mon_groups/oci-a")
    if is_recovering:
        node.edit("groups/a.json", recovering=True, groups=[])
    assert jobs.release(node.context(), "a")
    assert (node.groups(), node.kernel.group_of(8)) == ({}, RESCTRL)
    node.assert_settled()


@pytest.mark.parametrize("history", ["", "/own.jsonl"])
def test_no_option_of_the_hooks_makes_a_job_linger_or_gives_it_a_history(
    node: Node, monkeypatch: pytest.MonkeyPatch, history: str
) -> None:
    """Reconcile has those of hooks.d."""
    lines: list[str] = []
    monkeypatch.setattr(ending, "append_lines", lambda path, _: lines.append(path))
    node.spawn(7, "/user.slice")
    assign(node, "a", 7, history=history)
    node.kernel.die(7)
    assert node.repair({"linger": 60, "history": "/of-containers.jsonl"}).failed == []
    assert (node.groups(), node.state("a").completed_at is not None) == ({}, True)
    assert lines == [history] * bool(history)


def test_reconcile_ends_a_job_when_its_processes_and_what_they_left_are_dead(node: Node) -> None:
    node.spawn(7, "/user.slice")
    jobs.assign(node.context(), None, {7: ""})
    node.kernel.fork(7, 8).parent = 1
    node.kernel.die(7)
    assert "drop" in node.verbs()
    assert node.groups() == {"oci-job-7-100": {8}}
    node.kernel.die(8)
    node.verbs()
    assert node.groups() == {}
    node.assert_settled()


def test_list_of_live_keys_is_about_jobs_too(node: Node) -> None:
    """One that it has stays without a live process; of another one also what failed is over."""
    for pid, key in ((7, "a"), (8, "b")):
        node.spawn(pid, "/user.slice")
        jobs.assign(node.context(), key, {pid: ""})
    use_up_rmids(node)
    for pid, key in ((9, "a"), (10, "c")):
        node.spawn(pid, "/user.slice")
        assign(node, key, pid)
    node.kernel.die(7)
    node.kernel.die(8)
    node.repair(live={"a"})
    assert (node.groups(), node.members("a")) == ({"oci-a": {9}}, {"job-7-100": 7, "job-9-100": 9})
    assert node.state("b").completed_at is not None
    assert node.failures() == {}


@pytest.mark.parametrize("lost", ["torn", "gone"])
def test_record_is_rebuilt_from_the_index(node: Node, lost: str) -> None:
    node.spawn(7, "/user.slice/session-3.scope")
    node.spawn(8, "/user.slice/session-3.scope")
    jobs.assign(node.context(), "session-3", {7: ""}, ALICE)
    member, joins = node.state("session-3").members, set[int]()
    if lost == "torn":
        node.put("groups/session-3.json", "{")
        assert expect_refusal(node, "session-3", 8).kind == "not rebuilt"
        assert isinstance(assign(node, "session-3", 8), HookError)
        joins = {8}
    else:
        node.remove("groups/session-3.json")
    assert "rebuild" in node.verbs()
    assert node.state("session-3").kind == "job"
    assert node.state("session-3").members.items() >= member.items()
    assert node.groups() == {"oci-session-3": {7, *joins}}
    assert node.state("session-3").job_labels == ALICE
    node.assert_settled()


def test_uninstall_ends_jobs(node: Node) -> None:
    node.spawn(7, "/user.slice")
    jobs.assign(node.context(), "a", {7: ""})
    node.start(OTHER, 9)
    assert end_all_keys(node.options()).unfinished == []
    assert node.groups() == {}


SLURMD = "/system.slice/slurmd.service"


@pytest.mark.parametrize(
    ("pids", "cgroup", "is_refused"),
    [
        ([7], SLURMD, True),  # $PPID in a prologue
        ([9, 7], SLURMD, True),
        ([8], SLURMD, False),  # what the service has forked for a step
        ([9], SLURMD, False),  # $MAINPID in ExecStartPost, which systemd starts
        ([7], "/system.slice/slurmd.scope", False),
    ],
)
def test_the_main_process_of_the_service_that_calls_is_refused(
    node: Node, monkeypatch: pytest.MonkeyPatch, pids: list[int], cgroup: str, *, is_refused: bool
) -> None:
    node.spawn(7, cgroup)
    node.spawn(8, cgroup, born=101).parent = 7
    node.spawn(9, "/system.slice/other.service")
    monkeypatch.setattr(os, "getppid", lambda: 8)
    problem = ""
    try:
        jobs.refuse_service(pids)
    except HookError as error:
        problem = str(explain(error))
    assert ("process 7 is the main process of slurmd.service" in problem) is is_refused, problem


# --- run


def test_process_of_a_command_that_cannot_be_started_is_in_no_group(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.spawn(7, "/user.slice")
    monkeypatch.setattr(os, "getpid", lambda: 7)
    monkeypatch.setattr(os, "umask", lambda _: 0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(system, "set_umask", lambda: None)
    states: list[object] = []
    find = jobs._find

    def execute(*_: object) -> None:
        states.extend((node.groups(), node.failures()))
        # asked once more, /proc would hide why it cannot start
        monkeypatch.setattr(jobs, "_find", fails(HookError(Reason.TASK_GONE, "gone")))
        fails(8)()

    monkeypatch.setattr(os, "execvp", execute)
    for rmids, then in ((8, [{"oci-a": {7}}, {}]), (0, [{}, {"job-7-100": Reason.NO_RMIDS}])):
        node.kernel.rmids = rmids
        monkeypatch.setattr(jobs, "_find", find)
        with pytest.raises(command.Unstartable) as caught:
            jobs.run(node.options(), "a", ["/bin/sh"], {})
        assert (caught.value.status, states, node.groups(), node.failures()) == (126, then, {}, {})
        states.clear()


def test_undo_that_fails_after_the_command_could_not_be_started_is_said(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another call holds the lock of the key just then."""
    lines: list[str] = []
    held: list[object] = []
    monkeypatch.setattr(report, "write_line", lambda line, **_: lines.append(line))
    node.spawn(7, "/user.slice")
    monkeypatch.setattr(os, "getpid", lambda: 7)
    monkeypatch.setattr(os, "umask", lambda _: 0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def execute(*_: object) -> None:
        held.append(hold_lock(node))
        fails(8)()

    monkeypatch.setattr(os, "execvp", execute)
    with pytest.raises(command.Unstartable):
        jobs.run(node.options(lock_timeout=0.0), "a", ["/bin/sh"], {})
    assert len(lines) == 1
    assert "timed out waiting for the lock of key a" in lines[0]


@pytest.mark.parametrize("error", [OSError(5, "of the disk"), ValueError("a defect")])
def test_no_failure_of_any_kind_stops_a_command(
    node: Node, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    executed: list[str] = []
    run: Callable[..., object] = jobs.run  # which returns here
    monkeypatch.setattr(os, "umask", lambda _: 0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(os, "execvp", lambda program, *_: executed.append(program))
    for place, name in (
        (jobs, "RunDir"),
        (jobs, "Survey"),
        (jobs, "create_runtime"),
        (jobs, "_bring_in"),
    ):
        monkeypatch.setattr(place, name, fails(error))
        run(node.options(), "a", ["/bin/sh"], {})
        with pytest.raises(type(error)):
            run(node.options(), "a", ["/bin/sh"], {}, is_strict=True)
    assert executed == ["/bin/sh"] * 4


def test_processes_that_have_nothing_to_do_with_the_one_that_joins_are_not_read(node: Node) -> None:
    """It costs the same on a node with thousands;
    also if another one of the call cannot join, and all is undone.
    """
    node.spawn(3, "/user.slice")
    node.spawn(7, "/user.slice").parent = 3
    node.spawn(9, "/user.slice")
    node.start("web", 5, uid=None, cgroup=f"/machine.slice/libpod-{ID}.scope")
    node.kernel.fork(7, 70)
    for pid in range(100, 110):
        node.spawn(pid, "/system.slice")
    read: list[str] = []
    look, put = node.kernel.look, node.kernel.put

    def refuse_last(path: str, data: bytes) -> None:
        if data.strip() == b"9":
            fails(errno.EIO)()
        put(path, data)

    def note(path: str) -> object:
        read.append(path)
        return look(path)

    node.patch.setattr(node.kernel, "look", note)
    node.patch.setattr(node.kernel, "put", refuse_last)
    with pytest.raises((HookError, OSError)):
        jobs.assign(node.context(), "a", {7: "", 9: ""})
    assert node.groups().keys() == {"oci-web"}
    jobs.assign(node.context(), "a", {7: ""})
    assert node.groups()["oci-a"] == {7, 70}
    assert not {int(path.split("/")[2]) for path in read if re.match("/proc/[0-9]", path)} & {
        *range(100, 110)
    }


# --- release of processes


def test_released_members_leave_alone_with_what_descends_from_them_and_the_last_one_ends_the_job(
    node: Node,
) -> None:
    for pid in (6, 7, 8):
        node.spawn(pid, "/user.slice")
    jobs.assign(node.context(), "a", {6: "", 7: "", 8: ""})
    node.kernel.add_thread(7, 71, f"{RESCTRL}/mon_groups/oci-a")
    node.kernel.fork(7, 70)
    node.kernel.fork(8, 80).parent = 1
    node.kernel.die(8)
    outcomes = {7: "failed", 8: "failed", 9: "failed"}
    assert jobs.release(node.context(), "a", outcomes)
    assert outcomes == {7: "released", 8: "released", 9: "failed"}
    assert (node.groups(), node.members("a")) == ({"oci-a": {6, 80}}, {"job-6-100": 6})
    assert node.kernel.group_of(7) == node.kernel.group_of(70) == RESCTRL
    node.assert_settled()
    assert jobs.release(node.context(), "a", {6: ""})
    assert node.groups() == {}
    node.assert_settled()
    assert not jobs.release(node.context(), "a", {6: ""})


def test_release_of_a_child_names_no_member_and_changes_nothing(node: Node) -> None:
    node.spawn(6, "/user.slice")
    node.spawn(7, "/user.slice")
    jobs.assign(node.context(), "a", {6: "", 7: ""})
    node.kernel.fork(7, 70)
    with pytest.raises(
        HookError, match="process 70 descends from job-7-100, a member of the job a"
    ) as caught:
        jobs.release(node.context(), "a", {6: "", 70: ""})
    assert (caught.value.reason, node.groups()) == (Reason.USAGE, {"oci-a": {6, 7, 70}})


@pytest.mark.parametrize("pids", [[8], [9], [8, 9], [9, 7, 8]])
def test_released_member_that_descends_from_another_one_is_refused_unless_that_leaves_too(
    node: Node, pids: list[int]
) -> None:
    """Else reconcile brings it in again. Of three generations, the second may be no member."""
    node.spawn(6, "/user.slice")
    node.spawn(7, "/user.slice")
    jobs.assign(node.context(), "a", {6: "", 7: ""})
    node.kernel.fork(7, 70)
    node.kernel.fork(70, 8, born=100)
    node.kernel.fork(8, 9, born=100)
    jobs.assign(node.context(), "a", {8: "", 9: ""})
    state, groups = node.state("a"), node.groups()
    problem = ""
    try:
        jobs.release(node.context(), "a", dict.fromkeys(pids, ""))
    except HookError as error:
        problem = str(explain(error))
    if 7 in pids:
        assert (problem, node.groups()) == ("", {"oci-a": {6}})
    else:
        assert (f"process {pids[0]} descends from job-7-100" in problem) or (
            pids == [9] and "job-8-100" in problem
        )
        assert (node.state("a"), node.groups()) == (state, groups)
    node.assert_settled()


def test_dead_member_is_released_though_a_descendant_of_another_one_has_its_number(
    node: Node,
) -> None:
    node.spawn(6, "/user.slice")
    node.spawn(7, "/user.slice")
    jobs.assign(node.context(), "a", {6: "", 7: ""})
    node.kernel.die(7)
    node.kernel.fork(6, 7)
    assert jobs.release(node.context(), "a", {7: ""})
    assert (node.groups(), node.members("a")) == ({"oci-a": {6, 7}}, {"job-6-100": 6})


def test_what_a_released_member_forks_at_that_moment_leaves_too(node: Node) -> None:
    node.spawn(6, "/user.slice")
    node.spawn(7, "/user.slice")
    jobs.assign(node.context(), "a", {6: "", 7: ""})
    put, forks = node.kernel.put, iter([70, 71])

    def fork_first(path: str, data: bytes) -> None:
        if (pid := next(forks, None)) is not None:
            node.kernel.fork(7, pid)
        put(path, data)

    node.kernel.put = fork_first  # type: ignore[method-assign]
    assert jobs.release(node.context(), "a", {7: ""})
    assert node.groups() == {"oci-a": {6}}


def test_release_of_a_process_forgets_that_it_failed_to_join(node: Node) -> None:
    node.spawn(7, "/user.slice")
    node.spawn(8, "/user.slice")
    jobs.assign(node.context(), "a", {7: ""})
    for pid in (8, 9):
        record = {
            "version": 1,
            "container": f"job-{pid}-100",
            "stage": "assign",
            "reason": "no_rmids",
            "problem": "p",
        }
        record |= {"key": "a", "kind": "job", "pid": pid, "starttime": 100}
        node.put(f"unmonitored/job-{pid}-100.json", json.dumps(record))
    assert jobs.release(node.context(), "a", {8: ""})
    assert node.failures().keys() == {"job-9-100"}


# --- run --wait, which tests/fuse/test_jobs.py is about


def test_without_another_process_the_command_runs_and_nothing_waits(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.getsignal(signal.SIGCHLD)
    monkeypatch.setattr(os, "fork", fails(errno.EAGAIN))
    assert wait.fork(Options()) is None
    assert (
        signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        signal.getsignal(signal.SIGCHLD),
    ) == before
    assert capfd.readouterr().err.count("nothing waits for the command") == 1
