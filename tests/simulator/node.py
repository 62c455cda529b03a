# SPDX-License-Identifier: Apache-2.0
"""A node with its containers, and the steps that happen on it: see `STEPS`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from hook.base.models import Options
from hook.base.resctrl import Resctrl
from hook.reconcile import run as reconcile
from hook.stages import entry
from hook.stages.entry import Context
from hook.state.store import RunDir
from hook.watch.pursuit import Pursuit
from tests.simulator.kernel import RESCTRL
from tests.simulator.machine import RUN
from tests.simulator.oracle import OURS, LastOracle, StepOracle, Violation
from tests.simulator.schedule import Life

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulator.schedule import SimulatedRun

PODS = ("87a3fb58-4084-4186-9c0e-93cf8c32e2ce", "0a1b2c3d-4084-4186-9c0e-93cf8c32e2ce")
_STEP = re.compile(r"([a-zA-Z])(\d*)(?:@(\w+))?(?:\^(\d+))?")


class ContainerLife:
    """One start of a container; `pids`: its init first. `is_member`: its createRuntime has succeeded.

    `is_out`, `is_lost`, `is_unindexed`: another tool has taken it out of its group, its record, or the index;
    `was_interrupted`: its createRuntime was killed; `is_stopped`: its poststop has come to its end.
    """

    def __init__(self, number: int, pid: int, born: int, group: str) -> None:
        self.number = number
        self.id = str(number) * 64
        self.uid = PODS[(number - 1) // 4] if number <= 8 else None
        self.key = self.uid or self.id
        self.pid = pid
        self.pids = [pid]
        self.born = born
        self.ctrl_group = group
        self.is_alive = True
        self.is_stopped = False
        self.is_member = self.is_out = self.is_lost = self.is_unindexed = self.was_interrupted = False

    @property
    def cgroup(self) -> str:
        return f"{self.slice}/crio-{self.id}.scope"

    @property
    def slice(self) -> str:
        return f"/kubepods/pod{self.uid}" if self.uid else "/system.slice"

    def is_it(self, member: Any) -> bool:  # noqa: ANN401  JSON
        return bool((member["pid"], member["starttime"]) == (self.pid, self.born))

    def is_among(self, members: Any) -> bool:  # noqa: ANN401  JSON
        return any(map(self.is_it, members.values()))

    def __str__(self) -> str:
        return f"container {self.id[:1]} (pid {self.pid})"


class SimulatedNode:
    """`taken`: groups that other tools removed; `strangers`: tasks of no container; `ghosts`: they outlive an init.

    `is_damaged`: another program has damaged records.
    """

    def __init__(self, run: SimulatedRun, options: dict[str, Any]) -> None:
        self.run = run
        self.options = options
        self.lives: list[ContainerLife] = []
        self.taken: set[str] = set()
        self.strangers: set[int] = set()
        self.ghosts: set[int] = set()
        self.is_damaged = False
        self._next_pid = 100
        run.after_change = StepOracle(self).look

    # --- What the oracles ask

    def group_of(self, it: ContainerLife) -> str:
        return f"{it.ctrl_group}/mon_groups/{OURS}{it.key}"

    def is_in_group(self, it: ContainerLife) -> bool:
        return self.run.kernel.tasks[it.pid].groups[it.pid] == self.group_of(it)

    # --- Steps

    def take(self, steps: str) -> None:
        """Take these steps, one after the other."""
        for step in steps.split():
            found = _STEP.fullmatch(step)
            if found is None:
                raise ValueError(f"no step: {step}")
            letter, number, group, like = found.groups()
            if letter in "crtgX" or self._lives_of(int(number)):  # other tools find nothing of one that is not there
                STEPS[letter](self, int(number or 1), group, int(like) if like else None)

    def finish(self) -> None:
        """All is quiet for a while, and reconcile runs once; then there must be nothing left. Raises Violation."""
        self.run.kernel.now += 5.0
        life = self.run.live(self._make_reconcile())
        if life.error:
            raise Violation(f"{life.what}: {life.error}")
        LastOracle(self).judge()

    def create(self, number: int, group: str | None, like: int | None) -> None:
        """createRuntime of a container that begins now; `like`: with the pid of another one, which has ended."""
        kernel = self.run.kernel
        self._next_pid += 1
        pid = self.find(like).pid if like is not None else self._next_pid
        it = ContainerLife(number, pid, 100 + self._next_pid, f"{RESCTRL}/{group}" if group else RESCTRL)
        if it.ctrl_group not in kernel.groups:
            kernel.add_class(str(group))
        kernel.spawn(pid, f"0::{it.cgroup}", born=it.born, group=it.ctrl_group)
        self.lives.append(it)
        self.create_again(number)

    def create_again(self, number: int, *_: object) -> None:
        """createRuntime of the same life once more."""
        it = self.find(number)
        life = self._hook(f"createRuntime of {number}", it, "created")
        it.was_interrupted = life.is_killed or not it.is_alive or b"stdin did not end" in life.caller.stderr
        it.is_member = life.result == 0 and not life.is_killed
        if not (it.is_member or it.was_interrupted or life.had_fault or self._may_fail()):
            raise Violation(f"{life.what} failed: {life.caller.stderr.decode()}")
        if it.is_member and it.is_alive:
            self.run.after_change("put", RESCTRL)

    def stop(self, number: int, *_: object) -> None:
        """It ends, and poststop is called."""
        self.end(number)
        self.late_stop(number)

    def late_stop(self, number: int, *_: object) -> None:
        """poststop is called, whatever runs under that ID by now."""
        it = self.find(number)
        life = self._hook(f"poststop of {number}", it, "stopped")
        it.is_stopped = not (it.is_alive or life.is_killed or life.had_fault)
        is_used = not all(other.is_stopped for other in self.lives if other.key == it.key)
        if not (is_used or self.ghosts or self.is_damaged or "linger" in self.options):
            path = self.group_of(it)
            if path in self.run.kernel.groups and not (self._may_fail() or self.run.has_errno or it.is_out):
                raise Violation(f"after {life.what}, the last one of its key, {path} is left")

    def end(self, number: int, *_: object) -> None:
        """Its processes end."""
        it = self.find(number)
        it.is_alive = False
        for pid in it.pids:
            self.run.kernel.die(pid)

    def reconcile(self, *_: object) -> None:
        self._live(self._make_reconcile())

    def exec(self, number: int, *_: object) -> int:
        """A process enters its cgroup from outside; returns its pid."""
        it = self.find(number)
        self._next_pid += 1
        if it.is_alive:
            self.run.kernel.spawn(self._next_pid, f"0::{it.cgroup}", born=100 + self._next_pid, group=it.ctrl_group)
            it.pids.append(self._next_pid)
        return self._next_pid

    def watch(self, number: int, *_: object) -> None:
        """The same, and watch brings it in."""
        pid = self.exec(number)

        def body() -> None:
            context = Context(Resctrl(RESCTRL), RunDir(RUN), Options(**self.options))
            Pursuit(context, lambda _: None).bring_in(pid)

        self._live(Life("watch", body))

    def leave_ghost(self, number: int, *_: object) -> None:
        """It forks a child that outlives it."""
        it = self.find(number)
        self._next_pid += 1
        if it.is_alive:
            self.run.kernel.fork(it.pid, self._next_pid, born=100 + self._next_pid).parent = 1
            self.ghosts.add(self._next_pid)

    def take_group(self, number: int, *_: object) -> None:
        """Another tool removes its group."""
        self._remove(self.group_of(self.find(number)))

    def take_empty(self, *_: object) -> None:
        """Another tool removes all groups in which no task is."""
        for path in self.run.kernel.mon_groups():
            if not self.run.kernel.tids(path):
                self._remove(path)

    def remount(self, *_: object) -> None:
        """resctrl is unmounted and mounted again; ctrl_groups come back, and inodes are the same as before."""
        kernel = self.run.kernel
        classes = [path.rpartition("/")[2] for path in kernel.groups if path.count("/") == 4]
        self.taken.update(kernel.mon_groups())
        for it in self.lives:
            it.is_out, it.ctrl_group = True, RESCTRL
        kernel.mount()
        for name in classes:
            kernel.add_class(name)

    def move(self, number: int, group: str | None, *_: object) -> None:
        """Another tool moves its processes to another ctrl_group."""
        it = self.find(number)
        path = f"{RESCTRL}/{group}" if group else RESCTRL
        if path not in self.run.kernel.groups:
            self.run.kernel.add_class(str(group))
        if it.is_alive:
            it.is_out, it.ctrl_group = True, path
            for pid in it.pids:
                self.run.kernel.tasks[pid].groups[pid] = path

    def tear(self, number: int, *_: object) -> None:
        """The record of its key becomes unreadable."""
        self._lose(number)
        self.run.fs.create_file(self._record(number), contents=b'{"version": 1, "key": "')

    def lose(self, number: int, *_: object) -> None:
        """The record of its key is lost."""
        self._lose(number)

    def lose_index(self, number: int, *_: object) -> None:
        """Its entry in the index is lost."""
        self.find(number).is_unindexed = self.is_damaged = True
        path = f"{RUN}/members/{self.find(number).id}.json"
        if self.run.fs.exists(path):
            self.run.fs.remove_object(path)

    def pass_time(self, seconds: int, *_: object) -> None:
        self.run.kernel.now += seconds

    def let_in(self, number: int, *_: object) -> None:
        """A task of none comes into its group, as with an RMID that is used again."""
        path = self.group_of(self.find(number))
        self._next_pid += 1
        if path in self.run.kernel.groups:
            self.run.kernel.spawn(self._next_pid, "0::/user.slice", born=100 + self._next_pid, group=path)
            self.strangers.add(self._next_pid)
            self.ghosts.add(self._next_pid)

    def delete_pod(self, number: int, *_: object) -> None:
        """The cgroup of its pod goes."""
        top = self.find(number).slice
        cgroups = self.run.kernel.cgroups
        cgroups -= {it for it in cgroups if it == top or it.startswith(top + "/")}

    def clear_view(self, number: int, *_: object) -> None:
        """Another program clears away what is shown of its key."""
        path = f"{RUN}/mon_groups/{self.find(number).key}"
        if self.run.fs.exists(path):
            self.run.fs.remove_object(path)

    # --- How

    def find(self, number: int) -> ContainerLife:
        """The last life of a container."""
        return self._lives_of(number)[-1]

    def _may_fail(self) -> bool:
        """Whether a hook may fail without a fault in it: RMIDs are few, or time was short."""
        return self.run.may_fail or self.run.kernel.rmids < 100

    def _lives_of(self, number: int) -> list[ContainerLife]:
        return [it for it in self.lives if it.number == number]

    def _record(self, number: int) -> str:
        return f"{RUN}/groups/{self.find(number).key}.json"

    def _lose(self, number: int) -> None:
        key = self.find(number).key
        self.is_damaged = True
        for it in self.lives:
            it.is_lost = it.is_lost or it.key == key
        if self.run.fs.exists(self._record(number)):
            self.run.fs.remove_object(self._record(number))

    def _remove(self, path: str) -> None:
        kernel = self.run.kernel
        if path in kernel.groups:
            self.taken.add(path)
            for it in self.lives:
                it.is_out = it.is_out or self.group_of(it) == path
            kernel.rmdir(path)

    def _make_reconcile(self) -> Life:
        return Life("reconcile", lambda: reconcile.repair(Options(**self.options)))

    def _hook(self, what: str, it: ContainerLife, status: str) -> Life:
        annotations = {"io.container.manager": "cri-o"}
        if it.uid:
            annotations["io.kubernetes.pod.uid"] = it.uid
        state: dict[str, Any] = {"ociVersion": "1.0", "id": it.id, "status": status, "bundle": f"/b/{it.id}"}
        state.update(annotations=annotations, pid=it.pid if status == "created" else 0)
        config = f"{state['bundle']}/config.json"
        if not self.run.fs.exists(config):
            content = {"annotations": annotations, "linux": {"cgroupsPath": it.cgroup}}
            self.run.fs.create_file(config, contents=json.dumps(content))
        words = [f"--{name.replace('_', '-')}={value}" for name, value in self.options.items()]
        stage = "createRuntime" if status == "created" else "hook"  # either does, with such a status
        return self._live(Life(what, lambda: entry.dispatch([stage, "--strict", *words]), json.dumps(state).encode()))

    def _live(self, life: Life) -> Life:
        """Let a process of ours live. Raises Violation if it fails otherwise than the rules allow."""
        self.run.at_call("start", "")
        self.run.live(life)
        said = life.caller.stderr.decode()
        if "unforeseen" in said or (life.error and not life.had_fault):
            raise Violation(f"{life.what} failed: {life.error or said}")
        return life


STEPS: dict[str, Callable[..., object]] = {
    "c": SimulatedNode.create,
    "a": SimulatedNode.create_again,
    "p": SimulatedNode.stop,
    "l": SimulatedNode.late_stop,
    "d": SimulatedNode.end,
    "r": SimulatedNode.reconcile,
    "e": SimulatedNode.exec,
    "w": SimulatedNode.watch,
    "f": SimulatedNode.leave_ghost,
    "x": SimulatedNode.take_group,
    "g": SimulatedNode.take_empty,
    "X": SimulatedNode.remount,
    "m": SimulatedNode.move,
    "u": SimulatedNode.tear,
    "k": SimulatedNode.lose,
    "i": SimulatedNode.lose_index,
    "t": SimulatedNode.pass_time,
    "s": SimulatedNode.let_in,
    "D": SimulatedNode.delete_pod,
    "v": SimulatedNode.clear_view,
}
"""A letter, the number of a container (1 to 4 and 5 to 8 are of two pods, 9 of none), `@` a ctrl_group, `^` the former
owner of its pid: `c2@gold` is createRuntime of container 2 in the ctrl_group gold."""
