# SPDX-License-Identifier: Apache-2.0
"""A whole pod's containers at the same moment. Whatever the order of their calls: tests.simulator."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack

import pytest

from tests.kernel.inside import REAL_ROOT
from tests.support.hook import UID, Hook, created, finish, stopped, task

# Where resctrl is real the machine is emulated, and slow
CROWD = 32 if REAL_ROOT is None else 6


@pytest.fixture
def patient(hook: Hook) -> Hook:
    """A lock timeout that leaves the machine time to start so many interpreters."""
    return hook.with_options("--lock-timeout=60")


def all_at_once(started: list[subprocess.Popen[bytes]]) -> None:
    outcomes = [finish(process) for process in started]
    assert {(outcome.status, outcome.stderr) for outcome in outcomes} == {(0, "")}


def test_all_containers_of_one_pod_come_and_go_at_once(patient: Hook) -> None:
    names = [f"c{number}" for number in range(CROWD)]
    with ExitStack() as stack:
        pids = {name: stack.enter_context(task()).pid for name in names}
        all_at_once([patient.start(created(name, pids[name], pod_uid=UID)) for name in names])
        assert patient.groups() == {f"oci-{UID}"}
        assert set(patient.key(UID)["members"]) == set(names)
        assert patient.tasks(f"oci-{UID}") == set(pids.values())
    all_at_once([patient.start(stopped(name, pod_uid=UID)) for name in names])
    patient.assert_clean()
