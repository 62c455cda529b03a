# SPDX-License-Identifier: Apache-2.0
"""Finds and runs programs.

A program that is run here cannot hang the caller, print without limit or leave children behind.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, NamedTuple

from hook import system
from hook.node import files
from hook.words import errno_name, printable

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENVIRONMENT = {"PATH": PATH, "LC_ALL": "C"}
_LONGEST_OUTPUT = 16 << 20
_LONGEST_REMARK = 200


def find_program(name: str, top: str = "") -> str | None:
    """Return the absolute path of a program in one of the system's directories, or of a path,
    below `top`, or None.
    """
    path = shutil.which(name, path=":".join(top + directory for directory in PATH.split(":")))
    return path[len(top) :] if path is not None else None


def has_systemd() -> bool:
    """Return whether systemd is the running init: sd_booted(3)."""
    return os.path.isdir("/run/systemd/system")


class Exit(NamedTuple):
    """How a program ended."""

    # None if it did not start, timed out or printed too much.
    status: int | None
    output: str
    # Why there is no status; else the end of its stderr.
    error: str

    @property
    def problem(self) -> str | None:
        """Return why it failed, as one printable line, or None if it succeeded."""
        if self.status is None:
            return self.error
        last = next(
            (line.strip() for line in reversed(self.error.split("\n")) if line.strip()),
            "no error message",
        )
        shown = "".join(
            letter if letter.isprintable() else "?" for letter in last[:_LONGEST_REMARK]
        )
        return None if self.status == 0 else f"exit status {self.status}: {shown}"


is_starting = False
"""True while a program is being started:
an exception of a signal's handler would leave the program behind then.
"""


def run_program(command: Sequence[str], stdin: str = "", seconds: float = 60.0) -> Exit:
    """Run a program in the environment of a service. `stdin` must fit in a pipe (64 KiB)."""
    global is_starting  # noqa: PLW0603  the handler asks for it
    deadline, pipe = system.monotonic() + seconds, subprocess.PIPE
    is_starting = True
    try:
        # A new session, so that the program can be killed together with all its children.
        program = subprocess.Popen(
            command,
            bufsize=0,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd="/",
            env=_ENVIRONMENT,
            start_new_session=True,
        )
    except OSError as error:
        first = (system.try_call(files.read_head, command[0], 256) or b"").partition(b"\n")[0]
        missing = (
            f" ({printable(first.decode('utf-8', 'replace'))})" if first.startswith(b"#!") else ""
        )
        return Exit(None, "", f"cannot start: {errno_name(error)}{missing}")
    finally:
        is_starting = False
    streams = [*filter(None, (program.stdin, program.stdout, program.stderr))]
    try:
        output, remark = _talk(streams, stdin, deadline)
        status = program.wait(max(0.0, deadline - system.monotonic()))
        return Exit(status, output.decode("utf-8", "replace"), remark.decode("utf-8", "replace"))
    except OverflowError as error:
        return Exit(None, "", str(error))
    except subprocess.TimeoutExpired:
        return Exit(None, "", f"timed out after {seconds:.2g} s")
    finally:
        for stream in streams:
            stream.close()
        if program.returncode is None:  # it was not reaped, so its pid is not another program's
            # A process inside the kernel ends later.
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(program.pid, signal.SIGKILL)
                program.wait(1.0)


def _talk(streams: list[IO[bytes]], text: str, deadline: float) -> tuple[bytes, bytes]:
    """Write a text to stdin; return all of stdout, and the end of stderr.

    Popen.communicate would keep both, at any size. Raises TimeoutExpired if one is still open at
    the deadline, and OverflowError if there is more than _LONGEST_OUTPUT.
    """
    stdin, *readers = streams
    with suppress(BrokenPipeError):  # the program does not read its stdin
        stdin.write(text.encode())
    stdin.close()
    output, remark = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for stream, kept in zip(readers, (output, remark)):
            selector.register(stream, selectors.EVENT_READ, kept)
        while selector.get_map():
            left = deadline - system.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                raise subprocess.TimeoutExpired("", left)
            for key, _ in ready:
                chunk = os.read(key.fd, system.READ_SIZE)
                key.data.extend(chunk)
                if not chunk:
                    selector.unregister(key.fileobj)
            del remark[: -system.READ_SIZE]
            if len(output) > _LONGEST_OUTPUT:
                raise OverflowError(f"printed more than {_LONGEST_OUTPUT >> 20} MiB")
    return bytes(output), bytes(remark)
