# SPDX-License-Identifier: Apache-2.0
"""Jobs on a simulated node: which keys and processes may join, and that a call puts in all of them or none."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from hook import jobs, system
from hook.create import create_runtime
from hook.errors import HookError, Reason
from hook.identity import Container, Key
from hook.reconcile.run import end_all_keys
from hook.report import explain, make_failure, record
from tests.simulator.kernel import RESCTRL
from tests.unit.simulated import ID, OTHER, UID, Node, fails, node

__all__ = ["node"]  # fixture

STAT = "9 (kworker/0:1) S 2 0 0 0 -1 69238880 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0"


def refused(node: Node, key: str | None, *pids: int) -> HookError:
    with pytest.raises(HookError) as caught:
        jobs.assign(node.context(), key, [*pids])
    return caught.value


@pytest.mark.parametrize(
    "key",
    [
        *("", ".", "..", "/", "a/b", "../a", "--force", "-a", "a b", "a\n", "a\0", "a@1-2", "\u00e9", "x" * 65),
        *(UID, UID.upper(), UID.replace("-", ""), ID, ID.upper()),
    ],
)
def test_key_that_is_none_or_may_be_of_a_pod_or_container_is_refused(node: Node, key: str) -> None:
    node.spawn(7, "/user.slice")
    assert refused(node, key, 7).reason == Reason.BAD_KEY
    assert (node.groups(), node.files()) == ({}, set())


@pytest.mark.parametrize("key", ["a", "nightly-17", "A_b.c+d,e", "x" * 64, "job-1-2"])
def test_key_of_a_job(node: Node, key: str) -> None:
    node.spawn(7, "/user.slice")
    assert jobs.assign(node.context(), key, [7]) == key
    assert node.groups() == {f"oci-{key}": {7}}
    assert node.state(key).kind == "job"
    node.assert_settled()


def test_key_and_id_of_a_container_on_record_are_refused_with_what_failed(node: Node) -> None:
    node.spawn(8, "/user.slice")
    node.start("web", uid=None, cgroup="/web")
    node.start("cache", 9, UID)
    node.put(
        "unmonitored/broken.json", '{"version": 1, "container": "broken", "stage": "s", "reason": "r", "problem": "p"}'
    )
    groups = node.groups()
    for key in ("web", "cache", "broken"):
        assert refused(node, key, 8).reason == Reason.BAD_KEY
    with pytest.raises(HookError, match="other kind"):
        jobs.release(node.context(), "web")
    assert node.groups() == groups


def test_container_does_not_join_a_job(node: Node) -> None:
    node.spawn(7, "/user.slice")
    node.spawn(8, "/web")
    jobs.assign(node.context(), "web", [7])
    with pytest.raises(HookError, match="other kind"):
        create_runtime(node.context(), Container("web", 8, "/nowhere", {}))
    assert (node.groups(), node.members("web")) == ({"oci-web": {7}}, {"job-7-100": 7})


# --- Labels

ALICE = {"user": "alice", "project": "x y"}


def test_labels_are_those_of_the_call_that_begins_a_run(node: Node) -> None:
    """A later call gives some of them, or none. One of other labels is refused, also for a process of the job."""
    for pid in (7, 8, 9):
        node.spawn(pid, "/user.slice")
    jobs.assign(node.context(), "a", [7], ALICE)
    jobs.assign(node.context(), "a", [8])
    jobs.assign(node.context(), "a", [8], {"user": "alice"})
    before = node.state("a")
    assert (before.job_labels, len(before.members)) == (ALICE, 2)
    for labels in ({"user": "bob"}, {**ALICE, "task": "1"}, {"task": "1"}):
        for pid in (7, 9):
            with pytest.raises(HookError) as caught:
                jobs.assign(node.context(), "a", [pid], labels)
            assert caught.value.reason == Reason.BAD_KEY
            assert "labels user=alice, project=x y, not" in str(explain(caught.value))
    assert (node.state("a"), node.groups()) == (before, {"oci-a": {7, 8}})
    node.assert_settled()


@pytest.mark.parametrize("ttl", [0, 300])
def test_next_run_of_a_job_has_the_labels_of_its_first_call(node: Node, ttl: int) -> None:
    node.spawn(7, "/user.slice")
    for labels in (ALICE, {"user": "bob"}, {}):
        jobs.assign(node.context(), "a", [7], labels)
        assert node.state("a").job_labels == labels
        jobs.release(node.context(snapshot_ttl=ttl), "a")


def test_of_two_calls_with_other_labels_that_begin_a_run_one_is_refused(node: Node) -> None:
    """The second one saw no job yet: the lock of the key decides."""
    for pid in (7, 8):
        node.spawn(pid, "/user.slice")
    jobs.assign(node.context(), "a", [7], ALICE)
    other = Container("job-8-100", 8, "", {}, [])
    other.labels = {"user": "bob"}
    with pytest.raises(HookError, match="other labels"):
        create_runtime(node.context(), other, Key("a", "job"))
    assert (node.state("a").job_labels, node.groups()) == (ALICE, {"oci-a": {7}})


def test_labels_of_a_job_that_could_not_join_are_those_of_its_retry(node: Node) -> None:
    node.spawn(7, "/user.slice")
    process = Container("job-7-100", 7, "", {}, [])
    process.labels = ALICE
    failure = make_failure(HookError(Reason.NO_RMIDS, "no RMIDs"), "assign", process, Key("a", "job"))
    record(node.context().run, failure)
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
    jobs.assign(node.context(), "other", [9])


def be_left_by_job(node: Node) -> None:
    node.spawn(5, "/user.slice")
    jobs.assign(node.context(), "other", [5])
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
    error = refused(node, "a", 7, 9)
    assert (error.reason, "9" in error.kind, words in error.kind) == (reason, True, True)
    assert (node.groups(), node.files()) == (groups, files)


def test_first_process_is_refused(node: Node) -> None:
    node.spawn(1, "/init.scope")
    assert refused(node, "a", 1).reason == Reason.USAGE


def test_outside_of_the_hosts_pid_namespace_nothing_joins(node: Node) -> None:
    node.spawn(7, "/user.slice")
    node.kernel.pid_namespace = "pid:[4026532000]"
    assert refused(node, "a", 7).reason == Reason.DENIED


def test_without_resctrl_nothing_joins(node: Node) -> None:
    node.spawn(7, "/user.slice")
    node.kernel.groups.clear()
    assert refused(node, "a", 7).reason == Reason.NOT_MOUNTED


def test_job_is_in_the_class_of_its_first_process(node: Node) -> None:
    gold = node.kernel.add_class("gold")
    node.spawn(7, "/user.slice").groups = {7: gold}
    node.spawn(8, "/user.slice").groups = {8: gold}
    node.spawn(9, "/user.slice")
    jobs.assign(node.context(), "a", [7])
    jobs.assign(node.context(), "a", [8])
    assert node.groups() == {"gold/oci-a": {7, 8}}
    assert refused(node, "a", 9).reason == Reason.NO_CTRL_GROUP


def test_without_rmids_nothing_joins(node: Node) -> None:
    node.kernel.rmids = 0
    node.spawn(7, "/user.slice")
    assert refused(node, "a", 7).reason == Reason.NO_RMIDS
    assert (node.groups(), node.files()) == ({}, set())


# --- All or none


@pytest.mark.parametrize("has_former", [True, False])
def test_process_that_ends_before_its_turn_takes_the_others_out_again(node: Node, *, has_former: bool) -> None:
    for pid in (6, 7, 9):
        node.spawn(pid, "/user.slice")
    node.kernel.fork(7, 70)
    if has_former:
        jobs.assign(node.context(), "a", [6])
    before, members = node.groups(), node.members("a") if has_former else {}
    put = node.kernel.put

    def end_before_its_turn(path: str, data: bytes) -> None:
        if data.strip() == b"9":
            node.kernel.die(9)
        put(path, data)

    node.kernel.put = end_before_its_turn  # type: ignore[method-assign]
    assert refused(node, "a", 7, 9).reason == Reason.TASK_GONE
    assert node.groups() == before
    assert node.kernel.group_of(7) == node.kernel.group_of(70) == RESCTRL
    state = node.find_state("a")
    assert (state.members.keys() if state is not None else set()) == members.keys()
    node.assert_settled()


def test_threads_and_children_come_along(node: Node) -> None:
    node.spawn(7, "/user.slice").groups[71] = RESCTRL
    node.kernel.fork(7, 8)
    jobs.assign(node.context(), "a", [7])
    assert node.groups() == {"oci-a": {7, 71, 8}}
    node.assert_settled()


def test_second_call_changes_nothing(node: Node) -> None:
    node.spawn(7, "/user.slice")
    jobs.assign(node.context(), "a", [7, 7])
    state = node.state("a")
    jobs.assign(node.context(), "a", [7])
    assert node.state("a") == state


# --- What the kernel shows outranks ancestry


def be_job_b(node: Node) -> str:
    node.spawn(8, "/user.slice")
    jobs.assign(node.context(), "b", [8])
    return "oci-b"


def be_container_of_own_cgroup(node: Node) -> str:
    node.start(ID, 8)
    return f"oci-{UID}"


def be_container_of_shared_cgroup(node: Node) -> str:
    node.start("web", 8, None, cgroup="/user.slice")
    return "oci-web"


@pytest.mark.parametrize("shows_groups", [True, False])
@pytest.mark.parametrize("comes_first", [True, False])
@pytest.mark.parametrize("become", [be_job_b, be_container_of_own_cgroup, be_container_of_shared_cgroup])
def test_what_a_job_left_behind_stays_in_its_group_whatever_parent_it_gets(
    node: Node, become: Callable[[Node], str], *, comes_first: bool, shows_groups: bool
) -> None:
    """A subreaper of another key took it along, with its threads and children."""
    node.kernel.shows_groups = shows_groups
    node.spawn(7, "/user.slice")
    jobs.assign(node.context(), "a", [7])
    node.kernel.fork(7, 9).groups[91] = f"{RESCTRL}/mon_groups/oci-a"
    node.kernel.fork(9, 10)
    group = become(node) if comes_first else ""
    node.kernel.die(7)
    node.kernel.tasks[9].parent = 8
    group = group or become(node)
    node.repair()
    assert node.groups() == {"oci-a": {9, 91, 10}, group: {8}}
    assert refused(node, "c", 9).kind == f"process 9 is in {RESCTRL}/mon_groups/oci-a, the group of another key"
    jobs.assign(node.context(), "a", [9])
    assert node.members("a") == {"job-9-200": 9}
    node.assert_settled()


@pytest.mark.parametrize(
    "cgroup", [f"/machine.slice/libpod-{ID}.scope", "/user.slice"], ids=["in its own cgroup", "in a shared one"]
)
def test_container_that_a_job_starts_is_its_own_with_what_it_had_forked_before(node: Node, cgroup: str) -> None:
    node.spawn(7, "/user.slice")
    jobs.assign(node.context(), "a", [7])
    node.kernel.fork(7, 8).places = [f"0::{cgroup}"]
    node.kernel.fork(8, 9)
    node.start(ID, 8, None)
    assert node.verbs() == ["adopt"]
    assert node.groups() == {"oci-a": {7}, f"oci-{ID}": {8, 9}}
    node.assert_settled()


# --- The end


def test_release_ends_the_job_with_its_processes_and_a_second_one_finds_none(node: Node) -> None:
    node.spawn(7, "/user.slice")
    jobs.assign(node.context(), "a", [7])
    assert jobs.release(node.context(), "a")
    assert (node.groups(), node.kernel.group_of(7)) == ({}, RESCTRL)
    assert node.state("a").completed_at is not None
    assert not jobs.release(node.context(), "a")
    assert not jobs.release(node.context(), "never")
    with pytest.raises(HookError, match="key of a job"):
        jobs.release(node.context(), "../a")


@pytest.mark.parametrize("was", ["alive", "lingering", "recovering"])
def test_release_ends_a_job_at_once_whatever_linger_says(node: Node, was: str) -> None:
    node.spawn(7, "/user.slice")
    jobs.assign(node.context(linger=60), "a", [7])
    node.spawn(8, "/user.slice", group="mon_groups/oci-a")
    if was == "lingering":
        node.kernel.die(7)
        node.repair(options={"linger": 60})
        assert node.state("a").lingering_since is not None
    elif was == "recovering":
        node.edit("groups/a.json", recovering=True, groups=[])
    assert jobs.release(node.context(linger=60), "a")
    assert (node.groups(), node.kernel.group_of(8)) == ({}, RESCTRL)
    node.assert_settled()


def test_job_lingers_and_comes_back_to_its_group(node: Node) -> None:
    node.spawn(7, "/user.slice")
    jobs.assign(node.context(linger=60), "a", [7])
    node.kernel.die(7)
    node.repair(options={"linger": 60})
    assert node.state("a").lingering_since is not None
    node.spawn(8, "/user.slice")
    jobs.assign(node.context(linger=60), "a", [8])
    assert (node.groups(), node.state("a").runs) == ({"oci-a": {8}}, 2)


def test_reconcile_ends_a_job_when_its_processes_and_what_they_left_are_dead(node: Node) -> None:
    node.spawn(7, "/user.slice")
    jobs.assign(node.context(), None, [7])
    node.kernel.fork(7, 8).parent = 1
    node.kernel.die(7)
    assert "drop" in node.verbs()
    assert node.groups() == {"oci-job-7-100": {8}}
    node.kernel.die(8)
    node.verbs()
    assert node.groups() == {}
    node.assert_settled()


def test_list_of_live_keys_says_nothing_of_jobs(node: Node) -> None:
    node.spawn(7, "/user.slice")
    jobs.assign(node.context(), "a", [7])
    node.start(ID, 9)
    actions = node.repair(live=set()).outcomes
    assert {(it.action.verb, it.action.key) for it in actions} == {("drop", UID)}
    assert node.members("a") == {"job-7-100": 7}


@pytest.mark.parametrize("lost", ["torn", "gone"])
def test_record_is_rebuilt_from_the_index(node: Node, lost: str) -> None:
    node.spawn(7, "/user.slice/session-3.scope")
    node.spawn(8, "/user.slice/session-3.scope")
    jobs.assign(node.context(), "session-3", [7], ALICE)
    member = node.state("session-3").members
    if lost == "torn":
        node.put("groups/session-3.json", "{")
        assert refused(node, "session-3", 8).reason == Reason.BAD_KEY
    else:
        node.remove("groups/session-3.json")
    assert "rebuild" in node.verbs()
    rebuilt = node.state("session-3")
    assert (rebuilt.kind, rebuilt.members, rebuilt.job_labels) == ("job", member, ALICE)
    assert node.groups() == {"oci-session-3": {7}}
    node.assert_settled()


def test_uninstall_ends_jobs(node: Node) -> None:
    node.spawn(7, "/user.slice")
    jobs.assign(node.context(), "a", [7])
    node.start(OTHER, 9)
    assert end_all_keys(node.options()).unfinished == []
    assert node.groups() == {}


# --- run


def test_process_of_a_command_that_cannot_be_started_is_in_no_group(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.spawn(7, "/user.slice")
    monkeypatch.setattr(os, "getpid", lambda: 7)
    monkeypatch.setattr(os, "umask", lambda _: 0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(system, "set_umask", lambda: None)
    seen = []

    def execute(*_: object) -> None:
        seen.append(node.groups())
        monkeypatch.setattr(
            jobs, "_find", fails(HookError(Reason.TASK_GONE, "gone"))
        )  # asked once more, /proc would hide why it cannot start
        fails(8)()

    monkeypatch.setattr(os, "execve", execute)
    with pytest.raises(jobs.Unstartable) as caught:
        jobs.run(node.context(), "a", ["/bin/sh"])
    assert (caught.value.status, seen, node.groups()) == (126, [{"oci-a": {7}}], {})
