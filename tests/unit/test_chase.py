# SPDX-License-Identifier: Apache-2.0
"""A chase of a container's threads, on a machine of made-up processes: counted in looks and calls, on a clock that only
the tests move."""

from __future__ import annotations

from typing import Any

import pytest

from hook.base import procfs
from hook.base.errors import HookError, WrongCtrlGroup
from hook.base.models import Member
from hook.base.resctrl import Resctrl
from hook.reconcile.chase import Chase
from hook.stages.create import create_runtime
from hook.stages.entry import Context
from tests.unit.faults import Clock
from tests.unit.test_create import GROUP, MachineOnDisk, container, machine
from tests.unit.test_rundir import clock, directories

__all__ = ["clock", "directories", "machine"]  # fixtures
INIT = 7
LOOK = 0.0001  # seconds


class Chain:
    """A container that is in its group, and a program in it that is not: it lives as a chain of forks.

    `ends_early`: how many links end between a look and what follows it. `looks`: how often the cgroup was read.
    """

    def __init__(self, machine: MachineOnDisk, clock: Clock) -> None:
        self.machine = machine
        self.clock = clock
        self.looks = 0
        self.ends_early = 0
        self.hidden: set[int] = set()
        self.tids = {INIT, 1000}
        self.link = 1000
        machine.spawn(1000)

    def __call__(self) -> set[int]:
        self.looks += 1
        self.clock.now += LOOK
        found = self.tids - self.hidden
        if self.ends_early:
            self.ends_early -= 1
            self.go_on()
        return found

    def go_on(self) -> None:
        """The link forks the next one, which is where it is, and ends."""
        self.fork(self.link, self.link + 1)
        self.machine.die(self.link)
        self.tids.remove(self.link)
        self.link += 1

    def sleep(self, tid: int) -> None:
        self._become(tid, "S", 0)

    def run(self, tid: int) -> None:
        self._become(tid, "R", 0)

    def compute(self, tid: int) -> None:
        self._become(tid, "R", 5)

    def _become(self, tid: int, state: str, user_time: int) -> None:
        place = self.machine.proc / str(tid)
        fields = (place / "stat").read_text().split()
        fields[2], fields[13] = state, str(user_time)
        (place / "task" / str(tid) / "stat").write_text(" ".join(fields) + "\n")

    def fork(self, parent: int, child: int) -> None:
        groups = procfs.resctrl_groups(parent)
        assert groups is not None
        self.machine.spawn(child, mon_group=groups[1])
        if groups[1]:
            with (self.machine.resctrl / "mon_groups" / groups[1] / "tasks").open("a") as tasks:
                tasks.write(f"{child}\n")
        self.tids.add(child)


@pytest.fixture
def node(machine: MachineOnDisk) -> Context:
    machine.spawn(INIT)
    node = machine.node()
    create_runtime(node, container("c1", INIT))
    return node


@pytest.fixture
def chain(machine: MachineOnDisk, node: Context, clock: Clock) -> Chain:  # noqa: ARG001  its container is there
    return Chain(machine, clock)


def member(machine: MachineOnDisk) -> Member:
    return Member(pid=INIT, starttime=100, group=str(machine.resctrl / "mon_groups" / GROUP))


def run(chain: Chain, node: Context) -> Chase:
    chase = Chase(node, member(chain.machine))
    chase.run(chain)
    return chase


def test_chain_of_forks_is_moved_in_by_the_first_look_that_is_quick_enough(chain: Chain, node: Context) -> None:
    chain.ends_early = 3
    chase = run(chain, node)
    assert (chase.moved, chase.outside) == (1, 0)
    for _ in range(3):
        chain.go_on()
    assert chain.machine.groups()[GROUP] == {INIT, chain.link}, "what it forks later is in the group by itself"


def test_what_a_thread_forks_while_it_is_moved_is_moved_when_it_appears(
    chain: Chain, node: Context, clock: Clock
) -> None:
    """The kernel gives a child its groups long before it shows it."""

    def fork_now() -> None:
        chain.run(1000)
        chain.fork(1000, 1001)
        chain.hidden = {1001}
        clock.during = lambda: setattr(clock, "during", appear)  # in the second pause

    def appear() -> None:
        chain.hidden.clear()
        chain.sleep(1000)

    chain.machine.before_put = fork_now
    chase = run(chain, node)
    assert (chase.moved, chase.outside) == (2, 0)
    assert chain.machine.groups()[GROUP] == {INIT, 1000, 1001}


def test_after_the_last_move_it_looks_once_more(chain: Chain, node: Context, clock: Clock) -> None:
    run(chain, node)
    assert (clock.slept, chain.looks) == ([0.001], 2)


@pytest.mark.parametrize("what", ["sleeps", "ends", "computes"])
def test_it_looks_until_no_thread_that_was_moved_can_be_forking_any_more(
    chain: Chain, node: Context, clock: Clock, what: str
) -> None:
    def go_on() -> None:
        if len(clock.slept) < 30:
            clock.during = go_on
        else:
            {"sleeps": chain.sleep, "ends": chain.machine.die, "computes": chain.compute}[what](1000)

    chain.run(1000)
    clock.during = go_on
    chase = run(chain, node)
    assert (chase.moved, len(clock.slept), chain.looks) == (1, 30, 31)


