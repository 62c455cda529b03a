# SPDX-License-Identifier: Apache-2.0
"""Waits for what comes about by itself, and fails where it hangs."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.support.hook import DEADLINE


def wait(condition: Callable[[], bool], most: float = 0.5) -> None:
    """Ask again and again, the longer it takes the less often: to ask may start a process.

    `most`: seconds from one time to the next.
    """
    deadline = time.monotonic() + DEADLINE
    pause = 0.01
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(pause)
        pause = min(1.25 * pause, most)
