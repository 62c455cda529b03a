# SPDX-License-Identifier: Apache-2.0
"""Decides like a reader of hooks.d whether one container gets the hook.

The container is described by its OCI state, as hooks get it on stdin, or by its bundle's config.json.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from hook.base import cgroups, jsontext
from hook.base.errors import HookError
from hook.base.models import Annotations, HookProgram
from hook.host import door, hooksd, runtime_config
from hook.host.door import Unreadable
from hook.host.hooksd import Entry, Subject
from hook.host.paths import PROGRAM
from hook.stages import identity
from hook.stages.context import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from hook.host.door import Tree

INJECTOR = "the NRI hook-injector"
RESTART_COUNT = "io.kubernetes.container.restartCount"
_SENT = "io.kubernetes.cri-o.Annotations"
# Bind mounts that runtimes add to each container: hasBindMounts ignores them.
_OWN_MOUNTS = ("/dev", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/proc", "/run/.containerenv", "/sys")


@dataclass(frozen=True)
class Container:
    """A container. `reader`: the program that reads hooks.d for it; `remark`: an assumption about its annotations.

    `given`: the arguments of each call of our hook that is already in its config.json. `places`: the cgroup that it
    asks for, as in procfs.cgroups; none if it leaves that to the runtime. `is_whole`: whether the subject has the pod's
    own annotations. They win over the container's when hooks.d is matched, but not in its config.json.
    """

    container: str
    reader: str
    directories: Sequence[str]
    subject: Subject
    annotations: dict[str, str] = field(default_factory=dict)
    remark: str = ""
    given: Sequence[Sequence[str]] = ()
    places: Sequence[str] = ()
    is_whole: bool = True

    @property
    def remedy(self) -> str:
        """What to do if no file matches the container."""
        if self.reader == "Podman" or RESTART_COUNT in self.subject.annotations:
            return "see the lines above; run install --for=both"
        return f"only the kubelet sets {RESTART_COUNT}; with crictl, set it in the container's configuration"


@dataclass(frozen=True)
class Verdict:
    """A file of hooks.d, and why it does not match the container; None if it matches.

    `unless`: an unknown condition under which it would not.
    """

    entry: Entry
    why_not: str | None
    unless: str = ""


def read_container(path: str, directories: Sequence[str] = (), files: Tree = door.HOST) -> Container:
    """Read a container from a file. `directories`: instead of its reader's. Raises OSError, ValueError."""
    found = files.read_json(path, door.BUNDLE)
    if not isinstance(found, dict):
        raise ValueError(f"{path} is neither an OCI state nor a config.json")
    config = _read_config(found)
    annotations = _read_annotations(found) or _read_annotations(config)
    place = _find_cgroup(config)
    container = str(found.get("id") or cgroups.container_id(place or "") or "")
    maker = identity.maker(place, container) if place is not None and container else None
    by = maker or annotations.get("io.container.manager")
    seen, remark, is_whole = annotations, "", True
    if by == "libpod":
        reader, usual = "Podman", runtime_config.read_podman_hooks_dirs()
    elif by == "cri-o":
        reader, usual = "CRI-O", runtime_config.read_crio_hooks_dirs()
        bundle = str(found.get("bundle") or os.path.dirname(path))
        seen, remark, is_whole = _merge_crio_annotations(annotations, bundle, container)
    else:
        reader, usual = INJECTOR, list(hooksd.READERS)
        if any(key.startswith("io.kubernetes.cri.") for key in annotations):
            seen, is_whole = {RESTART_COUNT: "0", **annotations}, False
            remark = f"containerd does not pass on the kubelet's annotations: assuming {RESTART_COUNT} (containers of "
            remark += "crictl lack it and get no hook), and no conflicting annotation of the pod"
    arguments = (config.get("process") or {}).get("args") or [None]
    subject = Subject(seen, arguments[0], any(_is_bind_mount(it) for it in config.get("mounts") or []))
    return Container(
        container,
        reader,
        list(directories) or usual,
        subject,
        annotations,
        remark=remark,
        given=_list_given(config),
        places=[place] if place is not None else [],
        is_whole=is_whole,
    )


def list_calls(path: str, files: Tree = door.HOST) -> Sequence[Sequence[str]]:
    """The arguments of each call of our hook in a config.json. Raises OSError, ValueError."""
    return read_container(path, files=files).given


