# SPDX-License-Identifier: Apache-2.0
"""A mover of a container's threads on a simulated machine: counted in looks,
on a clock that the test moves.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from hook import system
from hook.errors import WRONG_CTRL_GROUP, HookError
from hook.reconcile.move import LateCpu, Mover, Place, Source, finish, read_groups
from hook.resctrl import Resctrl
from hook.words import explain
from tests.simulator.kernel import RESCTRL
from tests.unit.simulated import GROUP, ID, OTHER, OTHER_UID, UID, Node, cgroup_of, fails, node

__all__ = ["node"]  # fixture
INIT = 7
OTHER_GROUP = f"oci-{OTHER_UID}"
LOOK = 0.0001  # seconds


class Chain:
    """A container that is in its group, and a program in it that is not:
    it lives as a chain of forks.

    `ends_early`: how many links end between a look and what follows it. `looks`: how often the
    cgroup was read. `slept`: the pauses; `during`: done in the next one, once.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.kernel = node.kernel
        self.looks = 0
        self.ends_early = 0
        self.seconds = LOOK
        self.hidden: set[int] = set()
        self.link = 1000
        self.slept: list[float] = []
        self.during: Callable[[], object] = lambda: None
        node.spawn(1000)

    def __call__(self) -> set[int]:
        self.looks += 1
        self.kernel.now += self.seconds
        tids = self.kernel.tasks.keys() - self.hidden
        if self.ends_early:
            self.ends_early -= 1
            self.go_on()
        return tids

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.kernel.now += seconds
        action, self.during = self.during, lambda: None
        action()

    def go_on(self) -> None:
        """The link forks the next one, which is where it is, and ends."""
        self.fork(self.link, self.link + 1)
        self.kernel.die(self.link)
        self.link += 1

    def become(self, tid: int, state: str, user_ticks: int = 0) -> None:
        self.kernel.tasks[tid].state, self.kernel.tasks[tid].user_ticks = state, user_ticks

    def fork(self, parent: int, child: int) -> None:
        self.kernel.fork(parent, child)

    def groups(self) -> set[int]:
        return self.node.groups()[GROUP]

    def mover(self, read: Callable[[], set[int]] | None = None) -> Mover:
        self.node.machine.caller.calls = 0
        mover = self.new_mover(read)
        mover.start()
        finish([mover])
        return mover

    def new_mover(
        self, read: Callable[[], set[int]] | None = None, late: LateCpu | None = None
    ) -> Mover:
        """Make a mover that has not looked yet."""
        count_late = partial((late or LateCpu()).count_thread, UID, 0.0)
        context, place = self.node.context(), Place(UID, ID, self.node.member())
        return Mover(context, place, Source(read or self), count_late, read_groups(context))


@pytest.fixture
def chain(node: Node) -> Iterator[Chain]:
    node.start()
    chain = Chain(node)
    with pytest.MonkeyPatch.context() as patch:  # undone before the machine is
        patch.setattr("hook.system.sleep", chain.sleep)
        yield chain


def test_chain_of_forks_is_moved_in_by_the_first_look_that_is_quick_enough(chain: Chain) -> None:
    chain.ends_early = 3
    mover = chain.mover()
    assert (mover.moved, mover.outside) == (1, 0)
    assert chain.slept == [0.001], "before the last look only: the chain would go on"
    for _ in range(3):
        chain.go_on()
    assert chain.groups() == {INIT, chain.link}, "what it forks later is in the group by itself"


@pytest.mark.parametrize(
    "is_late", [False, True], ids=["in the pause after it", "after the last look"]
)
def test_child_of_a_fork_that_began_before_the_move_is_moved_by_the_look_that_shows_it(
    chain: Chain, *, is_late: bool
) -> None:
    """The kernel gives a child its groups long before it shows it.

    What this look does not show is the next one's.
    """

    def fork_now() -> None:
        chain.fork(1000, 1001)
        chain.become(1000, "D")  # it is in the fork
        chain.hidden = {1001}
        chain.during = (lambda: None) if is_late else chain.hidden.clear

    chain.node.machine.before_put = fork_now
    mover = chain.mover()
    assert (mover.moved, mover.problem, mover.has_ended) == (1 if is_late else 2, None, True)
    assert len(chain.slept) <= 2, "a fork is not waited for"
    chain.hidden.clear()
    assert chain.mover().moved == int(is_late)
    assert chain.groups() == {INIT, 1000, 1001}


def test_after_the_last_move_it_looks_once_more_and_where_nothing_is_outside_once(
    chain: Chain,
) -> None:
    assert chain.mover().moved == 1
    assert (chain.slept, chain.looks) == ([0.001], 2)
    assert chain.mover().moved == 0
    assert (chain.slept, chain.looks) == ([0.001], 3)


