# SPDX-License-Identifier: Apache-2.0
"""What reconcile and watch ask of the run directory as a whole."""

from __future__ import annotations

from typing import Any

import pytest

from hook import system
from hook.models import KeyState
from hook.node import records
from hook.node.models import Unhooked, UnhookedContainer
from hook.store import RunDir
from tests.simulator.machine import RUN
from tests.unit.simulated import Node, node

__all__ = ["node"]  # fixtures


def test_version_of_no_keys_and_of_a_commit_of_this_moment_is_none(node: Node) -> None:
    run = RunDir(RUN)
    for later, is_known in ((0.01, False), (1, True)):
        node.kernel.now += later
        assert (records.read_version(run) is not None) is is_known
    node.remove("groups")
    assert records.read_version(run) is None


def test_what_people_read_with_can_neither_write_nor_lock() -> None:
    assert {"write", "remove", "lock"} & {*dir(records.Records)} == set()


@pytest.mark.parametrize("name", ["groups/.c1.tmp", "members/.c1.tmp"])
def test_what_a_killed_hook_left_of_a_key_is_found(node: Node, name: str) -> None:
    run, state = RunDir(RUN), KeyState(key="c1", kind="container")
    assert not records.has_leftovers(run, state)
    node.put(name.replace("c1", "c2"), "")
    assert not records.has_leftovers(run, state)
    node.put(name, "")
    assert records.has_leftovers(run, state)


# --- What reconcile keeps of containers that were never hooked. The looks themselves are in
# tests/fuse

HOSTILE = {
    "5f3c" * 16: UnhookedContainer(namespace="a\n", pod="\x1b[2J", name="\xe9"),
    "b" * 64: UnhookedContainer(),
    "7" * 64: UnhookedContainer(uid="u1"),
}
SEEN = Unhooked(
    since="2026-01-02T03:04:05Z", containers=HOSTILE, unchecked=1, rules="rules", others=["a" * 64]
)


def test_two_reconciles_that_save_at_once_do_no_harm(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = system.rename, []

    def other_first(*arguments: Any) -> None:  # noqa: ANN401  system.rename's
        calls.append(arguments)
        real(*arguments)
        if len(calls) == 1:
            real(*arguments)

    monkeypatch.setattr(system, "rename", other_first)
    RunDir(RUN).write(Unhooked, "unhooked", SEEN)
    assert RunDir(RUN).glance(Unhooked, "unhooked") == SEEN
    assert node.machine.stat(f"{RUN}/unhooked.json").st_mode & 0o777 == 0o600


def test_names_of_containers_are_one_printable_line() -> None:
    texts = ["bbbbbbbbbbbb", "pod u1 (777777777777)", "a\\n/\\x1b[2J \\xe9 (5f3c5f3c5f3c)"]
    assert records.name_unhooked(SEEN.containers) == texts
