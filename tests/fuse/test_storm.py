# SPDX-License-Identifier: Apache-2.0
"""A storm: hooks in any order, lost, doubled and killed, beside tools that remove what is ours; then one reconcile.

In about half of the storms `watch` runs beside all that.

After every step: each hook has ended with 0, no group that somebody lived in was removed, nothing of others was
touched. After every `check`, which runs reconcile once with nothing else going on: records, groups, tasks, index and
views are exactly what the living containers make them. What else is allowed is said where it is.
"""

from __future__ import annotations

import errno
import functools
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import StopTest
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.kernel.inside import REAL_ROOT
from tests.support import oracle, storm, watching
from tests.support.cgroups import mount_point
from tests.support.hook import Hook, finish
from tests.support.storm import SimulatedContainer, World, cgroup_of, is_ours, reaper

T = TypeVar("T")
Process = subprocess.Popen[bytes]
Job = tuple[str, SimulatedContainer]
"""A hook that is to run."""

STEPS, STORMS, EACH = (4_000, 22, 200) if REAL_ROOT is None else (500, 6, 86)
"""How many steps there have to be, and how many storms of how many steps each: Hypothesis ends some before that."""
MOMENT = 0.03 if REAL_ROOT is None else 0.4
"""About as many seconds as a hook takes."""
WEIGHTS = {
    "start": 16,
    "fork": 44,
    "join": 64,
    "leave": 64,
    "kill": 10,
    "kill_the_rest": 4,
    "create": 10,
    "create_again": 1,
    "create_killed": 3,
    "create_of_what_dies": 2,
    "poststop": 5,
    "poststop_not_due": 2,
    "poststop_killed": 1,
    "crowd": 2,
    "make_foreign": 4,
    "remove_foreign": 4,
    "hoard": 3,
    "give_back": 3,
    "make_ctrl_group": 5,
    "remove_ctrl_group": 4,
    "remove_ours": 3,
    "unmount": 2,
    "mount": 3,
    "settle": 2,
    "tear": 2,
    "remove_pod": 1,
    "linger_is_over": 6,
    "reconcile": 1,
    "reconcile_killed": 1,
    "reconcile_beside_hooks": 1,
    "two_reconciles": 1,
    "check": 1,
}
"""The steps, and how often each is tried: a hook takes 20 ms, reconcile 60, most of the others next to nothing."""
ALWAYS = {"start", "fork", "join", "leave", "kill", "create"}
DECK = [name for name, weight in WEIGHTS.items() for _ in range(weight)]
CREATE, POSTSTOP = "createRuntime", "poststop"
UIDS = [f"{number:08d}-4084-4186-9c0e-93cf8c32e2ce" for number in range(3)]
SLOTS = [*UIDS, *UIDS, None, None, None]
"""Places for containers, with the UIDs of their pods."""
CTRL_GROUPS = ("gold", "silver")
FEW, MANY = 5, 64
MOST_FOREIGN = 6
MOST_PROCESSES = 3
MOST_WITHOUT = 8 if REAL_ROOT is None else 0
"""How many kinds of steps a storm may lack."""


class NotNow(Exception):
    """There is nothing that a step could be done to."""


def need(condition: object) -> None:
    if not condition:
        raise NotNow


