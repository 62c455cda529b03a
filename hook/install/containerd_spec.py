# SPDX-License-Identifier: Apache-2.0
"""Adds our hook to a base_runtime_spec, the specification with which containerd begins each container of a runtime.

Source: config.md of the OCI runtime specification (hooks), and containerd's docs/cri/config.md (base_runtime_spec).
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STAGES = ("createRuntime", "poststop")
# What `ctr oci spec` prints. containerd drops it from its own specification (containerd/cri#515) but not from a
# base_runtime_spec, where it would limit every container to 1024 open files.
_RLIMITS_OF_CTR = [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}]


def add_hook(spec: object, hook: dict[str, Any]) -> dict[str, Any]:
    """A specification from `ctr oci spec` with this hook at both stages. Raises ValueError for an invalid one.

    Our hook goes first, because runc ends a stage at the first hook that fails. It replaces an earlier one of ours. The
    limit on open files stays what it is without a base_runtime_spec.
    """
    if not isinstance(spec, dict) or not isinstance(spec.get("ociVersion"), str):
        raise ValueError("stdin is not an OCI runtime specification (ociVersion: missing)")
    hooks = spec.get("hooks") or {}
    if not isinstance(hooks, dict):
        raise ValueError("hooks: not an object")
    ours = {stage: [hook, *_list_others(hooks, stage, hook)] for stage in STAGES}
    return {**_drop_rlimits_of_ctr(spec), "hooks": {**hooks, **ours}}


def _drop_rlimits_of_ctr(spec: dict[str, Any]) -> dict[str, Any]:
    process = spec.get("process")
    if not isinstance(process, dict) or process.get("rlimits") != _RLIMITS_OF_CTR:
        return spec
    return {**spec, "process": {name: value for name, value in process.items() if name != "rlimits"}}


def _list_others(hooks: dict[str, Any], stage: str, hook: dict[str, Any]) -> list[Any]:
    found = hooks.get(stage) or []
    if not isinstance(found, list) or not all(isinstance(it, dict) and isinstance(it.get("path"), str) for it in found):
        raise ValueError(f"hooks.{stage}: not a list of hooks with a path")
    return [it for it in found if os.path.basename(it["path"]) != os.path.basename(hook["path"])]
