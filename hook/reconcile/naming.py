# SPDX-License-Identifier: Apache-2.0
"""Gives pods and containers on record their names back: a record that was rebuilt from the kernel has none."""

from __future__ import annotations

from hook.base import system
from hook.base.names import container_of
from hook.node import config
from hook.state.lives import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hook.base.models import KeyState
    from hook.reconcile.plan import Action
    from hook.reconcile.survey import Survey
    from hook.stages.context import Context


def find_names(states: Iterable[KeyState]) -> dict[str, KeyState]:
    """The records of live pods that lack names which the kubelet knows, as they are with these names; by key.

    The kubelet's logs are listed only if some live pod, or a container of one, has no name.
    """
    live = (it for it in states if it.kind == "pod" and it.members and not it.recovering and it.completed_at is None)
    nameless = [it for it in live if it.pod_name is None or _has_nameless(it)]
    pods = config.read_pod_names() if any(it.pod_name is None for it in nameless) else {}
    containers = config.read_container_names() if any(map(_has_nameless, nameless)) else {}
    if not pods and not containers:
        return {}
    filled = ((it, _fill(it, pods.get(it.key, (None, None)), containers)) for it in nameless)
    return {it.key: named for it, named in filled if named != it}


def _has_nameless(state: KeyState) -> bool:
    """Whether a container of a pod has no name."""
    return any(it.name is None for it in state.members.values())


def name(context: Context, action: Action, seen: Survey) -> bool:
    """Give a pod and its containers the names that they still lack. Returns whether there were any."""
    found = seen.named[action.key]
    with context.run.lock(action.key, system.monotonic()) as locked:
        if locked.state is None:
            return False
        containers = {container_of(it): member.name for it, member in found.members.items()}
        before = locked.state
        locked.commit(_fill(before, (found.pod_namespace, found.pod_name), containers))
        return locked.state != before


def _fill(state: KeyState, pod: tuple[str | None, str | None], containers: Mapping[str, str | None]) -> KeyState:
    """The record with these names, where it has none."""
    namespace, name = pod if state.pod_name is None else (state.pod_namespace, state.pod_name)
    members = {
        it: replace(member, name=member.name or containers.get(container_of(it)))
        for it, member in state.members.items()
    }
    return replace(state, pod_namespace=namespace, pod_name=name, members=members)
