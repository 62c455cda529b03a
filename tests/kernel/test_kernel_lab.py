# SPDX-License-Identifier: Apache-2.0
"""A guest says how its command went, and nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel import kernel
from tests.kernel.kernel import CannotBuild
from tests.kernel.vm import ROOT, Vm, run_in_guest


@pytest.fixture
def booted() -> None:
    """For what boots a guest of its own."""
    try:
        kernel.ready()
    except CannotBuild as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("booted")
def test_nothing_is_left_when_the_caller_is_killed(tmp_path: Path) -> None:
    """The command says a word, which its caller passes on; then the caller is killed, and we wait for the silence."""
    command = [sys.executable, "-m", "tests.kernel.lab", "run", "--", "echo ready; sleep 1000"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == b"ready\n"
        assert list(tmp_path.iterdir()) != []
        caller.send_signal(signal.SIGKILL)
        assert caller.stdout.read() == b"", "the guard had it open until now"
    assert list(tmp_path.iterdir()) == []
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in read(path)]


@pytest.mark.usefixtures("booted")
def test_status_output_and_knobs(capfd: pytest.CaptureFixture[str]) -> None:
    text = "cat /sys/fs/resctrl/info/L3_MON/num_rmids; cat /sys/fs/resctrl/mon_groups/x/mon_hw_id; pwd >&2; exit 124"
    assert run_in_guest(f"mkdir /sys/fs/resctrl/mon_groups/x; {text}", Vm(rmids=6, mount_options="debug")) == 124
    assert capfd.readouterr() == ("7\n1\n", f"{Path.cwd()}\n")


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
