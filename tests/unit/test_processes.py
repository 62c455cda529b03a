# SPDX-License-Identifier: Apache-2.0
"""The processes of a container: those in its own cgroup,
and descendants of its init in no other's own cgroup.
"""

from __future__ import annotations

import errno
import shutil
import sys
from pathlib import Path

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook import system
from hook.models import Member
from hook.node import processes as its
from hook.node.processes import Process, Processes, Reading, look, read_threads
from hook.reconcile.diagnose import find_strangers
from tests.simulator.kernel import ROOT_CGROUP
from tests.unit.simulated import Node, node

__all__ = ["node"]  # fixtures

A, B, INNER = (f":/pods/crio-{name}.scope" for name in ("a", "b", "a.scope/libpod-c"))
SHARED = ":/system.slice/ssh.service"


def processes(*given: tuple[int, int, str]) -> Processes:
    """By pid, parent and cgroup; each cgroup but the shared one is a container's,
    whose init is not among them.
    """
    members = [
        ("a", member(70, A)),
        ("b", member(80, B)),
        ("c", member(90, INNER)),
        ("d", member(60, SHARED)),
    ]
    return make_processes(
        {pid: Process(pid, parent, 1, (cgroup,)) for pid, parent, cgroup in given}, members
    )


def make_processes(by_pid: dict[int, Process], members: list[tuple[str, Member]]) -> Processes:
    made = Processes(by_pid)
    made.add(members)
    return made


def member(pid: int, cgroup: str | None, starttime: int = 1) -> Member:
    return Member(pid=pid, starttime=starttime, group="/r/mon_groups/g", cgroup=cgroup)


def test_a_process_belongs_to_its_cgroups_container_or_its_ancestors() -> None:
    for given, init, cgroup, expected in (
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
    ):
        assert processes(*given).find_pids(member(init, cgroup)) == expected, (given, init, cgroup)


def test_a_reused_pid_has_no_processes_of_the_container() -> None:
    assert processes((7, 1, A), (8, 7, A)).find_pids(member(7, A, starttime=2)) == set()


def test_processes_that_outlived_the_init_are_found_by_its_own_cgroup() -> None:
    left = processes((8, 1, A), (9, 1, SHARED))
    assert left.find_pids_in_own_cgroup(member(7, A)) == {8}
    assert left.find_pids_in_own_cgroup(member(7, SHARED)) == set()
    assert left.find_pids_in_own_cgroup(member(7, None)) == set()


def test_what_its_own_cgroup_does_not_hold_is_looked_for_by_process() -> None:
    present = processes((7, 1, A), (8, 7, SHARED), (9, 1, A), (10, 7, B))
    assert present.find_pids(member(7, A), outside_own_cgroup=True) == {8}
    assert present.find_pids(member(7, None), outside_own_cgroup=True) == {7, 8}


def test_an_own_cgroup_in_one_hierarchy_is_enough() -> None:
    places = ("cpu,cpuacct:/", "memory:/pods/a", ":/")
    by_pid = {pid: Process(pid, 1, 1, places) for pid in (7, 8)}
    present = make_processes(by_pid, [("a", member(7, "memory:/pods/a"))])
    assert present.find_pids(member(7, "memory:/pods/a")) == {7, 8}


def test_a_process_in_no_own_cgroup_belongs_to_its_nearest_init() -> None:
    present = processes((7, 1, SHARED), (8, 7, SHARED), (9, 8, SHARED), (10, 7, SHARED))
    outer, inner = member(7, SHARED), member(8, SHARED)
    assert present.find_pids(outer) == {7, 8, 9, 10}
    present.add([("outer", outer), ("inner", inner)])
    assert present.find_pids(outer) == {7, 10}
    assert present.find_pids(inner) == {8, 9}


@pytest.mark.parametrize(
    "cgroup", [None, ":/pods"], ids=["an own cgroup", "one shared cgroup, above all others"]
)
def test_all_members_together_cost_in_proportion_to_their_number(cgroup: str | None) -> None:
    assert calls_for(400, cgroup) < 2.2 * calls_for(200, cgroup)


