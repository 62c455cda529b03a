# SPDX-License-Identifier: Apache-2.0
"""`run --wait`: the parent of a job's command,
which stays until that has ended and then takes it off its job.

The child joins and executes the command, as `run` does without a parent. Both are in one process
group: what the terminal sends reaches both, and what is sent to the parent alone is passed on.
Until the command has ended the file of the program may be replaced, so all that poststop needs is
imported here.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

from hook import jobs, report, system
from hook.models import Options
from hook.node.processes import name_job_process
from hook.poststop import poststop
from hook.words import explain

_MOST_FILES = 1 << 16
"""As many may be open where /proc does not say which are."""


def fork(options: Options) -> int | None:
    """Fork the process that becomes the command.

    Return None in it, and in its parent the exit status as of a shell.

    The child has the signals as they were. If there can be no child,
    this process is to become the command.
    """
    pid, mask, handler = 0, None, None
    try:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        # If ignored, as it may be here, there is no status.
        handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        pid = os.fork()
    except OSError as error:
        report.write_line(
            f"run: warning: nothing waits for the command: {error.strerror}", to_syslog=False
        )
    if pid:
        return _attend(pid, options)
    with suppress(OSError):
        if handler is not None:
            signal.signal(signal.SIGCHLD, handler)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return None


def _attend(pid: int, options: Options) -> int:
    """Wait for a command's process, and take it off its job; return its exit status.

    Whatever fails here, the command has been started, and is not started again.
    """
    del sys.argv[3:]  # what the last lines of the .pyz would execute
    process = ""
    with suppress(Exception):
        process = name_job_process(pid, system.starttime(pid) or 0)
    with suppress(Exception):
        _close_files()
    status = 2
    try:
        status = _wait(pid)
    except Exception as error:  # noqa: BLE001  as above
        with suppress(Exception):
            report.write_line(
                f"run: warning: no signal reaches the command: {explain(error)}", to_syslog=False
            )
            change = os.waitid(os.P_PID, pid, os.WEXITED)
            status = _find_status(change) if change is not None else status
    # A failure is in syslog, and leaves it to reconcile; of a process that could not join,
    # the child has said so.
    with suppress(Exception), jobs.open_node("run", options, None) as context:
        poststop(context, process)
    return status


def _close_files() -> None:
    """Close all files but stderr: what reads from the command, or writes to it,
    waits until nothing has them open.
    """
    os.closerange(0, 2)
    numbers = system.try_call(system.list_directory, "/proc/self/fd")
    os.closerange(3, max(map(int, numbers)) + 1 if numbers else _MOST_FILES)
    system.ensure_standard_descriptors()


def _wait(pid: int) -> int:
    """Pass signals on to a child until it has ended; return its exit status.

    All signals are blocked.
    """
    while True:
        sent = signal.sigwaitinfo(signal.valid_signals())
        if sent.si_signo == signal.SIGCHLD:
            while change := os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOHANG):
                if change.si_code != os.CLD_STOPPED:
                    return _find_status(change)
                _stop()
        # The kernel's own are the terminal's, which the child has, but for an alarm that was set
        # before the fork. The child's own are for all of its process group.
        elif (sent.si_code <= 0 or sent.si_signo == signal.SIGALRM) and sent.si_pid != pid:
            os.kill(pid, sent.si_signo)


def _find_status(change: os.waitid_result) -> int:
    """Return the exit status of a child that has ended, as of a shell."""
    return change.si_status if change.si_code == os.CLD_EXITED else 128 + change.si_status


def _stop() -> None:
    """Stop as the child did, so that a shell sees it.

    The kernel stops no process group that has no shell.
    """
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
