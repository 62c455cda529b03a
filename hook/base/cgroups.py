# SPDX-License-Identifier: Apache-2.0
"""What a cgroup's path says of containers: whether it is one's own, and whose. Of pods and runtimes: `identity`.

A cgroup is named `<controllers>:<path>`, as /proc/PID/cgroup has it (no controllers: cgroup v2; see process.cgroup).
Source: cgroups(7), and the names that kubelet, CRI-O, Podman and containerd give (`crio-ID.scope`, `pod<UID>`, ...).
"""

from __future__ import annotations

from hook.base import names

_ID_LENGTH = 64
_HEX = frozenset("0123456789abcdef")


def is_own(cgroup: str | None, container: str) -> bool:
    """Whether a cgroup is this container's alone: a component of its path is, or ends with, the container's ID."""
    container = names.container_of(container)
    ends = ("-" + container, ":" + container)
    return any(name == container or name.endswith(ends) for name in _names(cgroup or ""))


def possible_ids(cgroup: str) -> list[str]:
    """Every text that a cgroup's path would make it the own one of, as is_own has it."""
    found = []
    for name in _names(cgroup):
        found += [name, *(name[at + 1 :] for at, character in enumerate(name) if character in "-:")]
    return found


def container_id(cgroup: str) -> str | None:
    """The ID that the runtimes of Kubernetes and Podman name a container's cgroup by: 64 hex digits."""
    for name in reversed(_names(cgroup)):
        if len(name) >= _ID_LENGTH and _HEX.issuperset(name[-_ID_LENGTH:]):
            return name[-_ID_LENGTH:]
    return None


def is_within(cgroup: str, outer: str) -> bool:
    """Whether a cgroup is another one, or below it."""
    return cgroup == outer or cgroup.startswith(outer + "/")


def _names(cgroup: str) -> list[str]:
    """The components of a cgroup's path, without what systemd adds."""
    components = cgroup.partition(":")[2].split("/")
    return [name[: -len(".scope")] if name.endswith(".scope") else name for name in components]
