# SPDX-License-Identifier: Apache-2.0
"""The demo: it ends well, on two screens, and leaves nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile

import pytest

from tests.support.containers import REPOSITORY, missing


def test_demo_ends_well_and_clean() -> None:
    """It has a TMPDIR that Podman does not find too long, so that what the demo leaves can be seen."""
    if reason := missing():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="rmh-t-", dir="/tmp") as directory:
        done = subprocess.run(
            [sys.executable, "-m", "tests.demo"],
            cwd=REPOSITORY,
            env={**os.environ, "TMPDIR": directory},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        assert os.listdir(directory) == []
    lines = done.stdout.splitlines()
    assert len(lines) <= 48
    assert max(map(len, lines)) <= 120
    assert "\033" not in done.stdout
    assert len(re.findall(r"put in as runc:\[2:INIT\]", done.stdout)) == 5 + 4 + 2
