# SPDX-License-Identifier: Apache-2.0
"""Reads which hooks a config.json has: that of a container, or a base_runtime_spec of containerd."""

from __future__ import annotations

import os

from hook.base.models import HookProgram, ValidationError
from hook.node import door
from hook.node.door import Unreadable
from hook.node.paths import PROGRAM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hook.node.door import Tree


def read_hooks(path: str, files: Tree = door.HOST) -> dict[str, list[HookProgram]]:
    """The hooks of each stage. Raises Unreadable, also if its hooks are invalid. Source: runtime-spec, config.md."""
    return list_hooks(path, files.read_json(path, door.BUNDLE))


def read_programs(path: str, files: Tree = door.HOST) -> set[str]:
    """The programs of all hooks. Raises Unreadable."""
    return {hook.path for hooks in read_hooks(path, files).values() for hook in hooks}


def list_hooks(path: str, config: Any) -> dict[str, list[HookProgram]]:  # noqa: ANN401  any JSON
    """The same of a config.json that was read from this path."""
    try:
        stages = config.get("hooks") or {}
        return {stage: [HookProgram.model_validate(it) for it in found or []] for stage, found in stages.items()}
    except (AttributeError, TypeError, ValidationError) as error:
        raise Unreadable(path, f"invalid hooks: {error!r}") from None


def find_arguments(hooks: dict[str, list[HookProgram]]) -> list[list[str]]:
    """The arguments of each createRuntime hook that is ours."""
    return [it.args or [] for it in hooks.get("createRuntime", []) if os.path.basename(it.path) == PROGRAM]
