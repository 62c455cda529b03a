# SPDX-License-Identifier: Apache-2.0
"""Ends a command that a timer, a chart or a package manager runs: when its time is over, and at SIGTERM and SIGINT.

A thread waits for these signals, which the main thread blocks, so it notices each of them, whatever the main thread
does. A handler that sets a flag would have no effect while a system call blocks: Python repeats the call (PEP 475). So
the thread sends the main thread a signal whose handler raises. That is lost just before such a call, so it is sent
again. If no exception can end a call (a file system that does not answer), the process ends after GRACE.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

from hook import report, system
from hook.cli.verbs import Limit
from hook.errors import HookError, Reason

GRACE = 3.0  # seconds from the end of its time, or from a signal, for a command to report and end
_INTERVAL = 0.05  # seconds between two pokes
_ENDING = (signal.SIGTERM, signal.SIGINT)
_POKE = signal.SIGURG  # has no effect without a handler; SIGALRM is system.wait_for_flock's


class Ended(BaseException):
    """The command has to end; the text says why. A BaseException, so that no handler of errors catches it."""


def run_limited(verb: str, limit: Limit, command: Callable[[], int | None]) -> int:
    """Run a command within its limit; returns its exit status. It may catch Ended to report its partial result.

    HookError: the thread does not start, and the command must not begin without a limit.
    """
    watcher = _Watcher(verb, limit)
    former_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    former_handler = signal.signal(_POKE, watcher.end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [_POKE])
    try:
        try:
            watcher.begin()
            return command() or 0
        finally:
            watcher.stop()
    except Ended as error:
        watcher.stop()  # again: what has ended the command may have come just before it stopped
        return watcher.complain(str(error))
    finally:
        while signal.sigtimedwait(_ENDING, 0) is not None:
            pass  # it came too late to end anything
        signal.signal(_POKE, former_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, former_mask)


class _Watcher(threading.Thread):
    """Raises Ended in the main thread, once; GRACE later it ends the process."""

    def __init__(self, verb: str, limit: Limit) -> None:
        super().__init__(daemon=True)
        self._verb = verb
        self._seconds, self._status, self._undone = limit
        self._why = ""
        self._may_raise = True
        self._is_over = threading.Event()
        self._main = threading.get_ident()

    def begin(self) -> None:
        """Start the thread. Raises HookError."""
        try:
            self.start()
        except RuntimeError as error:
            hint = "raise its limit of processes or of memory (ulimit -u, ulimit -v, pids.max)"
            raise HookError(Reason.IO, f"cannot watch the time of this command: {error}", hint=hint) from error

    def run(self) -> None:
        """Wait for the end of the time, or a signal, and poke the main thread."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the others are for the main thread
        found = signal.sigtimedwait(_ENDING, self._seconds)
        self._why = f"by {signal.Signals(found.si_signo).name}" if found else f"after {self._seconds:.0f} s"
        over = system.monotonic() + GRACE
        while system.monotonic() < over:
            if self._may_raise:
                signal.pthread_kill(self._main, _POKE)
            if self._is_over.wait(_INTERVAL):
                return
        system.leave(self.complain(self._why))

    def end(self, _number: int, _frame: object) -> None:
        """The handler of a poke: raises Ended."""
        if self._why and self._may_raise:
            self._may_raise = False
            raise Ended(self._why)

    def stop(self) -> None:
        """Stop the thread if it runs. It ends only now: until then its ident is its own."""
        self._may_raise = False
        if self.is_alive():
            signal.pthread_kill(self.ident or 0, signal.SIGTERM)
            self._is_over.set()
            self.join()

    def complain(self, why: str) -> int:
        """Print that the command was ended; returns its exit status."""
        report.say(f"{self._verb}: ended {why}: {self._undone}", to_syslog=False)
        return self._status
