# SPDX-License-Identifier: Apache-2.0
"""Ends a command that a timer, a chart or a package manager runs: when its time is over, and at SIGTERM and SIGINT.

A handler that sets a flag would have no effect while a system call blocks: Python repeats the call (PEP 475). So the
handler raises. A signal just before such a call would be lost, so it is sent again. If no exception can end a call (a
file system that does not answer), the process ends after GRACE.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading

from hook.base import system
from hook.base.errors import HookError, Reason
from hook.stages import report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from hook.cli.verbs import Limit

GRACE = 3.0  # seconds from the end of its time, or from a signal, for a command to report and end
_INTERVAL = 0.05  # seconds between two pokes
_LOOK = 0.5  # seconds between two looks for a signal that the main thread has not handled
_ENDING = (signal.SIGTERM, signal.SIGINT)
_POKE = signal.SIGURG  # has no effect without a handler; SIGALRM is system.wait_for_flock's


class Ended(BaseException):
    """The command has to end; the text says why. A BaseException, so that no handler of errors catches it."""


def run_limited(verb: str, limit: Limit, command: Callable[[], int | None]) -> int:
    """Run a command within its limit; returns its exit status. It may catch Ended to report its partial result."""
    timer = _Timer(verb, limit)
    try:
        timer.start()
        try:
            return command() or 0
        finally:
            timer.stop()
    except Ended as error:
        return timer.complain(str(error))


class _Timer:
    """Raises Ended in the main thread, once; GRACE later it ends the process."""

    def __init__(self, verb: str, limit: Limit) -> None:
        self._verb = verb
        self._seconds, self._status, self._undone = limit
        self._why = ""
        self._has_raised = False
        self._is_stopped = threading.Event()
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Start the thread. OSError, HookError: that failed, and the command must not begin without a limit."""
        # Python writes the number of each signal to the pipe, also while no handler can run.
        self._signals, self._signalled = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._former_pipe = signal.set_wakeup_fd(self._signalled, warn_on_full_buffer=False)
        self._former = {number: signal.signal(number, self._end) for number in (*_ENDING, _POKE)}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._former)
        try:
            self._thread.start()
        except RuntimeError as error:
            hint = "raise its limit of processes or of memory (ulimit -u, ulimit -v, pids.max)"
            raise HookError(Reason.IO, f"cannot watch the time of this command: {error}", hint=hint) from error

    def stop(self) -> None:
        self._has_raised = True  # from here on no exception is raised
        self._is_stopped.set()
        signal.set_wakeup_fd(self._former_pipe)
        for number, handler in self._former.items():
            signal.signal(number, handler)
        os.write(self._signalled, b"\0")
        self._thread.join()
        os.close(self._signals)
        os.close(self._signalled)

    def complain(self, why: str) -> int:
        """Print that the command was ended; returns its exit status."""
        report.say(f"{self._verb}: ended {why}: {self._undone}", to_syslog=False)
        return self._status

    def _end(self, number: int, _frame: FrameType | None) -> None:
        """The handler of all signals: raises Ended. A poke (_POKE) can come before the reason is known, without effect.

        While a program is being started it raises nothing, since that would leave the program behind: the next poke
        raises.
        """
        if number != _POKE and not self._why:
            self._why = f"by {signal.Signals(number).name}"
        programs = sys.modules.get("hook.node.programs")  # if the command runs any
        if self._why and not self._has_raised and not (programs is not None and programs.is_starting):
            self._has_raised = True
            raise Ended(self._why)

    def _watch(self) -> None:
        """The thread's function: waits for the end of the time, or a signal, and pokes the main thread."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the main thread
        if not self._has_to_end():
            return
        over = system.monotonic() + GRACE
        while system.monotonic() < over:
            if not self._has_raised:
                signal.pthread_kill(self._main, _POKE)
            if self._is_stopped.wait(_INTERVAL):
                return
        system.leave(self.complain(self._why))

    def _has_to_end(self) -> bool:
        """Wait for the end of the time or for a signal; False if the command has ended before."""
        over = system.monotonic() + self._seconds
        poller = select.poll()
        poller.register(self._signals, select.POLLIN)
        while (left := over - system.monotonic()) > 0:
            numbers = set(os.read(self._signals, system.READ_SIZE) if poller.poll(min(left, _LOOK) * 1000) else b"")
            if self._is_stopped.is_set():
                return False
            # Pending: the main thread waits for a file system, where only the end of the process interrupts it.
            if ending := [it for it in _ENDING if it in numbers | signal.sigpending()]:
                self._why = self._why or f"by {ending[0].name}"
                return True
        self._why = self._why or f"after {self._seconds:.0f} s"
        return True
