# SPDX-License-Identifier: Apache-2.0
"""What only the model of resctrl can show: its knobs, its time, and machines that the documentation alone describes.

All else `kernel/test_model_is_kernel.py` compares with the kernel. Here are no mount, no processes, no time.
"""

from __future__ import annotations

import errno
import json
import re
import shlex
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.resctrlfs import shapes
from tests.resctrlfs.model import Injection, Knobs, ResctrlModel
from tests.resctrlfs.tasks import Task

WRITER = 7


@dataclass
class FakeTasks:
    """Tasks as a test makes them, in one pid namespace."""

    tasks: dict[int, Task] = field(default_factory=dict)
    now: int = 0

    def start(self, tid: int, parent: int = 1) -> None:
        self.now += 1
        self.tasks[tid] = Task(tid, tid, parent, self.now)

    def snapshot(self) -> dict[int, Task]:
        return dict(self.tasks)

    def resolve(self, _observer: int, number: int) -> int | None:
        return number if number in self.tasks else None

    def number(self, _observer: int, tid: int) -> int:
        return tid


class ModelOfFakeTasks(ResctrlModel):
    """Its tasks are 1 and WRITER, and its time is `now`, in milliseconds."""

    def __init__(self, knobs: dict[str, Any]) -> None:
        self.fake = FakeTasks()
        self.now = 0
        self.fake.start(1, parent=0)
        self.fake.start(WRITER)
        super().__init__(self.fake, lambda: self.now * 1_000_000, Knobs(**knobs))

    def take(self, step: str, *words: str) -> str:
        """Take a step of a script; returns what comes of it: a text, an errno, or nothing."""
        try:
            return self._take(step, *words).strip().replace("\n", " / ")
        except OSError as error:
            return errno.errorcode[error.errno or 0]

    def _take(self, step: str, path: str, text: str = "") -> str:
        if step == "read":
            return self.read(path)
        if step == "list":
            return " ".join(self.listdir(path))
        if step == "at":
            self.now = int(path)
        elif step == "grow":
            self.grow(path)
        elif step == "run":
            self.run(int(path), int(text))
        elif step == "mkdir":
            self.mkdir(path, 0o755)
        elif step == "rmdir":
            self.rmdir(path)
        elif step == "write":
            self.write(path, text.replace("/", "\n").encode() + b"\n", WRITER)
        elif step == "reuse":
            del self.fake.tasks[int(path)]
            self.fake.start(int(path))
        else:
            assert step == "stray"
            self.stray(WRITER, int(path), int(text) if text.isdecimal() else self.resolve(text).group.rmid)
        return ""


