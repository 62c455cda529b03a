# SPDX-License-Identifier: Apache-2.0
"""Whose container it is: whom to believe, and who is to be monitored at all."""

from __future__ import annotations

from typing import Any

import pytest

from hook import identity, names
from hook.errors import HookError, Reason
from hook.models import Annotations, Options
from hook.words import explain

UID = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"
OTHER = "00000000-0000-4000-8000-000000000001"
ID = "c" * 64
INFRA = "1" * 64

MANAGER = "io.container.manager"
POD_UID = "io.kubernetes.pod.uid"
CRI_UID = "io.kubernetes.cri.sandbox-uid"
SANDBOX = "io.kubernetes.cri-o.SandboxID"

Said = dict[str, str]
Places = list[str]

POD = f"kubepods-burstable-pod{UID.replace('-', '_')}.slice"
IN_CRIO = f":/kubepods.slice/{POD}/crio-{ID}.scope"
IN_CONTAINERD = f":/kubepods/burstable/pod{UID}/{ID}"
IN_PODMAN = f":/machine.slice/libpod-{ID}.scope/container"


def pod_of(said: Said, *places: str) -> identity.Pod:
    return identity.identify_pod(ID, Annotations.model_validate(said), list(places))


def key(mode: str, said: Said, *places: str) -> tuple[str, str]:
    return identity.derive_key(mode, ID, Annotations.model_validate(said), pod_of(said, *places))


def expect_refusal(mode: str, said: Said, *places: str) -> HookError:
    with pytest.raises(HookError) as caught:
        key(mode, said, *places)
    assert caught.value.reason == Reason.BAD_KEY
    return caught.value


BY_CRIO, BY_CONTAINERD, BY_PODMAN = (
    f":/own/crio-{ID}",
    f":/own/cri-containerd-{ID}.scope",
    f":/own/libpod-{ID}",
)
"""Cgroups that name no pod."""
AUTO: dict[str, tuple[str, Said, tuple[str, str]]] = {
    "nothing said": (BY_CRIO, {}, (ID, "container")),
    "CRI-O": (BY_CRIO, {MANAGER: "cri-o", POD_UID: UID}, (UID, "pod")),
    "CRI-O, a static pod": (BY_CRIO, {POD_UID: UID.replace("-", "")}, (UID, "pod")),
    "CRI-O, in upper case": (BY_CRIO, {POD_UID: UID.upper()}, (UID, "pod")),
    "CRI-O, containerd's key forged where there is no UID": (
        BY_CRIO,
        {CRI_UID: OTHER},
        (ID, "container"),
    ),
    "CRI-O, both say the same": (BY_CRIO, {POD_UID: UID, CRI_UID: UID.upper()}, (UID, "pod")),
    "CRI-O, an empty UID": (BY_CRIO, {POD_UID: ""}, (ID, "container")),
    "containerd": (BY_CONTAINERD, {CRI_UID: UID}, (UID, "pod")),
    "containerd, a static pod in upper case": (
        BY_CONTAINERD,
        {CRI_UID: UID.replace("-", "").upper()},
        (UID, "pod"),
    ),
    "containerd passes a pod's own annotation": (
        BY_CONTAINERD,
        {CRI_UID: UID, POD_UID: OTHER},
        (UID, "pod"),
    ),
    "containerd passes a forged manager": (
        BY_CONTAINERD,
        {CRI_UID: UID, MANAGER: "libpod"},
        (UID, "pod"),
    ),
    "containerd, another spelling of the manager": (
        BY_CONTAINERD,
        {MANAGER: "CRI-O", POD_UID: OTHER, CRI_UID: UID},
        (UID, "pod"),
    ),
    "containerd, an empty UID": (BY_CONTAINERD, {CRI_UID: ""}, (ID, "container")),
    "containerd, an empty UID beside another": (
        BY_CONTAINERD,
        {CRI_UID: "", POD_UID: UID},
        (ID, "container"),
    ),
    "Podman": (BY_PODMAN, {MANAGER: "libpod"}, (ID, "container")),
    "Podman in a pod": (BY_PODMAN, {MANAGER: "libpod", SANDBOX: INFRA}, (ID, "container")),
    "Podman, Kubernetes' annotations": (
        BY_PODMAN,
        {MANAGER: "cri-o", POD_UID: UID, CRI_UID: UID},
        (ID, "container"),
    ),
}
SANDBOX_MODE: dict[str, tuple[str, Said, tuple[str, str]]] = {
    "an app container": (BY_PODMAN, {SANDBOX: INFRA, MANAGER: "libpod"}, (INFRA, "sandbox")),
    "the infra container bears no mark": (BY_PODMAN, {MANAGER: "libpod"}, (ID, "sandbox")),
    "an empty mark": (BY_PODMAN, {SANDBOX: ""}, (ID, "sandbox")),
    "Podman, a pod UID that its user wrote": (
        BY_PODMAN,
        {SANDBOX: INFRA, MANAGER: "libpod", POD_UID: UID},
        (INFRA, "sandbox"),
    ),
    "CRI-O's container stays in its pod": (BY_CRIO, {POD_UID: UID, SANDBOX: INFRA}, (UID, "pod")),
    "containerd's container, too": (BY_CONTAINERD, {CRI_UID: UID, SANDBOX: INFRA}, (UID, "pod")),
}
MODES = {
    f"{mode}: {name}": (mode, *case)
    for mode, of in (("auto", AUTO), ("sandbox", SANDBOX_MODE))
    for name, case in of.items()
}


