# SPDX-License-Identifier: Apache-2.0
"""Clocks that jump, pids that are used again, a /proc that hides, a resctrl that goes and comes back in the middle."""

from __future__ import annotations

from functools import partial
from itertools import chain, product
from typing import TYPE_CHECKING, Callable

from tests.faults import strace
from tests.faults.campaign import Campaign, Case
from tests.faults.injection.failing_syscalls import ERRNOS_OF_RESCTRL
from tests.faults.injection.stages import COMPLETED, LIMBO, LINGERING, LIVING, RECONCILES, STAGES, TURNS, Stage, turn
from tests.faults.scene import POSTSTOP
from tests.support.storm import is_ours

if TYPE_CHECKING:
    from tests.faults.scene import Scene
    from tests.faults.strace import Call

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
    for kind in (_jumps, _reuses, _hidings, _changes):
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


def _groups_removed(scene: Scene) -> None:
    for path in filter(is_ours, scene.world.groups()):
        (scene.world.root / path).rmdir()


def _unmounted(scene: Scene) -> None:
    scene.world.unmount()
    scene.foreign.clear()


def _mounted_anew(scene: Scene) -> None:
    _unmounted(scene)
    scene.world.mount()


DEEDS: dict[str, Callable[[Scene], None]] = {
    "our groups are removed": _groups_removed,
    "resctrl is unmounted": _unmounted,
    "resctrl is mounted anew": _mounted_anew,
}


def _changes(campaign: Campaign) -> None:
    """The hook is stopped when it has its lock, and behind each call on resctrl; meanwhile something is done."""
    for stage in STAGES:
        calls = campaign.ask(partial(_places, stage))
        cases = (
            Case(f"{stage.name}: {how} after {call}", partial(_amid, stage, call, deed))
            for call, (how, deed) in product(calls, DEEDS.items())
        )
        campaign.all(f"resctrl changes behind each of {len(calls)} calls of {stage}", cases)


def _places(stage: Stage, scene: Scene) -> list[Call]:
    job = stage.set(scene)
    scene.perform(job, strace.watched(scene.trace))
    return [call for call in strace.calls(scene.trace) if call.name == "flock" or _is_answered(call)]


def _is_answered(call: Call) -> bool:
    """Whether resctrl itself answers it; what is done behind any other comes to the same as behind the one before."""
    return call.is_on_resctrl and call.name in ("newfstatat", *ERRNOS_OF_RESCTRL)


def _amid(stage: Stage, call: Call, deed: Callable[[Scene], None], scene: Scene) -> None:
    job = stage.set(scene)
    before: list[bool] = []

    def meanwhile() -> None:
        before.append(scene.is_done(job))
        deed(scene)

    ran = scene.run_stopped(job, call, meanwhile)
    scene.expect(ran.outcome.status == 0, "exit status", ran.outcome.status)
    if not before[0] and not scene.is_done(job):
        scene.expect_told(job, ran)
    if not scene.world.mounted:
        scene.world.mount()
    scene.expect_foreign()
    scene.recover()
