# SPDX-License-Identifier: Apache-2.0
"""Which hooks a container gets, by the matcher of hooks.d that CRI-O, Podman and the NRI hook-injector share (main.go).

    with closing(Matcher()) as matcher:
        matcher.ask([directory], {"key": "value"}, "/bin/sh")  # {"poststop": [{"path": ..., "args": [...]}]}

Raises debian.CannotMake where it cannot be built.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

from tests.support import newest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

Hooks = dict[str, list[dict[str, Any]]]


class Refused(Exception):
    """What its readers have against the files or the container; then no file counts, and usually nothing starts."""


class Matcher:
    """A process that answers, thousands of questions a second."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [newest.program("matcher")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def ask(
        self,
        directories: Sequence[Path],
        annotations: Mapping[str, str],
        command: str,
        *,
        has_bind_mounts: bool = False,
    ) -> Hooks:
        """The hooks by stage, in the order in which they run. A later directory's file replaces its namesake."""
        question = {
            "directories": [str(path) for path in directories],
            "annotations": dict(annotations),
            "args": [command],
            "bindMounts": has_bind_mounts,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise Refused(answer["error"])
        hooks: Hooks = answer["hooks"]
        return hooks

    def close(self) -> None:
        """stdin's end is its own."""
        self._process.communicate()
