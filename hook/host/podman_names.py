# SPDX-License-Identifier: Apache-2.0
"""Reads the names of Podman's containers, which no hook is told, from its storage.

Source: containers/storage, `containers.json` and `volatile-containers.json` (containers that a reboot removes).
"""

from __future__ import annotations

from hook.base import jsontext, system
from hook.host import runtime_config

_FILES = ("containers.json", "volatile-containers.json")
_LIMIT = 64 << 20
_INFRA = "-infra"  # the end of the name of the container that holds a pod's namespaces


def read_names() -> dict[str, str]:
    """The name of each container by its ID; a pod's own container has the name of the pod. Skips unreadable files."""
    found: dict[str, str] = {}
    for name in _FILES:
        try:
            listed = jsontext.loads(system.read_file(f"{_find_directory()}/{name}", _LIMIT))
            for it in listed:
                if isinstance(it["id"], str) and it["names"] and isinstance(it["names"][0], str):
                    found[it["id"]] = it["names"][0].removesuffix(_INFRA)
        except (OSError, ValueError, TypeError, KeyError, IndexError):
            continue
    return found


def _find_directory() -> str:
    return f"{runtime_config.read_podman_graph_root()}/overlay-containers"
