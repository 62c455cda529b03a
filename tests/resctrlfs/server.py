# SPDX-License-Identifier: Apache-2.0
"""The model, mounted with libfuse 3 through mfusepy. One process, one mount; root only.

FUSE operations come one at a time, in the main thread; the control socket has a thread;
one lock covers both.

What FUSE cannot show:
 * statfs's f_type; /proc/PID/cpu_resctrl_groups (ask the control socket); mount options, a second
   mount
 * of what was removed and is still open: fstat (ESTALE; the kernel: as ever), anything relative to
   a directory (ESTALE; the kernel: ENOENT)
 * tasks' groups come from /proc, at the next look: of the leader of the parent's process, whichever
   thread forked; that of init, if the parent was gone by then; and a thread that called execve is
   its process's leader
Never meant to: a write to `tasks` is one decimal number; cpus, schemata and mode take everything
and do nothing, they and most of info are there to be listed only; no chmod, no rename, no links, no
CDP, no pseudo-locking, no read-only mount; races, as everything happens one after another;
assignable counters (AMD), MPAM (arm64).
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable

import mfusepy  # type: ignore[import-untyped]  # it has no py.typed

from tests.resctrlfs.events import Event, EventLog, Seen, look
from tests.resctrlfs.model import Knobs, ModelFile, ResctrlModel, fail
from tests.resctrlfs.places import SUBTYPE

ENDED_BY_SIGNAL = 8
"""fuse_main(3)'s result for it."""
LOCKED = (
    "getattr",
    "opendir",
    "readdir",
    "releasedir",
    "mkdir",
    "rmdir",
    "unlink",
    "open",
    "release",
    "read",
    "write",
)


@dataclass
class OpenFile:
    """An open file or directory.

    `text` is what the first read saw: as in a seq_file, the later ones go on with it.
    """

    node: ModelFile
    text: bytes = b""


