# SPDX-License-Identifier: Apache-2.0
"""System calls that no usual start or end of a container makes: those of waits, failures and tools.

They are beside `system` since each function that is loaded takes its part of each
start (docs/performance.md).
"""

from __future__ import annotations

from hook import formats, system
from hook.errors import HookError, Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeVar

    T = TypeVar("T")

_PIPE_BUF = 4096  # a write this small to a pipe that poll calls writable does not block: pipe(7)
_SOON = 0.01
_SEEK_CUR = 1  # lseek(2)
# Made in this order: if `locks` exists, all do.
PARTS = ("groups", "members", "unmonitored", "runs", "locks")
"""The directories in the run directory."""
FAILURE_PATIENCE = 1.0
"""Seconds: the longest wait for the lock of a failure's record, that of a key by this ID."""


def as_hook_error(problem: str, error: BaseException) -> HookError:
    """Return a HookError as it is.

    Of a system call that failed, make one with this problem; of a defect, one too.
    """
    if isinstance(error, HookError):
        return error
    if isinstance(error, OSError):
        return HookError(Reason.IO, "system call", problem=problem, error=error)
    return HookError(Reason.IO, "defect", error=error)


def start_elsewhere(items: Sequence[T]) -> list[T]:
    """Return the items in turn, from another one at each call, so that none is always too late."""
    at = int(system.boottime() * 1000) % len(items) if items else 0
    return [*items[at:], *items[:at]]


def now_utc() -> str:
    """The time of day for people, RFC 3339 in UTC."""
    return formats.format_utc(system.unix_time())


def ignore_zone() -> None:
    """Let times be in the machine's zone: TZ may name another, or a file that never ends.

    TZ is set, and not removed: so the entry has its place when the command of `run` gets it back.
    """
    if b"TZ" in system.posix.environ:
        system.posix.putenv(b"TZ", b":/etc/localtime")  # as without TZ: tzset(3)
    system.time.tzset()


def syslog_time() -> str:
    """The machine's local time, whatever TZ says,
    in the format of syslog's datagrams (RFC 3164).
    """
    ignore_zone()
    return system.time.strftime("%b %e %H:%M:%S", system.time.localtime())


def write_stderr(line: bytes) -> None:
    """Write one line to stderr; drop it if that would block,
    for the reader may have stopped reading.
    """
    import select

    poll = select.poll()
    poll.register(2, select.POLLOUT)
    if any(event & select.POLLOUT for _, event in poll.poll(0)):
        system.posix.write(2, line[: _PIPE_BUF - 1] + b"\n")


def read_start(path: str, size: int) -> str:
    """The first bytes of a file of the kernel's, at most `size`, by one read.

    What is not UTF-8 is replaced.
    """
    data = system.use(path, system.posix.O_RDONLY, system.posix.read, size)
    return data.decode("utf-8", "replace")


def read_records(path: str, limit: int, dir_fd: int | None = None) -> str:
    """The text of a file that the kernel makes record by record,
    so that a read may return a part of it.

    Such are `children`, `tasks` of cgroup v1, and `cgroup.threads`. OSError(EFBIG):
    it is longer than `limit` bytes.
    """

    def read(descriptor: int) -> bytes:
        data = b""
        while chunk := system.posix.read(descriptor, system.READ_SIZE):
            data += chunk
            if len(data) > limit:
                raise OSError(system.EFBIG, "File too large", path)
        return data

    return system.use(path, system.posix.O_RDONLY, read, dir_fd=dir_fd).decode()


def append_and_count(path: str, text: str, dir_fd: int) -> tuple[int, bool]:
    """Append as system.append does; returns the position of the end of `text`,
    and whether the file still has a name.

    The kernel sets the position in the same step (O_APPEND).
    """

    def write(descriptor: int) -> tuple[int, bool]:
        system.posix.write(descriptor, text.encode("ascii"))
        return system.posix.lseek(descriptor, 0, _SEEK_CUR), system.count_links(descriptor) > 0

    posix = system.posix
    return system.use(
        path,
        posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND | posix.O_NONBLOCK,
        write,
        dir_fd=dir_fd,
    )