@pytest.mark.parametrize(
    ("line", "state", "hint"),
    [
        ("freezer:/x", "FROZEN\n", "it is frozen; the next run looks again"),
        ("freezer:/x", "FREEZING\n", "it is frozen; the next run looks again"),
        ("freezer:/x", "THAWED\n", "it has too many threads, or forks faster"),
        ("freezer:/x", None, "it has too many threads, or forks faster"),
        ("freezer:/gone", "FROZEN\n", "it has too many threads, or forks faster"),
        ("cpu,cpuacct:/x", "FROZEN\n", "it has too many threads, or forks faster"),
    ],
)
def test_a_container_that_its_cgroup_freezes_is_called_frozen(
    chain: Chain, monkeypatch: pytest.MonkeyPatch, line: str, state: str | None, hint: str
) -> None:
    """By cgroup v1."""
    chain.ends_early, chain.seconds = 10**6, 0.01
    mover = chain.mover()
    texts = {"/sys/fs/cgroup/freezer/x/freezer.state": state}
    monkeypatch.setattr(system, "cgroups", {INIT: [line]}.get)
    monkeypatch.setattr(system, "find_directory", lambda path: f"{path}/freezer.state" in texts)
    monkeypatch.setattr(
        "hook.node.files.read_text", lambda path, _limit: texts[path] or fails(errno.EIO)()
    )
    assert explain(mover.problem or OSError()).hint.startswith(hint)


def test_movers_are_stepped_in_turn_for_the_rest_of_their_time_and_fail_alone(
    chain: Chain,
) -> None:
    chain.kernel.die(1000)
    movers = {}
    for pid in (1001, 1002, 1003):
        chain.node.spawn(pid)
        movers[pid] = chain.new_mover(
            partial(read_slowly, chain, {pid, 99} if pid == 1001 else {pid})
        )
        assert not movers[pid].step()
    movers[1003]._source = Source(fails(errno.EIO))
    began = chain.kernel.now
    finish(movers.values())
    assert [mover.has_ended for mover in movers.values()] == [False, True, True]
    assert [mover.outside for mover in movers.values()] == [1, 0, 0]
    assert [mover.error is not None for mover in movers.values()] == [False, False, True]
    assert chain.kernel.now - began == pytest.approx(3 * (0.2 - LOOK), abs=2 * LOOK)


def read_slowly(chain: Chain, tids: set[int]) -> set[int]:
    chain.node.machine.caller.calls = 0
    chain.kernel.now += LOOK
    return tids


def test_mover_that_waits_for_its_last_look_does_not_slow_down_one_with_threads_outside(
    chain: Chain,
) -> None:
    """A pause would let a chain go on."""
    chain.node.spawn(2000)
    waiting = chain.new_mover(lambda: {2000})
    chain.ends_early = 20
    quick = chain.new_mover()
    chain.hidden = {2000}
    assert not waiting.step()
    assert not quick.step()
    finish([waiting, quick])
    assert (waiting.has_ended, quick.has_ended, quick.moved) == (True, True, 1)
    assert chain.slept == [0.001], "only when nothing is outside"


