# SPDX-License-Identifier: Apache-2.0
"""Processes that take turns: one has the baton,
and at each of its system calls the schedule says what happens next.

A process is a thread that runs only while it has the baton,
so a schedule is all that decides what comes of it.
"""

from __future__ import annotations

import errno
import threading
import traceback
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from tests.simulator.kernel import Kernel, make_error
from tests.simulator.machine import Caller, SimulatedMachine

ERRNOS = (errno.EIO, errno.ENOSPC, errno.EACCES, errno.ENOMEM, errno.EINVAL, errno.EBUSY)
_CHANCES: dict[str, tuple[Sequence[float], Sequence[float]]] = {
    "to": ((0.01, 0.05, 0.2, 0.5), (0, 1, 2)),
    "kill": ((0.0, 0.0, 0.003, 0.01), (0,)),
    "errno": ((0.0, 0.0, 0.003, 0.01), ERRNOS),
    "sleep": ((0.0, 0.0, 0.002, 0.01), (0.06, 1.1, 6.0, 31.0)),
}
"""How often something happens at a point, of which a run has one rate, and its values."""
_PATIENCE = 60.0  # seconds for a schedule, which takes milliseconds
_TICK = 1e-5  # seconds that a system call takes


class ProcessKilled(BaseException):
    """The process ends here: nothing that it would have done comes after this."""


class Turn(NamedTuple):
    """What happens at the `at`-th point of a run: `to` another process, `kill`, `errno`,
    or `sleep` for some seconds.

    `next`: which process goes on where one has ended, or waits. It is written as `str` gives it.
    """

    at: int
    kind: str
    value: float

    def __str__(self) -> str:
        return f"{self.at}:{self.kind}{self.value:g}"


def read_turn(text: str) -> Turn:
    """The event that `str` gave."""
    at, _, what = text.partition(":")
    kind = what.rstrip("0123456789.")
    return Turn(int(at), kind, float(what[len(kind) :]))


class SimulatedProcess:
    """A process while it runs: what it does, and what it is for (`what`);
    `result`: what came of it.
    """

    def __init__(self, what: str, body: Callable[[], object], stdin: bytes = b"") -> None:
        self.what = what
        self.body = body
        self.caller = Caller(stdin)
        self.result: object = None
        self.error: str | None = None
        self.is_killed = False
        self.had_fault = False


class Lane:
    """Processes one after the other, as a runtime starts them;
    each begins when the one before it has ended.
    """

    def __init__(self, name: str, lives: Callable[[], object]) -> None:
        self.name = name
        self.lives = lives
        self.baton = threading.Lock()
        self.baton.acquire()
        self.is_done = False
        self.life: SimulatedProcess | None = None
        self.waits: tuple[Callable[[], bool], float] | None = None


