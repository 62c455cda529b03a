# SPDX-License-Identifier: Apache-2.0
"""How each runtime merges the annotations of a container with those that a pod's author writes.

One map is matched by readers of hooks.d, the other ends up in the state. Sources: CRI-O 1.36
(container_create.go, SpecAddAnnotations); containerd (getPassthroughAnnotations,
DefaultCRIAnnotations); containerd/nri, hook-injector; Podman (generateSpec, specgen), where the
author is who starts the container, writes its YAML, or made its image.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Callable

Annotations = dict[str, str]

KUBELETS: Mapping[str, str] = {
    "io.kubernetes.container.hash": "abcd1234",
    "io.kubernetes.container.restartCount": "0",
    "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
    "io.kubernetes.container.terminationMessagePolicy": "File",
    "io.kubernetes.pod.terminationGracePeriod": "30",
}
"""What the kubelet gives every container, whatever the runtime."""
PODMANS = re.compile(
    r"io\.podman\.|io\.kubernetes\.cri-o\.(Created|TTY)|org\.opencontainers\.image\.stopSignal"
)
"""What Podman writes itself, over an author's;
io.container.manager it writes only where there is none.
"""


@dataclass(frozen=True)
class Merged:
    """A container with a pod's annotations: what readers of hooks.d match,
    and the state that a hook gets.
    """

    matched: Annotations
    state: dict[str, Any]


def _with(state: Mapping[str, Any], annotations: Annotations) -> dict[str, Any]:
    return {**state, "annotations": annotations}


def crio(state: Mapping[str, Any], pod: Mapping[str, str]) -> Merged:
    """CRI-O: its own keys and the kubelet's win in the state,
    the pod's where hooks.d is matched.
    """
    sent: Annotations = json.loads(state["annotations"]["io.kubernetes.cri-o.Annotations"])
    kept = {key: text for key, text in pod.items() if not key.startswith(("bundle", "run.oci."))}
    return Merged({**sent, **kept}, _with(state, {**kept, **state["annotations"]}))


def containerd(
    state: Mapping[str, Any], pod: Mapping[str, str], patterns: Iterable[str] = ("*", "*/*")
) -> Merged:
    """containerd with pod_annotations, and the hook-injector:
    containerd's own keys win in the state.
    """
    passed = {
        key: text
        for key, text in pod.items()
        if any(_go_match(pattern, key) for pattern in patterns)
    }
    return Merged({**KUBELETS, **pod}, _with(state, {**passed, **state["annotations"]}))


def base_runtime_spec(state: Mapping[str, Any], pod: Mapping[str, str]) -> Merged:
    """containerd with pod_annotations and the hook in its base_runtime_spec: nothing is matched."""
    return Merged({}, containerd(state, pod).state)


def podman(state: Mapping[str, Any], author: Mapping[str, str]) -> Merged:
    """Podman: the author's win, but for a few; the same in both."""
    given = state.get("annotations") or {}
    annotations = {
        **given,
        **author,
        **{key: text for key, text in given.items() if PODMANS.match(key)},
    }
    return Merged(annotations, _with(state, annotations))


def _go_match(pattern: str, key: str) -> bool:
    """Go's path.Match, as far as `*` goes: it stops at a slash."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", "[^/]*"), key) is not None


MERGING: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, str]], Merged]] = {
    "crio": crio,
    "containerd": containerd,
    "base_runtime_spec": base_runtime_spec,
    "podman": podman,
}
"""By the runtime whose states they are for; base_runtime_spec is for containerd's."""
