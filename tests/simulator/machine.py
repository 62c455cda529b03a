# SPDX-License-Identifier: Apache-2.0
"""A machine below hook.base.system: in place of `posix`, `fcntl`, `select`, `_signal`, `_socket` and the clocks.

Plain files are nodes of pyfakefs' FakeFilesystem, which also the test itself may have as the fixture `fs`; its own path
resolution and FakeOsModule are left out, since they take thirty times as long. The kernel's files are by `kernel`.
"""

from __future__ import annotations

import errno
import os
import posix
import posixpath
import stat
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from pyfakefs.fake_file import FakeDirectory, FakeFile
from pyfakefs.fake_filesystem import FakeFilesystem

from tests.simulator.kernel import RESCTRL, ROOT_CGROUP, Kernel, KernelNode, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

RUN = "/run/resctrl-mon-hook"
NOW = 1_000_000.0
MOST_CALLS = 20_000
_MOUNTS = ("/proc", RESCTRL, ROOT_CGROUP)
_USERS_OF_OS = ("hook.state.", "hook.reconcile.", "hook.watch.")
_OF_GROUPS = ("mkdir", "rmdir")
_LONGEST_PATH, _LONGEST_NAME, _MOST_LINKS = 4095, 255, 40


class EndlessCalls(BaseException):
    """More system calls than any process makes."""


class Caller:
    """The process that makes the system calls: what it is given, what it says, and what it has open."""

    def __init__(self, stdin: bytes = b"") -> None:
        self.stdin = stdin
        self.stderr = b""
        self.calls = 0
        self.descriptors: set[int] = set()
        self.alarm = float("inf")
        self.on_alarm: Callable[[int, object], None] | None = None


class Where:
    """Where a path leads: `parent` has, or would have, `node` by `name`; of the kernel's files only `path` counts."""

    __slots__ = ("name", "node", "parent", "path", "way")

    def __init__(self, way: list[FakeDirectory], name: str, node: Any, path: str) -> None:  # noqa: ANN401
        self.way = way
        self.parent = way[-1] if way else None
        self.name = name
        self.node: FakeFile | KernelNode | None = node
        self.path = path


class OpenDescription:
    """An open file description: where it was opened, how far it was read, and whether it appends."""

    __slots__ = ("flags", "offset", "where")

    def __init__(self, where: Where, flags: int) -> None:
        self.where = where
        self.flags = flags
        self.offset = 0


