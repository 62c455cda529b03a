# SPDX-License-Identifier: Apache-2.0
"""What the tier `cluster` does without a cluster: it names what is missing,
and what containerd's NRI refuses.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import kube
from tests.cluster.kube import Object
from tests.cluster.pods import Pods, RefusedByNri, find_refusal

SAYS = (
    "failed to create containerd container: failed to get NRI adjustment for container: rpc error: "
    "code = ResourceExhausted desc = message length 5404113 exceed maximum message size of 4194304"
)
"""Of containerd 2: tests/containerd/test_tenants.py sees it."""


def pod(state: Object) -> Object:
    return {
        "metadata": {"name": "app"},
        "status": {"containerStatuses": [{"name": "app", "state": state}]},
    }


def test_a_pod_that_nri_refuses_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[Object] = [
        {"running": {}},
        {"waiting": {"reason": "ContainerCreating"}},
        {"waiting": {"message": "no image"}},
    ]
    assert [find_refusal(pod(state)) for state in others] == [None] * 3
    assert find_refusal({"metadata": {"name": "app"}, "status": {}}) is None
    refused_pod = pod({"waiting": {"reason": "CreateContainerError", "message": SAYS}})
    monkeypatch.setattr("tests.cluster.pods.items", lambda *_words: [refused_pod])
    with pytest.raises(RefusedByNri, match="message length 5404113"):
        Pods().ready(["app"])


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (None, "no helm on PATH"),
        ("v3.13.9", "helm v3.13.9 is older than 3.14"),
        ("v3.14.0", f"no {kube.IMAGE}, the chart's image"),
        ("v4.2.3", f"no {kube.IMAGE}, the chart's image"),
    ],
)
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str | None, reason: str
) -> None:
    programs = {"kubectl": "exit 1", **({"helm": f"echo {version}"} if version else {})}
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "config").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.delenv(kube.IMAGE, raising=False)
    assert str(kube.why_not()).startswith(reason)
