"""The whole way on the real thing, in small: a group, a child in it, its counters, and all of it gone again."""

from __future__ import annotations

import os
import signal

from hook.base import procfs, system
from hook.base.errors import HookError, Reason
from hook.base.resctrl import Resctrl
from hook.doctor.finding import FAILURE, OK, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX = "self-test-of-resctrl-mon-hook-"  # not that of our groups: reconcile is to leave it alone
_SECONDS = 1.0


def run_self_test(root: str) -> Iterator[Finding]:
    """Make a group, move a child into it, read its counters, remove it. A step that fails is the last finding."""
    try:
        for line in _use_a_group(root):
            yield Finding(OK, "self-test", line)
    except (HookError, OSError) as error:
        yield Finding(FAILURE, "self-test", str(error), "doctor without --self-test may tell why")


def _use_a_group(root: str) -> Iterator[str]:
    """What worked, a line at a time. Raises HookError, OSError with what did not; nothing is left in any case."""
    kernel = Resctrl(root)
    if not kernel.is_mounted():
        raise HookError(Reason.NOT_MOUNTED, f"{root} is not mounted, or cannot monitor")
    path = kernel.path("/", f"{_PREFIX}{system.process_id()}")
    kernel.make(path)
    child = 0
    try:
        yield f"made {path}"
        before = kernel.counters(path)
        yield f"read {len(before)} counters"
        child = _spin()
        kernel.put(path, child)
        if child not in (kernel.tasks(path) or ()):
            raise HookError(Reason.IO, f"process {child} was put into the group and is not in it")
        yield f"put process {child} into it; the kernel says {procfs.resctrl_groups(child)}"
        grown = _grown(kernel, path, before)
        yield f"its counters after {_SECONDS:.0f} s: {grown or 'unchanged'}"
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        kernel.remove(path)
    if system.is_directory(path):
        raise HookError(Reason.IO, f"{path} was removed and is still there")
    yield "removed it"


def _spin() -> int:
    """A child that works until it is killed; it touches memory, so that there is something to count."""
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            while True:
                bytearray(1 << 22)
        finally:
            os._exit(1)
    return child


def _grown(kernel: Resctrl, path: str, before: dict[str, str]) -> str:
    deadline = system.monotonic() + _SECONDS
    while system.monotonic() < deadline:
        system.sleep(deadline - system.monotonic())
    now = kernel.counters(path)
    return ", ".join(f"{name} {before.get(name)} -> {text}" for name, text in now.items() if text != before.get(name))
