"""Whose container it is: the key that its use is charged to, and whether it is to be monitored at all.

Annotations come from the runtime, from kubelet and from the author of the pod. Which of them can be believed depends
on who wrote the state: CRI-O overrides what a pod's author says of CRI-O's own keys but lets containerd's keys through
unchanged, and containerd, where it is told to pass pod annotations on, does it the other way round.
"""

from __future__ import annotations

from hook import names
from hook.errors import HookError, Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.models import Annotations, Kind, Options

_MONITOR = "monitor.resctrl-mon.io"


class Key:
    """A key and its kind: `pod` (a pod UID), `container` or `sandbox` (container IDs)."""

    __slots__ = ("kind", "name")

    def __init__(self, name: str, kind: Kind) -> None:
        self.name = name
        self.kind = kind


class Pod:
    """What is known of the container's pod; fields are None where the state does not say."""

    __slots__ = ("container", "name", "namespace", "uid")

    def __init__(self, uid: str | None, namespace: str | None, name: str | None, container: str | None) -> None:
        self.uid = uid
        self.namespace = _dns_name(namespace)
        self.name = _dns_name(name)
        self.container = container


def _dns_name(text: str | None) -> str | None:
    """A name that Kubernetes could have given, by its length (RFC 1123): what is longer is not carried about."""
    return text if text and len(text) <= 253 else None


def pod_of(said: Annotations) -> Pod:
    """The pod, from the annotations of whoever made the state and from no other's.

    containerd's keys count even beside the others (it may pass a pod's own annotations through), but never under
    CRI-O, where a pod's author can write them.
    """
    if said.manager != "cri-o" and said.cri_sandbox_uid:
        return Pod(said.cri_sandbox_uid, said.cri_sandbox_namespace, said.cri_sandbox_name, said.cri_container_name)
    return Pod(said.pod_uid or None, said.pod_namespace, said.pod_name, said.container_name)


def key_of(mode: str, container: str, said: Annotations) -> Key:
    """The key of a container for `--key=auto|container|sandbox`.

    Raises HookError `bad_key` for a pod UID or sandbox ID that is none: charging it to anything else would be wrong.
    """
    if mode == "sandbox":
        try:
            return Key(names.container_id(said.sandbox_id or container), "sandbox")
        except ValueError:
            raise _bad_key("sandbox ID", said.sandbox_id) from None
    uid = pod_of(said).uid if mode == "auto" else None
    if uid is None:
        return Key(container, "container")
    try:
        return Key(names.pod_uid(uid), "pod")
    except ValueError:
        raise _bad_key("pod UID", uid) from None


def _bad_key(what: str, text: str | None) -> HookError:
    return HookError(
        Reason.BAD_KEY,
        f"the {what} in the annotations is none: {(text or '')[:80]!r}",
        hint="36 characters with dashes or 32 hex digits make a pod UID; --key=container does without it",
    )


def is_wanted(options: Options, annotations: dict[str, str], pod: Pod) -> bool:
    """Whether the filters and, where the administrator allows it, the pod's author want this container monitored."""
    if options.namespace and pod.namespace not in options.namespace:
        return False
    if not options.annotation.items() <= annotations.items():
        return False
    if options.monitor == "all":
        return True
    choice = _choice_of(annotations, pod.container)
    return choice == "true" if options.monitor == "opt-in" else choice != "false"


def _choice_of(annotations: dict[str, str], container: str | None) -> str | None:
    """`true` or `false` as the pod's author says, the container's own annotation before the pod's; else None."""
    own = annotations.get(f"{_MONITOR}/{container}") if container else None
    for value in (own, annotations.get(_MONITOR)):
        if value in ("true", "false"):
            return value
    return None