class ResctrlOperations:
    """What mfusepy calls.

    Not derived from mfusepy.Operations: only what is here is to be announced to libfuse.
    """

    use_ns = True
    # Descriptors of a removed group have no path any more, but must still be answered (with
    # ENODEV). With this no descriptor's path is given.
    flag_nopath = True
    flag_nullpath_ok = True

    def __init__(self, knobs: Knobs, log: Path, on_ready: Callable[[], None]) -> None:
        self.guard = threading.RLock()
        self.log = EventLog(log)
        self.begin(knobs)
        self._on_ready = on_ready
        self._files: dict[int, OpenFile] = {}
        self._handles = itertools.count(1)
        for name in LOCKED:
            setattr(self, name, functools.partial(self._with_guard, getattr(self, name)))

    def begin(self, knobs: Knobs) -> None:
        """Begin with a machine; what is open stays the former one's."""
        self.model = ResctrlModel(knobs)
        self.tasks = self.model.tasks

    def _with_guard(self, method: Callable[..., object], *arguments: Any) -> object:  # noqa: ANN401  of any operation
        with self.guard:
            return method(*arguments)

    def init_with_config(self, _: object, config: mfusepy.fuse_config) -> None:
        config.entry_timeout = config.attr_timeout = self.model.knobs.names_ms / 1000
        config.negative_timeout = 0.0
        config.direct_io = config.hard_remove = config.use_ino = config.nullpath_ok = 1
        threading.Thread(target=self._on_ready, daemon=True).start()

    # ---- names ----

    def getattr(self, path: str | None, fh: int | None = None) -> dict[str, int]:
        if path is None or (fh is not None and fh in self._files):
            attr = self.model.attr(self._file(fh).node)
        else:
            attr = self.model.getattr(path)
        shown = {
            "st_mode": attr.mode,
            "st_nlink": attr.nlink,
            "st_ino": attr.ino,
            "st_blksize": 4096,
        }
        return {**shown, "st_ctime": self.model.mounted_at}

    def opendir(self, path: str) -> int:
        return self._keep(self.model.resolve(path))

    def readdir(self, _: str | None, fh: int) -> list[tuple[str, dict[str, int], int]]:
        node = self._file(fh).node
        names = {name: self.model.attr(below) for name, below in self.model.entries(node).items()}
        here = self.model.attr(node)
        # An entry without inode number would be skipped by readdir(3).
        attrs = {".": here, "..": here, **names}
        return [
            (name, {"st_mode": attr.mode, "st_ino": attr.ino}, 0) for name, attr in attrs.items()
        ]

    def releasedir(self, _: str | None, fh: int) -> int:
        del self._files[fh]
        return 0

    def statfs(self, _: str) -> dict[str, int]:
        return {"f_bsize": 4096, "f_namemax": 255}

    def mkdir(self, path: str, mode: int) -> int:
        return self._logged(lambda: self.model.mkdir(path, mode & 0o7777), Event("mkdir", path))

    def rmdir(self, path: str) -> int:
        return self._logged(lambda: self.model.rmdir(path), Event("rmdir", path))

    def unlink(self, path: str) -> None:
        self.model.unlink(path)

    def create(self, _path: str, _mode: int, _flags: int) -> int:
        # No file can be made: the VFS says this, not EPERM, to open(O_CREAT)
        fail(errno.EACCES if self.model.mounted else errno.ENOENT)

    # ---- files ----

    def open(self, path: str, flags: int) -> int:
        return self._keep(self.model.open(path, flags))

    def release(self, _: str | None, fh: int) -> int:
        del self._files[fh]
        return 0

    def truncate(self, _path: str | None, _length: int, _fh: int | None = None) -> int:
        return 0  # kernfs takes O_TRUNC and does nothing

    def read(self, _: str | None, size: int, offset: int, fh: int) -> bytes:
        file = self._file(fh)
        if offset == 0 or file.node.group.removed:
            reader = mfusepy.fuse_get_context()[2]
            file.text = self.model.read_node(file.node, reader).encode(errors="surrogateescape")
        return file.text[offset : offset + size]

    def write(self, _: str | None, data: bytes, _offset: int, fh: int) -> int:
        node = self._file(fh).node
        writer = mfusepy.fuse_get_context()[2]
        if node.rel != "tasks":
            return self.model.write_node(node, data, writer)
        event = Event("tasks", node.path, pids=[self._look(data, writer)])
        self._logged(lambda: self.model.write_node(node, data, writer), event)
        return len(data)

    def _keep(self, node: ModelFile) -> int:
        handle = next(self._handles)
        self._files[handle] = OpenFile(node)
        return handle

    def _file(self, fh: int | None) -> OpenFile:
        return self._files[fh] if fh is not None and fh in self._files else fail(errno.EBADF)

    def _look(self, data: bytes, writer: int) -> Seen:
        number = int(data)
        tid = self.tasks.resolve(writer, number) if number else writer
        return look(tid) if tid is not None else Seen(number)

    def _logged(self, action: Callable[[], object], event: Event) -> int:
        """Do it, and have it in the log before the caller learns how it went,
        which `event` lacks.
        """
        result = "EINVAL"  # what mfusepy makes of an exception that is no OSError
        try:
            action()
            result = "ok"
        except OSError as error:
            result = errno.errorcode.get(error.errno or 0, str(error.errno))
            raise
        finally:
            self.log.append(replace(event, result=result))
        return 0


def serve(mountpoint: Path, operations: ResctrlOperations) -> None:
    """Mount, and serve until unmounted or ended by SIGTERM (libfuse unmounts then).

    Errors: RuntimeError.
    """
    try:
        mfusepy.FUSE(
            operations,
            str(mountpoint),
            foreground=True,
            nothreads=True,
            fsname="resctrl",
            subtype=SUBTYPE,
            allow_other=True,
            default_permissions=True,
        )
    except RuntimeError as error:
        if error.args != (ENDED_BY_SIGNAL,):
            raise


def announce(mountpoint: Path) -> None:
    """Print `ready` when the mount has answered. Runs beside the loop that answers."""
    os.listdir(mountpoint)
    print("ready", flush=True)
