# SPDX-License-Identifier: Apache-2.0
"""Whose container it is, under both hooks.d files: processes in cgroups of pods, and annotations that say otherwise."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import pytest

from tests.support.cgroups import cgroup
from tests.support.hook import STATES, Hook, task
from tests.support.merging import MERGING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Task = subprocess.Popen[bytes]
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


def merged(way: str, state: Mapping[str, Any], author: Mapping[str, str], init: Task) -> dict[str, Any]:
    return {**MERGING[way](state, author).state, "pid": init.pid}


def of_crio(top: str) -> str:
    return f"{top}/kubepods.slice/kubepods-burstable-pod{CRIOS_UID.replace('-', '_')}.slice/crio-{CRIO['id']}.scope"


def of_containerd(top: str) -> str:
    return f"{top}/kubepods/burstable/pod{CONTAINERDS_UID}/{CONTAINERD['id']}"


@pytest.mark.parametrize(
    ("way", "state", "uid", "place", "pod"),
    [
        ("crio", CRIO, CRIOS_UID, of_crio, "default/e1-runcn"),
        ("containerd", CONTAINERD, CONTAINERDS_UID, of_containerd, "team-a/demo-base"),
    ],
    ids=["crio", "containerd"],
)
def test_forged_annotations_leave_a_container_in_its_own_pod_and_are_reported(
    hook: Hook, stack: ExitStack, top: str, way: str, state: State, uid: str, place: Callable[[str], str], pod: str
) -> None:
    init = placed(stack, place(top))
    outcome = hook.with_options("--strict")(merged(way, state, FORGED, init))
    assert outcome.status == 0
    assert hook.groups() == {f"oci-{uid}"}
    assert hook.tasks(f"oci-{uid}") == {init.pid}
    recorded = hook.key(uid)
    assert f"{recorded['pod_namespace']}/{recorded['pod_name']}" == pod
    (failure,) = hook.failures().values()
    assert (failure["reason"], failure["monitored"], failure["key"]) == ("bad_key", True, uid)
    assert VICTIM in failure["problem"]
    assert VICTIM in outcome.stderr


@pytest.mark.parametrize("author", [FORGED, {MANAGER: "x", CRI_UID: VICTIM}, {}])
def test_podmans_container_cannot_be_put_into_a_pod_by_annotations(
    hook: Hook, stack: ExitStack, top: str, author: dict[str, str]
) -> None:
    init = placed(stack, f"{top}/libpod-{PODMAN['id']}.scope")
    for options in (["--containers=kubernetes", "--linger=600"], ["--containers=podman"]):
        hook.with_options(*options)(merged("podman", PODMAN, author, init))
    assert hook.groups() == {f"oci-{PODMAN['id']}"}
    assert hook.reasons() == {}


# --- Both files call the hook


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kubernetes", [[], ["--key=container"], ["--key=sandbox"], ["--group-prefix=k8s-"]])
@pytest.mark.parametrize("podman", [["--key=sandbox"], ["--key=container"], ["--group-prefix=mine-"], ["--strict"]])
def test_podmans_options_do_not_reach_a_pods_container(
    hook: Hook, stack: ExitStack, top: str, kubernetes: list[str], podman: list[str], reverse: bool
) -> None:
    init = placed(stack, of_crio(top))
    state = merged("crio", CRIO, {MANAGER: "libpod"}, init)
    calls = [["--containers=kubernetes", "--linger=600", *kubernetes], ["--containers=podman", *podman]]
    calls = calls[::-1] if reverse else calls
    for options in calls:
        assert hook.with_options(*options)(state).stderr == ""
    name = CRIO["id"] if kubernetes == ["--key=container"] else CRIOS_UID
    group = f"k8s-{name}" if kubernetes == ["--group-prefix=k8s-"] else f"oci-{name}"
    assert hook.groups() == {group}
    init.kill()
    init.wait()
    for options in calls:
        hook.with_options(*options)({**state, "status": "stopped", "pid": 0})
    assert hook.groups() == {group}, "it lingers, as Kubernetes' file has it"


def test_sandbox_key_of_a_second_call_does_not_take_a_container_out_of_its_pod(
    hook: Hook, stack: ExitStack, top: str
) -> None:
    """Also where the files do not say whose containers they are for."""
    init = placed(stack, of_crio(top))
    state = merged("crio", CRIO, {MANAGER: "libpod"}, init)
    hook(state)
    hook.with_options("--key=sandbox")(state)
    assert hook.groups() == {f"oci-{CRIOS_UID}"}


@pytest.mark.parametrize("reverse", [False, True])
def test_kubernetes_options_do_not_reach_podmans_container(
    hook: Hook, stack: ExitStack, top: str, reverse: bool
) -> None:
    init = placed(stack, f"{top}/libpod-{PODMAN['id']}")
    state = merged("podman", PODMAN, {"io.kubernetes.container.restartCount": "0"}, init)
    calls = [["--containers=kubernetes", "--linger=600", "--group-prefix=k8s-"], ["--containers=podman"]]
    calls = calls[::-1] if reverse else calls
    for options in calls:
        hook.with_options(*options)(state)
    assert hook.groups() == {f"oci-{PODMAN['id']}"}
    init.kill()
    init.wait()
    for options in calls:
        hook.with_options(*options)({"ociVersion": "1.2.1", "id": PODMAN["id"], "status": "stopped", "bundle": "/"})
    assert hook.groups() == set(), "Podman's file has no linger"
    assert hook.leftovers() == set()


def test_call_of_the_other_file_keeps_the_record_of_a_failure(hook: Hook, stack: ExitStack, top: str) -> None:
    init = placed(stack, of_crio(top))
    state = merged("crio", CRIO, {MANAGER: "libpod"}, init)
    hook.with_options("--containers=kubernetes", "--group-prefix=" + "x" * 40)({**state, "pid": NO_PID})
    assert set(hook.reasons().values()) == {"task_gone"}
    hook.with_options("--containers=podman")(state)
    assert set(hook.reasons().values()) == {"task_gone"}
    assert hook.groups() == set()


def test_retry_derives_the_key_from_the_cgroup(hook: Hook, stack: ExitStack, top: str, tmp_path: Path) -> None:
    """What failed before its key was known is tried again by its bundle's annotations, which an author may have had.

    And by the cgroup that its runtime asked for; the process has gone to one below, which is called like the victim's.
    """
    init = placed(stack, f"{of_containerd(top)}/pod{VICTIM}")
    state = merged("containerd", CONTAINERD, FORGED, init)
    config = {"annotations": state["annotations"], "linux": {"cgroupsPath": of_containerd(top)}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    hook({**state, "bundle": str(tmp_path), "pid": NO_PID})
    (record,) = (hook.run_dir / "unmonitored").glob("*.json")
    failure = json.loads(record.read_text())
    assert (failure["reason"], failure["key"]) == ("task_gone", None)
    born = int(Path(f"/proc/{init.pid}/stat").read_text().rpartition(")")[2].split()[19])
    record.write_text(json.dumps({**failure, "pid": init.pid, "starttime": born}))
    done = subprocess.run(hook.command("reconcile"), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert hook.tasks(f"oci-{CONTAINERDS_UID}") == {init.pid}
    assert [(it["reason"], it["monitored"]) for it in hook.failures().values()] == [("bad_key", True)]
