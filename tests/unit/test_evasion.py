# SPDX-License-Identifier: Apache-2.0
"""Whatever a pod's author writes: key and monitoring stay those of the same pod
without it, under each runtime.

Both shipped files of hooks.d are installed, each with options of its own; the states are real ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hook import identity, names
from hook.entry import parse
from hook.errors import HookError
from hook.models import Annotations
from hook.node.models import HookFile
from tests.support.merging import MERGING, Merged
from tests.unit.files import examples

ROOT = Path(__file__).resolve().parents[2]
STATES = {
    path.stem: json.loads(path.read_text())
    for path in (ROOT / "tests/states").glob("*-createRuntime.json")
}
FILES = [
    HookFile.model_validate(json.loads(path.read_text()))
    for path in sorted((ROOT / "oci-hooks").glob("*.json"))
]
VICTIM = "00000000-0000-4000-8000-000000000001"
SANDBOX_ID = "io.kubernetes.cri-o.SandboxID"


@dataclass(frozen=True)
class AuthoredContainer:
    """A container of a runtime, in the cgroup that it and the kubelet make for it."""

    way: str
    state: Mapping[str, Any]
    uid: str | None
    place: str

    def merged(self, author: Mapping[str, str]) -> Merged:
        return MERGING[self.way](self.state, author)


def cases() -> dict[str, AuthoredContainer]:
    containers: dict[str, AuthoredContainer] = {}
    for name, state in STATES.items():
        said, container = state.get("annotations") or {}, state["id"]
        uid = said.get("io.kubernetes.pod.uid") or said.get("io.kubernetes.cri.sandbox-uid")
        if uid is None:
            places = [
                f":/machine.slice/libpod-{container}.scope/container",
                f"cpu:/libpod_parent/libpod-{container}",
            ]
            ways = [] if name.startswith("podman-4.3.1-build") else ["podman"]
        else:
            slices = f":/kubepods.slice/kubepods-burstable-pod{uid.replace('-', '_')}.slice"
            pod, is_crio = f":/kubepods/burstable/pod{uid}", name.startswith("crio")
            places = [f"{slices}/{'crio' if is_crio else 'cri-containerd'}-{container}.scope"]
            places += [f"{pod}/{'crio-' if is_crio else ''}{container}"]
            ways = ["crio"] if is_crio else ["containerd", "base_runtime_spec"]
        containers |= {
            f"{way} {name} {place}": AuthoredContainer(way, state, uid, place)
            for way in ways
            for place in places
        }
    return containers


CASES = cases()


def matches(file: HookFile, annotations: Mapping[str, str]) -> bool:
    """Whether a container with these annotations gets a hook. Source: oci-hooks(5)."""
    conditions = ((file.when and file.when.annotations) or {}).items()
    return all(
        any(re.search(key, name) and re.search(value, text) for name, text in annotations.items())
        for key, value in conditions
    )


def decided(
    case: AuthoredContainer, author: Mapping[str, str], options: Sequence[Sequence[str]]
) -> object:
    """What becomes of it: both files' calls in their order,
    of which the last that has a say counts.
    """
    merged = case.merged(author)
    said = Annotations.model_validate(merged.state.get("annotations") or {})
    pod = identity.identify_pod(case.state["id"], said, [case.place])
    outcome: object = "left alone"
    for file, words in zip(FILES, options, strict=True):
        is_called = matches(file, merged.matched)
        if case.way == "base_runtime_spec":
            is_called = file is FILES[0]
        chosen, complaints = parse([*(file.hook.args or [])[2:], *words])
        assert complaints == []
        if not is_called or not names.concerns(chosen.containers, is_podmans=pod.is_podmans):
            continue
        if not identity.is_wanted(chosen, merged.state.get("annotations") or {}, pod):
            outcome = "not wanted"
            continue
        try:
            key = identity.derive_key(chosen.key, case.state["id"], said, pod)
        except HookError as error:
            outcome = error.reason
        else:
            outcome = *key, pod.namespace, pod.name, pod.container
    return outcome


KEYS = [
    "io.container.manager",
    "io.kubernetes.pod.uid",
    "io.kubernetes.pod.namespace",
    "io.kubernetes.pod.name",
    "io.kubernetes.container.name",
    "io.kubernetes.container.restartCount",
    "io.kubernetes.container.hash",
    "io.kubernetes.cri.sandbox-uid",
    "io.kubernetes.cri.sandbox-namespace",
    "io.kubernetes.cri.sandbox-name",
    "io.kubernetes.cri.container-name",
    "io.kubernetes.cri.sandbox-id",
    "io.kubernetes.cri.container-type",
    SANDBOX_ID,
    "io.kubernetes.cri-o.ContainerType",
    "io.kubernetes.cri-o.Annotations",
]
OWN_UIDS = sorted({case.uid for case in CASES.values() if case.uid})
VALUES = [
    *("", "no", "0", "cri-o", "libpod", "x", "default", "team-a", "container", "sandbox", "c" * 64),
    *(VICTIM, *OWN_UIDS),
]
authors = st.dictionaries(
    st.sampled_from(KEYS) | st.text(max_size=20), st.sampled_from(VALUES) | st.text(max_size=20)
)
words = st.tuples(
    st.sampled_from(["--key=auto", "--key=container", "--key=sandbox"]),
    st.sampled_from(["--monitor=all", "--monitor=opt-in", "--monitor=opt-out"]),
    st.sampled_from(
        ["--linger=0", "--namespace=default", "--namespace=team-a", "--namespace=kube-system"]
    ),
)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@examples(30)
@given(author=authors, options=st.tuples(words, words))
@example({"io.kubernetes.container.restartCount": "no"}, ((), ()))
@example({"io.container.manager": "x"}, ((), ()))
@example({"io.container.manager": "libpod"}, ((), ("--key=sandbox",)))
@example({"io.container.manager": "libpod"}, (("--key=container",), ()))
@example({"io.container.manager": "cri-o", "io.kubernetes.pod.uid": VICTIM}, ((), ()))
@example({"io.kubernetes.cri.sandbox-uid": VICTIM}, ((), ()))
@example({"io.kubernetes.container.restartCount": "0"}, (("--monitor=all",), ("--monitor=opt-in",)))
def test_annotations_of_an_author_change_nothing(
    case: AuthoredContainer, author: dict[str, str], options: Sequence[Sequence[str]]
) -> None:
    author = {key: text for key, text in author.items() if not key.startswith(identity.OPT)}
    if case.way == "podman":  # its pods have no other mark, and who starts containers there is root
        author.pop(SANDBOX_ID, None)
    assert decided(case, author, options) == decided(case, {}, options)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_without_an_author_each_is_monitored(case: AuthoredContainer) -> None:
    decision = decided(case, {}, ((), ()))
    assert isinstance(decision, tuple)
    assert decision[:2] == ((case.uid, "pod") if case.uid else (case.state["id"], "container"))
