# SPDX-License-Identifier: Apache-2.0
"""Checks texts that become a key, a group's name or a part of a path,
and reads the names in a cgroup's path.

Tenants write annotations, so a text from outside is used in a path only if a function here
accepts it. Each returns the text in its canonical form, or raises ValueError. Both forms of the
models use them as validators.
"""

from __future__ import annotations

# Texts, not sets, which take longer to make than to use once:
# `not text.strip(these)` has nothing but these in it.
_ALPHANUMERIC = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_ID_CHARACTERS = _ALPHANUMERIC + "_.+,-"
_ID_LIMIT, _LABEL_LIMIT, _NODE_LIMIT = 200, 64, 253
ID_LENGTH = 64  # of the IDs that container engines make
_PREFIX_LIMIT = 50  # prefix and ID together stay below NAME_MAX, 255
_MAKERS = {
    "crio": "cri-o",
    "libpod": "libpod",
    "libpod-payload": "libpod",
    "cri-containerd": "containerd",
}


def check_container_id(text: str) -> str:
    """Check a container ID: `[A-Za-z0-9][A-Za-z0-9_.+,-]{0,199}`,
    which also makes it one safe path component.
    """
    is_plain = text.isalnum() and text.isascii()  # an engine's ID: this is faster than strip
    if not 0 < len(text) <= _ID_LIMIT or not (
        is_plain or (text[0] in _ALPHANUMERIC and not text.strip(_ID_CHARACTERS))
    ):
        raise ValueError("not a container ID")
    return text


def is_container_id(text: str) -> bool:
    """Whether `check_container_id` accepts a text."""
    try:
        return bool(check_container_id(text))
    except ValueError:
        return False


def is_hex(text: str) -> bool:
    """Return whether a text has only hex digits."""
    return not text.strip("0123456789abcdef")


def is_engine_id(text: str) -> bool:
    """Return whether a text looks like a container ID of an engine: 64 hex digits."""
    return len(text) == ID_LENGTH and is_hex(text)


def check_member(text: str) -> str:
    """Check the name of a member: a container ID, or the name of a displaced member."""
    container, is_displaced, process = text.partition("@")
    pid, _, starttime = process.partition("-")
    if is_displaced and not (pid.isdecimal() and starttime.isdecimal() and process.isascii()):
        raise ValueError("not the name of a member")
    check_container_id(container)
    return text


def get_container_id(member: str) -> str:
    """Return the container ID in the name of a member, which may be displaced."""
    return member.partition("@")[0]


def normalize_uid(text: str) -> str | None:
    """Return a pod UID in lower case with dashes,
    from that form or from 32 hex digits (static pods).

    Returns None if the text is no pod UID.
    """
    lower = text.lower()
    digits = lower.replace("-", "")
    canonical = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    is_uid = len(digits) == 32 and is_hex(digits) and lower in (canonical, digits)
    return canonical if is_uid else None


# --- What the path of a cgroup says of a container; it is written `<controllers>:<path>`, as in
# /proc/PID/cgroup


def read_pod_uid(cgroup: str) -> str | None:
    """Return the pod UID that a cgroup's path names, in its canonical form,
    or None if it names none.

    The kubelet names a pod's cgroup `pod<UID>`, or `...-pod<UID>.slice` with `_` for dashes. The
    outermost one counts. A runtime that takes systemd's form of a path (`SLICE:MARK:ID`) for a
    plain name makes it a single component.
    """
    for name in cgroup.split("/"):
        before, is_pod, uid = name.partition(":")[0].rpartition("pod")
        if is_pod and (not before or before.endswith("-")):
            canonical = normalize_uid(uid.removesuffix(".slice").replace("_", "-"))
            if canonical is not None:
                return canonical
    return None


def find_own(cgroup: str, container: str) -> str | None:
    """Return a container's own cgroup: this one or an ancestor,
    or None if no component names the container.

    It ends at the outermost component that is the container's ID, or ends with it. A container with
    a writable cgroup (systemd in Podman) makes cgroups below that, by any name.
    """
    name = get_container_id(container)
    at = cgroup.find(name, cgroup.find("/"))
    while at > 0:
        below = cgroup[at + len(name) :].removeprefix(".scope")
        if cgroup[at - 1] in "/-:" and below[:1] in ("", "/"):
            return cgroup[: len(cgroup) - len(below)]
        at = cgroup.find(name, at + 1)
    return None


