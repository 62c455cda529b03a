# SPDX-License-Identifier: Apache-2.0
"""The model through a real mount: how tests control and read it, and that nothing is left behind.

`kernel/test_model_is_kernel.py` shows through such a mount that files and directories behave as the kernel's do.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest

from tests.resctrlfs import Mounted, mounted
from tests.support.waiting import reaper

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no /dev/fuse"),
]

SLEEPER = [sys.executable, "-c", "import sys; sys.stdin.read()"]


@pytest.fixture
def resctrl(tmp_path: Path) -> Iterator[Mounted]:
    with mounted(tmp_path) as handle:
        yield handle


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEPER, stdin=subprocess.PIPE) as process:
        yield process


def outcome(action: Callable[[], object]) -> str:
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def put(group: Path, data: str) -> int:
    """One write(2), as the hook does it."""
    fd = os.open(group / "tasks", os.O_WRONLY)
    try:
        return os.write(fd, data.encode())
    finally:
        os.close(fd)


def mounts() -> str:
    return Path("/proc/self/mounts").read_text()


def test_events_tell_what_a_pid_was(resctrl: Mounted, sleeper: subprocess.Popen[bytes]) -> None:
    group = resctrl.root / "mon_groups" / "x"
    group.mkdir()
    put(group, f"{sleeper.pid}")
    assert outcome(lambda: put(group, "4194304")) == "ESRCH"
    group.rename(group.with_name("y"))
    group.with_name("y").rmdir()
    events = resctrl.events()
    assert [(event.op, event.path, event.result) for event in events] == [
        ("mkdir", "/mon_groups/x", "ok"),
        ("tasks", "/mon_groups/x/tasks", "ok"),
        ("tasks", "/mon_groups/x/tasks", "ESRCH"),
        ("rename", "/mon_groups/x", "ok"),
        ("rmdir", "/mon_groups/y", "ok"),
    ]
    assert events[3].to == "/mon_groups/y"
    assert {event.writer_pid for event in events} == {threading.get_native_id()}
    assert {event.writer_comm for event in events} == {Path("/proc/self/comm").read_text().strip()}
    assert [event.ns for event in events] == sorted(event.ns for event in events)
    (seen,) = events[1].pids
    assert (seen.pid, seen.cmdline) == (sleeper.pid, SLEEPER)
    assert seen.exe == os.path.realpath(sys.executable)
    assert seen.state in tuple("RSD")
    assert seen.starttime == int(Path(f"/proc/{sleeper.pid}/stat").read_text().rpartition(")")[2].split()[19])
    assert events[2].pids[0].state is None


def test_nothing_is_left_when_a_test_fails(tmp_path: Path) -> None:
    kept: list[tuple[Mounted, int]] = []

    def fails() -> None:
        with mounted(tmp_path) as resctrl:
            kept.append((resctrl, os.open(resctrl.root / "mon_data", os.O_RDONLY)))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    ((resctrl, fd),) = kept
    os.close(fd)
    assert str(tmp_path) not in mounts()
    assert resctrl.process.returncode == 0


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


def test_a_mount_that_cannot_be_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="did not mount"):
        Mounted(tmp_path, counters="absent")
    assert "counters must be one of" in capfd.readouterr().err
