# SPDX-License-Identifier: Apache-2.0
"""Starts a new file of the history when it is large, and compresses the former ones: `.1`,
`.2.gz` to `.12.gz`.

A hook opens the file by its name for each line. One that had it open when it was renamed
appends to `.1`. That stays as it is until the next rotation, and is compressed only when no
process has it open to write.

Which crash each order survives: a file is renamed only to a free name, the oldest first, so that a
kill leaves a gap among the numbers, and no file is lost. A compressed file has its name when the
disk has all of it, and then the former one goes. Killed in between, both are there with the same
lines, and the next run compresses again.
"""

from __future__ import annotations

import errno
import gzip
import os
import stat
import zlib
from contextlib import suppress
from typing import IO

from hook import system
from hook.node import files

LARGEST = 64 << 20
"""Bytes of the file of the history at which a new one begins."""
MOST_FILES = 12
"""Files beside that one."""
_PIECE = 1 << 20
_PACKED = ".gz"


def rotate(history: str) -> bool:
    """Start a new file if the history is large; return whether it was.

    Compress what a former run has left.

    Raises OSError. Another process that does this now is not waited for.
    """
    directory = os.path.dirname(history)
    if not os.path.isdir(directory):
        return False
    # Before the file is large: a unit, or a mount, may not let it write there.
    if not os.access(directory, os.W_OK):
        raise files.Unreadable(directory, "not writable here", errno.EROFS)
    descriptor = files.open_to_lock(directory)
    try:
        return system.try_flock(descriptor) and _rotate(history)
    finally:
        os.close(descriptor)


def _rotate(history: str) -> bool:
    _compress_all(history)
    status = system.try_call(os.lstat, history)
    if status is None or not stat.S_ISREG(status.st_mode) or status.st_size < LARGEST:
        return False
    _make_room(history, 1)
    os.rename(history, f"{history}.1")
    _compress_all(history)
    return True


def _make_room(history: str, number: int) -> None:
    """Let no file have this number: each has the next one then, up to a gap.

    The last one is removed.
    """
    ends = [end for end in ("", _PACKED) if os.path.lexists(f"{history}.{number}{end}")]
    if ends and number < MOST_FILES:
        _make_room(history, number + 1)
    for end in ends:
        path = f"{history}.{number}{end}"
        if number < MOST_FILES:
            os.rename(path, f"{history}.{number + 1}{end}")
        else:
            os.unlink(path)


def _compress_all(history: str) -> None:
    """Compress all former files but `.1`."""
    for number in range(2, MOST_FILES + 1):
        path = f"{history}.{number}"
        if os.path.lexists(path):
            with (
                files.opened(path) as descriptor,
                os.fdopen(descriptor, "rb", closefd=False) as content,
            ):
                if _is_complete(descriptor):
                    _compress(path, content)


def _is_complete(descriptor: int) -> bool:
    """Whether no process has a file open to write: fcntl(2), F_SETLEASE.

    On a file system without leases (NFS) it counts as complete.
    """
    setting, shared, none = system.fcntl.F_SETLEASE, system.fcntl.F_RDLCK, system.fcntl.F_UNLCK
    try:
        system.fcntl.fcntl(descriptor, setting, shared)
        system.fcntl.fcntl(descriptor, setting, none)
    except OSError as error:
        return error.errno != errno.EAGAIN
    return True


def _compress(path: str, content: IO[bytes]) -> None:
    packed = path + _PACKED
    if os.path.lexists(packed) and _read_first(packed) != content.readline(_PIECE):
        raise files.Unreadable(
            packed, "not made of the file without .gz: give it another number", errno.EEXIST
        )
    content.seek(0)
    directory, name = os.path.split(packed)
    with (
        files.replace_file(packed, os.path.join(directory, f".{name}.tmp")) as temporary,
        files.opened_to_write(temporary, 0o600) as raw,
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as stream,
    ):
        while piece := content.read(_PIECE):
            stream.write(piece)
    os.unlink(path)


def _read_first(packed: str) -> bytes:
    """Read the first line of a compressed file; nothing of one that is damaged."""
    with (
        suppress(OSError, EOFError, zlib.error),
        files.opened(packed) as descriptor,
        os.fdopen(descriptor, "rb", closefd=False) as raw,
    ):
        return gzip.GzipFile(fileobj=raw).readline(_PIECE)
    return b""
