# SPDX-License-Identifier: Apache-2.0
"""The cluster of the current kubeconfig, with the chart on it.

README.md says how to run these tests.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.kube import apply, items, kubectl, list_names, namespace, why_not
from tests.cluster.pods import TENANTS, Pods
from tests.cluster.release import FIRST_PID_NAMESPACE, NAME, NAMESPACE, OURS, RESCTRL, Release, helm


@pytest.fixture(scope="session")
def _cluster() -> Iterator[Release]:
    """With the tests' namespaces in it, and nothing else of the tests."""
    if reason := why_not():
        pytest.skip(reason)
    others = [
        daemonset
        for daemonset in items("daemonsets", "-A", f"-l={OURS}")
        if daemonset["metadata"]["namespace"] != NAMESPACE
    ]
    if others:
        pytest.skip(f"the cluster has the chart already: {', '.join(list_names(others))}")
    helm("uninstall", NAME, "--no-hooks", check=False)  # of a run that was killed
    # Which waits for their ends.
    kubectl("delete", "namespace", "--ignore-not-found", NAMESPACE, TENANTS)
    apply(namespace(NAMESPACE, "privileged"), namespace(TENANTS, "restricted"))
    release = Release()
    yield release
    Pods().close()
    if release.is_installed():
        release.remove()
    kubectl("delete", "namespace", NAMESPACE, TENANTS)


@pytest.fixture(scope="session")
def chart(_cluster: Release) -> Release:
    """The chart, installed or not, on a cluster where it can monitor."""
    _cluster.install()
    for node in _cluster.daemons():
        answer = _cluster.look(node)
        if answer["pid_namespace"] != FIRST_PID_NAMESPACE:
            pytest.skip(
                f"{node} is a container: reconcile refuses to work outside the host's pid namespace"
            )
        if not answer["list"]["mounted"]:
            pytest.skip(
                f"{node} has no resctrl at {RESCTRL}: tests/cluster/README.md says how to use the "
                "model of it"
            )
    return _cluster


@pytest.fixture
def release(chart: Release) -> Release:
    """The chart, installed."""
    if not chart.is_installed():
        chart.install()
    return chart


@pytest.fixture
def pods() -> Iterator[Pods]:
    made = Pods()
    yield made
    made.close()
