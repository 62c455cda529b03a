# SPDX-License-Identifier: Apache-2.0
"""Execs into many containers while `watch` runs, and what is outside of its group then: part of `bench watch`.

One exec into each container, as fast as they can be started. It starts another program, and stays. `watch` may miss
some (it had not read the container's record yet); after one reconcile none may be left.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.bench.busy_node import BusyNode, Member, busy_node
from tests.bench.common import CannotMeasure
from tests.support import watching
from tests.support.hook import DEADLINE

STAY = 'echo $$ >"$0" && /bin/true && exec sleep 3600'


class Churn(NamedTuple):
    """`seconds`: that the execs took; how many of their processes were outside of their group, then and in the end."""

    containers: int
    seconds: float
    before_reconcile: int
    after: int

    def table(self) -> list[list[str]]:
        head = ["containers", "execs/s", "outside of their group", "after one reconcile"]
        rate = self.containers / self.seconds
        return [head, [str(self.containers), f"{rate:.0f}", str(self.before_reconcile), str(self.after)]]


def churn(containers: int) -> Churn:
    """Raises CannotMeasure, OSError."""
    with busy_node(containers, containers) as node, ExitStack() as stack:
        stack.enter_context(watching.watching(node.hook))
        began = time.monotonic()
        brought_in = [stack.enter_context(_exec_into(member)) for member in node.members]
        seconds = time.monotonic() - began
        _await(lambda: all(_program(pid) == "sleep" for pid in brought_in))
        time.sleep(1)  # watch has seen the last one
        before = _outside(node)
        reconcile = node.hook(b"", verb="reconcile")
        if reconcile.status:
            raise CannotMeasure(f"reconcile: {reconcile.stderr}")
        return Churn(containers, seconds, before, _outside(node))


@contextmanager
def _exec_into(member: Member) -> Iterator[int]:
    """A process in the container, and outside of its group unless somebody moves it."""
    if member.cgroup is None:
        raise CannotMeasure("no cgroup can be made here")
    words = ["sh", "-c", STAY, str(member.cgroup.directory / "cgroup.procs")]
    pid = os.posix_spawnp(words[0], words, os.environ)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _program(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()


def _outside(node: BusyNode) -> int:
    groups = node.resctrl.mon_groups()
    return sum(len(it.cgroup.pids() - set(groups[f"oci-{it.pod}"])) for it in node.members if it.cgroup)


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise CannotMeasure("the execs do not come about")
        time.sleep(0.05)
