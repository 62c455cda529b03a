# SPDX-License-Identifier: Apache-2.0
"""Finds the names that Podman keeps: of containers, for records that lack them, and of pods, which no hook gets.

Containers: containers/storage, `containers.json` and `volatile-containers.json` (those that a reboot removes), which
are root's files. Pods: Podman itself is asked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

from hook import conmon, identity, names, system, validation
from hook.models import KeyState
from hook.node import engines, files, programs

_LISTS = ("containers.json", "volatile-containers.json")
_LIMIT = 64 << 20  # bytes of a file of Podman's
_PATIENCE = 5.0  # seconds for an answer of Podman
_HEX = "0123456789abcdef"
_HEAD = 4096  # bytes of /proc/self/status
_SYS_ADMIN = 1 << 21  # CAP_SYS_ADMIN: capabilities(7). Without it Podman takes root for a rootless user


class Names:
    """Podman's names. Each kind is read at its first use."""

    @cached_property
    def containers(self) -> Mapping[str, str]:
        """The name of each container, by its ID."""
        root = engines.read_graph_root()
        directories = system.try_call(files.list_names, root) or ()  # one for each storage driver ever used
        return read_containers([f"{root}/{name}" for name in directories if name.endswith("-containers")])

    @cached_property
    def pods(self) -> Mapping[str, str]:
        """The name of each pod, by the first digits of its ID. Empty if Podman does not answer."""
        return _ask_for_pods()


def read_containers(directories: Collection[str]) -> dict[str, str]:
    """Return the name of each container in these directories of containers/storage, by its ID.

    Unreadable files are skipped.
    """
    found: dict[str, str] = {}
    for path in [f"{directory}/{name}" for directory in directories for name in _LISTS]:
        for entry in _list_objects(system.try_call(files.read_json, path, _LIMIT)):
            container, given = entry.get("id"), entry.get("names")
            if isinstance(container, str) and isinstance(given, list) and given and isinstance(given[0], str):
                found[container] = given[0]
    return found


def _ask_for_pods() -> dict[str, str]:
    """Ask Podman for the name of each pod. Without CAP_SYS_ADMIN, as in the timer's unit, Podman is not asked."""
    program = programs.find_program("podman")
    status = (system.try_call(files.read_head, "/proc/self/status", _HEAD) or b"").decode("ascii", "replace")
    capabilities = int(status.partition("\nCapEff:")[2].partition("\n")[0] or "0", 16)
    if program is None or not capabilities & _SYS_ADMIN:
        return {}
    ended = programs.run_program([program, "pod", "ps", "--format=json"], seconds=_PATIENCE)
    try:
        pods = _list_objects(json.loads(ended.output)) if ended.status == 0 else []
    except (ValueError, RecursionError):
        return {}
    both = [(pod.get("Id"), pod.get("Name")) for pod in pods]
    return {pod[: conmon.POD_DIGITS]: name for pod, name in both if isinstance(pod, str) and isinstance(name, str)}


def _list_objects(found: object) -> list[dict[str, Any]]:
    """Return the objects in a list, or none if it is no list."""
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def name_running(pod: identity.Pod, container: str, bundle: str, places: list[str]) -> None:
    """Add Podman's names to the pod of a container that runs already, by the storage that its bundle is in.

    `places` are the cgroups that its runtime made for it, as in procfs.cgroups.
    """
    if pod.is_podmans:
        storage = os.path.dirname(os.path.dirname(bundle))  # of <storage>/<ID>/userdata
        pod.container = identity.bounded(read_containers([storage]).get(container))
        pod.name = conmon.find_pod(places, container)


def add_names(state: KeyState, known: Names) -> KeyState:
    """Add Podman's names to a key that lacks some. Return the same state if there is nothing to add.

    Only a container whose cgroup Podman made is looked up.
    """
    if state.kind == "pod":
        return state
    places = {name: member.cgroup for name, member in state.members.items() if member.cgroup is not None}
    ours = {
        name: place
        for name, place in places.items()
        if identity.find_maker(identity.find_own(place, name), name) == "libpod"
    }
    members = {}
    for name in ours:
        container = names.container_of(name)
        if state.members[name].name is None and container in known.containers:
            members[name] = validation.replace(state.members[name], name=identity.bounded(known.containers[container]))
    digits = state.pod_name or next(
        filter(None, (conmon.find_pod([place], name) for name, place in ours.items())), None
    )
    pod = digits
    if pod is not None and state.pod_namespace is None and len(pod) == conmon.POD_DIGITS and not pod.strip(_HEX):
        pod = identity.bounded(known.pods.get(pod, pod))
    if pod == state.pod_name and not members:
        return state
    new = next((member.name for member in members.values()), None)
    own = (state.name or new) if state.kind == "container" else None
    named = validation.replace(state, pod_name=digits, name=own, members={**state.members, **members})
    # The hook that records a container has the digits only: as a label they stay, also if the record was lost.
    return names.keep_labels(named, validation.replace(named, pod_name=pod))
