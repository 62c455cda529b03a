# SPDX-License-Identifier: Apache-2.0
"""The processes of a container: those in its own cgroup, and descendants of its init in no other's own cgroup."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hook.base import procfs, system
from hook.base.container_tasks import Process, Processes, look
from hook.base.models import Member
from hook.reconcile.survey import find_strangers

A, B, INNER = (f":/pods/crio-{name}.scope" for name in ("a", "b", "a.scope/libpod-c"))
SHARED = ":/system.slice/ssh.service"


def processes(*found: tuple[int, int, str]) -> Processes:
    """By pid, parent and cgroup; all cgroups but the shared one are a container's own, and no init is among them."""
    own = [("a", member(70, A)), ("b", member(80, B)), ("c", member(90, INNER)), ("d", member(60, SHARED))]
    return Processes({pid: Process(pid, parent, 1, (cgroup,)) for pid, parent, cgroup in found}, own)


def member(pid: int, cgroup: str | None, starttime: int = 1) -> Member:
    return Member(pid=pid, starttime=starttime, group="/r/mon_groups/g", cgroup=cgroup)


@pytest.mark.parametrize(
    ("found", "init", "cgroup", "expected"),
    [
        ([(7, 1, A), (8, 7, A), (9, 1, A)], 7, A, {7, 8, 9}),
        ([(7, 1, A), (8, 7, SHARED), (9, 8, SHARED)], 7, A, {7, 8, 9}),
        ([(7, 1, A), (8, 7, A + "/system.slice")], 7, A, {7, 8}),
        ([(7, 1, A), (8, 7, B), (9, 8, B)], 7, A, {7}),
        ([(7, 1, A), (8, 7, B), (9, 8, A)], 7, A, {7, 9}),
        ([(7, 1, A), (8, 1, B), (9, 7, B)], 8, B, {8, 9}),
        ([(7, 1, A), (8, 7, INNER), (9, 8, INNER + "/x")], 7, A, {7}),
        ([(7, 1, A), (8, 7, INNER), (9, 8, INNER + "/x")], 8, INNER, {8, 9}),
        ([(7, 1, SHARED), (8, 7, SHARED), (9, 1, SHARED)], 7, SHARED, {7, 8}),
        ([(7, 1, SHARED), (8, 7, A)], 7, SHARED, {7}),
        ([(7, 1, SHARED), (8, 7, A)], 7, None, {7}),
        ([(7, 1, B)], 7, None, {7}),
        ([(8, 1, A)], 7, A, set()),
    ],
)
def test_a_process_belongs_to_its_cgroups_container_or_its_ancestors(
    found: list[tuple[int, int, str]], init: int, cgroup: str | None, expected: set[int]
) -> None:
    assert processes(*found).of_container(member(init, cgroup)) == expected


def test_a_reused_pid_has_no_processes_of_the_container() -> None:
    assert processes((7, 1, A), (8, 7, A)).of_container(member(7, A, starttime=2)) == set()


def test_processes_that_outlived_the_init_are_found_by_its_own_cgroup() -> None:
    left = processes((8, 1, A), (9, 1, SHARED))
    assert left.in_own_cgroup(member(7, A)) == {8}
    assert left.in_own_cgroup(member(7, SHARED)) == set()
    assert left.in_own_cgroup(member(7, None)) == set()


def test_what_its_own_cgroup_does_not_hold_is_looked_for_by_process() -> None:
    found = processes((7, 1, A), (8, 7, SHARED), (9, 1, A), (10, 7, B))
    assert found.beside_own_cgroup(member(7, A)) == {8}
    assert found.beside_own_cgroup(member(7, None)) == {7, 8}


def test_an_own_cgroup_in_one_hierarchy_is_enough() -> None:
    places = ("cpu,cpuacct:/", "memory:/pods/a", ":/")
    by_pid = {pid: Process(pid, 1, 1, places) for pid in (7, 8)}
    found = Processes(by_pid, [("a", member(7, "memory:/pods/a"))])
    assert found.of_container(member(7, "memory:/pods/a")) == {7, 8}


