# SPDX-License-Identifier: Apache-2.0
"""The system calls of the hook path: one small seam, so that each of them can be made to fail.

`posix` instead of `os`: the same calls without an import that costs a tenth of the interpreter's start. Descriptors are
opened with O_CLOEXEC by Python itself (PEP 446), and every call is repeated after EINTR (PEP 475). Paths are
encoded here, as UTF-8: the locale of a hook is whatever its caller left in the environment.
"""

from __future__ import annotations

import fcntl
import posix
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

READ_SIZE = 1 << 16
_SEEK_CUR = 1  # lseek(2)
_SOON = 0.01
_EFBIG = 27  # errno(3): to import it takes a hundredth of a start
_PIPE_BUF = 4096  # a write this small to a pipe that poll calls writable does not block: pipe(7)


def _encoded(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


monotonic = time.monotonic
"""Seconds on the clock that every deadline here is measured by."""


def boottime() -> float:
    """Seconds since boot, time asleep included (CLOCK_BOOTTIME): never set back, and the same for every process."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


unix_time = time.time
"""Seconds since 1970, as Prometheus has times."""


def now_utc() -> str:
    """The time of day for people, RFC 3339 in UTC."""
    return format_utc(unix_time())


def format_utc(seconds: float) -> str:
    """The same for a Unix time."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def syslog_time() -> str:
    """The time of day as syslog's datagrams have it, RFC 3164: local time."""
    return time.strftime("%b %e %H:%M:%S", time.localtime())


sleep = time.sleep
"""Wait these seconds; only ever called in a loop that has a deadline."""


def ensure_standard_descriptors() -> None:
    """Make 0, 1 and 2 exist, so that no file that is opened later becomes stdout."""
    for descriptor in (0, 1, 2):
        try:
            posix.fstat(descriptor)
        except OSError:
            posix.open("/dev/null", posix.O_RDWR)  # takes the lowest free number: this one


def set_umask() -> None:
    """Let what we make have the mode that we ask for, whatever umask the runtime has: consumers read our groups."""
    posix.umask(0o022)


def read_stdin(limit: int, patience: float) -> tuple[bytes, bool]:
    """The first `limit` bytes of stdin, and whether it ended there, within `patience` seconds; the rest is dropped.

    Reading to the end matters to the writer: a runtime that gets EPIPE may call the hook failed.
    """
    deadline = monotonic() + patience
    source, waits = _own_stdin()
    chunks: list[bytes] = []
    size = 0
    while (left := deadline - monotonic()) > 0 and (not waits or _is_readable(source, left)):
        try:
            chunk = posix.read(source, READ_SIZE)
        except BlockingIOError:  # the runtime is not as quick as we are
            waits = True
            continue
        if not chunk:
            return b"".join(chunks), size <= limit
        if size < limit:
            chunks.append(chunk[: limit - size])
        size += len(chunk)
    return b"".join(chunks), False


def _own_stdin() -> tuple[int, bool]:
    """A descriptor to read stdin from, and whether a read of it can wait.

    Of a pipe we open a description of our own, since O_NONBLOCK on 0 would be for all that share it. What the runtime
    has to say is usually in the pipe by now, and poll in a module that takes as long to load as the state to read.
    """
    try:
        if posix.fstat(0).st_mode & 0o170000 == 0o010000:
            return posix.open("/proc/self/fd/0", posix.O_RDONLY | posix.O_NONBLOCK), False
    except OSError:
        pass
    return 0, True


def _is_readable(descriptor: int, patience: float) -> bool:
    """Whether there is something to read, or the end, within `patience` seconds."""
    import select

    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(patience * 1000))


def write_stderr(line: bytes) -> None:
    """Write one line to stderr, unless that would block: perhaps no process reads there."""
    import select

    poll = select.poll()
    poll.register(2, select.POLLOUT)
    if any(event & select.POLLOUT for _, event in poll.poll(0)):
        posix.write(2, line[: _PIPE_BUF - 1] + b"\n")


def _use(path: str, flags: int, use: Callable[[int], T], dir_fd: int | None = None, mode: int = 0o600) -> T:
    """Open a file, never through a link in its last component; use its descriptor, and close it."""
    descriptor = posix.open(_encoded(path), flags | posix.O_NOFOLLOW, mode, dir_fd=dir_fd)
    try:
        return use(descriptor)
    finally:
        posix.close(descriptor)


