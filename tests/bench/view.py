# SPDX-License-Identifier: Apache-2.0
"""What `view` itself uses on a node with many keys: CPU time, memory,
and room in the run directory.

    python3 build.py bench view [--keys N] [--seconds N]

The node's groups are plain directories, with 24 counters each.
CPU time is what the scheduler counts for view (/proc/PID/schedstat).

start           it makes the files of all keys
at rest         no key changes; once a minute it looks at each record in any case
a key a second  one of the keys changes each second: a container starts in its pod, and ends
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from tests.bench import common
from tests.bench.common import CannotMeasure, Figure, NotReady, Table
from tests.bench.nodes import MeasuredNode, created, plain_node, stopped
from tests.bench.watch import read_cpu, read_peak
from tests.support import watching
from tests.support.hook import task
from tests.support.waiting import wait

HOUR = 3600.0
MOST_AT_REST = 5.0
"""CPU seconds an hour at rest."""


class ViewPlan(NamedTuple):
    keys: int = 2000
    seconds: float = 120.0  # of each state, after the start


def measure(plan: ViewPlan) -> Iterator[Table]:
    if os.geteuid() != 0:
        raise NotReady("not root")
    try:
        with (
            plain_node(plan.keys) as node,
            watching.serving(node.hook(), "view", "keeping") as process,
        ):
            wait((node.run_dir / "view.json").exists)
            figures = [Figure("start", "CPU s", [read_cpu(process)], beside=None)]
            states: dict[str, Callable[[float], object]] = {
                "at rest": time.sleep,
                "a key a second": partial(_change, node),
            }
            for row, pass_time in states.items():
                before = read_cpu(process)
                pass_time(plan.seconds)
                share = (read_cpu(process) - before) / plan.seconds
                most = MOST_AT_REST if row == "at rest" else None
                figures.append(
                    Figure(row, "CPU s an hour", [HOUR * share], most, digits=1, beside=None)
                )
            figures.append(Figure("memory", "MiB", [read_peak(process)], digits=0, beside=None))
            files = [path.lstat() for path in (node.run_dir / "mon_groups").rglob("*")]
            room = sum(status.st_blocks * 512 for status in files) / 2**20
            figures.append(Figure("its files", "MiB", [room], digits=0, beside=None))
            figures.append(Figure("its files", "number", [len(files)], digits=0, beside=None))
    except OSError as error:
        raise CannotMeasure(str(error)) from error
    yield Table(f"view of {plan.keys} keys", figures)


def _change(node: MeasuredNode, seconds: float) -> None:
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        with task() as init:
            key, container = node.new_key(), node.new_container()
            node.hook()(created(container, init.pid, key).encode())
            time.sleep(1)
        node.hook()(stopped(container, key).encode())
        number += 1
    if not number:
        raise CannotMeasure("nothing has changed")


if __name__ == "__main__":
    sys.exit(common.run("view", __doc__, ViewPlan(), measure))
