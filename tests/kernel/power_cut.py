# SPDX-License-Identifier: Apache-2.0
"""In a guest: keys run until the power is cut; or what reconcile makes of it an hour later.

    python3 -m tests.kernel.power_cut run | wake

After a boot only those files are there that the guest shares with the host, as on a disk: the
history.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from tests.support.hook import DEADLINE, Hook, created, stopped

SHARE = Path("/tmp/share")
HISTORY = f"--history={SHARE / 'history.jsonl'}"
HOOK = Hook(Path("/sys/fs/resctrl"), Path("/run/resctrl-mon-hook")).with_options(HISTORY)
HOUR = 3600.0
WORK = "while read -r _; do i=0; while [ $i -lt 10000 ]; do i=$((i+1)); done; echo; done"


class Worker:
    """A process of a key, which uses energy only when it is asked to work."""

    def __init__(self, key: str, *, is_job: bool = False) -> None:
        self.key = key
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(["sh", "-c", WORK], stdin=pipe, stdout=pipe)
        if is_job:
            subprocess.run(
                [*HOOK.command("assign"), f"--key={key}", str(self._process.pid)], check=True
            )
        else:
            assert HOOK(created(key, self._process.pid)).stderr == ""
        self.work()

    def work(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        self._process.stdout.readline()

    def read_use(self) -> float:
        """Return the joules so far."""
        (group,) = HOOK.key(self.key)["groups"]
        begins = {
            name: begin for name, begin in group["begin"].items() if name.endswith("/core_energy")
        }
        now = sum(float(Path(group["path"], "mon_data", name).read_text()) for name in begins)
        return now - sum(float(begin) for begin in begins.values() if begin != "Unavailable")

    def end(self) -> float:
        """Let a container end; return the joules of its life."""
        self._process.kill()
        self._process.wait()
        used = self.read_use()
        assert HOOK(stopped(self.key)).stderr == ""
        return used


def reconcile() -> str:
    done = subprocess.run(HOOK.command("reconcile"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def run() -> None:
    """Write what each key has used, and cut the power."""
    container, job, ends = Worker("container"), Worker("job", is_job=True), Worker("ends")
    used = {"ended": Worker("ended").end()}
    reconcile()
    used |= {worker.key: worker.read_use() for worker in (container, job)}
    for worker in (container, job, ends):
        worker.work()
    used["ends"] = ends.end()
    reconcile()  # before the next checkpoint
    Worker("late")
    (SHARE / "used").write_text(json.dumps(used), encoding="utf-8")
    Path("/proc/sysrq-trigger").write_text("b", encoding="ascii")  # `reboot -f -n`
    time.sleep(DEADLINE)


def wake() -> None:
    time.clock_settime(time.CLOCK_REALTIME, time.time() + HOUR)
    said = [reconcile(), reconcile()]
    metrics = HOOK.ask("metrics", HISTORY)
    assert (metrics.status, metrics.stderr) == (0, "")
    (SHARE / "woken").write_text(
        json.dumps({"said": said, "metrics": metrics.stdout}), encoding="utf-8"
    )


if __name__ == "__main__":
    {"run": run, "wake": wake}[sys.argv[1]]()
