# SPDX-License-Identifier: Apache-2.0
"""Soak: pods come and go by the ten thousand on one node; what lives has its group and its files, and nothing else has.

    python -m tests.faults.soak PODS SEED DIRECTORY

DIRECTORY gets the model of resctrl and the run directory, and lies on a tmpfs as /run does. This prints what was
soaked; with exit status 1, the first thing that is not as it should be.

Each hook is a process of its own that runs the shipped file from its first line, but is forked from an interpreter that
has started already (zygote.py), and so is each container's init. Nothing waits: RMIDs come back at once, and reconcile,
which comes after each BATCH of pods, has --snapshot-ttl=0. Two runtimes keep SLOTS keys alive each, on one run
directory and one resctrl, which has too few RMIDs for those whose poststop is lost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from pyz import archive
from tests.faults import zygote
from tests.faults.campaign import Campaign
from tests.provision import ROOT
from tests.resctrlfs import mounted
from tests.support.hook import PYZ, Hook, created, stopped

BATCH = 250
"""Or a quarter of all."""
RUNTIMES = 2
SLOTS = 8
RMIDS = 28
LOST = 0.1
"""Of the containers' ends: no poststop ever comes."""
MACHINE = {"rmids": RMIDS, "l3_domains": 1, "packages": 1, "perf": False, "decay_ms": 0, "limbo_tick_ms": 10}
WAITS = ("--lock-timeout=60", "--rmid-wait=60")
"""How long a hook may take is not what this is about."""
PYTHON = ("/usr/bin/python3", "-IS")
PODS = 100_000
PAGES = 8
"""Allowed: records of the live keys differ in length, at the time of each look."""
APART = ("unshare", "--mount")
"""What a command behind this mounts goes with it. Its processes end by themselves: see zygote.py."""
TMPFS = "/dev/shm"


def run(campaign: Campaign) -> None:
    """Soak in a process of its own, with mounts of its own."""
    begin, pods = time.monotonic(), min(PODS, campaign.most or PODS)
    command = [*APART, sys.executable, "-m", "tests.faults.soak", str(pods), str(campaign.seed)]
    with tempfile.TemporaryDirectory(dir=TMPFS) as directory:
        done = subprocess.run([*command, directory], cwd=ROOT, capture_output=True, text=True, check=False)
    said = (done.stdout + done.stderr).strip()
    campaign.tally("pods, on the model", pods, {"soak": said} if done.returncode else {}, begin)
    if not done.returncode:
        campaign.note(said)


# --- The node that is soaked


class SoakFailed(AssertionError):
    """Something is not as it should be."""


class Zygote:
    """Hooks and inits from zygote.py. `hooks`: how many there were."""

    def __init__(self, hook: Hook, errors: Path) -> None:
        pyz, _, *options = hook.command("hook")
        command = [*PYTHON, zygote.__file__, archive.BOOT, str(errors), pyz, *options]
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
            raise SoakFailed(f"a hook ended with {status}: {state}")

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, words: str) -> int:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(words.encode() + b"\n")
        stdin.flush()
        return int(stdout.readline())


class Key(NamedTuple):
    """A pod, or a container without one, whose key is its own ID: its containers, each with its init."""

    name: str
    containers: dict[str, int]


class Runtime:
    """Starts and ends pods, one after the other. `live`: SLOTS keys, of which every fourth is no pod's.

    `lost`: the containers whose poststop never came, and their keys, since the last look.
    """

    def __init__(self, zygote: Zygote, dice: Random) -> None:
        self.zygote = zygote
        self.live: list[Key] = []
        self.lost: set[str] = set()
        self._dice = dice

    def work(self, pods: int) -> None:
        """So many come, each for another that goes."""
        for _ in range(pods):
            if self.is_full():
                slot = self._dice.randrange(SLOTS)
                self._go(self.live[slot])
                self.live[slot] = self._come(slot)
            else:
                self.live.append(self._come(len(self.live)))

    def is_full(self) -> bool:
        return len(self.live) == SLOTS

    def _come(self, slot: int) -> Key:
        if slot % 4 == 0:
            container = self._id()
            return Key(container, {container: self._start(container, {})})
        name = str(uuid.UUID(int=self._dice.getrandbits(128), version=4))
        return Key(name, {it: self._start(it, {"pod_uid": name}) for it in (self._id(), self._id())})

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
    """Of the run directory: all that is in it, and the bytes that its file system has given that."""

    inodes: int
    used: int


