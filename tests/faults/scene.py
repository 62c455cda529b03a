# SPDX-License-Identifier: Apache-2.0
"""A node with one pod on which one thing goes wrong: what is there before, the hook that it hits, what must be after.

It lies on the model of resctrl, and is made again for each case.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hook.report import short_id
from tests.resctrlfs import Mounted, mounted
from tests.support import consumers
from tests.support.devlog import DevLog
from tests.support.hook import UID, Hook, Outcome, created, end, stopped

WAITS = ("--lock-timeout=0.2", "--rmid-wait=0.2")
"""The options that allow a hook to wait."""
PATIENCE = 300.0
"""Seconds; many times what they allow, so that it ends what hangs and nothing else."""
MACHINE = {"rmids": 8, "l3_domains": 1, "packages": 1, "perf": False, "limbo_tick_ms": 10}
"""Small: each counter is a dozen system calls more in a life."""
AMOUNT = 1000
"""What a group counts at a time, of each event."""
CONTAINER = "5f3c" * 16
GROUP = f"oci-{UID}"
THEIRS = ("theirs", f"gold/{UID}")
"""Groups of others, beside one of which is ours by its name."""
STAGES = ("first", "last", "refused")
"""The first container of a pod comes; the last one ends; one comes, but no RMID is left."""


@dataclass(frozen=True)
class Ran:
    """What became of a hook: as its runtime sees it, and what it sent to syslog."""

    outcome: Outcome
    syslog: list[str]


class Scene:
    """See above. `hook` runs where our /dev/log is; `story`: the commands of a case, and what came of them."""

    def __init__(self, directory: Path, resctrl: Mounted, log: DevLog, enter: Sequence[str]) -> None:
        self.directory = directory
        self.trace = directory / "trace"
        self.story: list[str] = []
        self.hook = Hook(resctrl.root, directory / "run", options=WAITS, wrapper=enter)
        self._resctrl = resctrl
        self._log = log
        self._inits: list[subprocess.Popen[bytes]] = []
        self._is_over = False

    @classmethod
    @contextmanager
    def opened(cls, directory: Path) -> Iterator[Scene]:
        """`directory` is made."""
        directory.mkdir()
        with ExitStack() as stack:
            resctrl = stack.enter_context(mounted(directory, **MACHINE))
            log = stack.enter_context(DevLog(directory))
            enter = stack.enter_context(log.held())
            yield stack.enter_context(closing(cls(directory, resctrl, log, enter)))

    def close(self) -> None:
        while self._inits:
            end(self._inits.pop())

    def set(self, stage: str) -> dict[str, object]:
        """Bring the scene to one of STAGES; returns the state for the hook that is to run then."""
        self.close()
        shutil.rmtree(self.hook.run_dir, ignore_errors=True)
        for what in ("unmount", "mount", "settle"):
            self._resctrl.control(do=what)
        self.story.clear()
        self._is_over = stage == "last"
        root = self._resctrl.root
        for path in ("mon_groups/theirs", "gold", f"gold/mon_groups/{UID}"):
            (root / path).mkdir()
        (root / "mon_groups/theirs/tasks").write_text(str(self._start().pid))
        while stage == "refused" and self._resctrl.control(do="state")["free"]:
            (root / f"mon_groups/hoard-{len(self.hook.groups())}").mkdir()
        state = created(CONTAINER, self._start().pid, pod_uid=UID)
        if self._is_over:
            self._expect_silence(state)
            self._use_and_end()
            state = stopped(CONTAINER, pod_uid=UID)
        self._log.lines()
        return state

    def _start(self) -> subprocess.Popen[bytes]:
        self._inits.append(subprocess.Popen(["sleep", "infinity"], stdin=subprocess.DEVNULL))
        return self._inits[-1]

    def _use_and_end(self) -> None:
        """The container uses something, and is dead then."""
        self._resctrl.control(do="grow", amount=AMOUNT)
        end(self._inits.pop())

    def give_back(self) -> None:
        """RMIDs are there again."""
        for path in self._resctrl.root.glob("mon_groups/hoard-*"):
            path.rmdir()
        self._resctrl.control(do="settle")

    # --- What happens

    def run(self, state: dict[str, object], before: Sequence[str] = (), options: Sequence[str] = ()) -> Ran:
        """Run a hook to its end, started by `before`: it never hangs."""
        hook = replace(self.hook, wrapper=(*self.hook.wrapper, *before)).with_options(*options)
        return Ran(self._finish(hook, "hook", json.dumps(state)), self._log.lines())

    def _finish(self, hook: Hook, verb: str, stdin: str) -> Outcome:
        command = hook.command(verb)
        self.story.append(f"echo {shlex.quote(stdin)} | {shlex.join(command)}")
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env={}, cwd="/")
        try:
            stdout, stderr = process.communicate(stdin.encode(), timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.terminate()  # strace, too, ends what it started
            process.communicate()
            self.expect(False, f"it has not ended after {PATIENCE:.0f} s")
            raise
        outcome = Outcome(process.returncode, stdout.decode(), stderr.decode(errors="replace"))
        self.story.append(f"  exit status {outcome.status}, {outcome.stdout.strip()}, {outcome.stderr.strip()}")
        return outcome

    # --- What must be after

    def expect(self, condition: object, *problem: object) -> None:
        if not condition:
            raise AssertionError("\n".join([" ".join(map(str, problem)), *self.story]))

    def is_done(self) -> bool:
        """Whether the hook did what it is for."""
        if self._is_over:
            return self.hook.key(UID) is None and GROUP not in self.hook.groups()
        return GROUP in self.hook.groups() and self._inits[-1].pid in self.hook.tasks(GROUP)

    def is_recorded(self) -> bool:
        return self.hook.key(UID) is not None or CONTAINER in self.hook.reasons()

    def expect_told(
        self, ran: Ran, *, stderr: bool = True, syslog: bool = True, record: bool = True, named: bool = True
    ) -> None:
        """Each failure leaves three traces; of some it may be known that they could not be left.

        `named`: whether the hook could know whose it was.
        """
        wanted = f"{short_id(CONTAINER)}: " if named else "resctrl-mon-hook"
        self.expect(not stderr or wanted in ran.outcome.stderr, "nothing on stderr:", ran)
        self.expect(not syslog or any(wanted in line for line in ran.syslog), "nothing in syslog:", ran)
        self.expect(not record or not named or CONTAINER in self.hook.reasons(), "no record:", ran)

    def expect_theirs(self) -> None:
        """What is not ours is what it was."""
        found = {name: self.hook.tasks(name) for name in self.hook.groups() if name != GROUP and "hoard" not in name}
        wanted = dict(zip(THEIRS, ({self._inits[0].pid}, set[int]())))
        self.expect(found == wanted, "not ours:", found, "was", wanted)

    def recover(self, state: dict[str, object], *, by_hook: bool) -> None:
        """RMIDs are there again: by the same hook once more, or by one reconcile, all is as if nothing had happened.

        Reconcile knows only what was recorded. At last the pod ends, and leaves its use only, right or unknown.
        """
        self.give_back()
        if by_hook:
            self._expect_silence(state)
            self.expect(self.is_done(), "the same hook once more did not put it right")
        is_recorded = self.is_recorded()
        self._reconcile()
        self.expect(self.is_done() if is_recorded or self._is_over else True, "reconcile did not put it right")
        if not self._is_over:
            self._expect_silence(state)
            self.expect(self.is_done(), "it is not in its group")
            self._use_and_end()
            self._expect_silence(stopped(CONTAINER, pod_uid=UID))
        self._reconcile()
        entry = consumers.read(self.hook.run_dir / "mon_groups" / UID)
        wrong = {name: it for name, it in (entry.use() if entry else {}).items() if it not in (AMOUNT, None)}
        self.expect(not wrong, "the pod used", AMOUNT, "and not", wrong)
        left = self.hook.leftovers()
        self.expect(not left and GROUP not in self.hook.groups(), "left:", left, self.hook.groups())
        self.expect_theirs()

    def _expect_silence(self, state: dict[str, object]) -> None:
        ran = self.run(state)
        self.expect(ran == Ran(Outcome(0, "", ""), []), "a hook that nothing hit:", ran)

    def _reconcile(self) -> None:
        outcome = self._finish(self.hook, "reconcile", "")
        self.expect(outcome.status in (0, 1) and outcome.stderr == "", "reconcile failed")
        self._log.lines()
