# SPDX-License-Identifier: Apache-2.0
"""A whole pod's containers, or a node's, at the same moment."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack

import pytest

from tests.kernel.inside import REAL_ROOT
from tests.support.hook import UID, Hook, created, finish, stopped, task

# Where resctrl is real the machine is emulated, and slow
CROWD = 32 if REAL_ROOT is None else 6
CONTAINERS = 10 if REAL_ROOT is None else 3
ROUNDS = 20 if REAL_ROOT is None else 2


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


def test_each_stage_three_times_at_once(patient: Hook) -> None:
    names = [f"c{number}" for number in range(CONTAINERS)] * 3
    with ExitStack() as stack:
        pids = {name: stack.enter_context(task()).pid for name in set(names)}
        all_at_once([patient.start(created(name, pids[name], pod_uid=UID)) for name in names])
        assert set(patient.key(UID)["members"]) == set(names)
        assert patient.tasks(f"oci-{UID}") == set(pids.values())
    all_at_once([patient.start(stopped(name)) for name in names])
    patient.assert_clean()


def test_one_comes_while_the_last_goes(patient: Hook) -> None:
    """The lock's file is unlinked by the one that goes while the other waits for it."""
    with task() as first:
        patient(created("c0", first.pid, pod_uid=UID))
    for number in range(ROUNDS):
        with task() as init:
            coming = patient.start(created(f"c{number + 1}", init.pid, pod_uid=UID))
            going = patient.start(stopped(f"c{number}"))
            all_at_once([coming, going])
            assert set(patient.key(UID)["members"]) == {f"c{number + 1}"}
            assert patient.tasks(f"oci-{UID}") == {init.pid}
    patient(stopped(f"c{ROUNDS}"))
    patient.assert_clean()
