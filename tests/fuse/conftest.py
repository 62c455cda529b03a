"""A resctrl to work on for each test: the model behind FUSE."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.resctrlfs import Mounted, mounted
from tests.support.hook import PYZ, Hook, task

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator


@pytest.fixture
def resctrl(tmp_path: Path) -> Iterator[Mounted]:
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("needs root and /dev/fuse")
    with mounted(tmp_path) as resctrl:
        yield resctrl


@pytest.fixture
def hook(resctrl: Mounted, tmp_path: Path) -> Hook:
    assert PYZ.exists(), "python3 build.py makes the file that these tests run"
    return Hook(resctrl.root, tmp_path / "run")


@pytest.fixture
def init() -> Iterator[subprocess.Popen[bytes]]:
    with task() as process:
        yield process
