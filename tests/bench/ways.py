# SPDX-License-Identifier: Apache-2.0
"""How many modules each way through the program enters: `python3 -m tests.bench.ways [--list]`.

A reader who follows a way opens these. It plays each way twice on a simulated machine whose keys
have a history, and counts in the second one, so that no import counts. It counts from the use case
on (DOORS). Left out is what every module uses: system calls (`rare` and `host`, too), formats,
names, models and errors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import hook
from hook import jobs, system
from hook.store import RunDir
from tests.simulator.machine import RUN, SimulatedMachine
from tests.unit.simulated import ID, OTHER, OTHER_UID, Node

HOOK = Path(hook.__file__).parent
SHARED = {
    "system",
    "rare",
    "host",
    "validation",
    "names",
    "models",
    "models_compiled",
    "errors",
    "formats",
}
DOORS = {"create_runtime", "poststop", "release", "repair"}
LOGS = "/var/log/jobs"
ON: dict[str, Any] = {"history": f"{LOGS}/history.jsonl"}
Ways = Iterator[tuple[str, Callable[[], object]]]


def play_containers(node: Node) -> Ways:
    """Play a pod of two containers, whose group another tool removes in between."""
    yield "first", lambda: node.start(**ON)
    yield "further", lambda: node.start(OTHER, 8, **ON)
    node.remove_groups()
    yield "a whole remake", lambda: node.repair(ON)
    yield "not the last", lambda: node.stop(OTHER, 8, **ON)
    yield "last", lambda: node.stop(ID, 7, **ON)


def play_enospc(node: Node) -> Ways:
    """Play a start that finds the only RMID with a key whose container is dead."""
    node.start(OTHER, 5, uid=OTHER_UID)
    node.kernel.die(5)
    node.kernel.rmids = 1
    yield "ENOSPC with reclaim", node.start


def play_job(node: Node) -> Ways:
    """Play the release of a job."""
    node.spawn(7, "/user.slice")
    jobs.assign(node.context(**ON), "a", {7: ""})
    context = node.context(**ON)
    yield "release", lambda: jobs.release(context, "a")


def list_modules(way: Callable[[], object]) -> list[str]:
    """List the modules of which the way calls a function."""
    files = set[str]()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and (files or code.co_name in DOORS) and is_ours(code.co_filename):
            files.add(code.co_filename)

    sys.setprofile(note)
    try:
        way()
    finally:
        sys.setprofile(None)
    inside = (Path(file).relative_to(HOOK) for file in files)
    modules = {path.with_suffix("").as_posix().removesuffix("/__init__") for path in inside}
    return sorted(modules - SHARED)


def is_ours(file: str) -> bool:
    return Path(file).is_relative_to(HOOK)


def main() -> None:
    """Print the number of modules of each way, and with --list which they are."""
    for play in (play_containers, play_enospc, play_job):
        for is_second in (False, True):
            with SimulatedMachine().installed(system) as machine:
                RunDir(RUN)
                machine.fs.create_dir(LOGS)
                node = Node(machine)
                for name, way in play(node):
                    modules = list_modules(way)
                    if is_second:
                        print(
                            f"{len(modules):3}  {name}", *(modules if "--list" in sys.argv else ())
                        )


if __name__ == "__main__":
    main()
