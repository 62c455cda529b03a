# SPDX-License-Identifier: Apache-2.0
"""Reads the createRuntime hooks of CDI devices. CRI-O runs them after those of hooks.d, so after ours.

Source: the Container Device Interface's SPEC.md: files in JSON or YAML, `containerEdits` of all devices and of each.
"""

from __future__ import annotations

import re

from hook.base import jsontext
from hook.host import door
from hook.host.door import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
_ENDINGS = (".json", ".yaml", ".yml")
# `key: value` of a YAML mapping in block style, and the `-` of a list item. Python has no YAML parser.
_LINE = re.compile(r"""^\s*(-\s+)?["']?(\w+)["']?\s*:\s*["']?([^"'#]*?)["']?\s*(?:#.*)?$""")


def list_hooks() -> list[tuple[str, str]]:
    """The file and the program of each createRuntime hook, without duplicates. Skips unreadable files."""
    names = (f"{directory}/{name}" for directory in DIRECTORIES for name in _list_files(directory))
    return [(path, program) for path in names for program in dict.fromkeys(_read_programs(path))]


def _list_files(directory: str) -> list[str]:
    try:
        return [name for name in door.list_names(directory) if name.endswith(_ENDINGS)]
    except Unreadable:
        return []


def _read_programs(path: str) -> list[str]:
    try:
        text = door.read_text(path, door.CONFIGURATION)
    except Unreadable:
        return []
    try:
        items = _find_in_json(jsontext.loads(text))
    except ValueError:
        items = _find_in_yaml(text)
    return [it["path"] for it in items if it.get("hookName") == "createRuntime" and isinstance(it.get("path"), str)]


def _find_in_json(found: Any) -> list[dict[str, Any]]:  # noqa: ANN401  any JSON
    """The hooks of a file."""
    if not isinstance(found, dict):
        return []
    edits = [it.get("containerEdits") for it in [found, *_as_list(found.get("devices"))] if isinstance(it, dict)]
    return [
        it for edit in edits if isinstance(edit, dict) for it in _as_list(edit.get("hooks")) if isinstance(it, dict)
    ]


def _as_list(found: Any) -> list[Any]:  # noqa: ANN401  as above
    return found if isinstance(found, list) else []


def _find_in_yaml(text: str) -> list[dict[str, Any]]:
    """The list items: the hooks, and others without hookName."""
    items: list[dict[str, Any]] = [{}]
    for line in text.splitlines():
        if found := _LINE.match(line):
            if found[1]:
                items.append({})
            items[-1].setdefault(found[2], found[3])
    return items
