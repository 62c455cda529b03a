# SPDX-License-Identifier: Apache-2.0
"""Gives back the room that counting hooks takes: a byte for each, in files of which the size alone matters (rundir).

What was written becomes a hole, which takes no room, and the size stays. Hooks that append meanwhile lose nothing.
"""

from __future__ import annotations

import os
import stat

from hook.base import system

_PLACE = "runs"
_LITTLE = 4096  # bytes, a page of most machines: the last page of a file stays in any case
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # fallocate(2)


def give_back(run_dir: int) -> None:
    """Make holes of what was counted, in the run directory that this descriptor has open.

    Where that cannot be done (a Python without ctypes, a file system without holes) it is left: it would not be much.
    """
    try:
        for name in system.list_directory(_PLACE, run_dir):
            path = f"{_PLACE}/{name}"
            found = os.stat(path, dir_fd=run_dir, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode) and found.st_blocks * 512 > _LITTLE:
                _punch(path, found.st_size, run_dir)
    except (OSError, ImportError, AttributeError):
        pass


def _punch(path: str, size: int, dir_fd: int) -> None:
    """Make a hole of the first `size` bytes of a file. ImportError or AttributeError if this Python cannot."""
    import ctypes

    libc = ctypes.CDLL(None)
    fallocate = getattr(libc, "fallocate64", None) or libc.fallocate  # musl has one name for both
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW, dir_fd=dir_fd)
    try:
        fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size))
    finally:
        os.close(descriptor)
