# SPDX-License-Identifier: Apache-2.0
"""The cluster of the current kubeconfig, by kubectl, and why the tests cannot use it, if so."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

Object = dict[str, Any]
Found = TypeVar("Found")

IMAGE = "RESCTRL_MON_TEST_IMAGE"
"""The chart's image, which every node can pull or has: REPOSITORY:TAG. The tests change a cluster,
so they run on none without this.
"""
IMAGE_BEFORE = "RESCTRL_MON_TEST_IMAGE_BEFORE"
"""The image of the chart before its last change in git, to upgrade from."""
VALUES = "RESCTRL_MON_TEST_VALUES"
"""Values of the chart that the cluster needs, as for helm's --set: prefix=/usr/local,watch=true."""
RESCTRL_ROOT = "RESCTRL_MON_TEST_RESCTRL_ROOT"
"""Where the nodes have the model of resctrl; unset: they have resctrl."""
RESTARTS = {
    "kubelet": "RESCTRL_MON_TEST_RESTART_KUBELET",
    "runtime": "RESCTRL_MON_TEST_RESTART_RUNTIME",
}
"""Shell commands that restart it on every node."""

OLDEST_HELM = (3, 14)  # --reset-then-reuse-values, by which docs/kubernetes.md upgrades
DEADLINE = 900.0  # seconds, only to end what hangs
POLL = 1.0  # seconds between two looks


def why_not() -> str | None:
    """Why the tests cannot run; None if they can."""
    configured = os.environ.get("KUBECONFIG") or f"{os.environ.get('HOME', '')}/.kube/config"
    if not any(Path(path).is_file() for path in configured.split(":")):
        return "no kubeconfig (KUBECONFIG or ~/.kube/config)"
    absent = [program for program in ("helm", "kubectl") if shutil.which(program) is None]
    if absent:
        return f"no {' and no '.join(absent)} on PATH"
    version = run("helm", "version", "--template={{.Version}}").strip()
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST_HELM:
        return f"helm {version} is older than {'.'.join(map(str, OLDEST_HELM))}"
    if not os.environ.get(IMAGE):
        return f"no {IMAGE}, the chart's image: tests/cluster/README.md says how to run these tests"
    try:
        every = nodes()
    except subprocess.SubprocessError as error:
        return f"the cluster does not answer: {getattr(error, 'stderr', None) or error}".strip()
    if any(node["spec"].get("providerID", "").startswith("kind:") for node in every):
        return (
            "the nodes are containers (kind): reconcile refuses to work outside the host's pid "
            "namespace"
        )
    return None


def run(*command: str, text: str | None = None, check: bool = True) -> str:
    """What a command prints.

    `text`: its stdin. RuntimeError with all of it if it fails and `check` is set.
    """
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, timeout=DEADLINE
    )
    if check and done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)[:500]}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def kubectl(*words: str, text: str | None = None) -> str:
    return run("kubectl", *words, text=text)


def get(*words: str) -> Any:  # noqa: ANN401  JSON
    return json.loads(kubectl("get", *words, "--output=json"))


def items(*words: str) -> list[Object]:
    objects: list[Object] = get(*words)["items"]
    return objects


def apply(*objects: Object) -> None:
    kubectl(
        "apply",
        "--filename=-",
        text=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}),
    )


def nodes() -> list[Object]:
    command = ["kubectl", "--request-timeout=20s", "get", "nodes", "--output=json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    objects: list[Object] = json.loads(done.stdout)["items"]
    return objects


def wait(what: str, look: Callable[[], Found | None]) -> Found:
    """Look until there is something, and return it.

    A look that fails, as beside a restart, has found nothing yet.
    """
    until = time.monotonic() + DEADLINE
    while True:
        problem: object = None
        try:
            if result := look():
                return result
        except (RuntimeError, LookupError, ValueError) as error:
            problem = error
        assert time.monotonic() < until, f"{what}: waited too long; {problem or ''}"
        time.sleep(POLL)


def namespace(name: str, level: str) -> Object:
    """A namespace whose pods are admitted by this level of the Pod Security Standards."""
    labels = {"pod-security.kubernetes.io/enforce": level}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def settings(image: str) -> list[str]:
    """The words by which helm gives the chart the image,
    and what the environment says of the cluster.
    """
    repository, _, tag = os.environ[image].rpartition(":")
    given = [f"image.repository={repository}", f"image.tag={tag}", os.environ.get(VALUES, "")]
    root = os.environ.get(RESCTRL_ROOT)
    given += [f"testing.resctrlRoot={root}"] if root else []
    return [f"--set={value}" for value in given if value]


def list_names(objects: Sequence[Object]) -> list[str]:
    return sorted(item["metadata"]["name"] for item in objects)
