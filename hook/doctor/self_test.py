# SPDX-License-Identifier: Apache-2.0
"""`doctor --self-test`: makes a group, moves a child into it, reads its counters and removes it."""

from __future__ import annotations

import os
import signal

from hook.base import procfs, system
from hook.base.errors import HookError
from hook.base.reasons import Reason
from hook.base.resctrl import Resctrl
from hook.doctor.finding import FAILURE, OK, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX = "self-test-of-resctrl-mon-hook-"  # not the prefix of our groups: reconcile must ignore it
_SECONDS = 1.0


def run_self_test(root: str) -> Iterator[Finding]:
    """Make a group, move a child into it, read its counters, remove it. A step that fails is the last finding."""
    try:
        for line in _use_a_group(root):
            yield Finding(OK, "self-test", line)
    except (HookError, OSError) as error:
        yield Finding(FAILURE, "self-test", str(error), "run doctor without --self-test, which checks the causes")


def _use_a_group(root: str) -> Iterator[str]:
    """A line for each step that worked. Raises HookError, OSError for one that failed. Always cleans up."""
    kernel = Resctrl(root)
    if not kernel.is_mounted():
        raise HookError(Reason.NOT_MOUNTED, f"{root} is not mounted, or does not support monitoring")
    path = kernel.path("/", f"{_PREFIX}{system.process_id()}")
    kernel.make(path)
    child = 0
    try:
        yield f"made {path}"
        before = kernel.counters(path)
        yield f"read {len(before)} counters"
        child = _start_load()
        kernel.put(path, child)
        if child not in (kernel.tasks(path) or ()):
            raise HookError(Reason.IO, f"moved process {child} to the group, but it is not in it")
        yield f"moved process {child} to it; /proc shows {procfs.resctrl_groups(child)}"
        growth = _measure_growth(kernel, path, before)
        yield f"its counters after {_SECONDS:.0f} s: {growth or 'unchanged'}"
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        kernel.remove(path)
    if system.is_directory(path):
        raise HookError(Reason.IO, f"removed {path}, but it still exists")
    yield "removed it"


def _start_load() -> int:
    """Fork a child that uses CPU and memory until it is killed."""
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            while True:
                bytearray(1 << 22)
        finally:
            os._exit(1)
    return child


def _measure_growth(kernel: Resctrl, path: str, before: dict[str, str]) -> str:
    deadline = system.monotonic() + _SECONDS
    while system.monotonic() < deadline:
        system.sleep(deadline - system.monotonic())
    now = kernel.counters(path)
    return ", ".join(f"{name} {before.get(name)} -> {text}" for name, text in now.items() if text != before.get(name))
