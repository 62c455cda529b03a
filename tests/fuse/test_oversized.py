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
SIZES = {"5 MB": 5, "200 MB": 200}
ANNOTATIONS = '"annotations": {"io.kubernetes.pod.uid": "%s", "io.kubernetes.container.preStopHandler": "'
each_size = pytest.mark.parametrize("megabytes", SIZES.values(), ids=SIZES)


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


def give(hook: Hook, head: str, tail: str, megabytes: int, verb: str = "hook") -> Outcome:
    """Run a hook on a state that has so much between its head and its tail, made while the hook reads."""
    process = subprocess.Popen(
        hook.command(verb), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={}, cwd="/"
    )
    assert process.stdin is not None
    process.stdin.write(head.encode())
    for _ in range(megabytes * 10):  # a hook that stops reading is a BrokenPipeError here, as for a runtime
        process.stdin.write(b"\\u003c" * (100_000 // 6))
    process.stdin.write(tail.encode())
    process.stdin.close()
    process.stdin = None
    return finish(process)


def annotations_last(hook: Hook, state: Mapping[str, object], megabytes: int) -> Outcome:
    return give(hook, "{" + members(state) + ", " + ANNOTATIONS % VICTIM, '"}}', megabytes)


def annotations_first(hook: Hook, state: Mapping[str, object], megabytes: int) -> Outcome:
    return give(hook, "{" + ANNOTATIONS % VICTIM, '"}, ' + members(state) + "}", megabytes)


@each_size
def test_a_state_of_any_size_is_monitored_in_the_group_of_its_pod(
    bounded: Hook, own: Cgroup, init: Task, megabytes: int
) -> None:
    outcome = annotations_last(bounded, created(ID, init.pid), megabytes)
    assert outcome.status == 0
    assert bounded.tasks(f"oci-{UID}") == own.pids() == {init.pid}
    assert bounded.reasons() == {}
    (line,) = outcome.stderr.splitlines()
    assert f"createRuntime {ID[:12]}: bad_state: its state is larger than 4194304 bytes" in line
    end(init)
    outcome = annotations_last(bounded, stopped(ID), megabytes)
    assert (outcome.status, outcome.stderr) == (0, "")
    bounded.assert_clean()


@each_size
def test_a_state_of_any_size_that_begins_with_annotations_ends_in_bounded_memory(
    bounded: Hook, own: Cgroup, init: Task, megabytes: int
) -> None:
    outcome = annotations_first(bounded, created(ID, init.pid), megabytes)
    assert outcome.status == 0
    assert len(outcome.stderr.splitlines()) == 1
    assert own.pids() == {init.pid}
    assert bounded.groups() == set()
    assert "bad_state: no container state on stdin" in outcome.stderr
    assert "it is larger than 4194304 bytes" in outcome.stderr
    ((name, record),) = bounded.failures().items()
    assert (name[:4], record["reason"], record["pid"]) == ("bad-", "bad_state", None)
    assert annotations_first(bounded.with_options("--strict"), created(ID, init.pid), megabytes).status == 0