class Soak:
    """A node with its runtimes; what hooks say is in `errors`. `sizes`: of the run directory, after each batch."""

    def __init__(self, hook: Hook, runtimes: list[Runtime], errors: Path) -> None:
        self.hook = hook
        self.runtimes = runtimes
        self.errors = errors
        self.sizes: list[Size] = []

    def run(self, pods: int) -> None:
        """So many pods, with a look after each batch; at last all go. Failed: what is not as it should be."""
        each, left = min(BATCH, max(pods // 4, 1)), pods
        with ThreadPoolExecutor(len(self.runtimes)) as pool:
            while left > 0:
                steady = all(runtime.is_full() for runtime in self.runtimes)
                share = -(-min(each, left) // len(self.runtimes))
                list(pool.map(Runtime.work, self.runtimes, [share] * len(self.runtimes)))
                left -= share * len(self.runtimes)
                self.look()
                if steady:
                    self.sizes.append(_size(self.hook.run_dir))
                    is_flat(self.sizes[0], self.sizes[-1])
        for runtime in self.runtimes:
            runtime.end()
        self.look()

    def look(self) -> None:
        """Reconcile, then see that there is what the live ones have, and nothing else.

        Reconcile has snapshots to prune, and what to end whose poststop was lost; what else it did, hooks have left.
        """
        lost = {name for runtime in self.runtimes for name in runtime.lost}
        actions = [it for it in self._reconciled() if it["action"] != "prune" and lost.isdisjoint(_names(it))]
        _same("what hooks left for reconcile", actions, [])
        said = self.errors.read_text(errors="replace")
        _same("what hooks said", said, "")
        live = {key.name: key.containers for runtime in self.runtimes for key in runtime.live}
        tasks = {name: self.hook.tasks(name) for name in self.hook.groups()}
        _same("groups", tasks, {f"oci-{name}": set(containers.values()) for name, containers in live.items()})
        containers = {name for it in live.values() for name in it}
        due = {f"groups/{name}.json" for name in live} | {f"locks/{name}" for name in live}
        _same("files", self.hook.leftovers(), due | {f"members/{name}.json" for name in containers})
        _same("views", set(os.listdir(self.hook.run_dir / "mon_groups")), set(live))
        for runtime in self.runtimes:
            runtime.lost.clear()

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
        raise SoakFailed(f"{what}: {found!r:.2000}, in place of {wanted!r:.2000}")


def _size(top: Path) -> Size:
    """Without what is to grow: each hook adds a byte to a file in runs/. And without the machine's own containers."""
    found = [it for it in _below(top) if it.name != "unhooked.json"]
    growing = str(top / "runs") + "/"
    used = sum(it.stat(follow_symlinks=False).st_blocks for it in found if not it.path.startswith(growing))
    return Size(len(found), used * 512)


def _below(top: str | Path) -> Iterator[os.DirEntry[str]]:
    for entry in os.scandir(top):
        yield entry
        if entry.is_dir(follow_symlinks=False):
            yield from _below(entry.path)


def is_flat(first: Size, now: Size) -> None:
    """Raise SoakFailed if a run directory has grown."""
    if now.inodes != first.inodes or abs(now.used - first.used) > PAGES * os.sysconf("SC_PAGESIZE"):
        raise SoakFailed(f"the run directory was {first}, and is {now}")


def main(arguments: Sequence[str]) -> int:
    pods, seed, directory = arguments
    here = Path(directory)
    assert PYZ.exists(), "python3 build.py makes the file that soaks"
    with mounted(here, **MACHINE) as model, ExitStack() as stack:
        hook = Hook(model.root, here / "run", options=WAITS)
        zygotes = [stack.enter_context(closing(Zygote(hook, here / "errors"))) for _ in range(RUNTIMES)]
        runtimes = [Runtime(it, Random(f"{seed}/{number}")) for number, it in enumerate(zygotes)]
        node = Soak(hook, runtimes, here / "errors")
        try:
            node.run(int(pods))
        except SoakFailed as failure:
            print(failure)
            return 1
    sizes = [f"{it.inodes} files of {it.used:,} bytes" for it in node.sizes]
    summary = ", at the end ".join(sizes[:1] + sizes[-1:]) or "too few pods to compare"
    print(f"{sum(it.hooks for it in zygotes):,} hooks; the run directory: {summary}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