def test_a_process_in_no_own_cgroup_belongs_to_its_nearest_init() -> None:
    found = processes((7, 1, SHARED), (8, 7, SHARED), (9, 8, SHARED), (10, 7, SHARED))
    outer, inner = member(7, SHARED), member(8, SHARED)
    assert found.of_container(outer) == {7, 8, 9, 10}
    found.add([("outer", outer), ("inner", inner)])
    assert found.of_container(outer) == {7, 10}
    assert found.of_container(inner) == {8, 9}


@pytest.mark.parametrize("cgroup", [None, ":/pods"], ids=["an own cgroup", "one shared cgroup, above all others"])
def test_all_members_together_cost_in_proportion_to_their_number(cgroup: str | None) -> None:
    assert calls_for(400, cgroup) < 2.2 * calls_for(200, cgroup)


def calls_for(count: int, shared: str | None) -> int:
    """How many calls it takes to find the processes of so many members, beside as many in cgroups of their own."""
    places = {f"c{number}": f":/pods/crio-c{number}.scope" for number in range(2 * count)}
    found = {number: Process(number, 1, 1, (place,)) for number, place in enumerate(places.values(), 2)}
    members = [(name, member(pid, place)) for pid, (name, place) in enumerate(places.items(), 2)]
    looked = Processes(found, members)
    calls = 0

    def call(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(call)
    try:
        for _, it in members[:count]:
            looked.of_container(it if shared is None else member(it.pid, shared))
    finally:
        sys.setprofile(None)
    return calls


def test_a_cgroup_is_own_from_when_its_member_is_known() -> None:
    found = Processes({7: Process(7, 1, 1, (A,)), 8: Process(8, 1, 1, (A,))})
    assert found.of_container(member(7, A)) == {7}
    found.add([("other", member(7, A))])
    assert found.of_container(member(7, A)) == {7}
    found.add([("a", member(7, A))])
    assert found.of_container(member(7, A)) == {7, 8}


# --- What a look does not know yet


FORKS = """\
import os, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", flush=True)
sys.stdin.readline()
child = os.fork()
if child:
    print(child, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def forking() -> Iterator[subprocess.Popen[str]]:
    """A process with two threads, which forks when it is told to. Both end with its stdin."""
    command = [sys.executable, "-ISc", FORKS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def init_of(process: subprocess.Popen[str]) -> Member:
    starttime = procfs.starttime(process.pid)
    assert starttime is not None
    return Member(pid=process.pid, starttime=starttime, group="/r/mon_groups/g", cgroup=None)


def fork(process: subprocess.Popen[str]) -> int:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return int(process.stdout.readline())


@pytest.mark.skipif(not Path("/proc/self/task").joinpath(str(os.getpid()), "children").exists(), reason="no children")
def test_what_was_forked_since_the_look_is_found_by_its_parent(forking: subprocess.Popen[str]) -> None:
    init = init_of(forking)
    seen = look([("c", init)])
    threads = {int(name) for name in os.listdir(f"/proc/{init.pid}/task")}
    assert len(threads) == 2
    assert seen.of_container(init) == {init.pid}
    assert seen.threads({init.pid}) == seen.look_again(init) == threads
    child = fork(forking)
    assert seen.look_again(init) == {*threads, child}
    assert (seen.is_newer(child), seen.is_newer(os.getpid())) == (True, False)


def test_a_container_that_started_since_the_look_is_found_by_its_init(forking: subprocess.Popen[str]) -> None:
    init = init_of(forking)
    assert init.pid in Processes({}).look_again(init)


def test_a_pid_that_was_reused_since_the_look_is_not_moved(forking: subprocess.Popen[str]) -> None:
    init = init_of(forking)
    former = Process(os.getpid(), init.pid, 1, (SHARED,))
    seen = Processes({init.pid: Process(init.pid, 1, init.starttime, (SHARED,)), former.pid: former})
    assert seen.of_container(init) == {init.pid, former.pid}
    assert former.pid not in seen.look_again(init)


def test_a_task_that_started_after_the_look_is_no_stranger_yet(forking: subprocess.Popen[str]) -> None:
    live = {"a": member(7, A)}
    late = Processes({}, boottime=system.boottime() + 1)
    assert find_strangers({forking.pid}, live, late) == {forking.pid}
    assert find_strangers({forking.pid}, live, Processes({}, boottime=1.0)) == set()
