# SPDX-License-Identifier: Apache-2.0
"""System calls that Python makes around the hook's own fail: until main(), for memory and modules, to report a failure.

The simulator lets the hook's own calls fail. What must be whatever fails: exit status 0; no hang; and a failure is
reported in three places, in each of them whose own calls did not fail. Then a repair: by reconcile, or by the same hook
once more, in turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from tests.faults import strace
from tests.faults.campaign import Campaign, Case
from tests.faults.scene import STAGES, Ran, Scene
from tests.faults.strace import Call
from tests.support.hook import NATIVE, shipped

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


def run(campaign: Campaign, stages: Iterable[str] = STAGES) -> None:
    for stage in stages:
        found = calls(stage, campaign.scene)
        campaign.all(f"{stage}, {len(found)} calls", cases(stage, found))


def calls(stage: str, scene: Scene) -> list[Call]:
    """Those of a hook at which nothing fails that the simulator has not."""
    scene.run(scene.set(stage), strace.watched(scene.trace), NO_WAIT)
    return [call for call in strace.calls(scene.trace) if call.name in ERRNOS and _is_beside_ours(call)]


def _is_beside_ours(call: Call) -> bool:
    if (shipped(), call.name, call.nth) == (NATIVE, "brk", 2):
        return False  # what a static libc begins with; it compares the answer with the one before, and no kernel says 0
    return not call.is_ours or call.name in NEVER_SIMULATED or f"<{shipped()}>" in call.text


def cases(stage: str, found: list[Call]) -> Iterator[Case]:
    faults = [
        (call, errno, for_good)
        for call in found
        for errno in ERRNOS[call.name].split()
        for for_good in ((False,) if errno in RETRIED or _has_stdin_after_it(call) else (False, True))
    ]
    for number, (call, errno, for_good) in enumerate(faults):
        run = partial(_fail, stage, call, errno, for_good, number % 2 == 1)
        yield Case(f"{stage}: {call} {errno}{'+' if for_good else ''}", run)


def _has_stdin_after_it(call: Call) -> bool:
    """Whether reads that fail from this one on include those of the state: then the record names no container.

    A Python that cannot read its modules does not come as far.
    """
    return shipped() == NATIVE and call.name == "read" and not call.is_ours


def _fail(stage: str, call: Call, errno: str, for_good: bool, by_hook: bool, scene: Scene) -> None:
    """One call of a stage fails in one way."""
    state = scene.set(stage)
    ran = scene.run(state, strace.failing(scene.trace, call, errno, for_good=for_good), NO_WAIT)
    failed = strace.injected(scene.trace)
    scene.expect(failed and call.is_same(failed[0].partition("(")[2]), "it was not this that failed:", failed)
    scene.expect(ran.outcome.status == 0, "exit status", ran.outcome.status)
    if not scene.is_done():
        _expect_traces(scene, call, ran, failed)
    scene.expect_theirs()
    scene.recover(state, by_hook=by_hook)


def _expect_traces(scene: Scene, call: Call, ran: Ran, failed: list[str]) -> None:
    """The failure leaves each of its traces whose own system calls did not fail."""

    def spared(*parts: str) -> bool:
        return not any(part in line for line in failed for part in parts)

    if not call.is_ours or not spared(f"<{shipped()}>"):
        scene.expect(ran.outcome.stderr, "Python itself failed without a message")
        return
    run_dir = scene.hook.run_dir
    scene.expect_told(
        ran,
        stderr=spared("poll(", "write(2<"),
        syslog=spared("socket", "connect(", "sendto("),
        record=spared("unmonitored", f'{run_dir}"', f'{run_dir}>, ""') and (run_dir / "unmonitored").exists(),
        named=not any(name in line and "<pipe:" in line for name in ("read(", "poll(") for line in failed),  # stdin
    )
