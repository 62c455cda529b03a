# SPDX-License-Identifier: Apache-2.0
"""One hook as a process, and one thing goes wrong in it: a system call fails,
or descriptors or memory are few.

The simulator lets the hook's own calls fail; here those fail that Python makes around them: until
main(), for memory and modules, to report a failure. What must hold whatever fails: exit status 0, a
failure is reported, what is not ours is as it was, and one reconcile puts all right that was
recorded.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

from fetch import provision
from hook.words import short_id
from pyz import archive
from tests.faults.campaign import Campaign
from tests.resctrlfs import Mounted, mounted
from tests.support import consumers
from tests.support.hook import NATIVE, UID, Hook, Outcome, Task, created, end, shipped, stopped

ERRNOS = {
    "brk": "ENOMEM",
    "close": "EINTR EIO ENOSPC",
    "connect": "EACCES EAGAIN ECONNREFUSED ENOENT",
    "fcntl": "EMFILE",
    "getdents64": "EIO",
    "ioctl": "EIO",
    "lseek": "EINVAL",
    "mmap": "ENOMEM",
    "mprotect": "ENOMEM",
    "munmap": "ENOMEM",
    "newfstatat": "EACCES EIO ENOMEM",
    "openat": "EACCES EINTR EMFILE ENFILE ENOMEM",
    "poll": "EINTR ENOMEM",
    "read": "EINTR EIO",
    "readlink": "EACCES EIO ENOMEM",
    "sendto": "EACCES EAGAIN ECONNREFUSED ENOBUFS",
    "socket": "EACCES EMFILE ENOBUFS",
}
"""What a call can fail with, by its manual page; but no lies, such as ENOENT for what is there."""
NEVER_SIMULATED = (
    "brk",
    "connect",
    "ioctl",
    "lseek",
    "mmap",
    "mprotect",
    "munmap",
    "sendto",
    "socket",
)
RETRIED = "EINTR"
"""Never from then on: the call would be made again and again, as it should."""
OURS = "umask"
"""The first call that our own code makes; what comes before it is Python, on its way to it."""
# With no descriptor at all poll(2) fails, which each report begins with. Without the
# addresses by chance the same limit has the same effect each time. From where Python does not
# start to where all is well.
LIMITS: dict[str, list[tuple[str, ...]]] = {
    "descriptors": [("prlimit", f"--nofile={number}") for number in range(1, 16)],
    "memory": [
        ("setarch", "-R", "prlimit", f"--as={size}") for size in range(8 << 20, 20 << 20, 256 << 10)
    ],
}
# While it waits, a hook makes more calls on a slow machine.
WAITS = ("--lock-timeout=0.2", "--rmid-wait=0")
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


# --- The parts


def fail_calls(campaign: Campaign, stages: Sequence[str] = STAGES) -> None:
    with opened_scene() as scene:
        for stage in stages:
            calls = list_calls(scene, stage)
            campaign.try_each(f"{stage}, {len(calls)} calls", make_cases(scene, stage, calls))


def limit(campaign: Campaign) -> None:
    """The limits at which Python itself starts; below them the hook does not run."""
    with opened_scene() as scene:
        for what, limits in LIMITS.items():
            begin = find_begin(limits)
            chosen = product(STAGES, limits[begin:])
            cases = {
                f"{stage}: {limit[-1]}": partial(scene.play, stage, limit)
                for stage, limit in chosen
            }
            campaign.try_each(f"few {what}, from {limits[begin][-1].lstrip('-')} on", cases)
            if begin > 0:
                campaign.note(f"with {limits[begin - 1][-1]} and less the program does not start")


def find_begin(limits: Sequence[Sequence[str]]) -> int:
    """Find the place of the first limit from which on Python starts."""
    return 1 + max((place for place, limit in enumerate(limits) if not _starts(limit)), default=-1)


def _starts(limit: Sequence[str]) -> bool:
    python = [archive.PYTHON, "-ISc", archive.BOOT.partition(";f=")[0]]
    command = [*limit, *([str(NATIVE), "hook"] if shipped() == NATIVE else python)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, check=False, capture_output=True, env={}
    )
    return done.returncode == 0


# --- System calls, as strace(1) sees them


@dataclass(frozen=True)
class Call:
    """The `nth` call of that name since the start of the process,
    which is the same one in each run.

    `text`: its arguments and its result. `is_ours`: Python has begun with our code.
    """

    name: str
    nth: int
    text: str
    is_ours: bool

    def __str__(self) -> str:
        return f"{self.name}#{self.nth}"

    def list_files(self) -> list[str]:
        """The files that it is about, without pids and descriptors:
        what one that failed has read is not seen.
        """
        by_name = self.name.endswith(("at", "dir"))
        files = (
            re.findall(r'"([^"]*)"', self.text)
            if by_name
            else re.findall("<([^>]*)>", self.text.split(" = ")[0])
        )
        return [re.sub(r"\d+", "N", file) for file in files]


def _watch(trace: Path) -> list[str]:
    """What a command is started by, so that its calls are written to `trace`."""
    return ["strace", "-f", "-q", "-y", "-e", "signal=STOP", "-o", str(trace)]


def list_calls(scene: Scene, stage: str) -> list[Call]:
    """Those of a hook at which nothing fails that the simulator has not."""
    scene.set(stage)
    scene.run(_watch(scene.trace))
    begin = "execve" if shipped() == NATIVE else "openat"  # by Python, of the .pyz
    counts: Counter[str] = Counter()
    calls: list[Call] = []
    is_ours = False
    for line in scene.trace.read_text(errors="replace").splitlines():
        match = re.match(r"(?:\d+ +)?(\w+)\((.*)", line)
        if match is None:
            continue
        name, text = match.groups()
        counts[name] += 1
        is_ours = is_ours or name == OURS
        if calls or (name == begin and f'"{shipped()}"' in text):
            calls.append(Call(name, counts[name], text, is_ours))
    return [call for call in calls if call.name in ERRNOS and _is_beside_ours(call)]


def _is_beside_ours(call: Call) -> bool:
    if (shipped(), call.name, call.nth) == (NATIVE, "brk", 2):
        # What a static libc begins with; it compares the answer with the one before, and no kernel
        # says 0.
        return False
    return not call.is_ours or call.name in NEVER_SIMULATED or f"<{shipped()}>" in call.text


def make_cases(scene: Scene, stage: str, calls: Sequence[Call]) -> Mapping[str, Callable[[], None]]:
    cases = {}
    for call in calls:
        # If reads fail from this one on, those of the state do, too: then the record names no
        # container. A Python that cannot read its modules does not come as far.
        has_stdin_after_it = shipped() == NATIVE and call.name == "read" and not call.is_ours
        for errno in ERRNOS[call.name].split():
            for for_good in (False,) if errno == RETRIED or has_stdin_after_it else (False, True):
                name = f"{stage}: {call} {errno}{'+' if for_good else ''}"
                cases[name] = partial(_fail, scene, stage, call, errno, for_good)
    return cases


def _fail(scene: Scene, stage: str, call: Call, errno: str, for_good: bool) -> None:
    """One call of a stage fails, or it and all later ones of that name."""
    # brk(2) itself gives no errno, but the end of the heap, which is not where it was to be.
    result = "retval=0" if call.name == "brk" else f"error={errno}"
    fault = f"inject={call.name}:{result}:when={call.nth}{'+' if for_good else ''}"
    # By seccomp the others are not stopped at, which is twice as fast; but signals get lost.
    words = [*_watch(scene.trace), "--seccomp-bpf", "-e", f"trace={call.name}", "-e", fault]

    def judge(outcome: Outcome) -> None:
        lines = scene.trace.read_text(errors="replace").splitlines()
        failed = [line.partition(" ")[2].lstrip() for line in lines if line.endswith("(INJECTED)")]
        first = replace(call, text=failed[0].partition("(")[2] if failed else "")
        scene.expect(
            first.list_files() == call.list_files(), "it was not this that failed:", failed
        )
        if (
            not scene.is_done()
            and call.is_ours
            and not any(f"<{shipped()}>" in line for line in failed)
        ):
            scene.expect_report(outcome, failed)

    scene.play(stage, words, judge)


# --- The node


class Scene:
    """A node with one pod on the model of resctrl, made again for each case.

    `story`: what was done, and what came.
    """

    def __init__(self, directory: Path, resctrl: Mounted) -> None:
        self.hook = Hook(resctrl.root, directory / "run", options=WAITS)
        self.trace = directory / "trace"
        self.story: list[str] = []
        self._resctrl = resctrl
        self._inits: list[Task] = []
        self._is_over = False
        self._state: dict[str, object] = {}

    def close(self) -> None:
        while self._inits:
            end(self._inits.pop())

    def set(self, stage: str) -> None:
        """Bring the scene to one of STAGES."""
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
        self._state = created(CONTAINER, self._start().pid, pod_uid=UID)
        if self._is_over:
            self._expect_silence()
            self._use_and_end()

    def _start(self) -> Task:
        self._inits.append(subprocess.Popen(["sleep", "infinity"], stdin=subprocess.DEVNULL))
        return self._inits[-1]

    def _use_and_end(self) -> None:
        """The container uses something, and is dead then."""
        self._resctrl.control(do="grow", amount=AMOUNT)
        end(self._inits.pop())
        self._state = stopped(CONTAINER, pod_uid=UID)

    def run(self, wrapper: Sequence[str] = (), verb: str = "hook") -> Outcome:
        """Run a hook, or another command, to its end: it never hangs.

        `wrapper`: what it is started by.
        """
        hook = replace(self.hook, wrapper=wrapper)
        outcome = hook(self._state, verb)
        self.story.append(f"{' '.join(hook.command(verb))} <<< {self._state}\n  {outcome}")
        return outcome

    def play(
        self, stage: str, wrapper: Sequence[str], judge: Callable[[Outcome], None] = lambda _: None
    ) -> None:
        """A hook is started by this, and what must hold does; then it is repaired."""
        self.set(stage)
        outcome = self.run(wrapper)
        self.expect(outcome.status == 0, "exit status", outcome.status)
        self.expect(self.is_done() or outcome.stderr, "not even Python says anything")
        judge(outcome)
        self._expect_theirs()
        self._recover()

    # --- What must hold

    def expect(self, condition: object, *problem: object) -> None:
        if not condition:
            raise AssertionError("\n".join([" ".join(map(str, problem)), *self.story]))

    def is_done(self) -> bool:
        """Whether the hook did what it is for."""
        if self._is_over:
            return self.hook.key(UID) is None and GROUP not in self.hook.groups()
        return GROUP in self.hook.groups() and self._inits[-1].pid in self.hook.tasks(GROUP)

    def expect_report(self, outcome: Outcome, failed: Sequence[str]) -> None:
        """The failure leaves a line on stderr and a record,
        each of them if its own system calls did not fail.
        """

        def was_spared(*parts: str) -> bool:
            return not any(part in line for line in failed for part in parts)

        run_dir = self.hook.run_dir
        # Stdin.
        knows_whose = not any(
            "<pipe:" in line and line.startswith(("read(", "poll(")) for line in failed
        )
        if was_spared("poll(", "write(2<"):
            wanted = f"{short_id(CONTAINER)}: " if knows_whose else "resctrl-mon-hook"
            self.expect(wanted in outcome.stderr, "nothing on stderr:", outcome)
        if knows_whose and was_spared("unmonitored", f'{run_dir}"', f'{run_dir}>, ""'):
            has_place = (run_dir / "unmonitored").exists()
            self.expect(not has_place or CONTAINER in self.hook.reasons(), "no record:", outcome)

    def _expect_theirs(self) -> None:
        """What is not ours is what it was."""
        groups = {
            name: self.hook.tasks(name)
            for name in self.hook.groups()
            if name != GROUP and "hoard" not in name
        }
        wanted = dict(zip(THEIRS, ({self._inits[0].pid}, set[int]())))
        self.expect(groups == wanted, "not ours:", groups, "was", wanted)

    def _recover(self) -> None:
        """RMIDs are there again: by one reconcile all is as if nothing had happened,
        as far as it was recorded.

        By the same hook once more all of it is. At last the pod ends,
        and leaves its use only, right or unknown.
        """
        for path in self._resctrl.root.glob("mon_groups/hoard-*"):
            path.rmdir()
        self._resctrl.control(do="settle")
        is_recorded = self.hook.key(UID) is not None or CONTAINER in self.hook.reasons()
        self._reconcile()
        self.expect(
            self.is_done() or not (is_recorded or self._is_over), "reconcile did not put it right"
        )
        if not self._is_over:
            self._expect_silence()
            self.expect(self.is_done(), "it is not in its group")
            self._use_and_end()
            self._expect_silence()
        self._reconcile()
        entry = consumers.read(self.hook.view(UID))
        wrong = {
            name: use
            for name, use in (entry.use() if entry else {}).items()
            if use not in (AMOUNT, None)
        }
        self.expect(not wrong, "the pod used", AMOUNT, "and not", wrong)
        left = self.hook.leftovers()
        self.expect(not left and GROUP not in self.hook.groups(), "left:", left, self.hook.groups())
        self._expect_theirs()

    def _expect_silence(self) -> None:
        outcome = self.run()
        self.expect(outcome == Outcome(0, "", ""), "a hook that nothing hit:", outcome)

    def _reconcile(self) -> None:
        outcome = self.run(verb="reconcile")
        self.expect(outcome.status in (0, 1) and outcome.stderr == "", "reconcile failed")


@contextmanager
def opened_scene() -> Iterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="faults-", dir=provision.find_scratch()) as name:
        directory = Path(name)
        with mounted(directory, **MACHINE) as resctrl, closing(Scene(directory, resctrl)) as scene:
            yield scene
