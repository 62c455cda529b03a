# SPDX-License-Identifier: Apache-2.0
"""Programs: finds and runs them, and finds the processes of the host itself.

A program that is run here cannot hang the caller, print without limit or leave children behind.
"""

from __future__ import annotations

import errno
import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, NamedTuple

from hook import cgroups, identity, procfs, system
from hook.explain import errno_name
from hook.node import files, processes

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OLDEST = (3, 9)
"""The first CPython that the program runs on."""
_ENVIRONMENT = {"PATH": PATH, "LC_ALL": "C"}
_TIMEOUT = 60.0
_LONGEST_OUTPUT = 16 << 20
_LONGEST_REMARK = 200
_PRINT_VERSION = (
    "import sys,importlib.util as u;"
    "print(*sys.version_info[:2],sys.implementation.cache_tag,int.from_bytes(u.MAGIC_NUMBER,'little'))"
)


def find_program(name: str, top: str = "") -> str | None:
    """The path of a program as seen below `top`; None if it is not installed."""
    paths = (f"{directory}/{name}" for directory in PATH.split(":"))
    return next((path for path in paths if is_program(top + path)), None)


def is_program(path: str) -> bool:
    """Whether a path names a file that may be run."""
    return os.path.isfile(path) and os.access(path, os.X_OK)


def has_systemd() -> bool:
    """Whether systemd is the running init: sd_booted(3)."""
    return os.path.isdir("/run/systemd/system")


@dataclass(frozen=True)
class Exit:
    """How a program ended. `status`: None if it did not start, timed out or printed too much.

    `error`: why there is no status; else the end of its stderr.
    """

    status: int | None
    output: str
    error: str

    @property
    def problem(self) -> str | None:
        """Why it failed, as one printable line; None if it succeeded."""
        if self.status is None:
            return self.error
        last = next((line.strip() for line in reversed(self.error.split("\n")) if line.strip()), "no error message")
        shown = "".join(it if it.isprintable() else "?" for it in last[:_LONGEST_REMARK])
        return None if self.status == 0 else f"exit status {self.status}: {shown}"


is_starting = False
"""Whether a program is being started. An exception that a signal raises now would leave it behind: see cli/deadline."""


def run_program(command: Sequence[str], stdin: str = "", seconds: float = _TIMEOUT) -> Exit:
    """Run a program in the environment of a service. `stdin` must fit in a pipe (64 KiB)."""
    global is_starting  # noqa: PLW0603  a handler of signals asks for it
    deadline, pipe = system.monotonic() + seconds, subprocess.PIPE
    is_starting = True
    try:
        with _unblock_signals():
            # In a session of its own, so that it is killed together with all its children.
            program = subprocess.Popen(
                command,
                bufsize=0,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                cwd="/",
                env=_ENVIRONMENT,
                start_new_session=True,
            )
    except OSError as error:
        return Exit(None, "", f"cannot start: {errno_name(error)}")
    finally:
        is_starting = False
    streams = [it for it in (program.stdin, program.stdout, program.stderr) if it is not None]
    try:
        output, remark = _talk(streams, stdin, deadline)
        status = program.wait(max(0.0, deadline - system.monotonic()))
        return Exit(status, output.decode("utf-8", "replace"), remark.decode("utf-8", "replace"))
    except OverflowError as error:
        return Exit(None, "", str(error))
    except (TimeoutError, subprocess.TimeoutExpired):
        return Exit(None, "", f"timed out after {seconds:.2g} s")
    finally:
        for stream in streams:
            stream.close()
        if program.returncode is None:  # it was not reaped, so its pid is not another program's
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):  # one in the kernel's hands ends later
                os.killpg(program.pid, signal.SIGKILL)
                program.wait(1.0)


@contextmanager
def _unblock_signals() -> Iterator[None]:
    """Block no signal while a program is started: what cli/deadline blocks would be blocked in it, too.

    One that comes in this time would end us, and leave the program behind. So it is sent again, once it is blocked.
    """
    came: list[int] = []
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    handlers = {it: signal.signal(it, lambda number, _frame: came.append(number)) for it in blocked}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for number in came:
            os.kill(os.getpid(), number)


def _talk(streams: Sequence[IO[bytes]], stdin: str, deadline: float) -> tuple[bytes, bytes]:
    """Write stdin; read all of stdout, and the end of stderr. Popen.communicate would keep both, at any size.

    Raises TimeoutError if one is still open at the deadline, OverflowError if there is more than _LONGEST_OUTPUT.
    """
    to_program, *outputs = streams
    with suppress(BrokenPipeError):  # it does not read its stdin
        to_program.write(stdin.encode())
    to_program.close()
    output, remark = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for stream, kept in zip(outputs, (output, remark)):
            selector.register(stream, selectors.EVENT_READ, kept)
        while selector.get_map():
            left = deadline - system.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                chunk = os.read(key.fd, system.READ_SIZE)
                key.data.extend(chunk)
                if not chunk:
                    selector.unregister(key.fileobj)
            del remark[: -system.READ_SIZE]
            if len(output) > _LONGEST_OUTPUT:
                raise OverflowError(f"printed more than {_LONGEST_OUTPUT >> 20} MiB")
    return bytes(output), bytes(remark)


# --- Interpreters


@dataclass(frozen=True)
class Interpreter:
    """A Python. `tag` names its bytecode (sys.implementation.cache_tag), which begins with `magic`."""

    path: str
    version: tuple[int, int]
    tag: str
    magic: bytes


