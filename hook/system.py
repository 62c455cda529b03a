# SPDX-License-Identifier: Apache-2.0
"""The system calls of the hook path, and what /proc says of processes, in one module:
tests make each call fail.

The core avoids `os`, `json`, `re` and `dataclasses`, and all other modules that are not built into
CPython: a container would wait for their imports (docs/performance.md, "What the hook avoids"). So
this module uses `posix`. Python itself opens descriptors with O_CLOEXEC (PEP 446) and repeats a
call after EINTR (PEP 475). Paths are encoded here, as UTF-8: a hook cannot rely on the locale that
its caller left in the environment.
"""

from __future__ import annotations

import fcntl as fcntl  # noqa: PLC0414  `rare` has these three from here, so that tests replace them once
import posix as posix  # noqa: PLC0414
import time as time  # noqa: PLC0414

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    T = TypeVar("T")

READ_SIZE = 1 << 16
# errno(3); the import of `errno` costs a hundredth of a start
EPERM, ENOENT, ESRCH, ENXIO, EACCES, EBUSY, ENODEV, EISDIR, EINVAL = 1, 2, 3, 6, 13, 16, 19, 21, 22
ENOTDIR, EFBIG, ENOSPC, EROFS, ELOOP = 20, 27, 28, 30, 40
FILE_TYPE, REGULAR, _DIRECTORY, _PIPE = 0o170000, 0o100000, 0o040000, 0o010000  # inode(7)
TICKS = 100  # of /proc, a second: USER_HZ, the same on each kernel that has resctrl
_HOST_UID_MAP = ["0", "0", "4294967295"]


def try_call(call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | None:
    """The result of a call; None if it raises OSError."""
    try:
        return call(*arguments, **named)
    except OSError:
        return None


def is_gone(error: OSError) -> bool:
    """Whether what a file is in was removed: a group, resctrl, a cgroup.

    ENODEV means: while the file was open.
    """
    return error.errno in (ENOENT, ENODEV)


def encoded(path: str) -> bytes:
    """A path as the kernel gets it, whatever the locale is."""
    return path.encode("utf-8", "surrogateescape")


monotonic = time.monotonic
"""Seconds on the monotonic clock, which all deadlines use."""


def boottime() -> float:
    """Seconds since boot, suspend included (CLOCK_BOOTTIME): never set back,
    and the same for every process.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


unix_time = time.time
"""Unix time, as Prometheus expects times."""


sleep = time.sleep
"""Wait so many seconds; callers have a deadline."""


def ensure_standard_descriptors() -> None:
    """Open those of the descriptors 0, 1 and 2 that are closed,
    so that no file opened later becomes stdout.
    """
    for descriptor in (0, 1, 2):
        try:
            posix.fstat(descriptor)
        except OSError:  # open takes the lowest free number: this one
            if try_call(posix.open, "/dev/null", posix.O_RDWR) is None:
                # Always exists, and each read and write of a directory fails.
                posix.open("/", posix.O_RDONLY)


umask_before = 0o022
"""The umask before set_umask."""


def set_umask() -> None:
    """Replace the umask that the runtime left,
    so that consumers can read our groups and records.
    """
    global umask_before  # noqa: PLW0603  of the process, as the umask itself
    umask_before = posix.umask(0o022)


def read_stdin(limit: int, patience: float) -> tuple[bytes, bool]:
    """Read stdin to its end, for at most `patience` seconds.

    Returns `limit` bytes, and whether that was all of it.

    The rest is read and dropped: a runtime that gets EPIPE may treat the hook as failed.
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
    """A descriptor to read stdin from, and whether a read of it can block.

    A pipe is opened once more, since O_NONBLOCK on descriptor 0 would hold for all processes that
    share it. The state is usually in the pipe by now, so that we do without `select`, whose import
    takes as long as reading the state.
    """
    try:
        if posix.fstat(0).st_mode & FILE_TYPE == _PIPE:
            return posix.open("/proc/self/fd/0", posix.O_RDONLY | posix.O_NONBLOCK), False
    except OSError:
        pass
    return 0, True


def _is_readable(descriptor: int, patience: float) -> bool:
    """Whether data, or the end, can be read within `patience` seconds."""
    import select

    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(patience * 1000))


def use(
    path: str,
    flags: int,
    call: Callable[..., T],
    *arguments: object,
    dir_fd: int | None = None,
    mode: int = 0o600,
) -> T:
    """Open a file, never through a link in its last component; call something with its descriptor
    and these arguments, and close it.
    """
    descriptor = posix.open(encoded(path), flags | posix.O_NOFOLLOW, mode, dir_fd=dir_fd)
    try:
        return call(descriptor, *arguments)
    finally:
        posix.close(descriptor)


