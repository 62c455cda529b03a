# SPDX-License-Identifier: Apache-2.0
"""Uninstalling takes all of the chart off the nodes.

By its name this comes last: then nothing is left to remove.
"""

from __future__ import annotations

import json

from hook.node.hooksd import PROGRAM
from tests.cluster.kube import wait
from tests.cluster.pods import Pods, pod
from tests.cluster.release import NAME, Release, helm

FIND = """
import glob, json, sys
programs, hooks, resctrl = (f"/host{it}" for it in sys.argv[1:])
ours = [f"{programs}/*resctrl-mon-hook*", f"{hooks}/*resctrl-mon-hook*"]
groups = [f"{resctrl}/mon_groups/oci-*", f"{resctrl}/*/mon_groups/oci-*"]
print(json.dumps([path for pattern in ours + groups for path in glob.glob(pattern)]))
"""


KEYS = """
import json
with open("/host/var/log/resctrl-mon-hook/history.jsonl") as lines:
    print(json.dumps([json.loads(line)["key"] for line in lines]))
"""


def test_uninstall_leaves_the_bill_and_a_stub_by_which_the_containers_end_that_run(
    release: Release, pods: Pods
) -> None:
    (made,) = pods.start(pod())
    places, names = release.places(), release.daemons()
    helm("uninstall", NAME)
    wait("the end of the removal", lambda: not release.objects())
    stub = [f"/host{places[0]}/{PROGRAM}"]
    assert {node: look(release, node, places) for node in names} == dict.fromkeys(names, stub)
    assert made["metadata"]["uid"] in json.loads(release.on_node(made["spec"]["nodeName"], KEYS))


def look(release: Release, node: str, places: list[str]) -> list[str]:
    leftovers: list[str] = json.loads(release.on_node(node, FIND, *places))
    return leftovers
