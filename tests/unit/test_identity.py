"""Whose container it is: whom to believe, and who is to be monitored at all."""

from __future__ import annotations

from typing import Any

import pytest

from hook import identity
from hook.errors import HookError, Reason
from hook.models import Annotations, Options

UID = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"
OTHER = "00000000-0000-4000-8000-000000000001"
ID = "c" * 64
INFRA = "1" * 64

MANAGER = "io.container.manager"
POD_UID = "io.kubernetes.pod.uid"
CRI_UID = "io.kubernetes.cri.sandbox-uid"
SANDBOX = "io.kubernetes.cri-o.SandboxID"

Said = dict[str, str]


def key(mode: str, said: Said) -> tuple[str, str]:
    found = identity.key_of(mode, ID, Annotations.model_validate(said))
    return found.name, found.kind


AUTO: dict[str, tuple[Said, tuple[str, str]]] = {
    "nothing said": ({}, (ID, "container")),
    "CRI-O": ({MANAGER: "cri-o", POD_UID: UID}, (UID, "pod")),
    "CRI-O, a static pod": ({MANAGER: "cri-o", POD_UID: UID.replace("-", "")}, (UID, "pod")),
    "CRI-O, in upper case": ({MANAGER: "cri-o", POD_UID: UID.upper()}, (UID, "pod")),
    "CRI-O, a pod's author forges containerd's key": ({MANAGER: "cri-o", POD_UID: UID, CRI_UID: OTHER}, (UID, "pod")),
    "CRI-O, containerd's key forged where there is no UID": ({MANAGER: "cri-o", CRI_UID: OTHER}, (ID, "container")),
    "CRI-O, containerd's key is rubbish": ({MANAGER: "cri-o", POD_UID: UID, CRI_UID: "../x"}, (UID, "pod")),
    "CRI-O, an empty UID": ({MANAGER: "cri-o", POD_UID: ""}, (ID, "container")),
    "containerd": ({CRI_UID: UID}, (UID, "pod")),
    "containerd, a static pod in upper case": ({CRI_UID: UID.replace("-", "").upper()}, (UID, "pod")),
    "containerd passes a pod's own annotation through": ({CRI_UID: UID, POD_UID: OTHER}, (UID, "pod")),
    "containerd passes a forged manager through": ({CRI_UID: UID, MANAGER: "libpod"}, (UID, "pod")),
    "containerd, an empty UID": ({CRI_UID: ""}, (ID, "container")),
    "containerd, an empty UID beside another": ({CRI_UID: "", POD_UID: UID}, (UID, "pod")),
    "somebody else who has CRI-O's key only": ({POD_UID: UID}, (UID, "pod")),
    "Podman": ({MANAGER: "libpod"}, (ID, "container")),
    "Podman in a pod": ({MANAGER: "libpod", SANDBOX: INFRA}, (ID, "container")),
    "the manager is spelt in another way": ({MANAGER: "CRI-O", POD_UID: OTHER, CRI_UID: UID}, (UID, "pod")),
}


@pytest.mark.parametrize(("said", "expected"), AUTO.values(), ids=AUTO)
def test_whom_auto_believes(said: Said, expected: tuple[str, str]) -> None:
    assert key("auto", said) == expected


@pytest.mark.parametrize("uid", ["x", "../../x", UID + "\n", " " + UID, "-" * 36, ID, "0" * 1_000_000])
@pytest.mark.parametrize("said_by", [{MANAGER: "cri-o", POD_UID: ""}, {CRI_UID: ""}, {POD_UID: ""}])
def test_a_pod_uid_that_is_none_is_charged_to_nobody(said_by: Said, uid: str) -> None:
    said = {name: value or uid for name, value in said_by.items()}
    with pytest.raises(HookError) as caught:
        key("auto", said)
    assert caught.value.reason == Reason.BAD_KEY
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_bad_uid_of_containerd_is_not_replaced_by_the_other() -> None:
    with pytest.raises(HookError):
        key("auto", {CRI_UID: "none", POD_UID: UID})


@pytest.mark.parametrize("said", [said for said, _ in AUTO.values()])
def test_container_mode_asks_nobody(said: Said) -> None:
    assert key("container", said) == (ID, "container")


SANDBOXES: dict[str, tuple[Said, str]] = {
    "an app container": ({SANDBOX: INFRA, MANAGER: "libpod"}, INFRA),
    "the infra container bears no mark": ({MANAGER: "libpod"}, ID),
    "an empty mark": ({SANDBOX: ""}, ID),
    "a pod UID does not matter": ({SANDBOX: INFRA, POD_UID: UID, CRI_UID: "none"}, INFRA),
}


