# SPDX-License-Identifier: Apache-2.0
"""A state of any size, as a pod's author can make it: monitored in the right group, in bounded memory."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from tests.support.cgroups import Cgroup, container_cgroup
from tests.support.hook import UID, Hook, Outcome, Task, created, end, finish, stopped

ID = "c" * 64
VICTIM = "00000000-0000-4000-8000-000000000001"
MEMORY = 150_000
"""KiB of address space: less than the largest state."""
MEGABYTES = 200
ANNOTATIONS = '"annotations": {"io.kubernetes.pod.uid": "%s", "io.kubernetes.container.preStopHandler": "'


@pytest.fixture
def own(init: Task) -> Iterator[Cgroup]:
    """The container's own cgroup in its pod's, with its init."""
    with container_cgroup(UID, ID) as made:
        made.add(init.pid)
        yield made


@pytest.fixture
def bounded(hook: Hook) -> Hook:
    """With so little memory that it cannot hold what it is given."""
    return replace(hook, wrapper=("sh", "-c", f'ulimit -v {MEMORY} && exec "$@"', "sh"))


def members(state: Mapping[str, object]) -> str:
    """Those of a state but for its annotations."""
    return json.dumps({name: value for name, value in state.items() if name != "annotations"})[1:-1]


def give(hook: Hook, head: str, tail: str) -> Outcome:
    """Run a hook on a state that has MEGABYTES between its head and its tail, made while the hook reads."""
    process = subprocess.Popen(
        hook.command("hook"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={}, cwd="/"
    )
    assert process.stdin is not None
    process.stdin.write(head.encode())
    for _ in range(MEGABYTES * 10):  # a hook that stops reading is a BrokenPipeError here, as for a runtime
        process.stdin.write(b"\\u003c" * (100_000 // 6))
    process.stdin.write(tail.encode())
    process.stdin.close()
    process.stdin = None
    return finish(process)


def annotations_last(hook: Hook, state: Mapping[str, object]) -> Outcome:
    return give(hook, "{" + members(state) + ", " + ANNOTATIONS % VICTIM, '"}}')


def test_a_state_of_any_size_is_monitored_in_the_group_of_its_pod(bounded: Hook, own: Cgroup, init: Task) -> None:
    outcome = annotations_last(bounded, created(ID, init.pid))
    assert outcome.status == 0
    assert bounded.tasks(f"oci-{UID}") == own.pids() == {init.pid}
    assert bounded.reasons() == {}
    (line,) = outcome.stderr.splitlines()
    assert f"createRuntime {ID[:12]}: bad_state: its state is larger than 4194304 bytes" in line
    end(init)
    outcome = annotations_last(bounded, stopped(ID))
    assert (outcome.status, outcome.stderr) == (0, "")
    bounded.assert_clean()


def test_a_state_of_any_size_that_begins_with_annotations_ends_in_bounded_memory(bounded: Hook, init: Task) -> None:
    """What is recorded of it: unit/test_report.py."""
    state = "{" + ANNOTATIONS % VICTIM, '"}, ' + members(created(ID, init.pid)) + "}"
    outcome = give(bounded.with_options("--strict"), *state)
    assert outcome.status == 0
    assert len(outcome.stderr.splitlines()) == 1
    assert bounded.groups() == set()
    assert "bad_state: no container state on stdin" in outcome.stderr
    assert "it is larger than 4194304 bytes" in outcome.stderr
    assert [*bounded.reasons().values()] == ["bad_state"]
