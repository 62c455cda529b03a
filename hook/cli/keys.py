# SPDX-License-Identifier: Apache-2.0
"""Reads single keys from a terminal, which is in the end as it was."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios

from hook.base import system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any, NoReturn


class Keys:
    """The keys that are pressed on the terminal at stdin, for `with`. If there is none, nothing is ever pressed.

    The terminal gives each key at once and does not print it; in the end it is as it was, also after SIGTERM.
    """

    def __init__(self) -> None:
        self._terminal = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._is_open = True
        self._former: list[Any] = []

    def __enter__(self) -> Keys:
        signal.signal(signal.SIGTERM, _interrupt)
        if self._terminal is not None:
            self._former = termios.tcgetattr(self._terminal)
            changed = termios.tcgetattr(self._terminal)
            changed[3] &= ~(termios.ICANON | termios.ECHO)
            termios.tcsetattr(self._terminal, termios.TCSADRAIN, changed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._terminal is not None:
            termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._former)

    def wait(self, seconds: float) -> str:
        """The next key, empty if none is pressed for so long."""
        if self._terminal is None or not self._is_open:
            system.sleep(seconds)
            return ""
        if not select.select([self._terminal], [], [], seconds)[0]:
            return ""
        text = os.read(self._terminal, 1).decode("ascii", "replace")
        if not text:  # its other end is closed
            self._is_open = False
            return self.wait(seconds)
        return text


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