def calls_for(count: int, shared: str | None) -> int:
    """How many calls it takes to find the processes of so many members,
    beside as many in cgroups of their own.
    """
    places = {f"c{number}": f":/pods/crio-c{number}.scope" for number in range(2 * count)}
    by_pid = {
        number: Process(number, 1, 1, (place,)) for number, place in enumerate(places.values(), 2)
    }
    members = [(name, member(pid, place)) for pid, (name, place) in enumerate(places.items(), 2)]
    present = make_processes(by_pid, members)
    calls = 0

    def call(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(call)
    try:
        for _, known in members[:count]:
            present.find_pids(known if shared is None else member(known.pid, shared))
    finally:
        sys.setprofile(None)
    return calls


def test_a_cgroup_is_own_from_when_its_member_is_known() -> None:
    present = Processes({7: Process(7, 1, 1, (A,)), 8: Process(8, 1, 1, (A,))})
    assert present.find_pids(member(7, A)) == {7}
    present.add([("other", member(7, A))])
    assert present.find_pids(member(7, A)) == {7}
    present.add([("a", member(7, A))])
    assert present.find_pids(member(7, A)) == {7, 8}


# --- What a look does not know yet


@pytest.fixture
def init(node: Node) -> Member:
    """The init of a container, with two threads, in a cgroup that is not its own."""
    node.spawn(7, SHARED[1:], born=1)
    node.kernel.add_thread(7, 70)
    return member(7, None)


def test_what_was_forked_since_the_look_is_in_the_next_one(node: Node, init: Member) -> None:
    present = look()
    present.add([("c", init)])
    assert present.find_pids(init) == {7}
    assert present.list_threads({7}) == present.reread_threads(init) == {7, 70}
    born = int(node.kernel.now + 1) * system.TICKS
    node.kernel.fork(7, 8, born=born)
    node.kernel.add_thread(7, 71)
    assert present.reread_threads(init) == {7, 70, 71}
    assert (present.is_newer(8), present.is_newer(7)) == (True, False)
    assert Processes({}).reread_threads(init) == {7, 70, 71}, (
        "a container that started since the look"
    )
    assert find_strangers({8}, {"a": member(9, A)}, present) == set(), "no stranger yet"
    node.kernel.now += 2
    assert find_strangers({8}, {"a": member(9, A)}, look()) == {8}


def test_a_pid_that_was_reused_since_the_look_is_not_moved(node: Node, init: Member) -> None:
    node.spawn(8, born=50)
    former = Process(8, 7, 1, (SHARED,))
    present = Processes({7: Process(7, 1, 1, (SHARED,)), 8: former})
    assert present.find_pids(init) == {7, 8}
    assert present.reread_threads(init) == {7, 70}


# --- The threads in a container's cgroups, by the lists of the cgroup file system, which are plain
# files here


OWN = "/pods/crio-a.scope"


def none_is(_cgroup: str) -> bool:
    """No cgroup below is another container's."""
    return False


@pytest.fixture
def mount(fs: FakeFilesystem) -> Path:
    fs.create_dir("/sys/fs/cgroup")
    return Path("/sys/fs/cgroup")


def add(directory: Path, *tids: int, file: str = "cgroup.threads") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / file).write_text("".join(f"{tid}\n" for tid in tids))
    (directory / "cgroup.procs").write_text("1\n")
    return directory


V2 = {
    OWN: (7, 70),
    f"{OWN}/init.scope": (8,),
    f"{OWN}/system.slice": (),
    f"{OWN}/system.slice/x.service": (9,),
}
NESTED: dict[str, tuple[int, ...]] = {
    OWN: (7,),
    f"{OWN}/libpod-b": (8,),
    f"{OWN}/libpod-b/below": (9,),
}


def test_threads_of_a_cgroup_and_of_those_below_it_are_read_but_not_another_containers(
    mount: Path,
) -> None:
    cases: list[tuple[dict[str, tuple[int, ...]], str, set[int] | None]] = [
        ({}, f":{OWN}", None),
        ({"/pods": ()}, ":/pods/../pods", None),  # not its name
        ({f"/cpu{OWN}": (7, 70)}, f"cpu,cpuacct:{OWN}", {7, 70}),
        # Beside v1.
        ({f"/unified{path}": tids for path, tids in V2.items()}, f":{OWN}", {7, 70, 8, 9}),
        (V2, f":{OWN}", {7, 70, 8, 9}),
        (NESTED, f":{OWN}", {7}),
    ]
    for lists, cgroup, expected in cases:
        for path, tids in lists.items():
            add(
                Path(f"{mount}{path}"),
                *tids,
                file="tasks" if cgroup.startswith("cpu") else "cgroup.threads",
            )
        reading = read_threads(cgroup, lambda below: below == f":{OWN}/libpod-b")
        assert reading == (None if expected is None else Reading(expected, 0)), cgroup
        for made in mount.iterdir():
            shutil.rmtree(made)


