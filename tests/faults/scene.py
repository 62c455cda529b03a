# SPDX-License-Identifier: Apache-2.0
"""A node with one pod on which one thing goes wrong: what is there before, the hook that it hits, what must be after.

Each worker of the campaign has one of these, and makes it anew for each case.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hook.base.explain import short_id
from tests.resctrlfs import Mounted, mounted
from tests.simulator.kernel import RESCTRL
from tests.simulator.node import ContainerLife
from tests.simulator.oracle import OURS, LastOracle
from tests.support import consumers
from tests.support.devlog import DevLog
from tests.support.hook import UID, Hook, Outcome
from tests.support.real_node import RealKernel, RealNode, RealRun

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


WAITS = ("--lock-timeout=0.2", "--rmid-wait=0.2")
"""The options that allow a hook to wait."""
PATIENCE = 300.0
"""Seconds; many times what they allow, so that it ends what hangs and nothing else."""
CREATE, POSTSTOP = "createRuntime", "poststop"
AMOUNT = 1000
"""What a group that somebody is in counts at a time, of each event."""
MACHINE = {"rmids": 8, "l3_domains": 1, "packages": 1, "perf": False, "limbo_tick_ms": 10}
"""Small: each counter is a dozen system calls more in a life."""


@dataclass(frozen=True)
class Ran:
    """What became of a hook: as its runtime sees it, and what it sent to syslog."""

    outcome: Outcome
    syslog: list[str]


@dataclass(frozen=True)
class Job:
    """What is to run: a hook of a container."""

    verb: str
    container: ContainerLife


class Scene:
    """See above. `hook` runs where our /dev/log is; `used`: what the pod's containers used as members until now."""

    def __init__(self, directory: Path, resctrl: Mounted, log: DevLog, enter: Sequence[str]) -> None:
        self.directory = directory
        self.resctrl = resctrl
        self.log = log
        self.room = directory / "room"
        self.trace = directory / "trace"
        self.hook = Hook(resctrl.root, self.room / "run", options=WAITS, wrapper=tuple(enter))
        self.kernel = RealKernel(resctrl.root, resctrl)
        self.node = RealNode(RealRun(self.kernel, self.hook, directory), {}, f"/faults-{os.getpid()}-{directory.name}")
        self.foreign: dict[str, set[int]] = {}
        self.used = 0
        self.story: list[str] = []

    @classmethod
    @contextmanager
    def opened(cls, directory: Path, **machine: object) -> Iterator[Scene]:
        """`directory` is made. The run directory lies on a file system of its own, with what is not ours beside it.

        `machine`: what is not as in MACHINE.
        """
        (directory / "room").mkdir(parents=True)
        with ExitStack() as stack:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "room", directory / "room"], check=True)
            stack.callback(lambda: subprocess.run(["umount", "-l", directory / "room"], check=True))
            resctrl = stack.enter_context(mounted(directory, **{**MACHINE, **machine}))
            log = stack.enter_context(DevLog(directory))
            enter = stack.enter_context(log.held())
            yield stack.enter_context(closing(cls(directory, resctrl, log, enter)))

    def close(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.node.close()
        self.node.lives.clear()
        for path in self.room.iterdir():
            shutil.rmtree(path)

    # --- What is there before

    def fresh(self) -> None:
        """No hook has run yet; groups, tasks and files of others are there."""
        self._clear()
        self.kernel.mount()
        self.story.clear()
        self.used = 0
        theirs, namesake = f"{RESCTRL}/mon_groups/theirs", f"{RESCTRL}/gold/mon_groups/{UID}"
        for path in (theirs, f"{RESCTRL}/gold", namesake):
            self.kernel.where(path).mkdir()
        stranger, _ = self.node.spawn(f"{self.node.top}/user.slice", theirs)
        self.foreign = {theirs: {stranger}, namesake: set()}
        neighbour = self.room / "neighbour"
        neighbour.mkdir(mode=0o750)
        (neighbour / f"{UID}.json").write_text("theirs")
        (neighbour / "link").symlink_to("nowhere")
        self._neighbours = contents(neighbour)
        self.log.lines()

    def born(self, number: int) -> ContainerLife:
        """A container of the pod; its hook has not run yet."""
        return self.node.begin(number)

    def living(self, number: int) -> ContainerLife:
        """A container that is in its group."""
        container = self.born(number)
        self.expect(self.run(Job(CREATE, container)) == Ran(Outcome(0, "", ""), []), "it cannot be made ready")
        container.is_member = True
        return container

    def busy(self, number: int) -> ContainerLife:
        """One that has used something in it."""
        container = self.living(number)
        self.count()
        return container

    def over(self, number: int) -> ContainerLife:
        """One that is dead, and whose poststop has not come yet."""
        container = self.busy(number)
        self.node.end(number)
        return container

    def count(self) -> None:
        """Whoever is in a group uses something."""
        self.resctrl.control(do="grow", amount=AMOUNT)
        ours = [path for path in self.kernel.mon_groups() if f"/{OURS}" in path]
        self.used += AMOUNT * sum(bool(self.kernel.tids(path)) for path in ours)

    def hoard(self) -> None:
        """Others take all RMIDs that are left."""
        for number in range(self.kernel.free()):
            path = f"{RESCTRL}/mon_groups/hoard-{number}"
            self.kernel.where(path).mkdir()
            self.foreign[path] = set()

    def give_back(self) -> None:
        for path in [path for path in self.foreign if "hoard" in path]:
            self.kernel.rmdir(path)
            del self.foreign[path]
        self.resctrl.control(do="settle")

    # --- What happens

    def run(self, job: Job, before: Sequence[str] = (), options: Sequence[str] = ()) -> Ran:
        """Run a hook to its end, started by `before`: it may be killed, but never hangs."""
        hook = replace(self.hook, wrapper=(*self.hook.wrapper, *before)).with_options(*options)
        is_created = job.verb == CREATE
        state = self.node.write_bundle(job.container, "created" if is_created else "stopped")
        self.story.append(f"{job.verb}: echo {shlex.quote(json.dumps(state))} | {shlex.join(hook.command('hook'))}")
        outcome = self._finish(hook.start(state))
        self.story.append(f"  exit status {outcome.status}, {outcome.stderr.strip() or 'nothing on stderr'}")
        return self._ran(outcome)

    def _ran(self, outcome: Outcome) -> Ran:
        ran = Ran(outcome, self.log.lines())
        if any("its use is lost" in line for line in (outcome.stderr, *ran.syslog)):
            self.used = 0  # what is said is no lie
        return ran

    def _finish(self, process: subprocess.Popen[bytes]) -> Outcome:
        try:
            stdout, stderr = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.terminate()  # strace, too, ends what it started
            process.communicate()
            self.expect(False, f"it has not ended after {PATIENCE:.0f} s")
            raise
        return Outcome(process.returncode, stdout.decode(), stderr.decode(errors="replace"))

    def actions(self, *more: str) -> list[Any]:
        command = [*self.hook.command("reconcile"), "--json", *more]
        self.story.append(shlex.join(command))
        pipe = subprocess.PIPE
        started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env={}, cwd="/")
        outcome = self._finish(started)
        self.story.append(f"  exit status {outcome.status}, {outcome.stdout.strip()}, {outcome.stderr.strip()}")
        self.log.lines()
        self.expect(outcome.status in (0, 1) and outcome.stderr == "", "reconcile failed")
        found: list[Any] = json.loads(outcome.stdout)["actions"]
        return found

    # --- What must be after

    def expect(self, condition: object, *problem: object) -> None:
        if not condition:
            raise AssertionError("\n".join([" ".join(map(str, problem)), *self.story]))

    def is_member(self, container: ContainerLife) -> bool:
        try:
            state = self.hook.key(container.key)
            return state is not None and container.id in state["members"]
        except (OSError, ValueError, TypeError, LookupError, RecursionError):  # somebody has spoilt it
            return False

    def is_done(self, job: Job) -> bool:
        """Whether a hook did what it is for."""
        if job.verb == CREATE:
            return job.container.is_alive and self.node.is_in_group(job.container)
        is_last = not any(it.is_alive for it in self.node.lives)
        return not self.is_member(job.container) and not (is_last and self.kernel.exists(job.container.group))

    def expect_told(
        self, job: Job, ran: Ran, *, stderr: bool = True, syslog: bool = True, record: bool = True, named: bool = True
    ) -> None:
        """Each failure leaves three traces; of some it may be known that they could not be left.

        `named`: whether the hook could know whose it was.
        """
        told = f"{short_id(job.container.id)}: " if named else "resctrl-mon-hook"
        self.expect(not stderr or told in ran.outcome.stderr, "nothing on stderr:", ran)
        self.expect(not syslog or any(told in line for line in ran.syslog), "nothing in syslog:", ran)
        self.expect(not record or not named or job.container.id in self.hook.reasons(), "no record:", ran)
        if not named:
            for path in self.hook.run_dir.glob("unmonitored/bad-*"):
                path.unlink()

    def remember(self) -> None:
        """Whoever is on any record by now must stay on it as long as he lives; of another it is not known."""
        recorded = self.hook.reasons()
        for it in self.node.lives:
            it.is_member = it.is_member or (it.is_alive and (it.id in recorded or self.is_member(it)))
            it.was_interrupted = not it.is_member

    def recover(self) -> None:
        """RMIDs are there again: one reconcile, and all is as if nothing had happened.

        What the pod used is what it used, or unknown.
        """
        self.count()
        self.give_back()
        self.remember()
        self.actions()
        self.remember()
        LastOracle(self.node).judge()
        left = [it for it in self.actions("--dry-run") if it["container"] not in self.hook.reasons()]
        self.expect(not left, "there is something left to do:", left)
        self.expect_foreign()
        self.count()
        entry = consumers.read(self.hook.run_dir / "mon_groups" / UID)
        use = entry.use() if entry is not None else {}
        wrong = {name: it for name, it in use.items() if it not in (self.used, None)}
        self.expect(not wrong, "the pod used", self.used, "and not", wrong)

    def expect_foreign(self) -> None:
        """What is not ours is what it was."""
        now = contents(self.room / "neighbour")
        self.expect(now == self._neighbours, "not ours:", now, "was", self._neighbours)
        groups = {path: self.kernel.tids(path) for path in self.kernel.mon_groups() if f"/{OURS}" not in path}
        self.expect(groups == self.foreign, "not ours:", groups, "was", self.foreign)


def contents(top: Path) -> dict[str, tuple[str, int, bytes]]:
    """Everything below a directory, and itself: kind, mode and owner, and what is in it."""
    found = {}
    for path in [top, *sorted(top.rglob("*"))]:
        status = path.lstat()
        kind = stat.filemode(status.st_mode)
        text = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(top))] = (kind, status.st_uid, text)
    return found
