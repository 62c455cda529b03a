# SPDX-License-Identifier: Apache-2.0
"""Finds programs, and runs one so that it cannot hang the caller, print without limit or leave children behind."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from hook.base import system
from hook.base.explain import errno_name

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OLDEST = (3, 9)
"""The first CPython that the program runs on."""
_TIMEOUT = 60.0
_LONGEST_OUTPUT = 16 << 20
_LONGEST_REMARK = 200
_PRINT_VERSION = (
    "import sys,importlib.util as u;"
    "print(*sys.version_info[:2],sys.implementation.cache_tag,int.from_bytes(u.MAGIC_NUMBER,'little'))"
)


def find_program(name: str, top: str = "") -> str | None:
    """The path of a program as seen below `top`; None if it is not installed."""
    paths = (f"{directory}/{name}" for directory in PATH.split(":"))
    return next((path for path in paths if is_program(top + path)), None)


def is_program(path: str) -> bool:
    """Whether a path names a file that may be run."""
    return os.path.isfile(path) and os.access(path, os.X_OK)


def has_systemd() -> bool:
    """Whether systemd is the running init: sd_booted(3)."""
    return os.path.isdir("/run/systemd/system")


def has_transient(unit: str) -> bool:
    """Whether a unit made by systemd-run exists; it lasts until the next boot."""
    return os.path.exists(f"/run/systemd/transient/{unit}")


@dataclass(frozen=True)
class Exit:
    """How a program ended. `status`: None if it did not start, timed out or printed too much.

    `error`: why there is no status; else the end of its stderr.
    """

    status: int | None
    output: str
    error: str

    @property
    def problem(self) -> str | None:
        """Why it failed, as one printable line; None if it succeeded."""
        if self.status is None:
            return self.error
        return None if self.status == 0 else f"exit status {self.status}: {_last_line(self.error)}"


def _last_line(text: str) -> str:
    last = next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "no error message")
    return "".join(it if it.isprintable() else "?" for it in last[:_LONGEST_REMARK])


is_starting = False
"""Whether a program is being started. An exception that a signal raises now would leave it behind: see cli/deadline."""


def run_program(command: Sequence[str], stdin: str = "", seconds: float = _TIMEOUT) -> Exit:
    """Run a program in the environment of a service. `stdin` must fit in a pipe (64 KiB)."""
    global is_starting  # noqa: PLW0603  a handler of signals asks for it
    deadline = system.monotonic() + seconds
    is_starting = True
    try:
        program = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env={"PATH": PATH, "LC_ALL": "C"},
            start_new_session=True,  # it is killed together with all its children
        )
    except OSError as error:
        return Exit(None, "", f"cannot start: {errno_name(error)}")
    finally:
        is_starting = False
    try:
        output, error_output = _talk(program, stdin, deadline)
        status = program.wait(max(0.0, deadline - system.monotonic()))
        return Exit(status, output.decode("utf-8", "replace"), error_output.decode("utf-8", "replace"))
    except _TooLongError:
        return Exit(None, "", f"printed more than {_LONGEST_OUTPUT >> 20} MiB")
    except subprocess.TimeoutExpired:
        return Exit(None, "", f"timed out after {seconds:.2g} s")
    finally:
        for stream in _list_streams(program):
            stream.close()
        if program.returncode is None:  # it was not reaped, so its pid is not another program's
            _kill(program)


class _TooLongError(Exception):
    """The program printed more than _LONGEST_OUTPUT."""


def _talk(program: subprocess.Popen[bytes], stdin: str, deadline: float) -> tuple[bytes, bytes]:
    """Write stdin; read all of stdout, and the end of stderr. Popen.communicate would keep both, at any size.

    subprocess.TimeoutExpired: one of them is still open at the deadline. _TooLongError.
    """
    to_program, *outputs = _list_streams(program)
    try:
        to_program.write(stdin.encode())
        to_program.close()
    except BrokenPipeError:  # it does not read its stdin
        pass
    output, error_output = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for stream, kept in zip(outputs, (output, error_output)):
            selector.register(stream, selectors.EVENT_READ, kept)
        while selector.get_map():
            left = deadline - system.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                raise subprocess.TimeoutExpired(program.args, left)
            for key, _ in ready:
                chunk = os.read(key.fd, system.READ_SIZE)
                if not chunk:
                    selector.unregister(key.fileobj)
                key.data.extend(chunk)
            del error_output[: -system.READ_SIZE]
            if len(output) > _LONGEST_OUTPUT:
                raise _TooLongError
    return bytes(output), bytes(error_output)


def _list_streams(program: subprocess.Popen[bytes]) -> list[IO[bytes]]:
    return [stream for stream in (program.stdin, program.stdout, program.stderr) if stream is not None]


def _kill(program: subprocess.Popen[bytes]) -> None:
    """Kill a program and its children."""
    try:
        os.killpg(program.pid, signal.SIGKILL)
        program.wait(1.0)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass  # a program in an uninterruptible system call ends later


# --- Interpreters


@dataclass(frozen=True)
class Interpreter:
    """A Python. `tag` names its bytecode (sys.implementation.cache_tag), which begins with `magic`."""

    path: str
    version: tuple[int, int]
    tag: str
    magic: bytes


def ask_interpreter(path: str) -> Interpreter | str:
    """Run a Python to learn its version; returns why it is unusable if that fails."""
    ended = run_program([path, "-ISc", _PRINT_VERSION])
    try:
        major, minor, tag, magic = ended.output.split()
        return Interpreter(path, (int(major), int(minor)), tag, int(magic).to_bytes(4, "little"))
    except (ValueError, OverflowError):
        return f"cannot run {path} as Python: {ended.problem or 'it does not print its version'}"
