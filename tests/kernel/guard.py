# SPDX-License-Identifier: Apache-2.0
"""Keeps one QEMU, and sees to it that nothing of it is left, however its caller ends.

    python guard.py DIRECTORY SECONDS STATUS_FD COMMAND...

A process of its own, in a session of its own: it outlives a caller that is killed. Its stdin is the caller's lifeline:
when that is closed, QEMU is killed and DIRECTORY removed. What the guest writes to its two ports goes to stdout and
stderr. How it went is said on STATUS_FD: "ended", "timeout" when SECONDS had passed, "unread" when nobody took what the
guest wrote.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
OUT, ERR = "@out@", "@err@"
"""In QEMU's command: the paths of the two ports."""


def die_with_parent() -> None:
    """In the child: QEMU goes when we are killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def start(directory: str, command: list[str]) -> tuple[subprocess.Popen[bytes], dict[int, int]]:
    """QEMU, and which of our descriptors each of its ports goes to."""
    (out, to_out), (err, to_err) = os.pipe(), os.pipe()
    words = [word.replace(OUT, f"/dev/fd/{to_out}").replace(ERR, f"/dev/fd/{to_err}") for word in command]
    with open(os.path.join(directory, "qemu"), "wb") as log:
        qemu = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            pass_fds=(to_out, to_err),
            preexec_fn=die_with_parent,  # noqa: PLW1509  this process has one thread
        )
    os.close(to_out)
    os.close(to_err)
    return qemu, {out: 1, err: 2}


def forward(ports: dict[int, int], seconds: float) -> str:
    """Until QEMU has closed both ports, which it does by ending."""
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for port, target in {**ports, 0: -1}.items():
            selector.register(port, selectors.EVENT_READ, target)
        while len(selector.get_map()) > 1:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                return "timeout"
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                if data and not write(key.data, data):
                    return "unread"
                if data:
                    continue
                if key.fd == 0:
                    return "abandoned"
                selector.unregister(key.fd)
    return "ended"


def write(target: int, data: bytes) -> bool:
    """False: nobody reads any more."""
    try:
        while data:
            data = data[os.write(target, data) :]
    except BrokenPipeError:
        return False
    return True


def main(directory: str, seconds: str, status: str, *command: str) -> None:
    try:
        qemu, ports = start(directory, list(command))
        try:
            how = forward(ports, float(seconds))
        finally:
            if qemu.poll() is None:
                qemu.kill()
            qemu.wait()
        write(int(status), how.encode())
        os.close(int(status))
        while os.read(0, 1):  # the caller still has files to read
            pass
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
