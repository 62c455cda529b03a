# SPDX-License-Identifier: Apache-2.0
"""The chart's own life: lint, test, uninstall, upgrade."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.kube import IMAGE_BEFORE, run, wait
from tests.cluster.pods import pod
from tests.cluster.release import CHART, NAME, helm

if TYPE_CHECKING:
    from tests.cluster.pods import Pods
    from tests.cluster.release import Release

ROOT = CHART.parents[2]
PACKED = CHART.relative_to(ROOT).as_posix()
GIT = ("git", "-C", str(ROOT))
FIND = """
import glob, json, sys
programs, hooks, resctrl = (f"/host{it}" for it in sys.argv[1:])
ours = [f"{programs}/*resctrl-mon-hook*", f"{hooks}/*resctrl-mon-hook*"]
groups = [f"{resctrl}/mon_groups/oci-*", f"{resctrl}/*/mon_groups/oci-*"]
print(json.dumps([path for pattern in ours + groups for path in glob.glob(pattern)]))
"""


@pytest.mark.usefixtures("release")
def test_helm_lint_warns_of_nothing() -> None:
    run("helm", "lint", "--strict", str(CHART))


def test_helm_test_succeeds(release: Release) -> None:
    release.install("--set=test.everyNode=true")
    helm("test", NAME, "--logs", "--timeout=15m")


def test_uninstall_leaves_nothing_once_no_container_calls_the_program(release: Release, pods: Pods) -> None:
    (found,) = pods.start(pod())
    places, names = release.places(), release.daemons()
    helm("uninstall", NAME)
    left = look(release, found["spec"]["nodeName"], places)
    assert [Path(it).suffix for it in left if "/oci-" not in it and ".owner" not in it] == [".pyz"]
    pods.remove(found)
    wait("the end of the removal", lambda: not release.objects())
    assert {node: look(release, node, places) for node in names} == {node: [] for node in names}


def test_pods_stay_monitored_over_an_upgrade_from_the_chart_before(chart: Release, pods: Pods, tmp_path: Path) -> None:
    """Before its last change in git, with its image of then: the two belong together."""
    commit = run(*GIT, "log", "-2", "--format=%H", "--", PACKED, check=False).split()[-1:]
    if not commit or not os.environ.get(IMAGE_BEFORE):
        pytest.skip(f"no {IMAGE_BEFORE}, the image of the chart at commit {' '.join(commit) or 'unknown'}")
    archive = subprocess.run([*GIT, "archive", *commit, "packaging"], capture_output=True, check=True)
    subprocess.run(["tar", "-x", f"--directory={tmp_path}"], input=archive.stdout, check=True)
    if chart.is_installed():
        chart.remove()
    chart.install(chart=tmp_path / PACKED, image=IMAGE_BEFORE)
    old = pods.start(pod())
    chart.install()
    chart.assert_monitored([*old, *pods.start(pod())])


def look(release: Release, node: str, places: list[str]) -> list[str]:
    found: list[str] = json.loads(release.on_node(node, FIND, *places))
    return found
