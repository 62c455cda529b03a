# SPDX-License-Identifier: Apache-2.0
"""Every container of every pod is monitored, from its start on."""

from __future__ import annotations

import pytest

from tests.cluster.kube import Object, kubectl, wait
from tests.cluster.pods import TENANTS, Pods, container, controlled, is_ready, live_containers, pod
from tests.cluster.release import Release

SECOND = {"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 60}
LITTLE = {"cpu": "10m", "memory": "64Mi"}
KINDS = {
    "one container": pod(),
    "two containers": pod(container("web"), container("logs")),
    "init containers": pod(
        initContainers=[container("first", ["true"]), container("second", ["true"])]
    ),
    "sidecars": pod(
        initContainers=[container("side", restartPolicy="Always"), container("first", ["true"])]
    ),
    "exec probes": pod(container(readinessProbe=SECOND, livenessProbe=SECOND, startupProbe=SECOND)),
    "burstable": pod(container(resources={"requests": LITTLE})),
    "guaranteed": pod(container(resources={"requests": LITTLE, "limits": LITTLE})),
    "shared processes": pod(container("web"), container("logs"), shareProcessNamespace=True),
}
BURST = 30  # a node surely has room and RMIDs for so many


@pytest.mark.parametrize("kind", KINDS)
def test_every_container_of_a_pod_is_monitored(release: Release, pods: Pods, kind: str) -> None:
    release.assert_monitored(pods.start(KINDS[kind]))


def test_ephemeral_container_joins_the_group_of_its_pod(release: Release, pods: Pods) -> None:
    (started,) = pods.start(pod())
    image = started["spec"]["containers"][0]["image"]
    words = (
        "debug",
        f"--namespace={TENANTS}",
        started["metadata"]["name"],
        f"--image={image}",
        "--container=debugger",
    )
    kubectl(
        *words, "--profile=restricted", "--image-pull-policy=IfNotPresent", "--", "sleep", "86400"
    )
    wait(
        "the ephemeral container",
        lambda: len(live_containers(pods.find(started["metadata"]["name"]))) == 2,
    )
    release.assert_monitored([pods.find(started["metadata"]["name"])])


def test_finished_job_is_completed_while_its_pod_is_kept(release: Release, pods: Pods) -> None:
    job = controlled("Job", "batch/v1", pod(container(command=["true"]), restartPolicy="Never"))
    pods.create(job)
    (ended,) = pods.of(job, lambda candidate: candidate["status"]["phase"] == "Succeeded")
    wait("the end of the job's key", lambda: release.show(ended)["state"] == "completed")


def test_crash_loop_keeps_its_group(release: Release, pods: Pods) -> None:
    looping = pod(container(command=["false"]))
    pods.create(looping)
    answers = []
    for restarts in (1, 2):

        def restarted(restarts: int = restarts) -> Object | None:
            restarting = pods.find(looping["metadata"]["name"])
            statuses = restarting["status"].get("containerStatuses", [])
            return (
                restarting
                if any(status["restartCount"] >= restarts for status in statuses)
                else None
            )

        answers.append(release.show(wait(f"restart {restarts}", restarted)))
    assert {answer["state"] for answer in answers} <= {"live", "lingering"}
    begins = [
        [counter["begin"] for group in answer["groups"] for counter in group["counters"].values()]
        for answer in answers
    ]
    assert begins[0] == begins[1], "it has another group"


def test_process_that_exec_starts_is_in_the_group_after_the_next_reconcile(
    release: Release, pods: Pods
) -> None:
    (started,) = pods.start(pod())
    in_background = "sleep 86400 </dev/null >/dev/null 2>&1 &"
    kubectl(
        "exec",
        f"--namespace={TENANTS}",
        started["metadata"]["name"],
        "--",
        "sh",
        "-c",
        in_background,
    )
    wait("the second process in the group", lambda: len(release.show(started)["tasks"]) == 2)


def test_burst_of_pods_is_monitored(release: Release, pods: Pods) -> None:
    template = pod()
    labels = {"matchLabels": {"app": template["metadata"]["name"]}}
    burst = controlled("Deployment", "apps/v1", template, replicas=BURST, selector=labels)
    pods.create(burst)
    release.assert_monitored(pods.of(burst, is_ready, BURST))
