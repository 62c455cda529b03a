# SPDX-License-Identifier: Apache-2.0
"""Starts a .pyz by each CPython, whole or broken."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pyz import archive
from tests.support import interpreters

ROOT = Path(__file__).resolve().parents[2]
FOUND = interpreters.find()
each_python = pytest.mark.parametrize("python", [str(it.path) for it in FOUND], ids=[f"{it.version}" for it in FOUND])


def start(
    command: Sequence[str | Path], cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False
    )


def broken(pyz: Path, data: bytes, name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """What becomes of a hook whose file holds this."""
    path = pyz.with_name(name)
    path.write_bytes(data)
    path.chmod(0o755)
    return start([path, *(arguments or ("createRuntime",))])


def imported(pyz: Path, python: str, arguments: list[str]) -> set[str]:
    """What an interpreter looks for to import. Modules that the loader made at once are not among it."""
    return loaded(start([python, "-X", "importtime", "-ISc", archive.BOOT, pyz, *arguments]).stderr)


def loaded(importtime: str) -> set[str]:
    lines = [line for line in importtime.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines} - {"imported package"}
