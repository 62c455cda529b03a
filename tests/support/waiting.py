# SPDX-License-Identifier: Apache-2.0
"""Waits for what comes about by itself, and fails where it hangs."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.support.hook import DEADLINE


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