def read_file(path: str, limit: int = 1 << 20, dir_fd: int | None = None) -> str:
    """The text of a file of at most `limit` bytes, never through a link in its last component.

    A longer one raises OSError(EFBIG): it is none that we or the kernel wrote.
    """

    def read(descriptor: int) -> bytes:
        data = b""
        while chunk := posix.read(descriptor, READ_SIZE + len(data)):  # so that a large one is not copied too often
            data += chunk
            if len(data) > limit:
                raise OSError(_EFBIG, "File too large", path)
        return data

    return _use(path, posix.O_RDONLY | posix.O_NONBLOCK, read, dir_fd).decode("utf-8", "surrogateescape")


def read_counter(path: str) -> str:
    """The text of a file that the kernel gives in one read, without its newline."""
    text = _use(path, posix.O_RDONLY, lambda descriptor: posix.read(descriptor, 4096))
    return text.decode("ascii", "replace").rstrip("\n")


def list_directory(path: str, dir_fd: int | None = None) -> list[str]:
    """The names in a directory, which must not be a link; never of one that grows with the node."""
    return sorted(_use(path, posix.O_RDONLY | posix.O_DIRECTORY, posix.listdir, dir_fd))


def append(path: str, text: str, dir_fd: int) -> tuple[int, bool]:
    """Add to the end of a file, made if it is not there, in one write(2): appends of two processes never mix.

    Returns where that ends in the file, and whether the file still has a name: the kernel sets the position of the
    descriptor in the same step as it appends (O_APPEND).
    """

    def write(descriptor: int) -> tuple[int, bool]:
        posix.write(descriptor, text.encode("ascii"))
        return posix.lseek(descriptor, 0, _SEEK_CUR), posix.fstat(descriptor).st_nlink > 0

    return _use(path, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND | posix.O_NONBLOCK, write, dir_fd)


def remove_and_measure(path: str, dir_fd: int) -> int:
    """Remove a file; returns how long it was. Of two processes that do it, one gets FileNotFoundError."""

    def remove(descriptor: int) -> int:
        posix.unlink(_encoded(path), dir_fd=dir_fd)
        return posix.fstat(descriptor).st_size  # last: who appends after this sees that the file has no name

    return _use(path, posix.O_RDONLY | posix.O_NONBLOCK, remove, dir_fd)


def write_new(path: str, text: str, dir_fd: int | None = None, mode: int = 0o600) -> None:
    """Write a file whole, made or emptied first; never through a link, and OSError(ENXIO) for a FIFO, at once.

    A character that has no UTF-8 is written as its escape: a damaged record may hold one.
    """

    def write(descriptor: int) -> None:
        data = text.encode("utf-8", "backslashreplace")
        while data:
            data = data[posix.write(descriptor, data) :]

    _use(path, posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC | posix.O_NONBLOCK, write, dir_fd, mode)


def write_once(path: str, text: str) -> None:
    """Give `text` to a file that exists in one write(2), the way the kernel's control files want it."""
    _use(path, posix.O_WRONLY, lambda descriptor: posix.write(descriptor, text.encode("ascii")))


def create_exclusively(path: str, dir_fd: int) -> None:
    """Make an empty file; FileExistsError if there is one."""
    _use(path, posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL, lambda _descriptor: None, dir_fd)


def open_directory(path: str) -> int:
    """A descriptor of a directory, which must not be a link."""
    return posix.open(_encoded(path), posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW)


def open_lock(path: str, dir_fd: int) -> int:
    """A descriptor of a lock file, made if it is not there."""
    return posix.open(_encoded(path), posix.O_RDWR | posix.O_CREAT | posix.O_NOFOLLOW, 0o600, dir_fd=dir_fd)


def close(descriptor: int) -> None:
    """Close a descriptor, and with it give back the flock that it holds."""
    posix.close(descriptor)


