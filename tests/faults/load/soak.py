# SPDX-License-Identifier: Apache-2.0
"""Soak: pods come and go by the ten thousand on one node, without a leak; see soak_node.py.

Two cases: `model`, and `kernel`, with fewer pods, in a guest that has the kernel's own resctrl (tests/kernel).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from typing import IO, TYPE_CHECKING

from tests.faults.load import soak_node
from tests.kernel import kernel
from tests.kernel.vm import ROOT, GuestFailed, GuestTimeout, Vm, run_in_guest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.campaign import Campaign

PODS = 100_000
PODS_IN_GUEST = 2_000
APART = ("unshare", "--mount")
"""What a command behind this mounts goes with it. Its processes end by themselves: see zygote.py."""
TMPFS = "/dev/shm"
RESCTRL = "/sys/fs/resctrl"
GUEST = Vm(rmids=soak_node.RMIDS, smp=1, sockets=1, append="fakerdt.decay_ms=0", timeout=5400)


def run(campaign: Campaign) -> None:
    if campaign.is_chosen("model"):
        _soak(campaign, "model", PODS, _here)
    if campaign.is_chosen("kernel") and _has_kernel(campaign):
        _soak(campaign, "kernel", PODS_IN_GUEST, _in_guest)


def _has_kernel(campaign: Campaign) -> bool:
    """Whether there is one for the guest, be it built now."""
    try:
        kernel.ready()
    except kernel.CannotBuild as error:
        campaign.note(f"not on the kernel: {error}")
        return False
    return True


def _soak(campaign: Campaign, case: str, most: int, start: Callable[[list[str], IO[str]], int]) -> None:
    begin, pods = time.monotonic(), min(most, campaign.most or most)
    with tempfile.TemporaryFile("w+") as output:
        status = start([sys.executable, "-m", soak_node.__name__, str(pods), str(campaign.seed)], output)
        output.seek(0)
        said = output.read().strip()
    campaign.tally(f"pods, on the {case}", pods, {case: said} if status else {}, begin)
    if not status:
        campaign.note(f"on the {case}: {said}")


def _here(command: list[str], output: IO[str]) -> int:
    with tempfile.TemporaryDirectory(dir=TMPFS) as directory:
        apart = [*APART, *command, directory]
        return subprocess.run(apart, cwd=ROOT, stdout=output, stderr=output, check=False).returncode


def _in_guest(command: list[str], output: IO[str]) -> int:
    try:
        return run_in_guest([*command, TMPFS, RESCTRL], GUEST, cwd=ROOT, stdout=output, stderr=output)
    except (GuestFailed, GuestTimeout) as error:
        print(error, file=output)
        return 1
