# SPDX-License-Identifier: Apache-2.0
"""Clocks that jump, pids that are used again, a /proc that hides."""

from __future__ import annotations

from functools import partial
from itertools import chain, product
from typing import TYPE_CHECKING

from tests.faults.campaign import Campaign, Case
from tests.faults.injection.stages import COMPLETED, LIMBO, LINGERING, LIVING, RECONCILES, STAGES, TURNS, Stage, turn
from tests.faults.scene import POSTSTOP

if TYPE_CHECKING:
    from tests.faults.scene import Scene

STAMPS = (
    (LIVING, "created_boottime"),
    (COMPLETED, "created_boottime"),
    (COMPLETED, "completed_boottime"),
    (LINGERING, "lingering_since"),
    (LINGERING, "lingering_until"),
    (LIMBO, "freed"),
)
"""Each in the record of the pod, but `freed`, which is a file of its own."""
TIMES = (0.0, 1.5e9, 1e12, -1.0, 1e300, float("nan"), float("inf"))
"""Seconds since boot, for those who come after a clock has jumped."""
STARTTIMES = (0, 1, 2**31, 2**63 - 1)


HIDINGS = {
    "is empty": "mount -t tmpfs none /proc",
    "shows processes alone": "mount -t proc -o subset=pid none /proc",
    "hides processes": "mount -t proc -o hidepid=2 none /proc",
}


def run(campaign: Campaign) -> None:
    for kind in (_jumps, _reuses, _hidings):
        kind(campaign)


def _jumps(campaign: Campaign) -> None:
    """What is computed with is CLOCK_BOOTTIME alone; it cannot be set, but what it said before can."""
    cases = (
        Case(f"{stage.name}: {field} is {value}: {verb}", partial(_stamped, stage, field, value, verb))
        for (stage, field), value, verb in product(STAMPS, TIMES, TURNS)
        if (stage, verb) != (LINGERING, POSTSTOP)  # it has come already
    )
    campaign.all("times that are long ago, to come, or none", cases)


def _stamped(stage: Stage, field: str, value: float, verb: str, scene: Scene) -> None:
    container = stage.set(scene).container
    if field == "freed":
        (scene.hook.run_dir / field).write_text(f"{value}\n")
    else:
        scene.change(container, **{field: value})
    scene.endure(turn(scene, container, verb))
    scene.pod_is_gone()
    scene.recover()
    scene.actions("--snapshot-ttl=0")
    state = scene.hook.recorded(container.key)
    scene.expect(state is None or not state["completed_at"], "it is kept for ever:", state)


def _reuses(campaign: Campaign) -> None:
    """A member's pid is somebody else's by now, as its start time tells."""
    cases = (
        Case(f"a pid is reused, {born}: {verb}", partial(_reused, born, verb))
        for born, verb in product(STARTTIMES, TURNS)
    )
    campaign.all("pids that are reused", cases)


def _reused(born: int, verb: str, scene: Scene) -> None:
    container = LIVING.set(scene).container
    container.kill()
    members = scene.hook.key(container.key)["members"]
    members[container.id].update(pid=scene.stranger, starttime=born)
    scene.change(container, members=members)
    scene.endure(turn(scene, container, verb))
    scene.recover()


def _hidings(campaign: Campaign) -> None:
    stages = (*STAGES, *RECONCILES)
    cases = (
        Case(f"{stage.name}: /proc {how}", partial(_hidden, stage, command))
        for stage, (how, command) in product(stages, HIDINGS.items())
    )
    elsewhere = (
        Case(f"{stage.name}: in a pid namespace of its own", partial(_elsewhere, stage)) for stage in RECONCILES
    )
    campaign.all("/proc is not what it was", chain(cases, elsewhere))


def _hidden(stage: Stage, command: str, scene: Scene) -> None:
    scene.endure(stage.set(scene), ("unshare", "--mount", "sh", "-c", f'{command} && exec "$@"', "sh"))
    scene.recover()


def _elsewhere(stage: Stage, scene: Scene) -> None:
    """Processes outside look dead there, and their groups empty."""
    job = stage.set(scene)
    before = scene.world.groups()
    scene.endure(job, ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"))
    scene.expect(scene.world.groups() == before, "groups were changed:", before, scene.world.groups())
    scene.recover()
