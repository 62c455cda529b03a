# SPDX-License-Identifier: Apache-2.0
"""System calls that Python makes around the hook's own fail: until main(), for memory and modules, to report a failure.

The simulator lets the hook's own calls fail. What must be whatever fails: exit status 0; no hang; and a failure is
reported in three places, in each of them whose own calls did not fail. Then a repair: by reconcile, or by the same hook
once more, in turns.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.faults import strace
from tests.faults.campaign import Campaign, Case
from tests.faults.injection.stages import STAGES, Stage
from tests.faults.scene import Job, Ran, Scene
from tests.support.hook import PYZ

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.faults.strace import Call

ERRNOS = {
    "brk": "ENOMEM",
    "close": "EINTR EIO ENOSPC",
    "connect": "EACCES EAGAIN ECONNREFUSED ENOENT",
    "fcntl": "EMFILE",
    "getdents64": "EIO",
    "ioctl": "EIO",
    "lseek": "EINVAL",
    "mmap": "ENOMEM",
    "mprotect": "ENOMEM",
    "munmap": "ENOMEM",
    "newfstatat": "EACCES EIO ENOMEM",
    "openat": "EACCES EINTR EMFILE ENFILE ENOMEM",
    "poll": "EINTR ENOMEM",
    "read": "EINTR EIO",
    "readlink": "EACCES EIO ENOMEM",
    "sendto": "EACCES EAGAIN ECONNREFUSED ENOBUFS",
    "socket": "EACCES EMFILE ENOBUFS",
}
"""What a call can fail with, by its manual page; but no lies, such as ENOENT for what is there."""
NEVER_SIMULATED = ("brk", "connect", "ioctl", "lseek", "mmap", "mprotect", "munmap", "sendto", "socket")
NO_WAIT = ("--rmid-wait=0",)
"""While it waits for an RMID, a hook makes more calls on a slow machine."""
RETRIED = ("EINTR",)
"""Never from then on: the call would be made again and again, as it should."""


def run(campaign: Campaign, stages: Iterable[Stage] = STAGES) -> None:
    for stage in stages:
        found = campaign.ask(partial(calls, stage))
        campaign.all(f"{stage}, {len(found)} calls", cases(stage, found))


def calls(stage: Stage, scene: Scene) -> list[Call]:
    """Those of a hook at which nothing fails that the simulator has not."""
    job = stage.set(scene)
    scene.run(job, strace.watched(scene.trace), NO_WAIT)
    return [call for call in strace.calls(scene.trace) if call.name in ERRNOS and _is_beside_ours(call)]


def _is_beside_ours(call: Call) -> bool:
    return not call.is_ours or call.name in NEVER_SIMULATED or f"<{PYZ}>" in call.text


def cases(stage: Stage, found: list[Call]) -> Iterator[Case]:
    by_hook = False
    for call in found:
        for errno in ERRNOS[call.name].split():
            for for_good in (False, True):
                if for_good and errno in RETRIED:
                    continue
                fault = Fault(stage, call, errno, for_good, by_hook)
                by_hook = not by_hook
                yield Case(f"{stage.name}: {call} {errno}{'+' if for_good else ''}", fault.run)


class Fault:
    """One call of a stage that fails in one way."""

    def __init__(self, stage: Stage, call: Call, errno: str, for_good: bool, by_hook: bool) -> None:
        self.stage = stage
        self.call = call
        self.errno = errno
        self.for_good = for_good
        self.by_hook = by_hook

    def run(self, scene: Scene) -> None:
        job = self.stage.set(scene)
        ran = scene.run(job, strace.failing(scene.trace, self.call, self.errno, for_good=self.for_good), NO_WAIT)
        failed = strace.injected(scene.trace)
        scene.expect(failed and self.call.is_same(failed[0].partition("(")[2]), "it was not this that failed:", failed)
        scene.expect(ran.outcome.status == 0, "exit status", ran.outcome.status)
        if not scene.is_done(job):
            self._expect_traces(scene, job, ran, failed)
        scene.expect_foreign()
        scene.give_back()
        if self.by_hook:
            again = scene.run(job)
            scene.expect(again == Ran(again.outcome, []) and not again.outcome.stderr, "once more:", again)
            scene.expect(scene.is_done(job), "the same hook once more did not put it right")
        scene.recover()

    def _expect_traces(self, scene: Scene, job: Job, ran: Ran, failed: list[str]) -> None:
        """What failed is told in each place whose own calls did not fail."""

        def spared(*parts: str) -> bool:
            return not any(part in line for line in failed for part in parts)

        if not self.call.is_ours or not spared(f"<{PYZ}>"):
            scene.expect(ran.outcome.stderr, "Python itself failed, and said nothing")
            return
        run_dir = scene.hook.run_dir
        scene.expect_told(
            job,
            ran,
            stderr=spared("poll(", "write(2<"),
            syslog=spared("socket", "connect(", "sendto("),
            record=spared("unmonitored", f'{run_dir}"', f'{run_dir}>, ""') and (run_dir / "unmonitored").exists(),
            named=not any(call in line and "<pipe:" in line for call in ("read(", "poll(") for line in failed),  # stdin
        )