SCRIPTS = r"""
{"rmids": 2} | limbo never ends at threshold 0
    write info/L3_MON/max_threshold_occupancy 0 ; mkdir mon_groups/a ; rmdir mon_groups/a ; at 3600000 ;
    mkdir mon_groups/b -> EBUSY ; write info/L3_MON/max_threshold_occupancy 65536 ; at 3601000 ; mkdir mon_groups/b
{} | a pid that comes again is another task
    mkdir mon_groups/x ; write mon_groups/x/tasks 7 ; reuse 7 ; read mon_groups/x/tasks
{"rmids": 2, "decay_ms": 0} | a stale RMID turns up in the next group that gets it
    mkdir mon_groups/x ; rmdir mon_groups/x ; stray 0 1 ; mkdir mon_groups/y ; read mon_groups/y/tasks -> 7 ;
    write tasks 7 ; read mon_groups/y/tasks
{} | a stray is known by its RMID alone
    mkdir mon_groups/x ; stray 3 mon_groups/x ; read mon_groups/x/tasks -> 7 ; read tasks -> 1 ;
    rmdir mon_groups/x ; read tasks -> "1 / 7"
{"rmids": 2, "decay_ms": 0} | energy of an RMID goes on where it is used again
    mkdir mon_groups/a ; read mon_groups/a/$ENERGY -> Unavailable ; write mon_groups/a/tasks 7 ;
    read mon_groups/a/$ENERGY -> 0.000000 ; grow 3.5 ; rmdir mon_groups/a ; mkdir mon_groups/b ;
    read mon_groups/b/$ENERGY -> 3.500000 ; read mon_groups/b/$TRAFFIC -> 0
{"rmids": 2, "decay_ms": 0} | a package has data of an RMID once a task ran there with it, also for the next group
    mkdir mon_groups/a ; write mon_groups/a/tasks 7 ; read mon_groups/a/$ENERGY -> 0.000000 ;
    read mon_groups/a/$SECOND -> Unavailable ; run 7 1 ; read mon_groups/a/$SECOND -> 0.000000 ;
    rmdir mon_groups/a ; mkdir mon_groups/b ; read mon_groups/b/$SECOND -> 0.000000 ; read $SECOND -> 0.000000
{"ticking": true} | each read has a counter grow
    mkdir mon_groups/x ; read mon_groups/x/$TRAFFIC -> 1 ; read mon_groups/x/$TRAFFIC -> 2 ; read $TRAFFIC -> 3 ;
    read mon_groups/x/$OCCUPANCY -> 0 ; read mon_groups/x/$OCCUPANCY -> 0
OCCUPANCY_ONLY | no other counter
    mkdir mon_groups/x ; read info/L3_MON/mon_features -> llc_occupancy ;
    list mon_groups/x/mon_data/mon_L3_00 -> llc_occupancy ; read info/L3_MON/mbm_assign_mode -> [default]
AMD {"mbm_cntrs": 5} | each group gets its counters until there are none
    read info/L3_MON/num_mbm_cntrs -> 0=5;1=5 ; read info/L3_MON/available_mbm_cntrs -> 0=3;1=3 ;
    mkdir mon_groups/x ; read info/last_cmd_status -> ok ; mkdir mon_groups/y ;
    read info/last_cmd_status -> "Failed to allocate counter for mbm_local_bytes in domain 0" ;
    read mon_groups/y/mbm_L3_assignments -> "mbm_total_bytes:0=e;1=e / mbm_local_bytes:0=_;1=_" ;
    read mon_groups/y/mon_data/mon_L3_01/mbm_local_bytes -> Unassigned ;
    rmdir mon_groups/x ; read info/L3_MON/available_mbm_cntrs -> 0=2;1=2
AMD_ABMC | without assignment on mkdir a group has no counter until it is given one
    write info/L3_MON/mbm_assign_on_mkdir 0 ; mkdir mon_groups/x ; write mon_groups/x/tasks 7 ; grow 7 ;
    read mon_groups/x/$TRAFFIC -> Unassigned ;
    write mon_groups/x/mbm_L3_assignments "mbm_total_bytes:*=e/mbm_local_bytes:1=e;0=_" ; grow 5 ;
    read mon_groups/x/$TRAFFIC -> 5 ;
    read mon_groups/x/mbm_L3_assignments -> "mbm_total_bytes:0=e;1=e / mbm_local_bytes:0=_;1=e"
AMD_ABMC | assignments that are refused
    write mbm_L3_assignments mbm_total_bytes:9=e -> EINVAL ; write mbm_L3_assignments mbm_total_bytes:0=x -> EINVAL ;
    write mbm_L3_assignments energy:0=e -> EINVAL ; write mbm_L3_assignments x -> EINVAL
AMD {"mbm_cntrs": 2} | no counter is left to assign
    mkdir mon_groups/x ; write mon_groups/x/mbm_L3_assignments mbm_total_bytes:1=e -> ENOSPC ;
    read info/last_cmd_status -> "Failed to allocate counter for mbm_total_bytes in domain 1"
AMD_ABMC | in default mode every group is counted and nothing assigned, and only new groups get counters afterwards
    read info/L3_MON/mbm_assign_mode -> "[mbm_event] / default" ; write info/L3_MON/mbm_assign_mode default ;
    read info/L3_MON/mbm_assign_mode -> "[default] / mbm_event" ; read $TRAFFIC -> 0 ;
    read info/L3_MON/available_mbm_cntrs -> EINVAL ; read info/L3_MON/mbm_assign_on_mkdir -> EINVAL ;
    read mbm_L3_assignments -> EINVAL ; write info/L3_MON/mbm_assign_mode mbm_event ; read $TRAFFIC -> Unassigned
MPAM {"debug": true} | on arm64 each ctrl_group has RMIDs of its own
    read info/L3_MON/num_rmids -> 32 ; mkdir mon_groups/a ; mkdir mon_groups/b ; mkdir mon_groups/c ;
    mkdir mon_groups/d -> ENOSPC ; read info/last_cmd_status -> "Out of RMIDs" ; mkdir gold ; mkdir gold/mon_groups/a ;
    read mon_groups/a/mon_hw_id -> 1 ; read gold/mon_hw_id -> 0 ; read gold/mon_groups/a/mon_hw_id -> 1 ;
    write mon_groups/a/tasks 7 ; read mon_groups/a/tasks -> 7 ; read gold/mon_groups/a/tasks
MPAM | on arm64 RMIDs in limbo are ENOSPC while another ctrl_group has some
    mkdir mon_groups/a ; mkdir mon_groups/b ; mkdir mon_groups/c ; rmdir mon_groups/a ; mkdir mon_groups/d -> ENOSPC ;
    at 3000 ; mkdir mon_groups/d
MPAM_ASSIGNED | on arm64 local traffic is not told apart and the mode is fixed
    read info/L3_MON/mon_features -> "llc_occupancy / mbm_total_bytes" ;
    read info/L3_MON/mbm_assign_mode -> [mbm_event] ; write info/L3_MON/mbm_assign_mode default -> EINVAL ;
    read info/last_cmd_status -> "Counter assignment mode is not configurable"
"""
"""[SHAPE] [KNOBS] | NAME, and steps after it, some with what comes of them; / is the end of a line."""
PLACES = {
    "$ENERGY": "mon_data/mon_PERF_PKG_00/core_energy",
    "$SECOND": "mon_data/mon_PERF_PKG_01/core_energy",
    "$TRAFFIC": "mon_data/mon_L3_00/mbm_total_bytes",
    "$OCCUPANCY": "mon_data/mon_L3_00/llc_occupancy",
}


