# SPDX-License-Identifier: Apache-2.0
"""What the hook does, on real containers, in a few seconds: `python3 build.py demo`.

Two pods of two containers each, and one container without a pod, which runc starts. Groups, members and tasks are shown
as they come and go. Nothing is left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.resctrlfs import Mounted, mounted
from tests.support.containers import HOOK, Gate, Lab, ProcessShown, RuncContainer, missing, task
from tests.support.hook import is_completed

PREFIX = "oci-"
ALONE = "alone"
STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "cyan": "36"}
IN_COLOUR = sys.stdout.isatty() and "NO_COLOR" not in os.environ


def styled(text: str, style: str) -> str:
    return f"\033[{STYLES[style]}m{text}\033[0m" if IN_COLOUR else text


@dataclass
class Container:
    name: str
    key: str
    id: str
    init: ProcessShown
    gate: Gate
    by_runc: RuncContainer


class Demo:
    def __init__(self, lab: Lab, run_dir: Path, model: Mounted) -> None:
        self.lab = lab
        self.root = model.root
        self.run_dir = run_dir
        self.model = model
        self.pods = {str(uuid.uuid4()): name for name in ("shop", "batch")}
        self.containers: dict[str, Container] = {}
        self.failed = False

    def play(self) -> bool:
        """All scenes; whether each showed what it should."""
        self.scene("Two pods of two containers each, and one container without a pod")
        for uid, pod in self.pods.items():
            for name in (f"{pod}-app", f"{pod}-helper"):
                self.start(name, uid)
        self.start(ALONE)
        self.show(expected=3)
        self.scene("shop-app ends: its group stays, with the same RMID, for the pod's other container")
        self.end("shop-app")
        self.show(expected=3)
        self.scene("batch-app and batch-helper are killed: the last one takes the group along")
        for name in ("batch-app", "batch-helper"):
            os.kill(self.containers[name].init.pid, signal.SIGKILL)
            self.forget(name)
        self.show(expected=2)
        self.scene("The rest ends")
        for name in ("shop-helper", ALONE):
            self.end(name)
        self.show(expected=0)
        self.check_files()
        return not self.failed

    def scene(self, title: str) -> None:
        print(f"\n{styled('> ' + title, 'bold')}")

    def start(self, name: str, uid: str = "") -> None:
        # Its cgroup, as the kubelet and a runtime make it, says which pod it is in
        started = self.lab.runc(name, {"io.kubernetes.pod.uid": uid} if uid else {})
        self.containers[name] = Container(name, uid or name, name, started.init(), started.gate, started)

    def end(self, name: str) -> None:
        self.containers[name].gate.open()
        self.forget(name)

    def forget(self, name: str) -> None:
        """Wait until the container's poststop is through."""
        container = self.containers.pop(name)
        self.lab.watch.wait("poststop", container.id)
        container.by_runc.wait()

    def show(self, expected: int) -> None:
        """Every group with its tasks, and whose they are; complains about what is not as it should be."""
        groups = self.groups()
        for group in groups:
            self.show_group(group)
        if not groups:
            print(f"  {self.root}/mon_groups has no group of ours")
        self.check(len(groups) == expected, f"{len(groups)} groups, not {expected}")
        for container in self.containers.values():
            inside = container.init.pid in self.tasks(PREFIX + container.key)
            self.check(inside, f"{container.name} (pid {container.init.pid}) is not in the group of its key")

    def show_group(self, group: str) -> None:
        key = group[len(PREFIX) :]
        what = f"pod {self.pods[key]}" if key in self.pods else "container"
        print(f"  mon_groups/{styled(group, 'cyan')}  {styled(what + self.rmid(group), 'dim')}")
        members = {container.id: container for container in self.containers.values()}
        for container_id in self.members(key):
            container = members.get(container_id)
            self.check(container is not None, f"{container_id[:12]} is a member and should not be")
            if container is not None:
                print(f"    {container.name:<13} {container_id[:12]:<13} {self.life(container)}")
        strangers = set(self.tasks(group)) - {container.init.pid for container in members.values()}
        self.check(not strangers, f"tasks in it that are no container's first process: {sorted(strangers)}")

    def life(self, container: Container) -> str:
        """What the container's first process was when it came into its group, and what it is now."""
        pid = container.init.pid
        return f"pid {pid}, put in as {self.put_in_as(container.init)}, runs {task(pid).cmdline[0]} now"

    def put_in_as(self, init: ProcessShown) -> str:
        moves = [seen for event in self.model.events() if event.op == "tasks" for seen in event.pids]
        seen = [seen for seen in moves if (seen.pid, seen.starttime) == (init.pid, init.starttime)]
        early = len(seen) == 1 and seen[0].cmdline[-1:] == ["init"]
        self.check(early, f"pid {init.pid} was not put in as the runtime's init")
        return styled(str(seen[0].comm), "green") if early else "?"

    def rmid(self, group: str) -> str:
        return f", RMID {self.model.groups()[f'/mon_groups/{group}']['rmid']}"

    def groups(self) -> list[str]:
        """In the order of the pods."""
        return [PREFIX + key for key in (*self.pods, ALONE) if (self.root / "mon_groups" / (PREFIX + key)).is_dir()]

    def tasks(self, group: str) -> list[int]:
        try:
            return [int(line) for line in (self.root / "mon_groups" / group / "tasks").read_text().split()]
        except FileNotFoundError:
            return []

    def members(self, key: str) -> list[str]:
        try:
            return sorted(json.loads((self.run_dir / "groups" / f"{key}.json").read_text())["members"])
        except FileNotFoundError:
            self.check(False, f"nothing is on record of {key}")
            return []

    def check_files(self) -> None:
        parts = ("groups", "locks", "members", "unmonitored")
        left = [str(path) for part in parts for path in (self.run_dir / part).glob("*") if not is_completed(path)]
        self.check(not left, f"files that are left: {left}")
        if not left:
            print("  the run directory has no group, member, lock or failure on record, but what the pods used")

    def check(self, good: bool, complaint: str) -> None:
        if not good:
            self.failed = True
            print(f"  {styled('not as it should be: ' + complaint, 'red')}")


def play() -> bool:
    with tempfile.TemporaryDirectory(prefix="rmh-demo-") as name, mounted(Path(name)) as model:
        run_dir = Path(name) / "run"
        with closing(Lab([f"--resctrl-root={model.root}", f"--run-dir={run_dir}"])) as lab:
            print(f"{HOOK.name} under Podman and runc, on a FUSE model of resctrl")
            return Demo(lab, run_dir, model).play()


def main(arguments: Sequence[str]) -> int:
    argparse.ArgumentParser(prog="python3 build.py demo", description=__doc__).parse_args(arguments)
    if reason := missing():
        print(f"demo: cannot run containers here: {reason}", file=sys.stderr)
        return 1
    # Ends by way of the clean-up, as Ctrl-C does
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        good = play()
    except KeyboardInterrupt:
        return 130
    except (RuntimeError, TimeoutError, subprocess.TimeoutExpired) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    if not good:
        print(styled("\nThe hook did not do what it should.", "red"))
        return 1
    end = "Each container's first process was in its group before its first instruction; nothing is left."
    print(styled(f"\n{end}", "bold"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
