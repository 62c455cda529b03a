# SPDX-License-Identifier: Apache-2.0
"""A node with its containers, and the steps that happen on it: see `STEPS`."""

from __future__ import annotations

import errno
import json
import posixpath
import re
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hook import __main__ as program
from hook import jobs
from hook.context import new_context
from hook.errors import HookError, Reason
from hook.models import Options
from hook.reconcile import run as reconcile
from hook.resctrl import Resctrl
from hook.store import RunDir
from hook.watch import Watch
from tests.simulator.kernel import RESCTRL
from tests.simulator.machine import RUN
from tests.simulator.oracle import ENERGY, HISTORY, OURS, LastOracle, StepOracle, Violation, expect
from tests.simulator.schedule import SimulatedProcess, SimulatedRun

if TYPE_CHECKING:
    from hook.context import Context

PODS = ("87a3fb58-4084-4186-9c0e-93cf8c32e2ce", "0a1b2c3d-4084-4186-9c0e-93cf8c32e2ce")
JOB = "batch"
STEP = re.compile(r"([a-zA-Z])(\d*)(?:@(\w+))?(?:\^(\d+))?")
_WITHOUT_CONTAINER = "cBCFjnqrRtgXhHYUz"


class ContainerLife:
    """One start of a container; `pids`: its init first.

    `is_member`: its createRuntime has succeeded.

    `is_forked`: it came into the group of a job as a member's child. `is_out`, `is_lost`,
    `is_unindexed`: another tool has taken it out of its group, its record, or the index; `taker`:
    the group of another tool that its processes, but those that entered later, are in;
    `was_interrupted`: its createRuntime was killed; `is_stopped`: its poststop has come to its end.
    """

    def __init__(self, number: int, ctrl_group: str) -> None:
        self.number = number
        self.id = str(number) * 64
        self.uid = PODS[(number - 1) // 4] if number <= 8 else None
        self.key = self.uid or self.id
        self.slice = f"/kubepods/pod{self.uid}" if self.uid else "/system.slice"
        self.cgroup = f"{self.slice}/crio-{self.id}.scope"
        self.pid = self.born = 0
        self.pids: list[int] = []
        self.ctrl_group = ctrl_group
        self.is_alive = True
        self.is_stopped = False
        self.is_member = self.is_out = self.is_lost = self.is_unindexed = self.was_interrupted = (
            False
        )
        self.is_forked = False
        self.taker: str | None = None
        self.taken: list[int] = []

    @property
    def group(self) -> str:
        """The mon_group that it belongs in."""
        return f"{self.ctrl_group}/mon_groups/{OURS}{self.key}"

    def is_it(self, member: Any) -> bool:  # noqa: ANN401  JSON
        return bool((member["pid"], member["starttime"]) == (self.pid, self.born))

    def is_among(self, members: Any) -> bool:  # noqa: ANN401  JSON
        return any(map(self.is_it, members.values()))

    def __str__(self) -> str:
        return f"container {self.number} (pid {self.pid})"


class JobProcess(ContainerLife):
    """A process of the job `batch`, in a cgroup that it shares; its ID says which process it is."""

    def __init__(self, number: int, ctrl_group: str) -> None:
        super().__init__(number, ctrl_group)
        self.uid, self.key, self.cgroup = None, JOB, "/user.slice"


def name_job(key: str) -> dict[str, str]:
    """Return the labels with which all calls for a job are made."""
    return {"job": key}


class QuietRepairs(reconcile.Repairs):
    """Without the sums and the rotation of the history,
    which open files of the real system: they have tests.
    """

    def keep_sums(self, *_: object) -> None:
        pass

    def rotate(self, *_: object) -> None:
        pass


class SimulatedNode:
    """A node with its containers.

    `strangers`: tasks of no container; `ghosts`: they outlive an init; `released`: of a job that
    was. `is_damaged`: another program has damaged records; `is_off`: an administrator has taken the
    hook off. `spent`: the joules that each key's groups have counted. `filled`: the keys with
    members; `emptied_by`: by key, what has taken out the last one.
    """

    def __init__(self, run: SimulatedRun, options: dict[str, Any]) -> None:
        self.run = run
        self.kernel = run.kernel
        self.options = options
        self.lives: list[ContainerLife] = []
        self.strangers: set[int] = set()
        self.ghosts: set[int] = set()
        self.released: set[int] = set()
        self.is_damaged = self.is_off = False
        self.spent: Counter[str] = Counter()
        self.filled: set[str] = set()
        self.emptied_by: dict[str, str] = {}
        self._last_pid = 100
        self._lines: bytes | str | None = None  # of the history, while its directory is gone
        run.after_change = StepOracle(self).look

    def take(self, steps: str) -> None:
        """Take these steps, one after the other."""
        for step in steps.split():
            match = STEP.fullmatch(step)
            if match is None:
                raise ValueError(f"no step: {step}")
            letter, number, group, like = match.groups()
            if letter in _WITHOUT_CONTAINER or self._lives_of(int(number)):
                STEPS[letter](self, int(number or 1), group, int(like) if like else None)

    def finish(self) -> None:
        """All is quiet for a while, and reconcile runs; then there must be nothing left.

        Raises Violation.

        Nor is there anything left to do: reconcile runs twice.
        """
        self.kernel.now += 5.0
        self.run.refusals.clear()
        if "history" in self.options:
            self.mend_history()
        first, second = [self.run.live(self._make_reconcile(self.options)) for _ in range(2)]
        for life in (first, second):
            expect(not life.error, life.what, life.error)
        for container in self.lives:
            path = (
                self.kernel.group_of(container.pid)
                if isinstance(container, JobProcess) and container.is_alive
                else ""
            )
            if (
                not container.is_member and OURS in path
            ):  # reconcile has let it join the job that it could not join before
                container.key = path.rpartition("/" + OURS)[2]
        try:
            LastOracle(self).judge()
        except Violation as problem:
            raise Violation(f"in the end {problem}") from None
        assert isinstance(second.result, reconcile.Repairs)
        done = [
            str(outcome.action) for outcome in second.result.outcomes if outcome.problem is None
        ]
        again = [line for line in second.result.left if "cannot end" in line]
        expect(
            not done + again,
            "a second reconcile still finds something to do or to say:",
            *done,
            *again,
        )

    def find(self, number: int) -> ContainerLife:
        """The last life of a container."""
        return self._lives_of(number)[-1]

    def is_over(self, key: str) -> bool:
        """Whether the last member left a key by its own poststop, or as its job was released."""
        return key not in self.filled and self.emptied_by.get(key, "").startswith(
            ("poststop", "release")
        )

    def is_in_group(self, container: ContainerLife) -> bool:
        return self.kernel.group_of(container.pid) == container.group

    def spend(self, path: str) -> None:
        """A group counts a joule."""
        domain, _, event = ENERGY.partition("/")
        self.kernel.resctrl.add(path[len(RESCTRL) :], domain, event, 1)
        self.spent[path.rpartition("/" + OURS)[2]] += 1

    # --- Steps of the hook and its tools

    def create(self, number: int, group: str | None, like: int | None) -> None:
        """createRuntime of a container that begins now; `like`:
        with the pid of another one, which has ended.
        """
        self.begin(number, group, self.find(like).pid if like is not None else None)
        self.create_again(number)

    def create_moved(self, number: int, group: str | None, *_: object) -> None:
        """createRuntime of a container that another tool moves to this ctrl_group
        just before the next put.
        """
        self.begin(number)
        self.run.before_put = lambda: self.move(number, group)
        self.create_again(number)

    def refuse_put(self, *_: object) -> None:
        """The kernel refuses the next put."""
        self.run.refusals["put"] = [errno.EACCES]
        self.run.may_fail = True

    def create_again(self, number: int, *_: object) -> None:
        """createRuntime of the same life once more."""
        container = self.find(number)
        life = self._call(f"createRuntime of {number}", container, "created")
        container.was_interrupted = life.is_killed or not container.is_alive
        container.is_member = life.result == 0 and not life.is_killed
        is_fine = (
            container.is_member or container.was_interrupted or life.had_fault or self._may_fail()
        )
        expect(is_fine, life.what, "failed:", life.caller.stderr.decode())
        if container.is_member and container.is_alive:
            self.run.after_change("put", RESCTRL)

    def stop(self, number: int, *_: object) -> None:
        """It ends, and poststop is called."""
        self.end(number)
        self.late_stop(number)

    def late_stop(self, number: int, *_: object) -> None:
        """poststop is called, whatever runs under that ID then."""
        container = self.find(number)
        life = self._call(f"poststop of {number}", container, "stopped")
        container.is_stopped = not (container.is_alive or life.is_killed or life.had_fault)
        may_stay = self.ghosts or self.is_damaged or "linger" in self.options or container.is_out
        is_over = all(other.is_stopped for other in self.lives if other.key == container.key)
        is_there = container.group in self.kernel.groups
        is_left = is_there and is_over and not (may_stay or self._may_fail() or self.run.has_errno)
        expect(
            not is_left, "after", life.what, "the last one of its key,", container.group, "is left"
        )

    def assign(self, number: int, group: str | None, *_: object) -> None:
        """A process begins, and `assign` puts it into the job."""
        self.begin_process(number, group)
        self.assign_again(number, JOB)

    def begin_process(self, number: int, group: str | None = None, like: int | None = None) -> None:
        """A process begins that no command has put into a job; `like`:
        it is the init of this container.
        """
        if like is None:
            process = self.begin(number, group, kind=JobProcess)
        else:
            init = self.find(like)
            process = JobProcess(number, init.ctrl_group)
            process.pid, process.born, process.is_alive = init.pid, init.born, init.is_alive
            process.pids.append(process.pid)
            self.lives.append(process)
        process.id = f"job-{process.pid}-{process.born}"
        process.was_interrupted = True

    def fork_process(self, number: int, _: object, parent: int) -> None:
        """A process of the job forks: the child is in its group, and no member."""
        former = self.find(parent)
        if former.is_alive:
            self.begin_process(number)
            child = self.find(number)
            child.ctrl_group, child.is_forked = former.ctrl_group, former.is_member
            task = self.kernel.tasks[child.pid]
            task.parent = former.pid
            self.kernel.move(child.pid, self.kernel.group_of(former.pid))

    def assign_again(
        self, number: int, key: str | None, other: int | None = None, *, verb: str = "assign"
    ) -> bool:
        """`assign` puts a process into this job, or fails, so that reconcile does;
        returns whether it was killed.

        `other`: a process that the same call is to put there, after this one.
        """
        process, key = self.find(number), key or JOB
        pids = [process.pid, *([self.find(other).pid] if other is not None else [])]
        life = self._live_of_job(
            verb,
            key,
            pids,
            lambda context, found: jobs.assign(
                context, key, dict.fromkeys(pids, ""), name_job(key), found
            ),
        )
        has_joined = life.result == key and not life.is_killed
        is_refused = isinstance(life.result, HookError) and life.result.reason == Reason.USAGE
        expect(
            not (has_joined and process.is_member and process.key != key),
            process,
            "has joined",
            key,
            "and is a member of",
            process.key,
        )
        if has_joined:
            process.key = key
        process.is_member = (process.is_member or has_joined) and process.pid not in self.released
        is_over = life.is_killed or is_refused or process.pid in self.released
        process.was_interrupted = not process.is_member and (
            is_over or life.had_fault
        )  # which may have cost its record
        is_fine = (
            has_joined
            or is_refused
            or life.is_killed
            or life.had_fault
            or self._may_fail()
            or self.is_damaged
        )
        are_there = process.is_alive and (other is None or self.find(other).is_alive)
        expect(is_fine or not are_there, life.what, "failed:", life.result)
        if process.is_member and process.is_alive:
            self.run.after_change("put", RESCTRL)
        if other is not None:
            second = self.find(other)
            second.key, second.is_member = process.key, has_joined and process.is_member
        return life.is_killed

    def run_job(self, number: int, *_: object) -> None:
        """A process begins as `run`, and ends where that is killed; where that fails,
        it executes its command.
        """
        self.begin_process(number)
        if self.assign_again(number, JOB, verb="run"):
            self.end(number)

    def release(self, *_: object) -> None:
        """The job is released; its processes go on."""
        for process in self.lives:
            if process.key == JOB:
                self.let_go(process)
        self.released.update(self.ghosts)
        self._live_of_job("release", JOB, [], lambda context, _: jobs.release(context, JOB))

    def let_go(self, process: ContainerLife) -> None:
        """A process is of its job no more."""
        process.is_member, process.is_forked, process.was_interrupted = False, False, True
        self.released.update(process.pids)

    def _live_of_job(
        self, verb: str, key: str, pids: list[int], act: Callable[..., object]
    ) -> SimulatedProcess:
        """Let a command for jobs live; an error that it would print is its result."""

        def body() -> object:
            try:
                found = jobs.find_processes(pids, self.options.get("history", ""), name_job(key))
                with jobs.open_node(verb, Options(**self.options), key, found) as context:
                    return act(context, found)
            except (HookError, OSError) as error:
                return error

        return self._live(SimulatedProcess(f"{verb} of {key}", body))

    def _open(self) -> Context:
        return new_context(Resctrl(RESCTRL), RunDir(RUN), Options(**self.options))

    def reconcile(self, *_: object) -> None:
        self._live(self._make_reconcile(self.options))

    def _make_reconcile(self, given: dict[str, Any]) -> SimulatedProcess:
        return SimulatedProcess(
            "reconcile", lambda: reconcile.repair(Options(**given), repairs=QuietRepairs())
        )

    def uninstall(self, *_: object) -> None:
        """An administrator takes the hook off: all keys end, also those with live members."""
        self.is_off = self.run.may_fail = True
        self._live(
            SimulatedProcess(
                "uninstall", lambda: reconcile.end_all_keys(Options(**self._without_history()))
            )
        )

    def _without_history(self) -> dict[str, Any]:
        return {name: value for name, value in self.options.items() if name != "history"}

    def reconcile_by_cron(self, *_: object) -> None:
        """Without --history: each record names its file."""
        self._live(self._make_reconcile(self._without_history()))

    def watch(self, number: int, *_: object) -> None:
        """A process enters its cgroup from outside, and watch brings it in."""
        self._let_watch_act_on(self.exec(number))

    def watch_init(self, number: int, *_: object) -> None:
        """Its init execs, as it does after all hooks, and watch acts on that."""
        self._let_watch_act_on(self.find(number).pid)

    def _let_watch_act_on(self, pid: int) -> None:
        def body() -> None:
            Watch(self._open(), None).bring_in(pid)  # type: ignore[arg-type]

        self._live(SimulatedProcess("watch", body))

    # --- Steps of others

    def end(self, number: int, *_: object) -> None:
        """Its processes end."""
        container = self.find(number)
        for life in self.lives:
            life.is_alive = life.is_alive and (life.pid, life.born) != (
                container.pid,
                container.born,
            )
        for pid in container.pids:
            self.kernel.die(pid)

    def pass_number_on(self, number: int, *_: object) -> None:
        """Its process ends, and a process of nothing on record, in no group,
        begins with its pid.
        """
        container = self.find(number)
        if container.is_alive:
            self.end(number)
            self.spawn("/user.slice", RESCTRL, container.pid)

    def exec(self, number: int, *_: object) -> int:
        """A process enters its cgroup from outside; returns its pid."""
        container = self.find(number)
        if not container.is_alive:
            return self._make_pid()
        container.pids.append(self.spawn(container.cgroup, container.ctrl_group)[0])
        return container.pids[-1]

    def leave_ghost(self, number: int, *_: object) -> None:
        """It forks a child that outlives it."""
        container = self.find(number)
        if container.is_alive:
            self.ghosts.add(self.spawn(container.cgroup, self.kernel.group_of(container.pid))[0])

    def let_in(self, number: int, *_: object) -> None:
        """A task of none comes into its group, as with an RMID that is used again."""
        path = self.find(number).group
        if path in self.kernel.groups:
            pid = self.spawn("/user.slice", path)[0]
            self.strangers.add(pid)
            self.ghosts.add(pid)

    def take_group(self, number: int, *_: object) -> None:
        """Another tool removes its group."""
        path = self.find(number).group
        if path in self.kernel.groups:
            for container in self.lives:
                container.is_out = container.is_out or container.group == path
            self.kernel.rmdir(path)

    def take_empty(self, *_: object) -> None:
        """Another tool removes all groups in which no task is."""
        for path in self.kernel.mon_groups():
            if not self.kernel.tids(path):
                self.kernel.rmdir(path)

    def remount(self, *_: object) -> None:
        """resctrl is unmounted and mounted again; ctrl_groups come back,
        and inodes are the same as before.
        """
        classes = [path.rpartition("/")[2] for path in self.kernel.groups if path.count("/") == 4]
        for container in self.lives:
            container.is_out, container.ctrl_group = True, RESCTRL
        self.kernel.mount()
        for name in classes:
            self.kernel.add_class(name)

    def move(self, number: int, group: str | None, *_: object) -> None:
        """Another tool moves its processes to another ctrl_group."""
        container = self.find(number)
        path = self._find_class(group)
        if container.is_alive:
            container.is_out, container.ctrl_group = True, path
            for pid in container.pids:
                self.kernel.move(pid, path)

    def capture(self, number: int, group: str | None, *_: object) -> None:
        """Another tool moves its processes to its own mon_group, in this ctrl_group."""
        container = self.find(number)
        path = f"{self._find_class(group)}/mon_groups/theirs"
        if container.is_alive and container.is_member:
            if path not in self.kernel.groups:
                self.kernel.mkdir(path)
            container.is_out, container.taker, container.taken = True, path, [*container.pids]
            for pid in container.pids:
                # The kernel takes it from this ctrl_group only.
                for place in (path.partition("/mon_groups/")[0], path):
                    self.kernel.move(pid, place)

    def give_back(self, number: int, *_: object) -> None:
        """Another tool removes its own group, so that the tasks in it are in no mon_group."""
        path = self.find(number).taker or ""
        for container in [
            container for container in self.lives if path and container.taker == path
        ]:
            container.ctrl_group, container.taker = path.partition("/mon_groups/")[0], None
        if path in self.kernel.groups:
            self.kernel.rmdir(path)

    def tear(self, number: int, *_: object) -> None:
        """The record of its key becomes unreadable."""
        self.lose(number)
        self.run.add(f"{RUN}/groups/{self.find(number).key}.json", b'{"version": 1, "key": "')

    def lose(self, number: int, *_: object) -> None:
        """The record of its key is lost."""
        for container in self.lives:
            container.is_lost = container.is_lost or container.key == self.find(number).key
        self._clear("groups", f"{self.find(number).key}.json")

    def lose_index(self, number: int, *_: object) -> None:
        """Its entry in the index is lost."""
        self.find(number).is_unindexed = True
        self._clear("members", f"{self.find(number).id}.json")

    def delete_pod(self, number: int, *_: object) -> None:
        """The cgroup of its pod goes."""
        self.kernel.remove_cgroups(self.find(number).slice)

    def fill_disk(self, *_: object) -> None:
        """The disk with the history gets full: of the next line a part fits."""
        self.run.full[HISTORY] = 9

    def take_directory(self, *_: object) -> None:
        """The directory of the history is gone."""
        self._lines = self.run.files(posixpath.dirname(HISTORY)).get(HISTORY, self._lines)
        self.run.remove(posixpath.dirname(HISTORY))

    def mend_history(self, *_: object) -> None:
        """The disk has room again, and the directory is there, with its file."""
        self.run.full.clear()
        if not self.run.fs.exists(posixpath.dirname(HISTORY)):
            self.run.fs.create_dir(posixpath.dirname(HISTORY))
            if isinstance(self._lines, bytes):
                self.run.add(HISTORY, self._lines)

    def pass_time(self, seconds: int, *_: object) -> None:
        self.kernel.now += seconds

    # --- How

    def begin(
        self,
        number: int,
        group: str | None = None,
        pid: int | None = None,
        kind: type[ContainerLife] = ContainerLife,
    ) -> ContainerLife:
        """A container begins, or a process of this `kind`; no hook has been called yet."""
        container = kind(number, self._find_class(group))
        container.pid, container.born = self.spawn(container.cgroup, container.ctrl_group, pid)
        container.pids.append(container.pid)
        self.lives.append(container)
        return container

    def _may_fail(self) -> bool:
        """Whether a hook may fail without a fault in it: RMIDs are few, or time was short."""
        return self.run.may_fail or self.kernel.rmids < 100

    def _lives_of(self, number: int) -> list[ContainerLife]:
        return [container for container in self.lives if container.number == number]

    def _make_pid(self) -> int:
        self._last_pid += 1
        return self._last_pid

    def _find_class(self, name: str | None) -> str:
        """The path of a ctrl_group, which is made if there is none."""
        path = f"{RESCTRL}/{name}" if name else RESCTRL
        return path if path in self.kernel.groups else self.kernel.add_class(str(name))

    def _clear(self, part: str, name: str) -> None:
        self.is_damaged = self.is_damaged or part != "mon_groups"
        self.run.remove(f"{RUN}/{part}/{name}")

    def spawn(self, cgroup: str, group: str, pid: int | None = None) -> tuple[int, int]:
        """A process begins; returns its pid and its start time."""
        number = self._make_pid()
        task = self.kernel.spawn(pid or number, f"0::{cgroup}", born=100 + number, group=group)
        return task.pid, task.born

    def write_bundle(self, container: ContainerLife, status: str = "") -> dict[str, Any]:
        """Write its config.json; returns the state that a runtime gives to its hooks."""
        annotations = {
            "io.container.manager": "cri-o",
            **({"io.kubernetes.pod.uid": container.uid} if container.uid else {}),
        }
        linux: dict[str, Any] = {"cgroupsPath": container.cgroup}
        if container.ctrl_group != RESCTRL:
            linux["intelRdt"] = {"closID": container.ctrl_group.rpartition("/")[2]}
        config = json.dumps({"annotations": annotations, "linux": linux})
        bundle = posixpath.dirname(self.run.add(f"/b/{container.id}/config.json", config.encode()))
        pid = 0 if status == "stopped" else container.pid
        state = {"ociVersion": "1.0", "id": container.id, "status": status, "pid": pid}
        return {**state, "bundle": bundle, "annotations": annotations}

    def _call(self, what: str, container: ContainerLife, status: str) -> SimulatedProcess:
        """Let a runtime call the hook."""
        state = self.write_bundle(container, status)
        options = [f"--{name.replace('_', '-')}={value}" for name, value in self.options.items()]
        # Either does, with such a status.
        stage = "createRuntime" if status == "created" else "hook"
        words = [stage, "--strict", *options]
        return self._live(
            SimulatedProcess(what, lambda: program.dispatch(words), json.dumps(state).encode())
        )

    def _live(self, life: SimulatedProcess) -> SimulatedProcess:
        """Let a process of the program live.

        Raises Violation if it fails otherwise than the rules allow.
        """
        self.run.at_call("start", life.what)
        self.run.live(life)
        stderr = life.caller.stderr.decode()
        is_fine = "unforeseen" not in stderr and (life.had_fault or not life.error)
        expect(is_fine, life.what, "failed:", life.error or stderr)
        return life


STEPS: dict[str, Callable[..., object]] = {
    "c": SimulatedNode.create, "a": SimulatedNode.create_again, "C": SimulatedNode.create_moved,
    "p": SimulatedNode.stop, "l": SimulatedNode.late_stop, "d": SimulatedNode.end,
    "r": SimulatedNode.reconcile, "R": SimulatedNode.reconcile_by_cron,
    "U": SimulatedNode.uninstall,
    "e": SimulatedNode.exec, "w": SimulatedNode.watch, "y": SimulatedNode.watch_init,
    "f": SimulatedNode.leave_ghost, "s": SimulatedNode.let_in,
    "x": SimulatedNode.take_group, "g": SimulatedNode.take_empty, "X": SimulatedNode.remount,
    "m": SimulatedNode.move, "o": SimulatedNode.capture, "b": SimulatedNode.give_back,
    "D": SimulatedNode.delete_pod, "t": SimulatedNode.pass_time, "z": SimulatedNode.refuse_put,
    "h": SimulatedNode.fill_disk, "H": SimulatedNode.take_directory,
    "Y": SimulatedNode.mend_history,
    "j": SimulatedNode.assign, "n": SimulatedNode.run_job, "q": SimulatedNode.release,
    "N": SimulatedNode.pass_number_on, "B": SimulatedNode.begin_process,
    "J": SimulatedNode.assign_again,
    "F": SimulatedNode.fork_process,
    "u": SimulatedNode.tear, "k": SimulatedNode.lose, "i": SimulatedNode.lose_index,
}  # fmt: skip
"""A letter, the number of a container (1 to 4 and 5 to 8 are of two pods, 9 of none), `@` a
ctrl_group, `^` the former owner of its pid: `c2@gold` is createRuntime of container 2 in the
ctrl_group gold. `j21`, `n21`, `J21` and `q` are of the job JOB, `J21@other` of the job other,
`J21^22` is of two processes; those of jobs have numbers of their own: 21 and up. `B21^9` is the
init of container 9 as a process of a job, `F22^21` a child of process 21.
"""
