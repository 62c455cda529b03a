# SPDX-License-Identifier: Apache-2.0
"""Execs into many containers while `watch` runs, and what is outside of its group then: part of `bench watch`.

One exec into each container, as fast as they can be started. It starts another program, and stays. `watch` gets behind
meanwhile, since the model of resctrl, which answers one call at a time, takes longer for a move than a start does. Once
it has read all execs, some may be outside (it had not read the container's record yet, or events were lost); after one
reconcile none may be left.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.bench.busy_node import BusyNode, Member, busy_node
from tests.bench.common import CannotMeasure
from tests.bench.figures import Figure, Table
from tests.support import watching
from tests.support.hook import DEADLINE

NETLINK_CONNECTOR = 11
STAY = 'echo $$ >"$0" && /bin/true && exec sleep 3600'


def churn(containers: int) -> Table:
    """What is outside: at the end of all that watch had to read, and after one reconcile. CannotMeasure, OSError."""
    with busy_node(containers, containers) as node, ExitStack() as stack:
        process = stack.enter_context(watching.watching(node.hook))
        began = time.monotonic()
        brought_in = [stack.enter_context(_exec_into(member)) for member in node.members]
        seconds = time.monotonic() - began
        _await(lambda: all(_program(pid) == "sleep" for pid in brought_in))
        _await(lambda: not _unread(process.pid))
        behind = time.monotonic() - began - seconds
        time.sleep(1)  # it has acted on the last one
        before = _outside(node)
        reconcile = node.hook(b"", verb="reconcile")
        if reconcile.status:
            raise CannotMeasure(f"reconcile: {reconcile.stderr}")
        row = f"{containers} containers"
        figures = [
            Figure(row, "brought in a second", [containers / seconds], digits=0),
            Figure(row, "watch is done after (s)", [behind], digits=0),
            Figure(row, "outside of their group", [before], digits=0),
            Figure(row, "after one reconcile", [_outside(node)], 0, digits=0),
        ]
        return Table("execs into many containers", figures)


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


def _unread(pid: int) -> int:
    """The bytes of events that wait for a listener of the process connector."""
    lines = Path("/proc/net/netlink").read_text(encoding="ascii").splitlines()
    waiting = [words[4] for words in map(str.split, lines) if words[1:3] == [str(NETLINK_CONNECTOR), str(pid)]]
    if not waiting:
        raise CannotMeasure("watch has no socket of the process connector any more")
    return int(waiting[0])


def _outside(node: BusyNode) -> int:
    groups = node.resctrl.mon_groups()
    return sum(len(it.cgroup.pids() - set(groups[f"oci-{it.pod}"])) for it in node.members if it.cgroup)


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise CannotMeasure("the execs do not come about")
        time.sleep(0.05)