def match_files(container: Container) -> list[Verdict]:
    """Match each file that its reader uses, in the order of their hooks. Raises OSError."""
    verdicts = []
    for entry in hooksd.merge_directories(container.directories):
        if entry.file is None:
            verdicts.append(Verdict(entry, entry.problem or entry.remark))
        elif not os.path.exists(entry.file.hook.path):
            verdicts.append(Verdict(entry, entry.remark))
        else:
            keys = [] if container.is_whole else hooksd.list_value_patterns(entry.file)
            unless = f"unless the pod's own annotations have another value for {', '.join(keys)}" if keys else ""
            verdicts.append(Verdict(entry, hooksd.find_mismatch(entry.file, container.subject), unless))
    return verdicts


def describe_effect(container: Container, arguments: Sequence[str]) -> str:
    """What our hook, called with these arguments, does with the container."""
    options, problems = parse(list(arguments[2:]))
    annotations = Annotations.model_validate(container.annotations)
    pod = identity.pod_of(container.container or "?", annotations, list(container.places))
    if not identity.concerns(options, is_podmans=pod.is_podmans):
        return f"ignored, because of --containers={options.containers}: another file is for it"
    try:
        key = identity.key_of(options.key, container.container, annotations, pod)
    except HookError as error:
        return f"not monitored: {error}"
    if not identity.is_wanted(options, container.annotations, pod):
        return "not monitored: excluded by --namespace, --annotation or --monitor"
    wrong = f"; {pod.problem.problem}" if pod.problem is not None and key.kind == "pod" else ""
    wrong += f"; ignored: {'; '.join(problems)}" if problems else ""
    return f"monitored as {key.kind} {key.name or '(by its ID)'}{wrong}"


def _read_config(found: dict[str, Any]) -> dict[str, Any]:
    """The config.json: the given object, or that of the state's bundle; empty if it is unreadable."""
    if "process" in found or "status" not in found:
        return found
    try:
        config = door.read_json(f"{found.get('bundle')}/config.json", door.BUNDLE)
    except Unreadable:
        return {}
    return config if isinstance(config, dict) else {}


def _list_given(config: dict[str, Any]) -> list[list[str]]:
    hooks = [HookProgram.model_validate(it) for it in (config.get("hooks") or {}).get("createRuntime") or []]
    return [it.args or [] for it in hooks if os.path.basename(it.path) == PROGRAM]


def _read_annotations(found: dict[str, Any]) -> dict[str, str]:
    annotations = found.get("annotations")
    if not isinstance(annotations, dict):
        return {}
    return {key: value for key, value in annotations.items() if isinstance(value, str)}


def _find_cgroup(config: dict[str, Any]) -> str | None:
    """The cgroup that the container is to be made in."""
    path = (config.get("linux") or {}).get("cgroupsPath")
    return cgroups.from_config(path) if isinstance(path, str) else None


def _merge_crio_annotations(
    annotations: dict[str, str], bundle: str, container: str
) -> tuple[dict[str, str], str, bool]:
    """The annotations that CRI-O matches, an assumption about them, and whether they include the pod's.

    CRI-O merges the kubelet's annotations of the container and of the pod; the pod's win. The pod's are in the
    config.json of its sandbox, whose bundle is beside the container's.
    """
    try:
        sent = _parse_object(annotations[_SENT])
    except (KeyError, ValueError):
        remark = "the file lacks the kubelet's annotations: using CRI-O's own, which CRI-O does not match"
        return annotations, remark, False
    sandbox = annotations.get("io.kubernetes.cri-o.SandboxID", "")
    try:
        config = door.read_json(f"{bundle.replace(container, sandbox)}/config.json", door.BUNDLE)
        of_pod = _parse_object(_read_annotations(config)[_SENT])
    except (OSError, ValueError, KeyError, AttributeError):
        own = {key: text for key, text in annotations.items() if key.startswith(("io.kubernetes.", "io.container."))}
        of_pod = {key: text for key, text in annotations.items() if key not in own}
        remark = "cannot read the bundle of the pod's sandbox, which has the pod's annotations; these win"
        return {**of_pod, **sent}, remark, False
    return {**sent, **of_pod}, "", True


def _parse_object(text: str) -> dict[str, str]:
    found = jsontext.loads(text)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return {str(key): str(value) for key, value in found.items()}


def _is_bind_mount(mount: Any) -> bool:  # noqa: ANN401  any JSON
    if not isinstance(mount, dict):
        return False
    is_bind = mount.get("type") == "bind" or any(it in ("bind", "rbind") for it in mount.get("options") or [])
    place = str(mount.get("destination", ""))
    return is_bind and not any(place == own or place.startswith(own + "/") for own in _OWN_MOUNTS)