class Storm(RuleBasedStateMachine):
    def __init__(self, worlds: list[World], directory: Path, tally: Counter[str]) -> None:
        super().__init__()
        self.worlds = worlds
        self.directory = directory
        self.tally = tally
        self.history: list[str] = []
        self.dice = Random(0)
        self.deck: list[str] = []
        self.world = worlds[0]
        self.hook = Hook(self.world.root, directory / "run")
        self.lingers = False
        self.top = f"/storm-{os.getpid()}"
        self.numbers = itertools.count(1)
        self.containers: list[SimulatedContainer] = []
        self.slots: dict[int, SimulatedContainer] = {}
        self.foreign: dict[str, set[int]] = {}
        """The groups of others, and who is in them."""
        self.torn: set[str] = set()
        """Keys whose record was spoilt since the last reconcile."""
        self.stranger = storm.spawn("sleep", "infinity")
        self.beside = ExitStack()

    @initialize(
        world=st.integers(0, 1),
        linger=st.sampled_from([60, 0, 60]),
        ttl=st.sampled_from([300, 0]),
        limbo=st.sampled_from([(0, 0), (storm.NEVER, 0), (10, 1)]),
        without=st.sets(st.sampled_from(sorted(WEIGHTS.keys() - ALWAYS)), max_size=MOST_WITHOUT),
        watched=st.booleans(),
    )
    def begin(
        self, *, world: int, linger: int, ttl: int, limbo: tuple[int, int], without: set[str], watched: bool
    ) -> None:
        """`limbo`: for how many ms what was freed is in limbo, and the hook's --rmid-wait. `watched`: with watch."""
        decay, wait = limbo
        self.world = self.worlds[world % len(self.worlds)]
        self.world.reset(decay)
        self.world.born(self.stranger)
        self.lingers = linger > 0
        options = f"--snapshot-ttl={ttl}", f"--rmid-wait={wait}", f"--linger={linger}"
        self.hook = Hook(self.world.root, self.directory / "run").with_options(*options)
        self.deck = [name for name in DECK if name not in without]
        if watched and watching.missing() is None:
            self.beside.enter_context(watching.watching(self.hook))
        self.did("begin", f"scarce={self.world.scarce}", *options, f"{decay=}", f"{without=}", f"{watched=}")

    @rule(seed=st.integers(0, 2**32 - 1))
    def step(self, seed: int) -> None:
        """Something that can be done now: that depends on when hooks were killed, and what is drawn must not."""
        self.dice = Random(seed + len(self.history))
        names = self.dice.sample(self.deck, len(self.deck))
        for name in sorted(names, key=lambda name: self.tally[name] > 0):  # what was never done comes first
            try:
                getattr(self, name)()
            except NotNow:
                continue
            self.tally[name] += 1
            return

    def teardown(self) -> None:
        error = sys.exc_info()[0]
        try:
            if self.deck and (error is None or issubclass(error, StopTest)):
                self.check()
        finally:
            self.beside.close()
            for container in self.containers:
                container.kill()
            storm.kill(self.stranger)
            storm.remove_cgroups(mount_point() / self.top.lstrip("/"))
            storm.forget(self.directory / "run", self.directory / "bundles")

    # --- What is there

    @property
    def living(self) -> list[SimulatedContainer]:
        return [it for it in self.containers if it.init]

    @property
    def unknown(self) -> list[SimulatedContainer]:
        return [it for it in self.living if it.known is not True]

    @property
    def owed(self) -> list[SimulatedContainer]:
        return [it for it in self.containers if it.owed and not it.init]

    @property
    def haunted(self) -> list[SimulatedContainer]:
        return storm.haunted(self.containers)

    def one_of(self, there: Sequence[T]) -> T:
        need(there)
        return self.dice.choice(there)

    def chance(self) -> bool:
        return self.dice.random() < 0.5

    def did(self, what: str, *details: object) -> None:
        """For the story of a failure."""
        self.history.append(" ".join(map(str, [what, *details])))

    def expect(self, condition: object, *problem: object) -> None:
        if not condition:
            story = "\n".join(self.history)
            raise AssertionError(f"{' '.join(map(str, problem))}\n--- after these steps:\n{story}")

    # --- Processes

    def start(self) -> None:
        """A container begins a life, as a new one or once more; no hook has run yet."""
        slot = self.one_of([it for it in range(len(SLOTS)) if it not in self.slots or not self.slots[it].init])
        if slot not in self.slots or self.chance():
            name, uid = f"{next(self.numbers):064x}", SLOTS[slot]
            self.slots[slot] = SimulatedContainer(
                name, uid, cgroup_of(self.top, uid, name), self.directory / "bundles" / name
            )
            self.containers.append(self.slots[slot])
        container = self.slots[slot]
        container.start(threaded=self.dice.random() < 0.05)
        self.world.born(container.init)
        container.be_in(self.one_of(["", "", *self.ctrl_groups()]))
        self.into_ctrl_group(container, container.init)
        self.did("start", container, container.init, "in", container.group)

    def fork(self) -> None:
        container = self.one_of([it for it in self.living if len(it.pids()) < MOST_PROCESSES])
        child = container.fork()
        self.world.born(child, container.init)
        self.did("fork", container, child)

    def join(self) -> None:
        """What exec does: a process more, that is no child of the init."""
        container = self.one_of([it for it in self.living if len(it.pids()) < MOST_PROCESSES])
        pid = container.join()
        self.world.born(pid)
        self.into_ctrl_group(container, pid)
        self.did("join", container, pid)

    def leave(self) -> None:
        container = self.one_of([it for it in self.living if it.joined])
        pid = self.dice.choice(container.joined)
        container.joined.remove(pid)
        storm.kill(pid)
        self.did("leave", container, pid)

    def kill(self) -> None:
        container = self.one_of(self.living)
        self.did("kill", container, "and left", self.end(container))

    def kill_the_rest(self) -> None:
        container = self.one_of(self.haunted)
        container.kill()
        self.did("kill_the_rest", container)

    def end(self, container: SimulatedContainer) -> set[int]:
        """Kill its init, and perhaps all others; returns those that are left."""
        init_alone = self.chance() and len(container.pids()) > 1
        if init_alone:
            self.world.look()
        container.kill(init_alone=init_alone)
        return container.pids()

    def into_ctrl_group(self, container: SimulatedContainer, pid: int) -> None:
        if container.ctrl_group:
            for tid in os.listdir(f"/proc/{pid}/task"):
                (self.world.root / container.ctrl_group / "tasks").write_text(tid)

    # --- Hooks

    def create(self) -> None:
        """The first createRuntime of a life."""
        container = self.one_of(self.unknown)
        self.did("create", container)
        self.create_alone(container)

    def create_again(self) -> None:
        container = self.one_of(self.living)
        self.did("create_again", container)
        self.create_alone(container)

    def create_alone(self, container: SimulatedContainer) -> None:
        self.at_once([(CREATE, container)])
        reason = self.hook.reasons().get(container.id)
        if not self.world.mounted:
            self.expect(reason == "not_mounted", reason, container)
        elif reason is None:
            self.expect(container.id in self.hook.key(container.key)["members"], container, "is no member")
            self.expect(self.world.is_in(container.init, container.group), container, "is not in its group")
        else:
            self.expect(reason in oracle.NO_RMID and self.world.scarce, reason, container)

    def create_killed(self) -> None:
        container = self.one_of(self.unknown or self.living)
        self.did("create_killed", container)
        self.at_once([(CREATE, container)], after=self.dice.uniform(0, MOMENT))

    def create_of_what_dies(self) -> None:
        container = self.one_of(self.unknown or self.living)
        self.world.watch()
        process = self.hook.start(container.created())
        self.did("create_of_what_dies", container, "and left", self.end(container))
        self.ended(process)
        self.judge()

    def poststop(self) -> None:
        container = self.one_of(self.owed)
        container.owed = False
        self.did("poststop", container)
        self.at_once([(POSTSTOP, container)])

    def poststop_not_due(self) -> None:
        """Late, beside the next life of the same ID, or once more."""
        container = self.one_of(self.containers)
        self.did("poststop_not_due", container)
        self.at_once([(POSTSTOP, container)])

    def poststop_killed(self) -> None:
        container = self.one_of(self.owed)
        self.did("poststop_killed", container)
        self.at_once([(POSTSTOP, container)], after=self.dice.uniform(0, MOMENT))

    def crowd(self) -> None:
        """Hooks at the same time, perhaps a creation and a poststop of the same container among them."""
        jobs = self.jobs()
        need(len(jobs) > 1)
        self.did("crowd", [f"{verb} {container}" for verb, container in jobs])
        self.at_once(jobs)

    def jobs(self) -> list[Job]:
        chosen = [self.one_of(self.containers) for _ in range(self.dice.randint(1, 4)) if self.containers]
        return [(CREATE if it.init and self.dice.random() < 0.7 else POSTSTOP, it) for it in chosen]

    def at_once(self, jobs: Sequence[Job], after: float | None = None, beside: Sequence[Process] = ()) -> None:
        """Run hooks, all at the same time; `after` so many seconds kill them."""
        self.world.watch()
        started = [self.hook.start(it.created() if verb == CREATE else it.stopped()) for verb, it in jobs]
        for (verb, container), process in zip(jobs, started):
            if self.ended(process, after) and verb == CREATE:
                container.known, container.torn = True, False
            elif verb == CREATE and container.known is False:
                container.known = None  # it may have been killed before it recorded anything, or after that
        for process in beside:
            self.ended(process)
        self.judge({container.key for verb, container in jobs if verb == POSTSTOP})

    def ended(self, process: Process, after: float | None = None) -> bool:
        """Whether it came to its end, before it was killed."""
        if after is not None:
            try:
                process.wait(after)
            except subprocess.TimeoutExpired:
                process.kill()
        outcome = finish(process)
        if after is not None and outcome.status < 0:
            return False
        usual = (0, 1) if "reconcile" in str(process.args) else (0,)
        self.expect(outcome.status in usual and "unforeseen" not in outcome.stderr, outcome)
        return True

    def judge(self, ended: Collection[str] = ()) -> None:
        """What was done to groups just now, beside poststops of the keys `ended`.

        A poststop ends its key with the last member, whoever outlived that one's init. Else whoever lives in a group
        keeps it.
        """
        for deed in self.world.deeds():
            self.expect(is_ours(deed.path) or deed.op == "tasks", "it is not ours:", deed)
            self.expect(self.stranger not in deed.tasks, "it is not ours:", deed)
            if deed.op == "rmdir":
                spared = [it for it in self.containers if it.init or it.key not in ended]
                living = {str(it): it.pids() & deed.tasks for it in spared}
                self.expect(not any(living.values()), "somebody lived in it:", deed, living)

    # --- Other tools, and people

    def make_foreign(self) -> None:
        """A group of others, which may have a pod's UID for a name; a task of theirs moves into it."""
        need(self.world.mounted and len(self.foreign) < MOST_FOREIGN)
        parent = self.one_of(["", *self.ctrl_groups()])
        path = f"{parent}/mon_groups/{self.dice.choice([*UIDS, 'theirs'])}".lstrip("/")
        need(path not in self.foreign and self.made(path))
        self.foreign[path] = set()
        if not parent:
            (self.world.root / path / "tasks").write_text(str(self.stranger))
            self.foreign = {it: {self.stranger} if it == path else set() for it in self.foreign}
        self.did("make_foreign", path)

    def remove_foreign(self) -> None:
        path = self.one_of(list(self.foreign))
        self.removed(path)
        self.did("remove_foreign", path)

    def hoard(self) -> None:
        """Others take all RMIDs, or all but one."""
        need(self.world.mounted and self.world.scarce and len(self.foreign) < MOST_FOREIGN)
        names = (f"mon_groups/hoard-{number}" for number in self.numbers)
        hoarded = list(itertools.takewhile(self.made, names))
        need(hoarded)
        self.foreign.update({path: set() for path in hoarded})
        if self.chance():
            self.removed(hoarded[0])
        self.did("hoard", len(hoarded))

    def give_back(self) -> None:
        hoarded = [path for path in self.foreign if "hoard" in path]
        need(hoarded)
        for path in hoarded:
            self.removed(path)
        self.did("give_back", len(hoarded))

    def remove_ours(self) -> None:
        """Another tool resets resctrl, or CRI-O starts, which removes what nobody is in."""
        need(self.world.mounted)
        groups = {path: tasks for path, tasks in self.world.groups().items() if is_ours(path)}
        ours = sorted(groups)
        one = self.one_of(ours)
        chosen = self.dice.choice([[one], [one], ours, [path for path in ours if not groups[path]]])
        need(chosen)
        for path in chosen:
            self.removed(path)
        self.did("remove_ours", chosen)

    def make_ctrl_group(self) -> None:
        need(self.world.mounted)
        name = self.one_of([name for name in CTRL_GROUPS if name not in self.ctrl_groups()])
        need(self.made(name))
        self.did("make_ctrl_group", name)

    def remove_ctrl_group(self) -> None:
        """With all mon_groups in it; whoever is in it falls back to the root."""
        name = self.one_of(self.ctrl_groups())
        self.removed(name)
        self.did("remove_ctrl_group", name)

    def unmount(self) -> None:
        need(self.world.mounted)
        self.world.unmount()
        self.lost("")
        self.did("unmount")

    def mount(self) -> None:
        need(not self.world.mounted)
        self.world.mount()
        self.did("mount")

    def settle(self) -> None:
        """What is in limbo comes back."""
        need(self.world.mounted)
        self.world.settle()
        self.did("settle")

    def tear(self) -> None:
        """What is recorded of a key is spoilt. What is left of it: the groups, and who is in them."""
        path = self.one_of(sorted((self.hook.run_dir / "groups").glob("[!.]*.json")))
        path.write_text(path.read_text()[: self.dice.randint(0, 40)])
        for container in self.living:
            if container.key == path.stem and container.known is not False:
                container.torn = True
                if not self.world.is_in(container.init, container.group):
                    container.known = None
        for ghost in self.containers:
            if ghost.key == path.stem and not self.world.is_in(ghost.revived, ghost.group):
                ghost.revived = 0
        self.torn.add(path.stem)
        self.did("tear", path.stem)

    def remove_pod(self) -> None:
        """A pod is gone with its cgroup, and none of its hooks has run."""
        uid = self.dice.choice(UIDS)
        containers = [it for it in self.containers if it.uid == uid and it.cgroup.directory.exists()]
        need(containers)
        for container in containers:
            container.kill()
        storm.remove_cgroups(containers[0].cgroup.directory.parent)
        self.did("remove_pod", uid)

    def linger_is_over(self) -> None:
        paths = (self.hook.run_dir / "groups").glob("[!.]*.json")
        lingering = [path for path in paths if state_in(path).get("lingering_until")]
        path = self.one_of(sorted(lingering))
        state = state_in(path)
        path.write_text(json.dumps({**state, "lingering_until": state["lingering_since"]}))
        self.did("linger_is_over", path.stem)

    def ctrl_groups(self) -> list[str]:
        return [name for name in CTRL_GROUPS if (self.world.root / name).exists()]

    def made(self, path: str) -> bool:
        """Make a group; False: no RMID is left."""
        try:
            (self.world.root / path).mkdir()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EBUSY):
                raise
            return False
        return True

    def removed(self, path: str) -> None:
        (self.world.root / path).rmdir()
        self.lost(path)

    def lost(self, top: str) -> None:
        """A group is gone, with those below it; all, where it is the root's."""
        within = f"{top}/" if top else ""
        self.foreign = {path: tasks for path, tasks in self.foreign.items() if not f"{path}/".startswith(within)}
        for ghost in self.containers:
            if ghost.key in self.torn and f"{ghost.group}/".startswith(within):
                ghost.revived = 0  # nothing tells of it any more
        for container in self.containers:
            if (container.init or container.revived) and f"{container.group}/".startswith(within):
                if container.torn:
                    container.known = None  # nothing tells of it any more
                if "mon_groups" not in top and container.ctrl_group:
                    self.fall_back(container)

    def fall_back(self, container: SimulatedContainer) -> None:
        """Its ctrl_group is gone. The kernel tells so; on the model's host the bundle is what is believed."""
        container.ctrl_group = ""
        if REAL_ROOT is None:
            container.be_in("")

    # --- reconcile

    def reconcile(self) -> None:
        """With nothing else going on, but whatever it finds: resctrl unmounted, RMIDs in limbo."""
        self.did("reconcile")
        self.at_once([], beside=[self.started()])
        self.know()

    def reconcile_killed(self) -> None:
        self.did("reconcile_killed")
        self.world.watch()
        self.ended(self.started(), after=self.dice.uniform(0, 3 * MOMENT))
        self.judge()

    def reconcile_beside_hooks(self) -> None:
        jobs = self.jobs()
        self.did("reconcile_beside_hooks", [f"{verb} {container}" for verb, container in jobs])
        self.at_once(jobs, beside=[self.started()])

    def two_reconciles(self) -> None:
        self.did("two_reconciles")
        self.at_once([], beside=[self.started(), self.started()])

    def check(self) -> None:
        """One reconcile, with nothing else going on, puts right whatever was wrong."""
        self.did("check")
        if not self.world.mounted:
            self.world.mount()
        self.world.settle()
        self.world.watch()
        done = self.actions()
        self.history.append(f"  did {[said(it) for it in done]}")
        self.judge()
        self.know()
        oracle.Verdict(self).give()

    def started(self, *more: str) -> Process:
        command = [*self.hook.command("reconcile"), "--json", *more]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env={})

    def actions(self, *more: str) -> list[Any]:
        outcome = finish(self.started(*more))
        self.expect(outcome.status in (0, 1) and outcome.stderr == "", outcome)
        found: list[Any] = json.loads(outcome.stdout)["actions"]
        return found

    def know(self) -> None:
        """After a reconcile that nothing disturbed: what it could not find is on no record, and will not be found."""
        records = self.hook.reasons()
        for it in self.containers:
            member = (self.hook.key(it.key) or {"members": {}})["members"].get(it.id, {"pid": 0})
            if it.init and (it.known is None or it.torn):
                it.known, it.torn = it.id in records or member["pid"] == it.init, False
            elif not it.init and it.key in self.torn and member["pid"] in it.pids():
                it.revived = member["pid"]  # the oldest process in its cgroup is taken for its init
        self.torn.clear()


