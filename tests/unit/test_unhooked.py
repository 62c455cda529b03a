# SPDX-License-Identifier: Apache-2.0
"""Containers that never got the hook, where neither hooks.d nor a runtime is visible:
as in the chart's containers.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook import rare, system
from hook.context import new_context
from hook.models import Index, KeyState
from hook.node import processes, unhooked
from hook.node.models import Unhooked
from hook.resctrl import Resctrl
from hook.store import RunDir
from hook.validation import replace
from tests.unit.nodes import NodeFiles, add_process

import ready

UID, OTHER = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce", "11111111-2222-3333-4444-555555555555"
SANDBOX, APP, SIDECAR = "a1" * 32, "b2" * 32, "c3" * 32
PAUSE, NONE, SHELL = "0000000000014002", "0000000000000000", "0000000000010002"
BY_CRIO, BY_CONTAINERD = (
    "/kubepods/pod{uid}/crio-{id}",
    "/kubepods.slice/kubepods-pod{uid}.slice/{id}",
)


class PodsOfNode:
    """A node's pods, whose processes start one after the other."""

    def __init__(self, files: NodeFiles) -> None:
        self.context = new_context(Resctrl(str(files.root)), RunDir(str(files.run)), files.options)
        rare.make_parts(self.context.run.descriptor)
        self.last = 100

    def start(
        self,
        container: str,
        uid: str = UID,
        cgroup: str = BY_CRIO,
        catches: str = NONE,
        starttime: int = 0,
    ) -> None:
        """Start a process in a container's cgroup."""
        self.last += 1
        add_process(self.last, starttime or self.last, cgroup.format(uid=uid, id=container))
        Path(f"/proc/{self.last}/status").write_text(
            f"Name:\tSigCgt:\nSigIgn:\t{PAUSE}\nSigCgt:\t{catches}\n"
        )

    def hook(self, container: str) -> None:
        self.context.run.write(Index, container, Index(key=UID))

    def end(self, container: str) -> None:
        """End the last process, which is this container's, with its record."""
        shutil.rmtree(f"/proc/{self.last}")
        self.context.run.remove(Index, container)

    def find(self, **options: object) -> tuple[list[str], list[str]] | None:
        """The containers without the hook, and the sandboxes; None: reconcile does not know."""
        self.context.options = replace(self.context.options, **options)
        answer = unhooked.Candidates(self.context, processes.look()).find_unhooked()
        assert answer == self.context.run.read(Unhooked, "unhooked")
        return None if answer is None else (sorted(answer.containers), answer.sandboxes)


@pytest.fixture
def pods(node: NodeFiles) -> PodsOfNode:
    return PodsOfNode(node)


@pytest.mark.parametrize("cgroup", [BY_CRIO, BY_CONTAINERD])
def test_a_container_without_a_record_is_counted_and_the_sandbox_of_its_pod_is_not(
    pods: PodsOfNode, cgroup: str
) -> None:
    pods.start(SANDBOX, cgroup=cgroup, catches=PAUSE)
    pods.start(APP, cgroup=cgroup)
    pods.start(SIDECAR, cgroup=cgroup)
    pods.hook(SIDECAR)
    assert pods.find() == ([APP], [SANDBOX])
    pods.hook(APP)
    assert pods.find() == ([], [SANDBOX])


@pytest.mark.parametrize(
    ("started", "expected"),
    [
        # CRI-O starts the pause program only for pods that share a pid namespace
        ([(APP, {})], ([APP], [])),
        ([(APP, {"catches": SHELL})], ([APP], [])),  # it waits otherwise
        # Only the first can be it.
        ([(SANDBOX, {"catches": PAUSE}), (APP, {"catches": PAUSE})], ([APP], [SANDBOX])),
        # It does more than wait.
        ([(APP, {"catches": PAUSE}), (APP, {"catches": PAUSE})], ([APP], [])),
        # With conmon_cgroup="pod", also once its container has ended
        ([(APP, {"cgroup": "/kubepods/pod{uid}/crio-conmon-{id}"})], ([], [])),
        ([(APP, {"cgroup": "/machine.slice/libpod-{id}.scope"})], ([], [])),  # no pod's
        # Podman's, which is in no pod.
        ([(APP, {"cgroup": "/kubepods/pod{uid}/libpod-{id}"})], ([], [])),
        # A user has made it, below his own service's cgroup, or a container below its own
        (
            [(APP, {"cgroup": "/user.slice/user@1000.service/kubepods/pod{uid}/crio-{id}"})],
            ([], []),
        ),
        ([(APP, {"cgroup": "/user.slice/user@1000.service/pod{uid}/{id}"})], ([], [])),
        ([(APP, {"cgroup": "/pod{uid}/my-{id}"})], ([], [])),
        ([(APP, {"cgroup": f"/docker/docker-{SIDECAR}/pod{{uid}}/crio-{{id}}"})], ([], [])),
        ([(APP, {"cgroup": BY_CRIO + f"/pod{OTHER}/crio-{SIDECAR}"})], ([APP], [])),
    ],
)
def test_only_containers_of_pods_count_and_only_one_that_waits_alone_is_a_sandbox(
    pods: PodsOfNode,
    started: list[tuple[str, dict[str, Any]]],
    expected: tuple[list[str], list[str]],
) -> None:
    for container, how in started:
        pods.start(container, **how)
    assert pods.find() == expected