def test_threads_that_are_inside_are_known_by_one_read_of_the_group(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked one after the other, the last of many would have ended before its turn,
    and would count as outside.
    """
    for number in range(20):
        chain.fork(INIT, 2000 + number)
    asked: list[int] = []
    real = system.resctrl_groups

    def ask(tid: int) -> tuple[str, str] | None:
        asked.append(tid)
        return real(tid)

    monkeypatch.setattr(system, "resctrl_groups", ask)
    assert chain.mover().moved == 1
    assert asked == [INIT, 1000]


def test_container_with_too_many_threads_to_move_in_its_time_leaves_the_rest_to_the_next_run(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds up the others no longer, and says how many it left."""
    for number in range(100):
        chain.fork(1000, 2000 + number)
    slow_down(monkeypatch, chain, 0.01)
    mover = chain.new_mover()
    before = chain.kernel.now
    assert not mover.step()
    assert 0.2 <= chain.kernel.now - before <= 0.22
    assert (20 <= mover.moved <= 21, mover.moved + mover.outside) == (True, 101)
    finish([mover])
    assert f"{mover.outside} of its threads are still outside" in str(mover.problem)
    chain.hidden = set()
    for _ in range(5):
        mover = chain.new_mover()
        mover.start()
    assert (mover.outside, len(chain.groups())) == (0, 102)


def slow_down(monkeypatch: pytest.MonkeyPatch, chain: Chain, seconds: float) -> None:
    """Let each move take so long."""
    put = Resctrl.put

    def slow(self: Resctrl, path: str, pid: int) -> None:
        chain.kernel.now += seconds
        put(self, path, pid)

    monkeypatch.setattr(Resctrl, "put", slow)


def test_what_another_tool_takes_stays_there_on_a_kernel_that_does_not_show_groups(
    chain: Chain,
) -> None:
    chain.kernel.shows_groups = False
    theirs = chain.node.make_group("theirs")
    chain.fork(1000, 1001)
    chain.hidden = {1001}

    def appear() -> None:
        chain.hidden.clear()
        chain.kernel.move(1001, theirs)

    chain.during = appear
    mover = chain.mover()
    assert (mover.outside, chain.groups()) == (0, {INIT, 1000})
    assert chain.kernel.tids(theirs) == {1001}


@pytest.mark.parametrize("error", [5, 13])
def test_nothing_is_moved_where_the_tasks_of_other_tools_cannot_be_read(
    chain: Chain, error: int
) -> None:
    chain.kernel.shows_groups = False
    theirs = chain.node.make_group("theirs")
    chain.kernel.move(1000, theirs)
    read = chain.node.machine.read

    def refuse(descriptor: int, size: int) -> bytes:
        if chain.node.machine._opened(descriptor).path == f"{theirs}/tasks":
            raise OSError(error, "refused")
        return read(descriptor, size)

    chain.node.machine.read = refuse  # type: ignore[method-assign]
    caught = chain.mover().error
    assert caught is not None
    assert f"cannot read which tasks are in {theirs}" in str(explain(caught))
    assert chain.groups() == {INIT}


def test_container_that_ends_while_a_thread_is_outside_is_no_problem(chain: Chain) -> None:
    chain.ends_early = 1
    mover = chain.new_mover()
    assert (mover.step(), mover.outside) == (False, 1)
    chain.kernel.die(INIT)
    chain.node.remove_groups()
    assert (mover.step(), mover.problem) == (True, None)


def test_init_in_another_ctrl_group_is_an_error(chain: Chain) -> None:
    gold = chain.kernel.add_class("gold")
    chain.kernel.put(RESCTRL, b"7")
    chain.kernel.die(1000)
    chain.node.machine.before_put = lambda: chain.kernel.put(gold, b"7")
    mover = chain.new_mover()
    assert mover.step()
    assert isinstance(mover.error, HookError)
    assert mover.error.kind == WRONG_CTRL_GROUP


# --- A number that another thread has by the time of the move


def take_over(chain: Chain, pid: int) -> Callable[[], None]:
    """The thread 1000 ends, and the process of another container,
    whose init is `pid`, takes its number.
    """

    def act() -> None:
        chain.kernel.die(1000)
        chain.node.spawn(1000, cgroup_of(OTHER), f"mon_groups/{OTHER_GROUP}", born=900).parent = pid

    return act


def test_a_number_that_another_containers_thread_has_taken_since_the_look_is_not_moved(
    chain: Chain,
) -> None:
    chain.node.start(OTHER, 8, OTHER_UID)
    chain.node.machine.changes.clear()

    def read() -> set[int]:
        if chain.kernel.tasks[1000].born == 900:
            return {INIT}
        take_over(chain, 8)()
        return {INIT, 1000}

    mover = chain.mover(read)
    assert (mover.moved, chain.node.machine.changes) == (0, [])
    assert chain.node.groups() == {GROUP: {INIT}, OTHER_GROUP: {8, 1000}}


@pytest.mark.parametrize("ends_early", [True, False])
@pytest.mark.parametrize("is_shown", [True, False])
def test_a_thread_that_takes_the_number_at_the_very_move_is_moved_out_again(
    chain: Chain, is_shown: bool, ends_early: bool
) -> None:
    """The next run brings it into the group of its own container.

    The former thread may have ended before the look.
    """
    chain.node.start(OTHER, 8, OTHER_UID)
    chain.kernel.shows_groups = is_shown
    chain.node.machine.before_put = take_over(chain, 8)
    if ends_early:
        chain.kernel.die(1000)
    mover = chain.mover(
        lambda: {INIT, 1000} if chain.node.machine.before_put is not None else {INIT}
    )
    assert mover.moved == 0
    assert chain.node.groups() == {GROUP: {INIT}, OTHER_GROUP: {8}}
    assert chain.kernel.group_of(1000) == RESCTRL


def test_a_thread_that_takes_the_number_and_is_the_containers_own_stays(chain: Chain) -> None:
    def again() -> None:
        chain.kernel.die(1000)
        chain.node.spawn(1000, born=900)

    chain.node.machine.before_put = again
    mover = chain.mover()
    assert (mover.moved, mover.outside, chain.groups()) == (0, 0, {INIT, 1000})


def test_a_thread_that_comes_back_in_the_same_run_is_counted_once(chain: Chain) -> None:
    late = LateCpu()
    for ticks, seconds in ((200, 2.0), (250, 2.5)):
        chain.become(1000, "S", ticks)
        chain.new_mover(late=late).step()
        assert late.by_key == {UID: seconds}
        chain.kernel.put(RESCTRL, b"1000")


def test_late_cpu_time_is_in_the_key_and_in_the_sum_and_a_busy_key_is_added_at_the_next_save(
    chain: Chain,
) -> None:
    late, context, busy = LateCpu(), chain.node.context(), chain.node.context().run
    for seconds in (1.5, 0.25):
        late.count(UID, seconds)
        late.count("gone", 1.0)
        late.save(context)
    assert (chain.node.state().late_cpu, chain.node.reconciled().late_cpu) == (1.75, 3.75)
    late.count(UID, 1.0)
    with busy.lock(UID, 0.0):
        late.save(context)
    assert chain.node.state().late_cpu == 1.75
    late.save(context)
    assert (chain.node.state().late_cpu, chain.node.reconciled().late_cpu, late.by_key) == (
        2.75,
        4.75,
        {},
    )
