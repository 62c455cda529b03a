# SPDX-License-Identifier: Apache-2.0
"""What happens to a node costs no pod its monitoring."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cluster.kube import DEADLINE, RESTARTS, list_names, wait
from tests.cluster.pods import Pods, pod
from tests.cluster.release import Release

MOST = 20
"""Pods that come during an upgrade: one after the other,
so that there are some at each of its moments.
"""
REMOVE_RUN_DIRECTORY = """
import shutil
shutil.rmtree("/host/run/resctrl-mon-hook")
"""


def test_no_pod_is_unmonitored_while_the_daemonset_is_replaced(
    release: Release, pods: Pods
) -> None:
    made = pods.start(pod())
    before = {daemon["metadata"]["uid"] for daemon in release.daemons().values()}
    with ThreadPoolExecutor(1) as beside:
        upgrade = beside.submit(release.install, "--set-string=podAnnotations.again=yes")
        while not upgrade.done() and len(made) < MOST:
            made += pods.start(pod())
        upgrade.result()
    assert before.isdisjoint(daemon["metadata"]["uid"] for daemon in release.daemons().values())
    release.assert_monitored(made)
    assert {release.show(made_pod)["late_cpu_seconds"] for made_pod in made} == {0}


def test_pods_are_monitored_again_after_the_run_directory_was_deleted(
    release: Release, pods: Pods
) -> None:
    (old,) = pods.start(pod())
    release.on_node(old["spec"]["nodeName"], REMOVE_RUN_DIRECTORY)
    (new,) = pods.start(pod(nodeName=old["spec"]["nodeName"]))

    def both_live() -> bool:
        return all(release.show(shown_pod)["state"] == "live" for shown_pod in (old, new))

    wait("records of both pods", both_live)
    release.assert_monitored([old, new])


@pytest.mark.parametrize("what", RESTARTS)
def test_pods_that_start_beside_a_restart_are_monitored(
    release: Release, pods: Pods, what: str
) -> None:
    if not (command := os.environ.get(RESTARTS[what])):
        pytest.skip(f"no {RESTARTS[what]}, a command that restarts the {what}")
    made = [pod() for _ in range(10)]
    pods.create(*made[:5])
    subprocess.run(command, shell=True, check=True, timeout=DEADLINE)  # noqa: S602  the user's own
    pods.create(*made[5:])
    release.assert_monitored(pods.ready(list_names(made)))
