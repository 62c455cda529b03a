# SPDX-License-Identifier: Apache-2.0
"""Reads all files that are not our own records: configurations, bundles, /proc of other processes.

A path may name anything: a FIFO, a device, a file without end, JSON that is nested a million deep, a link that leads
out of the root directory below which it is looked up. Each function here ends, in bounded memory, and fails in one way:
Unreadable. A test forbids every other way to open, list or match files, except `system`, which is for our own records.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hook import jsontext

CONFIGURATION = 4 << 20
"""Bytes of a configuration file, which has a thousandth of that."""
BUNDLE = 16 << 20
"""Bytes of a bundle's config.json, as on the hook path: a pod's author can make it a few MiB long."""
NAMES = 10_000
"""Entries of a directory that is read for its files."""

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE = 1 << 16
_MOST_LINKS = 40  # like the kernel
_MOST_STEPS = 4096  # components of a path, with those of the links in it
_IS_PATTERN = re.compile(r"[*?[\\]")


class Unreadable(OSError):
    """A file that could not be read. `why`: the name of an errno, or a sentence."""

    def __init__(self, path: str, why: str, number: int = errno.EINVAL) -> None:
        super().__init__(number, why, path)
        self.why = why

    @property
    def is_missing(self) -> bool:
        """Whether the file does not exist."""
        return self.errno == errno.ENOENT

    def __str__(self) -> str:
        return f"{self.filename}: {self.why}"


@dataclass(frozen=True)
class Tree:
    """The files as a process sees them. `root`: its root directory, empty if it is ours; `cwd`: its current one.

    Below another root each link is resolved as for that process, component by component, on descriptors: no link leads
    out of it, even if it changes meanwhile.
    """

    root: str = ""
    cwd: str = "/"

    def at(self, path: str) -> str:
        """A name for a path of the process, to print or to compare. Opened by this name, it may be another file."""
        return self.root + os.path.normpath(os.path.join(self.cwd, path))

    @contextmanager
    def opened(self, path: str, kind: int = stat.S_IFREG) -> Iterator[int]:
        """A descriptor of the regular file, or the directory, that a path leads to. Raises Unreadable."""
        with _failing(path):
            descriptor = self._open(path, kind)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self, path: str, kind: int) -> int:
        whole = os.path.join(self.cwd, path)
        # Before it is opened, which starts some devices and wakes a FIFO's writer; and after: it may have changed.
        if self.root:
            with _walk(self.root, whole) as found:
                _check_kind(path, os.fstat(found), kind)
                return os.open(f"/proc/self/fd/{found}", _FLAGS)
        _check_kind(path, os.stat(whole), kind)
        descriptor = os.open(whole, _FLAGS)
        try:
            _check_kind(path, os.fstat(descriptor), kind)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def stat(self, path: str) -> os.stat_result | None:
        """The status of the file at a path; None: it does not exist, or stat(2) fails."""
        try:
            return self.find(path)
        except Unreadable:
            return None

    def find(self, path: str) -> os.stat_result | None:
        """The status of the file at a path; None: it does not exist. Raises Unreadable."""
        whole = os.path.join(self.cwd, path)
        try:
            with _failing(path):
                if not self.root:
                    return os.stat(whole)
                with _walk(self.root, whole) as found:
                    return os.fstat(found)
        except Unreadable as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            raise

    def read(self, path: str, limit: int) -> bytes:
        """The content of a regular file of at most `limit` bytes. Raises Unreadable."""
        content = self.read_head(path, limit + 1)
        if len(content) > limit:
            raise Unreadable(path, f"larger than {limit} bytes", errno.EFBIG)
        return content

    def read_head(self, path: str, size: int) -> bytes:
        """The first `size` bytes of a regular file. Raises Unreadable."""
        with self.opened(path) as descriptor, _failing(path):
            content = b""
            # In growing pieces: a single read would allocate `size` bytes, however short the file is.
            while piece := os.read(descriptor, min(_PIECE + len(content), size - len(content))):
                content += piece
        return content

    def read_pieces(self, path: str) -> Iterator[bytes]:
        """The content of a regular file of any size, in small pieces. Raises Unreadable."""
        with self.opened(path) as descriptor, _failing(path):
            while piece := os.read(descriptor, _PIECE):
                yield piece

    def read_text(self, path: str, limit: int) -> str:
        """The text of a regular UTF-8 file of at most `limit` bytes. Raises Unreadable."""
        try:
            return self.read(path, limit).decode()
        except UnicodeDecodeError as error:
            raise Unreadable(path, f"not UTF-8 at byte {error.start}") from None

    def read_json(self, path: str, limit: int) -> Any:  # noqa: ANN401  that is what JSON is
        """The value in a JSON file of at most `limit` bytes. Raises Unreadable, also for a number of absurd length."""
        try:
            return jsontext.loads(self.read_text(path, limit))
        except ValueError as error:
            raise Unreadable(path, str(error)) from None

    def read_toml(self, path: str, limit: int) -> dict[str, Any]:
        """The tables of a TOML file of at most `limit` bytes. Raises Unreadable, with an old Python for each file."""
        text = self.read_text(path, limit)
        try:
            import tomllib  # type: ignore[import-not-found]

            found: dict[str, Any] = tomllib.loads(text)
        except ImportError:
            raise Unreadable(path, "needs Python 3.11 to read TOML") from None
        except (ValueError, RecursionError) as error:
            raise Unreadable(path, f"not TOML: {error}") from None
        return found

    def list_names(self, path: str) -> list[str]:
        """The names in a directory, sorted. Raises Unreadable, also if there are more than NAMES."""
        with self.opened(path, stat.S_IFDIR) as descriptor, _failing(path), os.scandir(descriptor) as entries:
            names = [entry.name for entry in islice(entries, NAMES + 1)]
        if len(names) > NAMES:
            raise Unreadable(path, f"more than {NAMES} entries", errno.EFBIG)
        return sorted(names)

    def match(self, pattern: str, budget: Budget) -> list[str]:
        """The paths that a pattern matches as in Go: `*` also matches the dot of a hidden file.

        Directories that do not exist match nothing. `budget` limits the names that are read. Raises Unreadable.
        """
        directory, name = os.path.split(pattern)
        if not _IS_PATTERN.search(pattern) or directory == pattern:
            return [pattern]
        tops = self.match(directory, budget)
        if not _IS_PATTERN.search(name):
            return [path for path in (os.path.join(top, name) for top in tops) if self.find(path) is not None]
        found = []
        for top in tops:
            try:
                names = self.list_names(top)
            except Unreadable as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR):
                    continue
                raise
            budget.spend(top, len(names))
            found += [os.path.join(top, it) for it in names if fnmatch.fnmatchcase(it, name.replace("[^", "[!"))]
        return found


class Budget:
    """The number of names that the patterns of one configuration may read: `/*/*/*/*` matches most of a machine."""

    def __init__(self, names: int = NAMES) -> None:
        self._names = self._left = names

    def spend(self, path: str, names: int) -> None:
        """Subtract the number of a directory's names. Raises Unreadable if that exceeds the budget."""
        self._left -= names + 1
        if self._left < 0:
            raise Unreadable(path, f"not listed: the patterns already match {self._names} names", errno.EFBIG)