def state_in(path: Path) -> dict[str, Any]:
    """What is recorded in a file, if that can be read."""
    try:
        state = json.loads(path.read_text())
    except ValueError:
        return {}
    return state if isinstance(state, dict) else {}


def said(action: Any) -> str:  # noqa: ANN401  JSON
    about = action["path"] or f"{(action['container'] or '')[-3:]} of {(action['key'] or '')[-40:][:12]}"
    return f"{action['action']} {about}" + (f": {action['problem']}" if action["problem"] else "")


def test_whatever_comes_one_reconcile_puts_it_right(tmp_path: Path) -> None:
    if REAL_ROOT is None and (os.geteuid() != 0 or not Path("/dev/fuse").exists()):
        pytest.skip("needs root and /dev/fuse")
    tally: Counter[str] = Counter()
    how = settings(
        max_examples=STORMS,
        stateful_step_count=EACH,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    with ExitStack() as stack:
        stack.enter_context(reaper())
        worlds = [stack.enter_context(world) for world in storm.worlds(tmp_path, FEW, MANY)]
        stack.callback(lambda: print(f"{tally.total()} steps:", *(f"{n} {it}," for it, n in tally.most_common())))
        machine: Any = functools.partial(Storm, worlds, tmp_path, tally)
        run_state_machine_as_test(machine, settings=how)
    assert tally.total() >= STEPS
    assert not [name for name in WEIGHTS if not tally[name]], "this was never done"
