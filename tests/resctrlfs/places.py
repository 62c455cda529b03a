# SPDX-License-Identifier: Apache-2.0
"""A server's mount point and its socket: whether another server has them,
and what is left of one that was killed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from contextlib import suppress
from pathlib import Path

SUBTYPE = "resctrlfs"
MNT_DETACH = 2


class PlaceTaken(Exception):
    """A mount point or a socket cannot be used; the message is one line that says why."""


def is_mounted(mountpoint: Path) -> bool:
    target = str(mountpoint.resolve())
    lines = Path("/proc/self/mounts").read_text(errors="surrogateescape").splitlines()
    mounts = [line.split()[1:3] for line in lines]
    return [target, f"fuse.{SUBTYPE}"] in [
        [path.encode().decode("unicode_escape"), kind] for path, kind in mounts
    ]


def detach(mountpoint: Path) -> None:
    """Unmount it, without a look at what is there:
    nothing answers behind the mount of a server that was killed.
    """
    ctypes.CDLL(None, use_errno=True).umount2(os.fsencode(mountpoint), MNT_DETACH)


def clear_mountpoint(mountpoint: Path) -> None:
    """Unmount what a server that was killed has left.

    Errors: PlaceTaken, and OSError if it is no directory.
    """
    while is_mounted(mountpoint):
        try:
            os.stat(mountpoint)
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise
            detach(mountpoint)
        else:
            raise PlaceTaken(
                f"{mountpoint}: another server has mounted the model there: end that one first"
            )
    os.close(os.open(mountpoint, os.O_PATH | os.O_DIRECTORY))


def listen(path: Path) -> socket.socket:
    """Listen on a socket, in the place of that of a server that was killed.

    Errors: PlaceTaken, OSError.
    """
    # By way of the directory's descriptor: a path can be longer than a socket's address may be.
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    address = f"/proc/self/fd/{directory}/{path.name}"
    try:
        with (
            socket.socket(socket.AF_UNIX) as other,
            suppress(FileNotFoundError, ConnectionRefusedError),
        ):
            other.connect(address)
            raise PlaceTaken(
                f"{path}: another server listens there: end that one first, or name another socket"
            )
        if path.is_socket():
            path.unlink()
        server = socket.socket(socket.AF_UNIX)
        server.bind(address)
        server.listen()
    finally:
        os.close(directory)
    return server
