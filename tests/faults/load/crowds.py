# SPDX-License-Identifier: Apache-2.0
"""Crowds: many containers of one pod, or of many, come and go at the same time, while other tools remove groups.

Whoever lives is a member in the end, and nobody else; where nothing was removed no reconcile is needed for that. Locks
are had in turn: while one hook waits no more than a few times as many others begin and end as there are at a time. How
long hooks take is told beside how long they take one after another.
"""

from __future__ import annotations

import os
import select
import statistics
import tempfile
import time
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from tests.faults.campaign import Campaign, Case
from tests.faults.scene import CREATE, PATIENCE, POSTSTOP, Job, Scene
from tests.support import oracle, storm
from tests.support.hook import PATIENT, finish

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from tests.support.storm import SimulatedContainer

CROWD, PODS = 64, 200
ROUNDS = 250
"""Lives that each of the crowd has."""
MOST_PASSED = {False: 10, True: 40}
"""By how many times the size of the crowd a hook may be passed; it is passed by one crowd if all of them take turns.

They do so but for newcomers who find the lock free, and all wait anew when a key has ended. Where other tools remove
groups, a hook may have to begin anew three times: each time behind all others. Who polls is passed without an end.
"""
EVERY = 5
"""After so many hooks another tool removes a group."""
ALONE = 40
"""Lives that are one after another, to compare with."""


class Crowd(NamedTuple):
    """`size` containers at a time, over so many pods, come and go: so many lives in all."""

    size: int
    pods: int
    lives: int
    others: bool = False
    """Whether other tools remove groups meanwhile."""

    def __str__(self) -> str:
        return f"{self.size} at once, pods: {self.pods}" + (", while others remove groups" if self.others else "")


class Timing(NamedTuple):
    """How many seconds a hook took, and how many others ended meanwhile."""

    seconds: float
    passed: int


def run(campaign: Campaign, size: int = CROWD, pods: int = PODS) -> None:
    lives = campaign.most or size * ROUNDS
    played: dict[str, list[Timing]] = {}
    for others, number in product((False, True), (1, pods)):
        crowd = Crowd(size, number, lives, others)
        played |= campaign.all(str(crowd), [Case(str(crowd), partial(_play, crowd), lives)])
    if played:
        alone = campaign.ask(partial(_play, Crowd(1, 1, min(ALONE, lives))))
        share = f"(x {size / (os.cpu_count() or 1):.0f} since they share the CPUs)"
        for crowd_name, timings in played.items():
            campaign.note(f"{crowd_name}: {_compared(timings, alone)} {share}")


def _compared(timings: Sequence[Timing], alone: Sequence[Timing]) -> str:
    one, crowd = (statistics.quantiles([it.seconds for it in hooks], n=100) for hooks in (alone, timings))
    figures = ", ".join(f"p{place} x {crowd[place - 1] / one[place - 1]:.1f}" for place in (50, 99))
    passed = max(it.passed for it in timings)
    return f"the most that passed one hook were {passed}; {figures} of what hooks take one after another"


def _play(crowd: Crowd, scene: Scene) -> list[Timing]:
    """Returns what each hook took."""
    rmids = crowd.pods + 100
    with tempfile.TemporaryDirectory(dir=scene.directory) as at, Scene.opened(Path(at) / "crowd", rmids=rmids) as place:
        return _Play(place, crowd).play()


class _Play:
    """Hooks that run at the same time, each for a container of its own. One thread: see campaign."""

    def __init__(self, scene: Scene, crowd: Crowd) -> None:
        scene.fresh()
        scene.hook = scene.hook.with_options(PATIENT)  # what is looked at is who passes whom
        self.scene = scene
        self.crowd = crowd
        self.left = crowd.lives
        self.dice = Random(0)
        self.running: dict[int, tuple[subprocess.Popen[bytes], Job, float, int]] = {}
        self.timings: list[Timing] = []
        self.poll = select.poll()

    def play(self) -> list[Timing]:
        for _ in range(min(self.crowd.size, self.left)):
            self.come()
        self.wait()
        self.judge()  # some live
        for container in self.living():
            self.go(container)
        self.wait()
        self.judge()  # nobody does
        return self.timings

    def living(self) -> list[SimulatedContainer]:
        return [it for it in self.scene.containers if it.init]

    def come(self) -> None:
        """A container begins a life: a new one, or one that was there before."""
        self.left -= 1
        busy = {job.container.id for _, job, *_ in self.running.values()}
        ended = [it for it in self.scene.containers if not it.init and it.id not in busy]
        are_all = len(self.scene.containers) == self.crowd.size + self.crowd.pods
        container = self.dice.choice(ended) if are_all else self.new()
        if not container.init:
            container.start(threaded=False)
            self.scene.world.born(container.init)
        self.start(Job(CREATE, container))

    def new(self) -> SimulatedContainer:
        number = len(self.scene.containers) + 1
        return self.scene.born(number, f"{number % self.crowd.pods:08d}-4084-4186-9c0e-93cf8c32e2ce")

    def go(self, container: SimulatedContainer) -> None:
        container.kill()
        self.start(Job(POSTSTOP, container))

    def start(self, job: Job) -> None:
        process = self.scene.hook.start(job.state())
        descriptor = os.pidfd_open(process.pid)
        self.poll.register(descriptor, select.POLLIN)
        self.running[descriptor] = (process, job, time.monotonic(), len(self.timings))

    def wait(self) -> None:
        """Until no hook runs any more, and none is to begin."""
        while self.running:
            ready = self.poll.poll(PATIENCE * 1000)
            self.scene.expect(ready, "hooks hang:", [str(job.container) for _, job, *_ in self.running.values()])
            for descriptor, _ in ready:
                self.ended(descriptor)

    def ended(self, descriptor: int) -> None:
        process, job, began, before = self.running.pop(descriptor)
        self.timings.append(Timing(time.monotonic() - began, len(self.timings) - before))
        self.poll.unregister(descriptor)
        os.close(descriptor)
        outcome = finish(process)
        said = self.crowd.others or outcome.stderr == ""
        self.scene.expect(outcome.status == 0 and said and "lock_timeout" not in outcome.stderr, job, outcome)
        passed = self.timings[-1].passed
        most = MOST_PASSED[self.crowd.others] * self.crowd.size
        self.scene.expect(passed <= most, job, "was passed by", passed)
        if self.crowd.others and len(self.timings) % EVERY == 0:
            self.remove()
        if job.verb == CREATE:
            job.container.known = True
            if self.left:
                self.go(job.container)
        elif self.left:
            self.come()

    def remove(self) -> None:
        groups = sorted(filter(storm.is_ours, self.scene.world.groups()))
        if groups:
            with suppress(FileNotFoundError):  # its last hook was quicker
                (self.scene.world.root / self.dice.choice(groups)).rmdir()

    def judge(self) -> None:
        self.scene.log.lines()
        if self.crowd.others:
            self.scene.actions()
        oracle.Verdict(self.scene).give()
        self.scene.expect_foreign()
