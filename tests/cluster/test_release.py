# SPDX-License-Identifier: Apache-2.0
"""The chart is fit for helm: lint, test, upgrade."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cluster.kube import IMAGE_BEFORE, run
from tests.cluster.pods import Pods, pod
from tests.cluster.release import CHART, NAME, Release, helm

ROOT = CHART.parents[2]
PACKED = CHART.relative_to(ROOT).as_posix()
GIT = ("git", "-C", str(ROOT))


@pytest.mark.usefixtures("release")
def test_helm_lint_warns_of_nothing() -> None:
    run("helm", "lint", "--strict", str(CHART))


def test_helm_test_succeeds(release: Release) -> None:
    release.install("--set=test.everyNode=true")
    helm("test", NAME, "--logs", "--timeout=15m")


def test_pods_stay_monitored_over_an_upgrade_from_the_chart_before(
    release: Release, pods: Pods, tmp_path: Path
) -> None:
    """The one before its last change in git, with its image of then. First there is a way back to it."""
    commit = run(*GIT, "log", "-2", "--format=%H", "--", PACKED, check=False).split()[-1:]
    if not commit or not os.environ.get(IMAGE_BEFORE):
        pytest.skip(f"no {IMAGE_BEFORE}, the image of the chart at commit {' '.join(commit) or 'unknown'}")
    archive = subprocess.run([*GIT, "archive", *commit, "packaging"], capture_output=True, check=True)
    subprocess.run(["tar", "-x", f"--directory={tmp_path}"], input=archive.stdout, check=True)
    release.install(chart=tmp_path / PACKED, image=IMAGE_BEFORE)
    old = pods.start(pod())
    release.install()
    release.assert_monitored([*old, *pods.start(pod())])