def try_flock(descriptor: int) -> bool:
    """Take the exclusive flock without waiting; whether it was had."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_flock(descriptor: int, deadline: float) -> bool:
    """Take the exclusive flock, waiting until `deadline` (monotonic) at the most; whether it was had.

    The kernel serves who waits nearly in turn; of many that poll, some would never be lucky. An alarm ends the wait:
    the runtime may have handed us SIGALRM blocked, and one that comes just before flock begins to wait would be lost,
    so it comes again and again.
    """
    import _signal  # type: ignore[import-not-found]

    if monotonic() >= deadline:
        return False
    waiting = ["for the lock"]

    def give_up(_number: int, _frame: object) -> None:
        if waiting:
            waiting.clear()
            raise TimeoutError  # else flock(2) would be repeated (PEP 475)

    _signal.signal(_signal.SIGALRM, give_up)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_signal.SIGALRM])
    try:
        _signal.setitimer(_signal.ITIMER_REAL, max(deadline - monotonic(), _SOON), _SOON)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        waiting.clear()
    except TimeoutError:
        return False
    finally:
        _signal.setitimer(_signal.ITIMER_REAL, 0)
    return True


def same_file(descriptor: int, path: str, dir_fd: int) -> bool:
    """Whether `path` still names the file that the descriptor has open."""
    try:
        named = posix.stat(_encoded(path), dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    opened = posix.fstat(descriptor)
    return (named.st_ino, named.st_dev) == (opened.st_ino, opened.st_dev)


def inode(path: str, dir_fd: int | None = None) -> int:
    """The number that a file has as long as it has any name."""
    return posix.stat(_encoded(path), dir_fd=dir_fd, follow_symlinks=False).st_ino


def count_links(path: str) -> int:
    """How many names a file has. Of a directory of cgroups: two, and one for each directory in it."""
    return posix.stat(_encoded(path), follow_symlinks=False).st_nlink


def age(path: str, dir_fd: int | None = None) -> float:
    """Seconds since a file was written or got its name, or until then where the clock was set back.

    Files bear the time of day. Where that jumps, what is kept for some time goes early, but never stays for ever.
    """
    return abs(time.time() - posix.stat(_encoded(path), dir_fd=dir_fd, follow_symlinks=False).st_ctime)


def link_target(path: str) -> str:
    """What a symbolic link names, without looking whether that exists."""
    return posix.readlink(_encoded(path)).decode("utf-8", "surrogateescape")


def owner_and_mode(descriptor: int) -> tuple[int, int]:
    """Who owns an open file, and its mode bits."""
    status = posix.fstat(descriptor)
    return status.st_uid, status.st_mode


def is_directory(path: str) -> bool:
    """Whether `path` is a directory; False for whatever cannot be looked at."""
    try:
        return posix.stat(_encoded(path)).st_mode & 0o170000 == 0o040000
    except (OSError, ValueError):  # ValueError: no path at all, with a NUL or half of a surrogate pair in it
        return False


def mkdir(path: str, mode: int, dir_fd: int | None = None) -> None:
    """Make one directory, never its parents."""
    posix.mkdir(_encoded(path), mode, dir_fd=dir_fd)


def rmdir(path: str, dir_fd: int | None = None) -> None:
    """Remove one directory."""
    posix.rmdir(_encoded(path), dir_fd=dir_fd)


def remove_tree(path: str, dir_fd: int) -> None:
    """Remove a directory of ours with all that is in it, or a file; nothing there is fine."""
    try:
        names = list_directory(path, dir_fd)
    except FileNotFoundError:
        return
    except OSError:
        posix.unlink(_encoded(path), dir_fd=dir_fd)
        return
    for name in names:
        below = f"{path}/{name}"
        try:
            posix.unlink(_encoded(below), dir_fd=dir_fd)
        except (IsADirectoryError, PermissionError):
            remove_tree(below, dir_fd)
    posix.rmdir(_encoded(path), dir_fd=dir_fd)


def symlink(target: str, path: str, dir_fd: int) -> None:
    """Make a symbolic link."""
    posix.symlink(_encoded(target), _encoded(path), dir_fd=dir_fd)


def rename(source: str, target: str, dir_fd: int) -> None:
    """Put a file in the place of another in one step; both below `dir_fd`."""
    posix.rename(_encoded(source), _encoded(target), src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def link(path: str, further: str, dir_fd: int) -> None:
    """Give a file a further name, or a link itself; both below `dir_fd`. PermissionError for a directory."""
    posix.link(_encoded(path), _encoded(further), src_dir_fd=dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)


def unlink(path: str, dir_fd: int) -> None:
    """Remove a file, if it is there."""
    try:
        posix.unlink(_encoded(path), dir_fd=dir_fd)
    except FileNotFoundError:
        pass


user_id = posix.geteuid
"""The effective user ID."""


process_id = posix.getpid
"""Our own pid."""


leave = posix._exit
"""End the process at once, without the interpreter's own clean-up, which costs a fifth of its start."""
