# SPDX-License-Identifier: Apache-2.0
"""Soak: pods come and go by the ten thousand on one node; what lives has its group and its files, and nothing else has.

The node is a simulated machine, whose hooks follow each other, and whose pids come again at once. Some poststops are
lost, and there are too few RMIDs for all of those. reconcile comes after each batch of pods, with --snapshot-ttl=0.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from random import Random
from typing import TYPE_CHECKING

from hook import __main__ as program
from hook import system
from tests.simulator.machine import RUN, SimulatedMachine
from tests.support.hook import created, stopped
from tests.unit.simulated import Node

if TYPE_CHECKING:
    from tests.faults.campaign import Campaign

PODS = 100_000
BATCH = 250
"""Or a quarter of all."""
SLOTS = 16
"""Keys that live at a time; every fourth is no pod's, but a container's."""
RMIDS = 28
LOST = 0.1
"""Of the containers' ends: no poststop ever comes."""
GROWTH = 1.05
"""Allowed: numbers in records get longer."""


class SoakFailed(AssertionError):
    """Something is not as it should be."""


def run(campaign: Campaign) -> None:
    begin, pods = time.monotonic(), min(PODS, campaign.most or PODS)
    problems: dict[str, str] = {}
    try:
        with SimulatedMachine().installed(system) as machine:
            campaign.note(Soak(machine, Random(campaign.seed)).run(pods))
    except SoakFailed as problem:
        problems["soak"] = str(problem)
    campaign.tally("pods, on the simulated machine", pods, problems, begin)


class Soak:
    """`live`: the containers of each living key, each with the pid of its init.

    `lost`: the containers whose poststop never came, and their keys, since the last look.
    """

    def __init__(self, machine: SimulatedMachine, dice: Random) -> None:
        self._node = Node(machine)
        self._node.kernel.rmids = RMIDS
        self._dice = dice
        self._hooks = 0
        self.live: dict[str, dict[str, int]] = {}
        self.lost: set[str] = set()

    def run(self, pods: int) -> str:
        """So many pods, with a look after each batch; at last all go. Returns what was done."""
        sizes = []
        batch = max(SLOTS, min(BATCH, pods // 4))
        for number in range(pods):
            if len(self.live) == SLOTS:
                self._end(self._dice.choice([*self.live]), LOST)
            self._begin(is_pod=number % 4 != 0)
            if (number + 1) % batch == 0:
                self._look()
                sizes.append(sum(map(len, self._files().values())))
        _same("bytes after the first and the last batch", sizes[-1] <= sizes[0] * GROWTH or sizes, True)
        for key in [*self.live]:
            self._end(key, 0.0)
        self._look()
        return f"{self._hooks:,} hooks; the records had {sizes[0]:,} bytes after the first batch, {sizes[-1]:,} at last"

    def _begin(self, *, is_pod: bool) -> None:
        ids = [f"{self._dice.getrandbits(256):064x}" for _ in range(1 + is_pod)]
        uid = str(uuid.UUID(int=self._dice.getrandbits(128), version=4)) if is_pod else None
        self.live[uid or ids[0]] = {it: self._start(it, uid) for it in ids}

    def _start(self, container: str, uid: str | None) -> int:
        pid = next(pid for pid in range(7, 1000) if pid not in self._node.kernel.tasks)
        self._node.spawn(pid, f"/kubepods/pod{uid}/{container}" if uid else f"/{container}", born=self._hooks)
        self._call(created(container, pid, **({"pod_uid": uid} if uid else {})))
        return pid

    def _end(self, key: str, lost: float) -> None:
        for container, pid in self.live.pop(key).items():
            self._node.kernel.die(pid)
            if self._dice.random() < lost:
                self.lost |= {container, key}
            else:
                self._call(stopped(container))
        for cgroup in (f"/kubepods/pod{key}", f"/{key}"):
            self._node.kernel.remove_cgroups(cgroup)

    def _call(self, state: dict[str, object]) -> None:
        """A hook, from its start to its end."""
        machine = self._node.machine
        machine.caller.stdin, machine.caller.calls = json.dumps(state).encode(), 0
        _same("exit status", program.dispatch(["hook"]), 0)
        _same("stderr of a hook", machine.caller.stderr, b"")
        machine.release(machine.caller)
        self._hooks += 1

    def _look(self) -> None:
        """Reconcile, which has only lost poststops and old snapshots to act on; then see what there is."""
        node, lost = self._node, self.lost
        done = node.repair({"snapshot_ttl": 0})
        node.machine.release(node.machine.caller)
        node.machine.changes.clear()
        actions = [it.action for it in done.outcomes if it.action.verb != "prune"]
        named = [{it.key, it.container, (it.path or "").rpartition("/oci-")[2]} for it in actions]
        _same("what hooks left for reconcile", [it for it in named if lost.isdisjoint(it)], [])
        _same("what reconcile could not do", [it for it in done.outcomes if it.problem], [])
        _same("groups", node.groups(), {f"oci-{key}": {*inits.values()} for key, inits in self.live.items()})
        due = {f"{part}/{key}{end}" for key in self.live for part, end in (("groups", ".json"), ("locks", ""))}
        due |= {f"members/{container}.json" for containers in self.live.values() for container in containers}
        found = self._files()
        _same("records", {it for it in found if not it.startswith("mon_groups/")}, due)
        _same("views", {it.split("/")[1] for it in found if it.startswith("mon_groups/")}, {*self.live})
        lost.clear()

    def _files(self) -> dict[str, bytes | str]:
        texts = self._node.machine.files()
        return {it: texts[os.path.join(RUN, it)] for it in self._node.files()}


def _same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        if isinstance(found, set) and isinstance(wanted, set):
            found, wanted = found - wanted, wanted - found
        raise SoakFailed(f"{what}: {found!r:.2000}, in place of {wanted!r:.2000}")
