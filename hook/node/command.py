# SPDX-License-Identifier: Apache-2.0
"""Executes the command of `run` in place of this program, as it would have run without it.

No failure of ours stops a command. If the program ends before it comes to this, its last lines do
the same: FALLBACK in packaging/pyz/archive.py, and `leave` in packaging/native/launcher.c.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

from hook import report, system
from hook.node import files

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""The exit statuses for a command that cannot be started, as shells have them."""
RUNS = "the command runs, and is not monitored"
_LARGEST = 16 << 20  # bytes of an environment; the kernel's limit is a quarter of the stack's
_CTYPE = b"LC_CTYPE"


class Unstartable(Exception):
    """The command cannot be started: `status` is the exit status."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(f"{name[:200]}: {os.strerror(number)}")
        self.status = NOT_FOUND if number == errno.ENOENT else NOT_EXECUTABLE


def split_words(words: list[str]) -> tuple[list[str], list[str]]:
    """Split what follows `run` on a command line: our own words, and those of the command,
    which are after `--`.
    """
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]


def find_command(words: list[str]) -> list[str]:
    """Return the command that runs whatever fails; none with --strict."""
    ours, command = split_words(words)
    return [] if any(word.partition("=")[0] == "--strict" for word in ours) else command


def check_command(name: str) -> None:
    """Raise Unstartable if there is surely no such command.

    What cannot be found out is left to the kernel.
    """
    for path in (
        (name,)
        if "/" in name
        else [os.path.join(place, name) for place in os.get_exec_path() if name]
    ):
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError):
            pass
        return
    raise Unstartable(name, errno.ENOENT)


def start(words: list[str]) -> int:
    """Execute a command, or say why it cannot be started; return the exit status then."""
    try:
        execute(words)
    except Unstartable as error:
        return explain(error)


def explain(error: Unstartable) -> int:
    """Say why a command cannot be started; return the exit status."""
    report.write_line(f"run: {error}", to_syslog=False)
    return error.status


def execute(words: list[str]) -> NoReturn:
    """Execute a command with the pid, the environment,
    the umask and the signals that this process was started with.

    Only the .pyz cannot leave SIGPIPE and SIGXFSZ ignored: its Python has ignored them,
    whatever they were. Raises Unstartable.
    """
    os.umask(system.umask_before)
    with suppress(OSError):
        # The ELF file, which has no path of an interpreter, handles them,
        # and the kernel resets that.
        for number in (signal.SIGPIPE, signal.SIGXFSZ) if sys.executable else ():
            signal.signal(number, signal.SIG_DFL)
    with suppress(Exception):
        _restore_environment()
    try:
        os.execvp(words[0], words)  # noqa: S606  without a shell
    except OSError as error:
        system.set_umask()
        raise Unstartable(words[0], error.errno or 0) from error


def _restore_environment() -> None:
    """Undo what was done to the environment.

    Then exec passes it on as it came, with entries that os.environ lacks.

    `rare.ignore_zone` sets TZ, and in the locale C the Python of the .pyz sets LC_CTYPE (PEP 538).
    Both change the first entry of that name in its place, or add one. Without /proc a changed
    LC_CTYPE is taken for an added one.
    """
    zone = os.environb.get(b"TZ")
    if zone is not None:
        os.putenv(b"TZ", zone)
    try:
        entries = files.read("/proc/self/environ", _LARGEST).split(b"\0")
    except OSError:
        if not _has_coerced_locale():
            return
        entries = []
    former = next((entry for entry in entries if entry.startswith(_CTYPE + b"=")), None)
    if former is not None:
        os.putenv(_CTYPE, former[len(_CTYPE) + 1 :])
    else:
        os.unsetenv(_CTYPE)


def _has_coerced_locale() -> bool:
    """Whether Python has set LC_CTYPE: it is in UTF-8 mode only if the locale was C (PEP 540),
    which it is not now.
    """
    import locale

    return bool(sys.executable and sys.flags.utf8_mode) and locale.setlocale(locale.LC_CTYPE) != "C"
