# SPDX-License-Identifier: Apache-2.0
"""Finds the names of pods and containers that the kubelet and Podman gave.

A hook is not given all of them, and a record that was rebuilt from the kernel has none.

The kubelet (pkg/kubelet/kuberuntime) makes directories `/var/log/pods/<namespace>_<pod>_<uid>`, and
for readers of logs links `/var/log/containers/<pod>_<namespace>_<container>-<container ID>.log`. No
name has a `_` in it (RFC 1123). The chart's containers do not see them, and a directory with more
than files.NAMES of them is not read.

Podman keeps the names of containers in `containers.json` and `volatile-containers.json` (those that
a reboot removes) of containers/storage, which are root's files. For those of pods it is asked
itself. Without CAP_SYS_ADMIN it would take root for a rootless user, so the timer's reconcile
leaves the mark `podman-pods.wanted` in the run directory. Where the mark is, the unit runs Podman
with full rights before the next reconcile, which reads the answer in `podman-pods.json`. A pod's
name never changes, so an old answer may lack a name, but has no wrong one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

from hook import conmon, formats, identity, life_turns, names, system
from hook.models import KeyState
from hook.node import engines, files, programs
from hook.node.processes import read_status
from hook.validation import replace

_LISTS = ("containers.json", "volatile-containers.json")
PODMAN_MARK, _ANSWER = "podman-pods.wanted", "podman-pods.json"
_LIMIT = 64 << 20  # bytes of a file of Podman's
_PATIENCE = 5.0  # seconds for an answer of Podman's
_SYS_ADMIN = 1 << 21  # capabilities(7)


class KubeletNames:
    """The kubelet's names. Each kind is read at its first use."""

    @cached_property
    def pods(self) -> Mapping[str, tuple[str, str]]:
        """The namespace and the name of each pod, by its UID. Empty if the logs are not visible."""
        entries = system.try_call(files.list_names, "/var/log/pods") or ()
        matches = [re.fullmatch(r"([^_]+)_([^_]+)_(.+)", entry) for entry in entries]
        by_uid = {names.normalize_uid(match[3]): (match[1], match[2]) for match in matches if match}
        return {uid: names for uid, names in by_uid.items() if uid is not None}

    @cached_property
    def containers(self) -> Mapping[str, str]:
        """The name of each container in its pod, by its ID, unless the kubelet had to cut that."""
        entries = system.try_call(files.list_names, "/var/log/containers") or ()
        matches = [re.fullmatch(r"(?:.*_)?([^_]+)-([^_-]*)\.log", entry) for entry in entries]
        return {match[2]: match[1] for match in matches if match}


