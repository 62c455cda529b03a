# SPDX-License-Identifier: Apache-2.0
"""A container's life through a CRI: without a hook, and with one at createRuntime and at poststop.

    python3 build.py bench life [--json | --markdown] [--rounds N] [--seed N]

containerd makes the containers, as the kubelet asks for them; each is alone in a pod, whose sandbox is there before it.
Its hooks are in its base_runtime_spec: none, /bin/true, the least that Python takes to start and exit, or this one with
its shipped options, on a node whose resctrl and run directory are on tmpfs (plain_node.py).

create     CreateContainer and StartContainer
remove     StopContainer, which returns after the poststop hooks, and RemoveContainer
whole      both
CPU        user and system time of the hook's own process, in further lives, one for five that are timed

Each round has one life of each, in an order by chance. Times are medians ± half of what the middle half lies within.
Ratios are the medians of the rounds' ratios, with their 95 % interval; (!) marks a target that is missed.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from tests import provision
from tests.bench import common
from tests.bench.common import CannotMeasure, NotReady
from tests.bench.figures import Figure, Table, WithInterval, ratios
from tests.bench.launcher import LAUNCH
from tests.bench.plain_node import PlainNode, plain_node
from tests.containerd.node import PLAIN, Hooks, OfBaseSpec, Pod
from tests.support.containers import STAGES, missing

NONE, TRUE, PYTHON, HOOK = WAYS = ("no hook", "/bin/true", "Python alone", "this hook")
HANDLERS = {NONE: PLAIN, TRUE: "true", PYTHON: "python", HOOK: "runc"}
"""The runtime handler of each; runc is the one that containerd must have."""
NOTED = "-noted"
"""Behind a handler's name: launch.c starts its hooks, and its report goes into a file for each stage."""
NOTE = '#!/bin/sh\nfile=$1\nshift\nexec "$0.launch" "$@" >>"$file"\n'
IDLE_HOOK = "#!/usr/bin/python3 -IScimport posix;posix._exit(0)\n"
TARGET = 1.05
TIMED_FOR_ONE_NOTED = 5


class Life(NamedTuple):
    """The seconds that its parts took."""

    create: float
    remove: float

    @property
    def whole(self) -> float:
        return self.create + self.remove


class Ways(OfBaseSpec):
    """containerd, with a runtime handler for each way. `directory`: what its hooks note is there."""

    def __init__(self, node: PlainNode, directory: Path) -> None:
        self._node, self._directory = node, directory
        self._note = directory / "note"
        self._note.write_text(NOTE)
        common.compile_static(LAUNCH, directory / "note.launch")
        idle = directory / "idle"
        idle.write_text(IDLE_HOOK)
        for program in (self._note, idle):
            program.chmod(0o755)
        self._programs = {TRUE: Path("/bin/true"), PYTHON: idle}
        super().__init__([f"--resctrl-root={node.root}", f"--run-dir={node.run_dir}"])

    def hooks_of(self, printed: Hooks) -> dict[str, Hooks]:
        found = {}
        for way, handler in HANDLERS.items():
            if way == NONE:
                continue
            own = {}
            for stage in STAGES:
                (ours,) = printed[stage]
                own[stage] = [ours] if way == HOOK else [{**ours, "path": str(self._programs[way])}]
            found[handler] = own
            found[handler + NOTED] = {stage: [self._noted(way, stage, *own[stage])] for stage in STAGES}
        return found

    def _noted(self, way: str, stage: str, hook: dict[str, Any]) -> dict[str, Any]:
        words = [str(self._note), str(self._file(way, stage)), hook["path"], *hook["args"][1:]]
        return {**hook, "path": words[0], "args": words}

    def _file(self, way: str, stage: str) -> Path:
        return self._directory / f"{HANDLERS[way]}.{stage}"

    def live(self, way: str, *, noted: bool = False) -> Life:
        """Have a container live."""
        key = self._node.new_key()
        pod = Pod(self, key, HANDLERS[way] + NOTED * noted)
        runtime = self.cri.runtime
        before = time.monotonic()
        container = pod.create("app", ["/bin/sleep", "100000"])
        runtime.StartContainer(container_id=container)
        created = time.monotonic()
        if self._node.members([key]) != ({container} if way == HOOK else set()):
            raise CannotMeasure(f"{way}: the hook did not do its work: {self._node.hook().failures()}")
        going = time.monotonic()
        runtime.StopContainer(container_id=container, timeout=0)
        runtime.RemoveContainer(container_id=container)
        gone = time.monotonic()
        if self._node.members([key]):
            raise CannotMeasure(f"{way}: the container is still on record")
        pod.remove()
        return Life(created - before, gone - going)

    def cpu(self, way: str, stage: str) -> list[float]:
        """The CPU milliseconds of each noted hook."""
        rows = [list(map(int, line.split())) for line in self._file(way, stage).read_text().splitlines()]
        if any(row[-1] for row in rows):
            raise CannotMeasure(f"{way}, {stage}: a hook failed")
        return [row[1] / 1000 for row in rows]


def measure(rounds: int, seed: int) -> Iterator[Table]:
    """The table. Raises CannotMeasure."""
    if reason := missing(model=False) or "; ".join(provision.missing(provision.TEST)):
        raise NotReady(reason)
    chance = random.Random(seed)
    order = [(number, way) for number in range(rounds) for way in chance.sample(WAYS, len(WAYS))]
    lives: dict[str, list[Life]] = defaultdict(list)
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="life-"))
        ways = stack.enter_context(closing(Ways(stack.enter_context(plain_node()), Path(directory))))
        try:
            for number, way in order:
                lives[way].append(ways.live(way))
                if number % TIMED_FOR_ONE_NOTED == 0 and way != NONE:
                    ways.live(way, noted=True)
        except grpc.RpcError as error:
            raise CannotMeasure(f"containerd: {error}") from error
        cpu = {(way, stage): ways.cpu(way, stage) for way in WAYS[1:] for stage in STAGES}
    yield Table("a container's life", list(_figures(lives, cpu)))


def _figures(lives: Mapping[str, Sequence[Life]], cpu: Mapping[tuple[str, str], Sequence[float]]) -> Iterator[Figure]:
    whole = {way: [it.whole for it in own] for way, own in lives.items()}
    for way in WAYS:
        own = lives[way]
        parts = {"create": [it.create for it in own], "remove": [it.remove for it in own], "whole": whole[way]}
        for part, seconds in parts.items():
            yield Figure(way, f"{part}, ms", [1000 * it for it in seconds], digits=1)
        for other in (NONE, PYTHON):
            if way not in (NONE, other):
                target = TARGET if (way, other) == (HOOK, PYTHON) else None
                yield WithInterval(way, f"whole / {other}", ratios(whole[way], whole[other]), target, digits=3)
    for (way, stage), values in cpu.items():
        yield Figure(way, f"CPU at {stage}, ms", values, digits=1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = common.parser("life", __doc__)
    parser.add_argument("--rounds", type=int, default=100, help="each has a life of each [100]")
    parser.add_argument("--seed", type=int, default=1, help="of the orders by chance [1]")
    given = parser.parse_args(arguments)
    return common.report("life", lambda: measure(max(1, given.rounds), given.seed), given)


if __name__ == "__main__":
    sys.exit(main())
