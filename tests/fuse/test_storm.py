# SPDX-License-Identifier: Apache-2.0
"""Ten of the simulator's scenarios with real processes: hooks that run at the same time,
and are killed at any moment.

Then reconcile runs once. tests.simulator plays all scenarios, in any order of their system calls.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kernel.inside import REAL_ROOT, fill, make_group, remove_groups
from tests.resctrlfs import Mounted, mounted
from tests.simulator.node import PODS, STEP
from tests.simulator.scenarios import SCENARIOS, read_scenario
from tests.support import watching
from tests.support.cgroups import end_cgroups, mount_point
from tests.support.hook import DEADLINE, Hook, Task, created, stopped
from tests.support.leftovers import own_mark

pytestmark = [pytest.mark.slow, pytest.mark.both_forms]

MOMENT = 0.05 if REAL_ROOT is None else 0.6
"""About as many seconds as a hook takes."""
STORMS = {
    # a scenario: whether hooks are killed in it
    "c1 c2 | p1 | p2 | c3": True,
    "c1 d1 | c1 | l1 | r": False,
    "linger=60; c1 | p1 | c2": True,
    "c1 c2@gold | p1 | p2 | r": True,
    "rmids=1; c1 d1 | c5 | c2": False,
    "rmids=1 limbo=1; c1 | p1 | c5": False,
    "c1 u1 | c2 | r": True,
    "c1 | p1 | X | r": False,
    "c1 c2 o1 | p2 | p1 | r": True,
    "c1 c5 c9 | p1 | p5 | p9 | r": True,
}
"""Pods and containers, restarts, lingering, ctrl_groups, few RMIDs, damage, and other tools:
one scenario of each.
"""


@dataclass
class StormContainer:
    """One start of a container. `is_free`: its hook was killed, or another tool has moved it."""

    name: str
    uid: str | None
    ctrl_group: str
    init: Task
    is_free: bool = False

    @property
    def key(self) -> str:
        return self.uid or self.name

    @property
    def group(self) -> str:
        return f"{self.ctrl_group}/oci-{self.key}".lstrip("/")

    @property
    def annotations(self) -> dict[str, str]:
        return {"io.kubernetes.pod.uid": self.uid} if self.uid else {}


class Storm:
    """What happens on a node with real processes: some of the steps of tests.simulator.node."""

    def __init__(self, hook: Hook, model: Mounted | None, directory: Path, *, kills: bool) -> None:
        self.hook, self.root, self.model = hook, hook.resctrl_root, model
        self.directory = directory
        self.cgroups = mount_point() / f"{own_mark()}storm-{os.getpid()}"
        self.kills = kills
        self.lives: list[StormContainer] = []
        self.dice = random.Random()
        self.steps: dict[str, Callable[[int, str], object]] = {
            "c": self.create, "p": self.stop, "l": self.late_stop, "d": self.end,
            "r": self.reconcile,
            "u": self.tear, "X": self.remount, "o": self.capture,
        }  # fmt: skip

    def take(self, steps: str) -> None:
        for step in steps.split():
            match = STEP.fullmatch(step)
            assert match is not None
            self.steps[match[1]](int(match[2] or 0), match[3] or "")

    def close(self) -> None:
        end_cgroups([self.cgroups])
        for container in self.lives:
            container.init.wait()

    def find(self, number: int) -> StormContainer:
        return next(
            container for container in reversed(self.lives) if container.name == str(number) * 64
        )

    def create(self, number: int, ctrl_group: str) -> None:
        init = subprocess.Popen(["sleep", "infinity"], stdin=subprocess.DEVNULL)
        container = StormContainer(
            str(number) * 64, PODS[(number - 1) // 4] if number <= 8 else None, ctrl_group, init
        )
        place = (
            self.cgroups
            / (f"pod{container.uid}" if container.uid else "system.slice")
            / f"crio-{container.name}.scope"
        )
        place.mkdir(parents=True, exist_ok=True)
        (place / "cgroup.procs").write_text(str(init.pid))
        bundle = self.directory / container.name
        bundle.mkdir(exist_ok=True)
        linux: dict[str, object] = {}
        if ctrl_group:
            if not (self.root / ctrl_group).exists():
                make_group(self.root / ctrl_group)
            (self.root / ctrl_group / "tasks").write_text(str(init.pid))
            linux["intelRdt"] = {"closID": ctrl_group}
        (bundle / "config.json").write_text(json.dumps({"linux": linux}))
        self.lives.append(container)
        self.run(
            "hook",
            {**created(container.name, init.pid, **container.annotations), "bundle": str(bundle)},
            container,
        )

    def stop(self, number: int, _: str) -> None:
        self.end(number, "")
        self.late_stop(number, "")

    def late_stop(self, number: int, _: str) -> None:
        container = self.find(number)
        self.run("hook", stopped(container.name, **container.annotations), container)

    def end(self, number: int, _: str) -> None:
        self.find(number).init.kill()
        self.find(number).init.wait()

    def reconcile(self, *_: object) -> None:
        self.run("reconcile")

    def tear(self, number: int, _: str) -> None:
        (self.hook.run_dir / f"groups/{self.find(number).key}.json").write_text(
            '{"version": 1, "key": "'
        )

    def remount(self, *_: object) -> None:
        if self.model is not None:
            self.model.control(do="unmount")
            self.model.control(do="mount")
            return
        while subprocess.run(["umount", self.root], check=False).returncode:  # a hook looks at it
            time.sleep(0.05)
        subprocess.run(["mount", "-t", "resctrl", "resctrl", self.root], check=True)

    def capture(self, number: int, _: str) -> None:
        make_group(self.root / "mon_groups/theirs")
        self.find(number).is_free = True
        (self.root / "mon_groups/theirs/tasks").write_text(str(self.find(number).init.pid))

    def run(
        self, verb: str, state: dict[str, object] | None = None, of: StormContainer | None = None
    ) -> None:
        """Run a process of ours to its end, or until it is killed."""
        process = self.hook.start(state or b"", verb)
        is_to_die = self.kills and self.dice.random() < 0.3
        timer = threading.Timer(
            self.dice.uniform(0, MOMENT) if is_to_die else DEADLINE, process.kill
        )
        timer.start()
        _, stderr = process.communicate()
        timer.cancel()
        if process.returncode < 0 and is_to_die:
            if of is not None:
                of.is_free = True
            return
        assert process.returncode in (0, 1), (process.returncode, stderr)
        assert b"unforeseen" not in stderr

    def judge(self) -> None:
        """Each container that lives is in its group, or has a record for want of RMIDs;
        and nothing else is left.
        """
        living = [container for container in self.lives if container.init.poll() is None]
        groups, reasons = self.hook.groups(), self.hook.reasons()
        kept = [
            container
            for container in living
            if container.group in groups and container.init.pid in self.hook.tasks(container.group)
        ]
        for container in living:
            assert (
                container in kept
                or container.is_free
                or reasons[container.name] in {"no_rmids", "rmids_in_limbo"}
            ), container
        assert reasons.keys() <= {container.name for container in living}
        expected = {f"members/{container.name}.json" for container in kept}
        if any("--linger" in word for word in self.hook.options):  # and the pod's cgroup is there
            kept += [
                container
                for container in self.lives
                if container.group in groups and not self.hook.tasks(container.group)
            ]
        assert {group for group in groups if "oci-" in group} == {
            container.group for container in kept
        }
        expected |= {
            name
            for container in kept
            for name in (f"groups/{container.key}.json", f"locks/{container.key}")
        }
        left = {
            leftover
            for leftover in self.hook.leftovers()
            if ".unreadable-" not in leftover and not leftover.startswith("unmonitored/")
        }
        assert left == expected


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted | None]:
    """The model of resctrl; None where there is a real one."""
    if REAL_ROOT is not None:
        yield None
        return
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("needs root and /dev/fuse")
    machine = {"rmids": 12, "l3_domains": 1, "packages": 1, "perf": False, "limbo_tick_ms": 10}
    with mounted(tmp_path_factory.mktemp("storm"), **machine) as model:
        yield model


def leave_rmids(root: Path, model: Mounted | None, rmids: int) -> None:
    """Let others have all RMIDs but so many."""
    for number in range(fill(root / "mon_groups"))[:rmids]:
        (root / f"mon_groups/filler-{number}").rmdir()
    if model is not None:
        model.control(do="settle")
    make_group(root / "mon_groups/probe")
    (root / "mon_groups/probe").rmdir()
    if model is not None:
        model.control(do="settle")


@pytest.mark.parametrize("scenario", STORMS)
def test_one_reconcile_puts_it_right(tmp_path: Path, model: Mounted | None, scenario: str) -> None:
    assert scenario in SCENARIOS
    options, before, lanes = read_scenario(scenario)
    rmids, limbo = options.pop("rmids", 0), options.pop("limbo", 0)
    root = REAL_ROOT if model is None else model.root
    assert root is not None
    if model is not None:
        model.control(do="set", decay_ms=1000 * limbo)
        model.control(do="settle")
    remove_groups(root)
    if rmids:
        leave_rmids(root, model, rmids)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    hook = Hook(root, tmp_path / "run").with_options("--rmid-wait=60", *words)
    with closing(Storm(hook, model, tmp_path, kills=False)) as storm, ExitStack() as stack:
        storm.take(before)
        if len(scenario) % 2 and watching.missing() is None:
            stack.enter_context(watching.watching(hook))
        storm.kills = STORMS[scenario]
        with ThreadPoolExecutor(len(lanes)) as pool:
            for done in [pool.submit(storm.take, steps) for steps in lanes]:
                done.result()
        storm.kills = False
        if model is not None:
            model.control(do="settle")
        storm.reconcile()
        storm.judge()
    remove_groups(root)
