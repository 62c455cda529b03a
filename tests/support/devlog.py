# SPDX-License-Identifier: Apache-2.0
"""A /dev/log of our own, in a private mount namespace of the hook."""

from __future__ import annotations

import os
import socket
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
        # Tests may lie in /dev/shm, so that stays in the /dev that takes
        # the place of the machine's.
        script = (
            f"d='{directory}/dev' && mkdir -p $d && mount -t tmpfs tmpfs $d"
            " && mknod $d/null c 1 3 && mknod $d/zero c 1 3 && touch $d/log && mount --bind "
            f"'{self.path}' $d/log"
            " && mkdir $d/shm && if [ -d /dev/shm ]; then mount --rbind /dev/shm $d/shm; fi"
            ' && mount --rbind $d /dev && exec "$@"'
        )
        self.wrapper: tuple[str, ...] = ("unshare", "--mount", "sh", "-c", script, "sh")

    def __enter__(self) -> DevLog:
        return self

    def __exit__(self, *_: object) -> None:
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
