# SPDX-License-Identifier: Apache-2.0
"""This machine: its init, processes and interpreters, and the security modules that can block a program."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from hook.base import procfs
from hook.node import door, programs
from hook.node.door import Unreadable

OLDEST = (3, 9)
"""The first CPython that the program runs on."""
KUBERNETES, PODMAN = "kubernetes", "podman"
TARGETS = (KUBERNETES, PODMAN)
"""The values of `install --for`: Kubernetes with any runtime, and Podman."""
RUNTIMES = {"crio": KUBERNETES, "containerd": KUBERNETES, "k3s": KUBERNETES, "rke2": KUBERNETES, "podman": PODMAN}
"""The programs that start containers, and the target of each."""

_LIMIT = 16 << 20  # bytes of a file of the kernel's: /proc/self/mounts has a line for each mount
_PRINT_VERSION = (
    "import sys,importlib.util as u;"
    "print(*sys.version_info[:2],sys.implementation.cache_tag,int.from_bytes(u.MAGIC_NUMBER,'little'))"
)
# SELinux types of files that are not programs: a runtime may not start one of these, root may.
_NO_PROGRAM_TYPES = ("admin_home_t", "data_home_t", "default_t", "tmp_t", "unlabeled_t", "user_home_t", "user_tmp_t")


def find_targets(top: str = "") -> list[str]:
    """The targets whose programs are installed."""
    found = [target for name, target in RUNTIMES.items() if programs.find(name, top)]
    return [target for target in TARGETS if target in found]


def has_systemd() -> bool:
    """Whether systemd is the running init: sd_booted(3)."""
    return os.path.isdir("/run/systemd/system")


def has_transient(unit: str) -> bool:
    """Whether a unit made by systemd-run exists; it lasts until the next boot."""
    return os.path.exists(f"/run/systemd/transient/{unit}")


def is_running(pid: int) -> bool:
    """Whether the process exists."""
    return os.path.isdir(f"/proc/{pid}")


def read_start_time(pid: int) -> float:
    """When a process started, by the clock of file times. Raises OSError."""
    born = procfs.starttime(pid)
    if born is None:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    lines = door.read_text("/proc/stat", _LIMIT).split("\n")
    booted = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
    return booted + born / procfs.TICKS


def shows_processes() -> bool:
    """Whether /proc is mounted without hiding other processes."""
    return os.path.isdir("/proc/1")


def has_process_connector() -> bool:
    """Whether the kernel tells of execs here: with CONFIG_PROC_EVENTS, in the host's network namespace."""
    try:
        return "cn_proc" in door.read_text("/proc/net/connector", _LIMIT)
    except Unreadable:
        return False


def find_cgroup_version() -> str | None:
    """`v1`, `v2` or `v1 and v2`; None if no cgroups are mounted."""
    lines = door.read("/proc/self/mounts", _LIMIT).decode("utf-8", "replace").splitlines()
    kinds = {line.split(" ")[2] for line in lines}
    found = [version for kind, version in (("cgroup", "v1"), ("cgroup2", "v2")) if kind in kinds]
    return " and ".join(found) or None


# --- Interpreters


@dataclass(frozen=True)
class Interpreter:
    """A Python. `tag` names its bytecode (sys.implementation.cache_tag), which begins with `magic`."""

    path: str
    version: tuple[int, int]
    tag: str
    magic: bytes


def ask_interpreter(path: str) -> Interpreter | str:
    """Which Python a path is, or why it is unusable."""
    ended = programs.run([path, "-ISc", _PRINT_VERSION])
    try:
        major, minor, tag, magic = ended.output.split()
        return Interpreter(path, (int(major), int(minor)), tag, int(magic).to_bytes(4, "little"))
    except (ValueError, OverflowError):
        return f"cannot run {path} as Python: {ended.problem or 'it does not print its version'}"


# --- What can block a program


def read_selinux_mode() -> str | None:
    """`enforcing` or `permissive`; None if SELinux is off."""
    try:
        return "enforcing" if door.read_text("/sys/fs/selinux/enforce", _LIMIT).strip() == "1" else "permissive"
    except Unreadable:
        return None


def read_label(path: str) -> str | None:
    """The SELinux type of a file; None if it has none."""
    try:
        context = os.getxattr(path, "security.selinux").decode("utf-8", "replace").rstrip("\0")
    except OSError:
        return None
    parts = context.split(":")
    return parts[2] if len(parts) > 2 else None


def is_noexec(path: str) -> bool:
    """Whether the file system of a file is mounted noexec."""
    return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)


def has_fapolicyd() -> bool:
    """Whether fapolicyd runs."""
    return os.path.exists("/run/fapolicyd/fapolicyd.fifo") or os.path.exists("/run/fapolicyd.pid")


def list_blockers(path: str) -> str:
    """Known causes why a program may not run, each with its remedy; empty if none applies."""
    reasons = []
    if is_noexec(path):
        reasons.append(f"the file system of {path} is mounted noexec: choose another --prefix")
    if read_selinux_mode() == "enforcing":
        reasons.append(f"SELinux: {path} has type {read_label(path)}: run restorecon on it, or see ausearch -m avc")
    if has_fapolicyd():
        reasons.append(f"fapolicyd: run fapolicyd-cli --file add {path} && fapolicyd-cli --update")
    return "; ".join(reasons)


def find_label_problem(path: str) -> str | None:
    """Why a runtime may not start a program with this SELinux label, though root's shell may; None if it may."""
    found = read_label(path) if read_selinux_mode() == "enforcing" else None
    if found not in _NO_PROGRAM_TYPES:
        return None
    remedy = f"semanage fcontext -a -t bin_t {path} && restorecon {path}"
    return f"SELinux: {path} has type {found}, which runtimes may not start; remedy: {remedy}"
