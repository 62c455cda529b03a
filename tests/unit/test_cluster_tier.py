# SPDX-License-Identifier: Apache-2.0
"""Why the tests of a cluster do not run, where they cannot."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.cluster.kube import IMAGE, RESCTRL_ROOT, VALUES, settings, why_not

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.kube import Object

VM = {"spec": {"providerID": "k3s://vm"}}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """All that the tests need."""
    for name in ("helm", "kubectl", "config"):
        (tmp_path / name).touch(0o755)
    return {"PATH": str(tmp_path), "KUBECONFIG": f"/nonexistent:{tmp_path}/config", IMAGE: "reg:5000/hook:1"}


def test_they_run_where_all_is_there(environment: dict[str, str]) -> None:
    assert why_not(environment, lambda: [VM, {"spec": {}}]) is None


@pytest.mark.parametrize(
    ("lacks", "reason"),
    [
        ({"KUBECONFIG": "/nonexistent"}, "no kubeconfig (KUBECONFIG or ~/.kube/config)"),
        ({"KUBECONFIG": "", "HOME": "/nonexistent"}, "no kubeconfig (KUBECONFIG or ~/.kube/config)"),
        ({"PATH": "/nonexistent"}, "no helm and no kubectl on PATH"),
        ({IMAGE: ""}, "no RESCTRL_MON_TEST_IMAGE, the chart's image: docs/kubernetes.md says how to run the tests"),
    ],
)
def test_skip_says_what_lacks_and_asks_no_cluster(
    environment: dict[str, str], lacks: dict[str, str], reason: str
) -> None:
    def asked() -> list[Object]:
        raise AssertionError

    assert (why_not({**environment, **lacks}, asked) or "").startswith(reason)


def test_skip_says_that_the_nodes_are_containers(environment: dict[str, str]) -> None:
    nodes = [VM, {"spec": {"providerID": "kind://docker/kind/kind-control-plane"}}]
    assert (why_not(environment, lambda: nodes) or "").startswith("the nodes are containers (kind)")


def test_skip_says_why_a_cluster_does_not_answer(environment: dict[str, str]) -> None:
    def refuse() -> list[Object]:
        raise subprocess.CalledProcessError(1, "kubectl", stderr="connection refused\n")

    assert why_not(environment, refuse) == "the cluster does not answer: connection refused"


def test_settings_name_image_values_and_model() -> None:
    given = {IMAGE: "reg:5000/hook:1", VALUES: "runtime=k3s,prefix=/usr/local", RESCTRL_ROOT: "/var/lib/t/resctrl"}
    assert settings(given) == [
        "--set=image.repository=reg:5000/hook",
        "--set=image.tag=1",
        "--set=runtime=k3s,prefix=/usr/local",
        "--set=testing.resctrlRoot=/var/lib/t/resctrl",
    ]
    assert settings({IMAGE: "hook:1"}) == ["--set=image.repository=hook", "--set=image.tag=1"]
