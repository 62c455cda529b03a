# SPDX-License-Identifier: Apache-2.0
"""Files of ours that are not what we wrote: cut at every byte, replaced by something else, hostile, of others."""

from __future__ import annotations

import os
from functools import partial
from itertools import cycle, product
from typing import TYPE_CHECKING, NamedTuple

from tests.faults.campaign import Campaign, Case
from tests.faults.injection.damage import ANOTHER, DIRECTORIES, FILES, RUN_DIRECTORY, Spoil, identity, remove
from tests.faults.injection.stages import COMPLETED, LIMBO, LIVING, TURNS, UNMONITORED, Stage, turn
from tests.faults.scene import CREATE, POSTSTOP
from tests.support.hook import UID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.faults.scene import Scene

ID = f"{1:012x}{0:052x}"


class OwnFile(NamedTuple):
    """A file of ours: the stage in whose scene there is one, and where it is in the run directory."""

    stage: Stage
    place: str

    def __str__(self) -> str:
        part = self.place.replace(UID, "KEY").replace(ID, "CONTAINER") or "the run directory"
        return f"{part} ({self.stage.name})"


RECORDS = (
    OwnFile(LIVING, f"groups/{UID}.json"),
    OwnFile(COMPLETED, f"groups/{UID}.json"),
    OwnFile(LIVING, f"members/{ID}.json"),
    OwnFile(UNMONITORED, f"unmonitored/{ID}.json"),
    OwnFile(LIMBO, "freed"),
)
OTHERS = tuple(
    OwnFile(LIVING, place)
    for place in (
        f"locks/{UID}",
        f"groups/.{UID}.tmp",
        f"members/.{UID}.tmp",
        f"unmonitored/.{ID}.tmp",
        f"building/{UID}",
        f"building/{UID}.old",
        f"mon_groups/{UID}",
        "runs/createRuntime-monitored",
        "mon_data",
    )
)
"""What else there can be a file of."""
PARTS = tuple(OwnFile(LIVING, place) for place in ("groups", "members", "locks", "unmonitored", "runs", "building"))
RUN = (OwnFile(LIVING, ""),)


def run(campaign: Campaign) -> None:
    for record in RECORDS:
        size = campaign.ask(partial(_size, record))
        cases = (
            Case(f"{record} cut at {at}: {verb}", partial(_spoilt, record, partial(_cut, at), verb))
            for at, verb in zip(range(size), cycle(TURNS))
        )
        campaign.all(f"{record} cut at each of {size} bytes", cases)
    _replaced(campaign, "files of ours", (*RECORDS, *OTHERS), FILES)
    _replaced(campaign, "directories of ours", PARTS, DIRECTORIES)
    _replaced(campaign, "the run directory", RUN, RUN_DIRECTORY)


def _replaced(campaign: Campaign, what: str, records: Sequence[OwnFile], spoils: Mapping[str, Spoil]) -> None:
    cases = (
        Case(f"{record} is {name}: {verb}", partial(_spoilt, record, spoil, verb))
        for record, (name, spoil), verb in product(records, spoils.items(), TURNS)
    )
    campaign.all(f"{what}, replaced in {len(spoils)} ways", cases)


def _size(record: OwnFile, scene: Scene) -> int:
    record.stage.set(scene)
    return (scene.hook.run_dir / record.place).stat().st_size


def _cut(at: int, path: Path) -> None:
    os.truncate(path, at)


def _spoilt(record: OwnFile, spoil: Spoil, verb: str, scene: Scene) -> None:
    """Something comes upon a file that is spoilt. What that has left as it was is taken away then."""
    container = record.stage.set(scene).container
    path = scene.hook.run_dir / record.place
    spoil(path)
    spoilt = identity(path)
    state, index = scene.state_of(container), scene.hook.run_dir / f"members/{container.id}.json"
    is_lost = not os.path.lexists(state)
    if record.stage == COMPLETED and is_lost:
        scene.used = 0  # nobody can know of it any more
    job = turn(scene, container, verb)
    if verb == POSTSTOP and (is_lost or _leads_nowhere(index)):
        scene.endure(job, stderr=False, syslog=False)  # it may be a second one, or of a container that was none of ours
    elif record.place in ("", "unmonitored"):
        scene.endure(job, record=False)
    else:
        scene.endure(job)
    is_ours = record.place != "" or spoilt is None
    scene.expect(is_ours or verb != CREATE or not scene.is_done(job), "what is not ours alone was trusted")
    scene.count()
    if spoilt is not None and identity(path) == spoilt:
        remove(path)
    if record.stage == UNMONITORED:
        container.known = None  # that record was all there is of it
    scene.recover()


def _leads_nowhere(index: Path) -> bool:
    """Whether an index has nothing to say, or what it says is no lie that could be seen."""
    return not os.path.lexists(index) or (index.is_file() and index.read_bytes() == ANOTHER)
