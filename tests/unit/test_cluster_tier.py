# SPDX-License-Identifier: Apache-2.0
"""Why the tests of a cluster do not run, where they cannot."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.cluster.kube import IMAGE, RESCTRL_ROOT, VALUES, settings, why_not

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.kube import Object


def test_skip_says_what_lacks(tmp_path: Path) -> None:
    for name in ("helm", "kubectl", "config"):
        (tmp_path / name).touch(0o755)
    environment = {"PATH": str(tmp_path), "KUBECONFIG": f"/nonexistent:{tmp_path}/config", IMAGE: "reg:5000/hook:1"}
    nodes: list[Object] = [{"spec": {"providerID": "k3s://vm"}}, {"spec": {}}]
    assert why_not(environment, lambda: nodes) is None
    kind = {"spec": {"providerID": "kind://docker/kind/kind-control-plane"}}
    for lacks, found, reason in (
        ({"KUBECONFIG": "/nonexistent"}, nodes, "no kubeconfig (KUBECONFIG or ~/.kube/config)"),
        ({"PATH": "/nonexistent"}, nodes, "no helm and no kubectl on PATH"),
        ({IMAGE: ""}, nodes, "no RESCTRL_MON_TEST_IMAGE, the chart's image"),
        ({}, [*nodes, kind], "the nodes are containers (kind)"),
    ):
        assert (why_not({**environment, **lacks}, partial(list, found)) or "").startswith(reason)


def test_settings_name_image_values_and_model() -> None:
    given = {IMAGE: "reg:5000/hook:1", VALUES: "runtime=k3s,prefix=/usr/local", RESCTRL_ROOT: "/var/lib/t/resctrl"}
    assert settings(given) == [
        "--set=image.repository=reg:5000/hook",
        "--set=image.tag=1",
        "--set=runtime=k3s,prefix=/usr/local",
        "--set=testing.resctrlRoot=/var/lib/t/resctrl",
    ]
    assert settings({IMAGE: "hook:1"}) == ["--set=image.repository=hook", "--set=image.tag=1"]
