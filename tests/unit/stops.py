# SPDX-License-Identifier: Apache-2.0
"""System calls that fail, or at which a process is killed: the first, the second,
and so on until there are no more.

After SQLite's way of testing what happens when the Nth allocation or write fails.
Whole hooks: tests.simulator.
"""

from __future__ import annotations

import posix
from collections.abc import Iterator
from typing import Any

import pytest

from hook import system
from hook.errors import HookError
from tests.simulator.kernel import make_error
from tests.simulator.machine import SimulatedMachine


class KilledHere(BaseException):
    """The process ends here."""


class Stop:
    """For `with`: the `at`-th system call fails with an errno; with None, it is the last one,
    and nothing follows.
    """

    def __init__(self, machine: SimulatedMachine | RealCalls, at: int, number: int | None) -> None:
        self.machine = machine
        self.at = at
        self.number = number
        self.calls = 0
        self.came = False

    def __enter__(self) -> None:
        vars(self.machine)["at_call"] = self._at_call

    def __exit__(self, kind: object, error: object, _trace: object) -> bool:
        del vars(self.machine)["at_call"]
        return self.came and isinstance(error, (OSError, HookError, KilledHere))

    def _at_call(self, _name: str, path: str) -> None:
        self.calls += 1
        self.came = self.came or self.calls == self.at
        if self.came and self.number is None:
            raise KilledHere
        if self.calls == self.at and self.number is not None:
            raise make_error(self.number, path)


def stops(machine: SimulatedMachine, number: int | None = None) -> Iterator[Stop]:
    """One for each system call of what is done in them, and one in which none fails."""
    at = 1
    while True:
        stop = Stop(machine, at, number)
        yield stop
        if not stop.came:
            return
        at += 1


@pytest.fixture
def machine() -> Iterator[SimulatedMachine]:
    with SimulatedMachine().installed(system) as machine:
        yield machine


class RealCalls:
    """The real `posix`: each call by a path, and `at_call`, as a SimulatedMachine has it."""

    def at_call(self, name: str, path: str) -> None:
        """Each system call begins with this."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever posix has
        real = getattr(posix, name)
        if name.startswith("O_"):
            return real

        def call(*arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401
            if name == "close":  # Linux closes, whatever it says; so does the end of a process
                real(*arguments)
            self.at_call(name, "")
            return real(*arguments, **keywords) if name != "close" else None

        return call
