# SPDX-License-Identifier: Apache-2.0
"""Ten of the simulator's scenarios with real processes: hooks that run at the same time, and are killed at any moment.

They show that the simulator's node behaves as a real one. Afterwards reconcile runs once, and the simulator's oracle
judges what is left. tests.simulator plays all scenarios, in any order of their system calls.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.kernel.inside import REAL_ROOT, remove_groups
from tests.resctrlfs import Mounted, mounted
from tests.simulator.scenarios import SCENARIOS, read_scenario
from tests.support import watching
from tests.support.hook import Hook
from tests.support.real_node import RealKernel, RealNode, RealRun

pytestmark = pytest.mark.slow

MOMENT = 0.05 if REAL_ROOT is None else 0.6
"""About as many seconds as a hook takes."""
STORMS = {
    # a scenario: whether hooks are killed in it
    "c1 c2 | p1 | p2 | c3": True,
    "c1 d1 | c1 | l1 | r": False,
    "linger=60; c1 | p1 | c2": True,
    "c1 c2@gold | p1 | p2 | r": True,
    "rmids=1; c1 d1 | c5 | c2": False,
    "rmids=1 limbo=1; c1 | p1 | c5": False,
    "c1 u1 | c2 | r": True,
    "c1 | p1 | X | r": False,
    "c1 c2 o1 | p2 | p1 | r": True,
    "c1 c5 c9 | p1 | p5 | p9 | r": True,
}
"""Pods and containers, restarts, lingering, ctrl_groups, few RMIDs, damage, and other tools: one scenario of each."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted | None]:
    """The model of resctrl; None where there is a real one."""
    if REAL_ROOT is not None:
        yield None
        return
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("needs root and /dev/fuse")
    machine = {"rmids": 12, "l3_domains": 1, "packages": 1, "perf": False, "limbo_tick_ms": 10}
    with mounted(tmp_path_factory.mktemp("storm"), **machine) as model:
        yield model


@pytest.mark.parametrize("scenario", STORMS)
def test_one_reconcile_puts_it_right(tmp_path: Path, model: Mounted | None, scenario: str) -> None:
    assert scenario in SCENARIOS
    options, before, lanes = read_scenario(scenario)
    rmids, limbo = options.pop("rmids", 1000), options.pop("limbo", 0)
    root = REAL_ROOT if model is None else model.root
    assert root is not None
    if model is not None:
        model.control(do="set", decay_ms=1000 * limbo)
        model.control(do="settle")
    remove_groups(root)
    hook = Hook(root, tmp_path / "run").with_options(
        "--rmid-wait=60",  # a model that is given no time keeps RMIDs in limbo for longer
        *(f"--{name.replace('_', '-')}={it}" for name, it in options.items()),
    )
    with ExitStack() as stack:
        kernel = RealKernel(root, model, rmids)
        run = RealRun(kernel, hook, tmp_path)
        node = RealNode(run, options, f"/storm-{os.getpid()}")
        stack.enter_context(closing(node))
        node.take(before)
        if len(scenario) % 2 and watching.missing() is None:
            stack.enter_context(watching.watching(hook))
        node.moment = MOMENT if STORMS[scenario] else 0.0
        run.together(*(lambda steps=steps: node.take(steps) for steps in lanes))
        node.moment = 0.0
        node.finish()
    remove_groups(root)
