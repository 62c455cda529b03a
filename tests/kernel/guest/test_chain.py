# SPDX-License-Identifier: Apache-2.0
"""A program that exec brought in, and that lives as a chain of forks, 4 ms a link: it is moved in for good."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support import watching
from tests.support.chains import compile_chain, container, outside, running, threads
from tests.support.hook import Hook
from tests.support.waiting import wait

MOST = 10  # reconciles of at most 45 s each: on an emulator beside other work the first ones get nothing done
CONTAINERS, CHAINS = 4, 12


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_chain(tmp_path_factory.mktemp("chain"))


def reconcile(hook: Hook, most: int = MOST) -> tuple[int, dict[str, Any]]:
    """Its status, and what it did. One that its time limit ended, as on an emulator, is followed by another."""
    outcome = hook.ask("reconcile", "--json")
    assert outcome.stderr == ""
    result = json.loads(outcome.stdout)
    if result["ended"] is None or most == 1:
        return outcome.status, result
    status, further = reconcile(hook, most - 1)
    return status, {**further, "actions": result["actions"] + further["actions"]}


def count_moved(result: dict[str, Any]) -> int:
    """How many threads it says that it moved in. On a slow machine a mover may have been cut short, and repeated."""
    texts = [it["problem"] or it["why"] for it in result["actions"] if it["action"] == "adopt"]
    counts = [re.search("^([0-9]+) of its threads were not in|after ([0-9]+) were moved in", it) for it in texts]
    assert all(counts), texts
    return sum(int(it[1] or it[2]) for it in counts if it is not None)


def test_chain_of_forks_in_each_of_four_containers_is_in_its_group_after_one_reconcile(hook: Hook, chain: Path) -> None:
    with ExitStack() as stack:
        containers = [stack.enter_context(container(hook, number)) for number in range(CONTAINERS)]
        for it in containers:
            stack.enter_context(running(chain, it.own))
        status, result = reconcile(hook)
        assert ([outside(hook, it) for it in containers], status) == ([set()] * CONTAINERS, 0), json.dumps(result)
        assert count_moved(result) >= CONTAINERS


@pytest.mark.skipif(watching.missing() is not None, reason=str(watching.missing()))
def test_chain_of_forks_is_brought_in_by_watch(hook: Hook, chain: Path) -> None:
    with container(hook) as it, watching.watching(hook):
        init = threads(it.own)
        for _ in range(CHAINS):
            with running(chain, it.own):
                links: set[int] = set()

                def has_links_inside(seen: set[int] = links) -> bool:
                    """Not frozen: that would hold a link until it is found. The first links inside were moved there."""
                    seen |= (hook.tasks(it.group) & threads(it.own)) - init
                    return len(seen) >= 10

                wait(has_links_inside)
                assert outside(hook, it) == set()
