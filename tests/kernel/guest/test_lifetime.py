"""The energy of a pod over its whole life, restarts included, on RMIDs that others used in between."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.consumers import kepler, read
from tests.support.hook import UID, Hook, created, stopped

if TYPE_CHECKING:
    from collections.abc import Iterator

JOULES_PER_SECOND = 3  # fake-rdt.patch
RESTARTS = 5
OTHERS = 3  # as many as there are RMIDs: whatever RMID the pod had, another one has had it before the pod is back
BURN = """\
import sys, time
sys.stdin.readline()
print(time.process_time(), flush=True)
end = time.process_time() + float(sys.argv[1])
while time.process_time() < end:
    pass
"""


class Burner:
    """A container's process that waits, burns so many seconds of CPU time, and ends."""

    def __init__(self, seconds: float) -> None:
        words = [sys.executable, "-ISc", BURN, str(seconds)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self._process.pid

    def burn(self) -> float:
        """Let it run to its end; the joules that its group was charged, by the kernel's own account of its time.

        What it had run before somebody let it is not its group's.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdin = None
        before = float(self._process.stdout.read())
        self._process.stdout.close()
        self._process.stdout = None
        _, status, usage = os.wait4(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        assert self._process.returncode == 0
        return (usage.ru_utime + usage.ru_stime - before) * JOULES_PER_SECOND

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


def joules(hook: Hook, *, begin: bool) -> Decimal:
    """Of the pod: all its life, or (`begin`: False) what its counters said at the last."""
    entry = read(hook.run_dir / "mon_groups" / UID)
    assert entry is not None
    entry.check()
    energies = {name: use for name, use in entry.use().items() if name.endswith("/core_energy")}
    if begin:
        assert None not in energies.values(), energies
        return sum((use for use in energies.values() if use is not None), Decimal(0))
    return sum((Decimal(entry.texts[f"mon_data/{name}.end"]) for name in energies), Decimal(0))


def test_a_pod_that_restarts_five_times_is_billed_what_it_used(hook: Hook) -> None:
    truth = 0.0
    for life in range(RESTARTS + 1):
        with container(hook, f"life-{life}", UID, 0.5) as burner:
            truth += burner.burn()
        for other in range(OTHERS):
            with container(hook, f"other-{life}-{other}", f"{other:08d}{UID[8:]}", 0.1) as burner:
                burner.burn()
    whole, naive = float(joules(hook, begin=True)), float(joules(hook, begin=False))
    print(f"truth {truth:.3f} J, lifetime {whole:.3f} J, last reading of the counters {naive:.3f} J")
    assert abs(whole / truth - 1) < 0.01, f"{whole} of {truth}"
    assert abs(naive / truth - 1) > 0.2, f"{naive} of {truth}: nothing would have been wrong"


def test_kepler_finds_every_pod_in_whatever_ctrl_group(hook: Hook, root: Path) -> None:
    (root / "gold").mkdir()
    in_gold = f"{1:08d}{UID[8:]}"
    plain, gold = Burner(0.2), Burner(0.2)
    try:
        (root / "gold" / "tasks").write_text(str(gold.pid))
        hook(created("c1", plain.pid, pod_uid=UID))
        hook.with_options("--group-prefix=other-")(created("c2", gold.pid, pod_uid=in_gold))
        found = kepler(hook.run_dir)
        assert {uid: pod.tasks for uid, pod in found.items()} == {UID: {plain.pid}, in_gold: {gold.pid}}
        plain.burn()
        gold.burn()
        assert all(pod.joules > 0 for pod in kepler(hook.run_dir).values())
    finally:
        plain.close()
        gold.close()
    for name in ("c1", "c2"):
        hook(stopped(name))