def test_thread_that_runs_in_the_kernel_all_the_time_is_waited_for_in_bounds(
    chain: Chain, node: Context, clock: Clock
) -> None:
    chain.run(1000)
    chase = run(chain, node)
    assert (chase.moved, chase.outside) == (1, 0)
    assert 0.5 <= sum(clock.slept) + chain.looks * LOOK <= 0.51


def test_where_nothing_is_outside_one_look_is_enough(chain: Chain, node: Context, clock: Clock) -> None:
    run(chain, node)
    chain.looks = 0
    clock.slept.clear()
    chase = run(chain, node)
    assert (chase.moved, chase.outside, chain.looks, clock.slept) == (0, 0, 1, [])


def test_threads_that_are_inside_are_known_by_one_read_of_the_group(
    chain: Chain, node: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked one after the other, the last of many would have ended before its turn, and would count as outside."""
    for number in range(20):
        chain.fork(INIT, 2000 + number)
    asked: list[int] = []
    real = procfs.resctrl_groups

    def ask(tid: int) -> tuple[str, str] | None:
        asked.append(tid)
        return real(tid)

    monkeypatch.setattr(procfs, "resctrl_groups", ask)
    assert run(chain, node).moved == 1
    assert asked == [INIT, 1000]


def test_chain_that_is_never_caught_is_given_up_and_counted(chain: Chain, node: Context) -> None:
    chain.ends_early = 10**6
    chase = run(chain, node)
    assert (chase.moved, chase.outside) == (0, 1)
    assert 0.2 / LOOK <= chain.looks <= 0.2 / LOOK + 3


def test_all_that_the_first_look_finds_is_moved_whatever_time_it_takes(
    chain: Chain, node: Context, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        chain.fork(1000, 2000 + number)
    slow_down(monkeypatch, clock, 0.01)
    assert run(chain, node).moved == 101


def test_looks_that_take_long_are_twenty_and_take_a_second_at_the_most(
    chain: Chain, node: Context, clock: Clock
) -> None:
    for seconds, looks in ((0.03, 21), (0.3, 5)):
        chain.ends_early = 10**6
        chain.looks = 0

        def read(seconds: float = seconds) -> set[int]:
            clock.now += seconds
            return chain()

        chase = Chase(node, member(chain.machine))
        chase.run(read)
        assert (chase.outside, chain.looks) == (1, looks)


def test_look_that_moves_too_many_is_ended_and_the_rest_is_outside(
    chain: Chain, node: Context, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that makes threads faster than they are moved."""

    def read() -> set[int]:
        chain.machine.says(1000, "/", "")
        for number in range(100):
            chain.fork(1000, 2000 + number + 100 * chain.looks)
        return chain()

    slow_down(monkeypatch, clock, 0.05)
    chase = Chase(node, member(chain.machine))
    chase.run(read)
    assert (chain.looks, chase.moved) == (2, 101 + 20)
    assert chase.outside == 100 - 20


def slow_down(monkeypatch: pytest.MonkeyPatch, clock: Clock, seconds: float) -> None:
    """Let each move take so long."""
    put = Resctrl.put

    def slow(self: Resctrl, path: str, pid: int) -> None:
        clock.now += seconds
        put(self, path, pid)

    monkeypatch.setattr(Resctrl, "put", slow)


@pytest.mark.parametrize("where", [("gold", ""), ("/", "kepler-1")])
def test_what_is_in_another_tools_place_stays_and_is_not_counted(
    chain: Chain, node: Context, where: tuple[str, str]
) -> None:
    chain.machine.add_class("gold")
    chain.machine.says(1000, *where)
    chain.machine.calls.clear()
    chase = run(chain, node)
    assert (chase.moved, chase.outside, chain.machine.calls) == (0, 0, [])


def test_thread_whose_ctrl_group_changes_meanwhile_stays(chain: Chain, node: Context) -> None:
    chain.machine.before_put = lambda: chain.machine.says(1000, "gold", "")
    assert (run(chain, node).moved, chain.machine.groups()[GROUP]) == (0, {INIT})


def test_init_in_another_ctrl_group_is_an_error(chain: Chain, node: Context) -> None:
    (chain.machine.resctrl / "mon_groups" / GROUP / "tasks").write_text("")
    chain.machine.says(INIT, "/", "")
    chain.tids.remove(1000)
    chain.machine.before_put = lambda: chain.machine.says(INIT, "gold", "")
    with pytest.raises(WrongCtrlGroup):
        run(chain, node)


def test_refusal_of_the_kernel_is_an_error(chain: Chain, node: Context) -> None:
    chain.machine.refusals["put"] = [5]  # EIO
    with pytest.raises(HookError, match="EIO"):
        run(chain, node)


def test_without_the_kernels_word_on_groups_the_tasks_file_tells(chain: Chain, node: Context) -> None:
    for tid in (INIT, 1000):
        (chain.machine.proc / str(tid) / "cpu_resctrl_groups").unlink()
    assert run(chain, node).moved == 1
    (chain.machine.proc / "1000/cpu_resctrl_groups").unlink()
    assert run(chain, node).moved == 0


def test_cpu_time_of_what_was_moved_is_counted(chain: Chain, node: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    used: dict[int, Any] = {1000: 0.25, INIT: 9.0}
    monkeypatch.setattr(procfs, "cpu_seconds", used.get)
    assert run(chain, node).late_cpu == 0.25
