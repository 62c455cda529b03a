"""Soak: pods come and go by the ten thousand on one node; what lives has its group and its files, and nothing else has.

    python -m tests.faults.soak [--pods N] [--seed S]

Compressed, and how: each hook is a process of its own that runs the shipped file from its first line, but it is forked
from an interpreter that has started already, and so is each container's init; time is not waited for: RMIDs come back
at once, and reconcile, which comes after each BATCH of pods, has a --snapshot-ttl of 0. Two workers keep SLOTS keys
alive each, on one run directory and one model of resctrl, whose RMIDs do not last for those whose poststop is lost.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import build
from tests.faults import part
from tests.faults.part import Row
from tests.resctrlfs import mounted
from tests.support.hook import PYZ, Hook, created, stopped

PODS = 100_000
BATCH = 250
WORKERS = 2
SLOTS = 12
RMIDS = 40
LOST = 0.1
"""Of the containers' ends: no poststop ever comes."""
MACHINE = {"rmids": RMIDS, "l3_domains": 1, "packages": 1, "perf": False, "decay_ms": 0, "limbo_tick_ms": 10}
TOLERANCE = 0.02
"""Of the bytes: pids, inodes and times have a digit more or less."""

PYTHON = ("/usr/bin/python3", "-IS")
# For each line on stdin it forks, and answers with a number: `init` with the pid of a process that does nothing,
# `end PID` when that one is gone, `hook STATE` with the exit status of a hook.
ZYGOTE = """\
import posix, sys
boot, errors, pyz, *words = sys.argv[1:]
errors = posix.open(errors, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND, 0o600)
never, held = posix.pipe()
def init():
    posix.close(held)
    posix.read(never, 1)
def hook(state):
    stdin, to = posix.pipe()
    posix.write(to, state)
    posix.close(to)
    for old, new in ((stdin, 0), (errors, 1), (errors, 2)):
        posix.dup2(old, new)
    sys.argv = ["-c", pyz, "hook", *words]
    exec(boot, {"__name__": "__main__"})
def forked(run, *arguments):
    pid = posix.fork()
    if pid == 0:
        try:
            run(*arguments)
        finally:
            posix._exit(99)
    return pid
for line in sys.stdin.buffer:
    verb, _, rest = line.partition(b" ")
    if verb == b"end":
        posix.kill(int(rest), 9)
        posix.waitpid(int(rest), 0)
        answer = 0
    elif verb == b"hook":
        answer = posix.waitpid(forked(hook, rest), 0)[1]
    else:
        answer = forked(init)
    posix.write(1, b"%d\\n" % answer)
"""


class Zygote:
    """An interpreter that has started, and of which hooks and inits are forked."""

    def __init__(self, hook: Hook, errors: Path) -> None:
        words = [str(errors), *hook.command("hook")]
        words.remove("hook")
        command = [*PYTHON, "-c", ZYGOTE, build.BOOT, *words]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}, cwd="/")
        self.hooks = 0

    def init(self) -> int:
        return self._ask("init")

    def end(self, pid: int) -> None:
        self._ask(f"end {pid}")

    def hook(self, state: dict[str, object]) -> None:
        self.hooks += 1
        status = self._ask(f"hook {json.dumps(state)}")
        if status:
            raise Failed(f"a hook ended with {status}: {state}")

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, words: str) -> int:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(words.encode() + b"\n")
        stdin.flush()
        return int(stdout.readline())


class Failed(AssertionError):
    """Something is not as it should be."""


class Key(NamedTuple):
    """A pod, or a container without one, whose key is its own ID: its containers, each with its init."""

    name: str
    containers: dict[str, int]


class Worker:
    """Starts and ends pods, one after the other. `live`: SLOTS keys, of which every fourth is no pod's.

    `lost`: the containers whose poststop never came, and their keys.
    """

    def __init__(self, zygote: Zygote, dice: Random) -> None:
        self.zygote = zygote
        self.live: list[Key] = []
        self.lost: set[str] = set()
        self._dice = dice

    def work(self, pods: int) -> None:
        """So many come, each for another that goes."""
        for _ in range(pods):
            if len(self.live) < SLOTS:
                self.live.append(self._come(len(self.live)))
            else:
                slot = self._dice.randrange(SLOTS)
                self._go(self.live[slot])
                self.live[slot] = self._come(slot)

    def _come(self, slot: int) -> Key:
        name = str(uuid.UUID(int=self._dice.getrandbits(128), version=4))
        if slot % 4 == 0:
            container = self._id()
            return Key(container, {container: self._start(container, {})})
        key = Key(name, {})
        for container in (self._id(), self._id()):
            key.containers[container] = self._start(container, {"pod_uid": name})
        return key

    def _go(self, key: Key) -> None:
        for container, pid in key.containers.items():
            self.zygote.end(pid)
            if self._dice.random() < LOST:
                self.lost |= {container, key.name}
            else:
                self.zygote.hook(stopped(container))

    def _start(self, container: str, annotations: dict[str, str]) -> int:
        pid = self.zygote.init()
        self.zygote.hook(created(container, pid, **annotations))
        return pid

    def _id(self) -> str:
        return f"{self._dice.getrandbits(256):064x}"

    def end(self) -> None:
        """All goes, and each poststop comes."""
        for key in self.live:
            for container, pid in key.containers.items():
                self.zygote.end(pid)
                self.zygote.hook(stopped(container))
        self.live.clear()


