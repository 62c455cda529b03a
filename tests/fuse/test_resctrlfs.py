# SPDX-License-Identifier: Apache-2.0
"""The model through a real mount: how tests control and read it, and that nothing is left behind.

`kernel/test_model_is_kernel.py` shows through such a mount that files and directories behave as the kernel's do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.resctrlfs import mounted
from tests.support.waiting import reaper

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no /dev/fuse"),
]


def mounts() -> str:
    return Path("/proc/self/mounts").read_text()


def test_nothing_is_left_when_the_server_is_killed(tmp_path: Path) -> None:
    with mounted(tmp_path) as resctrl:
        os.kill(resctrl.process.pid, signal.SIGKILL)
        resctrl.process.wait()
        assert str(tmp_path) in mounts()
    assert str(tmp_path) not in mounts()


def test_nothing_is_left_when_the_test_process_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from tests.resctrlfs import Mounted\n"
        "print(Mounted(Path(sys.argv[1])).process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).parents[2]
    with reaper():  # its orphan comes to us, so that we can wait for its end
        result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, cwd=root, capture_output=True)
        assert result.returncode == -signal.SIGKILL, result.stderr
        assert os.waitpid(int(result.stdout), 0)[1] == 0
    assert str(tmp_path) not in mounts()
