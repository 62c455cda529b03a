# SPDX-License-Identifier: Apache-2.0
"""A cluster's bill: what its pods used, by lines, sums, counters and stdout."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from hook.show.snapshot import EVENTS
from tests.cluster.kube import Object, kubectl, wait
from tests.cluster.pods import TENANTS, Pods, container, controlled, pod
from tests.cluster.release import NAMESPACE, Release

BRIEF, AT_ONCE = 100, 20
FORGET = """
import shutil
shutil.rmtree("/host/var/log/resctrl-mon-hook", ignore_errors=True)
"""


def test_a_namespaces_bill_has_each_of_a_hundred_pods_that_come_and_go_once(
    release: Release, pods: Pods
) -> None:
    """Each line has the name of its pod's node, and comes to stdout, too."""
    names = release.daemons()
    release.remove()
    for node in names:
        release.on_node(node, FORGET)
    release.install("--set=history.stdout=true")
    (lasting,) = pods.start(pod())
    once = pod(container(command=["true"]), restartPolicy="Never")
    job = controlled("Job", "batch/v1", once, completions=BRIEF, parallelism=AT_ONCE)
    pods.create(job)
    ended = [*pods.of(job, lambda brief: brief["status"]["phase"] == "Succeeded", BRIEF), lasting]
    pods.remove(lasting)

    bills = wait("the bills of all nodes", lambda: find_bills(release, ended))
    lines = [line for bill in bills.values() for line in bill["lines"]]
    assert sorted((line["pod"], line["node"]) for line in lines) == sorted(
        map(name_with_node, ended)
    )
    assert {line["reason"] for line in lines} == {None}
    assert any(sum(line["use"].values()) for line in lines), "all have used something"
    for node, bill in bills.items():
        name = release.daemon(node)["metadata"]["name"]
        printed = kubectl(
            "logs", f"--namespace={NAMESPACE}", name, "--container=history"
        ).splitlines()
        assert {line["id"] for line in bill["lines"]} <= {
            json.loads(line)["id"] for line in printed
        }


def name_with_node(made: Object) -> tuple[str, str]:
    return made["metadata"]["name"], made["spec"]["nodeName"]


def find_bills(release: Release, ended: Sequence[Object]) -> dict[str, Object] | None:
    """Return the bill of each node once all pods have lines, and all ways to add these up agree.

    A pod that ends has its line when its cgroup is gone, and a new counter is 0 for a minute.
    Raises ValueError.
    """
    bills = {
        node: release.bill(node, TENANTS) for node in {made["spec"]["nodeName"] for made in ended}
    }
    for node, bill in bills.items():
        events = {event for line in bill["lines"] for event in line["use"]}
        added = {
            event: sum(line["use"].get(event, 0) for line in bill["lines"]) for event in events
        }
        counted = {event: bill["samples"][EVENTS[event].metric] for event in events}
        ways = [bill["total"]["use"], bill["sums"], counted]
        if bill["total"]["jobs"] != len(bill["lines"]) or any(
            way != pytest.approx(added) for way in ways
        ):
            raise ValueError(f"{node}: {len(bill['lines'])} lines have {added}, others {ways}")
    return bills if sum(len(bill["lines"]) for bill in bills.values()) >= len(ended) else None
