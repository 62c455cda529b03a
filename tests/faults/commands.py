# SPDX-License-Identifier: Apache-2.0
"""`run` as a process: each system call before its command fails once, or is its last;
descriptors or memory are few.

What must hold: after an error the command runs once, with its environment, and its exit status is
that of `run`, whose line names a problem, and no exception of Python's. After SIGKILL the command
does not run. In both cases one reconcile leaves nothing behind. The calls of a Python on its way to
the .pyz are left out: without it there is no program.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from fetch import provision
from tests.faults import processes
from tests.faults.campaign import Campaign
from tests.resctrlfs import Mounted, mounted
from tests.support.hook import NATIVE, Hook, Outcome, finish, shipped

ERRNOS = {
    **processes.ERRNOS,
    "flock": "EINTR ENOLCK",
    "fstat": "EIO ENOMEM",
    "mkdir": "EIO ENOSPC EROFS",
    "rename": "EIO ENOSPC",
    "rt_sigaction": "EINVAL",
    "rt_sigtimedwait": "EINVAL",
    "sigaltstack": "ENOMEM",
    "unlink": "EIO EROFS",
    "waitid": "EINVAL",
    "write": "EDQUOT EIO ENOSPC",
}
"""What a call can fail with; what is not here fails with the DEFAULT."""
DEFAULT = "EIO ENOMEM"
OF_LIBC = {("brk", 1), ("brk", 2), ("mprotect", 1)}
"""What the static libc of the ELF file begins with, before main; no kernel answers brk with 0."""
NEVER_FAIL = {
    "arch_prctl",
    "clock_gettime",
    "execve",
    "exit_group",
    "futex",
    "getegid",
    "geteuid",
    "getgid",
    "getpid",
    "getppid",
    "getrandom",
    "gettid",
    "getuid",
    "rseq",
    "rt_sigreturn",
    "set_robust_list",
    "set_tid_address",
    "umask",
    "fork",
    "prlimit64",
    "clone",
    "vfork",
    "restart_syscall",
    "kill",
    "getcwd",
    "sched_getaffinity",
}
"""By their manual pages, or not with these arguments."""
COMMAND = ("/usr/bin/env",)
EXECUTED = f'execve("{COMMAND[0]}", '
"""How the line of a trace begins after which the calls are the command's."""
ENVIRONMENT = {"TZ": "Asia/Kolkata", "A": "1"}
SHOWN = "TZ=Asia/Kolkata\nA=1\n"
ROOM = 12
"""Steps of memory, of a quarter of a MiB."""
PYTHONS = ("Traceback", "unforeseen", "Error(", "invalid literal")
"""Words of no message for an operator."""


def run(campaign: Campaign) -> None:
    fail_calls(campaign)
    limit(campaign)


def fail_calls(campaign: Campaign) -> None:
    with opened_node() as node:
        for words in ((), ("--wait",)):
            calls = node.list_calls(words)
            cases: dict[str, Callable[[], None]] = {}
            for name, nth in calls:
                for errno in () if name in NEVER_FAIL else ERRNOS.get(name, DEFAULT).split():
                    cases[f"{' '.join(['run', *words])}: {name}#{nth} {errno}"] = partial(
                        node.fail, words, name, nth, errno
                    )
            campaign.try_each(f"{' '.join(['run', *words])}, {len(calls)} calls, errors", cases)
            kills = {
                f"{' '.join(['run', *words])}: {name}#{nth} SIGKILL": partial(
                    node.kill, words, name, nth
                )
                for name, nth in calls
            }
            campaign.try_each(f"{' '.join(['run', *words])}, {len(calls)} calls, SIGKILL", kills)


def limit(campaign: Campaign) -> None:
    with opened_node() as node:
        for what, limits in processes.LIMITS.items():
            # The .pyz has to compile its last lines: a Python without room for
            # that is none that starts.
            begin = processes.find_begin(limits) + (
                ROOM if what == "memory" and shipped() != NATIVE else 0
            )
            cases = {f"run: {limit[-1]}": partial(node.limit, limit) for limit in limits[begin:]}
            campaign.try_each(f"run, few {what}, from {limits[begin][-1].lstrip('-')} on", cases)


