# SPDX-License-Identifier: Apache-2.0
"""What tests.support.tenants starts in namespaces of its own: it becomes a container's process, and waits.

The first line of its stdin says what to be, as JSON; it ends when its stdin does. It needs nothing but the standard
library, and prints its pid as the host knows it once all is as it should be.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Source: linux/mount.h, linux/prctl.h, linux/mman.h
MS_REC, MS_PRIVATE = 1 << 14, 1 << 18
PR_SET_NAME, PR_SET_MM, PR_SET_MM_MAP = 15, 35, 14
MAP_NORESERVE = 0x4000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.sbrk.restype = ctypes.c_void_p
_shown: list[mmap.mmap] = []
"""What /proc shows, which has to stay in memory."""


class Map(ctypes.Structure):
    """struct prctl_mm_map: where the parts of this process are. The kernel uses it only for what /proc shows."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data", "start_brk", "brk")),
        *((name, ctypes.c_uint64) for name in ("start_stack", "arg_start", "arg_end", "env_start", "env_end", "auxv")),
        *((name, ctypes.c_uint32) for name in ("auxv_size", "exe_fd")),
    ]


def main() -> None:
    wanted = json.loads(sys.stdin.readline())
    pid = os.readlink("/proc/self")  # while this is the host's /proc
    enter_root(wanted["root"])
    os.chdir(wanted["cwd"])
    call("prctl", PR_SET_NAME, wanted["name"].encode())
    words = put(wanted["words"], wanted["words_size"])
    show(words, put(wanted["environment"], wanted["environment_size"]))
    print(pid, flush=True)
    sys.stdin.read()


def enter_root(root: str) -> None:
    """Take a directory for the root, with a /proc and a /dev as a container has them."""
    call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    for name, kind in (("proc", b"proc"), ("dev", b"tmpfs")):
        os.makedirs(f"{root}/{name}", exist_ok=True)
        call("mount", kind, f"{root}/{name}".encode(), kind, 0, None)
    os.mknod(f"{root}/dev/zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    os.chroot(root)


def show(words: tuple[int, int], environment: tuple[int, int]) -> None:
    """Have these parts of the memory in /proc/PID/cmdline and environ.

    No privilege is needed (with CONFIG_CHECKPOINT_RESTORE). Source: PR_SET_MM in prctl(2), proc_pid_stat(5).
    """
    with open("/proc/self/stat", "rb") as file:
        fields = [0, 0, *map(int, file.read().rpartition(b")")[2].split()[1:])]
    start_code, end_code, start_stack = fields[24:27]
    start_data, end_data, start_brk = fields[43:46]
    data = (start_data, end_data, start_brk, _libc.sbrk(0))
    found = Map(start_code, end_code, *data, start_stack, *words, *environment, 0, 0, 0xFFFFFFFF)
    what = (PR_SET_MM_MAP, ctypes.addressof(found), ctypes.sizeof(found), 0)
    call("prctl", PR_SET_MM, *map(ctypes.c_ulong, what))


def put(texts: Sequence[str], size: int) -> tuple[int, int]:
    """Put texts into memory, and zeros up to this size, which take none; returns where they begin and end."""
    content = b"".join(text.encode() + b"\0" for text in texts) or b"\0"
    memory = mmap.mmap(-1, max(len(content), size), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    memory[: len(content)] = content
    _shown.append(memory)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return begin, begin + len(memory)


def call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
