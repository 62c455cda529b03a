# SPDX-License-Identifier: Apache-2.0
"""Names keys and their containers for people, and in the labels of a key's metrics.

A usual start does not load this.
"""

from __future__ import annotations

from hook.validation import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.models import KeyState

    Names = tuple[str | None, str | None, str | None]


def name_key(state: KeyState, container: str = "") -> Names:
    """Return the names of a key, or of a container of it: the namespace,
    the pod and the container; None is unknown.

    Podman's pods have no namespace. Only a key that is one container has a container's name.
    """
    members = state.members
    if container:
        name = members[container].name if container in members else None
    elif state.kind == "container":
        name = state.name or next((member.name for member in members.values() if member.name), None)
    else:
        name = None
    return state.pod_namespace, state.pod_name, name


def read_metric_labels(state: KeyState) -> dict[str, str]:
    """Return the names in the labels of a key's metrics, empty ones too."""
    known = zip(("namespace", "pod", "container"), name_key(state))
    return state.labels or {label: name or "" for label, name in known}


def keep_metric_labels(before: KeyState, after: KeyState) -> KeyState:
    """Keep the labels of a key's metrics when it gets other names:
    one key is one series for as long as it exists.
    """
    labels = read_metric_labels(before)
    return after if read_metric_labels(after) == labels else replace(after, labels=labels)