def read_file(path: str, limit: int = 1 << 20, dir_fd: int | None = None) -> str:
    """The text of a file of at most `limit` bytes, never through a link in its last component.

    A read that returns less than was asked for is the last one. Of a regular file it has reached
    the end: read(2). What the kernel makes whole at the first read (single_open, in
    Documentation/filesystems/seq_file.rst), it gives as far as there is room: so are
    /proc/PID/stat, cgroup, status and cpu_resctrl_groups, and the files of resctrl. Not so are
    those with a record for each process: `rare.read_records`. OSError(EFBIG): it is longer, so
    neither we nor the kernel wrote it.
    """

    flags = posix.O_RDONLY | posix.O_NONBLOCK
    data = use(path, flags, _read_all, limit, path, dir_fd=dir_fd)
    return data.decode("utf-8", "surrogateescape")


def _read_all(descriptor: int, limit: int, path: str) -> bytes:
    data = b""
    while True:
        size = READ_SIZE + len(data)  # so that a large one is not copied too often
        chunk = posix.read(descriptor, size)
        data += chunk
        if len(data) > limit:
            raise OSError(EFBIG, "File too large", path)
        if len(chunk) < size:
            return data


def read_counter(path: str) -> str:
    """The text of a file of the kernel's that fits into one read, without its newline."""
    return use(path, posix.O_RDONLY, posix.read, 4096).decode("ascii", "replace").rstrip("\n")


def list_directory(path: str, dir_fd: int | None = None) -> list[str]:
    """The names in a directory, which must not be a link.

    A hook lists none that grows with the node.
    """
    return sorted(use(path, posix.O_RDONLY | posix.O_DIRECTORY, posix.listdir, dir_fd=dir_fd))


def list_kernel_directory(path: str) -> list[str]:
    """The names in a directory of the kernel's, where there are no links:
    half as many system calls.
    """
    return sorted(map(bytes.decode, posix.listdir(encoded(path))))


def append(path: str, text: str, dir_fd: int) -> None:
    """Append to a file, made if missing, in one write(2),
    so that the appends of two processes never mix.
    """
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND | posix.O_NONBLOCK
    use(path, flags, posix.write, text.encode("ascii"), dir_fd=dir_fd)


def write_new(path: str, text: str, dir_fd: int | None = None, mode: int = 0o600) -> None:
    """Create or overwrite a file.

    Never through a link; OSError(ENXIO) for a FIFO, without waiting for a reader.

    A character that has no UTF-8 is written as its escape: a damaged record may hold one.
    """

    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC | posix.O_NONBLOCK
    data = text.encode("utf-8", "backslashreplace")
    use(path, flags, _write_all, data, dir_fd=dir_fd, mode=mode)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[posix.write(descriptor, data) :]


def write_once(path: str, text: str) -> None:
    """Write `text` to an existing file in one write(2), as the kernel's control files require."""
    use(path, posix.O_WRONLY, posix.write, text.encode("ascii"))


def open_directory(path: str, dir_fd: int | None = None) -> int:
    """A descriptor of a directory, which must not be a link."""
    return posix.open(
        encoded(path), posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW, dir_fd=dir_fd
    )


def open_lock(path: str, dir_fd: int) -> int:
    """A descriptor of a lock file, made if it is not there."""
    return posix.open(
        encoded(path), posix.O_RDWR | posix.O_CREAT | posix.O_NOFOLLOW, 0o600, dir_fd=dir_fd
    )


def close(descriptor: int) -> None:
    """Close a descriptor, which releases the flock that it holds."""
    posix.close(descriptor)


def try_flock(descriptor: int) -> bool:
    """Take the exclusive flock without waiting. Returns False if another process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def count_links(descriptor: int) -> int:
    """The number of names of an open file.

    A directory of cgroups has two links, and one more for each one in it.
    """
    return posix.fstat(descriptor).st_nlink


def inode(path: str, dir_fd: int | None = None) -> int:
    """The inode of a file, which no other file of that file system gets while it exists."""
    return posix.stat(encoded(path), dir_fd=dir_fd, follow_symlinks=False).st_ino


def change_time(path: str) -> int:
    """The time of the last change of a file's attributes, in nanoseconds of the system's clock."""
    return posix.stat(encoded(path), follow_symlinks=False).st_ctime_ns


def owner_and_mode(descriptor: int) -> tuple[int, int]:
    """The user ID of an open file's owner, and its mode."""
    status = posix.fstat(descriptor)
    return status.st_uid, status.st_mode & 0o7777


def find_directory(path: str) -> bool:
    """Whether `path` is a directory.

    Raises OSError if that cannot be found out, as for one longer than PATH_MAX.
    """
    try:
        return posix.stat(encoded(path)).st_mode & FILE_TYPE == _DIRECTORY
    except (
        FileNotFoundError,
        NotADirectoryError,
        ValueError,
    ):  # ValueError: no path, with a NUL or half a surrogate
        return False