def look_at_readiness(pods: PodsOfNode) -> float | None:
    """When the last container without the hook started, by a look of reconcile; None:
    the chart's probe is ready.
    """
    pods.find()
    recorded = pods.context.run.read(Unhooked, "unhooked")
    assert recorded is not None
    problem = ready.find_unhooked(f"{pods.context.run.path}/unhooked.json", "/x")
    assert (problem is None) is (recorded.last_started_at is None)
    assert problem is None or UID in problem
    return recorded.last_started_at


@pytest.fixture
def installed_at(fs: FakeFilesystem) -> float:
    """When the node started; its JSON is there 5 s later."""
    boot = system.unix_time() - system.boottime()
    fs.create_file(ready.INSTALLED)
    os.utime(ready.INSTALLED, (boot + 5, boot + 5))
    return boot


def test_when_the_last_one_started_is_known_unless_a_later_one_has_the_hook(
    pods: PodsOfNode, installed_at: float
) -> None:
    """By that the chart's probe tells a hooksDir that the runtime does not read.

    A sandbox is no container of a pod.
    """
    pods.start(SANDBOX, catches=PAUSE)
    assert look_at_readiness(pods) is None
    pods.start(APP, starttime=system.TICKS * 70)
    pods.start(SIDECAR, starttime=system.TICKS * 50)
    assert look_at_readiness(pods) == pytest.approx(installed_at + 70, abs=5)
    pods.hook(SIDECAR)
    assert look_at_readiness(pods) == pytest.approx(installed_at + 70, abs=5), (
        "an earlier one has the hook"
    )
    pods.start("d4" * 32, uid=OTHER, starttime=system.TICKS * 80)
    pods.hook("d4" * 32)
    assert look_at_readiness(pods) is None
    assert pods.find() == ([APP], [SANDBOX]), "it is still counted"


@pytest.mark.parametrize("is_seen", [True, False], ids=["seen by a look", "between two looks"])
def test_a_node_with_a_leftover_stays_ready_when_a_later_container_with_the_hook_has_ended(
    pods: PodsOfNode, installed_at: float, is_seen: bool
) -> None:
    """As Jobs come and go. A Job that ended between two looks has left the record of its key."""
    pods.start(APP, starttime=system.TICKS * 70)
    assert look_at_readiness(pods) == pytest.approx(installed_at + 70, abs=5)
    for job in range(3):
        name = f"{job}" * 64
        pods.start(name, uid=OTHER, starttime=system.TICKS * (80 + job))
        pods.hook(name)
        if is_seen:
            assert look_at_readiness(pods) is None
        else:
            state = KeyState(key=OTHER, kind="pod", created_boottime=80.0 + job, completed_at="x")
            pods.context.run.write(KeyState, OTHER, state)
        pods.end(name)
        assert look_at_readiness(pods) is None
        pods.context.run.remove(KeyState, OTHER)  # as its record goes after some minutes
        assert look_at_readiness(pods) is None
    pods.start(SIDECAR, starttime=system.TICKS * 90)
    assert look_at_readiness(pods) == pytest.approx(installed_at + 90, abs=5), (
        "a later one has no hook"
    )


def test_what_started_just_now_may_get_its_hook_yet(pods: PodsOfNode) -> None:
    pods.start(APP, starttime=int(system.boottime() * system.TICKS))
    assert pods.find() == ([], [])


def test_our_own_pod_is_left_out(pods: PodsOfNode) -> None:
    """Its first containers start before they have installed the hook."""
    add_process(os.getpid(), cgroup=BY_CRIO.format(uid=OTHER, id=SIDECAR))
    pods.start(APP, uid=OTHER)
    pods.start(SANDBOX)
    assert pods.find() == ([SANDBOX], [])


def test_where_a_runtime_could_tell_the_kernel_is_not_asked(pods: PodsOfNode) -> None:
    """With filters only a runtime could tell."""
    pods.start(APP)
    assert pods.find() == ([APP], [])
    options = pods.context.options
    for changed in ({"namespace": ["shop"]}, {"annotation": {"a": "b"}}, {"monitor": "opt-in"}):
        assert pods.find(**changed) is None
        pods.context.options = options
    Path("/run/runc").mkdir()
    assert pods.find() is None
