# SPDX-License-Identifier: Apache-2.0
"""What reconcile and watch ask of the run directory as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from hook.base.models import KeyState
from hook.state import records
from hook.state.store import RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(str(tmp_path / "run"))


def test_without_any_key_there_is_nothing_that_could_be_settled(run: RunDir) -> None:
    (Path(run.path) / "groups").rmdir()
    assert records.version(run) == 0
    assert not records.is_settled(run)


@pytest.mark.parametrize("name", ["groups/.c1.tmp", "members/.c1.tmp", "building/c1", "building/c1.old"])
def test_what_a_killed_hook_left_of_a_key_is_found(run: RunDir, name: str) -> None:
    state = KeyState(key="c1", kind="container", generation=1)
    assert not records.has_leftovers(run, state)
    put(run, name.replace("c1", "c2"))
    assert not records.has_leftovers(run, state)
    put(run, name)
    assert records.has_leftovers(run, state)


def test_a_view_is_left_over_where_nothing_is_to_be_shown(run: RunDir) -> None:
    put(run, "mon_groups/c1")
    assert not records.has_leftovers(run, KeyState(key="c1", kind="container", generation=1))
    assert records.has_leftovers(run, KeyState(key="c1", kind="container", generation=0))


def put(run: RunDir, name: str) -> None:
    (Path(run.path) / name).mkdir(parents=True)
