"""Would this container get the hook, and if not, why not? Answered as a reader of hooks.d does, for one container.

The container is told of by its state, as an OCI runtime gives it to hooks, or by its bundle's config.json.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field

from hook import configured, hooksd, identity
from hook.errors import HookError
from hook.hooksd import Entry, Subject
from hook.models import Annotations, HookProgram
from hook.options import parse
from hook.places import PROGRAM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

INJECTOR = "the NRI hook-injector"
_BY_KUBELET = {"io.kubernetes.container.restartCount": "0"}
# What runtimes themselves bind into each container: not what hasBindMounts is about.
_OWN_MOUNTS = ("/dev", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/proc", "/run/.containerenv", "/sys")


@dataclass(frozen=True)
class Told:
    """What is known of a container. `reader`: who reads hooks.d for it; `remark`: what had to be assumed.

    `given`: the arguments of each call of our hook that stands in its config.json already, whoever put it there.
    """

    container: str
    reader: str
    directories: Sequence[str]
    subject: Subject
    annotations: dict[str, str] = field(default_factory=dict)
    remark: str = ""
    given: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class Verdict:
    """A file of hooks.d, and why the container does not get its hook; None: it does."""

    entry: Entry
    why_not: str | None


def told(path: str, directories: Sequence[str] = ()) -> Told:
    """What a file tells of a container. `directories` instead of those that its reader has. OSError, ValueError."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        found = json.load(file)
    if not isinstance(found, dict):
        raise ValueError(f"{path}: neither a state nor a config.json")
    config = _config_of(found)
    annotations = _annotations(found) or _annotations(config)
    manager = annotations.get("io.container.manager")
    seen, remark = annotations, ""
    if manager == "libpod":
        reader, usual = "Podman", configured.of_podman()
    elif manager == "cri-o":
        reader, usual = "CRI-O", configured.of_crio()
        seen, remark = _sent_to_crio(annotations)
    else:
        reader, usual = INJECTOR, list(hooksd.READERS)
        if any(key.startswith("io.kubernetes.cri.") for key in annotations):
            seen = {**_BY_KUBELET, **annotations}
            remark = "containerd keeps kubelet's own annotations to itself: restartCount is assumed, which all have"
    arguments = (config.get("process") or {}).get("args") or [None]
    subject = Subject(seen, arguments[0], any(_is_bound(it) for it in config.get("mounts") or []))
    container, reads = str(found.get("id", "")), list(directories) or usual
    return Told(container, reader, reads, subject, annotations, remark=remark, given=_given(config))


def judge(container: Told) -> list[Verdict]:
    """Each file that its reader goes by, in the order in which hooks run. Raises OSError."""
    verdicts = []
    for entry in hooksd.effective(container.directories):
        if entry.file is None:
            verdicts.append(Verdict(entry, entry.problem or entry.remark))
        elif not os.path.exists(entry.file.hook.path):
            verdicts.append(Verdict(entry, entry.remark))
        else:
            verdicts.append(Verdict(entry, hooksd.why_not(entry.file, container.subject)))
    return verdicts


def becomes(container: Told, arguments: Sequence[str]) -> str:
    """What our hook, called with these arguments, makes of a container that gets it."""
    options, complaints = parse(list(arguments[2:]))
    said = Annotations.model_validate(container.annotations)
    try:
        key = identity.key_of(options.key, container.container, said)
    except HookError as error:
        return f"not monitored: {error}"
    if not identity.is_wanted(options, container.annotations, identity.pod_of(said)):
        return "not monitored: --namespace, --annotation or --monitor leave it out"
    wrong = f"; ignored: {'; '.join(complaints)}" if complaints else ""
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


def _sent_to_crio(annotations: dict[str, str]) -> tuple[dict[str, str], str]:
    """CRI-O matches what kubelet sent, and none of the keys that it adds itself."""
    try:
        sent = json.loads(annotations["io.kubernetes.cri-o.Annotations"])
        return {str(key): str(value) for key, value in sent.items()}, ""
    except (KeyError, ValueError, AttributeError):
        return annotations, "what kubelet sent is not in it: CRI-O's own keys are taken for that, which CRI-O does not"


def _is_bound(mount: Any) -> bool:  # noqa: ANN401  whatever stands there
    if not isinstance(mount, dict):
        return False
    is_bind = mount.get("type") == "bind" or any(it in ("bind", "rbind") for it in mount.get("options") or [])
    place = str(mount.get("destination", ""))
    return is_bind and not any(place == own or place.startswith(own + "/") for own in _OWN_MOUNTS)
