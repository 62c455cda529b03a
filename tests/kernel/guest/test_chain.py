# SPDX-License-Identifier: Apache-2.0
"""A program that exec brought in, and that lives as a chain of forks:
each link sleeps 4 ms, forks, and ends.

It is moved in for good. To look without a race, the container's cgroup is frozen.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.bench.common import compile_static
from tests.support import watching
from tests.support.cgroups import Cgroup, container_cgroup
from tests.support.hook import DEADLINE, UID, Hook, created, task
from tests.support.waiting import wait

# Reconciles of at most 45 s each: on an emulator beside other work the first ones get nothing done.
MOST = 10
CONTAINERS, CHAINS = 4, 12
LINK = 4000  # microseconds
SECONDS = 600  # of a chain that nothing ends


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("chain") / "chain"
    compile_static(Path(__file__).with_name("chain.c"), program)
    return program


class ChainedContainer(NamedTuple):
    """A container that was created: its group and its cgroup."""

    group: str
    cgroup: Cgroup


@contextmanager
def container(hook: Hook, number: int = 0) -> Iterator[ChainedContainer]:
    uid, name = f"{number:08d}{UID[8:]}", f"{number:08d}" * 8
    with container_cgroup(uid, name) as cgroup, task() as init:
        cgroup.add(init.pid)
        assert hook(created(name, init.pid, pod_uid=uid)).stderr == ""
        yield ChainedContainer(f"oci-{uid}", cgroup)


@contextmanager
def running(chain: Path, cgroup: Cgroup) -> Iterator[None]:
    """A chain in the container, beside its init."""
    init = threads(cgroup)
    words = [str(chain), str(cgroup.directory / "cgroup.procs"), "1", str(LINK), str(SECONDS)]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        with process.stdout as entered:
            assert entered.read(1) == b"e"
        yield
    finally:
        with frozen(cgroup):
            for tid in threads(cgroup) - init:
                os.kill(tid, signal.SIGKILL)
        process.wait(DEADLINE)


def threads(cgroup: Cgroup) -> set[int]:
    return set(map(int, (cgroup.directory / "cgroup.threads").read_text().split()))


@contextmanager
def frozen(cgroup: Cgroup) -> Iterator[None]:
    """Nothing in the cgroup runs meanwhile."""
    freeze = cgroup.directory / "cgroup.freeze"
    freeze.write_text("1")
    wait(lambda: "frozen 1" in (cgroup.directory / "cgroup.events").read_text())
    yield
    freeze.write_text("0")


def outside(hook: Hook, target: ChainedContainer) -> set[int]:
    """What is in the cgroup and not in the group, at one moment."""
    with frozen(target.cgroup):
        return threads(target.cgroup) - hook.tasks(target.group)


def reconcile(hook: Hook) -> tuple[int, dict[str, Any]]:
    """Its status, and what it did.

    One that its time limit ended, as on an emulator, is followed by another.
    """
    result: dict[str, Any] = {"ended": "not begun"}
    status, runs = 1, 0
    while result["ended"] is not None and runs < MOST:
        outcome = hook.ask("reconcile", "--json")
        assert outcome.stderr == ""
        status, result, runs = outcome.status, json.loads(outcome.stdout), runs + 1
    return status, result


def test_chain_of_forks_in_each_of_four_containers_is_in_its_group_after_one_reconcile(
    hook: Hook, chain: Path
) -> None:
    with ExitStack() as stack:
        containers = [stack.enter_context(container(hook, number)) for number in range(CONTAINERS)]
        for target in containers:
            stack.enter_context(running(chain, target.cgroup))
        status, result = reconcile(hook)
        assert ([outside(hook, target) for target in containers], status) == (
            [set()] * CONTAINERS,
            0,
        ), json.dumps(result)


@pytest.mark.skipif(watching.missing() is not None, reason=str(watching.missing()))
def test_chain_of_forks_is_brought_in_by_watch(hook: Hook, chain: Path) -> None:
    with container(hook) as target, watching.watching(hook):
        init = threads(target.cgroup)
        for _ in range(CHAINS):
            with running(chain, target.cgroup):
                links: set[int] = set()

                def has_links_inside(links_inside: set[int] = links) -> bool:
                    """Not frozen: that would hold a link until it is found.

                    The first links inside were moved there.
                    """
                    links_inside |= (hook.tasks(target.group) & threads(target.cgroup)) - init
                    return len(links_inside) >= 10

                wait(has_links_inside, most=0.01)  # each time it sees a link or two
                assert outside(hook, target) == set()