class Size(NamedTuple):
    """Of the run directory, but for the bytes of what counts hooks, of which there is one for each."""

    inodes: int
    bytes: int


class Soak:
    """A node with its workers."""

    def __init__(self, hook: Hook, workers: list[Worker], errors: Path) -> None:
        self.hook = hook
        self.workers = workers
        self.errors = errors
        self.sizes: list[Size] = []

    def run(self, pods: int, each: int) -> None:
        """So many pods, with a look after each batch of `each`; at last all go. Failed: what is not as it should be."""
        left = pods
        with ThreadPoolExecutor(len(self.workers)) as pool:
            while left > 0:
                share = min(each, left) // len(self.workers)
                for job in [pool.submit(worker.work, share) for worker in self.workers]:
                    job.result()
                left -= share * len(self.workers)
                self.look()
        for worker in self.workers:
            worker.end()
        self.look(flat=False)

    def look(self, *, flat: bool = True) -> None:
        """Reconcile, then see that there is what the live ones have, and nothing else.

        Reconcile has snapshots to prune, and what to end whose poststop was lost; what else it did, hooks have left.
        """
        lost = {name for worker in self.workers for name in worker.lost}
        actions = [it for it in self._reconciled() if it["action"] != "prune" and lost.isdisjoint(_names(it))]
        _same("what hooks left for reconcile", actions, [])
        said = self.errors.read_text(errors="replace")
        _same("what hooks said", said, "")
        live = {key.name: key.containers for worker in self.workers for key in worker.live}
        tasks = {name: self.hook.tasks(name) for name in self.hook.groups()}
        _same("groups", tasks, {f"oci-{name}": set(containers.values()) for name, containers in live.items()})
        containers = {name for it in live.values() for name in it}
        due = {f"groups/{name}.json" for name in live} | {f"locks/{name}" for name in live}
        _same("files", self.hook.leftovers(), due | {f"members/{name}.json" for name in containers})
        _same("views", set(os.listdir(self.hook.run_dir / "mon_groups")), set(live))
        if flat:
            self.sizes.append(_size(self.hook.run_dir))
            first, now = self.sizes[0], self.sizes[-1]
            if now.inodes != first.inodes or abs(now.bytes - first.bytes) > TOLERANCE * first.bytes:
                raise Failed(f"the run directory was {first}, and is {now}")

    def _reconciled(self) -> list[Any]:
        command = [*self.hook.command("reconcile"), "--snapshot-ttl=0", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={})
        _same("what reconcile said", (done.returncode, done.stderr), (0, ""))
        actions: list[Any] = json.loads(done.stdout)["actions"]
        _same("what reconcile could not do", [it for it in actions if it["problem"]], [])
        return actions


def _names(action: Any) -> set[str]:  # noqa: ANN401  JSON
    """The key and the container of one of reconcile's actions, or the key that a group is named by."""
    return {action["key"], action["container"], (action["path"] or "").rpartition("/oci-")[2]}


def _same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        if isinstance(found, set) and isinstance(wanted, set):
            found, wanted = found - wanted, wanted - found
        raise Failed(f"{what}: {found!r:.2000}, in place of {wanted!r:.2000}")


def _size(top: Path) -> Size:
    found = list(_below(top))
    files = [it for it in found if not it.is_dir(follow_symlinks=False) and Path(it.path).parent.name != "runs"]
    return Size(len(found), sum(it.stat(follow_symlinks=False).st_size for it in files))


def _below(top: str | Path) -> Iterator[os.DirEntry[str]]:
    for entry in os.scandir(top):
        yield entry
        if entry.is_dir(follow_symlinks=False):
            yield from _below(entry.path)


def soak(hook: Hook, errors: Path, pods: int, batch: int, seed: int) -> Soak:
    """Soak a node; what hooks say goes to a file. Raises Failed."""
    with ExitStack() as stack:
        zygotes = [stack.enter_context(closing(Zygote(hook, errors))) for _ in range(WORKERS)]
        workers = [Worker(zygote, Random(f"{seed}/{number}")) for number, zygote in enumerate(zygotes)]
        node = Soak(hook, workers, errors)
        node.run(pods, batch)
        return node


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pods", type=int, default=PODS, help=f"default: {PODS}")
    parser.add_argument("--seed", type=int, default=1)


def run(given: argparse.Namespace) -> Row:
    if os.getpid() != 1:  # the model looks at every process that it sees: let there be few
        return part.elsewhere("soak", given, *part.ALONE, sys.executable)
    began = time.monotonic()
    failures: list[str] = []
    note = ""
    assert PYZ.exists(), "python3 build.py makes the file that soaks"
    with tempfile.TemporaryDirectory() as name, mounted(Path(name), **MACHINE) as resctrl:
        hook = Hook(resctrl.root, Path(name) / "run")
        try:
            node = soak(hook, Path(name) / "errors", given.pods, BATCH, given.seed)
        except Failed as failure:
            failures.append(str(failure))
        else:
            hooks = sum(worker.zygote.hooks for worker in node.workers)
            note = f"{hooks} hooks; the run directory: {node.sizes[0]}, at the end {node.sizes[-1]}"
    return Row("soak", "pods", given.pods, failures, time.monotonic() - began, note)


if __name__ == "__main__":
    sys.exit(part.main(run, options, sys.argv[1:]))
