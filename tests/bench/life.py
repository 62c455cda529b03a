# SPDX-License-Identifier: Apache-2.0
"""A container's life through a CRI: without a hook, and with one at createRuntime and at poststop.

    python3 build.py bench life [--rounds N] [--seed N]

create     CreateContainer and StartContainer
remove     StopContainer, which returns after the poststop hooks, and RemoveContainer
whole      both

docs/performance.md says what is compared. Times are medians ± half of their interquartile range.
Ratios are the medians of the rounds' ratios, with their 95 % interval; (!) marks a missed target.
"""

from __future__ import annotations

import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import grpc

from fetch import provision
from tests.bench import common
from tests.bench.common import CannotMeasure, Figure, NotReady, Table, interval, ratios
from tests.bench.nodes import PlainNode, plain_node
from tests.containerd.node import PLAIN, Hooks, OfBaseSpec, Pod
from tests.support.containers import missing
from tests.support.hook import NATIVE, PYZ

NONE, TRUE, PYTHON, ZIP, ELF = WAYS = (
    "no hook",
    "/bin/true",
    "Python alone",
    "this hook, .pyz",
    "this hook, ELF",
)
HANDLERS = {NONE: PLAIN, TRUE: "true", PYTHON: "python", ZIP: "runc", ELF: "elf"}
"""The runtime handler of each; runc is the one that containerd must have."""
IDLE_HOOK = "#!/usr/bin/python3 -IScimport posix;posix._exit(0)\n"
TARGETS = {ZIP: 1.05, ELF: 1.03}


class LifePlan(NamedTuple):
    rounds: int = 100  # each has a life of each way
    seed: int = 1


class Life(NamedTuple):
    """The milliseconds that its parts took."""

    create: float
    remove: float
    whole: float


class Ways(OfBaseSpec):
    """containerd, with a runtime handler for each way."""

    def __init__(self, node: PlainNode) -> None:
        self._node = node
        super().__init__([f"--resctrl-root={node.root}", f"--run-dir={node.run_dir}"])

    def hooks_of(self, printed: Hooks) -> dict[str, Hooks]:
        idle = self.base / "idle"
        idle.write_text(IDLE_HOOK)
        idle.chmod(0o755)
        programs = {TRUE: Path("/bin/true"), PYTHON: idle, ZIP: PYZ, ELF: NATIVE}
        return {
            HANDLERS[way]: {
                stage: [{**ours, "path": str(programs[way])}] for stage, (ours,) in printed.items()
            }
            for way in WAYS[1:]
        }

    def live(self, way: str) -> Life:
        """Let a container live."""
        key = self._node.new_key()
        pod = Pod(self, key, HANDLERS[way])
        runtime = self.cri.runtime
        before = time.monotonic()
        container = pod.create("app", ["/bin/sleep", "100000"])
        runtime.StartContainer(container_id=container)
        create = 1000 * (time.monotonic() - before)
        if self._node.members([key]) != ({container} if way in TARGETS else set()):
            raise CannotMeasure(
                f"{way}: the hook did not do its work: {self._node.hook().failures()}"
            )
        before = time.monotonic()
        runtime.StopContainer(container_id=container, timeout=0)
        runtime.RemoveContainer(container_id=container)
        remove = 1000 * (time.monotonic() - before)
        if self._node.members([key]):
            raise CannotMeasure(f"{way}: the container is still on record")
        pod.remove()
        return Life(create, remove, create + remove)


def measure(plan: LifePlan) -> Iterator[Table]:
    """Yield the table. Raises CannotMeasure."""
    if not NATIVE.exists():
        raise NotReady(f"no {NATIVE}: run `python3 build.py native`")
    if reason := missing(model=False) or "; ".join(provision.missing(provision.TEST)):
        raise NotReady(reason)
    chance = random.Random(plan.seed)
    lives: dict[str, list[Life]] = defaultdict(list)
    with ExitStack() as stack:
        ways = stack.enter_context(closing(Ways(stack.enter_context(plain_node()))))
        try:
            for _ in range(plan.rounds):
                for way in chance.sample(WAYS, len(WAYS)):
                    lives[way].append(ways.live(way))
        except grpc.RpcError as error:
            raise CannotMeasure(f"containerd: {error}") from error
    figures = []
    for way in WAYS:
        for part in Life._fields:
            figures.append(
                Figure(way, f"{part}, ms", [getattr(life, part) for life in lives[way]], digits=1)
            )
        for other in (NONE, PYTHON):
            if way not in (NONE, other):
                values = ratios(
                    (life.whole for life in lives[way]), (life.whole for life in lives[other])
                )
                target = TARGETS.get(way) if other == PYTHON else None
                figures.append(
                    Figure(way, f"whole / {other}", values, target, digits=3, beside=interval)
                )
    yield Table("a container's life", figures)


if __name__ == "__main__":
    sys.exit(common.run("life", __doc__, LifePlan(), measure))
