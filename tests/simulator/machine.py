# SPDX-License-Identifier: Apache-2.0
"""A machine below hook.system: in place of `posix`, `fcntl`, `select`, `_signal`,
`_socket` and the clocks.

Plain files are nodes of pyfakefs' FakeFilesystem, without its path resolution, which takes thirty
times as long. The kernel's files are by `kernel`.
"""

from __future__ import annotations

import errno
import os
import posix
import posixpath
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from pyfakefs import helpers
from pyfakefs.fake_file import FakeDirectory, FakeFile
from pyfakefs.fake_filesystem import FakeFilesystem

from tests.simulator.kernel import RESCTRL, ROOT_CGROUP, Kernel, KernelNode, make_error

RUN = "/run/resctrl-mon-hook"
NOW = 1_000_000.0
MOST_CALLS = 20_000
_MOUNTS = ("/proc", RESCTRL, ROOT_CGROUP)
_OF_GROUPS = ("mkdir", "rmdir")
_MOST_LINKS = 40
_PATH_MAX = 4096
_BLOCK = 4096


class EndlessCalls(BaseException):
    """More system calls than any process makes."""


class Caller:
    """The process that makes the system calls: what it is given, what it says,
    and what it has open.
    """

    def __init__(self, stdin: bytes = b"") -> None:
        self.stdin = stdin
        self.stderr = b""
        self.calls = 0
        self.descriptors: set[int] = set()
        self.alarm = float("inf")
        self.on_alarm: Callable[[int, object], None] | None = None


class Place(NamedTuple):
    """Where a path leads: `parent` (None: the kernel's) has, or would have, `node` by `name`."""

    parent: FakeDirectory | None
    name: str
    node: Any  # of pyfakefs or of the kernel; None: nothing is there
    path: str


class OpenDescription:
    """An open file description: of what, how far it was read, and whether it is locked."""

    def __init__(self, node: Any, path: str) -> None:  # noqa: ANN401  as in Place
        self.node = node
        self.path = path
        self.offset = 0

    def get_object(self) -> Any:  # noqa: ANN401  as in Place
        """As pyfakefs asks for it."""
        return self.node


