# SPDX-License-Identifier: Apache-2.0
"""For tests that can run in the guest, where resctrl is real:
RESCTRL_MON_HOOK_TEST_ROOT says there where it is.
"""

from __future__ import annotations

import errno
import os
import subprocess
import time
from pathlib import Path

from tests.support.hook import DEADLINE
from tests.support.waiting import wait

VARIABLE = "RESCTRL_MON_HOOK_TEST_ROOT"
REAL_ROOT = Path(os.environ[VARIABLE]) if VARIABLE in os.environ else None
NO_GROUPS = frozenset({"info", "mon_data", "mon_groups"})
SYSTEMD = Path("/lib/systemd/systemd")
LIMBO = 300.0  # seconds; only to end what hangs


def remove_groups(root: Path) -> None:
    """Bring a mounted resctrl back to what it is after mount: no group, and an RMID to be had."""
    for group in (root / "mon_groups").iterdir():
        group.rmdir()
    for path in root.iterdir():
        if path.is_dir() and path.name not in NO_GROUPS:
            path.rmdir()
    make_group(root / "mon_groups" / "probe")
    (root / "mon_groups" / "probe").rmdir()


def make_group(path: Path) -> None:
    """mkdir that waits while the RMIDs that are left are in limbo."""
    deadline = time.monotonic() + LIMBO
    while True:
        try:
            path.mkdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def fill(groups: Path) -> int:
    """Make groups until no RMID is left, in limbo neither; how many it took."""
    number = 0
    while True:
        try:
            make_group(groups / f"filler-{number}")
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return number
        number += 1


def pin(pid: int, package: int) -> None:
    """Let a task run on the CPUs of a package only."""
    ids = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/physical_package_id")
    os.sched_setaffinity(
        pid, {int(path.parts[-3][3:]) for path in ids if int(path.read_text()) == package}
    )


def systemctl(*words: str) -> str:
    """Return what systemctl prints, errors too."""
    done = subprocess.run(
        ["systemctl", *words], capture_output=True, text=True, check=False, timeout=DEADLINE
    )
    return (done.stdout + done.stderr).strip()


def wait_for_systemd() -> None:
    """Wait until systemd, which is PID 1, is up: the tests start beside it."""
    wait(lambda: systemctl("is-system-running") in ("running", "degraded"))
    assert Path("/proc/1/comm").read_text() == "systemd\n"
