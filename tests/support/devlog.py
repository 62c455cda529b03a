# SPDX-License-Identifier: Apache-2.0
"""A /dev/log of our own, in a private mount namespace of the hook."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path


class DevLog:
    """The socket, for `with`. `wrapper`: what to start a hook by that is to find it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "log"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        here = os.open(directory, os.O_PATH)
        try:
            self.socket.bind(f"/proc/self/fd/{here}/log")
        finally:
            os.close(here)
        self._dev = directory / "dev"
        script = 'mount --rbind "$0" /dev && exec "$@"'
        self.wrapper: tuple[str, ...] = ("unshare", "--mount", "sh", "-c", script, str(self._dev))

    def __enter__(self) -> DevLog:
        self._dev.mkdir()
        # Tests may lie in /dev/shm, so that stays in the /dev that takes
        # the place of the machine's.
        script = (
            'mount -t tmpfs tmpfs "$0" && cd "$0" && mknod null c 1 3 && mknod zero c 1 3'
            ' && touch log && mount --bind "$1" log'
            " && mkdir shm && if [ -d /dev/shm ]; then mount --rbind /dev/shm shm; fi"
        )
        subprocess.run(["sh", "-c", script, self._dev, self.path], check=True)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", "--recursive", self._dev], check=True)
        self.socket.close()

    def lines(self) -> list[str]:
        """What has come since the last look."""
        self.socket.setblocking(False)
        messages = []
        while True:
            try:
                messages.append(self.socket.recv(65536).decode())
            except BlockingIOError:
                return messages

    def fill(self) -> None:
        """Send until a sender would have to wait."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            here = os.open(self.path.parent, os.O_PATH)
            try:
                while True:
                    sender.sendto(b"x", f"/proc/self/fd/{here}/log")
            except BlockingIOError:
                pass
            finally:
                os.close(here)
