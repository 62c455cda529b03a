# SPDX-License-Identifier: Apache-2.0
"""Containers that run already: whose they are, wherever their processes have gone, and what they are called."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hook.create import create_runtime
from hook.identity import Container
from hook.models import Failure, State
from hook.reconcile.run import Repairs
from hook.store import RunDir
from tests.simulator.machine import RUN
from tests.unit.simulated import ID, UID, Node, node

__all__ = ["node"]  # fixture

VICTIM = "00000000-0000-4000-8000-000000000001"
OTHER = "1" * 64
LIBPOD = {"io.container.manager": "libpod"}
NAMES = {"io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.name": "web", "io.kubernetes.container.name": "app"}
OWN = f"/machine.slice/libpod-{ID}.scope"
BELOW = [f"/pod{VICTIM}", f"/kubepods/pod{VICTIM}/crio-{OTHER}", f"/libpod-{OTHER}.scope"]
below = pytest.mark.parametrize("gone_to", BELOW)


def enters(node: Node, cgroup: str, pid: int = 7) -> None:
    """A process goes to a cgroup."""
    if pid not in node.kernel.tasks:
        node.spawn(pid, cgroup)
    node.kernel.tasks[pid].places = [f"0::{cgroup}"]


def bundle_of(node: Node, cgroups_path: str | None, annotations: dict[str, str] | None = None) -> str:
    """The bundle that a runtime made a container of."""
    linux = {} if cgroups_path is None else {"cgroupsPath": cgroups_path}
    node.machine.add("/run/bundle/config.json", json.dumps({"linux": linux, "annotations": annotations or {}}).encode())
    return "/run/bundle"


def adopt(node: Node, bundle: str, annotations: dict[str, str] | None, **more: Any) -> Repairs:  # noqa: ANN401
    state = {"ociVersion": "1.0", "id": ID, "status": "running", "pid": 7, "bundle": bundle}
    found = State.model_validate({**state, "annotations": annotations} if annotations else state)
    return node.repair(more, asks=lambda _known: ([found], []))


def retry(node: Node, bundle: str, **known: Any) -> Repairs:  # noqa: ANN401
    fields = {"reason": "io", "problem": "", "pid": 7, "starttime": 100, "bundle": bundle, **known}
    RunDir(RUN).write(Failure, ID, Failure(container=ID, stage="createRuntime", **fields))
    return node.repair()


# --- A tenant with a writable cgroup moves his init below it


@below
def test_a_hook_charges_a_container_that_moved_below_its_own_cgroup_to_itself(node: Node, gone_to: str) -> None:
    enters(node, OWN + gone_to)
    create_runtime(node.context(), Container(ID, 7, "/nowhere", LIBPOD))
    assert node.groups() == {f"oci-{ID}": {7}}
    state = node.state(ID)
    assert state.members[ID].cgroup == f":{OWN}"


@below
@pytest.mark.parametrize("path", [f"machine.slice:libpod:{ID}", OWN, "/tenant"])
@pytest.mark.parametrize("way", [adopt, lambda node, bundle, _: retry(node, bundle)], ids=["adopt", "retry"])
def test_a_container_is_charged_by_the_cgroup_that_its_runtime_asked_for(
    node: Node, way: Callable[..., Repairs], gone_to: str, path: str
) -> None:
    enters(node, ("/tenant" if path == "/tenant" else OWN) + gone_to)
    assert way(node, bundle_of(node, path, LIBPOD), LIBPOD).is_whole
    assert node.groups() == {f"oci-{ID}": {7}}


def test_rebuild_knows_a_container_of_a_plain_name_by_its_group(node: Node) -> None:
    """Its ID does not look like one, and its index entry is lost: what is below is not believed instead."""
    enters(node, "/plain")
    enters(node, f"/machine.slice/libpod-{OTHER}.scope", 8)
    for name, pid in (("plain", 7), (OTHER, 8)):
        create_runtime(node.context(), Container(name, pid, "/nowhere", LIBPOD))
    enters(node, f"/plain/libpod-{OTHER}.scope")
    node.remove("groups")
    node.remove("members/plain.json")
    node.repair()
    assert node.groups() == {"oci-plain": {7}, f"oci-{OTHER}": {8}}
    states = [node.find_state(name) for name in ("plain", OTHER)]
    assert [[member.pid for member in state.members.values()] for state in states if state] == [[7], [8]]


def test_a_pods_container_is_in_its_pod_wherever_it_has_gone(node: Node) -> None:
    path = f"/kubepods/pod{UID}/crio-{ID}"
    enters(node, f"{path}/pod{VICTIM}")
    adopt(node, bundle_of(node, f"kubepods-pod{UID.replace('-', '_')}.slice:crio:{ID}"), {})
    assert node.groups() == {f"oci-{UID}": {7}}
    state = node.state(UID)
    assert (state.members[ID].cgroup, state.cgroup) == (f":{path}", f":/kubepods/pod{UID}")


# --- A bundle that does not say which cgroup it asked for

CLAIM = {"io.kubernetes.cri.sandbox-uid": VICTIM}
each_unsaid = pytest.mark.parametrize("path", [None, "relative/path"])


@pytest.mark.parametrize("annotations", [CLAIM, None])
@pytest.mark.parametrize("path", [None, "relative/path", "unreadable"])
def test_what_runs_is_no_pods_by_an_annotation_alone_and_is_not_guessed_at_without_a_bundle(
    node: Node, path: str | None, annotations: dict[str, str] | None
) -> None:
    enters(node, f"/tenant/pod{VICTIM}")
    bundle = "/nowhere" if path == "unreadable" else bundle_of(node, path, CLAIM)
    (outcome,) = adopt(node, bundle, annotations).outcomes
    assert (node.failures(), node.groups()) == ({ID: "bad_key"}, {})
    assert path == "unreadable" or f"{bundle}/config.json has no absolute linux.cgroupsPath" in str(outcome.problem)


@each_unsaid
@pytest.mark.parametrize("annotations", [{}, LIBPOD])
def test_a_running_container_that_claims_no_pod_has_its_own_key(
    node: Node, path: str | None, annotations: dict[str, str]
) -> None:
    enters(node, f"/tenant/pod{VICTIM}")
    assert adopt(node, bundle_of(node, path), annotations).is_whole
    assert node.groups() == {f"oci-{ID}": {7}}


@each_unsaid
@pytest.mark.parametrize("known", [{}, {"key": UID, "kind": "pod"}], ids=["in the index", "in the failure"])
def test_retry_goes_by_the_recorded_key_where_the_bundle_does_not_say(
    node: Node, path: str | None, known: dict[str, str]
) -> None:
    enters(node, f"/tenant/pod{VICTIM}")
    if not known:
        RunDir(RUN).write_index(ID, UID)
    assert retry(node, bundle_of(node, path, CLAIM), **known).is_whole
    assert (node.groups(), node.state(UID).kind) == ({f"oci-{UID}": {7}}, "pod")
    assert RunDir(RUN).glance(Failure, ID) is None


@pytest.mark.parametrize("starttime", [99, 101])
def test_retry_leaves_a_process_that_was_given_the_recorded_pid(node: Node, starttime: int) -> None:
    enters(node, f"/kubepods/pod{VICTIM}/crio-{OTHER}")
    retry(node, bundle_of(node, f"/kubepods/pod{UID}/{ID}"), starttime=starttime, key=UID, kind="pod")
    assert node.groups() == {}


def test_adopt_leaves_a_container_that_filters_leave_out_and_does_not_say_that_it_was_adopted(node: Node) -> None:
    """It was printed and counted as adopted by each run."""
    enters(node, OWN)
    assert adopt(node, bundle_of(node, OWN), LIBPOD, namespace=["shop"]).outcomes == []
    assert node.groups() == {}


# --- What they are called


def of_pod(node: Node, annotations: dict[str, str] | None = None) -> str:
    path = f"/kubepods/pod{UID}/crio-{ID}"
    enters(node, path)
    return bundle_of(node, path, annotations)


SAID = {"io.container.manager": "cri-o", "io.kubernetes.pod.uid": UID, **NAMES}
OF_POD = {"key": UID, "kind": "pod"}
WAYS: dict[str, Callable[[Node], object]] = {
    "adopt, of the state": lambda node: adopt(node, of_pod(node), SAID),
    "adopt, of the bundle": lambda node: adopt(node, of_pod(node, SAID), None),
    "retry, of the bundle": lambda node: retry(node, of_pod(node, SAID), **OF_POD),
    "retry, of the record": lambda node: (
        of_pod(node) and retry(node, "/nowhere", **OF_POD, namespace="shop", pod="web", name="app")
    ),
    "remake, of the record": lambda node: remake(node, of_pod(node)),
}


def remake(node: Node, bundle: str) -> None:
    create_runtime(node.context(), Container(ID, 7, bundle, SAID))
    node.remove_groups()
    assert node.verbs() == ["remake"]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_names_are_those_of_the_state_the_bundle_or_the_record(node: Node, way: Callable[[Node], object]) -> None:
    way(node)
    state = node.state(UID)
    assert (state.pod_namespace, state.pod_name, state.members[ID].name) == ("shop", "web", "app")
