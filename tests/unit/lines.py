# SPDX-License-Identifier: Apache-2.0
"""Lines of the history, as hooks write them, and its files as rotation leaves them."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

FILE = Path("/var/log/resctrl-mon-hook/history.jsonl")
NOW = 1_795_000_000.0
"""2026-11-18T11:06:40Z"""


def make(number: int, name: str | None = None, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    """A job as hooks write it: one of Podman's containers, if nothing else is said."""
    container = f"{number:012x}" + 52 * "a"
    return {
        "version": 1,
        "id": f"{number:016x}",
        "node": "n1",
        "written": "2026-11-17T01:02:03.000001Z",
        "kind": "container",
        "key": container,
        "namespace": None,
        "pod": None,
        "labels": {},
        "containers": [{"id": container, "name": name}],
        "more_containers": 0,
        "begin": "2026-11-17T01:00:00Z",
        "end": "2026-11-17T01:02:03Z",
        "seconds": 12.5,
        "runs": 1,
        "use": {"core_energy": 2.5, "mbm_total_bytes": 1024},
        "unknown": [],
        "late_cpu_seconds": 0.0,
        "reason": None,
        **fields,
    }


def make_pod(number: int, namespace: str, name: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    return make(number, "app", kind="pod", namespace=namespace, pod=name, **fields)


def line(job: dict[str, Any]) -> bytes:
    return json.dumps(job).encode() + b"\n"


def write_lines(name: str, content: bytes, *, at: float = NOW) -> None:
    path = FILE.parent / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    os.utime(path, (at, at))
