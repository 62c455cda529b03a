# SPDX-License-Identifier: Apache-2.0
"""Waits for what comes about by itself, and fails where it hangs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.support.hook import DEADLINE

if TYPE_CHECKING:
    from collections.abc import Callable


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
