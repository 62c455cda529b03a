# SPDX-License-Identifier: Apache-2.0
"""Podman's names of a container and of its pod. Loaded for Podman's containers only.

A hook is not given them. Podman starts conmon, which starts the runtime, and gives it the
container's ID (`-c`) and name (`-n`). It makes the container's cgroup below one that is named after
the pod's ID. So no image and no process of a container decides them. Source: conmon(8);
libpod/oci_conmon_common.go and libpod/pod_internal.go of Podman.
"""

from __future__ import annotations

from hook import host, identity, names, rare, system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.identity import Container, Pod
    from hook.models import Options

_HEAD = 1 << 14  # bytes of conmon's command line: its paths and the name come first
_SHORT = {"-c": "cid", "-n": "name"}
_FLAGS = (
    "-e",
    "-i",
    "-s",
    "-t",
    "--api-version",
    "--exec",
    "--exec-attach",
    "--full-attach",
    "--leave-stdin-open",
    "--no-container-partial-message",
    "--no-new-keyring",
    "--no-pivot",
    "--no-sync-log",
    "--replace-listen-pid",
    "--stdin",
    "--sync",
    "--syslog",
    "--systemd-cgroup",
    "--terminal",
    "--version",
)
"""The options of conmon that take no value.

Podman writes a word after --api-version, which conmon ignores.
"""
POD_DIGITS = 12
"""The digits of a pod's ID by which Podman names it to people."""
_INFRA = "-infra"


def name_container(container: Container) -> None:
    """Add the names to a container that is being created: its own,
    and as its pod's the digits of the pod's ID.

    Only Podman knows the pod's name: `hook.node.naming` asks for it.
    """
    container.pod.container = identity.shorten(_read_name(container.id))
    container.pod.name = find_pod(container.places, container.id)


def leaves_out(options: Options, pod: Pod) -> bool:
    """Whether a container only holds the namespaces of its pod,
    so that with `--key=auto` it gets no RMID.

    Podman names it `<digits of the pod's ID>-infra`. The ID is random, and a name is
    given once: while that container exists, no other can have its name. With
    `--infra-name` it is not recognized.
    """
    return (
        options.key == "auto"
        and pod.is_podmans
        and pod.name is not None
        and pod.container == pod.name + _INFRA
    )


def find_pod(places: list[str], container: str) -> str | None:
    """Return the first digits of the ID of a container's pod, by the path of its cgroup,
    or None without such a pod.

    The cgroup above its own is `<ID>`, or `...libpod_pod_<ID>.slice` under systemd.
    `places`: as system.cgroups.
    """
    for place in places:
        own = names.find_own(place, container) or ""
        above = own.rpartition("/")[0].rpartition("/")[2]
        pod = above.removesuffix(".slice").rpartition("libpod_pod_")[2]
        if names.is_engine_id(pod):
            return pod[:POD_DIGITS]
    return None


def _read_name(container: str) -> str | None:
    """Return the name that Podman gave conmon, the parent of our parent,
    or None if no conmon has this container's ID.

    Only a process with our own namespaces is read: a process of a container could fill its
    command line at will, and make the read of it wait. Another process with conmon's pid
    is no parent of our parent.
    """
    try:
        conmon = _find_grandparent()
        for kind in ("pid", "mnt", "user"):
            if host.link_target(f"/proc/{conmon}/ns/{kind}") != host.link_target(
                f"/proc/self/ns/{kind}"
            ):
                return None
        options = _parse_options(rare.read_start(f"/proc/{conmon}/cmdline", _HEAD).split("\0"))
        if _find_grandparent() != conmon or options.get("cid") != container:
            return None
    except (OSError, ValueError, IndexError):  # it has just ended, or /proc cannot tell
        return None
    return options.get("name")


def _find_grandparent() -> int:
    """The pid of our parent's parent; 0, which no process has: our parent has ended."""
    fields = system.stat_fields(system.parent_id())
    return int(fields[1]) if fields is not None else 0


def _parse_options(words: list[str]) -> dict[str, str]:
    """The values of the options on a command line of conmon's,
    the last one of each, by the long name.

    The word after an option is its value, whatever it looks like: a user of Podman chooses some.
    Source: src/cli.c of conmon. An option that is not known here takes a value.
    """
    values: dict[str, str] = {}
    rest = iter(words[1:])
    for word in rest:
        if word == "--":
            break
        option, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if word.startswith("-") and option not in _FLAGS:
            values[_SHORT.get(option) or option[2:]] = value if equals else next(rest, "")
    return values
