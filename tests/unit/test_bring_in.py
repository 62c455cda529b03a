# SPDX-License-Identifier: Apache-2.0
"""Containers that run already: whose they are, wherever their processes have gone,
and what they are called.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hook import context, jobs
from hook.context import read_container
from hook.create import create_runtime
from hook.errors import HookError
from hook.models import Failure, Index, State
from hook.node.runtimes import Answers
from hook.reconcile import act as acting
from hook.reconcile.run import Repairs
from hook.store import RunDir
from hook.watch import Watch
from tests.simulator.kernel import RESCTRL
from tests.simulator.machine import RUN
from tests.unit.simulated import ID, OTHER_UID, UID, Node, cgroup_of, node

__all__ = ["node"]  # fixture

VICTIM = "00000000-0000-4000-8000-000000000001"
OTHER = "1" * 64
LIBPOD = {"io.container.manager": "libpod"}
NAMES = {
    "io.kubernetes.pod.namespace": "shop",
    "io.kubernetes.pod.name": "web",
    "io.kubernetes.container.name": "app",
}
OWN = f"/machine.slice/libpod-{ID}.scope"
BELOW = [f"/pod{VICTIM}", f"/kubepods/pod{VICTIM}/crio-{OTHER}", f"/libpod-{OTHER}.scope"]
below = pytest.mark.parametrize("gone_to", BELOW)


def enters(node: Node, cgroup: str, pid: int = 7) -> None:
    """A process goes to a cgroup."""
    if pid not in node.kernel.tasks:
        node.spawn(pid, cgroup)
    node.kernel.tasks[pid].places = [f"0::{cgroup}"]


def bundle_of(
    node: Node, cgroups_path: str | None, annotations: dict[str, str] | None = None
) -> str:
    """The bundle that a runtime made a container of."""
    linux = {} if cgroups_path is None else {"cgroupsPath": cgroups_path}
    node.machine.add(
        "/run/bundle/config.json",
        json.dumps({"linux": linux, "annotations": annotations or {}}).encode(),
    )
    return "/run/bundle"


def adopt(node: Node, bundle: str, annotations: dict[str, str] | None, **more: Any) -> Repairs:  # noqa: ANN401
    state = {"ociVersion": "1.0", "id": ID, "status": "running", "pid": 7, "bundle": bundle}
    given = State.model_validate({**state, "annotations": annotations} if annotations else state)
    return node.repair(more, asks=lambda _known: ({ID: given}, {}))


def retry(node: Node, bundle: str, **known: Any) -> Repairs:  # noqa: ANN401
    fields = {"reason": "io", "problem": "", "pid": 7, "starttime": 100, "bundle": bundle, **known}
    RunDir(RUN).write(Failure, ID, Failure(container=ID, stage="createRuntime", **fields))
    return node.repair()


# --- A tenant with a writable cgroup moves his init below it


@below
def test_a_hook_charges_a_container_that_moved_below_its_own_cgroup_to_itself(
    node: Node, gone_to: str
) -> None:
    enters(node, OWN + gone_to)
    create_runtime(node.context(), read_container(ID, 7, "/nowhere", LIBPOD))
    assert node.groups() == {f"oci-{ID}": {7}}
    state = node.state(ID)
    assert state.members[ID].cgroup == f":{OWN}"


@below
@pytest.mark.parametrize("path", [f"machine.slice:libpod:{ID}", OWN, "/tenant"])
@pytest.mark.parametrize(
    "way", [adopt, lambda node, bundle, _: retry(node, bundle)], ids=["adopt", "retry"]
)
def test_a_container_is_charged_by_the_cgroup_that_its_runtime_asked_for(
    node: Node, way: Callable[..., Repairs], gone_to: str, path: str
) -> None:
    enters(node, ("/tenant" if path == "/tenant" else OWN) + gone_to)
    assert way(node, bundle_of(node, path, LIBPOD), LIBPOD).is_whole
    assert node.groups() == {f"oci-{ID}": {7}}


def test_rebuild_knows_a_container_of_a_plain_name_by_its_group(node: Node) -> None:
    """Its ID does not look like one, and its index entry is lost:
    what is below is not believed instead.
    """
    enters(node, "/plain")
    enters(node, f"/machine.slice/libpod-{OTHER}.scope", 8)
    for name, pid in (("plain", 7), (OTHER, 8)):
        create_runtime(node.context(), read_container(name, pid, "/nowhere", LIBPOD))
    enters(node, f"/plain/libpod-{OTHER}.scope")
    node.remove("groups")
    node.remove("members/plain.json")
    node.repair()
    assert node.groups() == {"oci-plain": {7}, f"oci-{OTHER}": {8}}
    states = [node.find_state(name) for name in ("plain", OTHER)]
    assert [[member.pid for member in state.members.values()] for state in states if state] == [
        [7],
        [8],
    ]


@pytest.mark.parametrize(
    ("index", "cgroup"),
    [
        ({}, "/elsewhere"),  # which names no container
        ({"pid": None, "starttime": None}, cgroup_of()),
    ],
    ids=["by its process", "by its cgroup, since an earlier version wrote the index"],
)
def test_rebuild_knows_a_container_of_the_index(
    node: Node, index: dict[str, None], cgroup: str
) -> None:
    node.start()
    enters(node, cgroup)
    node.edit(f"members/{ID}.json", **index)
    node.remove(f"groups/{UID}.json")
    node.repair()
    assert (node.members(), node.state().recovering, node.groups()) == (
        {ID: 7},
        False,
        {f"oci-{UID}": {7}},
    )
    written = RunDir(RUN).read(Index, ID)
    assert written is not None
    assert (written.pid, written.starttime) == (7, 100)


def test_rebuild_brings_in_a_container_of_the_index_that_was_moved_out(node: Node) -> None:
    """Its index is written first: the hook was killed, or another tool moved its init,
    and not what that started.
    """
    node.start()
    node.spawn(8, group=f"mon_groups/oci-{UID}")
    node.kernel.put("/sys/fs/resctrl", b"7")
    node.remove(f"groups/{UID}.json")
    node.repair()
    assert (node.members(), node.groups()) == ({ID: 7}, {f"oci-{UID}": {7, 8}})


def test_a_pods_container_is_in_its_pod_wherever_it_has_gone(node: Node) -> None:
    path = f"/kubepods/pod{UID}/crio-{ID}"
    enters(node, f"{path}/pod{VICTIM}")
    adopt(node, bundle_of(node, f"kubepods-pod{UID.replace('-', '_')}.slice:crio:{ID}"), {})
    assert node.groups() == {f"oci-{UID}": {7}}
    state = node.state(UID)
    assert (state.members[ID].cgroup, state.cgroup) == (f":{path}", f":/kubepods/pod{UID}")


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        (
            {"io.container.manager": "cri-o", "io.kubernetes.pod.uid": UID, **NAMES},
            f"adopt shop/web app ({ID[:12]}): ",
        ),
        (
            {},
            f"adopt {ID[:12]}: it is running, and is not in a group of ours; its pod's UID is "
            f"{UID}",
        ),
    ],
    ids=["with names", "with its UID alone"],
)
def test_an_adoption_names_the_pod_or_its_uid(
    node: Node, annotations: dict[str, str], said: str
) -> None:
    path = f"/kubepods/pod{UID}/crio-{ID}"
    enters(node, path)
    (outcome,) = adopt(node, bundle_of(node, path, annotations), annotations).outcomes
    assert (str(outcome.action).startswith(said), outcome.problem) == (True, None)


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
    assert path == "unreadable" or f"{bundle}/config.json has no absolute linux.cgroupsPath" in str(
        outcome.problem
    )


@each_unsaid
@pytest.mark.parametrize("annotations", [{}, LIBPOD])
def test_a_running_container_that_claims_no_pod_has_its_own_key(
    node: Node, path: str | None, annotations: dict[str, str]
) -> None:
    enters(node, f"/tenant/pod{VICTIM}")
    assert adopt(node, bundle_of(node, path), annotations).is_whole
    assert node.groups() == {f"oci-{ID}": {7}}


@each_unsaid
@pytest.mark.parametrize(
    "known", [{}, {"key": UID, "kind": "pod"}], ids=["in the index", "in the failure"]
)
def test_retry_goes_by_the_recorded_key_where_the_bundle_does_not_say(
    node: Node, path: str | None, known: dict[str, str]
) -> None:
    enters(node, f"/tenant/pod{VICTIM}")
    if not known:
        RunDir(RUN).write(Index, ID, Index(key=UID))
    assert retry(node, bundle_of(node, path, CLAIM), **known).is_whole
    assert (node.groups(), node.state(UID).kind) == ({f"oci-{UID}": {7}}, "pod")
    assert RunDir(RUN).glance(Failure, ID) is None


@pytest.mark.parametrize("starttime", [99, 101])
def test_retry_leaves_a_process_that_was_given_the_recorded_pid(node: Node, starttime: int) -> None:
    enters(node, f"/kubepods/pod{VICTIM}/crio-{OTHER}")
    retry(
        node, bundle_of(node, f"/kubepods/pod{UID}/{ID}"), starttime=starttime, key=UID, kind="pod"
    )
    assert node.groups() == {}


def test_adopt_leaves_a_container_that_filters_leave_out_and_does_not_say_that_it_was_adopted(
    node: Node,
) -> None:
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
    create_runtime(node.context(), read_container(ID, 7, bundle, SAID))
    node.remove_groups()
    assert node.verbs() == ["remake"]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_names_are_those_of_the_state_the_bundle_or_the_record(
    node: Node, way: Callable[[Node], object]
) -> None:
    way(node)
    state = node.state(UID)
    assert (state.pod_namespace, state.pod_name, state.members[ID].name) == ("shop", "web", "app")


# --- A number that another process has by the time of the put

THEIRS = f"{RESCTRL}/mon_groups/oci-{OTHER_UID}"


def take_number(node: Node, pid: int = 7, cgroup: str = "", group: str = THEIRS) -> None:
    """The process ends, and one of another container, which is in its group, takes its number."""
    node.kernel.die(pid)
    node.kernel.spawn(pid, f"0::{cgroup or cgroup_of(OTHER, OTHER_UID)}", born=900, group=group)


def adopt_slowly(node: Node, take: Callable[[], None]) -> None:
    """Its runtime answers, and others are asked."""
    known = {
        "ociVersion": "1.0",
        "id": ID,
        "status": "running",
        "pid": 7,
        "bundle": bundle_of(node, OWN),
    }
    state = State.model_validate(known)

    def ask(_known: object) -> Answers:
        take()
        return {ID: state}, {}

    enters(node, cgroup_of())
    node.repair(asks=ask)


def retry_slowly(node: Node, take: Callable[[], None]) -> None:
    """Its bundle is read, and names its key."""
    bundle = bundle_of(node, OWN)
    read = context.read_config

    def read_slowly(path: str) -> object:
        take()
        return read(path)

    node.patch.setattr(acting, "read_config", read_slowly)
    enters(node, cgroup_of())
    retry(node, bundle)


def assign(node: Node) -> None:
    with pytest.raises(HookError, match="no process"):
        jobs.assign(node.context(), "batch", {7: ""})


def call_hook(node: Node) -> None:
    """The runtime that waited for it was killed, and so its init has ended."""
    with pytest.raises(HookError, match="no process"):
        node.start()


def lose_group(node: Node) -> None:
    node.start()
    node.kernel.rmdir(f"{RESCTRL}/mon_groups/oci-{UID}")


def leave_class(node: Node) -> None:
    node.start()
    node.kernel.move(7, node.kernel.add_class("gold"))


def at_mkdir(node: Node) -> None:
    """It is the last of what is waited for."""
    mkdir = node.kernel.mkdir

    def make_slowly(path: str) -> None:
        mkdir(path)
        node.kernel.now += 1
        take_number(node)

    node.patch.setattr(node.kernel, "mkdir", make_slowly)


def at_put(node: Node) -> None:
    node.machine.before_put = lambda: take_number(node)


# What was before, and who puts it into a group.
PUTS: dict[str, tuple[Callable[[Node], object], Callable[[Node], object]]] = {
    "assign": (lambda node: node.spawn(7, "/user.slice"), assign),
    "a hook that waited": (lambda node: node.spawn(7, cgroup_of()), call_hook),
    "retry": (of_pod, lambda node: retry(node, of_pod(node), **OF_POD)),
    "adopt": (of_pod, lambda node: adopt(node, of_pod(node, SAID), None)),
    "remake": (lose_group, Node.repair),
    "watch": (leave_class, lambda node: Watch(node.context(), None).bring_in(7)),  # type: ignore[arg-type]
}
CASES = [
    (name, when)
    for when in (at_mkdir, at_put)
    for name in PUTS
    if when is at_mkdir or "hook" not in name
]


@pytest.mark.parametrize(
    ("way", "when"), CASES, ids=lambda case: case if isinstance(case, str) else case.__name__
)
def test_a_process_that_has_the_number_by_now_is_not_put_in_or_is_moved_back(
    node: Node, way: str, when: Callable[[Node], object]
) -> None:
    """It stayed in the group of a container that it is not of."""
    node.start(OTHER, 8, OTHER_UID)
    prepare, act = PUTS[way]
    prepare(node)
    when(node)
    node.machine.changes.clear()
    act(node)
    assert node.kernel.tasks[7].born == 900
    moves = [path for call, path in node.machine.changes if call == "put"]
    # There the kernel refuses a process of another ctrl_group.
    is_moved = when is at_put and way != "watch"
    assert moves[1:2] == [RESCTRL] if is_moved else moves == []
    node.patch.undo()
    node.repair()
    assert node.groups() == {f"oci-{OTHER_UID}": {7, 8}}


@pytest.mark.parametrize("way", [adopt_slowly, retry_slowly])
def test_a_process_that_has_the_number_before_its_start_time_is_read_is_not_put_in(
    node: Node, way: Callable[[Node, Callable[[], None]], None]
) -> None:
    node.start(OTHER, 8, OTHER_UID)
    way(node, lambda: take_number(node))
    assert node.groups() == {f"oci-{OTHER_UID}": {7, 8}}


def test_a_thread_of_a_job_whose_number_is_taken_at_the_move_is_moved_out_again(node: Node) -> None:
    """Its processes are in no cgroup of their own,
    so only their pids and start times say which they are.
    """
    node.spawn(7, "/user.slice")
    node.kernel.fork(7, 9)
    node.kernel.move(9, RESCTRL)
    put = node.kernel.put

    def take_and_put(path: str, data: bytes) -> None:
        if data == b"9" and node.kernel.tasks[9].born != 900:
            take_number(node, 9, "/user.slice", RESCTRL)
        put(path, data)

    node.patch.setattr(node.kernel, "put", take_and_put)
    jobs.assign(node.context(), "batch", {7: ""})
    assert node.groups() == {"oci-batch": {7}}


def test_a_number_of_a_stranger_that_another_containers_process_has_by_now_stays_in_its_group(
    node: Node,
) -> None:
    node.start(OTHER, 8, OTHER_UID)
    node.start()
    node.spawn(9, "/user.slice", f"mon_groups/oci-{UID}")
    evict = acting._evict

    def take_and_evict(*arguments: Any) -> None:  # noqa: ANN401
        take_number(node, 9)
        evict(*arguments)

    node.patch.setitem(acting._UNDER_LOCK, "evict", take_and_evict)
    assert node.verbs() == ["evict"]
    assert node.kernel.group_of(9) == THEIRS
