# SPDX-License-Identifier: Apache-2.0
"""The system calls of a hook, as strace(1) sees them; how to let the Nth of a name fail, or kill the hook at it.

An occurrence is counted from the start of the process on, which is the same in each run: the interpreter does the same
before it comes to our file, and the hook does the same in the same situation.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.support.hook import NATIVE, shipped

_LINE = re.compile(r"(?:\d+ +)?(\w+)\((.*)")
_NUMBERS = re.compile(r"\d+")  # pids, descriptors
_OPENED = re.compile(r"<([^>]*)>")
_NAMES = re.compile(r'"([^"]*)"')
_BY_NAME = ("at", "dir")
_OURS = "umask"
"""The first call that our own code makes; what comes before it is Python, on its way to it."""


@dataclass(frozen=True)
class Call:
    """The `nth` call of that name. `text`: its arguments and its result. `is_ours`: Python has begun with our code."""

    name: str
    nth: int
    text: str
    is_ours: bool

    def __str__(self) -> str:
        return f"{self.name}#{self.nth}"

    def is_same(self, text: str) -> bool:
        """Whether this is the same call, by its files: what one that failed would have read is not seen."""
        return _files(self.name, self.text) == _files(self.name, text)

    @property
    def has_effect(self) -> bool:
        """Whether it changes something that outlives the process."""
        if self.name == "openat":
            return "O_CREAT" in self.text
        if self.name == "write":
            return "pipe:[" not in self.text
        return self.name in _EFFECTS


_EFFECTS = frozenset({"fchmod", "flock", "linkat", "mkdir", "mkdirat", "rename", "renameat", "rmdir", "symlink"})
_EFFECTS |= {"symlinkat", "unlink", "unlinkat"}


def _files(name: str, text: str) -> list[str]:
    found: list[str] = _NAMES.findall(text) if name.endswith(_BY_NAME) else _OPENED.findall(text.partition(" = ")[0])
    return [_NUMBERS.sub("N", file) for file in found]


def watched(trace: Path, *, children: bool = True) -> list[str]:
    """What a command is started by, so that its calls are written to `trace`."""
    return ["strace", *(["-f"] if children else []), "-q", "-y", "-e", "signal=STOP", "-o", str(trace)]


def failing(trace: Path, call: Call, errno: str, *, for_good: bool) -> list[str]:
    """The same; and one call fails, or it and all later ones of that name. In `trace` are those of that name."""
    # brk(2) itself gives no errno, but the end of the heap, which is not where it was to be.
    result = "retval=0" if call.name == "brk" else f"error={errno}"
    fault = f"inject={call.name}:{result}:when={call.nth}{'+' if for_good else ''}"
    # By seccomp the others are not stopped at, which is twice as fast; but signals get lost.
    return [*watched(trace), "--seccomp-bpf", "-e", f"trace={call.name}", "-e", fault]


def killed(trace: Path, call: Call) -> list[str]:
    """The same; and SIGKILL comes when the program itself makes that call, which is not done any more."""
    fault = f"inject={call.name}:signal=KILL:when={call.nth}"
    return [*watched(trace, children=False), "-e", f"trace={call.name}", "-e", fault]


def calls(trace: Path) -> list[Call]:
    """All calls from the opening of our file on, or from its start if it is the ELF file."""
    seen: Counter[str] = Counter()
    found: list[Call] = []
    is_ours = False
    begin = "execve" if shipped() == NATIVE else "openat"  # by Python, of the .pyz
    for line in trace.read_text(errors="replace").splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        name, text = match.groups()
        seen[name] += 1
        is_ours = is_ours or name == _OURS
        if found or (name == begin and f'"{shipped()}"' in text):
            found.append(Call(name, seen[name], text, is_ours))
    return found


def injected(trace: Path) -> list[str]:
    """The calls that were made to fail, each with its arguments."""
    lines = trace.read_text(errors="replace").splitlines()
    return [line.partition(" ")[2].lstrip() for line in lines if line.endswith("(INJECTED)")]
