# SPDX-License-Identifier: Apache-2.0
"""A /run that has no room for another page or another file, or cannot be written at all."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from tests.faults.campaign import Campaign, Case
from tests.faults.injection.stages import RECONCILES, STAGES, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faults.scene import Scene

PAGES, INODES = 16, 32
"""More than any stage takes, which are 13 and 29."""
PAGE = os.sysconf("SC_PAGE_SIZE")


def run(campaign: Campaign) -> None:
    stages = (*STAGES, *RECONCILES)
    for what, most in {"pages": PAGES, "inodes": INODES}.items():
        cases = (
            Case(f"{stage.name}: {left} {what} left", partial(_with_room, stage, what, left))
            for stage, left in product(stages, range(most))
        )
        campaign.all(f"/run has 0 to {most - 1} {what} left", cases)
    campaign.all("/run is read-only", (Case(f"{it.name}: read-only", partial(_read_only, it)) for it in stages))


def _with_room(stage: Stage, what: str, left: int, scene: Scene) -> None:
    job = stage.set(scene)
    status = os.statvfs(scene.room)
    if what == "pages":
        option = f"size={(status.f_blocks - status.f_bfree + left) * PAGE}"
    else:
        option = f"nr_inodes={status.f_files - status.f_ffree + left}"
    with _remounted(scene, option):
        scene.endure(job, record=False)
    scene.recover()


def _read_only(stage: Stage, scene: Scene) -> None:
    job = stage.set(scene)
    with _remounted(scene, "ro"):
        scene.endure(job, record=False)
    scene.recover()


@contextmanager
def _remounted(scene: Scene, option: str) -> Iterator[None]:
    _remount(scene, option)
    try:
        yield
    finally:
        _remount(scene, "rw,size=64m,nr_inodes=65536")


def _remount(scene: Scene, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", scene.room], check=True)