class SimulatedRun(SimulatedMachine):
    """A machine on which lanes take turns.

    `plan`: the events, in order; or `random`: it makes them as it goes.

    `happened`: what did, which as a plan repeats the run. `may_fail`:
    time has passed that some did not have; `has_errno`: a call has failed.
    """

    def __init__(
        self, kernel: Kernel, plan: Sequence[Turn] = (), random: Random | None = None
    ) -> None:
        super().__init__(kernel=kernel)
        self.points = 0
        self.happened: list[Turn] = []
        self.trace: list[str] | None = None
        self.may_fail = self.has_errno = False
        self.after_change: Callable[[str, str], None] = lambda _call, _path: None
        self.problem: BaseException | None = None
        self._plan = {event.at: event for event in plan if event.kind != "next"}
        self._next_lanes = {event.at: int(event.value) for event in plan if event.kind == "next"}
        self._random = random
        self._rates = (
            {kind: random.choice(rates) for kind, (rates, _) in _CHANCES.items()} if random else {}
        )
        self._lanes: list[Lane] = []
        self.lane: Lane | None = None
        self.life: SimulatedProcess | None = None  # the process that runs beside no other
        self._main = threading.Lock()
        self._main.acquire()

    # --- Lanes

    def together(self, **lanes: Callable[[], object]) -> None:
        """Run these until all have ended."""
        self._lanes = [Lane(name, lives) for name, lives in lanes.items()]
        threads = [
            threading.Thread(target=self._run, args=(lane,), daemon=True) for lane in self._lanes
        ]
        for thread in threads:
            thread.start()
        self._pass_on(self._choose_next())
        if not self._main.acquire(timeout=_PATIENCE):
            raise RuntimeError(
                "a process waits for another one in a way that the simulator does not know"
            )
        for thread in threads:
            thread.join()
        self.lane, self._lanes = None, []
        if self.problem is not None:
            raise self.problem

    def live(self, life: SimulatedProcess) -> SimulatedProcess:
        """Let a process run from its start to its end, whatever that is."""
        lane = self.lane
        former, self.caller = self.caller, life.caller
        if lane is not None:
            lane.life = life
        else:
            self.life = life
        try:
            life.result = life.body()
        except ProcessKilled:
            life.is_killed = True
        except Exception:  # noqa: BLE001  the oracle's to judge
            life.error = traceback.format_exc()
        self.release(life.caller)
        if lane is not None:
            lane.life = None
        self.life = None
        self.caller = former
        return life

    def _run(self, lane: Lane) -> None:
        lane.baton.acquire()
        if self.problem is None:
            try:
                lane.lives()
            except ProcessKilled:
                pass  # another lane had a problem
            except BaseException as error:  # noqa: BLE001  handed to the one who called `together`
                self.problem = error
        lane.is_done = True
        self._pass_on(self._choose_next())

    def _pass_on(self, lane: Lane | None) -> None:
        self.lane = lane
        if lane is None:
            self._main.release()
        else:
            self.caller = lane.life.caller if lane.life is not None else self.caller
            lane.baton.release()

    def _choose_next(self) -> Lane | None:
        able = self._list_able()
        if not able:
            return None
        place = self._next_lanes.get(self.points)
        if place is None and self._random is not None and len(able) > 1:
            place = self._random.randrange(len(able))
        if place is not None:
            self.happened.append(Turn(self.points, "next", place))
        return able[(place or 0) % len(able)]

    def _list_able(self) -> list[Lane]:
        """Those that can go on; if all wait, time passes until one can."""
        live = [lane for lane in self._lanes if not lane.is_done]
        able = [
            lane
            for lane in live
            if lane.waits is None or self.kernel.now >= lane.waits[1] or lane.waits[0]()
        ]
        if live and not able:
            self.kernel.now = min(lane.waits[1] for lane in live if lane.waits is not None)
            return self._list_able()
        return able

    def _switch(self, to: Lane) -> None:
        me, former = self.lane, self.caller
        assert me is not None
        if to is me:
            return
        self._pass_on(to)
        me.baton.acquire()
        self.lane, self.caller = me, former
        if self.problem is not None:
            raise ProcessKilled

    # --- Points

    def at_call(self, name: str, path: str) -> None:
        super().at_call(name, path)
        lane = self.lane
        if lane is None:
            return
        life = lane.life
        if self.problem is not None or (life is not None and life.is_killed):
            raise ProcessKilled
        if not path:  # stdin: no time passes while a runtime hands over what is there
            return
        self.kernel.now += _TICK
        self.points += 1
        event = self._plan.get(self.points) or (
            self._make_event() if self._random is not None else None
        )
        if self.trace is not None:
            what = life.what if life is not None else "-"
            self.trace.append(
                f"{self.points:5} {lane.name:3} {what:18} {name} {path} {event or ''}"
            )
        if event is not None:
            self.happened.append(event)
            self._let_happen(event, life, path)
            if life is not None and life.is_killed:
                raise ProcessKilled

    def _let_happen(self, event: Turn, life: SimulatedProcess | None, path: str) -> None:
        if event.kind == "to":
            others = [lane for lane in self._list_able() if lane is not self.lane]
            if others:
                self._switch(others[int(event.value) % len(others)])
        elif event.kind == "sleep":
            self.kernel.now += event.value
            self.may_fail = True
        elif event.kind == "kill" and life is not None:
            life.is_killed = life.had_fault = True
        elif event.kind == "errno" and life is not None and not life.had_fault:
            if life.what.startswith("poststop") and path.startswith("/proc/"):
                return  # where /proc cannot tell, a poststop is believed
            life.had_fault = self.has_errno = True
            raise make_error(int(event.value))

    def _make_event(self) -> Turn | None:
        assert self._random is not None
        lot = self._random.random()
        for kind, rate in self._rates.items():
            if lot < rate:
                return Turn(self.points, kind, self._random.choice(_CHANCES[kind][1]))
            lot -= rate
        return None

    def wait(self, is_over: Callable[[], bool], until: float) -> None:
        lane = self.lane
        if lane is None:
            super().wait(is_over, until)
            return
        lane.waits = is_over, until
        to = self._choose_next()
        if to is not None:
            self._switch(to)
        lane.waits = None

    def changed(self, call: str, path: str) -> None:
        self.after_change(call, path)