def ask_interpreter(path: str) -> Interpreter | str:
    """Run a Python to learn its version; returns why the program cannot run on it if that fails."""
    ended = run_program([path, "-ISc", _PRINT_VERSION])
    try:
        major, minor, tag, magic = ended.output.split()
        found = Interpreter(path, (int(major), int(minor)), tag, int(magic).to_bytes(4, "little"))
    except (ValueError, OverflowError):
        return f"cannot run {path} as Python: {ended.problem or 'it does not print its version'}"
    if found.version < OLDEST:
        return "{} is Python {}.{}, but {}.{} or newer is required".format(path, *found.version, *OLDEST)
    return found


# --- The processes of the host itself, whose names, command lines, root and current directories can be trusted
#
# The author of a container names its processes, fills their command lines, and makes their root directory. A process of
# the host has the pid, mount and user namespaces of pid 1, runs as root, and is in no cgroup of a container or pod. Of
# all others we use only facts of the kernel: pid, parent, start time, cgroups, threads, counters.
#
# Comparing namespaces needs CAP_SYS_PTRACE, which the units and the DaemonSet of the chart do not have: without it no
# process is trusted. Source: namespaces(7), and "Ptrace access mode checking" of ptrace(2).

_NAMESPACES = ("pid", "mnt", "user")
_EXITING = 4  # PF_EXITING among a process's flags: proc_pid_stat(5), field 9
_HEAD = 4096  # bytes: a process can make its command line of any length
_INJECTOR = "hook-injector"
_IN_AN_IMAGE = "plugin"  # the name of every plugin's program in upstream's images


class Found(NamedTuple):
    """Processes of the host, by pid, with the words of their command lines.

    `unclear`: a line for each further process that may be one of them.
    """

    words: dict[int, list[str]]
    unclear: list[str]


def find_processes(is_wanted: Callable[[list[str]], bool]) -> Found:
    """Find the processes of the host whose command lines `is_wanted` accepts."""
    found = Found({}, [])
    unread: list[OSError] = []
    for it in processes.list_processes(unread=unread):  # so that none has time to become a container's
        if _is_in_container(it.cgroups) or not _is_of_root(it.pid) or not is_wanted(words := _read_words(it.pid)):
            continue
        try:
            if _is_of_host(it):
                found.words[it.pid] = words
        except OSError:
            why = "its namespaces cannot be compared with the host's (needs CAP_SYS_PTRACE): nothing of it was read"
            found.unclear.append(f"process {it.pid} calls itself {os.path.basename(words[0])}, and {why}")
    if unread:
        found.unclear.append(f"cannot read {len(unread)} of the processes in /proc: {errno_name(unread[0])}")
    return found


def _is_of_host(process: processes.Process) -> bool:
    """Whether a process outside of containers is the host's own. Raises OSError if its namespaces cannot be read."""
    try:
        return all(os.path.samefile(f"/proc/{process.pid}/ns/{it}", f"/proc/1/ns/{it}") for it in _NAMESPACES)
    except OSError:
        # One that ends has no namespaces any more, and under cgroup v1 it is in no container's cgroup.
        now = procfs.stat_fields(process.pid)
        has_ended = now is None or int(now[6]) & _EXITING or int(now[19]) != process.starttime
        if has_ended or _is_in_container(procfs.cgroups(process.pid)):  # by now
            return False
        raise


def _is_of_root(pid: int) -> bool:
    """Whether all user IDs of a process are 0: the others of this machine can start anything. proc_pid_status(5)."""
    status = (system.try_call(files.read_head, f"/proc/{pid}/status", _HEAD) or b"").decode("ascii", "replace")
    return status.partition("\nUid:\t")[2].partition("\n")[0].split() == 4 * ["0"]


def _is_in_container(places: Iterable[str]) -> bool:
    """Whether one of these cgroups is a container's or a pod's, or may be. `places`: as procfs.cgroups returns them."""
    return any(
        it in processes.UNKNOWN or cgroups.find_container_id(it) is not None or identity.pod_uid(it) is not None
        for it in places
    )


def _read_words(pid: int) -> list[str]:
    """The words in the first _HEAD bytes of a process's command line; one empty word if it has none.

    Never for a process of a container: reading the page with its words may block for ever (userfaultfd, FUSE).
    """
    # None: it has ended, or is a process of the kernel
    head = system.try_call(files.read_head, f"/proc/{pid}/cmdline", _HEAD) or b""
    return head.decode("utf-8", "surrogateescape").split("\0")[:-1] or [""]


def see_files(pid: int) -> files.Tree:
    """The files as a process of the host sees them. Raises OSError."""
    root, cwd = f"/proc/{pid}/root", os.readlink(f"/proc/{pid}/cwd")
    is_ours = os.path.samefile(root, "/") and os.path.samefile(f"/proc/{pid}/ns/mnt", "/proc/self/ns/mnt")
    return files.Tree("" if is_ours else root, cwd)


def read_start_time(pid: int) -> float:
    """When a process started, by the clock of file times. Raises OSError."""
    born = procfs.starttime(pid)
    if born is None:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    return system.unix_time() - system.boottime() + born / procfs.TICKS


# --- NRI's hook-injector
#
# Upstream deploys it as a pod, and any pod can look like it: such a process is a claim, and none of its files is read.
# Source: contrib/kustomize/hook-injector and plugins/hook-injector of containerd/nri.


def find_injectors() -> list[int]:
    """The pids of injectors that run on the host itself."""
    return sorted(find_processes(lambda words: os.path.basename(words[0]).endswith(_INJECTOR)).words)


def find_injector_claims() -> list[int]:
    """The pids of processes in pods that have an injector's name, which proves nothing."""
    named = (it for it in processes.list_processes() if it.name.endswith(_INJECTOR) or it.name == _IN_AN_IMAGE)
    return sorted(it.pid for it in named if _is_in_container(it.cgroups))
