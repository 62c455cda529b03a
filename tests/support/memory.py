# SPDX-License-Identifier: Apache-2.0
"""A machine in memory: hook.base.system gets it in place of `posix`, `fcntl`, `select` and `time`.

It has no disk and no clock. A hook runs on it from its start to its end within the process that tests it, some thousand
times a second. Each change to a file is noted, and each system call counted: what would hang is seen
without waiting for it.
"""

from __future__ import annotations

import errno
import os
import posix
import re
import stat
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    from types import ModuleType

RESCTRL = "/sys/fs/resctrl"
COUNTERS = {"mon_L3_00/llc_occupancy": "4096", "mon_PERF_PKG_00/core_energy": "5.500000"}
MOST_CALLS = 20_000
NOW = 1_000_000.0
_IN_MON_GROUPS = re.compile(re.escape(RESCTRL) + r"(/[^/]+)?/mon_groups")


class Hang(BaseException):
    """More system calls than any hook makes."""


Content = Union[bytearray, dict[str, "Inode"], str]


class Inode:
    """A file, a directory or a link: its content is bytes, nodes by name, or a path."""

    __slots__ = ("content", "ino", "mode")

    def __init__(self, mode: int, content: Content, ino: int) -> None:
        self.mode = mode
        self.content = content
        self.ino = ino


class Lookup:
    """Where a path leads: the directories on the way, each by its name, and what the last has of the last name."""

    __slots__ = ("name", "node", "way")

    def __init__(self, way: list[tuple[str, Inode]], name: str, node: Inode | None) -> None:
        self.way = way
        self.name = name
        self.node = node

    @property
    def parent(self) -> dict[str, Inode]:
        content = self.way[-1][1].content
        assert isinstance(content, dict)
        return content

    @property
    def directory(self) -> str:
        return "/".join(name for name, _ in self.way) or "/"

    @property
    def path(self) -> str:
        return self.directory.rstrip("/") + "/" + self.name if self.name else self.directory


def _refused(number: int, path: object = None) -> OSError:
    return OSError(number, os.strerror(number), *([] if path is None else [path]))


