# SPDX-License-Identifier: Apache-2.0
"""The chart is fit for helm: lint, test, upgrade."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.cluster.kube import IMAGE_BEFORE, run, wait
from tests.cluster.pods import Pods, is_ready, pod
from tests.cluster.release import CHART, NAME, Release, helm

ROOT = CHART.parents[2]
PACKED = CHART.relative_to(ROOT).as_posix()
SETTLED = 70.0  # seconds, above that of packaging/kubernetes/image/ready.py
GIT = ("git", "-C", str(ROOT))


@pytest.mark.usefixtures("release")
def test_helm_test_succeeds(release: Release) -> None:
    release.install("--set=test.everyNode=true")
    helm("test", NAME, "--logs", "--timeout=15m")


def test_adopt_brings_in_the_pods_that_were_there_before_the_chart(
    release: Release, pods: Pods
) -> None:
    release.remove()
    (old,) = pods.start(pod())
    release.install("--set=adopt=true")
    wait("the pod's adoption", lambda: release.show(old)["state"] == "live")
    release.assert_monitored([old])
    release.install()


def test_a_node_whose_runtime_does_not_read_hooks_dir_gets_unready(
    release: Release, pods: Pods
) -> None:
    release.remove()
    release.install("--set=hooksDir=/var/lib/resctrl-mon-hook-unread")
    daemons = release.daemons()
    installed = time.monotonic()  # at the latest
    wait(
        "the time in which a container may be of before",
        lambda: time.monotonic() > installed + SETTLED,
    )
    (started,) = pods.start(pod())
    node = started["spec"]["nodeName"]
    wait(f"the end of readiness on {node}", lambda: not is_ready(release.daemon(node)))
    assert release.daemon(node)["metadata"]["uid"] == daemons[node]["metadata"]["uid"]
    release.remove()


def test_pods_stay_monitored_over_an_upgrade_from_the_chart_before(
    release: Release, pods: Pods, tmp_path: Path
) -> None:
    """The one before its last change in git, with its image of then.

    First there is a way back to it.
    """
    commit = run(*GIT, "log", "-2", "--format=%H", "--", PACKED, check=False).split()[-1:]
    if not commit or not os.environ.get(IMAGE_BEFORE):
        pytest.skip(
            f"no {IMAGE_BEFORE}, the image of the chart at commit {' '.join(commit) or 'unknown'}"
        )
    archive = subprocess.run(
        [*GIT, "archive", *commit, "packaging"], capture_output=True, check=True
    )
    subprocess.run(["tar", "-x", f"--directory={tmp_path}"], input=archive.stdout, check=True)
    release.install(chart=tmp_path / PACKED, image=IMAGE_BEFORE)
    old = pods.start(pod())
    release.install()
    release.assert_monitored([*old, *pods.start(pod())])