@pytest.mark.parametrize(("mode", "place", "said", "expected"), MODES.values(), ids=MODES)
def test_whom_a_mode_believes(mode: str, place: str, said: Said, expected: tuple[str, str]) -> None:
    assert key(mode, said, place) == expected


@pytest.mark.parametrize(
    "place",
    [
        "",
        ":/",
        ":/user.slice/session-1.scope",
        f":/crictl/{ID}",
        f":/own/my-{ID}",
        f":/kubepods/pod{UID}/shared",
        f":/kubepods/pod{UID}/libpod-{ID}",
        f":/kubepods.slice/{POD}/libpod-{ID}.scope",
        f":/{INFRA}/x",
        f":/kubepods/pod{UID}/libpod-{INFRA}/x",
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "said",
    [
        {},
        {MANAGER: "cri-o", POD_UID: UID},
        {CRI_UID: UID},
        {POD_UID: "x", CRI_UID: OTHER},
        {MANAGER: "libpod"},
    ],
)
def test_without_a_mark_of_a_runtime_of_kubernetes_the_containers_id_is_the_key(
    said: Said, place: str
) -> None:
    """`podman run --cgroups=disabled`, `--cgroup-parent=/kubepods/pod<UID>`,
    with annotations as of Kubernetes.
    """
    assert key("auto", said, place) == (ID, "container")
    pod = pod_of(said, place)
    assert (pod.uid, pod.namespace, pod.name, pod.problem) == (None, None, None, None)


@pytest.mark.parametrize(
    "uid", ["x", "../../x", UID + "\n", " " + UID, "-" * 36, ID, "0" * 1_000_000]
)
@pytest.mark.parametrize("mode", ["auto", "sandbox"])
def test_invalid_pod_uid_is_a_bad_key(uid: str, mode: str) -> None:
    for place, said in (
        (BY_CRIO, {POD_UID: uid}),
        (BY_CONTAINERD, {CRI_UID: uid}),
        (BY_CONTAINERD, {CRI_UID: uid, POD_UID: UID}),
    ):
        error = expect_refusal(mode, said, place)
        assert "\n" not in str(explain(error))
        assert len(str(explain(error))) < 400


@pytest.mark.parametrize("forged", [OTHER, "../x"])
@pytest.mark.parametrize("places", [[f":/crictl/crio-{ID}"], [":/", BY_CONTAINERD]])
def test_contradicting_annotations_are_a_bad_key_where_the_cgroup_names_no_pod(
    forged: str, places: Places
) -> None:
    error = expect_refusal("auto", {MANAGER: "cri-o", POD_UID: UID, CRI_UID: forged}, *places)
    assert UID in str(explain(error))
    assert forged in str(explain(error))


@pytest.mark.parametrize(
    ("said", "is_forged"),
    [
        ({}, False),
        ({MANAGER: "libpod", SANDBOX: INFRA}, False),
        ({MANAGER: "cri-o", POD_UID: UID}, False),
        ({MANAGER: "cri-o", POD_UID: OTHER}, True),
        ({CRI_UID: OTHER}, True),
        ({CRI_UID: "../x", POD_UID: "x"}, True),
    ],
)
@pytest.mark.parametrize(
    "place", [IN_CRIO, IN_CONTAINERD, f"{IN_CONTAINERD}/kubepods/pod{OTHER}/{'d' * 64}"]
)
def test_another_pod_than_that_of_the_cgroup_is_reported(
    said: Said, place: str, is_forged: bool
) -> None:
    """Nor does it change the key: test_evasion.py."""
    assert key("auto", said, "cpu:/", place) == key("sandbox", said, place) == (UID, "pod")
    assert (pod_of(said, place).problem is not None) is is_forged


@pytest.mark.parametrize(
    ("said", "place", "maker", "is_podmans"),
    [
        ({MANAGER: "libpod"}, "", None, True),
        ({MANAGER: "libpod"}, IN_CRIO, "cri-o", False),
        ({MANAGER: "libpod"}, f":/crictl/{ID}", None, False),
        ({MANAGER: "libpod", CRI_UID: UID}, "", None, True),
        ({MANAGER: "libpod"}, f":/kubepods/pod{UID}", None, True),
        ({MANAGER: "libpod"}, f"memory:/kubepods/pod{UID}/{ID}", "containerd", False),
        ({MANAGER: "cri-o"}, f":/libpod_parent/libpod-{ID}", "libpod", True),
        ({}, f":/user.slice/my.service/libpod-payload-{ID}", "libpod", True),
        ({}, IN_PODMAN, "libpod", True),
        ({}, f":/kubepods/pod{UID}/crio-{ID}", "cri-o", False),
        ({}, f":/x{ID}y/crio-{ID}", "cri-o", False),
        ({}, f":/kubepods/pod{UID}/crio-conmon-{ID}.scope", None, False),
        ({}, f":/kubepods/pod{UID}/crio-{'d' * 64}", None, False),
        ({}, "", None, False),
        # below its own cgroup a container may choose any name
        ({}, f":/kubepods/pod{UID}/{ID}/libpod-{ID}", "containerd", False),
        ({}, f":/kubepods/pod{UID}/other-{ID}/libpod-{ID}", None, False),
        # a pod's cgroup further above says nothing of who made it
        ({}, f":/kubepods/pod{UID}/user/{ID}", None, False),
        ({}, f":/machine.slice/libpod-{ID}.scope/kubepods/pod{OTHER}/crio-{ID}", "libpod", True),
        ({}, f":/{ID}/x/pod{OTHER}/init.scope", None, False),
    ],
)
def test_the_cgroup_comes_first_in_finding_the_maker_of_a_container(
    said: Said, place: str, maker: str | None, is_podmans: bool
) -> None:
    assert names.find_maker(names.find_own(place, ID), ID) == maker
    assert pod_of(said, place).is_podmans is is_podmans
    assert OTHER not in key("auto", said, place)


@pytest.mark.parametrize("sandbox", ["..", "a/b", "-a", "a" * 201, "a\n"])
def test_an_invalid_sandbox_id_leaves_the_containers_own_id_as_the_key(sandbox: str) -> None:
    """The author of an image could keep its containers unmonitored by it.

    That it is said: test_entry.py.
    """
    said = Annotations.model_validate({SANDBOX: sandbox})
    pod = identity.identify_pod(ID, said, [BY_PODMAN])
    key = identity.derive_key("sandbox", ID, said, pod)
    assert key == (ID, "sandbox")
    assert pod.problem is not None
    assert f"an invalid sandbox ID: {sandbox[:80]!r}" in explain(pod.problem).problem


OURS = {
    POD_UID: UID,
    "io.kubernetes.pod.namespace": "ns",
    "io.kubernetes.pod.name": "pod",
    "io.kubernetes.container.name": "app",
}
CRI = {
    CRI_UID: OTHER,
    "io.kubernetes.cri.sandbox-namespace": "cri-ns",
    "io.kubernetes.cri.sandbox-name": "cri-pod",
    "io.kubernetes.cri.container-name": "cri-app",
}


SAME = {**CRI, CRI_UID: UID}


@pytest.mark.parametrize(
    ("said", "places", "expected"),
    [
        ({**OURS, **SAME}, [BY_CRIO], (UID, "ns", "pod", "app")),
        ({**OURS, **SAME, MANAGER: "cri-o"}, [IN_CRIO], (UID, "ns", "pod", "app")),
        (
            {**OURS, **SAME, MANAGER: "cri-o"},
            [IN_CONTAINERD],
            (UID, "cri-ns", "cri-pod", "cri-app"),
        ),
        ({**OURS, MANAGER: "cri-o"}, [IN_CONTAINERD], (UID, None, None, None)),
        ({**OURS, **CRI, MANAGER: "cri-o"}, [IN_PODMAN], (None, None, None, None)),
        ({**OURS, **CRI}, [BY_CONTAINERD], (OTHER, "cri-ns", "cri-pod", "cri-app")),
        ({**OURS, CRI_UID: OTHER}, [BY_CONTAINERD], (OTHER, None, None, None)),
        (OURS, [":/", BY_CRIO], (UID, "ns", "pod", "app")),
        (OURS, [], (None, None, None, None)),
        ({}, [IN_CRIO], (UID, None, None, None)),
        (
            {**OURS, "io.kubernetes.pod.name": "x" * 254, "io.kubernetes.pod.namespace": ""},
            [BY_CRIO],
            (UID, None, "x" * 253, "app"),
        ),
        ({**OURS, "io.kubernetes.pod.name": "x" * 253}, [BY_CRIO], (UID, "ns", "x" * 253, "app")),
    ],
)
def test_the_pod_is_described_by_the_source_that_its_uid_is_from(
    said: Said, places: Places, expected: tuple[str | None, ...]
) -> None:
    pod = pod_of(said, *places)
    assert (pod.uid, pod.namespace, pod.name, pod.container) == expected


def wanted(
    annotations: Said,
    of: str | None = None,
    container: str | None = None,
    **options: Any,  # noqa: ANN401
) -> bool:
    """Whether a container of a pod in the namespace `of` is wanted."""
    pod = identity.new_pod(UID, (of, "pod", container))
    return identity.is_wanted(Options(**options), annotations, pod)


AB = {"a": "1", "b": ""}
OPTED_OUT = {"monitor.resctrl-mon.io": "false", "monitor.resctrl-mon.io/app": "false"}


@pytest.mark.parametrize(
    ("annotations", "namespace", "options", "expected"),
    [
        ({}, None, {}, True),
        (OPTED_OUT, None, {}, True),
        ({}, "a", {"namespace": ["a"]}, True),
        ({}, "b", {"namespace": ["a", "b"]}, True),  # any of them will do
        ({}, "c", {"namespace": ["a", "b"]}, False),
        ({}, None, {"namespace": ["a"]}, False),
        (AB, None, {"annotation": AB}, True),  # all of them must be there
        ({**AB, "c": "3"}, None, {"annotation": AB}, True),
        ({"a": "1"}, None, {"annotation": AB}, False),
        ({"a": "1", "b": "2"}, None, {"annotation": AB}, False),
        ({}, None, {"annotation": AB}, False),
        ({"a": "1"}, "ns", {"namespace": ["ns"], "annotation": {"a": "1"}}, True),  # filters add up
        ({"a": "1"}, "ns", {"namespace": ["other"], "annotation": {"a": "1"}}, False),
        (
            {"a": "1"},
            "ns",
            {"namespace": ["ns"], "annotation": {"a": "1"}, "monitor": "opt-in"},
            False,
        ),
    ],
)
def test_who_is_wanted(
    annotations: Said, namespace: str | None, options: dict[str, Any], expected: bool
) -> None:
    assert wanted(annotations, namespace, container="app", **options) is expected


CHOICES = [
    # on the pod, on this container, on one without a name or another one, with opt-in, with opt-out
    (None, None, None, False, True),
    ("true", None, None, True, True),
    ("false", None, None, False, False),
    (None, "true", None, True, True),
    (None, "false", None, False, False),
    ("true", "false", None, False, False),
    ("false", "true", None, True, True),
    (None, None, "true", False, True),
    ("true", None, "false", True, True),
    ("True", None, None, False, True),
    ("yes", "1", None, False, True),
    ("true", "maybe", None, True, True),
    ("false", "", None, False, False),
]


@pytest.mark.parametrize(("pod", "of_container", "another", "opt_in", "opt_out"), CHOICES)
def test_opting_in_and_out(
    pod: str | None, of_container: str | None, another: str | None, opt_in: bool, opt_out: bool
) -> None:
    prefix = "monitor.resctrl-mon.io"
    said = {
        prefix: pod,
        prefix + "/app": of_container,
        prefix + "/": another,
        prefix + "/sidecar": another,
    }
    annotations = {name: value for name, value in said.items() if value is not None}
    assert wanted(annotations, container="app", monitor="opt-in") is opt_in
    assert wanted(annotations, container="app", monitor="opt-out") is opt_out
    if of_container is None:
        assert wanted(annotations, container=None, monitor="opt-in") is opt_in


# --- Pod UIDs


NO_POD_UIDS = [
    "",
    UID[:-1],
    UID + "0",
    UID + "\n",
    " " + UID,
    "{" + UID + "}",
    "urn:uuid:" + UID,
    UID.replace("-", "_"),
    UID.replace("a", "g"),
    UID[1:] + UID[0],
    UID.replace("-", "", 1),
    "-" * 36,
    "-" * 32,
    "0" * 31,
    "0" * 33,
    "\uff10" * 32,
    "\u0660" * 32,
    "\u0130" * 16,
]


@pytest.mark.parametrize(
    ("text", "uid"),
    [
        *(
            (text, UID)
            for text in (
                UID,
                UID.upper(),
                UID.replace("-", ""),
                UID.replace("-", "").upper(),
                UID.title(),
            )
        ),
        *((text, None) for text in NO_POD_UIDS),
    ],
)
def test_each_form_of_a_pod_uid_becomes_the_canonical_one(text: str, uid: str | None) -> None:
    assert names.normalize_uid(text) == uid


# --- What the path of a cgroup says


DIGITS = UID.replace("-", "")
SLICES = f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    ("cgroup", "pod"),
    [
        (f":{SLICES}/cri-containerd-{ID}.scope", f":{SLICES}"),
        (f":{SLICES}/crio-{ID}.scope/container", f":{SLICES}"),
        (f"cpu,cpuacct:/kubepods/pod{UID}/{ID}", f"cpu,cpuacct:/kubepods/pod{UID}"),
        (f":/kubepods/pod{UID.replace('-', '')}/{ID}", f":/kubepods/pod{UID.replace('-', '')}"),
        (f":/a:pod{UID}/b:c", f":/a:pod{UID}"),
        (f":/pod{UID}", None),
        (f":/kubepods/{ID}", None),
        (":/", None),
        (None, None),
    ],
)
def test_the_pod_of_a_container(cgroup: str | None, pod: str | None) -> None:
    assert identity.find_pod_cgroup(cgroup, UID) == pod


