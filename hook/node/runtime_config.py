# SPDX-License-Identifier: Apache-2.0
"""Reads the settings for hooks.d and RDT in the configuration files of CRI-O and Podman.

The files are TOML, which Python cannot parse before 3.11. These settings are strings and lists of strings on lines of
their own, and their names are unique, so regular expressions find them.
"""

from __future__ import annotations

import re

from hook.node import door, hooksd
from hook.node.door import Budget, Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_CRIO = ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*")
_PODMAN = (
    "/usr/share/containers/containers.conf",
    "/etc/containers/containers.conf",
    "/etc/containers/containers.conf.d/*.conf",
)
_STORAGE = ("/usr/share/containers/storage.conf", "/etc/containers/storage.conf")
_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
_TEXT = re.compile(r'"([^"]*)"|\'([^\']*)\'')


def read_crio_hooks_dirs(top: str = "") -> list[str]:
    """The hooks directories in CRI-O's configuration below `top`. A later one takes precedence."""
    return _read_hooks_dirs(_CRIO, top)


def read_podman_hooks_dirs(top: str = "") -> list[str]:
    """The same for Podman, without its option --hooks-dir."""
    return _read_hooks_dirs(_PODMAN, top)


def read_rdt_config_file() -> str | None:
    """The file by which CRI-O makes ctrl_groups, if any."""
    found = _read_settings(_CRIO, r'^\s*rdt_config_file\s*=\s*(["\'].*["\'])')
    texts = _split_texts(found[-1]) if found else []
    return texts[0] if texts and texts[0] else None


def read_podman_graph_root() -> str:
    """The directory in which rootful Podman keeps its containers."""
    found = _read_settings(_STORAGE, r'^\s*graphroot\s*=\s*(["\'].*["\'])')
    texts = _split_texts(found[-1]) if found else []
    return texts[0].rstrip("/") if texts and texts[0] else "/var/lib/containers/storage"


def _read_hooks_dirs(patterns: tuple[str, ...], top: str) -> list[str]:
    directories = [hooksd.SYSTEM]
    for value in _read_settings([top + pattern for pattern in patterns], r"^\s*hooks_dir\s*=\s*\[([^\]]*)\]"):
        texts = [text.rstrip("/") for text in _split_texts(value)]
        directories = [*directories, *texts] if re.search(r"append\s*=\s*true", value) else texts
    return directories


def _read_settings(patterns: Iterable[str], setting: str) -> list[str]:
    """The values of a setting; the last one takes precedence. Skips unreadable files."""
    found: list[str] = []
    for pattern in patterns:
        try:
            for path in door.match(pattern, Budget()):
                found += _read_file(path, setting)
        except Unreadable:
            continue
    return found


def _read_file(path: str, setting: str) -> list[str]:
    try:
        text = door.read_text(path, door.CONFIGURATION)
    except Unreadable:
        return []
    return re.findall(setting, _COMMENT.sub("", text), re.MULTILINE)


def _split_texts(value: str) -> list[str]:
    return [one or other for one, other in _TEXT.findall(value)]
