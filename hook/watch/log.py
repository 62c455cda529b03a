# SPDX-License-Identifier: Apache-2.0
"""The lines of a service that may run for months: at most ten a minute, and then how many more there were."""

from __future__ import annotations

from hook.base import system
from hook.stages import failures

_MOST = 10
_SECONDS = 60.0


class Log:
    """Lines on stderr, which systemd writes to the journal."""

    def __init__(self) -> None:
        self._since = system.monotonic()
        self._lines = 0

    def say(self, text: str) -> None:
        """Log a line, or count it."""
        self.tick()
        self._lines += 1
        if self._lines <= _MOST:
            failures.say(f"watch: {text}", to_syslog=False)

    def tick(self) -> None:
        """Begin a new minute if the last one is over, and say what it left out."""
        now = system.monotonic()
        if now - self._since < _SECONDS:
            return
        if self._lines > _MOST:
            failures.say(f"watch: {self._lines - _MOST} more lines were not logged", to_syslog=False)
        self._since, self._lines = now, 0
