# SPDX-License-Identifier: Apache-2.0
"""What can be in the place of a file of ours, and was not written by us."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from functools import partial
from pathlib import Path
from typing import Callable

from tests.support.hook import UID

Spoil = Callable[[Path], object]
ANOTHER = b'{"version": 1, "key": "other", "kind": "pod"}'
"""A record that is right, but is of another key."""
GIANT = 17 << 20
"""Bytes; more than any file of ours has."""


def identity(path: Path) -> tuple[int, int] | None:
    """Tells whether what is there is still the same; None: nothing is there."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_size


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif identity(path) is not None:
        path.unlink()


def _anew(make: Spoil, path: Path) -> None:
    remove(path)
    make(path)


def _written(text: bytes) -> Spoil:
    return partial(_anew, partial(_write, text))


def _write(text: bytes, path: Path) -> None:
    path.write_bytes(text)


def _neighbour(path: Path) -> Path:
    """A file of others."""
    top = next(parent for parent in path.parents if (parent / "neighbour").exists())
    return top / "neighbour" / f"{UID}.json"


def _link(path: Path) -> None:
    path.symlink_to(_neighbour(path))


def _link_to_directory(path: Path) -> None:
    path.symlink_to(_neighbour(path).parent)


def _dangling(path: Path) -> None:
    path.symlink_to(_neighbour(path).with_name("not-there"))


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _full_directory(path: Path) -> None:
    (path / "of" / "directories").mkdir(parents=True)


def _socket(path: Path) -> None:
    here = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def _device(path: Path) -> None:
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero


def _giant(path: Path) -> None:
    path.touch()
    os.truncate(path, GIANT)


def _others(path: Path) -> None:
    if identity(path) is None:
        path.touch()
    os.chown(path, 1000, 1000, follow_symlinks=False)
    if not path.is_symlink():
        path.chmod(0)


def _writable(path: Path) -> None:
    if identity(path) is None:
        path.mkdir()
    path.chmod(0o777)


FILES: dict[str, Spoil] = {
    "removed": remove,
    "a link to a file of others": partial(_anew, _link),
    "a dangling link": partial(_anew, _dangling),
    "a link to itself": partial(_anew, _loop),
    "an empty directory": partial(_anew, os.mkdir),
    "a directory": partial(_anew, _full_directory),
    "a FIFO": partial(_anew, os.mkfifo),
    "a socket": partial(_anew, _socket),
    "a device": partial(_anew, _device),
    "empty": _written(b""),
    "zeros": _written(b"\0" * 4096),
    "no text": _written(b"\xff\xfe{"),
    "a list": _written(b"[]"),
    "an object": _written(b"{}"),
    "nested deeply": _written(b"[" * 100_000),
    "a giant": partial(_anew, _giant),
    "a number of many digits": _written(b'{"version": 1' + b"0" * 10_000 + b"}"),
    "of a newer version": _written(b'{"version": 2, "key": "%s"}' % UID.encode()),
    "of another key": _written(ANOTHER),
    "of a key that is a path": _written(b'{"version": 1, "key": "../../neighbour/%s", "kind": "pod"}' % UID.encode()),
    "of another user": _others,
}
DIRECTORIES: dict[str, Spoil] = {
    "removed": remove,
    "a dangling link": partial(_anew, _dangling),
    "a file": _written(b""),
    "of another user": _others,
    "writable by all": _writable,
}
RUN_DIRECTORY: dict[str, Spoil] = {**DIRECTORIES, "a link to a directory of others": partial(_anew, _link_to_directory)}
"""What root puts in it may be a link to elsewhere, but not it itself."""