class SimulatedMachine:
    """`changes` are the calls that changed something, each as its name and path.

    `refusals`: errnos, by call (`put`: a write to `tasks`; `mkdir` and `rmdir`: of groups). `before_put` is done once,
    when a task is about to be moved.
    """

    def __init__(self, fs: FakeFilesystem | None = None, kernel: Kernel | None = None) -> None:
        self.fs = fs if fs is not None else FakeFilesystem(path_separator="/")
        self.kernel = kernel if kernel is not None else Kernel()
        self.kernel.now = NOW
        self.caller = Caller()
        self.changes: list[tuple[str, str]] = []
        self.syslog: list[str] = []
        self.refusals: dict[str, list[int]] = {}
        self.before_put: Callable[[], object] | None = None
        self.boot = 0.0
        self.path = posixpath
        self.file_locks: dict[int, OpenDescription] = {}
        self._open: dict[int, OpenDescription] = {}
        self._next = 3
        for path in ("/run", "/dev", *_MOUNTS):
            if not self.fs.exists(path):
                self.fs.create_dir(path)
        self._mounted = {id(self.fs.get_object(path)): path for path in _MOUNTS}

    # --- For those who work with it

    @contextmanager
    def installed(self, system: ModuleType) -> Iterator[SimulatedMachine]:
        """Let hook.base.system, or a copy of it, work on this machine; and `os` of what keeps records."""
        of_system = {
            "posix": self,
            "fcntl": SimpleNamespace(flock=self.flock, LOCK_EX=2, LOCK_NB=4),
            "time": SimpleNamespace(
                monotonic=self._monotonic,
                time=self._monotonic,
                clock_gettime=lambda _: self.kernel.now,
                CLOCK_BOOTTIME=7,
                strftime=time.strftime,
                gmtime=time.gmtime,
                localtime=time.gmtime,
            ),
            "monotonic": self._monotonic,
            "unix_time": self._monotonic,
            "sleep": self.sleep,
            "user_id": lambda: 0,
            "process_id": lambda: 4711,
        }
        poll = SimpleNamespace(register=lambda *_: None, poll=lambda *_: [(0, 0xFF)])
        modules = {
            "select": SimpleNamespace(poll=lambda: poll, POLLIN=1, POLLOUT=4),
            "_signal": SimpleNamespace(
                SIGALRM=14, SIG_UNBLOCK=1, ITIMER_REAL=0, signal=self._signal, setitimer=self._setitimer,
                pthread_sigmask=lambda *_: None,
            ),
            "_socket": SimpleNamespace(
                AF_UNIX=1, SOCK_DGRAM=2, MSG_DONTWAIT=0, MSG_NOSIGNAL=0, socket=lambda *_: _Log(self.syslog)
            ),
        }  # fmt: skip
        former = {name: getattr(system, name) for name in of_system}
        former_os = [
            (module, module.os)
            for name, module in list(sys.modules.items())
            if name.startswith(_USERS_OF_OS) and hasattr(module, "os")
        ]
        former_modules = {name: sys.modules.get(name) for name in modules}
        vars(system).update(of_system)
        for module, _ in former_os:
            module.os = self  # type: ignore[attr-defined]
        sys.modules.update(modules)  # type: ignore[arg-type]
        try:
            yield self
        finally:
            vars(system).update(former)
            for module, its in former_os:
                module.os = its  # type: ignore[attr-defined]
            for name, its_module in former_modules.items():
                if its_module is None:
                    del sys.modules[name]
                else:
                    sys.modules[name] = its_module

    def add(self, path: str, content: bytes) -> None:
        """A file, with the directories above it; of the kernel's, what it shows from now on."""
        if path.startswith(tuple(f"{it}/" for it in _MOUNTS)):
            self.kernel.files[path] = content
            return
        if self.fs.exists(path):
            self.fs.remove_object(path)
        self.fs.create_file(path, contents=content, st_mode=stat.S_IFREG | 0o600)

    def files(self, top: str = RUN) -> dict[str, bytes | str]:
        """What is below a directory: the content of files, the targets of links, and of an empty directory nothing."""
        where = self._find(os.fsencode(top))
        return dict(_below(top.rstrip("/"), where.node)) if isinstance(where.node, FakeFile) else {}

    def release(self, caller: Caller) -> None:
        """The end of a process: what it has open is closed, and its locks are given back."""
        for descriptor in caller.descriptors:
            self._unlock(self._open.pop(descriptor))
        caller.descriptors.clear()
        caller.calls = 0

    # --- What another kind of machine does otherwise

    def at_call(self, name: str, path: str) -> None:
        """Each system call begins with this."""
        self.caller.calls += 1
        if self.caller.calls > MOST_CALLS:
            raise EndlessCalls(f"{self.caller.calls} system calls")
        if self.refusals.get(name) and (name not in _OF_GROUPS or path.startswith(RESCTRL)):
            raise refused(self.refusals[name].pop(0), path)

    def wait(self, is_over: Callable[[], bool], until: float) -> None:
        """Wait for that, or until then."""
        if not is_over():
            self.kernel.now = max(self.kernel.now, until)

    def changed(self, call: str, path: str) -> None:
        """Something is different now."""
        self.changes.append((call, path))

    # --- posix

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  constants; a call that is not made here is none of the hook's
        if not name.startswith("O_"):
            raise AttributeError(name)
        return getattr(posix, name)

    def open(self, path: bytes, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        where = self._enter("open", path, dir_fd, follow=not flags & os.O_NOFOLLOW)
        writes = flags & (os.O_WRONLY | os.O_RDWR)
        kind = _mode(where.node) if where.node is not None else 0
        if where.node is None:
            if not flags & os.O_CREAT:
                raise refused(errno.ENOENT, path)
            where.node = self._make(where, "create", stat.S_IFREG | mode & 0o755, b"")
        elif flags & os.O_CREAT and flags & os.O_EXCL:
            raise refused(errno.EEXIST, path)
        elif stat.S_ISLNK(kind):
            raise refused(errno.ENOTDIR if flags & os.O_DIRECTORY else errno.ELOOP, path)
        elif stat.S_ISDIR(kind):
            if writes or flags & os.O_CREAT:
                raise refused(errno.EISDIR, path)
        elif flags & os.O_DIRECTORY:
            raise refused(errno.ENOTDIR, path)
        elif flags & os.O_TRUNC and isinstance(where.node, FakeFile):
            self._fill(where, b"")
        descriptor, self._next = self._next, self._next + 1
        self._open[descriptor] = OpenDescription(where, flags)
        self.caller.descriptors.add(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        file = self._opened(descriptor)
        try:
            self.at_call("close", file.where.path)
        finally:  # Linux closes, whatever it says
            if self._open.pop(descriptor, None) is not None:
                self.caller.descriptors.discard(descriptor)
                self._unlock(file)

    def read(self, descriptor: int, size: int) -> bytes:
        if descriptor == 0:
            self.at_call("read", "")
            data, self.caller.stdin = self.caller.stdin[:size], self.caller.stdin[size:]
            return data
        file = self._opened(descriptor)
        self.at_call("read", file.where.path)
        node = file.where.node
        if isinstance(node, KernelNode):
            now = self.kernel.look(file.where.path)
            if now is None or now.owner is not node.owner:
                raise refused(errno.ESRCH if file.where.path.startswith("/proc/") else errno.ENODEV)
            node = now
        data = _content(node)
        if not isinstance(data, bytes):
            raise refused(errno.EISDIR)
        file.offset += size
        return data[file.offset - size : file.offset]

    def write(self, descriptor: int, data: bytes) -> int:
        if descriptor == 2:
            self.at_call("write", "")
            self.caller.stderr += data
            return len(data)
        file = self._opened(descriptor)
        where = file.where
        self.at_call("write", where.path)
        if isinstance(where.node, KernelNode):
            self._put(where, data)
        else:
            self._fill(where, _content(where.node) + data)
            file.offset = len(_content(where.node))
        return len(data)

    def _put(self, where: Where, data: bytes) -> None:
        """A write to one of the kernel's files: `tasks` of a group."""
        assert isinstance(where.node, KernelNode)
        if self.before_put is not None:
            action, self.before_put = self.before_put, None
            action()
        if self.refusals.get("put"):
            raise refused(self.refusals["put"].pop(0))
        group = where.path.rpartition("/")[0]
        if self.kernel.groups.get(group) is not where.node.owner:
            raise refused(errno.ENODEV)
        self.kernel.put(group, data)
        self.changed("put", group)

    def lseek(self, descriptor: int, offset: int, _whence: int) -> int:
        file = self._opened(descriptor)
        self.at_call("lseek", file.where.path)
        return file.offset + offset

    def stat(self, path: bytes | str, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> SimpleNamespace:
        return _status(_there(self._enter("stat", path, dir_fd, follow=follow_symlinks), path))

    def fstat(self, descriptor: int) -> SimpleNamespace:
        if descriptor <= 2:
            self.at_call("fstat", "")
            return SimpleNamespace(st_mode=stat.S_IFREG)
        file = self._opened(descriptor)
        self.at_call("fstat", file.where.path)
        return _status(file.where.node)

    def mkdir(self, path: bytes, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        where = self._enter("mkdir", path, dir_fd)
        if where.parent is None and where.path.startswith(RESCTRL + "/"):
            self.kernel.mkdir(where.path)
            self.changed("mkdir", where.path)
        elif where.node is not None:
            raise refused(errno.EEXIST, path)
        else:
            self._make(where, "mkdir", stat.S_IFDIR | mode & 0o755, b"")

    def rmdir(self, path: bytes, *, dir_fd: int | None = None) -> None:
        where = self._enter("rmdir", path, dir_fd)
        if where.parent is None and where.path.startswith(RESCTRL + "/"):
            self.kernel.rmdir(where.path)
            self.changed("rmdir", where.path)
            return
        node = _there(where, path)
        if not isinstance(node, FakeDirectory):
            raise refused(errno.ENOTDIR, path)
        if node.entries:
            raise refused(errno.ENOTEMPTY, path)
        self._remove(where, "rmdir")

    def unlink(self, path: bytes, *, dir_fd: int | None = None) -> None:
        where = self._enter("unlink", path, dir_fd)
        if stat.S_ISDIR(_mode(_there(where, path))):
            raise refused(errno.EISDIR, path)
        self._remove(where, "unlink")

    def rename(self, source: bytes, target: bytes, *, src_dir_fd: int | None, dst_dir_fd: int | None) -> None:
        old = self._enter("rename", source, src_dir_fd)
        new = self._find(target, dst_dir_fd)
        node = _there(old, source)
        if new.node is not None and stat.S_ISDIR(_mode(node)) != stat.S_ISDIR(_mode(new.node)):
            raise refused(errno.EISDIR if stat.S_ISDIR(_mode(new.node)) else errno.ENOTDIR, target)
        if isinstance(new.node, FakeDirectory) and new.node.entries:
            raise refused(errno.ENOTEMPTY, target)
        if not new.name or node in new.way or not isinstance(node, FakeFile) or new.parent is None:
            raise refused(errno.EINVAL, target)
        if new.node is node:
            return
        if new.node is not None:
            new.parent.remove_entry(new.name, recursive=False)
        assert old.parent is not None
        old.parent.remove_entry(old.name, recursive=False)
        node.name = new.name  # type: ignore[assignment]
        new.parent.add_entry(node)
        for place in (new, old):
            assert place.parent is not None
            place.parent.st_mtime = self.kernel.now
            self.changed("rename", place.path)

    def link(self, source: bytes, target: bytes, *, src_dir_fd: int, dst_dir_fd: int, follow_symlinks: bool) -> None:
        old = self._enter("link", source, src_dir_fd, follow=follow_symlinks)
        new = self._find(target, dst_dir_fd)
        node = _there(old, source)
        if isinstance(node, FakeDirectory):
            raise refused(errno.EPERM, source)
        if new.node is not None:
            raise refused(errno.EEXIST, target)
        if new.parent is None or not isinstance(node, FakeFile):
            raise refused(errno.EXDEV, target)
        former: Any = node.name
        node.name = new.name  # type: ignore[assignment]
        new.parent.add_entry(node)
        node.name = former
        self.changed("link", new.path)

    def readlink(self, path: bytes) -> bytes:
        target = _content(_there(self._enter("readlink", path, None), path))
        if not isinstance(target, str):
            raise refused(errno.EINVAL, path)
        return os.fsencode(target)

    def symlink(self, target: bytes, path: bytes, *, dir_fd: int | None = None) -> None:
        where = self._enter("symlink", path, dir_fd)
        if where.node is not None:
            raise refused(errno.EEXIST, path)
        if not target:
            raise refused(errno.ENOENT, path)
        self._make(where, "symlink", stat.S_IFLNK | 0o777, target)

    def listdir(self, descriptor: int) -> list[str]:
        file = self._opened(descriptor)
        self.at_call("listdir", file.where.path)
        node = file.where.node
        if isinstance(node, KernelNode):
            node = self.kernel.look(file.where.path)
        names = _content(node) if node is not None else []
        if not isinstance(names, list):
            raise refused(errno.ENOTDIR)
        return names

    def umask(self, _mask: int) -> int:
        return 0o022

    # --- fcntl, signals and clocks

    def flock(self, descriptor: int, how: int) -> None:
        """An exclusive lock of an open file description, as flock(2) gives it; an alarm ends the wait."""
        file = self._opened(descriptor)
        self.at_call("flock", file.where.path)
        ino = file.where.node.st_ino if isinstance(file.where.node, FakeFile) else 0
        while self.file_locks.get(ino, file) is not file:
            if how & 4:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            caller = self.caller
            self.wait(lambda: ino not in self.file_locks, caller.alarm)
            if ino in self.file_locks and self.kernel.now >= caller.alarm and caller.on_alarm is not None:
                caller.on_alarm(14, None)
        self.file_locks[ino] = file

    def sleep(self, seconds: float) -> None:
        self.at_call("sleep", "")
        self.wait(lambda: False, self.kernel.now + seconds)

    def _unlock(self, file: OpenDescription) -> None:
        for ino in [ino for ino, holder in self.file_locks.items() if holder is file]:
            del self.file_locks[ino]

    def _monotonic(self) -> float:
        return self.kernel.now

    def _signal(self, _number: int, handler: Callable[[int, object], None]) -> None:
        self.caller.on_alarm = handler

    def _setitimer(self, _which: int, seconds: float, _again: float = 0.0) -> None:
        self.caller.alarm = self.kernel.now + seconds if seconds else float("inf")

    # --- How

    def _enter(self, call: str, path: bytes | str, dir_fd: int | None, *, follow: bool = False) -> Where:
        """Where a path leads, once the others have done what they do before this call."""
        text = os.fsdecode(path)
        if dir_fd is not None and not text.startswith("/"):
            text = f"{self._opened(dir_fd).where.path}/{text}"
        self.at_call(call, text)
        return self._find(path, dir_fd, follow=follow)

    def _opened(self, descriptor: int) -> OpenDescription:
        if descriptor not in self._open:
            raise refused(errno.EBADF)
        return self._open[descriptor]

    def _make(self, where: Where, call: str, mode: int, content: bytes) -> FakeFile:
        if where.parent is None or where.parent.st_nlink <= 1:
            raise refused(errno.EPERM if where.parent is None else errno.ENOENT, where.path)
        if stat.S_ISDIR(mode):
            node: FakeFile = FakeDirectory(where.name, mode & 0o7777, filesystem=self.fs)
        else:
            node = FakeFile(where.name, mode, content, filesystem=self.fs)  # type: ignore[type-var]
        node.st_ctime = node.st_mtime = self.kernel.now
        where.parent.add_entry(node)
        where.parent.st_mtime = self.kernel.now
        self.changed(call, where.path)
        return node

    def _remove(self, where: Where, call: str) -> None:
        if where.parent is None or not where.name:
            raise refused(errno.EPERM if where.parent is None else errno.EBUSY, where.path)
        where.parent.remove_entry(where.name, recursive=False)
        where.parent.st_mtime = self.kernel.now
        self.changed(call, where.path)

    def _fill(self, where: Where, data: bytes) -> None:
        assert isinstance(where.node, FakeFile)
        where.node.set_contents(data)
        where.node.st_ctime = where.node.st_mtime = self.kernel.now
        self.changed("write", where.path)

    def _find(self, path: bytes | str, dir_fd: int | None = None, *, follow: bool = False) -> Where:
        """Where a path leads, as the kernel walks it: path_resolution(7); `follow`: the last component, too."""
        text = os.fsdecode(path)
        if not text:
            raise refused(errno.ENOENT, path)
        if "\0" in text:
            raise ValueError("embedded null byte")
        if len(text) > _LONGEST_PATH or max(map(len, text.split("/"))) > _LONGEST_NAME:
            raise refused(errno.ENAMETOOLONG, path)
        way, base = [self.fs.root_dir], ""
        if dir_fd is not None and not text.startswith("/"):
            start = self._opened(dir_fd).where
            if not isinstance(start.node, FakeDirectory):
                raise refused(errno.ENOTDIR, path)
            way, base = [*start.way, start.node] if start.name else list(start.way), start.path
        names = [name for name in text.split("/") if name not in ("", ".")]
        return self._walk(way, base.rstrip("/").split("/"), names, follow, path)

    def _walk(
        self, way: list[FakeDirectory], at: list[str], names: list[str], follow: bool, path: bytes | str
    ) -> Where:  # `at`: the names of `way`
        links = 0
        while names:
            name = names.pop(0)
            if name == "..":
                way, at = way[:-1] or way, at[:-1] or at
                continue
            node = way[-1].entries.get(name)
            if node is not None and (names or follow) and stat.S_ISLNK(node.st_mode):
                links += 1
                target = _content(node) if links <= _MOST_LINKS else _refuse(errno.ELOOP, path)
                way, at = ([self.fs.root_dir], [""]) if target.startswith("/") else (way, at)
                names = [it for it in target.split("/") if it not in ("", ".")] + names
            elif id(node) in self._mounted:
                return self._find_in_kernel(self._mounted[id(node)], names, path)
            elif not names:
                return Where(way, name, node, "/".join([*at, name]))
            elif not isinstance(node, FakeDirectory):
                _refuse(errno.ENOENT if node is None else errno.ENOTDIR, path)
            else:
                way, at = [*way, node], [*at, name]
        return Where(way, "", way[-1], "/".join(at) or "/")  # the root, or a path that ends in ..

    def _find_in_kernel(self, mount: str, names: list[str], path: bytes | str) -> Where:
        text = "/".join([mount, *names])
        if ".." in names:
            text = posixpath.normpath(text)
            if not text.startswith(mount):
                return self._find(text)
        node = self.kernel.look(text)
        if node is None and names:
            above = self.kernel.look(text.rpartition("/")[0])
            if above is None or not isinstance(above.content, list):
                raise refused(errno.ENOENT if above is None else errno.ENOTDIR, path)
        return Where([], names[-1] if names else "", node, text)


class _Log:
    """The socket of syslog."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_: None

    def send(self, datagram: bytes, _flags: int) -> None:
        self._lines.append(datagram.decode().partition("]: ")[2])


def _refuse(number: int, path: object) -> NoReturn:
    raise refused(number, path)


def _there(where: Where, path: object) -> FakeFile | KernelNode:
    if where.node is None:
        raise refused(errno.ENOENT, path)
    return where.node


def _content(node: FakeFile | KernelNode | None) -> Any:  # noqa: ANN401  bytes, names, or a link's target
    if isinstance(node, KernelNode):
        return node.content
    if isinstance(node, FakeDirectory):
        return list(node.entries)
    assert node is not None
    return os.fsdecode(node.byte_contents or b"") if stat.S_ISLNK(node.st_mode) else node.byte_contents or b""


def _mode(node: FakeFile | KernelNode) -> int:
    if isinstance(node, FakeFile):
        return int(node.st_mode)
    kinds = {list: stat.S_IFDIR | 0o755, bytes: stat.S_IFREG | 0o644, str: stat.S_IFLNK | 0o777}
    return kinds[type(node.content)]


def _status(node: Any) -> SimpleNamespace:  # noqa: ANN401
    if isinstance(node, KernelNode):
        links = 2 + sum(it != "cgroup.threads" for it in node.content) if isinstance(node.content, list) else 1
        return SimpleNamespace(st_mode=_mode(node), st_ino=node.ino, st_dev=2, st_uid=0, st_nlink=links, st_size=0)
    return SimpleNamespace(
        st_mode=int(node.st_mode), st_ino=node.st_ino, st_dev=1, st_uid=0, st_nlink=node.st_nlink,
        st_size=len(_content(node)), st_ctime=node.st_ctime, st_mtime_ns=int(node.st_mtime * 1e9),
    )  # fmt: skip


def _below(path: str, node: FakeFile) -> Iterator[tuple[str, bytes | str]]:
    if isinstance(node, FakeDirectory):
        if not node.entries:
            yield path + "/", ""
        for name in sorted(node.entries):
            yield from _below(f"{path}/{name}", node.entries[name])
    else:
        content = _content(node)
        yield path, content if isinstance(content, bytes) else "-> " + content
