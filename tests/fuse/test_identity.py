# SPDX-License-Identifier: Apache-2.0
"""Whose container it is, under both hooks.d files: processes in cgroups of pods, and annotations that say otherwise."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.cgroups import cgroup
from tests.support.hook import STATES, Hook, Task, task
from tests.support.merging import MERGING

State = dict[str, Any]

VICTIM = "00000000-0000-4000-8000-000000000001"
CRIO = json.loads((STATES / "crio-1.36.3-runc-1.3.6-createRuntime.json").read_text())
CONTAINERD = json.loads((STATES / "containerd-2.1.9-runc-1.3.6-createRuntime.json").read_text())
PODMAN = json.loads((STATES / "podman-5.8.6-runc-1.3.6-container-createRuntime.json").read_text())
CRIOS_UID, CONTAINERDS_UID = CRIO["annotations"]["io.kubernetes.pod.uid"], "a80c6f3b-f012-4f57-8aa3-bc38fc664bf1"
MANAGER, POD_UID, CRI_UID = "io.container.manager", "io.kubernetes.pod.uid", "io.kubernetes.cri.sandbox-uid"
NO_PID = 2**22 + 1  # above the most that pid_max can be
FORGED = {
    MANAGER: "cri-o",
    POD_UID: VICTIM,
    CRI_UID: VICTIM,
    "io.kubernetes.pod.namespace": "kube-system",
    "io.kubernetes.pod.name": "victim",
}


@pytest.fixture
def top() -> Iterator[str]:
    """A cgroup in which a kubelet may make its own."""
    with cgroup(f"/resctrl-mon-hook-{os.getpid()}") as made:
        yield made.path


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def placed(stack: ExitStack, path: str) -> Task:
    """A process that stands for a container's init, in this cgroup."""
    init = stack.enter_context(task())
    Path(stack.enter_context(cgroup(path)).directory, "cgroup.procs").write_text(str(init.pid))
    return init


def merged(way: str, author: Mapping[str, str], init: Task) -> State:
    return {**MERGING[way](STATE[way], author).state, "pid": init.pid}


STATE = {"crio": CRIO, "containerd": CONTAINERD, "podman": PODMAN}
UIDS = {"crio": CRIOS_UID, "containerd": CONTAINERDS_UID}
PLACES = {
    "crio": f"/kubepods.slice/kubepods-burstable-pod{CRIOS_UID.replace('-', '_')}.slice/crio-{CRIO['id']}.scope",
    "containerd": f"/kubepods/burstable/pod{CONTAINERDS_UID}/{CONTAINERD['id']}",
    "podman": f"/libpod-{PODMAN['id']}.scope",
}


@pytest.mark.parametrize(("way", "pod"), [("crio", "default/e1-runcn"), ("containerd", "team-a/demo-base")])
def test_forged_annotations_leave_a_container_in_its_own_pod_and_are_reported(
    hook: Hook, stack: ExitStack, top: str, way: str, pod: str
) -> None:
    init, uid = placed(stack, top + PLACES[way]), UIDS[way]
    outcome = hook.with_options("--strict")(merged(way, FORGED, init))
    assert outcome.status == 0
    assert hook.groups() == {f"oci-{uid}"}
    assert hook.tasks(f"oci-{uid}") == {init.pid}
    recorded = hook.key(uid)
    assert f"{recorded['pod_namespace']}/{recorded['pod_name']}" == pod
    (failure,) = hook.failures().values()
    assert (failure["reason"], failure["monitored"], failure["key"]) == ("bad_key", True, uid)
    assert VICTIM in failure["problem"]
    assert VICTIM in outcome.stderr


# --- Both files call the hook. All annotations and options: unit/test_evasion.py


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("way", "author", "kubernetes", "podman", "group"),
    [
        ("crio", {MANAGER: "libpod"}, ["--group-prefix=k8s-"], ["--key=sandbox"], f"k8s-{CRIOS_UID}"),
        ("crio", {MANAGER: "libpod"}, ["--key=container"], ["--group-prefix=mine-"], f"oci-{CRIO['id']}"),
        ("crio", {MANAGER: "libpod"}, ["--key=sandbox"], ["--strict"], f"oci-{CRIOS_UID}"),
        ("podman", FORGED, ["--group-prefix=k8s-"], [], f"oci-{PODMAN['id']}"),
        ("podman", {MANAGER: "x", CRI_UID: VICTIM}, [], [], f"oci-{PODMAN['id']}"),
    ],
)
def test_only_the_call_that_is_for_a_container_handles_it(
    hook: Hook,
    stack: ExitStack,
    top: str,
    way: str,
    author: dict[str, str],
    kubernetes: list[str],
    podman: list[str],
    group: str,
    reverse: bool,
) -> None:
    init = placed(stack, top + PLACES[way])
    state = merged(way, author, init)
    calls = [["--containers=kubernetes", "--linger=600", *kubernetes], ["--containers=podman", *podman]]
    calls = calls[::-1] if reverse else calls
    for options in calls:
        assert hook.with_options(*options)(state).stderr == ""
    assert hook.groups() == {group}
    assert hook.reasons() == {}
    init.kill()
    init.wait()
    stopped = {"ociVersion": "1.2.1", "id": state["id"], "status": "stopped", "bundle": "/"}  # Podman's has no more
    for options in calls:
        hook.with_options(*options)(stopped if way == "podman" else {**state, "status": "stopped", "pid": 0})
    assert hook.groups() == (set() if way == "podman" else {group}), "only Kubernetes' file lets it linger"


def test_call_of_the_other_file_keeps_the_record_of_a_failure(hook: Hook, stack: ExitStack, top: str) -> None:
    state = merged("crio", {MANAGER: "libpod"}, placed(stack, top + PLACES["crio"]))
    hook.with_options("--containers=kubernetes", "--group-prefix=" + "x" * 40)({**state, "pid": NO_PID})
    assert set(hook.reasons().values()) == {"task_gone"}
    hook.with_options("--containers=podman")(state)
    assert set(hook.reasons().values()) == {"task_gone"}
    assert hook.groups() == set()