def test_more_cgroups_than_are_read_are_counted(
    mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(its, "_MOST_CGROUPS", 5)
    count_directories(monkeypatch)
    top = add(mount / OWN[1:], 7)
    for number in range(4):
        add(top / f"a{number}", 10 + number)
    assert read_threads(":" + OWN, none_is) == Reading({7, 10, 11, 12, 13}, 0)
    add(top / "a0" / "b", 20)
    assert read_threads(":" + OWN, none_is) == Reading({7, 10, 11, 12, 13}, 1)
    add(top / "a4", 14)
    assert read_threads(":" + OWN, none_is) == Reading({7}, 5)


def test_more_cgroups_than_are_read_are_not_even_listed(
    mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories: list[str] = []
    monkeypatch.setattr(system, "count_links", lambda _path: 100_002)
    monkeypatch.setattr(system, "list_directory", lambda path, _above: directories.append(path))
    add(mount / OWN[1:], 7)
    assert read_threads(":" + OWN, none_is) == Reading({7}, 100_000)
    assert directories == []


def count_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the links of a directory of cgroups, which this file system does not count."""
    names = dict[int, str]()
    opened = system.open_directory

    def open_directory(path: str, dir_fd: int | None = None) -> int:
        descriptor = opened(path, dir_fd)
        names[descriptor] = path if dir_fd is None else f"{names[dir_fd]}/{path}"
        return descriptor

    monkeypatch.setattr(system, "open_directory", open_directory)

    def count_links(descriptor: int) -> int:
        return 2 + sum(path.is_dir() for path in Path(names[descriptor]).iterdir())

    monkeypatch.setattr(system, "count_links", count_links)


def test_list_that_is_too_long_or_unreadable_is_counted(
    mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(its, "_MOST_BYTES", 10)
    top = add(mount / OWN[1:], 7)
    add(top / "long", *range(10))
    (top / "refused" / "cgroup.threads").mkdir(parents=True)
    assert read_threads(":" + OWN, none_is) == Reading({7}, 2)


# --- What cannot be read, on the simulated machine: it is not taken for empty

DEEP = "".join(f"/{number}{'x' * 240}" for number in range(20))
TOP = f"{ROOT_CGROUP}{OWN}"


def test_cgroup_whose_path_is_longer_than_a_path_may_be_is_read(node: Node) -> None:
    node.spawn(7, OWN)
    node.spawn(8, OWN + DEEP)
    assert len(OWN + DEEP) > 4096
    assert read_threads(":" + OWN, none_is) == Reading({7, 8}, 0)
    assert not [
        fd for fd in node.machine.caller.descriptors if "cgroup" in node.machine._opened(fd).path
    ]


def test_cgroup_that_is_refused_is_counted(node: Node) -> None:
    node.spawn(7, OWN)
    node.spawn(8, OWN + "/below")
    none, one = Reading(set(), 1), Reading({7}, 1)
    refused = {
        TOP: none,
        f"{TOP}/cgroup.threads": none,
        f"{TOP}/below": one,
        f"{TOP}/below/cgroup.threads": one,
    }
    for what, expected in refused.items():
        for number in (errno.EACCES, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENAMETOOLONG):
            node.kernel.denied[what] = number
            assert read_threads(":" + OWN, none_is) == expected, (what, number)
        del node.kernel.denied[what]


@pytest.mark.parametrize("times", [1, 99], ids=["once", "each time"])
def test_cgroup_that_vanishes_leads_to_another_reading_and_is_counted_if_that_is_no_better(
    node: Node, times: int
) -> None:
    """What was in it may be in one that was read before: it was taken for gone."""
    node.spawn(7, OWN)
    node.spawn(8, OWN + "/below")
    node.kernel.files[f"{TOP}/below/cgroup.threads"] = None
    opened = node.machine.open
    tries = []

    def open_noted(path: bytes, *arguments: int, **keywords: int) -> int:
        tries.append(path) if path == b"below" else None
        if len(tries) > times:
            node.kernel.files.clear()
        return opened(path, *arguments, **keywords)

    node.machine.open = open_noted  # type: ignore[method-assign,assignment]
    assert read_threads(":" + OWN, none_is) == (
        Reading({7, 8}, 0) if times == 1 else Reading({7}, 1)
    )
    assert len(tries) == (2 if times == 1 else 3)


def test_process_that_cannot_be_read_or_whose_cgroups_cannot_is_counted_and_in_no_containers_cgroup(
    node: Node,
) -> None:
    """Some kernels refuse a cgroup's path that is longer than PATH_MAX."""
    for pid in (7, 8, 9, 10):
        node.spawn(pid, OWN)
    node.kernel.denied.update({"/proc/8/cgroup": errno.ENAMETOOLONG, "/proc/9/stat": errno.ENOMEM})
    node.kernel.files["/proc/10/cgroup"] = None  # it has just ended
    present = look()
    assert present.unread == 2
    assert {pid: process.cgroups for pid, process in present.by_pid.items()} == {
        7: (":" + OWN,),
        8: its.UNKNOWN,
    }


def test_threads_of_a_process_that_cannot_be_listed_are_not_taken_for_none(node: Node) -> None:
    node.spawn(7)
    node.kernel.denied["/proc/7/task"] = errno.ENOMEM
    with pytest.raises(OSError, match="memory"):
        its.list_threads(7)
    assert its.list_threads(99) == set()
