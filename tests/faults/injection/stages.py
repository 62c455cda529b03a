# SPDX-License-Identifier: Apache-2.0
"""The moments in the life of a pod at which something goes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.faults.scene import CREATE, POSTSTOP, RECONCILE, Job, Scene

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.storm import SimulatedContainer

FOR_EVER = 10**9
"""Milliseconds that an RMID stays in limbo."""


@dataclass(frozen=True)
class Stage:
    """A moment in the life of a pod, and what is to run then. `exact`: what the pod used can be known after it."""

    name: str
    verb: str
    prepare: Callable[[Scene], SimulatedContainer]
    exact: bool = True

    def __str__(self) -> str:
        return f"{self.name} ({self.verb})"

    def set(self, scene: Scene) -> Job:
        """Bring the scene to that moment."""
        scene.fresh()
        return Job(self.verb, self.prepare(scene))


def _first(scene: Scene) -> SimulatedContainer:
    return scene.born(1)


def _return(scene: Scene) -> SimulatedContainer:
    """The pod was there before, and has used something then."""
    scene.expect(not scene.run(Job(POSTSTOP, _last(scene))).outcome.stderr, "it cannot be made ready")
    return scene.born(2)


def _further(scene: Scene) -> SimulatedContainer:
    scene.busy(1)
    return scene.born(2)


def _further_end(scene: Scene) -> SimulatedContainer:
    scene.living(1)
    return scene.over(2)


def _last(scene: Scene) -> SimulatedContainer:
    return scene.over(1)


def _refused(scene: Scene) -> SimulatedContainer:
    """No RMID is left."""
    scene.hoard()
    return scene.born(1)


STAGES = (
    Stage("first", CREATE, _first),
    Stage("return", CREATE, _return),
    Stage("further", CREATE, _further),
    Stage("further's end", POSTSTOP, _further_end),
    Stage("last", POSTSTOP, _last),
    Stage("refused", CREATE, _refused),
)
"""A pod comes, or comes back; a further container comes, and ends; the last ends; one comes, but no RMID is left."""


def _vanished(scene: Scene) -> SimulatedContainer:
    """Another tool has removed the group."""
    container = scene.busy(1)
    (scene.world.root / container.group).rmdir()
    return container


def _orphan(scene: Scene) -> SimulatedContainer:
    """Nothing is recorded of a group of ours."""
    container = scene.born(1)
    (scene.world.root / container.group).mkdir()
    return container


def _torn(scene: Scene) -> SimulatedContainer:
    container = scene.busy(1)
    path = scene.state_of(container)
    path.write_text(path.read_text()[:100])
    return container


def _unmonitored(scene: Scene) -> SimulatedContainer:
    container = _refused(scene)
    scene.run(Job(CREATE, container))
    scene.give_back()
    scene.remember()
    return container


def _by_exec(scene: Scene) -> SimulatedContainer:
    """It has a process that is not in its group."""
    container = scene.busy(1)
    scene.world.born(container.join())
    return container


def _lingering(scene: Scene) -> SimulatedContainer:
    container = _last(scene)
    scene.run(Job(POSTSTOP, container), options=["--linger=60"])
    scene.change(container, lingering_until=0.0)
    return container


def _completed(scene: Scene) -> SimulatedContainer:
    """What is kept of it has been kept for long enough."""
    container = _last(scene)
    scene.run(Job(POSTSTOP, container))
    scene.change(container, completed_boottime=0.0)
    return container


RECONCILES = (
    Stage("dead without a poststop", RECONCILE, _last),
    Stage("vanished", RECONCILE, _vanished, exact=False),
    Stage("orphan", RECONCILE, _orphan),
    Stage("torn", RECONCILE, _torn, exact=False),
    Stage("unmonitored", RECONCILE, _unmonitored),
    Stage("by exec", RECONCILE, _by_exec),
    Stage("lingering", RECONCILE, _lingering),
    Stage("completed", RECONCILE, _completed, exact=False),
)
"""What reconcile is for."""


def _living(scene: Scene) -> SimulatedContainer:
    return scene.busy(1)


def _limbo(scene: Scene) -> SimulatedContainer:
    container = _last(scene)
    scene.hoard()
    scene.resctrl.control(do="set", decay_ms=FOR_EVER)
    scene.run(Job(POSTSTOP, container))
    return container


LIVING = Stage("living", CREATE, _living)
"""A container is in its group, and lives."""
LIMBO = Stage("in limbo", CREATE, _limbo)
"""The one RMID that is left was given back just now, and cannot be given out yet."""
UNMONITORED, COMPLETED, LINGERING = (
    next(stage for stage in RECONCILES if stage.name == name) for name in ("unmonitored", "completed", "lingering")
)
TURNS = (CREATE, POSTSTOP, RECONCILE)
"""What comes upon what is there: a further container, the end of the one that is there, or reconcile."""


def turn(scene: Scene, container: SimulatedContainer, verb: str) -> Job:
    """The job of one of these TURNS."""
    if verb == CREATE:
        return Job(CREATE, scene.born(2))
    if verb == POSTSTOP:
        container.kill()
    return Job(verb, container)