def same_file(descriptor: int, path: str, dir_fd: int) -> bool:
    """Whether `path` still names the file that the descriptor has open."""
    try:
        named = system.posix.stat(system.encoded(path), dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    opened = system.posix.fstat(descriptor)
    return (named.st_ino, named.st_dev) == (opened.st_ino, opened.st_dev)


def remove_and_measure(path: str, dir_fd: int) -> int:
    """Remove a file; returns its size. Of two processes that do it at once, one gets 0."""

    def remove(descriptor: int) -> int:
        system.posix.unlink(system.encoded(path), dir_fd=dir_fd)
        # Last: an append after this finds that the file has no name.
        return system.posix.fstat(descriptor).st_size

    try:
        return system.use(
            path, system.posix.O_RDONLY | system.posix.O_NONBLOCK, remove, dir_fd=dir_fd
        )
    except FileNotFoundError:
        return 0


def wait_for_flock(descriptor: int, deadline: float) -> bool:
    """Take the exclusive flock, waiting until `deadline` (monotonic) at the most.

    Returns False after it.

    flock(2) serves waiters nearly in turn; of many processes that poll instead, some would never
    get the lock. SIGALRM, which the runtime may have left blocked, ends the wait. It repeats, since
    an alarm just before flock begins to wait is lost.
    """
    import _signal  # type: ignore[import-not-found]

    if system.monotonic() >= deadline:
        return False
    waiting = ["for the lock"]

    def give_up(_number: int, _frame: object) -> None:
        if waiting:
            waiting.clear()
            raise TimeoutError  # else flock(2) would be repeated (PEP 475)

    left, interval = _signal.getitimer(_signal.ITIMER_REAL)  # of a command that has a limit
    former_handler = _signal.signal(_signal.SIGALRM, give_up)
    former_mask = _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_signal.SIGALRM])
    try:
        _signal.setitimer(_signal.ITIMER_REAL, max(deadline - system.monotonic(), _SOON), _SOON)
        system.fcntl.flock(descriptor, system.fcntl.LOCK_EX)
        waiting.clear()
    except TimeoutError:
        return False
    finally:
        waiting.clear()  # of an exception of another signal: the next alarm must not stop this
        # If it was just going off, nothing of it is left: 0 would stop it for good.
        _signal.setitimer(_signal.ITIMER_REAL, left or min(interval, _SOON), interval)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, former_mask)
        # None: not ours.
        _signal.signal(
            _signal.SIGALRM, _signal.SIG_DFL if former_handler is None else former_handler
        )
    return True


def size(path: str, dir_fd: int | None = None) -> int:
    """The size of a file in bytes."""
    return system.posix.stat(system.encoded(path), dir_fd=dir_fd, follow_symlinks=False).st_size


def age(path: str, dir_fd: int | None = None) -> float:
    """Seconds since a file was written or renamed; its distance in time, too,
    if the clock was set back since.

    Files have the time of day. If that jumps, a file that is kept for some time goes early,
    but never stays for ever.
    """
    changed = system.posix.stat(system.encoded(path), dir_fd=dir_fd, follow_symlinks=False).st_ctime
    return abs(system.time.time() - changed)


def ensure_directory(path: str, mode: int, dir_fd: int | None = None) -> None:
    """Make a directory, or nothing if there is one."""
    try:
        system.mkdir(path, mode, dir_fd)
    except FileExistsError:
        pass


def make_parts(descriptor: int) -> None:
    """Make the missing directories of a run directory."""
    for part in PARTS:
        ensure_directory(part, 0o700, descriptor)


def remove_tree(path: str, dir_fd: int) -> None:
    """Remove one of our directories with all its content, or a file,
    or nothing if the path does not exist.
    """
    try:
        names = system.list_directory(path, dir_fd)
    except FileNotFoundError:
        return
    except OSError:
        system.posix.unlink(system.encoded(path), dir_fd=dir_fd)
        return
    for name in names:
        below = f"{path}/{name}"
        try:
            system.posix.unlink(system.encoded(below), dir_fd=dir_fd)
        except (IsADirectoryError, PermissionError):
            remove_tree(below, dir_fd)
    system.posix.rmdir(system.encoded(path), dir_fd=dir_fd)


def symlink(target: str, path: str, dir_fd: int) -> None:
    """Make a symbolic link. FileExistsError: the name is taken."""
    system.posix.symlink(system.encoded(target), system.encoded(path), dir_fd=dir_fd)


def link(path: str, further: str, dir_fd: int) -> None:
    """Give a file, or a symbolic link itself, a second name; both paths are below `dir_fd`.

    PermissionError: it is a directory.
    """
    names = system.encoded(path), system.encoded(further)
    system.posix.link(*names, src_dir_fd=dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)
