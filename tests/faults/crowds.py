"""Crowds: many containers of one pod, or of many, come and go at the same time, while other tools remove groups.

Whoever lives is a member in the end, and nobody else; where nothing was removed no reconcile is needed for that. How
long hooks take is told beside how long they take one after another; none may wait for a lock for longer than PATIENT.
"""

from __future__ import annotations

import os
import select
import statistics
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from tests.faults.campaign import Campaign, Case
from tests.faults.scene import CREATE, PATIENCE, POSTSTOP, Job, Scene
from tests.support import oracle, storm
from tests.support.hook import finish

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from tests.support.storm import Container

CROWD, PODS, ROUNDS = 64, 200, 1000
PATIENT = "--lock-timeout=10"
"""Many times what 64 hooks, one after another, hold a lock for."""
EVERY = 5
"""After so many hooks another tool removes a group."""
ALONE = 40
"""Rounds that are one after another, to compare with."""


class Crowd(NamedTuple):
    """`size` containers at a time, over so many pods, come and go so many times in all."""

    size: int
    pods: int
    rounds: int
    others: bool = False
    """Whether other tools remove groups meanwhile."""

    def __str__(self) -> str:
        return f"{self.size} at once, pods: {self.pods}" + (", while others remove groups" if self.others else "")


def run(campaign: Campaign, rounds: int = ROUNDS, size: int = CROWD, pods: int = PODS) -> None:
    alone = campaign.ask(partial(_play, Crowd(1, 1, min(ALONE, rounds))))
    for others in (False, True):
        for number in (1, pods):
            crowd = Crowd(size, number, rounds, others)
            results = campaign.all(str(crowd), [Case(str(crowd), partial(_play, crowd), rounds)])
            for seconds in results.values():
                campaign.note(f"{crowd}: {_compared(seconds, alone)}")


def _compared(seconds: Sequence[float], alone: Sequence[float]) -> str:
    one, all_of_them = (statistics.quantiles(it, n=100) for it in (alone, seconds))
    figures = (f"p{place} x {all_of_them[place - 1] / one[place - 1]:.1f}" for place in (50, 99))
    return f"{', '.join(figures)} of hooks one after another; the longest took {max(seconds):.1f} s"


def _play(crowd: Crowd, scene: Scene) -> list[float]:
    """Returns how many seconds each hook took."""
    rmids = crowd.pods + 100
    with tempfile.TemporaryDirectory(dir=scene.directory) as at, Scene.opened(Path(at) / "crowd", rmids=rmids) as place:
        return _Play(place, crowd).play()


class _Play:
    """Hooks that run at the same time, each for a container of its own. One thread: see campaign."""

    def __init__(self, scene: Scene, crowd: Crowd) -> None:
        scene.fresh()
        scene.hook = scene.hook.with_options(PATIENT)
        self.scene = scene
        self.crowd = crowd
        self.left = crowd.rounds
        self.dice = Random(0)
        self.running: dict[int, tuple[subprocess.Popen[bytes], Job, float]] = {}
        self.seconds: list[float] = []
        self.poll = select.poll()

    def play(self) -> list[float]:
        for _ in range(min(self.crowd.size, self.left)):
            self.come()
        self.wait()
        self.judge()  # some live
        for container in self.living():
            self.go(container)
        self.wait()
        self.judge()  # nobody does
        return self.seconds

    def living(self) -> list[Container]:
        return [it for it in self.scene.containers if it.init]

    def come(self) -> None:
        """A container begins a life: a new one, or one that was there before."""
        self.left -= 1
        busy = {job.container.id for _, job, _ in self.running.values()}
        ended = [it for it in self.scene.containers if not it.init and it.id not in busy]
        container = self.dice.choice(ended) if len(ended) > self.crowd.size else self.new()
        if not container.init:
            container.start(threaded=False)
            self.scene.world.born(container.init)
        self.start(Job(CREATE, container))

    def new(self) -> Container:
        number = len(self.scene.containers) + 1
        return self.scene.born(number, f"{number % self.crowd.pods:08d}-4084-4186-9c0e-93cf8c32e2ce")

    def go(self, container: Container) -> None:
        container.kill()
        self.start(Job(POSTSTOP, container))

    def start(self, job: Job) -> None:
        process = self.scene.hook.start(job.state())
        descriptor = os.pidfd_open(process.pid)
        self.poll.register(descriptor, select.POLLIN)
        self.running[descriptor] = (process, job, time.monotonic())

    def wait(self) -> None:
        """Until no hook runs any more, and none is to begin."""
        while self.running:
            ready = self.poll.poll(PATIENCE * 1000)
            self.scene.expect(ready, "hooks hang:", [str(job.container) for _, job, _ in self.running.values()])
            for descriptor, _ in ready:
                self.ended(descriptor)

    def ended(self, descriptor: int) -> None:
        process, job, began = self.running.pop(descriptor)
        self.seconds.append(time.monotonic() - began)
        self.poll.unregister(descriptor)
        os.close(descriptor)
        outcome = finish(process)
        said = self.crowd.others or outcome.stderr == ""
        self.scene.expect(outcome.status == 0 and said and "lock_timeout" not in outcome.stderr, job, outcome)
        if self.crowd.others and len(self.seconds) % EVERY == 0:
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