class Node:
    """A node without other keys."""

    def __init__(self, directory: Path, resctrl: Mounted) -> None:
        self.hook = Hook(resctrl.root, directory / "run", options=())
        self._resctrl = resctrl
        self._trace = directory / "trace"

    def _run(self, words: Sequence[str], *strace: str) -> Outcome:
        """Run a command on a node as it was at first."""
        shutil.rmtree(self.hook.run_dir, ignore_errors=True)
        for what in ("unmount", "mount", "settle"):
            self._resctrl.control(do=what)
        # Not its children: a count is of each process.
        watched = replace(
            self.hook,
            wrapper=["strace", "-q", "-y", "-e", "signal=none", "-o", str(self._trace), *strace],
        )
        options = (*processes.WAITS, "--key=a", *words, "--", *COMMAND)
        return finish(watched.open("run", *options, env=ENVIRONMENT))

    def _read_trace(self) -> str:
        return self._trace.read_text(errors="replace")

    def list_calls(self, words: Sequence[str]) -> list[tuple[str, int]]:
        """List the calls of a `run` at which nothing fails,
        each by its name and which of that name it is.
        """
        outcome = self._run(words)
        assert outcome == Outcome(0, SHOWN, ""), outcome
        counts: Counter[str] = Counter()
        calls: list[tuple[str, int]] = []
        begin = "execve" if shipped() == NATIVE else "openat"  # by Python, of the .pyz
        for line in self._read_trace().partition(EXECUTED)[0].splitlines():
            match = re.match(r"(\w+)\((.*)", line)
            if match is None:
                continue
            name, text = match.groups()
            counts[name] += 1
            if calls or (name == begin and f'"{shipped()}"' in text):
                calls.append((name, counts[name]))
        return [call for call in calls[1:] if shipped() != NATIVE or call not in OF_LIBC]

    def fail(self, words: Sequence[str], name: str, nth: int, errno: str) -> None:
        # brk(2) itself gives no errno, but the end of the heap, which is not where it was to be.
        result = "retval=0" if name == "brk" else f"error={errno}"
        outcome = self._run(words, "-e", f"inject={name}:{result}:when={nth}")
        begin, _, rest = self._read_trace().partition(EXECUTED)
        # By the machine's state a run makes fewer calls than the one before.
        if "(INJECTED)" not in begin and rest:
            return
        assert (outcome.status, outcome.stdout) == (0, SHOWN), outcome
        # Many calls of the .pyz are those of Python's own imports.
        assert shipped() != NATIVE or not any(word in outcome.stderr for word in PYTHONS), outcome
        self._expect_nothing_left(outcome)

    def limit(self, limit: Sequence[str]) -> None:
        watched = replace(self.hook, wrapper=limit)
        alone = subprocess.run(
            [*limit, *COMMAND], env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        outcome = finish(
            watched.open("run", *processes.WAITS, "--key=a", "--", *COMMAND, env=ENVIRONMENT)
        )
        assert (outcome.status, outcome.stdout) == (alone.returncode, alone.stdout), outcome
        self._expect_nothing_left(outcome)

    def kill(self, words: Sequence[str], name: str, nth: int) -> None:
        outcome = self._run(words, "-e", f"inject={name}:signal=KILL:when={nth}")
        if EXECUTED in self._read_trace():  # as above
            return
        assert outcome.status == -signal.SIGKILL, outcome
        # The child of a --wait lives.
        assert outcome.stdout in (("", SHOWN) if words else ("",)), outcome
        self._expect_nothing_left(outcome)

    def _expect_nothing_left(self, outcome: Outcome) -> None:
        reconciled = self.hook.ask("reconcile")
        assert (reconciled.status, reconciled.stderr) == (0, ""), (outcome, reconciled)
        left = self.hook.groups(), self.hook.leftovers()
        assert left == (set(), set()), (outcome, reconciled, left)


@contextmanager
def opened_node() -> Iterator[Node]:
    with (
        tempfile.TemporaryDirectory(prefix="faults-", dir=provision.find_scratch()) as name,
        mounted(Path(name), **processes.MACHINE) as resctrl,
    ):
        yield Node(Path(name), resctrl)