def is_directory(path: str) -> bool:
    """Whether `path` is a directory; False if that cannot be found out."""
    return try_call(find_directory, path) is True


def mkdir(path: str, mode: int, dir_fd: int | None = None) -> None:
    """Make one directory, never its parents."""
    posix.mkdir(encoded(path), mode, dir_fd=dir_fd)


def rmdir(path: str, dir_fd: int | None = None) -> None:
    """Remove an empty directory."""
    posix.rmdir(encoded(path), dir_fd=dir_fd)


def rename(source: str, target: str, dir_fd: int) -> None:
    """Rename a file, replacing another in one step; both paths are below `dir_fd`."""
    posix.rename(encoded(source), encoded(target), src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def unlink(path: str, dir_fd: int) -> None:
    """Remove a file, or nothing if it does not exist."""
    try:
        posix.unlink(encoded(path), dir_fd=dir_fd)
    except FileNotFoundError:
        pass


user_id = posix.geteuid
"""The effective user ID: 0 is root."""


process_id = posix.getpid
"""Our own pid, in our pid namespace."""


parent_id = posix.getppid
"""The pid of our parent: of a hook, the runtime."""


leave = posix._exit
"""End the process at once, without the interpreter's own clean-up,
which costs a fifth of its start.
"""


# --- /proc: processes, their cgroups and groups, and the namespaces that we run in


def in_user_namespace() -> bool:
    """Whether we are root in a user namespace only (rootless Podman), and so cannot use resctrl.

    Source: user_namespaces(7). False if /proc/self/uid_map cannot be read:
    the failures that follow are visible.
    """
    text = try_call(read_file, "/proc/self/uid_map")
    return text is not None and text.split() != _HOST_UID_MAP


def _stat_fields(pid: int | str) -> list[str]:
    """The fields of /proc/PID/stat from the third on; the second, the name,
    may hold spaces and parentheses.
    """
    return read_file(f"/proc/{pid}/stat").rpartition(")")[2].split()


def stat_fields(pid: int | str) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third (state) on,
    or None without such a process or such a /proc.

    `pid` is a process, or PID/task/TID for a single thread.
    """
    return try_call(_stat_fields, pid)


def starttime(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot.

    Pid and start time name one process for ever.

    Without such a process this is None. Raises OSError if /proc cannot tell. Source:
    proc_pid_stat(5), field 22.
    """
    try:
        return int(_stat_fields(pid)[19])
    except (FileNotFoundError, ProcessLookupError):
        # Else /proc shows no process at all, and an absent pid means nothing.
        if is_directory("/proc/1"):
            return None
        raise


def is_dead(pid: int, born: int | None = None) -> bool | None:
    """Whether the process `pid` (that started at `born`, where that is known) is dead;
    None where /proc cannot tell.

    Dead: no such process, another start time, or a zombie with at most one thread. A leader that
    left its threads running is a zombie as well (state Z or X, field 3; num_threads, field 20).
    """
    try:
        fields = _stat_fields(pid)
        reused = born is not None and int(fields[19]) != born
        return reused or is_over(fields)
    except (FileNotFoundError, ProcessLookupError):
        return True if is_directory("/proc/1") else None  # as in starttime
    except (OSError, ValueError, IndexError):
        return None


def is_over(fields: list[str]) -> bool:
    """Whether the process with these `stat_fields` has ended:
    a zombie whose other threads have ended, too.
    """
    return fields[0] in "ZX" and int(fields[17]) <= 1


def resctrl_groups(pid: int | str) -> tuple[str, str] | None:
    """Return the ctrl_group (`/` is the root one) and the mon_group, if any, of a task,
    as the kernel shows them.

    Returns None if the task has ended, or the kernel does not say: without CONFIG_PROC_CPU_RESCTRL
    there is no such file, and `res:` is empty while resctrl is not mounted. Raises OSError if the
    file cannot be read. Source: Documentation/filesystems/resctrl.rst, kernel/fs/resctrl
    proc_resctrl_show().
    """
    try:
        lines = "\n" + read_file(f"/proc/{pid}/cpu_resctrl_groups")
    except (FileNotFoundError, ProcessLookupError):
        return None
    ctrl_group = lines.partition("\nres:")[2].partition("\n")[0]
    return (ctrl_group, lines.partition("\nmon:")[2].partition("\n")[0]) if ctrl_group else None


def cgroups(pid: int) -> list[str]:
    """The cgroups of a process as `<controllers>:<path>`, one for each hierarchy;
    none where /proc cannot tell.
    """
    text = try_call(read_file, f"/proc/{pid}/cgroup") or ""
    # A cgroup's name may have blanks.
    return [line.partition(":")[2] for line in text.split("\n") if line]
