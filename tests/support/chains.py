# SPDX-License-Identifier: Apache-2.0
"""Programs that exec brought into a container, and that live as chains of forks: each link sleeps, forks, and ends.

To look without a race, the container's cgroup is frozen.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.bench.common import compile_static
from tests.support.cgroups import Cgroup, container_cgroup
from tests.support.hook import DEADLINE, UID, Hook, created, task
from tests.support.waiting import wait

LINK = 4000  # microseconds
SECONDS = 600  # of a chain that nothing ends


def compile_chain(directory: Path) -> Path:
    """The program, in a directory."""
    compile_static(Path(__file__).with_name("chain.c"), directory / "chain")
    return directory / "chain"


class ChainedContainer(NamedTuple):
    """A container that was created: its group and its cgroup."""

    group: str
    own: Cgroup


@contextmanager
def container(hook: Hook, number: int = 0) -> Iterator[ChainedContainer]:
    uid, name = f"{number:08d}{UID[8:]}", f"{number:08d}" * 8
    with container_cgroup(uid, name) as own, task() as init:
        own.add(init.pid)
        assert hook(created(name, init.pid, pod_uid=uid)).stderr == ""
        yield ChainedContainer(f"oci-{uid}", own)


@contextmanager
def running(chain: Path, own: Cgroup) -> Iterator[None]:
    """A chain in the container, beside its init."""
    init = threads(own)
    words = [str(chain), str(own.directory / "cgroup.procs"), "1", str(LINK), str(SECONDS)]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        with process.stdout as entered:
            assert entered.read(1) == b"e"
        yield
    finally:
        with frozen(own):
            for tid in threads(own) - init:
                os.kill(tid, signal.SIGKILL)
        process.wait(DEADLINE)


def threads(own: Cgroup) -> set[int]:
    return set(map(int, (own.directory / "cgroup.threads").read_text().split()))


@contextmanager
def frozen(own: Cgroup) -> Iterator[None]:
    """Nothing in the cgroup runs meanwhile."""
    freeze = own.directory / "cgroup.freeze"
    freeze.write_text("1")
    wait(lambda: "frozen 1" in (own.directory / "cgroup.events").read_text())
    yield
    freeze.write_text("0")


def outside(hook: Hook, it: ChainedContainer) -> set[int]:
    """What is in the cgroup and not in the group, at one moment."""
    with frozen(it.own):
        return threads(it.own) - hook.tasks(it.group)
