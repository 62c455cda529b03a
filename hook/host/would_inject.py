"""Would this container get the hook, and if not, why not? Answered as a reader of hooks.d does, for one container.

The container is told of by its state, as an OCI runtime gives it to hooks, or by its bundle's config.json.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field

from hook.base import cgroups
from hook.base.errors import HookError
from hook.base.models import Annotations, HookProgram
from hook.host import hooksd, runtime_config
from hook.host.hooksd import Entry, Subject
from hook.host.paths import PROGRAM
from hook.stages import identity
from hook.stages.context import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

INJECTOR = "the NRI hook-injector"
RESTART_COUNT = "io.kubernetes.container.restartCount"
_SENT = "io.kubernetes.cri-o.Annotations"
# What runtimes themselves bind into each container: not what hasBindMounts is about.
_OWN_MOUNTS = ("/dev", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/proc", "/run/.containerenv", "/sys")


@dataclass(frozen=True)
class Told:
    """What is known of a container. `reader`: who reads hooks.d for it; `remark`: what had to be assumed.

    `given`: the arguments of each call of our hook that stands in its config.json already, whoever put it there.
    `places`: its cgroups, as process.cgroups has them. `is_whole`: whether the subject has the pod's own annotations,
    which win over the container's where hooks.d is matched, but not in its config.json.
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
        """What to do about a container that no file is for."""
        if self.reader == "Podman" or RESTART_COUNT in self.subject.annotations:
            return "see above; install --for=both"
        return f"the kubelet annotates its containers with {RESTART_COUNT}; crictl's have it if you write it there"


@dataclass(frozen=True)
class Verdict:
    """A file of hooks.d, and why the container does not get its hook; None: it does.

    `unless`: what would keep it from that, and is not known here.
    """

    entry: Entry
    why_not: str | None
    unless: str = ""


def told(path: str, directories: Sequence[str] = ()) -> Told:
    """What a file tells of a container. `directories` instead of those that its reader has. OSError, ValueError."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        found = json.load(file)
    if not isinstance(found, dict):
        raise ValueError(f"{path}: neither a state nor a config.json")
    config = _config_of(found)
    annotations = _annotations(found) or _annotations(config)
    place = _place(config)
    container = str(found.get("id") or cgroups.container_id(place) or "")
    by = (identity.maker(place, container) if container else None) or annotations.get("io.container.manager")
    seen, remark, is_whole = annotations, "", True
    if by == "libpod":
        reader, usual = "Podman", runtime_config.of_podman()
    elif by == "cri-o":
        reader, usual = "CRI-O", runtime_config.of_crio()
        bundle = str(found.get("bundle") or os.path.dirname(path))
        seen, remark, is_whole = _seen_by_crio(annotations, bundle, container)
    else:
        reader, usual = INJECTOR, list(hooksd.READERS)
        if any(key.startswith("io.kubernetes.cri.") for key in annotations):
            seen, is_whole = {RESTART_COUNT: "0", **annotations}, False
            remark = f"containerd keeps the kubelet's annotations to itself: {RESTART_COUNT} is assumed (crictl's own "
            remark += "containers have none, and get no hook); so does it with the pod's, which win"
    arguments = (config.get("process") or {}).get("args") or [None]
    subject = Subject(seen, arguments[0], any(_is_bound(it) for it in config.get("mounts") or []))
    return Told(
        container,
        reader,
        list(directories) or usual,
        subject,
        annotations,
        remark=remark,
        given=_given(config),
        places=[place],
        is_whole=is_whole,
    )


def calls(path: str) -> Sequence[Sequence[str]]:
    """The arguments of each call of our hook in a config.json. Raises OSError, ValueError."""
    return told(path).given


def judge(container: Told) -> list[Verdict]:
    """Each file that its reader goes by, in the order in which hooks run. Raises OSError."""
    verdicts = []
    for entry in hooksd.effective(container.directories):
        if entry.file is None:
            verdicts.append(Verdict(entry, entry.problem or entry.remark))
        elif not os.path.exists(entry.file.hook.path):
            verdicts.append(Verdict(entry, entry.remark))
        else:
            keys = [] if container.is_whole else hooksd.valued(entry.file)
            unless = f"unless the pod's own annotations have another value for {', '.join(keys)}" if keys else ""
            verdicts.append(Verdict(entry, hooksd.why_not(entry.file, container.subject), unless))
    return verdicts


def becomes(container: Told, arguments: Sequence[str]) -> str:
    """What our hook, called with these arguments, makes of a container that gets it."""
    options, complaints = parse(list(arguments[2:]))
    said = Annotations.model_validate(container.annotations)
    pod = identity.pod_of(container.container or "?", said, list(container.places))
    if not identity.concerns(options, is_podmans=pod.is_podmans):
        return f"left to the file that is for it: --containers={options.containers}"
    try:
        key = identity.key_of(options.key, container.container, said, pod)
    except HookError as error:
        return f"not monitored: {error}"
    if not identity.is_wanted(options, container.annotations, pod):
        return "not monitored: --namespace, --annotation or --monitor leave it out"
    wrong = f"; {pod.problem.problem}" if pod.problem is not None and key.kind == "pod" else ""
    wrong += f"; ignored: {'; '.join(complaints)}" if complaints else ""
    return f"monitored as {key.kind} {key.name or '(by its ID)'}{wrong}"


def _config_of(found: dict[str, Any]) -> dict[str, Any]:
    """The config.json: what was given, or that of the state's bundle, as far as it is there."""
    if "process" in found or "status" not in found:
        return found
    try:
        with open(f"{found.get('bundle')}/config.json", encoding="utf-8", errors="surrogateescape") as file:
            config = json.load(file)
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _given(config: dict[str, Any]) -> list[list[str]]:
    hooks = [HookProgram.model_validate(it) for it in (config.get("hooks") or {}).get("createRuntime") or []]
    return [it.args or [] for it in hooks if os.path.basename(it.path) == PROGRAM]


