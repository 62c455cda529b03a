# SPDX-License-Identifier: Apache-2.0
"""What a cgroup's path says of containers: whether it is one's own, and whose. Of pods and runtimes: `identity`.

A cgroup is named `<controllers>:<path>`, as /proc/PID/cgroup has it (no controllers: cgroup v2; see procfs.cgroups).
Source: cgroups(7), and the names that kubelet, CRI-O, Podman and containerd give (`crio-ID.scope`, `pod<UID>`, ...).
"""

from __future__ import annotations

from hook.base import procfs, system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

_MOUNT = "/sys/fs/cgroup"
_ID_LENGTH = 64
_HEX = frozenset("0123456789abcdef")


def is_own(cgroup: str | None, container: str) -> bool:
    """Whether a cgroup is this container's own, or below that."""
    return procfs.find_own(cgroup or "", container) is not None


def possible_ids(cgroup: str) -> list[str]:
    """Every text that a cgroup's path would make it the own one of, as is_own has it; those of the outermost first.

    Any component below a container's own may be of that container's making.
    """
    return [text for name in _names(cgroup) for text in _ends(name)]


def find_container(cgroup: str, known: Container[str]) -> str | None:
    """The container that a cgroup is of: of the outermost component that names a `known` one, or looks like an ID.

    What is below is that container's to name: with a writable cgroup it gives one the name of another container's.
    """
    names = _names(cgroup)
    for above, name, below in zip(["", *names], names, [*names[1:], ""]):
        found = next((text for text in _ends(name) if text in known), None)
        if found is None and not _is_podmans_pod(above, name, below):
            found = _id_of(name)
        if found is not None:
            return found
    return None


def find_container_id(cgroup: str) -> str | None:
    """The ID that the runtimes of Kubernetes and Podman name a container's cgroup by: 64 hex digits, the outermost."""
    return find_container(cgroup, ())


def cut_below_container(cgroup: str) -> str:
    """A cgroup, or that of the container which it is below, where the container makes as many as it likes."""
    container = find_container_id(cgroup) if len(cgroup) > _ID_LENGTH else None  # most: other hierarchies' roots
    return (procfs.find_own(cgroup, container) if container is not None else None) or cgroup


def from_config(path: str | None) -> str | None:
    """The cgroup that `linux.cgroupsPath` of a bundle's config.json asks for; None if that leaves it to the runtime.

    In either of its forms: an absolute path, or `SLICE:MARK:ID` for systemd, of which the slices above are left out.
    Source: runtime-spec, config-linux.md "Cgroups Path"; runc, docs/systemd.md.
    """
    if not path:
        return None
    if path.count(":") == 2 and not path.startswith("/"):
        above, mark, name = path.split(":")
        return f":/{above}/{mark}-{name}.scope"
    return f":/{path.strip('/')}" if path.startswith("/") else None


def find_directory(cgroup: str) -> str | None:
    """The directory of a cgroup, in one of the places where its hierarchy is mounted by all known systems."""
    controllers, _, path = cgroup.partition(":")
    if not path.startswith("/") or ".." in path.split("/"):
        return None
    name = controllers.partition("name=")[2] or controllers
    places = (name, name.partition(",")[0]) if name else ("", "unified")
    directories = (f"{_MOUNT}/{place}{path}".replace("//", "/") for place in places)
    return next((it for it in directories if system.is_directory(it)), None)


def is_within(cgroup: str, outer: str) -> bool:
    """Whether a cgroup is another one, or below it."""
    return cgroup == outer or cgroup.startswith(outer + "/")


def _is_podmans_pod(above: str, name: str, below: str) -> bool:
    """Whether a component is a pod of Podman's, which its cgroupfs driver gives the bare ID of the pod.

    The pod's containers are `libpod-ID` in it. containerd gives containers bare IDs, too, but in the kubelet's pods.
    """
    is_of_podman = above == "libpod_parent" or (below.startswith("libpod-") and not above.startswith("pod"))
    return is_of_podman and len(name) == _ID_LENGTH


def _id_of(name: str) -> str | None:
    """The ID in a component's name."""
    found = name[-_ID_LENGTH:]
    return found if len(found) == _ID_LENGTH and _HEX.issuperset(found) else None


def _ends(name: str) -> list[str]:
    return [name, *(name[at + 1 :] for at, character in enumerate(name) if character in "-:")]


def _names(cgroup: str) -> list[str]:
    """The components of a cgroup's path, without what systemd adds."""
    components = cgroup.partition(":")[2].split("/")
    return [name[: -len(".scope")] if name.endswith(".scope") else name for name in components]