HOST = Tree()
"""The files as this program sees them."""
read, read_head, read_text, read_json = HOST.read, HOST.read_head, HOST.read_text, HOST.read_json
read_pieces, list_names = HOST.read_pieces, HOST.list_names


def list_if_there(path: str) -> list[str]:
    """The names in a directory, sorted; none if it does not exist. Raises Unreadable."""
    try:
        return list_names(path)
    except Unreadable as error:
        if error.is_missing:
            return []
        raise


@contextmanager
def _walk(root: str, path: str) -> Iterator[int]:
    """Yield an O_PATH descriptor of a path below a root directory, which no link leads out of. Raises OSError."""
    way = [os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
    waiting = path.split("/")[::-1]
    links = steps = 0
    try:
        while waiting:
            name = waiting.pop()
            steps += 1
            if steps > _MOST_STEPS:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
            if name == "..":
                _go_back(way, max(len(way) - 1, 1))
            elif name not in ("", "."):
                way.append(os.open(name, _PATH, dir_fd=way[-1]))
                if stat.S_ISLNK(os.fstat(way[-1]).st_mode):
                    links += 1
                    if links > _MOST_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                    target = os.readlink("", dir_fd=way[-1])
                    _go_back(way, 1 if target.startswith("/") else len(way) - 1)
                    waiting += target.split("/")[::-1]
        yield way[-1]
    finally:
        _go_back(way, 0)


def _go_back(way: list[int], depth: int) -> None:
    while len(way) > depth:
        os.close(way.pop())


def _check_kind(path: str, found: os.stat_result, kind: int) -> None:
    if stat.S_IFMT(found.st_mode) != kind:
        is_file = kind == stat.S_IFREG
        raise Unreadable(path, "not a regular file") if is_file else Unreadable(path, "ENOTDIR", errno.ENOTDIR)


@contextmanager
def _failing(path: str) -> Iterator[None]:
    """Turn each failure to look at a path into Unreadable."""
    try:
        yield
    except Unreadable:
        raise
    except OSError as error:
        why = errno.errorcode.get(error.errno or 0, str(error))
        raise Unreadable(path, why, error.errno or errno.EIO) from None
    except ValueError as error:  # a NUL in it, or half of a surrogate pair
        raise Unreadable(ascii(path), str(error)) from None


# --- Files that are replaced: a reader, or a crash, sees the old or the new content, never a part of it


@contextmanager
def replace_file(path: str, temporary: str) -> Iterator[str]:
    """Rename `temporary`, which the caller makes, to `path`. After an exception `path` is unchanged.

    Both are in the same directory. First removes a file that a killed process left at `temporary`.
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
    """Write a new file, and wait until the disk has it. FileExistsError: there is a file, or a link."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
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
    """A descriptor of a directory, for flock(2) or fsync(2). Raises OSError."""
    return os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