def parsed() -> dict[str, tuple[str, str]]:
    """SCRIPTS: the machine and the steps of each, by its name."""
    heads = (paragraph.partition("\n") for paragraph in re.split(r"\n(?=\S)", SCRIPTS.strip()))
    return {head.partition(" | ")[2]: (head.partition(" | ")[0], body) for head, _, body in heads}


@pytest.mark.parametrize(("machine", "steps"), parsed().values(), ids=parsed())
def test_machine_does_what_its_documentation_says(machine: str, steps: str) -> None:
    shape, _, more = machine.partition("{")
    knobs = json.loads("{" + more) if more else {}
    model = ModelOfFakeTasks({**(getattr(shapes, shape.strip()) if shape.strip() else {}), **knobs})
    for name, place in PLACES.items():
        steps = steps.replace(name, place)
    for step in steps.split(" ;"):
        words, _, expected = step.partition(" -> ")
        came = model.take(*shlex.split(words))
        assert came == " ".join(shlex.split(expected)), step.strip()


def test_injections_strike_as_often_as_set() -> None:
    model = ModelOfFakeTasks({})
    model.injections.append(Injection("mkdir", "/x", errno.EIO, times=2, after=1))
    paths = ("mon_groups/y", "gold", "gold/mon_groups/x", "mon_groups/x", "mon_groups/x", "mon_groups/x")
    assert [model.take("mkdir", path) for path in paths] == ["", "", "", "EIO", "EIO", ""]


@pytest.mark.parametrize("knobs", [{"packages": 2}, {"closids": 0}, {"rmids": 31}])
def test_an_arm64_that_cannot_be_is_refused(knobs: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="mpam"):
        Knobs(**shapes.MPAM | knobs)