class MachineInMemory:
    """`changes` are the calls that changed a file, each as its name and its real path; `stderr` what was said there.

    Every pid is a process: what /proc shows of it is in `process`, unless /proc `hides_processes`. Groups have what a
    mon_group has as soon as they are made below RESCTRL, and go whole.
    """

    def __init__(self, stdin: bytes = b"", process: dict[str, bytes] | None = None) -> None:
        self.stdin = stdin
        self.stderr = b""
        self.syslog: list[str] = []
        self.changes: list[tuple[str, str]] = []
        self.calls = 0
        self.now = NOW
        self.hides_processes = False
        self._nodes = 0
        self._root = self._directory()
        self._open: dict[int, list[Any]] = {}  # the place, and the next offset
        self._process = self._directory()
        namespaces = self._directory()
        namespaces.content = {"pid": self._node(stat.S_IFLNK | 0o777, "pid:[4026531836]")}  # the host's
        self._process.content = {"ns": namespaces}
        for name, text in (process or {}).items():
            self.shows(name, text)
        for path in ("/proc/1", "/run", f"{RESCTRL}/mon_groups", f"{RESCTRL}/info", f"{RESCTRL}/mon_data"):
            self.add_directory(path)

    # --- What a test does

    def stands_in(self, system: ModuleType) -> None:
        """Let a copy of hook.base.system work on this machine."""
        poll = SimpleNamespace(register=lambda *_: None, poll=lambda *_: [(0, 0xFF)])
        system.posix = self  # type: ignore[attr-defined]
        system.fcntl = SimpleNamespace(flock=lambda *_: None, LOCK_EX=2, LOCK_NB=4)  # type: ignore[attr-defined]
        system.select = SimpleNamespace(poll=lambda: poll, POLLIN=1, POLLOUT=4)  # type: ignore[attr-defined]
        system.time = SimpleNamespace(  # type: ignore[attr-defined]
            monotonic=lambda: self.now,
            clock_gettime=lambda _: self.now,
            CLOCK_BOOTTIME=7,
            sleep=self._sleep,
            strftime=lambda *_: "2026-01-02T03:04:05Z",
            gmtime=lambda _: None,
            localtime=lambda: None,
        )

    def add_directory(self, path: str) -> None:
        """A directory, and those above it."""
        content = self._root.content
        for name in path.strip("/").split("/"):
            assert isinstance(content, dict)
            content = content.setdefault(name, self._directory()).content

    def add(self, path: str, text: bytes) -> None:
        """A file, and the directories above it."""
        above, _, name = path.rpartition("/")
        self.add_directory(above)
        self._find(os.fsencode(path)).parent[name] = self._file(text)

    def shows(self, name: str, text: bytes) -> None:
        """Let /proc show this of every process from now on."""
        assert isinstance(self._process.content, dict)
        self._process.content[name] = self._file(text)

    def remove(self, path: str) -> None:
        """Take away what is there, whole."""
        place = self._find(os.fsencode(path))
        del place.parent[place.name]

    def exists(self, path: str) -> bool:
        try:
            return self._find(os.fsencode(path)).node is not None
        except OSError:  # a path that cannot be, too
            return False

    def files(self, top: str = "/") -> dict[str, bytes | str]:
        """What is below a directory: the content of files, the targets of links, and of an empty directory nothing."""
        node = self._find(os.fsencode(top)).node if self.exists(top) else None
        return dict(_below(top.rstrip("/"), node)) if node is not None else {}

    # --- posix

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  constants; a call that is not made here is none of the hook's
        if not name.startswith("O_"):
            raise AttributeError(name)
        return getattr(posix, name)

    def open(self, path: bytes, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        self._count()
        place = self._find(path, dir_fd, follow=not flags & os.O_NOFOLLOW)
        node = place.node
        if node is None:
            if not flags & os.O_CREAT:
                raise _refused(errno.ENOENT, path)
            node = self._make(place, "create", stat.S_IFREG | mode & 0o755, bytearray())
        elif flags & os.O_CREAT and flags & os.O_EXCL:
            raise _refused(errno.EEXIST, path)
        if stat.S_ISLNK(node.mode):
            raise _refused(errno.ENOTDIR if flags & os.O_DIRECTORY else errno.ELOOP, path)
        if stat.S_ISDIR(node.mode):
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                raise _refused(errno.EISDIR, path)
        elif flags & os.O_DIRECTORY:
            raise _refused(errno.ENOTDIR, path)
        elif flags & (os.O_WRONLY | os.O_RDWR):
            self._change("write", place)
            if flags & os.O_TRUNC:
                node.content = bytearray()
        descriptor = max(self._open, default=2) + 1
        self._open[descriptor] = [Lookup(place.way, place.name, node), 0]
        return descriptor

    def close(self, descriptor: int) -> None:
        self._count()
        self._opened(descriptor)
        del self._open[descriptor]

    def read(self, descriptor: int, size: int) -> bytes:
        self._count()
        if descriptor == 0:
            data, self.stdin = self.stdin[:size], self.stdin[size:]
            return data
        place, offset = self._opened(descriptor)
        content = place.node.content
        if not isinstance(content, bytearray):
            raise _refused(errno.EISDIR)
        self._open[descriptor][1] += size
        return bytes(content[offset : offset + size])

    def write(self, descriptor: int, data: bytes) -> int:
        self._count()
        if descriptor == 2:
            self.stderr += data
        else:
            place = self._opened(descriptor)[0]
            if place.name == "tasks" and _IN_MON_GROUPS.fullmatch(os.path.dirname(place.directory)):
                data += b"\n"
            place.node.content += data
        return len(data)

    def lseek(self, descriptor: int, _offset: int, _whence: int) -> int:
        """After an append: the end."""
        self._count()
        return len(self._opened(descriptor)[0].node.content)

    def stat(self, path: bytes, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> SimpleNamespace:
        self._count()
        return _status(_there(self._find(path, dir_fd, follow=follow_symlinks), path))

    def fstat(self, descriptor: int) -> SimpleNamespace:
        self._count()
        return _status(self._root if descriptor <= 2 else self._opened(descriptor)[0].node)

    def mkdir(self, path: bytes, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._count()
        place = self._find(path, dir_fd)
        if place.node is not None:
            raise _refused(errno.EEXIST, path)
        self._make(place, "mkdir", stat.S_IFDIR | mode & 0o755, {})
        if _IN_MON_GROUPS.fullmatch(place.directory):
            self.add(f"{place.path}/tasks", b"")
            for counter, text in COUNTERS.items():
                self.add(f"{place.path}/mon_data/{counter}", text.encode() + b"\n")

    def rmdir(self, path: bytes, *, dir_fd: int | None = None) -> None:
        self._count()
        place = self._find(path, dir_fd)
        content = _there(place, path).content
        if not isinstance(content, dict):
            raise _refused(errno.ENOTDIR, path)
        if content and not _IN_MON_GROUPS.fullmatch(place.directory):
            raise _refused(errno.ENOTEMPTY, path)
        self._remove(place, "rmdir")

    def unlink(self, path: bytes, *, dir_fd: int | None = None) -> None:
        self._count()
        place = self._find(path, dir_fd)
        if stat.S_ISDIR(_there(place, path).mode):
            raise _refused(errno.EISDIR, path)
        self._remove(place, "unlink")

    def rename(self, source: bytes, target: bytes, *, src_dir_fd: int | None, dst_dir_fd: int | None) -> None:
        self._count()
        old, new = self._find(source, src_dir_fd), self._find(target, dst_dir_fd)
        node = _there(old, source)
        if new.node is not None and stat.S_ISDIR(node.mode) != stat.S_ISDIR(new.node.mode):
            raise _refused(errno.EISDIR if stat.S_ISDIR(new.node.mode) else errno.ENOTDIR, target)
        if new.node is not None and isinstance(new.node.content, dict) and new.node.content:
            raise _refused(errno.ENOTEMPTY, target)
        if not new.name or node in [it for _, it in new.way]:
            raise _refused(errno.EINVAL, target)
        self._change("rename", new)
        self._remove(old, "rename")
        new.parent[new.name] = node

    def link(self, source: bytes, target: bytes, *, src_dir_fd: int, dst_dir_fd: int, follow_symlinks: bool) -> None:
        self._count()
        old, new = self._find(source, src_dir_fd, follow=follow_symlinks), self._find(target, dst_dir_fd)
        node = _there(old, source)
        if stat.S_ISDIR(node.mode):
            raise _refused(errno.EPERM, source)
        if new.node is not None:
            raise _refused(errno.EEXIST, target)
        self._change("link", new)
        new.parent[new.name] = node

    def readlink(self, path: bytes) -> bytes:
        self._count()
        node = _there(self._find(path, None, follow=False), path)
        if not isinstance(node.content, str):
            raise _refused(errno.EINVAL, path)
        return node.content.encode("utf-8", "surrogateescape")

    def symlink(self, target: bytes, path: bytes, *, dir_fd: int | None = None) -> None:
        self._count()
        place = self._find(path, dir_fd)
        if place.node is not None:
            raise _refused(errno.EEXIST, path)
        if not target:
            raise _refused(errno.ENOENT, path)
        self._make(place, "symlink", stat.S_IFLNK | 0o777, _text(target))

    def listdir(self, descriptor: int) -> list[str]:
        self._count()
        return list(self._opened(descriptor)[0].node.content)

    def umask(self, _mask: int) -> int:
        return 0o022

    def geteuid(self) -> int:
        return 0

    def getpid(self) -> int:
        return 4711

    # --- How

    def _node(self, mode: int, content: Content) -> Inode:
        self._nodes += 1
        return Inode(mode, content, self._nodes)

    def _directory(self) -> Inode:
        return self._node(stat.S_IFDIR | 0o755, {})

    def _file(self, text: bytes) -> Inode:
        return self._node(stat.S_IFREG | 0o600, bytearray(text))

    def _count(self) -> None:
        self.calls += 1
        if self.calls > MOST_CALLS:
            raise Hang(f"{self.calls} system calls")

    def _sleep(self, seconds: float) -> None:
        self._count()
        self.now += seconds

    def _opened(self, descriptor: int) -> list[Any]:
        if descriptor not in self._open:
            raise _refused(errno.EBADF)
        return self._open[descriptor]

    def _change(self, call: str, place: Lookup) -> None:
        self.changes.append((call, place.path))

    def _make(self, place: Lookup, call: str, mode: int, content: Content) -> Inode:
        self._change(call, place)
        node = place.parent[place.name] = self._node(mode, content)
        return node

    def _remove(self, place: Lookup, call: str) -> None:
        if not place.name:
            raise _refused(errno.EBUSY, place.path)
        self._change(call, place)
        del place.parent[place.name]

    def _find(self, path: bytes, dir_fd: int | None = None, *, follow: bool = False) -> Lookup:
        """Where a path leads, as the kernel walks it (path_resolution(7)); `follow`: the last component, too."""
        text = _text(path)
        if not text:
            raise _refused(errno.ENOENT, path)
        if len(path) > 4095:
            raise _refused(errno.ENAMETOOLONG, path)
        way = [("", self._root)]
        if dir_fd is not None and not text.startswith("/"):
            start = self._opened(dir_fd)[0]
            way = [*start.way, (start.name, start.node)] if start.name else list(start.way)
        return self._walk(way, [name for name in text.split("/") if name not in ("", ".")], follow, path)

    def _walk(self, way: list[tuple[str, Inode]], names: list[str], follow: bool, path: bytes) -> Lookup:
        links = 0
        while names:
            name = names.pop(0)
            if name == "..":
                way = way[:-1] or way
                continue
            node = self._child(way, name, path)
            if node is not None and isinstance(node.content, str) and (names or follow):
                links += 1
                if links > 40:
                    raise _refused(errno.ELOOP, path)
                way = [("", self._root)] if node.content.startswith("/") else way
                names = [it for it in node.content.split("/") if it not in ("", ".")] + names
            elif not names:
                return Lookup(way, name, node)
            elif node is None:
                raise _refused(errno.ENOENT, path)
            else:
                way = [*way, (name, node)]
        return Lookup(way, "", way[-1][1])  # the root, or a path that ends in ..

    def _child(self, way: list[tuple[str, Inode]], name: str, path: bytes) -> Inode | None:
        above = way[-1][1].content
        if not isinstance(above, dict):
            raise _refused(errno.ENOTDIR, path)
        if len(name.encode("utf-8", "surrogateescape")) > 255:
            raise _refused(errno.ENAMETOOLONG, path)
        if len(way) == 2 and way[1][0] == "proc" and (name.isdecimal() or name == "self"):
            return None if self.hides_processes else self._process
        return above.get(name)


def _text(path: bytes) -> str:
    if b"\0" in path:
        raise ValueError("embedded null byte")
    return path.decode("utf-8", "surrogateescape")


def _there(place: Lookup, path: bytes) -> Inode:
    if place.node is None:
        raise _refused(errno.ENOENT, path)
    return place.node


def _status(node: Inode) -> SimpleNamespace:
    size = len(node.content)
    return SimpleNamespace(st_mode=node.mode, st_ino=node.ino, st_dev=1, st_uid=0, st_nlink=1, st_size=size)


def _below(path: str, node: Inode) -> Any:  # noqa: ANN401  a recursive generator
    if isinstance(node.content, dict):
        if not node.content:
            yield path + "/", ""
        for name in sorted(node.content):
            yield from _below(f"{path}/{name}", node.content[name])
    else:
        yield path, bytes(node.content) if isinstance(node.content, bytearray) else "-> " + node.content
