# SPDX-License-Identifier: Apache-2.0
"""Containers that run already: whose they are, wherever their processes have gone, and what they are called."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hook.base.models import Failure, Options, State
from hook.node import runtimes
from hook.reconcile import run as reconcile
from hook.reconcile.run import Result
from hook.stages.create import create_runtime
from hook.stages.identity import Container
from hook.state.store import RunDir
from tests.unit.test_create import UID, MachineOnDisk, machine
from tests.unit.test_rundir import clock, directories

__all__ = ["clock", "directories", "machine"]  # fixtures

VICTIM = "00000000-0000-4000-8000-000000000001"
ID = "5f3c" * 16
OTHER = "1" * 64
LIBPOD = {"io.container.manager": "libpod"}
NAMES = {"io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.name": "web", "io.kubernetes.container.name": "app"}
OWN = f"/machine.slice/libpod-{ID}.scope"
BELOW = [f"/pod{VICTIM}", f"/kubepods/pod{VICTIM}/crio-{OTHER}", f"/libpod-{OTHER}.scope"]
below = pytest.mark.parametrize("gone_to", BELOW)


@pytest.fixture(autouse=True)
def no_runtimes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "_ROOTS", ())


def enters(machine: MachineOnDisk, cgroup: str, pid: int = 7) -> None:
    """A process goes to a cgroup."""
    if not (machine.proc / str(pid)).exists():
        machine.spawn(pid)
    (machine.proc / str(pid) / "cgroup").write_text(f"0::{cgroup}\n")


def bundle_of(machine: MachineOnDisk, cgroups_path: str | None, annotations: dict[str, str] | None = None) -> str:
    """The bundle that a runtime made a container of."""
    bundle = machine.proc.parent / "bundle"
    bundle.mkdir(exist_ok=True)
    linux = {} if cgroups_path is None else {"cgroupsPath": cgroups_path}
    (bundle / "config.json").write_text(json.dumps({"linux": linux, "annotations": annotations or {}}))
    return str(bundle)


def options(machine: MachineOnDisk, **more: Any) -> Options:  # noqa: ANN401
    return Options(resctrl_root=str(machine.resctrl), run_dir=str(machine.run), **more)


def adopt(machine: MachineOnDisk, bundle: str, annotations: dict[str, str] | None, **more: Any) -> Result:  # noqa: ANN401
    state = {"ociVersion": "1.0", "id": ID, "status": "running", "pid": 7, "bundle": bundle}
    found = [{**state, "annotations": annotations} if annotations else state]
    return reconcile.repair(
        options(machine, **more), list_states=lambda _known: ([State.model_validate(it) for it in found], [])
    )


def retry(machine: MachineOnDisk, bundle: str, **known: Any) -> Result:  # noqa: ANN401
    fields = {"reason": "io", "problem": "", "pid": 7, "starttime": 100, "bundle": bundle, **known}
    RunDir(str(machine.run)).write(Failure, ID, Failure(container=ID, stage="createRuntime", **fields))
    return reconcile.repair(options(machine))


# --- A tenant with a writable cgroup moves his init below it


@below
def test_a_hook_charges_a_container_that_moved_below_its_own_cgroup_to_itself(
    machine: MachineOnDisk, gone_to: str
) -> None:
    enters(machine, OWN + gone_to)
    create_runtime(machine.node(), Container(ID, 7, "/nowhere", LIBPOD))
    assert machine.groups() == {f"oci-{ID}": {7}}
    state = machine.node().run.read_key(ID)
    assert state is not None
    assert state.members[ID].cgroup == f":{OWN}"


@below
@pytest.mark.parametrize("path", [f"machine.slice:libpod:{ID}", OWN, "/tenant"])
def test_adopt_charges_a_container_by_the_cgroup_that_its_runtime_asked_for(
    machine: MachineOnDisk, gone_to: str, path: str
) -> None:
    enters(machine, ("/tenant" if path == "/tenant" else OWN) + gone_to)
    assert adopt(machine, bundle_of(machine, path), LIBPOD).is_whole
    assert machine.groups() == {f"oci-{ID}": {7}}


@below
@pytest.mark.parametrize("path", [f"machine.slice:libpod:{ID}", "/tenant"])
def test_retry_charges_a_container_by_the_cgroup_that_its_runtime_asked_for(
    machine: MachineOnDisk, gone_to: str, path: str
) -> None:
    enters(machine, ("/tenant" if path == "/tenant" else OWN) + gone_to)
    assert retry(machine, bundle_of(machine, path, LIBPOD)).is_whole
    assert machine.groups() == {f"oci-{ID}": {7}}


@below
def test_rebuild_charges_a_container_that_moved_below_its_own_cgroup_to_itself(
    machine: MachineOnDisk, gone_to: str
) -> None:
    enters(machine, OWN)
    enters(machine, f"/machine.slice/libpod-{OTHER}.scope", 8)
    for name, pid in ((ID, 7), (OTHER, 8)):
        create_runtime(machine.node(), Container(name, pid, "/nowhere", LIBPOD))
    enters(machine, OWN + gone_to)
    shutil.rmtree(machine.run / "groups")
    (machine.run / "members" / f"{ID}.json").unlink()
    assert {it.action.verb for it in reconcile.repair(options(machine)).outcomes} >= {"rebuild"}
    assert machine.groups() == {f"oci-{ID}": {7}, f"oci-{OTHER}": {8}}
    states = [machine.node().run.read_key(name) for name in (ID, OTHER)]
    assert [(it.recovering, {name: m.pid for name, m in it.members.items()}) for it in states if it] == [
        (False, {ID: 7}),
        (False, {OTHER: 8}),
    ]


def test_rebuild_knows_a_container_of_a_plain_name_by_its_group(machine: MachineOnDisk) -> None:
    """Its ID does not look like one, and its index entry is lost: what is below is not believed instead."""
    enters(machine, "/plain")
    enters(machine, f"/machine.slice/libpod-{OTHER}.scope", 8)
    for name, pid in (("plain", 7), (OTHER, 8)):
        create_runtime(machine.node(), Container(name, pid, "/nowhere", LIBPOD))
    enters(machine, f"/plain/libpod-{OTHER}.scope")
    shutil.rmtree(machine.run / "groups")
    (machine.run / "members/plain.json").unlink()
    reconcile.repair(options(machine))
    assert machine.groups() == {"oci-plain": {7}, f"oci-{OTHER}": {8}}
    states = [machine.node().run.read_key(name) for name in ("plain", OTHER)]
    assert [[member.pid for member in it.members.values()] for it in states if it] == [[7], [8]]


def test_a_pods_container_is_in_its_pod_wherever_it_has_gone(machine: MachineOnDisk) -> None:
    path = f"/kubepods/pod{UID}/crio-{ID}"
    enters(machine, f"{path}/pod{VICTIM}")
    adopt(machine, bundle_of(machine, f"kubepods-pod{UID.replace('-', '_')}.slice:crio:{ID}"), {})
    assert machine.groups() == {f"oci-{UID}": {7}}
    state = machine.node().run.read_key(UID)
    assert state is not None
    assert (state.members[ID].cgroup, state.cgroup) == (f":{path}", f":/kubepods/pod{UID}")


# --- A bundle that does not say which cgroup it asked for

CLAIM = {"io.kubernetes.cri.sandbox-uid": VICTIM}
each_unsaid = pytest.mark.parametrize("path", [None, "relative/path"])


@each_unsaid
def test_an_annotation_alone_makes_a_running_container_no_pods(machine: MachineOnDisk, path: str | None) -> None:
    enters(machine, f"/tenant/pod{VICTIM}")
    bundle = bundle_of(machine, path)
    (outcome,) = adopt(machine, bundle, CLAIM).outcomes
    assert (outcome.reason, machine.groups()) == ("bad_key", {})
    assert f"{bundle}/config.json has no absolute linux.cgroupsPath" in str(outcome.problem)


def test_a_running_container_whose_bundle_is_unreadable_is_not_guessed_at(machine: MachineOnDisk) -> None:
    enters(machine, f"/tenant/pod{VICTIM}")
    assert [it.reason for it in adopt(machine, "/nowhere", None).outcomes] == ["bad_key"]
    assert [it.reason for it in adopt(machine, "/nowhere", CLAIM).outcomes] == ["bad_key"]
    assert machine.groups() == {}


@each_unsaid
@pytest.mark.parametrize("annotations", [{}, LIBPOD])
def test_a_running_container_that_claims_no_pod_has_its_own_key(
    machine: MachineOnDisk, path: str | None, annotations: dict[str, str]
) -> None:
    enters(machine, f"/tenant/pod{VICTIM}")
    assert adopt(machine, bundle_of(machine, path), annotations).is_whole
    assert machine.groups() == {f"oci-{ID}": {7}}


@each_unsaid
def test_a_key_of_a_container_needs_no_pod(machine: MachineOnDisk, path: str | None) -> None:
    enters(machine, f"/tenant/pod{VICTIM}")
    assert adopt(machine, bundle_of(machine, path), CLAIM, key="container").is_whole
    assert machine.groups() == {f"oci-{ID}": {7}}
    assert machine.node().run.glance(Failure, ID) is None


@each_unsaid
def test_retry_goes_by_the_index_where_the_bundle_does_not_say(machine: MachineOnDisk, path: str | None) -> None:
    enters(machine, f"/tenant/pod{VICTIM}")
    RunDir(str(machine.run)).write_index(ID, UID)
    assert retry(machine, bundle_of(machine, path, CLAIM)).is_whole
    assert machine.groups() == {f"oci-{UID}": {7}}
    state = machine.node().run.read_key(UID)
    assert state is not None
    assert state.kind == "pod"
    assert machine.node().run.glance(Failure, ID) is None


@each_unsaid
def test_retry_goes_by_the_recorded_key(machine: MachineOnDisk, path: str | None) -> None:
    enters(machine, f"/tenant/pod{VICTIM}")
    assert retry(machine, bundle_of(machine, path, CLAIM), key=UID, kind="pod").is_whole
    assert machine.groups() == {f"oci-{UID}": {7}}
    assert machine.node().run.glance(Failure, ID) is None


@pytest.mark.parametrize("starttime", [99, 101])
def test_retry_leaves_a_process_that_was_given_the_recorded_pid(machine: MachineOnDisk, starttime: int) -> None:
    enters(machine, f"/kubepods/pod{VICTIM}/crio-{OTHER}")
    retry(machine, bundle_of(machine, f"/kubepods/pod{UID}/{ID}"), starttime=starttime, key=UID, kind="pod")
    assert machine.groups() == {}


# --- What they are called


def names_of(machine: MachineOnDisk) -> tuple[str | None, ...]:
    state = machine.node().run.read_key(UID)
    assert state is not None
    return state.pod_namespace, state.pod_name, state.members[ID].name


def of_pod(machine: MachineOnDisk, annotations: dict[str, str] | None = None) -> str:
    path = f"/kubepods/pod{UID}/crio-{ID}"
    enters(machine, path)
    return bundle_of(machine, path, annotations)


SAID = {"io.container.manager": "cri-o", "io.kubernetes.pod.uid": UID, **NAMES}


def test_adopt_takes_the_names_of_the_state_or_of_the_bundle(machine: MachineOnDisk) -> None:
    adopt(machine, of_pod(machine), SAID)
    assert names_of(machine) == ("shop", "web", "app")


def test_adopt_takes_the_names_of_the_bundle_where_the_state_has_none(machine: MachineOnDisk) -> None:
    adopt(machine, of_pod(machine, SAID), None)
    assert names_of(machine) == ("shop", "web", "app")


def test_retry_takes_the_names_of_the_bundle(machine: MachineOnDisk) -> None:
    retry(machine, of_pod(machine, SAID), key=UID, kind="pod")
    assert names_of(machine) == ("shop", "web", "app")


def test_retry_takes_the_recorded_names_where_the_bundle_has_none(machine: MachineOnDisk) -> None:
    Path(of_pod(machine), "config.json").unlink()
    retry(machine, "/nowhere", key=UID, kind="pod", namespace="shop", pod="web", name="app")
    assert names_of(machine) == ("shop", "web", "app")


def test_a_container_whose_group_is_made_again_keeps_its_name(machine: MachineOnDisk) -> None:
    bundle = of_pod(machine)
    create_runtime(machine.node(), Container(ID, 7, bundle, SAID))
    shutil.rmtree(machine.resctrl / "mon_groups" / f"oci-{UID}")
    assert [it.action.verb for it in reconcile.repair(options(machine)).outcomes] == ["remake"]
    assert names_of(machine) == ("shop", "web", "app")
