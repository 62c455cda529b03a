# SPDX-License-Identifier: Apache-2.0
"""Finds the key that a person names: by its key, its pod, a container's ID or name, or the beginning of one of them."""

from __future__ import annotations

from hook.base import names
from hook.base.models import Failure, Index, KeyState
from hook.base.text import who
from hook.cli.status import Usage
from hook.node import config
from hook.observe import snapshot
from hook.state.records import Broken, Records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hook.base.resctrl import Resctrl

_MOST = 5  # names in a message


def find_key(records: Records, kernel: Resctrl, name: str) -> snapshot.Key:
    """The key with this name, or with the only name that begins so. Otherwise raises Usage, with what there is."""
    found = _find(records, name)
    if len(found) > 1:
        more = ", ..." if len(found) > _MOST else ""
        raise Usage(f"{len(found)} keys match {name[:80]!r}: {', '.join(list(found.values())[:_MOST])}{more}")
    only = next(iter(found), "")
    key = snapshot.read_key(records, kernel, only, records.state(only)) if found else None
    if isinstance(key, Broken):
        raise Usage(f"{key.file}: {key.problem}")
    if key is None:
        raise Usage(_explain_unknown(records, name))
    return key


def _find(records: Records, name: str) -> dict[str, str]:
    """The keys that a name stands for, each with what it is called: those whose name it is, else that begin so."""
    known = records.names(KeyState)
    if not name:
        return {}
    if name in known:
        return {name: name}
    try:
        index = records.glance(Index, names.container_id(name))
    except ValueError:  # a pod's name, for one
        index = None
    if index is not None:
        return {index.key: index.key}
    states = {key: records.state(key) for key in known}
    given = config.read_podman_names()
    called = [(key, text) for key, state in states.items() for text in _list_names(key, state, given)]
    # The beginning counts only for what no name is whole.
    matching = [key for key, text in called if text == name] or [key for key, text in called if text.startswith(name)]
    return {key: _describe(key, states[key]) for key in dict.fromkeys(matching)}


def _list_names(key: str, state: KeyState | Broken | None, given: dict[str, str]) -> Iterator[str]:
    """What a key can be called."""
    yield key
    if not isinstance(state, KeyState):
        return
    if state.pod_name:
        yield state.pod_name
        yield f"{state.pod_namespace}/{state.pod_name}"
    for container, member in state.members.items():
        yield container
        yield from filter(None, (member.name, given.get(container)))
    if key in given:
        yield given[key]


def _describe(key: str, state: KeyState | Broken | None) -> str:
    return who(key, state.pod_namespace, state.pod_name) if isinstance(state, KeyState) else key


def _explain_unknown(records: Records, name: str) -> str:
    failure = records.failure(name)
    if isinstance(failure, Failure):
        return f"container {name} has no key: {failure.reason}: {failure.problem}"
    return f"no key, pod or container matches {name[:80]!r}"
