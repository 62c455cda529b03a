# SPDX-License-Identifier: Apache-2.0
"""Reads every file that is not our own record: configurations, bundles, /proc of other processes.

A path may name anything: a FIFO, a device, a file without end, JSON that is nested a million deep.
Each function here ends, in bounded memory, and fails in one way: Unreadable. A test forbids every
other way to open, list or match files, except `system`, which is for our own records.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import IO, Any

from hook import formats

CONFIGURATION = 4 << 20
"""The limit, in bytes, for a configuration file. Real ones have a thousandth of that."""
BUNDLE = 16 << 20
"""The limit, in bytes, for a bundle's config.json, as on the hook path:
a pod's author can make it a few MiB long.
"""
NAMES = 10_000
"""The limit for the entries of a directory, and for the matches of a pattern."""

_IS_PATTERN = re.compile(r"[*?[\\]")


class Unreadable(OSError):
    """A file could not be read. `why` is the name of an errno, or a sentence."""

    def __init__(self, path: str, why: str, number: int = errno.EINVAL) -> None:
        super().__init__(number, why, path)
        self.why = why

    @property
    def is_missing(self) -> bool:
        """Whether the file does not exist."""
        return self.errno == errno.ENOENT

    def __str__(self) -> str:
        return f"{self.filename}: {self.why}"


@contextmanager
def _failing(path: str) -> Iterator[None]:
    """Turn each failure to look at a path into Unreadable."""
    try:
        yield
    except Unreadable:
        raise
    except OSError as error:
        raise Unreadable(
            path, errno.errorcode.get(error.errno or 0, str(error)), error.errno or errno.EIO
        ) from None
    except ValueError as error:  # the path has a NUL, or half of a surrogate pair
        raise Unreadable(ascii(path), str(error)) from None


def _check_kind(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise Unreadable(path, "not a regular file")


@contextmanager
def opened(path: str) -> Iterator[int]:
    """Open a regular file, and yield its descriptor. Raises Unreadable."""
    with _failing(path):
        # Check the file type before open(), since opening a device or a FIFO has side effects, and
        # again after it, since the path may have been swapped.
        _check_kind(path, os.stat(path))
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        with _failing(path):
            _check_kind(path, os.fstat(descriptor))
        yield descriptor
    finally:
        os.close(descriptor)


def read(path: str, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes. Raises Unreadable."""
    content = read_head(path, limit + 1)
    if len(content) > limit:
        raise Unreadable(path, f"larger than {limit} bytes", errno.EFBIG)
    return content


def read_head(path: str, size: int) -> bytes:
    """Read the first `size` bytes of a regular file. Raises Unreadable."""
    with opened(path) as descriptor, _failing(path):
        content = b""
        # In growing pieces: a single read would allocate `size` bytes, however short the file is.
        while piece := os.read(descriptor, min(65536 + len(content), size - len(content))):
            content += piece
    return content


def read_text(path: str, limit: int) -> str:
    """Read a regular UTF-8 file of at most `limit` bytes. Raises Unreadable."""
    try:
        return read(path, limit).decode()
    except UnicodeDecodeError as error:
        raise Unreadable(path, f"not UTF-8 at byte {error.start}") from None


def read_json(path: str, limit: int) -> Any:  # noqa: ANN401  that is what JSON is
    """Read the value in a JSON file of at most `limit` bytes.

    Raises Unreadable, also for a number of absurd length.
    """
    try:
        return formats.loads(read_text(path, limit))
    except ValueError as error:
        raise Unreadable(path, str(error)) from None


def read_toml(path: str, limit: int) -> dict[str, Any]:
    """Read the tables of a TOML file of at most `limit` bytes.

    Raises Unreadable, for any file before Python 3.11.
    """
    text = read_text(path, limit)
    try:
        import tomllib  # type: ignore[import-not-found]

        tables: dict[str, Any] = tomllib.loads(text)
    except ImportError:
        raise Unreadable(path, "needs Python 3.11 to read TOML") from None
    except (ValueError, RecursionError) as error:
        raise Unreadable(path, f"not TOML: {error}") from None
    return tables


def list_names(path: str, most: int | None = None) -> list[str]:
    """Return the names in a directory, sorted.

    Raises Unreadable, also if there are more than `most` (NAMES).
    """
    most = NAMES if most is None else most
    with _failing(path), os.scandir(path) as entries:  # opendir(3) opens nothing but a directory
        names = [entry.name for entry in islice(entries, most + 1)]
    if len(names) > most:
        raise Unreadable(path, f"more than {most} entries", errno.EFBIG)
    return sorted(names)


def list_if_there(path: str, most: int | None = None) -> list[str]:
    """Return the names in a directory, sorted, or no names if it does not exist.

    Raises Unreadable.
    """
    try:
        return list_names(path, most)
    except Unreadable as error:
        if error.is_missing:
            return []
        raise


def match(pattern: str, most: int | None = None) -> list[str]:
    """Return the paths that a pattern matches as in Go,
    where `*` also matches the dot of a hidden file.

    A directory that does not exist matches nothing. Raises Unreadable,
    also if there are more than `most`.
    """
    most = NAMES if most is None else most
    directory, name = os.path.split(pattern)
    if not _IS_PATTERN.search(pattern) or directory == pattern:
        return [pattern]
    paths: list[str] = []
    for top in filter(os.path.isdir, match(directory, most)):
        names = [name]
        if _IS_PATTERN.search(name):
            names = fnmatch.filter(list_if_there(top, most), name.replace("[^", "[!"))
        paths += filter(os.path.lexists, (os.path.join(top, entry) for entry in names))
        if len(paths) > most:
            raise Unreadable(pattern, f"matches more files than {most}", errno.EFBIG)
    return paths


# --- Files that are replaced: a reader, or a crash, sees the old or the new content, never a part
# of it


@contextmanager
def replace_file(path: str, temporary: str) -> Iterator[str]:
    """Rename `temporary`, which the caller makes, to `path`.

    After an exception `path` is unchanged.

    Both are in the same directory. A file that a killed process left at
    `temporary` is removed first.
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


def write_durably(path: str, content: bytes, mode: int) -> None:
    """Write a new file, and wait until the disk has it.

    Raises FileExistsError for a file or a link that exists.
    """
    with opened_to_write(path, mode) as file:
        file.write(content)


@contextmanager
def opened_to_write(path: str, mode: int) -> Iterator[IO[bytes]]:
    """Yield a new file to write to, and wait afterwards until the disk has it.

    Raises FileExistsError.
    """
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
    ) as file:
        yield file
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def sync_directory(path: str) -> None:
    """Wait until the disk has the names in a directory."""
    descriptor = open_to_lock(path)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_to_lock(path: str) -> int:
    """Open a directory for flock(2) or fsync(2). Raises OSError."""
    return os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
