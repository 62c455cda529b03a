# SPDX-License-Identifier: Apache-2.0
"""Starts of a .pyz by each CPython, whole or broken; and how many examples hypothesis makes."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from fetch import interpreters
from pyz import archive

ROOT = Path(__file__).resolve().parents[2]
FOUND = interpreters.find()
each_python = pytest.mark.parametrize(
    "python",
    # The newest one shows most; the others are for `build.py test --all`.
    [
        pytest.param(str(python.path), marks=[pytest.mark.slow] if python is not FOUND[-1] else [])
        for python in FOUND
    ],
    ids=[f"{python.version}" for python in FOUND],
)
ELSEWHERE = ("--run-dir=/proc/nowhere", "--resctrl-root=/proc/nowhere")
"""Options for a start of the program, so that it stays away from the node's own directories."""
MOST_OF_DEV = 20
"""So many examples has a property in `build.py test`, whose profile of hypothesis is "dev"."""


def examples(number: int, *quiet: HealthCheck) -> settings:
    """Settings for so many examples of a property,
    and with the profile "dev" for MOST_OF_DEV at most.
    """
    most = MOST_OF_DEV if settings.get_current_profile_name() == "dev" else number
    return settings(
        max_examples=min(number, most), suppress_health_check=[HealthCheck.too_slow, *quiet]
    )


def start(
    command: Sequence[str | Path], cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def broken(
    pyz: Path, data: bytes, name: str, *arguments: str | Path
) -> subprocess.CompletedProcess[str]:
    """What becomes of a hook whose file holds this."""
    path = pyz.with_name(name)
    path.write_bytes(data)
    path.chmod(0o755)
    return start([path, *(arguments or ("createRuntime",))])


def imported(pyz: Path, python: str, arguments: list[str]) -> set[str]:
    """What an interpreter looks for to import.

    Modules that the loader made at once are not among it.
    """
    return loaded(start([python, "-X", "importtime", "-ISc", archive.BOOT, pyz, *arguments]).stderr)


def loaded(importtime: str) -> set[str]:
    lines = [line for line in importtime.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines} - {"imported package"}
