# SPDX-License-Identifier: Apache-2.0
"""A process that may have few descriptors, or little memory, from as much on as Python can start with."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from functools import partial
from itertools import product

from pyz import archive
from tests.faults.campaign import Campaign, Case
from tests.faults.scene import STAGES, Scene
from tests.support.hook import NATIVE, shipped

MOST_DESCRIPTORS = 16
MEMORY = range(8 << 20, 20 << 20, 256 << 10)
"""Bytes, from where Python does not start to where all is well."""


def run(campaign: Campaign) -> None:
    # With none at all poll(2) fails, which each report begins with.
    _limited(campaign, "descriptors", [("prlimit", f"--nofile={number}") for number in range(1, MOST_DESCRIPTORS)])
    # Without the addresses by chance the same limit has the same effect each time.
    _limited(campaign, "memory", [("setarch", "-R", "prlimit", f"--as={number}") for number in MEMORY])


def _limited(campaign: Campaign, what: str, limits: Sequence[tuple[str, ...]]) -> None:
    """The limits at which Python itself starts; below them the hook does not run."""
    enough = [limit for limit in limits if _starts(limit)]
    begin = max((place for place, limit in enumerate(limits) if limit not in enough), default=-1) + 1
    cases = (
        Case(f"{stage}: {limit[-1]}", partial(_with_limit, stage, limit))
        for stage, limit in product(STAGES, limits[begin:])
    )
    campaign.all(f"few {what}, from {limits[begin][-1].lstrip('-')} on", cases)
    if begin > 0:
        campaign.note(f"with {limits[begin - 1][-1]} and less the program does not start")


def _starts(limit: Sequence[str]) -> bool:
    if shipped() == NATIVE:
        command = [str(NATIVE), "hook"]
    else:
        command = [archive.PYTHON, "-ISc", archive.BOOT.partition(";f=")[0]]
    done = subprocess.run([*limit, *command], stdin=subprocess.DEVNULL, check=False, capture_output=True, env={})
    return done.returncode == 0


def _with_limit(stage: str, limit: tuple[str, ...], scene: Scene) -> None:
    state = scene.set(stage)
    outcome = scene.run(state, limit).outcome
    scene.expect(outcome.status == 0, "exit status", outcome.status)
    scene.expect(scene.is_done() or outcome.stderr, "not even Python says anything")
    scene.expect_theirs()
    scene.recover(state, by_hook=False)
