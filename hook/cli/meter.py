# SPDX-License-Identifier: Apache-2.0
"""Says on a terminal how far long work is."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from hook.base.explain import printable

PATIENCE = 1.0  # seconds before a line of progress
_INTERVAL = 0.2  # seconds between two
_ERASE = "\r\x1b[K"  # to the beginning of the line, and all of it erased: ECMA-48 EL


class Meter:
    """A line of progress on stderr, if that is a terminal: it comes after PATIENCE, and is erased at the end.

    A thread draws it, so that it also comes while one step takes long.
    """

    def __init__(self) -> None:
        self._text = self._drawn = ""
        self._lock = threading.Lock()
        self._is_over = threading.Event()

    def __enter__(self) -> Meter:
        if sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            with suppress(RuntimeError):  # too many threads: the work goes on without a line
                threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._is_over.set()
        with self.hide():
            pass

    def show(self, text: str) -> None:
        """Note what the work is at."""
        self._text = text

    @contextmanager
    def hide(self) -> Iterator[None]:
        """Keep the line away while something else is printed."""
        with self._lock:
            if self._drawn:
                self._draw("")
            yield

    def _run(self) -> None:
        seconds = PATIENCE
        while not self._is_over.wait(seconds):
            seconds = _INTERVAL
            with self._lock:
                if not self._is_over.is_set() and self._text != self._drawn:
                    self._draw(self._text)

    def _draw(self, text: str) -> None:
        """Replace the line, cut to one row: a line of two rows could not be erased."""
        with suppress(OSError, ValueError):  # the terminal is gone
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            sys.stderr.write(_ERASE + printable(text)[: columns - 1])
            sys.stderr.flush()
        self._drawn = text
