# SPDX-License-Identifier: Apache-2.0
"""The moments in the life of a pod at which something goes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.faults.scene import CREATE, POSTSTOP, Job, Scene

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulator.node import ContainerLife


@dataclass(frozen=True)
class Stage:
    """A moment in the life of a pod, and what is to run then."""

    name: str
    verb: str
    prepare: Callable[[Scene], ContainerLife]

    def __str__(self) -> str:
        return f"{self.name} ({self.verb})"

    def set(self, scene: Scene) -> Job:
        """Bring the scene to that moment."""
        scene.fresh()
        return Job(self.verb, self.prepare(scene))


def _first(scene: Scene) -> ContainerLife:
    return scene.born(1)


def _return(scene: Scene) -> ContainerLife:
    """The pod was there before, and has used something then."""
    scene.expect(not scene.run(Job(POSTSTOP, _last(scene))).outcome.stderr, "it cannot be made ready")
    return scene.born(2)


def _further(scene: Scene) -> ContainerLife:
    scene.busy(1)
    return scene.born(2)


def _further_end(scene: Scene) -> ContainerLife:
    scene.living(1)
    return scene.over(2)


def _last(scene: Scene) -> ContainerLife:
    return scene.over(1)


def _refused(scene: Scene) -> ContainerLife:
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
