"""containerd's base_runtime_spec: a specification of which every container of a runtime begins, with our hooks in it.

Source: config.md of the OCI runtime specification (hooks), and containerd's docs/cri/config.md (base_runtime_spec).
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STAGES = ("createRuntime", "poststop")
# What `ctr oci spec` prints. containerd takes it out of the specification that it itself begins with
# (containerd/cri#515), and leaves it in a base_runtime_spec: there it would hold every container to 1024 open files.
_RLIMITS_OF_CTR = [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}]


def with_hook(spec: object, hook: dict[str, Any]) -> dict[str, Any]:
    """A specification, as `ctr oci spec` prints it, with this hook at both stages. ValueError: it is none.

    Ours goes before those of others, since runc ends a stage at the first hook that fails; in the place of one that was
    put there before. Containers get the limits on open files that they would have without it.
    """
    if not isinstance(spec, dict) or not isinstance(spec.get("ociVersion"), str):
        raise ValueError("this is no OCI runtime specification: it has no ociVersion")
    hooks = spec.get("hooks") or {}
    if not isinstance(hooks, dict):
        raise ValueError("hooks: it is no object")
    ours = {stage: [hook, *_others(hooks, stage, hook)] for stage in STAGES}
    return {**_without_rlimits_of_ctr(spec), "hooks": {**hooks, **ours}}


def _without_rlimits_of_ctr(spec: dict[str, Any]) -> dict[str, Any]:
    process = spec.get("process")
    if not isinstance(process, dict) or process.get("rlimits") != _RLIMITS_OF_CTR:
        return spec
    return {**spec, "process": {name: value for name, value in process.items() if name != "rlimits"}}


def _others(hooks: dict[str, Any], stage: str, hook: dict[str, Any]) -> list[Any]:
    found = hooks.get(stage) or []
    if not isinstance(found, list) or not all(isinstance(it, dict) and isinstance(it.get("path"), str) for it in found):
        raise ValueError(f"hooks.{stage}: it is no list of hooks, each with its path")
    return [it for it in found if os.path.basename(it["path"]) != os.path.basename(hook["path"])]
