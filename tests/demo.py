# SPDX-License-Identifier: Apache-2.0
"""What the hook does, on containers, in a few seconds: `python3 build.py demo`.

Two pods of two containers each, and one container without a pod: groups, members and tasks as they
come and go. Where no container can be run, the same happens in the simulator of the tests.
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

from tests.resctrlfs import Mounted, Seen, mounted
from tests.resctrlfs.events import look
from tests.support.containers import Gate, Lab, RuncContainer, missing
from tests.support.hook import is_completed, shipped

PREFIX = "oci-"
ALONE = "alone"
PODS = ("shop", "batch")
PARTS = ("groups", "locks", "members", "unmonitored")
STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "cyan": "36"}
IN_COLOUR = sys.stdout.isatty() and "NO_COLOR" not in os.environ
SHOWN = (
    "Each container's first process was in its group before its first instruction; nothing is left."
)
NOT_SHOWN = """\
Not shown, since this was the simulator: that a runtime calls the hook, that a container's first
process is in its group before its first instruction, the RMID of a group. To see them, run
`sudo python3 build.py demo` where there is /dev/fuse."""


def styled(text: str, style: str) -> str:
    return f"\033[{STYLES[style]}m{text}\033[0m" if IN_COLOUR else text


@dataclass
class Container:
    name: str
    key: str
    id: str
    pid: int


class RealStage:
    """Containers of runc, on the FUSE model of resctrl.

    Its methods are what the story asks of a machine.
    """

    def __init__(self, lab: Lab, run_dir: Path, model: Mounted) -> None:
        self.root = str(model.root)
        self.uids = [str(uuid.uuid4()) for _ in PODS]
        self._lab, self._run_dir, self._model = lab, run_dir, model
        self._running: dict[str, tuple[Seen, Gate, RuncContainer]] = {}

    def start(self, name: str, uid: str) -> Container:
        # Its cgroup, as the kubelet and a runtime make it, says which pod it is in
        started = self._lab.runc(name, {"io.kubernetes.pod.uid": uid} if uid else {})
        self._running[name] = started.init(), started.gate, started
        return Container(name, uid or name, name, started.init().pid)

    def end(self, container: Container, *, by_signal: bool) -> None:
        """End the container, and wait until its poststop is through."""
        _, gate, by_runc = self._running.pop(container.name)
        if by_signal:
            os.kill(container.pid, signal.SIGKILL)
        else:
            gate.open()
        self._lab.watch.wait("poststop", container.id)
        by_runc.wait()

    def groups(self) -> set[str]:
        return {group.name for group in Path(self.root, "mon_groups").iterdir()}

    def tasks(self, group: str) -> set[int]:
        return set(map(int, Path(self.root, "mon_groups", group, "tasks").read_text().split()))

    def members(self, key: str) -> list[str]:
        return [*json.loads((self._run_dir / "groups" / f"{key}.json").read_text())["members"]]

    def describe(self, group: str) -> str:
        """Return what shows that a group is the same as before."""
        return f"RMID {self._model.groups()[f'/mon_groups/{group}']['rmid']}"

    def tell_life(self, container: Container) -> str | None:
        """Return how the container's first process came into its group,
        or None if it came too late.
        """
        init, _, _ = self._running[container.name]
        moves = [
            process
            for event in self._model.events()
            if event.op == "tasks"
            for process in event.pids
        ]
        moved = [
            process
            for process in moves
            if (process.pid, process.starttime) == (init.pid, init.starttime)
        ]
        if len(moved) != 1 or moved[0].cmdline[-1:] != ["init"]:
            return None
        return (
            f"put in as {styled(str(moved[0].comm), 'green')}, runs {look(init.pid).cmdline[0]} now"
        )

    def list_left(self) -> list[str]:
        """Return the files of the run directory that must not be left."""
        return [
            str(path)
            for part in PARTS
            for path in (self._run_dir / part).glob("*")
            if not is_completed(path)
        ]


class SimulatedStage:
    """The simulator of the tests, whose kernel also has resctrl."""

    def __init__(self) -> None:
        from tests.simulator.kernel import RESCTRL, Kernel  # noqa: PLC0415  needs pyfakefs
        from tests.simulator.machine import RUN  # noqa: PLC0415
        from tests.simulator.node import PODS as UIDS  # noqa: PLC0415
        from tests.simulator.node import SimulatedNode  # noqa: PLC0415
        from tests.simulator.schedule import SimulatedRun  # noqa: PLC0415

        self.root = RESCTRL
        self.uids = UIDS
        self.run = SimulatedRun(Kernel())
        self._run_dir = RUN
        self._node = SimulatedNode(self.run, {})
        self._numbers: dict[str, int] = {}

    def start(self, name: str, uid: str) -> Container:
        # In the simulator a container's number says which pod it is in
        first = 4 * self.uids.index(uid) + 1 if uid else 9
        self._numbers[name] = first + sum(
            number in range(first, first + 4) for number in self._numbers.values()
        )
        self._node.take(f"c{self._numbers[name]}")
        life = self._node.find(self._numbers[name])
        return Container(name, life.key, life.id, life.pid)

    def end(self, container: Container, *, by_signal: bool) -> None:  # noqa: ARG002  it ends in no other way here
        self._node.take(f"p{self._numbers[container.name]}")

    def groups(self) -> set[str]:
        return {path.rpartition("/")[2] for path in self.run.kernel.mon_groups()}

    def tasks(self, group: str) -> set[int]:
        return self.run.kernel.tids(f"{self.root}/mon_groups/{group}")

    def members(self, key: str) -> list[str]:
        return [*json.loads(self.run.files()[f"{self._run_dir}/groups/{key}.json"])["members"]]

    def describe(self, group: str) -> str:
        return f"inode {self.run.kernel.identify(f'{self.root}/mon_groups/{group}')}"

    def tell_life(self, container: Container) -> str | None:  # noqa: ARG002  all are alike
        return "put in by its createRuntime"

    def list_left(self) -> list[str]:
        left = [str(self.run.problem)] if self.run.problem is not None else []
        for path, text in self.run.files().items():
            part = path[len(self._run_dir) + 1 :].split("/")[0]
            is_kept = part == "groups" and text and json.loads(text)["completed_at"]
            left += [path] if part in PARTS and not path.endswith("/") and not is_kept else []
        return left


class Story:
    def __init__(self, stage: RealStage | SimulatedStage) -> None:
        self.stage = stage
        self.keys: dict[str, str] = {}
        """What each key is, in the order of their first containers."""
        self.containers: dict[str, Container] = {}
        self.failed = False

    def play(self) -> bool:
        """All scenes; whether each showed what it should."""
        self.scene("Two pods of two containers each, and one container without a pod")
        for uid, pod in zip(self.stage.uids, PODS):
            self.start(f"{pod}-app", uid, f"pod {pod}")
            self.start(f"{pod}-helper", uid, f"pod {pod}")
        self.start(ALONE, "", "container")
        self.show(expected=3)
        self.scene(
            "shop-app ends: its group stays, with the same RMID, for the pod's other container"
        )
        self.end("shop-app")
        self.show(expected=3)
        self.scene("batch-app and batch-helper are killed: the last one takes the group along")
        self.end("batch-app", "batch-helper", by_signal=True)
        self.show(expected=2)
        self.scene("The rest ends")
        self.end("shop-helper", ALONE)
        self.show(expected=0)
        left = self.stage.list_left()
        self.check(not left, f"files that are left: {left}")
        if not left:
            print(
                "  the run directory has no group, member, lock or failure on record, but what "
                "the pods used"
            )
        return not self.failed

    def scene(self, title: str) -> None:
        print(f"\n{styled('> ' + title, 'bold')}")

    def start(self, name: str, uid: str, what: str) -> None:
        self.containers[name] = self.stage.start(name, uid)
        self.keys[self.containers[name].key] = what

    def end(self, *names: str, by_signal: bool = False) -> None:
        for name in names:
            self.stage.end(self.containers.pop(name), by_signal=by_signal)

    def show(self, expected: int) -> None:
        """Every group with its tasks, and whose they are;
        complains about what is not as it should be.
        """
        there = self.stage.groups()
        for key in self.keys:
            if PREFIX + key in there:
                self.show_group(key)
        if not there:
            print(f"  {self.stage.root}/mon_groups has no group of ours")
        self.check(len(there) == expected, f"{len(there)} groups, not {expected}")
        for container in self.containers.values():
            inside = PREFIX + container.key in there and container.pid in self.stage.tasks(
                PREFIX + container.key
            )
            self.check(
                inside, f"{container.name} (pid {container.pid}) is not in the group of its key"
            )

    def show_group(self, key: str) -> None:
        group = PREFIX + key
        what = f"{self.keys[key]}, {self.stage.describe(group)}"
        print(f"  mon_groups/{styled(group, 'cyan')}  {styled(what, 'dim')}")
        members = {container.id: container for container in self.containers.values()}
        for container_id in sorted(self.stage.members(key)):
            container = members.get(container_id)
            self.check(container is not None, f"{container_id[:12]} is a member and should not be")
            if container is not None:
                life = self.stage.tell_life(container)
                self.check(
                    life is not None, f"pid {container.pid} was not put in as the runtime's init"
                )
                print(
                    f"    {container.name:<13} {container_id[:12]:<13} pid {container.pid}, {life}"
                )
        strangers = self.stage.tasks(group) - {container.pid for container in members.values()}
        self.check(
            not strangers, f"tasks in it that are no container's first process: {sorted(strangers)}"
        )

    def check(self, good: bool, complaint: str) -> None:
        if not good:
            self.failed = True
            print(f"  {styled('not as it should be: ' + complaint, 'red')}")


def play() -> bool:
    with tempfile.TemporaryDirectory(prefix="rmh-demo-") as name, mounted(Path(name)) as model:
        run_dir = Path(name) / "run"
        with closing(Lab([f"--resctrl-root={model.root}", f"--run-dir={run_dir}"])) as lab:
            print(f"{shipped().name} under Podman and runc, on a FUSE model of resctrl")
            return Story(RealStage(lab, run_dir, model)).play()


def simulate() -> bool:
    from tests.simulator.__main__ import load_compiled_models  # noqa: PLC0415  as above

    load_compiled_models()
    from hook import system  # noqa: PLC0415  not before its models

    stage = SimulatedStage()
    with stage.run.installed(system):
        return Story(stage).play()


def main(arguments: Sequence[str]) -> int:
    argparse.ArgumentParser(prog="python3 build.py demo", description=__doc__).parse_args(arguments)
    reason = missing()
    # Ends by way of the clean-up, as Ctrl-C does
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if reason is None:
            good, end = play(), SHOWN
        else:
            print(
                f"No container can be run here ({reason}), so this is the hook in the simulator "
                "of its tests"
            )
            good, end = simulate(), NOT_SHOWN
    except KeyboardInterrupt:
        return 130
    except (RuntimeError, TimeoutError, subprocess.TimeoutExpired) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    if not good:
        print(styled("\nThe hook did not do what it should.", "red"))
        return 1
    print(styled(f"\n{end}", "bold"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
