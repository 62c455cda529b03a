# SPDX-License-Identifier: Apache-2.0
"""Finds the container that a cgroup belongs to, by the cgroup's path. Pods and runtimes are found in `identity`.

A cgroup is written `<controllers>:<path>`, as in /proc/PID/cgroup (no controllers: cgroup v2; see system.cgroups).
Source: cgroups(7), and the names that kubelet, CRI-O, Podman and containerd give (`crio-ID.scope`, `pod<UID>`, ...).
"""

from __future__ import annotations

from hook import identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

_ID_LENGTH = 64
_HEX = frozenset("0123456789abcdef")
_MOST_SEPARATORS = 4  # of a component: `libpod-payload-ID` has two before the ID
_MOST_IDS = 64  # of a path: a pod's on a nested node has some twenty


def is_own(cgroup: str | None, container: str) -> bool:
    """Whether a cgroup is the one that the runtime made for this container, or is below it."""
    return identity.find_own(cgroup or "", container) is not None


def possible_ids(cgroup: str) -> list[str]:
    """Return container IDs for which `is_own` holds, those of the outermost component first.

    A container can name the components below its own as it likes, so only some of these IDs are right, and their number
    is limited: no name below can keep a caller from one above it. Of a component these are the whole name, what follows
    one of its first separators, as the mark of any runtime ends with one, and what follows its last.
    """
    found: list[str] = []
    for name in _names(cgroup):
        at = [place for place, character in enumerate(name) if character in "-:"]
        found += [name, *(name[place + 1 :] for place in dict.fromkeys([*at[:_MOST_SEPARATORS], *at[-1:]]))]
        if len(found) >= _MOST_IDS:
            break
    return found[:_MOST_IDS]


def find_container(cgroup: str, known: Container[str]) -> str | None:
    """Find a cgroup's container: the outermost component decides that names a `known` container or looks like an ID.

    A container with a writable cgroup can name the cgroups below its own after another container.
    """
    names = _names(cgroup)
    for above, name, below in zip(["", *names], names, [*names[1:], ""]):
        starts = [0, *(at + 1 for at, character in enumerate(name) if character in "-:")]
        found = next((name[at:] for at in starts if name[at:] in known), None)
        if found is not None:
            return found
        last = name[-_ID_LENGTH:]
        if len(last) == _ID_LENGTH and _HEX.issuperset(last) and not _is_podmans_pod(above, name, below):
            return last
    return None


def find_container_id(cgroup: str) -> str | None:
    """Find the ID of 64 hex digits in the outermost cgroup that Podman or a runtime of Kubernetes named by one."""
    return find_container(cgroup, ())


def cut_below_container(cgroup: str) -> str:
    """Return the container's own cgroup for one below it, since a container can make any number of those."""
    container = find_container_id(cgroup) if len(cgroup) > _ID_LENGTH else None  # most: other hierarchies' roots
    return (identity.find_own(cgroup, container) if container is not None else None) or cgroup


def from_config(path: str | None) -> str | None:
    """The cgroup that `linux.cgroupsPath` of a bundle's config.json asks for; None: the runtime chooses.

    The path is absolute, or `SLICE:MARK:ID` for systemd; the result then lacks the slices above SLICE. Source:
    runtime-spec, config-linux.md "Cgroups Path"; runc, docs/systemd.md.
    """
    if not path:
        return None
    if path.count(":") == 2 and not path.startswith("/"):
        above, mark, name = path.split(":")
        return f":/{above}/{mark}-{name}.scope"
    return f":/{path.strip('/')}" if path.startswith("/") else None


def is_within(cgroup: str, outer: str) -> bool:
    """Whether a cgroup is `outer` or below it."""
    return cgroup == outer or cgroup.startswith(outer + "/")


def _is_podmans_pod(above: str, name: str, below: str) -> bool:
    """Whether a component is the cgroup of a pod of Podman's, which its cgroupfs driver names by the pod's bare ID.

    The pod's containers are `libpod-ID` in it. containerd names containers by bare IDs, too, but inside `pod<UID>`.
    """
    is_of_podman = above == "libpod_parent" or (below.startswith("libpod-") and not above.startswith("pod"))
    return is_of_podman and len(name) == _ID_LENGTH


def _names(cgroup: str) -> list[str]:
    """The components of a cgroup's path, without systemd's `.scope`."""
    components = cgroup.partition(":")[2].split("/")
    return [name[: -len(".scope")] if name.endswith(".scope") else name for name in components]
