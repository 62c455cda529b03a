# SPDX-License-Identifier: Apache-2.0
"""Killed at every system call that changes something, and again while that is put right.

SIGKILL comes before the call, and after it, which is before the next one. What is left then is put right in three
ways: by reconcile; by the same hook once more, as runtimes call it; by the hooks of a further container of the pod.
After that, and one reconcile, there is no leaked group, no lost member and no stale file, and what the pod used is
exactly what it used. Those that put it right are then killed themselves, and reconcile comes after that.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from tests.faults import strace
from tests.faults.campaign import Campaign, Case
from tests.faults.injection.stages import RECONCILES, STAGES, Stage
from tests.faults.scene import POSTSTOP, RECONCILE, Job, Scene

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tests.faults.strace import Call

PAIRS = 600
"""How many of the pairs of a kill and another one while it is repaired are tried."""


class Kill(NamedTuple):
    """A stage that is killed at a call."""

    stage: Stage
    call: Call

    def __str__(self) -> str:
        return f"{self.stage.name}: {self.call}"

    def do(self, scene: Scene) -> Job:
        job = self.stage.set(scene)
        _kill_at(scene, job, self.call)
        scene.count()
        scene.give_back()
        scene.remember()
        return job


def _kill_at(scene: Scene, job: Job, call: Call) -> None:
    """Kill a hook or a reconcile at a call.

    A reconcile may end before it: it has less to do if tasks have used no CPU time yet, or are older than its look.
    """
    status = scene.perform(job, strace.killed(scene.trace, call)).status
    is_over = status == 0 and job.verb == RECONCILE
    scene.expect(status == -9 or is_over, "it was not killed, but ended with", status)


def _reconcile(_scene: Scene, job: Job) -> Job:
    return Job(RECONCILE, job.container)


def _again(_scene: Scene, job: Job) -> Job:
    return job


def _further(scene: Scene, _job: Job) -> Job:
    """A further container comes and goes; the hook that is to run is its poststop."""
    return Job(POSTSTOP, scene.over(3))


WAYS: dict[str, Callable[[Scene, Job], Job]] = {
    "reconcile": _reconcile,
    "the same hook": _again,
    "a further container": _further,
}
"""By name, what gives the last hook of a repair."""


def run(campaign: Campaign, stages: Iterable[Stage] = (*STAGES, *RECONCILES)) -> None:
    pairs: list[tuple[Kill, str, Call]] = []
    for stage in stages:
        found = [Kill(stage, call) for call in campaign.ask(partial(_points, stage))]
        once = {f"{kill}, then {way}": (kill, way) for kill in found for way in _ways(stage)}
        cases = [Case(name, partial(_kill, *which)) for name, which in once.items()]
        repairs = campaign.all(f"{stage} at {len(found)} calls", cases)
        pairs += [(*once[name], call) for name, calls in repairs.items() for call in calls]
    chosen = Random(campaign.seed).sample(pairs, min(PAIRS, len(pairs)))
    campaign.all("killed again while repairing", _twice(chosen))
    if pairs:
        campaign.note(f"{len(chosen)} of {len(pairs)} pairs of a kill, and a kill while that is repaired")


def _ways(stage: Stage) -> list[str]:
    return ["reconcile"] if stage.verb == RECONCILE else list(WAYS)


def _points(stage: Stage, scene: Scene) -> list[Call]:
    job = stage.set(scene)
    scene.perform(job, strace.watched(scene.trace))
    return strace.kill_points(scene.trace, countable=job.verb != RECONCILE)


def _kill(kill: Kill, way: str, scene: Scene) -> list[Call]:
    """Kill once, and put that right; returns where that can be killed."""
    job = WAYS[way](scene, kill.do(scene))
    done = scene.perform(job, strace.watched(scene.trace))
    scene.expect((done.status, done.stderr) == (0, ""), "it cannot be put right")
    points = strace.kill_points(scene.trace, countable=job.verb != RECONCILE)
    if job.verb != RECONCILE:
        scene.expect(job.container.init == 0 or scene.is_done(job), "the hook does not put it right")
        scene.actions()
    scene.judge(exact=kill.stage.exact)
    return points


def _twice(pairs: Sequence[tuple[Kill, str, Call]]) -> Iterator[Case]:
    for kill, way, call in pairs:
        yield Case(f"{kill}, then {way} at {call}", partial(_kill_again, kill, way, call))


def _kill_again(kill: Kill, way: str, call: Call, scene: Scene) -> None:
    job = WAYS[way](scene, kill.do(scene))
    _kill_at(scene, job, call)
    scene.actions()
    scene.judge(exact=kill.stage.exact)
