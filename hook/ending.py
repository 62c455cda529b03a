# SPDX-License-Identifier: Apache-2.0
"""Writes the lines of the history that keys owe: `line` makes them.

A line that cannot be written stays in the key's record until the key's next end, or reconcile,
writes it. Imported only when a key ends whose record names a file.
"""

from __future__ import annotations

from hook import line, system
from hook.errors import HookError, Reason
from hook.models import OwedLines
from hook.validation import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.models import KeyState, Options
    from hook.store import RunDir

MOST_CHARACTERS = 1 << 20
"""Of the lines that one key owes: some 1,500,
so that its record stays far below the limit of a read.
"""
DROPPED_LINES = "dropped_lines"
"""A file in the run directory's `runs`: one byte for each line that was dropped unwritten."""


def name_node(options: Options) -> str:
    """The name of this node in the lines of the history: that of --node, or the host's."""
    name: str = options.node or system.posix.uname().nodename
    return name.encode("utf-8", "backslashreplace").decode()  # a host's name may have any bytes


def write_owed(run: RunDir, state: KeyState) -> KeyState:
    """Write the lines that a key owes, the last of which is that of its end.

    Those that cannot be written stay owed.

    A failure is reported, and stops nothing.
    """
    left, errors = try_lines(run, line.list_owed(state), f"what key {state.key} used")
    run.complaints += errors
    return line.set_owed(state, left)


def try_lines(
    run: RunDir, owed: list[OwedLines], what: str, drops: int = 0
) -> tuple[list[OwedLines], list[HookError]]:
    """Append the lines that a key owes to their files.

    Returns those that it owes now, and why `what` is not written.

    If a file cannot be written, so many of the oldest lines are dropped,
    of which some may have been written.
    """
    left, errors = list[OwedLines](), list[HookError]()
    for waiting in owed:
        try:
            append_lines(waiting.file, waiting.lines)
        except OSError as error:
            why = name_write_error(error)
            left.append(replace(waiting, why=why))
            errors.append(unwritten_error(what, waiting.file, why))
        else:
            drops -= len(waiting.lines)
    return _drop_oldest(run, left, max(drops, 0)), errors


def _drop_oldest(run: RunDir, left: list[OwedLines], drops: int) -> list[OwedLines]:
    """Drop so many of the oldest lines, and those that have no room."""
    sizes = [len(text) for owed in left for text in owed.lines]
    drops = min(drops, len(sizes))
    while sum(sizes[drops:]) > MOST_CHARACTERS:
        drops += 1
    if drops:
        run.count_run(DROPPED_LINES, drops)
        run.complaints.append(
            HookError(Reason.IO, "dropped lines", number=drops, tried=left[0].why)
        )
    kept = []
    for owed in left:
        if lines := owed.lines[drops:]:
            kept.append(replace(owed, lines=lines))
        drops = max(drops - len(owed.lines), 0)
    return kept


def name_write_error(error: OSError) -> str:
    """Return why a line could not be written: the kernel's word, and its errno."""
    from hook.words import errno_name

    return f"{error.strerror}: {errno_name(error)}"


def unwritten_error(what: str, path: str, why: str) -> HookError:
    """Make the error of lines that could not be written to the file of the history."""
    return HookError(Reason.IO, "unwritten lines", what=what, path=path, tried=why)


def append_lines(path: str, lines: list[str]) -> None:
    """Append lines to a regular file, made if missing, in one write(2),
    so that those of two writers never mix.

    If the file ends within a line, as after a write that found the disk full, it gets a newline
    first. Raises OSError also if only a part of the lines was written.
    """

    def write(descriptor: int) -> None:
        status = system.posix.fstat(descriptor)
        if status.st_mode & system.FILE_TYPE != system.REGULAR:
            raise OSError(system.EINVAL, "Not a regular file", path)
        is_torn = (
            status.st_size > 0 and system.posix.pread(descriptor, 1, status.st_size - 1) != b"\n"
        )
        data = b"\n" * is_torn + "".join(f"{line}\n" for line in lines).encode(
            "utf-8", "backslashreplace"
        )
        if system.posix.write(descriptor, data) < len(data):
            raise OSError(system.ENOSPC, "No space left on device", path)

    posix = system.posix
    system.use(
        path,
        posix.O_RDWR | posix.O_CREAT | posix.O_APPEND | posix.O_NONBLOCK | posix.O_NOCTTY,
        write,
    )
