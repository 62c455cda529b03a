# SPDX-License-Identifier: Apache-2.0
"""Reads the names of Podman's containers, which no hook is told, from its storage.

Source: containers/storage, `containers.json` and `volatile-containers.json` (containers that a reboot removes).
"""

from __future__ import annotations

from hook.node import door, runtime_config
from hook.node.door import Unreadable

_FILES = ("containers.json", "volatile-containers.json")
_LIMIT = 64 << 20
_INFRA = "-infra"  # the end of the name of the container that holds a pod's namespaces


def read_names() -> dict[str, str]:
    """The name of each container by its ID; a pod's own container has the name of the pod. Skips unreadable files."""
    found: dict[str, str] = {}
    for path in _list_files():
        try:
            listed = door.read_json(path, _LIMIT)
        except Unreadable:
            continue
        for it in listed if isinstance(listed, list) else ():
            container, names = (it.get("id"), it.get("names")) if isinstance(it, dict) else (None, None)
            if isinstance(container, str) and isinstance(names, list) and names and isinstance(names[0], str):
                found[container] = names[0].removesuffix(_INFRA)
    return found


def _list_files() -> list[str]:
    """There is a directory for each storage driver that was ever used."""
    root = runtime_config.read_podman_graph_root()
    try:
        drivers = [name for name in door.list_names(root) if name.endswith("-containers")]
    except Unreadable:
        return []
    return [f"{root}/{driver}/{name}" for driver in drivers for name in _FILES]
