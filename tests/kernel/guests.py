# SPDX-License-Identifier: Apache-2.0
"""Runs tests in guests, and tells the outcome of each as soon as it is known.

A guest runs pytest on its tests one after another; every report comes back as a line of JSON (told.py) in a directory
that host and guest share.
"""

from __future__ import annotations

import ast
import json
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.kernel.inside import VARIABLE
from tests.kernel.told import REPORTS
from tests.kernel.vm import ROOT, GuestFailed, GuestTimeout, Vm, run_in_guest

BESIDE_OTHERS, AT_ONCE = 1, 4
"""So many guests at a time: beside other tiers, which leave a CPU idle on a small machine; and when these are over.

Guests that wait for the kernel's clock leave a CPU to others.
"""
RESCTRL = "/sys/fs/resctrl"


@dataclass(frozen=True)
class GuestKind:
    """A kind of guest, and the test files that it runs, relative to the repository."""

    name: str
    vm: Vm
    files: tuple[str, ...]

    def cases(self) -> Iterator[GuestCase]:
        for path in self.files:
            for function in functions(ROOT / path):
                yield GuestCase(self, f"{path}::{function}")


@dataclass(frozen=True)
class GuestCase:
    """A test function, with all its parameters, on a machine."""

    machine: GuestKind
    nodeid: str

    def __str__(self) -> str:
        """What the host's test is called."""
        return f"{self.machine.name}: {self.nodeid.rpartition('/')[2]}"


@dataclass(frozen=True)
class Report:
    """A line of told.py."""

    nodeid: str
    outcome: str
    text: str
    seconds: float

    def is_of(self, case: GuestCase) -> bool:
        return self.nodeid.partition("[")[0] == case.nodeid


def functions(path: Path) -> Iterator[str]:
    """The test functions of a file that do not ask for the model of resctrl. Nothing of it is imported."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not _asks_for_model(node):
            yield node.name


def _asks_for_model(function: ast.FunctionDef) -> bool:
    return any(argument.arg == "resctrl" for argument in function.args.args)


@dataclass
class Guest:
    """One run of a machine. It is a thread, and ends with the process like any of those."""

    machine: GuestKind
    place: Path
    nodeids: list[str] = field(default_factory=list)
    seconds: float = 0.0
    fault: str = ""
    done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Its tests; those that an emulator which stands still has cost, once more on a new one."""
        began = time.monotonic()
        try:
            self._boot(self.nodeids)
            told = {report.nodeid.partition("[")[0] for report in self.reports()}
            missing = [nodeid for nodeid in self.nodeids if nodeid not in told]
            if self.fault and missing:
                print(f"{self.machine.name}: booted again, for {self.fault}", file=sys.stderr)
                self.fault = ""
                self._boot(missing)
        finally:
            self.seconds = time.monotonic() - began
            self.done.set()

    def _boot(self, nodeids: list[str]) -> None:
        words = [sys.executable, "-m", "pytest", "-p", "tests.kernel.told", "-p", "no:cacheprovider", *nodeids]
        env = {
            VARIABLE: RESCTRL,
            "PYTHONPATH": str(ROOT),
            "CI": "",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        try:
            with (self.place / "output").open("wb") as output:
                run_in_guest(words, self.machine.vm, share=self.place, env=env, cwd=ROOT, stdout=output, stderr=output)
        except (GuestFailed, GuestTimeout, OSError) as error:
            self.fault = str(error)

    def reports(self) -> list[Report]:
        """What is known by now."""
        path = self.place / REPORTS.name
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        return [Report(**json.loads(line)) for line in lines if line.endswith("\n")]

    def reports_of(self, case: GuestCase) -> list[Report]:
        """Those of one case; waits until the guest has come to another one, or to its end."""
        while not self.done.wait(0.2):
            reports = self.reports()
            if any(report.is_of(case) for report in reports) and not reports[-1].is_of(case):
                break
        return [report for report in self.reports() if report.is_of(case)]

    def why(self) -> str:
        """Why a case has no report."""
        output = self.place / "output"
        text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
        return "\n".join([self.fault, *text.splitlines()[-40:]])


class Guests:
    """All guests that the given cases need. What they share with the host lies in `directory`."""

    def __init__(self, cases: Iterable[GuestCase], directory: Path) -> None:
        chosen: dict[str, Guest] = {}
        for case in cases:
            guest = chosen.setdefault(case.machine.name, Guest(case.machine, directory / case.machine.name))
            guest.nodeids.append(case.nodeid)
        for guest in chosen.values():
            guest.place.mkdir()
        self.guests = chosen
        self._waiting = list(chosen.values())
        self._lock = threading.Lock()
        self._workers = 0
        self._work_by(BESIDE_OTHERS)

    def hurry(self) -> None:
        """Other tiers are over."""
        self._work_by(AT_ONCE)

    def _work_by(self, workers: int) -> None:
        for _ in range(workers - self._workers):
            threading.Thread(target=self._work, daemon=True).start()
        self._workers = workers

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    return
                guest = self._waiting.pop(0)
            guest.run()

    def reports_of(self, case: GuestCase) -> list[Report]:
        return self.guests[case.machine.name].reports_of(case)

    def why(self, case: GuestCase) -> str:
        return self.guests[case.machine.name].why()

    def summary(self) -> list[str]:
        return [f"{guest.machine.name} {guest.seconds:.0f} s" for guest in self.guests.values() if guest.seconds]