@pytest.mark.parametrize(("said", "name"), SANDBOXES.values(), ids=SANDBOXES)
def test_sandbox_mode(said: Said, name: str) -> None:
    assert key("sandbox", said) == (name, "sandbox")


@pytest.mark.parametrize("sandbox", ["..", "a/b", "-a", "a" * 201, "a\n"])
def test_a_sandbox_id_that_is_none_is_charged_to_nobody(sandbox: str) -> None:
    with pytest.raises(HookError) as caught:
        key("sandbox", {SANDBOX: sandbox})
    assert caught.value.reason == Reason.BAD_KEY


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


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({**OURS, **CRI, MANAGER: "cri-o"}, (UID, "ns", "pod", "app")),
        ({**OURS, **CRI}, (OTHER, "cri-ns", "cri-pod", "cri-app")),
        ({**OURS, CRI_UID: OTHER}, (OTHER, None, None, None)),
        (OURS, (UID, "ns", "pod", "app")),
        ({}, (None, None, None, None)),
        ({**OURS, "io.kubernetes.pod.name": "x" * 254, "io.kubernetes.pod.namespace": ""}, (UID, None, None, "app")),
        ({**OURS, "io.kubernetes.pod.name": "x" * 253}, (UID, "ns", "x" * 253, "app")),
    ],
)
def test_the_pod_is_described_by_one_source_only(said: Said, expected: tuple[str | None, ...]) -> None:
    pod = identity.pod_of(Annotations.model_validate(said))
    assert (pod.uid, pod.namespace, pod.name, pod.container) == expected


def wanted(annotations: Said, of: str | None = None, container: str | None = None, **options: Any) -> bool:  # noqa: ANN401
    """Whether a container of a pod in the namespace `of` is wanted."""
    pod = identity.Pod(UID, of, "pod", container)
    return identity.is_wanted(Options(**options), annotations, pod)


def test_everything_is_wanted_unless_the_administrator_says_otherwise() -> None:
    assert wanted({})
    assert wanted({"monitor.resctrl-mon.io": "false", "monitor.resctrl-mon.io/app": "false"}, container="app")


@pytest.mark.parametrize(
    ("namespace", "allowed", "expected"),
    [("a", ["a"], True), ("b", ["a", "b"], True), ("c", ["a", "b"], False), (None, ["a"], False), ("A", ["a"], False)],
)
def test_any_of_the_namespaces_will_do(namespace: str | None, allowed: list[str], expected: bool) -> None:
    assert wanted({}, namespace, namespace=allowed) is expected


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"a": "1", "b": ""}, True),
        ({"a": "1", "b": "", "c": "3"}, True),
        ({"a": "1"}, False),
        ({"a": "1", "b": "2"}, False),
        ({"a": "2", "b": ""}, False),
        ({}, False),
    ],
)
def test_all_of_the_annotations_must_be_there(annotations: Said, expected: bool) -> None:
    assert wanted(annotations, annotation={"a": "1", "b": ""}) is expected


def test_filters_add_up() -> None:
    assert wanted({"a": "1"}, "ns", namespace=["ns"], annotation={"a": "1"})
    assert not wanted({"a": "1"}, "ns", namespace=["other"], annotation={"a": "1"})
    assert not wanted({"a": "1"}, "ns", namespace=["ns"], annotation={"a": "1"}, monitor="opt-in")


CHOICES = [
    # on the pod, on this container, on another one, with opt-in, with opt-out
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


@pytest.mark.parametrize(("pod", "own", "another", "opt_in", "opt_out"), CHOICES)
def test_opting_in_and_out(pod: str | None, own: str | None, another: str | None, opt_in: bool, opt_out: bool) -> None:
    prefix = "monitor.resctrl-mon.io"
    said = {prefix: pod, prefix + "/app": own, prefix + "/sidecar": another}
    annotations = {name: value for name, value in said.items() if value is not None}
    assert wanted(annotations, container="app", monitor="opt-in") is opt_in
    assert wanted(annotations, container="app", monitor="opt-out") is opt_out


def test_a_container_without_a_name_goes_by_its_pod() -> None:
    annotations = {"monitor.resctrl-mon.io": "true", "monitor.resctrl-mon.io/": "false"}
    for unnamed in (None, ""):
        assert wanted(annotations, container=unnamed, monitor="opt-in")
