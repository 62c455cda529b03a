# SPDX-License-Identifier: Apache-2.0
"""System calls that fail, or at which the hook is killed: the first, the second, and so on until none is left.

After SQLite's way of testing what happens when the Nth allocation or write fails.
"""

from __future__ import annotations

import errno
import fcntl
import os
import posix
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from hook.base import system


def fails(number: int) -> Callable[..., Any]:
    """A call that fails with this errno, whatever it is given."""

    def fail(*_arguments: object, **_named: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


class Killed(BaseException):
    """The process ends here: nothing that it would have done comes after this."""


Manner = Literal["refused", "killed"]  # before the call; after one, and before the next, are the same


class Faults:
    """hook.base.system gets this in place of `posix` and `fcntl`. The `at`-th of their calls fails as is chosen."""

    CALLS = (
        "open",
        "read",
        "write",
        "close",
        "stat",
        "fstat",
        "mkdir",
        "rmdir",
        "rename",
        "link",
        "lseek",
        "unlink",
        "listdir",
        "symlink",
        "readlink",
    )

    def __init__(self, at: int, manner: Manner = "refused", number: int = errno.EIO, beneath: object = posix) -> None:
        self.at = at
        self.manner = manner
        self.number = number
        self.beneath = beneath
        self.calls = 0
        self.killed = False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever posix has
        real = getattr(self.beneath, name)
        return self._failing(name, real) if name in self.CALLS else real

    def _failing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401
            closing = name == "close"
            if self.killed and not closing:
                raise Killed
            self.calls += 1
            if self.calls != self.at or self.killed:
                return real(*arguments, **named)
            if closing:  # Linux closes, whatever it says; so does the end of a process
                real(*arguments, **named)
            if self.manner == "killed":
                self.killed = True
                raise Killed
            raise OSError(self.number, os.strerror(self.number), *[it for it in arguments[:1] if isinstance(it, bytes)])

        return call

    @contextmanager
    def injected(self) -> Iterator[None]:
        """Let the hook's system calls go through this."""
        flock = SimpleNamespace(flock=self._failing("flock", fcntl.flock), LOCK_EX=fcntl.LOCK_EX, LOCK_NB=fcntl.LOCK_NB)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(system, "posix", self)
            patch.setattr(system, "fcntl", flock)
            yield


def each_call_fails(
    attempt: Callable[[Faults], None], manner: Manner = "refused", number: int = errno.EIO, beneath: object = posix
) -> int:
    """Attempt something with its first system call failing, its second, and so on until none fails; how many it has."""
    at = 1
    while True:
        faults = Faults(at, manner, number, beneath)
        attempt(faults)
        if faults.calls < at:
            return at - 1
        at += 1


MANNERS: tuple[Manner, ...] = ("refused", "killed")


class Clock:
    """Time that passes only when somebody sleeps; `during` is done at the first sleep."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self.during: Callable[[], object] | None = None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.now += seconds
        if self.during is not None:
            action, self.during = self.during, None
            action()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(system, "monotonic", clock.monotonic)
    monkeypatch.setattr(system, "sleep", clock.sleep)
    return clock


@pytest.fixture
def directories(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Closes what the run directories of a test have open; a hook leaves that to its end."""
    opened: list[int] = []
    real = system.open_directory

    def open_directory(path: str) -> int:
        opened.append(real(path))
        return opened[-1]

    monkeypatch.setattr(system, "open_directory", open_directory)
    yield
    for descriptor in opened:
        with suppress(OSError):  # who holds it for a `with` has closed it
            os.close(descriptor)


def names_in(place: Path, *parts: str) -> set[str]:
    return {
        f"{part}/{name}"
        for part in parts or ("groups", "members", "unmonitored", "locks")
        for name in os.listdir(place / part)
    }
