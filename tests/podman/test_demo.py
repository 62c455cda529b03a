# SPDX-License-Identifier: Apache-2.0
"""The demo: it ends well, on two screens, leaves nothing, and tells when the hook does not work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.containers import HOOK, REPOSITORY, missing


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A TMPDIR that Podman does not find too long, so that what the demo leaves can be seen."""
    with tempfile.TemporaryDirectory(prefix="rmh-t-", dir="/tmp") as directory:
        yield Path(directory)


def run_demo(short_path: Path, hook: Path) -> subprocess.CompletedProcess[str]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    return subprocess.run(
        [sys.executable, "-m", "tests.demo"],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(short_path), "RESCTRL_MON_HOOK_PYZ": str(hook)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


def test_demo_ends_well_and_clean(short_path: Path) -> None:
    done = run_demo(short_path, HOOK)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert len(lines) <= 48
    assert max(map(len, lines)) <= 120
    assert "\033" not in done.stdout
    assert len(re.findall(r"put in as runc:\[2:INIT\]", done.stdout)) == 5 + 4 + 2
    assert list(short_path.iterdir()) == []
