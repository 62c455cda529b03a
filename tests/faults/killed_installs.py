# SPDX-License-Identifier: Apache-2.0
"""install and uninstall, killed at every system call of theirs that changes something.

At no point is there a hooks.d file that readers refuse, or one whose program is missing or does not run. Once there was
a program, there is one that runs, or its stub. After that the same once more leads to what it would have led to, and
the other one away from it; neither leaves a trace of the kill.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

from hook.node import hooksd
from hook.node.paths import STUB
from tests.faults import strace
from tests.faults.campaign import Campaign, Case
from tests.faults.scene import Scene
from tests.faults.strace import Call
from tests.support import machine
from tests.support.machine import HOOKS_DIR, LEFT, PROGRAM, ScratchMachine

FULL = ("install", "--for=both")
OTHER = ("install", "--for=podman", "--linger=7")
REMOVAL = ("uninstall",)
PLACES = (None, FULL, OTHER, REMOVAL)


@dataclass(frozen=True)
class InstallCommand:
    """A command, and what was done before it."""

    name: str
    command: tuple[str, ...]
    before: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.command[0]})"


CHANGES = (
    InstallCommand("first", FULL),
    InstallCommand("upgrade", OTHER, FULL),
    InstallCommand("end", REMOVAL, FULL),
)


class InstalledMachine:
    """A machine on which a command has been done, or nothing yet. `found`: what was in place then."""

    def __init__(self, scene: Scene, before: tuple[str, ...] | None) -> None:
        self._scene = scene
        self._trace = scene.trace
        scene.story.clear()
        directory = scene.directory / "machine"
        shutil.rmtree(directory, ignore_errors=True)
        ready = scene.directory / f"machine-after-{PLACES.index(before)}"
        if ready.exists():
            shutil.copytree(ready, directory, symlinks=True)
        self.node = ScratchMachine(directory)
        if before is not None and not ready.exists():
            self.do(before)
            if before == FULL:
                self.node.path(PROGRAM).chmod(0o700)  # so that an upgrade replaces it
            shutil.copytree(directory, ready, symlinks=True)
        self.found = self.node.written()

    def _run(self, command: Iterable[str], before: list[str]) -> CompletedProcess[str]:
        done = self.node.run(*command, before=before)
        self._scene.story.append(f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def do(self, command: tuple[str, ...]) -> dict[str, str]:
        """Do it undisturbed; returns what is in place then."""
        done = self._run(command, [])
        self._scene.expect((done.returncode, done.stderr) == (0, ""), "it cannot be done")
        return self.node.written()

    def points(self, command: tuple[str, ...]) -> list[Call]:
        """Where it changes something. Its children are not its own calls."""
        self._run(command, strace.watched(self._trace, children=False))
        found = [call for call in strace.calls(self._trace) if call.is_ours and call.has_effect]
        return [call for call in found if " = -1 " not in call.text and "/tmp/resctrl-mon-hook" not in call.text]

    def kill(self, command: tuple[str, ...], call: Call) -> None:
        done = self._run(command, strace.killed(self._trace, call))
        self._scene.expect(done.returncode == -9, "it was not killed, but ended with", done.returncode)
        self._judge()

    def _judge(self) -> None:
        """What readers of hooks.d find is right, or nothing."""
        expect = self._scene.expect
        there: list[Path] = list(self.node.path(HOOKS_DIR).glob("*.json"))
        for path in there:
            entry = hooksd.read_entry(str(path))
            expect(entry.file is not None, path, "is refused by its readers:", entry.problem)
            expect(entry.file is None or entry.file.hook.path == PROGRAM, path, "calls another program")
        program = self.node.path(PROGRAM)
        expect(program.exists() or not (there or PROGRAM in self.found), "the program is missing:", there)
        expect(not there or program.read_bytes() != STUB, "a hook without effect:", there)
        if program.exists():
            done = self.node.run(PROGRAM, "--version")
            expect((done.returncode, done.stderr) == (0, ""), "the program does not run:", done)


def run(campaign: Campaign, changes: Iterable[InstallCommand] = CHANGES) -> None:
    if reason := machine.missing():
        campaign.note(f"left out: {reason}")
        return
    for change in changes:
        found = InstalledMachine(campaign.scene, change.before).points(change.command)
        names = {f"{change.name}: {call}, then {way}": (call, way) for call in found for way in WAYS}
        cases = [Case(name, partial(_kill, change, call, WAYS[way])) for name, (call, way) in names.items()]
        campaign.all(f"{change} at {len(found)} calls", cases)


WAYS: dict[str, tuple[str, ...] | None] = {"once more": None, "install": FULL, "uninstall": REMOVAL}
"""What is done after it."""


def _kill(change: InstallCommand, call: Call, way: tuple[str, ...] | None, scene: Scene) -> None:
    undisturbed = InstalledMachine(scene, way or change.command).found
    place = InstalledMachine(scene, change.before)
    place.kill(change.command, call)
    if (way or change.command) == REMOVAL and PROGRAM in place.node.written():
        undisturbed = LEFT
    found = place.do(way or change.command)
    scene.expect(found == undisturbed, "left:", found.keys() ^ undisturbed.keys() or "other contents")