def find_maker(cgroup: str | None, container: str) -> str | None:
    """Return the engine that made a container, by its own cgroup (find_own),
    or None if it is unknown.

    Engines are `cri-o`, `libpod` (Podman) and `containerd`. Each puts its mark before the
    container's ID, and no user can choose that. With the cgroupfs driver containerd uses the bare
    ID in the pod's cgroup, `pod<UID>`. Plain runc and crun may use the bare ID anywhere.
    """
    above, _, name = (cgroup or "").rpartition("/")
    mark = name.removesuffix(".scope")[: -len(get_container_id(container))]
    if not mark:
        pod = above[above.rfind("/") + 1 :]
        return "containerd" if pod.startswith("pod") or read_pod_uid(pod) is not None else None
    return _MAKERS.get(mark[:-1].rpartition(":")[2])  # `SLICE:MARK:ID`: see read_pod_uid


def concerns(containers: str, *, is_podmans: bool) -> bool:
    """Whether a call with this `--containers` is for a container, by whether Podman made it.

    A container's annotations can make it match both of our hooks.d files;
    then only one of the two calls acts.
    """
    return containers == "all" or (containers == "podman") == is_podmans


# --- Parts of a path, and labels


def _is_encodable(text: str) -> bool:
    """Whether a text can be part of a path: no NUL, and no half of a surrogate pair,
    which JSON lets pass.
    """
    try:
        return b"\0" not in text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def check_component(text: str) -> str:
    """Check one safe path component (not `.` or `..`; no `/`, NUL or newline),
    such as a ctrl_group's name.
    """
    if (
        text in ("", ".", "..")
        or len(text) > 255
        or "/" in text
        or "\n" in text
        or not _is_encodable(text)
    ):
        raise ValueError("not one path component")
    return text


def check_path(text: str) -> str:
    """Check a path that the kernel accepts: not empty, no NUL, valid UTF-8."""
    if not text or len(text) > 4095 or not _is_encodable(text):
        raise ValueError("not a path")
    return text


def check_ctrl_group(text: str) -> str:
    """Check a ctrl_group as the kernel names it: `/` for the root one, else one component."""
    return text if text == "/" else check_component(text)


def check_group_prefix(text: str) -> str:
    """Check a prefix of group names: never empty,
    since we may remove each group with this prefix.
    """
    if (
        not text
        or len(text) > _PREFIX_LIMIT
        or text[0] not in _ALPHANUMERIC
        or text.strip(_ID_CHARACTERS)
    ):
        raise ValueError("not a group prefix")
    return text


def check_directory(text: str) -> str:
    """Check an absolute path without `.`, `..` and empty components, and cut slashes at its end."""
    path = text.rstrip("/")
    strays = "//" in path or "/./" in path + "/" or "/../" in path + "/"
    if not path.startswith("/") or strays or not _is_encodable(path):
        raise ValueError("not an absolute path")
    return path


def check_file(text: str) -> str:
    """Check the absolute path of a file, as check_directory does; or nothing."""
    if text and check_directory(text) != text:
        raise ValueError("not the absolute path of a file")
    return text


def check_node(text: str) -> str:
    """Check the name of a node, which may be that of Kubernetes; or nothing."""
    if len(text) > _NODE_LIMIT or not text.isprintable():
        raise ValueError(f"not a node's name: at most {_NODE_LIMIT} printable characters")
    return text


def check_label(text: str) -> str:
    """Check the name of a job's label, as Prometheus has them:
    `[A-Za-z_][A-Za-z0-9_]{0,63}`, and not `__` first.
    """
    if (
        len(text) > _LABEL_LIMIT
        or text[:2] in ("", "__")
        or "0" <= text[0] <= "9"
        or text.strip(_ALPHANUMERIC + "_")
    ):
        raise ValueError(
            f"not a label's name: 1 to {_LABEL_LIMIT} of A-Z a-z 0-9 _, no digit first, and no __"
        )
    return text


def check_mon_group(text: str) -> str:
    """Check the full path of a mon_group: `<root>/[<ctrl_group>/]mon_groups/<name>`.

    State files are root's, but a path that rmdir gets is checked all the same.
    """
    if check_directory(text) != text or text.split("/")[-2] != "mon_groups":
        raise ValueError("not the path of a mon_group")
    return text
