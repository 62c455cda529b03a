# SPDX-License-Identifier: Apache-2.0
"""Replaces a file at once and durably: a reader, or a crash, sees the old or the new content, never a part of it."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress

from hook.node import door

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def replace(path: str, temporary: str) -> Iterator[str]:
    """Rename `temporary`, which the caller makes, to `path`. After an exception `path` is unchanged.

    Both are in the same directory. First removes what a process that was killed left at `temporary`.
    """
    with suppress(FileNotFoundError):
        os.unlink(temporary)
    try:
        yield temporary
        os.rename(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_directory(os.path.dirname(path))


def write_new(path: str, content: bytes, mode: int) -> None:
    """Write a new file to the disk. FileExistsError if there is one, or a link."""
    with os.fdopen(door.create(path), "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def sync_directory(path: str) -> None:
    """Write the names in a directory to the disk."""
    descriptor = door.open_directory(path)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
