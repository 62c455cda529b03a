# SPDX-License-Identifier: Apache-2.0
"""The energy of a pod over its whole life, restarts included,
on RMIDs that others used in between.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.consumers import read
from tests.support.hook import UID, Hook, created, stopped

JOULES_PER_SECOND = 3  # fake-rdt.patch
RESTARTS = 2
# As many as the machine has RMIDs: whatever RMID the pod gets, others have used it since.
OTHERS = 2
BURN = """\
import sys, time
print(time.process_time(), flush=True)
sys.stdin.readline()
end = time.process_time() + float(sys.argv[1])
while time.process_time() < end:
    pass
"""


class Burner:
    """A container's process that waits, burns so many seconds of CPU time, and ends.

    It is waiting when this returns: a Python that was still starting would be charged to
    the group for some of that.
    """

    def __init__(self, seconds: float) -> None:
        words = [sys.executable, "-ISc", BURN, str(seconds)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self._process.pid
        assert self._process.stdout is not None
        self._before = float(self._process.stdout.readline())

    def burn(self) -> float:
        """Let it run to its end; the joules that its group was charged,
        by the kernel's own account of its time.

        What it had run before somebody let it is not its group's.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.stdin = None
        _, status, usage = os.wait4(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        assert self._process.returncode == 0
        return (usage.ru_utime + usage.ru_stime - self._before) * JOULES_PER_SECOND

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def container(hook: Hook, name: str, uid: str, seconds: float) -> Iterator[Burner]:
    burner = Burner(seconds)
    try:
        assert hook(created(name, burner.pid, pod_uid=uid)).stderr == ""
        yield burner
        assert hook(stopped(name)).stderr == ""
    finally:
        burner.close()


def energy(hook: Hook) -> tuple[float, float]:
    """Of a completed pod, in joules: its use in all its life,
    and what its counters said at the end of the last one.
    """
    entry = read(hook.view(UID))
    assert entry is not None
    entry.check()
    uses = {name: use for name, use in entry.use().items() if name.endswith("/core_energy")}
    assert None not in uses.values(), uses
    ends = [float(entry.texts[f"mon_data/{name}.end"]) for name in uses]
    return sum(float(use or 0) for use in uses.values()), sum(ends)


def test_a_pod_that_restarts_twice_is_billed_what_it_used(hook: Hook) -> None:
    """Beside it the naive reading: each life for what its counters said at its end."""
    truth = naive = whole = 0.0
    for life in range(RESTARTS + 1):
        with container(hook, f"life-{life}", UID, 1.0) as burner:
            truth += burner.burn()
        whole, last = energy(hook)
        naive += last
        for other in range(OTHERS):
            with container(hook, f"other-{life}-{other}", f"{other:08d}{UID[8:]}", 0.2) as burner:
                burner.burn()
    print(f"truth {truth:.3f} J, lifetime {whole:.3f} J, naive {naive:.3f} J")
    assert abs(whole / truth - 1) < 0.01, f"{whole} of {truth}"
    assert naive / truth > 1.2, f"{naive} of {truth}: nothing would have been wrong"