@pytest.mark.parametrize(
    ("cgroup", "uid"),
    [
        (f":{SLICES}/cri-containerd-{ID}.scope", UID),
        (f"cpu,cpuacct:/kubepods/burstable/pod{UID}/{ID}", UID),
        (f":/kubepods.slice/kubepods-besteffort-pod{DIGITS}.slice/crio-{ID}.scope", UID),
        (f":/kubepods/pod{DIGITS}/{ID}", UID),
        (f":/kubepods/pod{UID.upper()}", UID),
        (f":/kubepods/pod{UID}/{ID}/kubepods/pod{UID[::-1]}/{ID}", UID),
        # Kata's, in the cgroup of its sandbox.
        (f":/kubepods.slice/{POD}/cri-containerd-{INFRA}.scope/x", UID),
        (f":/{POD}:crio:{ID}", UID),  # systemd's form of a path became one name
        (f":/machine.slice/machine-libpod_pod_{ID}.slice/libpod-{ID}.scope", None),
        (f":/libpod_parent/libpod-{ID}", None),
        (f":/mypod{UID}/{ID}", None),
        (f":/{UID}/{ID}", None),
        (f":/pod{UID}x/pod/pod-/podpod", None),
        (":/", None),
        ("", None),
    ],
)
def test_the_pod_uid_that_a_path_names(cgroup: str, uid: str | None) -> None:
    assert names.read_pod_uid(cgroup) == uid
