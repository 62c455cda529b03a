# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of each kind of guest in one boot, beside the tests of other tiers.

This module is also a plugin of the pytest in the guest:
there it leaves out the tests that ask for the model.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from threading import Semaphore, Thread
from typing import NamedTuple

import pytest

from fetch import provision
from tests.kernel.inside import VARIABLE
from tests.kernel.vm import ROOT, GuestFailed, GuestTimeout, Vm, run_in_guest
from tests.support import newest
from tests.support.debian import CannotMake
from tests.support.hook import FORM

AT_ONCE = 2
"""So many guests run at a time, but one while other tiers run,
which leave a CPU idle on a small machine.

Four on two CPUs took a third more CPU time, and longer.
"""
ENVIRONMENT = {
    VARIABLE: "/sys/fs/resctrl",
    "PYTHONPATH": str(ROOT),
    "CI": "",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}


@dataclass(frozen=True)
class GuestKind:
    """A kind of guest, and the test files that it runs, relative to the repository."""

    name: str
    vm: Vm
    files: tuple[str, ...]
    has_newest: bool = False
    """Whether its tests take Debian's newest suite, see tests/support/newest.py:
    made first if it can be made.
    """

    def __str__(self) -> str:
        return self.name


class GuestOutcome(NamedTuple):
    """The exit status of pytest in the guest, and what it printed."""

    status: int
    output: str

    @property
    def skipped(self) -> str:
        return "\n".join(re.findall("^SKIPPED .*", self.output, re.MULTILINE))


class Guests:
    """Guests of these kinds, which begin to run at once."""

    def __init__(self, kinds: Sequence[GuestKind]) -> None:
        self._may_run = Semaphore(1)
        self._outcomes: dict[str, Future[GuestOutcome]] = {kind.name: Future() for kind in kinds}
        for kind in kinds:
            Thread(target=self._run, args=(kind,), daemon=True).start()

    def hurry(self) -> None:
        """Run more guests at a time, since other tiers are over."""
        self._may_run.release(AT_ONCE - 1)

    def outcome(self, kind: GuestKind) -> GuestOutcome:
        """Wait for the end of a guest. Raises what the guest failed of."""
        return self._outcomes[kind.name].result()

    def _run(self, kind: GuestKind) -> None:
        if kind.has_newest:
            with suppress(CannotMake):
                newest.ready()
        with self._may_run:
            try:
                self._outcomes[kind.name].set_result(_run(kind))
            except Exception as error:  # noqa: BLE001  raised by `outcome`
                self._outcomes[kind.name].set_exception(error)


def _run(kind: GuestKind, *, again: bool = True) -> GuestOutcome:
    """Run a guest; an emulator that hangs costs it once, and it is booted again."""
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.kernel.guests",
        "-p",
        "no:cacheprovider",
        *kind.files,
    ]
    kept = provision.cache()
    environment = {**ENVIRONMENT, FORM: os.environ[FORM], "XDG_CACHE_HOME": str(kept.parent)}
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        try:
            status = run_in_guest(
                words,
                kind.vm,
                env=environment,
                cwd=ROOT,
                shown=[kept],
                stdout=output,
                stderr=output,
            )
        except (GuestFailed, GuestTimeout) as error:
            if not again:
                raise
            print(f"{kind.name}: booted again, for {error}", file=sys.stderr)
            return _run(kind, again=False)
        output.seek(0)
        return GuestOutcome(status, output.read())


LOOKS = (
    ["ps", "--ppid=2", "--deselect", "-o", "pid,ppid,stat,wchan:24,etimes,time,args", "--cols=160"],
    ["systemctl", "--no-pager", "list-jobs"],
    ["sh", "-c", "tail -n 20 /dev/shm/*/log /tmp/*/log; dmesg | tail -n 20"],
)
"""Commands that show what a failed test has waited for: its guest is gone afterwards."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,  # noqa: ARG001  the hook's arguments
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In the guest: a failed test shows what runs there, and what waits."""
    report = yield
    if report.failed:
        for words in LOOKS:
            # What cannot be shown does not hide the failure.
            with suppress(OSError, subprocess.TimeoutExpired):
                done = subprocess.run(
                    words, capture_output=True, text=True, check=False, timeout=60
                )
                report.sections.append((" ".join(words), done.stdout + done.stderr))
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In the guest: leave out what needs the model of resctrl."""
    items[:] = [item for item in items if "resctrl" not in getattr(item, "fixturenames", ())]
