"""The createRuntime hooks that CDI devices bring: CRI-O has them run after those of hooks.d, ours among them.

Source: the Container Device Interface's SPEC.md: files in JSON or YAML, `containerEdits` of all devices and of each.
"""

from __future__ import annotations

import json
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
_ENDINGS = (".json", ".yaml", ".yml")
# `key: value` of a YAML mapping in block style, and whether it begins an item of a list. Python has no reader of YAML.
_LINE = re.compile(r"""^\s*(-\s+)?["']?(\w+)["']?\s*:\s*["']?([^"'#]*?)["']?\s*(?:#.*)?$""")


def hooks() -> list[tuple[str, str]]:
    """The file and the program of each createRuntime hook, none twice. What cannot be read brings none."""
    names = (f"{directory}/{name}" for directory in DIRECTORIES for name in _listed(directory))
    return [(path, program) for path in names for program in dict.fromkeys(_programs(path))]


def _listed(directory: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if name.endswith(_ENDINGS))
    except OSError:
        return []


def _programs(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return []
    try:
        items = _in_json(json.loads(text))
    except (ValueError, RecursionError):
        items = _in_yaml(text)
    return [it["path"] for it in items if it.get("hookName") == "createRuntime" and isinstance(it.get("path"), str)]


def _in_json(found: Any) -> list[dict[str, Any]]:  # noqa: ANN401  whatever stands there
    """The hooks of a file."""
    if not isinstance(found, dict):
        return []
    edits = [it.get("containerEdits") for it in [found, *_list(found.get("devices"))] if isinstance(it, dict)]
    return [it for edit in edits if isinstance(edit, dict) for it in _list(edit.get("hooks")) if isinstance(it, dict)]


def _list(found: Any) -> list[Any]:  # noqa: ANN401  as above
    return found if isinstance(found, list) else []


def _in_yaml(text: str) -> list[dict[str, Any]]:
    """What stands in items of lists: the hooks, and others that have no hookName."""
    items: list[dict[str, Any]] = [{}]
    for line in text.splitlines():
        if found := _LINE.match(line):
            if found[1]:
                items.append({})
            items[-1].setdefault(found[2], found[3])
    return items
