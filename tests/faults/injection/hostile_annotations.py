# SPDX-License-Identifier: Apache-2.0
"""Annotations that a pod's author writes to be billed to others, or to nobody: the pod's own group counts all the same.

They are given the last word here, which no runtime gives them for all of these keys.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from tests.faults.campaign import Campaign, Case
from tests.faults.injection.stages import STAGES, Stage
from tests.faults.scene import CREATE, POSTSTOP, Job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.faults.scene import Scene

VICTIM = "00000000-0000-4000-8000-000000000001"
HOSTILE = "../../%s%n{0.__class__}\n\x1b[2J" + "x" * 5000
CRIO, CONTAINERD = "io.kubernetes.pod", "io.kubernetes.cri.sandbox"
AUTHORS: Mapping[str, Mapping[str, str]] = {
    "another pod's UID, as CRI-O has it": {f"{CRIO}.uid": VICTIM},
    "another pod's UID, as containerd has it": {f"{CONTAINERD}-uid": VICTIM, f"{CONTAINERD}-namespace": "theirs"},
    "another pod's UID, as both have it": {f"{CRIO}.uid": VICTIM, f"{CONTAINERD}-uid": VICTIM},
    "no UID": {f"{CRIO}.uid": HOSTILE, f"{CONTAINERD}-uid": "."},
    "an empty UID": {f"{CRIO}.uid": "", f"{CONTAINERD}-uid": ""},
    "Podman's mark": {"io.container.manager": "libpod", "io.kubernetes.cri-o.SandboxID": "f" * 64},
    "an unknown manager": {"io.container.manager": "none"},
    "it opts out": {"monitor.resctrl-mon.io": "false", "io.kubernetes.container.restartCount": "no"},
    "hostile names": dict.fromkeys((f"{CRIO}.name", f"{CRIO}.namespace", "io.kubernetes.container.name"), HOSTILE),
    "a hundred annotations": {f"example.com/{number}": HOSTILE for number in range(100)},
}


def run(campaign: Campaign) -> None:
    stages = [stage for stage in STAGES if stage.verb == CREATE and stage.name != "refused"]
    cases = (
        Case(f"{stage.name}: {what}", partial(_written, stage, author))
        for stage, (what, author) in product(stages, AUTHORS.items())
    )
    campaign.all("annotations that a pod's author writes", cases)


def _written(stage: Stage, author: Mapping[str, str], scene: Scene) -> None:
    job = stage.set(scene)
    container = job.container
    container.author = author
    container.be_in("")
    scene.endure(job)
    scene.expect(scene.is_done(job), "it is not in its own pod's group")
    theirs = [path for path in scene.world.groups() if VICTIM in path]
    scene.expect(not theirs, "groups of another pod:", theirs)
    scene.count()
    container.kill()
    scene.endure(Job(POSTSTOP, container))
    scene.recover()
