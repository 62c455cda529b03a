# SPDX-License-Identifier: Apache-2.0
"""A program that exec brought in, and that lives as a chain of forks, 4 ms a link: it is moved in for good.

To look without a race, the cgroup is frozen.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.bench.common import compile_static
from tests.support import watching
from tests.support.cgroups import Cgroup, container_cgroup
from tests.support.hook import DEADLINE, UID, Hook, created, finish, task

LINK = 4000  # microseconds
SECONDS = 600  # of a chain that nothing ends
CONTAINERS, TIMES = 4, 5
"""Twenty chains, one in each container at a time; more reconciles would take a guest minutes."""


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("chain") / "chain"
    compile_static(Path(__file__).with_name("chain.c"), target)
    return target


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
def running(chain: Path, own: Cgroup, chains: int = 1) -> Iterator[None]:
    """So many chains in the container, beside its init."""
    init = threads(own)
    words = [str(chain), str(own.directory / "cgroup.procs"), str(chains), str(LINK), str(SECONDS)]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    try:
        wait(lambda: len(threads(own)) >= len(init) + chains)
        yield
    finally:
        with frozen(own):
            for tid in threads(own) - init:
                os.kill(tid, signal.SIGKILL)
        process.wait(DEADLINE)


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


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


def reconcile(hook: Hook) -> tuple[int, list[dict[str, Any]]]:
    """Its status, and what it did."""
    command = [*replace(hook, options=()).command("reconcile"), "--json"]
    pipe = subprocess.PIPE
    outcome = finish(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env={}))
    assert outcome.stderr == ""
    return outcome.status, json.loads(outcome.stdout)["actions"]


def count_moved(actions: list[dict[str, Any]]) -> int:
    """How many threads it says that it moved in. On a slow machine a chase may have been cut short, and repeated."""
    texts = [it["problem"] or it["why"] for it in actions if it["action"] == "adopt"]
    said = [re.search("^([0-9]+) of its threads were not in|after ([0-9]+) were moved in", it) for it in texts]
    assert all(said), texts
    return sum(int(it[1] or it[2]) for it in said if it is not None)


def test_chain_of_forks_is_in_the_group_after_one_reconcile(hook: Hook, chain: Path) -> None:
    with ExitStack() as stack:
        containers = [stack.enter_context(container(hook, number)) for number in range(CONTAINERS)]
        for _ in range(TIMES):
            with ExitStack() as chains:
                for it in containers:
                    chains.enter_context(running(chain, it.own))
                status, actions = reconcile(hook)
                assert ([outside(hook, it) for it in containers], status) == ([set()] * CONTAINERS, 0), actions
                assert count_moved(actions) >= CONTAINERS


def test_twenty_chains_at_once_are_in_the_group_after_one_reconcile(hook: Hook, chain: Path) -> None:
    with container(hook) as it, running(chain, it.own, chains=20):
        status, actions = reconcile(hook)
        assert (outside(hook, it), status) == (set(), 0), actions
        assert 20 <= count_moved(actions) <= 100, "each chain once, and again what it was just forking then"


@pytest.mark.skipif(watching.missing() is not None, reason=str(watching.missing()))
def test_chain_of_forks_is_brought_in_by_watch(hook: Hook, chain: Path) -> None:
    with container(hook) as it, watching.watching(hook):
        init = threads(it.own)
        for _ in range(CONTAINERS * TIMES):
            with running(chain, it.own):
                links: set[int] = set()

                def has_links_inside(seen: set[int] = links) -> bool:
                    """Not frozen: that would hold a link until it is found. The first links inside were moved there."""
                    seen |= (hook.tasks(it.group) & threads(it.own)) - init
                    return len(seen) >= 10

                wait(has_links_inside)
                assert outside(hook, it) == set()
