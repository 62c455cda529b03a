# SPDX-License-Identifier: Apache-2.0
"""Runs a program to its end. It cannot hang the caller, print without limit or leave children behind."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from dataclasses import dataclass

from hook.base import system
from hook.base.explain import errno_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TIMEOUT = 60.0
_LONGEST_OUTPUT = 16 << 20
_LONGEST_REMARK = 200


@dataclass(frozen=True)
class Ended:
    """How a program ended. `status`: None if it did not start, timed out or printed too much; `error` then says which.

    Otherwise `error` is the end of what it wrote to stderr.
    """

    status: int | None
    output: str
    error: str

    @property
    def problem(self) -> str | None:
        """What went wrong, as one printable line; None if it succeeded."""
        if self.status is None:
            return self.error
        return None if self.status == 0 else f"exit status {self.status}: {_last_line(self.error)}"


def find(name: str, top: str = "") -> str | None:
    """The path of a program as seen below `top`; None if it is not installed."""
    paths = (f"{directory}/{name}" for directory in PATH.split(":"))
    return next((path for path in paths if os.access(top + path, os.X_OK) and os.path.isfile(top + path)), None)


is_starting = False
"""Whether a program is being started. An exception that a signal raises now would leave it behind: see cli/deadline."""


def run(command: Sequence[str], stdin: str = "", seconds: float = _TIMEOUT) -> Ended:
    """Run a program in the environment of a service. `stdin` must fit in a pipe (64 KiB)."""
    global is_starting  # noqa: PLW0603  a handler of signals asks for it
    deadline = system.monotonic() + seconds
    is_starting = True
    try:
        program = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env={"PATH": PATH, "LC_ALL": "C"},
            start_new_session=True,  # it is killed together with all its children
        )
    except OSError as error:
        return Ended(None, "", f"cannot start: {errno_name(error)}")
    finally:
        is_starting = False
    try:
        _write(program, stdin)
        output, error_output = _read(program, deadline)
        status = program.wait(max(0.0, deadline - system.monotonic()))
    except _TooLongError:
        _kill(program)
        return Ended(None, "", f"printed more than {_LONGEST_OUTPUT >> 20} MiB")
    except subprocess.TimeoutExpired:
        _kill(program)
        return Ended(None, "", f"timed out after {seconds:.2g} s")
    except BaseException:
        _kill(program)
        raise
    finally:
        for stream in (program.stdout, program.stderr):
            if stream is not None:
                stream.close()
    return Ended(status, output.decode("utf-8", "replace"), error_output.decode("utf-8", "replace"))


class _TooLongError(Exception):
    """The program printed more than _LONGEST_OUTPUT."""


def _write(program: subprocess.Popen[bytes], text: str) -> None:
    if program.stdin is not None:
        try:
            program.stdin.write(text.encode())
            program.stdin.close()
        except BrokenPipeError:  # it does not read its stdin
            pass


def _read(program: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes]:
    """All of stdout, and the end of stderr. Raises subprocess.TimeoutExpired if one is still open at the deadline."""
    output, error_output = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for stream, kept in ((program.stdout, output), (program.stderr, error_output)):
            if stream is not None:
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


def _kill(program: subprocess.Popen[bytes]) -> None:
    """Kill a program and its children. The program was not reaped yet, so its pid is not reused."""
    try:
        os.killpg(program.pid, signal.SIGKILL)
        program.wait(1.0)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass  # a program in an uninterruptible system call ends later


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.split("\n")]
    last = next((line for line in reversed(lines) if line), "no error message")
    return "".join(it if it.isprintable() else "?" for it in last[:_LONGEST_REMARK])
