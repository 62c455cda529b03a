# SPDX-License-Identifier: Apache-2.0
"""A machine whose RMIDs are all in use, and stay in limbo for a while after their group is gone."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Callable

import pytest

from tests.kernel.inside import fill
from tests.support.hook import Hook, Task, created, end, stopped, task

Set = Callable[[str, object], None]
WHILE, FOREVER = 1500, 3_600_000


@pytest.fixture(autouse=True)
def limbo(fake: Set) -> None:
    fake("decay_ms", WHILE)


def test_limbo_that_others_made_is_recorded_at_once(
    hook: Hook, init: Task, root: Path, fake: Set
) -> None:
    fill(root / "mon_groups")
    with busy() as process:
        (root / "mon_groups" / "filler-0" / "tasks").write_text(str(process.pid))
        fake("decay_ms", FOREVER)
        end(process)
    (root / "mon_groups" / "filler-0").rmdir()
    patient = hook.with_options("--rmid-wait=60")
    patient(created("c1", init.pid))
    record = hook.failures()["c1"]
    assert (record["reason"], record["kernel"]) == ("rmids_in_limbo", "Out of RMIDs")
    assert "EBUSY" in record["tried"]


def test_limbo_that_a_hook_made_is_waited_for(hook: Hook, root: Path) -> None:
    patient = hook.with_options("--rmid-wait=60")
    with busy() as last:
        patient(created("c0", last.pid))
        fill(root / "mon_groups")
        end(last)
    assert patient(stopped("c0")).stderr == ""
    with task() as init:
        assert patient(created("c1", init.pid)).stderr == ""
        assert hook.tasks("oci-c1") == {init.pid}


def busy() -> Task:
    """A process that computes, and so fills its part of the cache."""
    return subprocess.Popen(["sh", "-c", "while :; do :; done"])
