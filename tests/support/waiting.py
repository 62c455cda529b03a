# SPDX-License-Identifier: Apache-2.0
"""Waits for what comes about by itself, and fails where it hangs; also for the ends of orphans."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.hook import DEADLINE

PR_SET_CHILD_SUBREAPER = 36


@contextmanager
def reaper() -> Iterator[None]:
    """Orphans become children of this process, so that their end can be waited for: prctl(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