def _annotations(found: dict[str, Any]) -> dict[str, str]:
    annotations = found.get("annotations")
    if not isinstance(annotations, dict):
        return {}
    return {key: value for key, value in annotations.items() if isinstance(value, str)}


def _place(config: dict[str, Any]) -> str:
    """The container's cgroup to be, from `linux.cgroupsPath`: a path, or systemd's `SLICE:MARK:ID`."""
    path = (config.get("linux") or {}).get("cgroupsPath")
    if not isinstance(path, str):
        return ""
    slices, mark, name = path.split(":") if path.count(":") == 2 else ("", "", "")
    return f":/{slices}/{mark}-{name}.scope" if name else f":/{path.strip('/')}"


def _seen_by_crio(annotations: dict[str, str], bundle: str, container: str) -> tuple[dict[str, str], str, bool]:
    """What CRI-O matches: what the kubelet sent of the container, under what it sent of the pod; and what lacks.

    The latter is in the config.json of the pod's sandbox, whose bundle lies beside the container's.
    """
    try:
        sent = _object(annotations[_SENT])
    except (KeyError, ValueError):
        remark = "what the kubelet sent is not in it: CRI-O's own keys are taken for that, which CRI-O does not"
        return annotations, remark, False
    sandbox = annotations.get("io.kubernetes.cri-o.SandboxID", "")
    try:
        with open(f"{bundle.replace(container, sandbox)}/config.json", encoding="utf-8") as file:
            of_pod = _object(_annotations(json.load(file))[_SENT])
    except (OSError, ValueError, KeyError, AttributeError):
        own = {key: text for key, text in annotations.items() if key.startswith(("io.kubernetes.", "io.container."))}
        of_pod = {key: text for key, text in annotations.items() if key not in own}
        remark = "the pod's annotations, which win, are in its sandbox's bundle, which cannot be read"
        return {**of_pod, **sent}, remark, False
    return {**sent, **of_pod}, "", True


def _object(text: str) -> dict[str, str]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("no object")
    return {str(key): str(value) for key, value in found.items()}


def _is_bound(mount: Any) -> bool:  # noqa: ANN401  whatever stands there
    if not isinstance(mount, dict):
        return False
    is_bind = mount.get("type") == "bind" or any(it in ("bind", "rbind") for it in mount.get("options") or [])
    place = str(mount.get("destination", ""))
    return is_bind and not any(place == own or place.startswith(own + "/") for own in _OWN_MOUNTS)
