# SPDX-License-Identifier: Apache-2.0
"""What reconcile and watch ask of the run directory as a whole."""

from __future__ import annotations

import pytest

from hook.base.models import KeyState
from hook.state import records
from hook.state.store import RunDir
from tests.simulator.machine import RUN
from tests.unit.simulated import Node, node

__all__ = ["node"]  # fixtures


def test_without_any_key_there_is_nothing_that_could_be_settled(node: Node) -> None:
    node.remove("groups")
    run = RunDir(RUN)
    assert records.version(run) == 0
    assert not records.is_settled(run)


@pytest.mark.parametrize(
    ("name", "generation"),
    [
        *((it, 1) for it in ("groups/.c1.tmp", "members/.c1.tmp", "building/c1/x", "building/c1.old/x")),
        ("mon_groups/c1", 0),
    ],
)
def test_what_a_killed_hook_left_of_a_key_is_found(node: Node, name: str, generation: int) -> None:
    """A view is left over where nothing is to be shown."""
    run, state = RunDir(RUN), KeyState(key="c1", kind="container", generation=generation)
    assert not records.has_leftovers(run, state)
    node.put(name.replace("c1", "c2"), "")
    assert not records.has_leftovers(run, state)
    node.put(name, "")
    assert records.has_leftovers(run, state)
    assert records.has_leftovers(run, KeyState(key="c1", kind="container", generation=1)) is bool(generation)
