# SPDX-License-Identifier: Apache-2.0
"""A resctrl to work on for each test: the model behind FUSE, or a real one.

Where RESCTRL_MON_HOOK_TEST_ROOT names a real one (in the guest of tests/kernel), `hook` works on that, cleaned of all
groups before and after. What needs the model itself, for its faults and its log of events, asks for `resctrl`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kernel.inside import REAL_ROOT, remove_groups
from tests.resctrlfs import Mounted, mounted
from tests.support.hook import PYZ, Hook, task

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator


@pytest.fixture
def resctrl(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mounted]:
    """The model, with the knobs that `pytest.mark.knobs` names."""
    marker = request.node.get_closest_marker("knobs")
    if REAL_ROOT is not None:
        pytest.skip("needs the model, and this resctrl is real")
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("needs root and /dev/fuse")
    with mounted(tmp_path, **(marker.kwargs if marker else {})) as resctrl:
        yield resctrl


@pytest.fixture
def resctrl_root(request: pytest.FixtureRequest) -> Iterator[Path]:
    if REAL_ROOT is None:
        model: Mounted = request.getfixturevalue("resctrl")
        yield model.root
    else:
        remove_groups(REAL_ROOT)
        yield REAL_ROOT
        remove_groups(REAL_ROOT)


@pytest.fixture
def hook(resctrl_root: Path, tmp_path: Path) -> Hook:
    assert PYZ.exists(), "python3 build.py makes the file that these tests run"
    return Hook(resctrl_root, tmp_path / "run")


@pytest.fixture
def init() -> Iterator[subprocess.Popen[bytes]]:
    with task() as process:
        yield process