class PodmanNames:
    """Podman's names. Each kind is read at its first use."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._lacks_pods = False

    @cached_property
    def containers(self) -> Mapping[str, str]:
        """The name of each container, by its ID."""
        root = engines.read_graph_root()
        # One for each storage driver ever used.
        directories = system.try_call(files.list_names, root) or ()
        return read_containers(
            [f"{root}/{name}" for name in directories if name.endswith("-containers")]
        )

    def find_pod(self, digits: str) -> str | None:
        """Return the name of a pod, by the first digits of its ID,
        or None if Podman has not given it.
        """
        name = self._pods.get(digits)
        self._lacks_pods = self._lacks_pods or name is None
        return name

    @property
    def wants_pods(self) -> bool:
        """Whether the mark should be left: a name was missing,
        and Podman is installed but cannot be asked here.
        """
        return self._lacks_pods and self._podman is not None and not self._may_ask

    @cached_property
    def _podman(self) -> str | None:
        return programs.find_program("podman")

    @cached_property
    def _may_ask(self) -> bool:
        return bool(read_status("self", "CapEff", 16) & _SYS_ADMIN)

    @cached_property
    def _pods(self) -> Mapping[str, str]:
        """The name of each pod, by the first digits of its ID. Empty if there is no answer."""
        if self._podman is not None and self._may_ask:
            ended = programs.run_program(
                [self._podman, "pod", "ps", "--format=json"], seconds=_PATIENCE
            )
            try:
                answer = formats.loads(ended.output) if ended.status == 0 else None
            except ValueError:
                answer = None
        else:
            answer = system.try_call(files.read_json, f"{self._run_dir}/{_ANSWER}", _LIMIT)
        both = [(pod.get("Id"), pod.get("Name")) for pod in _list_objects(answer)]
        return {
            pod[: conmon.POD_DIGITS]: name
            for pod, name in both
            if isinstance(pod, str) and isinstance(name, str)
        }


def read_containers(directories: Collection[str]) -> dict[str, str]:
    """Return the name of each container in these directories of containers/storage, by its ID.

    Unreadable files are skipped.
    """
    given: dict[str, str] = {}
    for path in [f"{directory}/{name}" for directory in directories for name in _LISTS]:
        for entry in _list_objects(system.try_call(files.read_json, path, _LIMIT)):
            container, texts = entry.get("id"), entry.get("names")
            if (
                isinstance(container, str)
                and isinstance(texts, list)
                and texts
                and isinstance(texts[0], str)
            ):
                given[container] = texts[0]
    return given


def _list_objects(content: object) -> list[dict[str, Any]]:
    """Return the objects in a list, or none if the content is no list."""
    return (
        [entry for entry in content if isinstance(entry, dict)] if isinstance(content, list) else []
    )


def name_running(pod: identity.Pod, container: str, bundle: str, places: list[str]) -> None:
    """Add Podman's names to the pod of a container that runs already,
    by the storage that its bundle is in.

    `places` are the cgroups that its runtime made for it, as in system.cgroups.
    """
    if pod.is_podmans:
        storage = os.path.dirname(os.path.dirname(bundle))  # of <storage>/<ID>/userdata
        pod.container = identity.shorten(read_containers([storage]).get(container))
        pod.name = conmon.find_pod(places, container)


def add_names(state: KeyState, kubelet: KubeletNames, podman: PodmanNames) -> KeyState:
    """Add names to the record of a key that lacks some.

    Return the same state if there is nothing to add.
    The files with the names are read only if one is missing.
    """
    return _add_kubelets(state, kubelet) if state.kind == "pod" else _add_podmans(state, podman)


def _add_kubelets(state: KeyState, known: KubeletNames) -> KeyState:
    pod = known.pods.get(state.key) if state.pod_name is None else None
    members = dict(state.members)
    for container, member in state.members.items():
        name = (
            known.containers.get(names.get_container_id(container)) if member.name is None else None
        )
        if name is not None:
            members[container] = replace(member, name=name)
    if pod is None and members == state.members:
        return state
    namespace, pod_name = pod or (state.pod_namespace, state.pod_name)
    return replace(state, pod_namespace=namespace, pod_name=pod_name, members=members)


def _add_podmans(state: KeyState, known: PodmanNames) -> KeyState:
    """Add Podman's names. Only a container whose cgroup Podman made is looked up."""
    members = dict(state.members)
    digits = state.pod_name
    for key, member in state.members.items():
        if names.find_maker(names.find_own(member.cgroup or "", key), key) == "libpod":
            container = names.get_container_id(key)
            if member.name is None and container in known.containers:
                members[key] = replace(member, name=identity.shorten(known.containers[container]))
            digits = digits or conmon.find_pod([member.cgroup or ""], key)
    pod = digits
    if (
        pod is not None
        and state.pod_namespace is None
        and len(pod) == conmon.POD_DIGITS
        and names.is_hex(pod)
    ):
        pod = identity.shorten(known.find_pod(pod)) or pod
    if pod == state.pod_name and members == state.members:
        return state
    given = next((member.name for member in members.values() if member.name), None)
    name = (state.name or given) if state.kind == "container" else None
    named = replace(state, pod_name=digits, name=name, members=members)
    # The hook that records a container has the digits only: as a label they stay,
    # also if the record was lost.
    return life_turns.keep_metric_labels(named, replace(named, pod_name=pod))