class SimulatedMachine:
    """`changes` are the calls that changed something, each as its name and path.

    `refusals`: errnos, by call (`put`: a write to `tasks`; `mkdir` and `rmdir`: of groups).
    `before_put` is done once, when a task is about to be moved. `room`: the blocks and files that
    the file system of RUN still has; None: enough. `full`: files on a full disk, of whose next
    write a part fits. `mounts`: the directories that are the kernel's; with none, all files are
    those of `fs`.
    """

    def __init__(
        self,
        fs: FakeFilesystem | None = None,
        kernel: Kernel | None = None,
        mounts: Sequence[str] = _MOUNTS,
    ) -> None:
        self.fs = fs if fs is not None else FakeFilesystem(path_separator="/")
        self.kernel = kernel if kernel is not None else Kernel()
        self.kernel.now = NOW
        self.caller = Caller()
        self.changes: list[tuple[str, str]] = []
        self.syslog: list[str] = []
        self.refusals: dict[str, list[int]] = {}
        self.room: list[int] | None = None
        self._size = [0, 0]
        self.full: dict[str, int] = {}
        self.before_put: Callable[[], object] | None = None
        self.path = posixpath
        self._open: dict[int, OpenDescription] = {}
        self.file_locks: dict[int, OpenDescription] = {}
        self._next = 1000  # pyfakefs counts its own from 0
        for path in ("/run", "/dev", *mounts) if mounts else ():
            if not self.fs.exists(path):
                self.fs.create_dir(path)
        self._mounted = {id(self.fs.get_object(path)): path for path in mounts}

    # --- For those who work with it

    @contextmanager
    def installed(self, system: ModuleType) -> Iterator[SimulatedMachine]:
        """Let hook.system, or a copy of it, work on this machine;
        and `os` of what reads records.
        """

        def now(*_: object) -> float:
            return self.kernel.now

        def log(datagram: bytes, _flags: int) -> None:
            self.syslog.append(datagram.decode().partition("]: ")[2])

        def ignore(*_: object) -> None:
            pass

        of_system = {
            "posix": self,
            "fcntl": SimpleNamespace(flock=self.flock, LOCK_EX=2, LOCK_NB=4),
            "time": SimpleNamespace(
                time=now, clock_gettime=now, CLOCK_BOOTTIME=7,
                strftime=time.strftime, gmtime=time.gmtime, localtime=time.gmtime, tzset=ignore,
            ),
            "monotonic": now,
            "unix_time": now,
            "sleep": self.sleep,
            "user_id": lambda: 0,
            "process_id": lambda: 4711,
        }  # fmt: skip
        poll = SimpleNamespace(register=ignore, poll=lambda *_: [(0, 0xFF)])
        socket = SimpleNamespace(
            connect=ignore, close=ignore, setblocking=ignore, settimeout=ignore, send=log
        )
        modules = {
            "select": SimpleNamespace(poll=lambda: poll, POLLIN=1, POLLOUT=4),
            "_signal": SimpleNamespace(
                SIGALRM=14, SIG_UNBLOCK=1, SIG_SETMASK=2, SIG_DFL=0, ITIMER_REAL=0,
                pthread_sigmask=ignore,
                signal=self._signal, setitimer=self._setitimer, getitimer=lambda _which: (0.0, 0.0),
            ),
            "_socket": SimpleNamespace(
                AF_UNIX=1, SOCK_DGRAM=2, MSG_DONTWAIT=0, MSG_NOSIGNAL=0, socket=lambda *_: socket
            ),
        }  # fmt: skip
        with ExitStack() as stack:
            # Hooks run as root, the tests need not.
            stack.enter_context(patch.object(helpers, "USER_ID", 0))
            stack.enter_context(patch.dict(vars(system), of_system))
            stack.enter_context(patch.dict(sys.modules, modules))
            if "hook.node.records" in sys.modules:
                stack.enter_context(patch.object(sys.modules["hook.node.records"], "os", self))
            yield self

    def limit(self, blocks: int, files: int) -> None:
        """Give the file system of RUN so many blocks of 4 KiB and files,
        of which none is in use yet.
        """
        self.room, self._size = [blocks, files], [blocks, files]

    def add(self, path: str, content: bytes) -> str:
        """A file, with the directories above it; of the kernel's, what it shows from now on.

        Returns its path.
        """
        if path.startswith(tuple(f"{mount}/" for mount in _MOUNTS)):
            self.kernel.files[path] = content
        else:
            self.remove(path)
            self.fs.create_file(path, contents=content, st_mode=stat.S_IFREG | 0o600)
        return path

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with what is in it, if there is one."""
        if self.fs.exists(path):
            self.fs.remove_object(path)

    def files(self, top: str = RUN) -> dict[str, bytes | str]:
        """What is below a directory: the content of files, the targets of links,
        and of an empty directory nothing.
        """
        node = self._find(top).node
        return dict(_below(top.rstrip("/"), node)) if isinstance(node, FakeFile) else {}

    def release(self, caller: Caller) -> None:
        """The end of a process: what it has open is closed, and its locks are given back."""
        for descriptor in caller.descriptors:
            self._unlock(self._open.pop(descriptor))
        caller.descriptors.clear()
        caller.calls = 0

    def find_open(self, descriptor: int) -> OpenDescription | None:
        """What a descriptor of a process is of."""
        return self._open.get(descriptor)

    # --- What another kind of machine does otherwise

    def at_call(self, name: str, path: str) -> None:
        """Each system call begins with this; those on stdin and stderr,
        and a sleep, have no path.
        """
        self.caller.calls += 1
        if self.caller.calls > MOST_CALLS:
            raise EndlessCalls(f"{self.caller.calls} system calls")
        if self.refusals.get(name) and (name not in _OF_GROUPS or path.startswith(RESCTRL)):
            raise make_error(self.refusals[name].pop(0), path)

    def wait(self, is_over: Callable[[], bool], until: float) -> None:
        """Wait for that, or until then."""
        if not is_over():
            self.kernel.now = max(self.kernel.now, until)

    def changed(self, call: str, path: str) -> None:
        """Something is different now."""
        self.changes.append((call, path))

    # --- posix

    environ: Mapping[bytes, bytes] = {b"TZ": b"Asia/Kolkata"}

    @staticmethod
    def uname() -> posix.uname_result:
        return posix.uname_result(("Linux", "n1", "6.12.0", "#1 SMP", "x86_64"))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  constants; a call that is not made here is none of the hook's
        if not name.startswith("O_"):
            raise AttributeError(name)
        return getattr(posix, name)

    def open(self, path: bytes, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        place = self._enter("open", path, dir_fd, follow=not flags & os.O_NOFOLLOW)
        node = place.node
        if node is None:
            if not flags & os.O_CREAT:
                raise make_error(errno.ENOENT, path)
            node = self._make(place, "create", stat.S_IFREG | mode & 0o755)
        elif flags & os.O_EXCL:
            raise make_error(errno.EEXIST, path)
        elif stat.S_ISLNK(node.st_mode):
            raise make_error(errno.ENOTDIR if flags & os.O_DIRECTORY else errno.ELOOP, path)
        elif stat.S_ISDIR(node.st_mode):
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                raise make_error(errno.EISDIR, path)
        elif flags & os.O_DIRECTORY:
            raise make_error(errno.ENOTDIR, path)
        elif flags & os.O_TRUNC and isinstance(node, FakeFile):
            self._fill(node, place.path, b"")
        descriptor, self._next = self._next, self._next + 1
        self._open[descriptor] = OpenDescription(node, place.path)
        self.caller.descriptors.add(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        file = self._opened(descriptor)
        try:
            self.at_call("close", file.path)
        finally:  # Linux closes, whatever it says
            if self._open.pop(descriptor, None) is not None:
                self.caller.descriptors.discard(descriptor)
                self._unlock(file)

    def read(self, descriptor: int, size: int) -> bytes:
        if descriptor == 0:
            self.at_call("read", "")
            data, self.caller.stdin = self.caller.stdin[:size], self.caller.stdin[size:]
            return data
        file = self._use("read", descriptor)
        node = file.node
        if isinstance(node, KernelNode):
            now = self.kernel.look(file.path)
            if now is None or now.owner is not node.owner:
                raise make_error(errno.ESRCH if file.path.startswith("/proc/") else errno.ENODEV)
            node = now
        if stat.S_ISDIR(node.st_mode):
            raise make_error(errno.EISDIR)
        file.offset += size
        return bytes(node.byte_contents or b"")[file.offset - size : file.offset]

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        return bytes(self._use("pread", descriptor).node.byte_contents or b"")[
            offset : offset + size
        ]

    def write(self, descriptor: int, data: bytes) -> int:
        if descriptor == 2:
            self.at_call("write", "")
            self.caller.stderr += data
            return len(data)
        file = self._use("write", descriptor)
        if isinstance(file.node, KernelNode):
            self._put(file, data)
        else:
            if file.path in self.full:
                data, self.full[file.path] = data[: self.full[file.path]], 0
                if not data:
                    raise make_error(errno.ENOSPC)
            self._fill(file.node, file.path, (file.node.byte_contents or b"") + data)
            file.offset = file.node.st_size
        return len(data)

    def _put(self, file: OpenDescription, data: bytes) -> None:
        """A write to one of the kernel's files: `tasks` of a group."""
        if self.before_put is not None:
            action, self.before_put = self.before_put, None
            action()
        if self.refusals.get("put"):
            raise make_error(self.refusals["put"].pop(0))
        group = file.path.rpartition("/")[0]
        if self.kernel.groups.get(group) is not file.node.owner:
            raise make_error(errno.ENODEV)
        self.kernel.put(group, data)
        self.changed("put", group)

    def lseek(self, descriptor: int, offset: int, _whence: int) -> int:
        return self._use("lseek", descriptor).offset + offset

    def stat(
        self, path: bytes | str, *, dir_fd: int | None = None, follow_symlinks: bool = True
    ) -> Any:  # noqa: ANN401
        return _present(self._enter("stat", path, dir_fd, follow=follow_symlinks))

    def fstat(self, descriptor: int) -> Any:  # noqa: ANN401  a node knows what stat(2) tells
        if descriptor <= 2:
            self.at_call("fstat", "")
            return SimpleNamespace(st_mode=stat.S_IFREG)
        return self._use("fstat", descriptor).node

    def mkdir(self, path: bytes, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        place = self._enter("mkdir", path, dir_fd)
        if place.path.startswith(RESCTRL + "/"):
            self.kernel.mkdir(place.path)
            self.changed("mkdir", place.path)
        else:
            self._make(place, "mkdir", stat.S_IFDIR | mode & 0o755)

    def rmdir(self, path: bytes, *, dir_fd: int | None = None) -> None:
        place = self._enter("rmdir", path, dir_fd)
        if place.path.startswith(RESCTRL + "/"):
            self.kernel.rmdir(place.path)
            self.changed("rmdir", place.path)
            return
        node = _present(place)
        if not isinstance(node, FakeDirectory) or node.entries:
            raise make_error(
                errno.ENOTEMPTY if isinstance(node, FakeDirectory) else errno.ENOTDIR, path
            )
        self._remove(place, "rmdir")

    def unlink(self, path: bytes, *, dir_fd: int | None = None) -> None:
        place = self._enter("unlink", path, dir_fd)
        if stat.S_ISDIR(_present(place).st_mode):
            raise make_error(errno.EISDIR, path)
        self._remove(place, "unlink")

    def rename(
        self, source: bytes, target: bytes, *, src_dir_fd: int | None, dst_dir_fd: int | None
    ) -> None:
        old = self._enter("rename", source, src_dir_fd)
        new = self._find(target, dst_dir_fd)
        node = _present(old)
        assert old.parent is not None
        assert new.parent is not None
        if new.node is not None:
            if isinstance(node, FakeDirectory) != isinstance(new.node, FakeDirectory):
                raise make_error(
                    errno.EISDIR if isinstance(new.node, FakeDirectory) else errno.ENOTDIR, target
                )
            if isinstance(new.node, FakeDirectory) and new.node.entries:
                raise make_error(errno.ENOTEMPTY, target)
            self._take_room(new.path, -_count_blocks(new.node), -1)
            new.parent.remove_entry(new.name, recursive=False)
        old.parent.remove_entry(old.name, recursive=False)
        self._add(new, node, "rename")
        old.parent.st_mtime = self.kernel.now
        self.changed("rename", old.path)

    def link(
        self,
        source: bytes,
        target: bytes,
        *,
        src_dir_fd: int,
        dst_dir_fd: int,
        follow_symlinks: bool,
    ) -> None:
        old = self._enter("link", source, src_dir_fd, follow=follow_symlinks)
        new = self._find(target, dst_dir_fd)
        node = _present(old)
        if new.node is not None or isinstance(node, FakeDirectory):
            raise make_error(errno.EPERM if new.node is None else errno.EEXIST, target)
        self._add(new, node, "link")
        node.name = old.name

    def readlink(self, path: bytes) -> bytes:
        node = _present(self._enter("readlink", path, None))
        if not stat.S_ISLNK(node.st_mode):
            raise make_error(errno.EINVAL, path)
        return bytes(node.byte_contents)

    def symlink(self, target: bytes, path: bytes, *, dir_fd: int | None = None) -> None:
        self._make(self._enter("symlink", path, dir_fd), "symlink", stat.S_IFLNK | 0o777, target)

    def listdir(self, directory: int | bytes) -> list[Any]:
        """The names, which are bytes if the directory is given by its path."""
        if isinstance(directory, bytes):
            opened = self.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            names = self.listdir(opened)
            self.close(opened)
            return [name.encode() for name in names]
        file = self._use("listdir", directory)
        node = self.kernel.look(file.path) if isinstance(file.node, KernelNode) else file.node
        return list(node.entries) if node is not None else []

    def statvfs(self, _place: object) -> Any:  # noqa: ANN401  a struct of that name
        """As of the file system of RUN."""
        (blocks, files), (bfree, ffree) = self._size, self.room or (0, 0)
        names = {"f_blocks": blocks, "f_bfree": bfree, "f_bavail": bfree}
        return SimpleNamespace(
            f_frsize=_BLOCK, **names, f_files=files, f_ffree=ffree, f_favail=ffree
        )

    def umask(self, _mask: int) -> int:
        return 0o022

    def putenv(self, _name: bytes, _value: bytes) -> None:
        pass

    # --- fcntl, signals and clocks

    def flock(self, descriptor: int, how: int) -> None:
        """An exclusive lock of an open file description, as flock(2) gives it;
        an alarm ends the wait.
        """
        file = self._use("flock", descriptor)
        ino = file.node.st_ino
        while self.file_locks.get(ino, file) is not file:
            if how & 4:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            caller = self.caller
            self.wait(lambda: ino not in self.file_locks, caller.alarm)
            if (
                ino in self.file_locks
                and self.kernel.now >= caller.alarm
                and caller.on_alarm is not None
            ):
                caller.on_alarm(14, None)
        self.file_locks[ino] = file

    def sleep(self, seconds: float) -> None:
        self.at_call("sleep", "")
        self.wait(lambda: False, self.kernel.now + seconds)

    def _unlock(self, file: OpenDescription) -> None:
        if self.file_locks.get(file.node.st_ino) is file:
            del self.file_locks[file.node.st_ino]

    def _signal(self, _number: int, handler: Callable[[int, object], None] | int) -> object:
        former, self.caller.on_alarm = self.caller.on_alarm, handler if callable(handler) else None
        return former

    def _setitimer(self, _which: int, seconds: float, _again: float = 0.0) -> None:
        self.caller.alarm = self.kernel.now + seconds if seconds else float("inf")

    # --- How

    def _use(self, call: str, descriptor: int) -> OpenDescription:
        """An open file, once the others have done what they do before this call."""
        file = self._opened(descriptor)
        self.at_call(call, file.path)
        return file

    def _enter(
        self, call: str, path: bytes | str, dir_fd: int | None, *, follow: bool = False
    ) -> Place:
        """Where a path leads, at the same time."""
        text = os.fsdecode(path)
        is_whole = dir_fd is None or text.startswith("/")
        self.at_call(call, text if is_whole else f"{self._opened(dir_fd).path}/{text}")
        return self._find(path, dir_fd, follow=follow)

    def _opened(self, descriptor: int | None) -> OpenDescription:
        if descriptor is None or descriptor not in self._open:
            raise make_error(errno.EBADF)
        return self._open[descriptor]

    def _make(self, place: Place, call: str, mode: int, content: bytes = b"") -> FakeFile:
        if place.node is not None:
            raise make_error(errno.EEXIST, place.path)
        if stat.S_ISDIR(mode):
            node: FakeFile = FakeDirectory(place.name, mode & 0o7777, filesystem=self.fs)
        else:
            node = FakeFile(place.name, mode, content, filesystem=self.fs)  # type: ignore[type-var]
        self._take_room(place.path, 0, 1)
        node.st_mtime = self.kernel.now
        self._add(place, node, call)
        return node

    def _add(self, place: Place, node: Any, call: str) -> None:  # noqa: ANN401  as in Place
        """Give a node this name."""
        if place.parent is None or place.parent.st_nlink <= 1:
            raise make_error(errno.EPERM if place.parent is None else errno.ENOENT, place.path)
        node.name = place.name
        place.parent.add_entry(node)
        node.st_ctime = place.parent.st_mtime = self.kernel.now
        self.changed(call, place.path)

    def _remove(self, place: Place, call: str) -> None:
        if place.parent is None:
            raise make_error(errno.EPERM, place.path)
        self._take_room(place.path, -_count_blocks(place.node), -1)
        place.parent.remove_entry(place.name, recursive=False)
        place.parent.st_mtime = self.kernel.now
        self.changed(call, place.path)

    def _take_room(self, path: str, blocks: int, files: int) -> None:
        """Take that from the file system of RUN, if the path is in it, or give it back."""
        if self.room is None or not path.startswith(RUN + "/"):
            return
        left = [self.room[0] - blocks, self.room[1] - files]
        if min(left) < 0 and (blocks > 0 or files > 0):
            raise make_error(errno.ENOSPC, path)
        self.room = left

    def _fill(self, node: FakeFile, path: str, data: bytes) -> None:
        self._take_room(path, -(-len(data) // _BLOCK) - _count_blocks(node), 0)
        node.set_contents(data)
        node.st_ctime = node.st_mtime = self.kernel.now
        self.changed("write", path)

    def _find(
        self, path: bytes | str, dir_fd: int | None = None, *, follow: bool = False, links: int = 0
    ) -> Place:
        """Where a path leads, as in path_resolution(7); `follow`:
        through a link in its last component, too.
        """
        text = os.fsdecode(path)
        if "\0" in text:
            raise ValueError("embedded null byte")
        if len(text) >= _PATH_MAX:
            raise make_error(errno.ENAMETOOLONG, path)
        parent: FakeDirectory | None = None
        node: Any = self.fs.root_dir
        at = name = ""
        if dir_fd is not None and not text.startswith("/"):
            start = self._opened(dir_fd)
            at, node = start.path, start.node
            if isinstance(node, KernelNode):
                return self._find_in_kernel(posixpath.normpath(f"{at}/{text}"), path)
        names = [part for part in posixpath.normpath(text).split("/") if part not in ("", ".")]
        for number, name in enumerate(names, 1):
            if not isinstance(node, FakeDirectory):
                raise make_error(errno.ENOENT if node is None else errno.ENOTDIR, path)
            parent, node, above = node, node.entries.get(name), at
            at = f"{above}/{name}"
            if id(node) in self._mounted:
                return self._find_in_kernel("/".join([at, *names[number:]]), path)
            if node is not None and stat.S_ISLNK(node.st_mode) and (follow or number < len(names)):
                if links == _MOST_LINKS:
                    raise make_error(errno.ELOOP, path)
                target = posixpath.join(above, os.fsdecode(node.byte_contents), *names[number:])
                return self._find(target, follow=follow, links=links + 1)
        return Place(parent, name, node, at)

    def _find_in_kernel(self, text: str, path: bytes | str) -> Place:
        if text in self.kernel.denied:
            raise make_error(self.kernel.denied[text], path)
        node = self.kernel.look(text)
        if node is None:
            above = self.kernel.look(text.rpartition("/")[0])
            if above is None or not stat.S_ISDIR(above.st_mode):
                raise make_error(errno.ENOENT if above is None else errno.ENOTDIR, path)
        return Place(None, text.rpartition("/")[2], node, text)


def _count_blocks(node: Any) -> int:  # noqa: ANN401  as in Place
    """How many blocks a file's content takes; of a link and a directory it takes none."""
    return -(-len(node.byte_contents or b"") // _BLOCK) if stat.S_ISREG(node.st_mode) else 0


def _present(place: Place) -> Any:  # noqa: ANN401  as in Place
    if place.node is None:
        raise make_error(errno.ENOENT, place.path)
    return place.node


def _below(path: str, node: FakeFile) -> Iterator[tuple[str, bytes | str]]:
    if isinstance(node, FakeDirectory):
        if not node.entries:
            yield path + "/", ""
        for name in sorted(node.entries):
            yield from _below(f"{path}/{name}", node.entries[name])
    else:
        content = node.byte_contents or b""
        yield path, "-> " + os.fsdecode(content) if stat.S_ISLNK(node.st_mode) else content
