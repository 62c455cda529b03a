# SPDX-License-Identifier: Apache-2.0
"""Reads the names of pods and containers from the directories in which the kubelet keeps their logs.

Source: kubelet, pkg/kubelet/kuberuntime: `/var/log/pods/<namespace>_<pod>_<uid>`, and for readers of logs the links
`/var/log/containers/<pod>_<namespace>_<container>-<container ID>.log`. No name has a `_` in it (RFC 1123).
"""

from __future__ import annotations

from hook.base import names
from hook.node import door

_LOGS = "/var/log"


def read_pods() -> dict[str, tuple[str, str]]:
    """The namespace and the name of each pod, by its UID. Empty where the kubelet's logs are not to be seen."""
    found = {}
    for entry in _list("pods"):
        namespace, _, rest = entry.partition("_")
        pod, _, uid = rest.partition("_")
        try:
            if namespace and pod:
                found[names.pod_uid(uid)] = namespace, pod
        except ValueError:
            continue
    return found


def read_containers() -> dict[str, str]:
    """The name of each container in its pod, by its ID; not of one whose names are so long that its link is cut."""
    found = {}
    for entry in _list("containers"):
        _, _, last = entry.removesuffix(".log").rpartition("_")
        name, _, container = last.rpartition("-")
        if name and entry.endswith(".log"):
            found[container] = name
    return found


def _list(directory: str) -> list[str]:
    try:
        return door.list_names(f"{_LOGS}/{directory}")
    except door.Unreadable:  # not there, as in the chart, or more entries than any node has
        return []
