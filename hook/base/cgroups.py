"""What a cgroup's path tells: the pod that a container belongs to, and whether a cgroup is a container's own.

A cgroup is named `<controllers>:<path>`, as /proc/PID/cgroup has it (no controllers: cgroup v2; see process.cgroup).
Source: cgroups(7), and the names that kubelet, CRI-O, Podman and containerd give (`crio-ID.scope`, `pod<UID>`, ...).
"""

from __future__ import annotations

from hook.base import names, system

_MAKERS = {"crio-": "cri-o", "libpod-": "libpod", "libpod-payload-": "libpod", "cri-containerd-": "containerd"}
_MOUNT = "/sys/fs/cgroup"
_ID_LENGTH = 64
_HEX = frozenset("0123456789abcdef")


def of_pod(cgroup: str | None, uid: str) -> str | None:
    """The cgroup of a pod: the nearest one above the container's whose name holds the UID; None if there is none.

    systemd's slices have `_` for the UID's dashes; static pods have their UID without any.
    """
    controllers, _, path = (cgroup or "").partition(":")
    digits = uid.replace("-", "")
    above = path.rpartition("/")[0]
    while above:
        name = above.rpartition("/")[2].replace("_", "-")
        if uid in name or digits in name:
            return f"{controllers}:{above}"
        above = above.rpartition("/")[0]
    return None


def pod_uid(cgroup: str) -> str | None:
    """The pod UID that a cgroup's path names, in its canonical form; None if it names none.

    The kubelet names a pod's cgroup `pod<UID>`, or `...-pod<UID>.slice` with `_` for dashes. The outermost one counts:
    a container can make cgroups of any name, and so does a nested node, but only below the container's own.
    """
    for name in cgroup.split("/"):
        before, is_pod, uid = name.rpartition("pod")
        if is_pod and (not before or before.endswith("-")):
            try:
                return names.pod_uid(uid.removesuffix(".slice").replace("_", "-"))
            except ValueError:
                continue
    return None


def maker(cgroup: str, container: str) -> str | None:
    """Who made a container, by the name of its cgroup: `cri-o`, `libpod` (Podman) or `containerd`; None: unknown.

    Each of them puts its mark before the container's ID, which nobody can choose; the outermost counts, as above.
    With the kubelet's cgroupfs driver containerd has the bare ID, as plain runc and crun may have.
    """
    for name in _names(cgroup):
        if container and name.endswith(container):
            mark = name[: -len(container)]
            if not mark or mark in _MAKERS:
                return _MAKERS.get(mark, "containerd")
    return None


def exists(cgroup: str) -> bool:
    """Whether a cgroup is there, in one of the places where its hierarchy is mounted by all known systems."""
    controllers, _, path = cgroup.partition(":")
    if not path.startswith("/") or ".." in path.split("/"):
        return False
    name = controllers.partition("name=")[2] or controllers
    places = {name, name.partition(",")[0]} if name else {"", "unified"}
    return any(system.is_directory(f"{_MOUNT}/{place}{path}".replace("//", "/")) for place in places)


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
