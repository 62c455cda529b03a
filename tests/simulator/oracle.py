# SPDX-License-Identifier: Apache-2.0
"""What must hold after each step, and what must be left when all is quiet and reconcile has run once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyfakefs.fake_file import FakeDirectory

from tests.simulator.kernel import RESCTRL
from tests.simulator.machine import RUN

if TYPE_CHECKING:
    from tests.simulator.node import ContainerLife, SimulatedNode

OURS = "oci-"
_PARTS = ("groups", "members", "unmonitored", "building", "locks")


class Violation(AssertionError):
    """Something is not as it must be."""


class StepOracle:
    """Looks at a node after each change. A violation becomes the run's `problem`, which ends it."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self._kernel = node.run.kernel
        self._seen: dict[str, tuple[object, Any]] = {}

    def look(self, call: str, path: str) -> None:
        """Look at what this call may have changed."""
        try:
            if path.startswith(RESCTRL):
                if call == "rmdir":
                    self._look_at_removal(path)
                elif call == "put":
                    self._look_at_put(path)
                elif call == "mkdir":
                    self._look_at_new_group(path)
                self._look_at_tasks()
                self._look_at_views()
            elif path.startswith(f"{RUN}/groups/"):
                self._look_at_records()
            elif path.startswith(f"{RUN}/members/"):
                self._look_at_index()
            elif path.startswith(f"{RUN}/mon_groups/"):
                self._look_at_views()
        except Violation as problem:
            self._node.run.problem = problem

    def _look_at_new_group(self, path: str) -> None:
        """A group is on record before it is made, so that it cannot leak."""
        self._node.taken.discard(path)
        key = path.rpartition("/" + OURS)[2]
        state = self._read_state(key)
        is_recorded = state is not None and path in [it["path"] for it in state["groups"]]
        if not (is_recorded or any(it.is_lost for it in self._node.lives if it.key == key)):
            raise Violation(f"{self._actor()} made {path}, which is on no record")

    def _look_at_removal(self, path: str) -> None:
        """No group with a live task is removed, but by the last member's own poststop."""
        name = self._actor()
        if self._is_faulty():  # what is shown could not be brought up to date
            self._node.taken.add(path)
        fallen = self._kernel.fallen - self._node.strangers
        if fallen and not name.startswith(("poststop", "other")):
            raise Violation(f"{name} removed {path} with live tasks {sorted(fallen)}")

    def _look_at_put(self, path: str) -> None:
        """The begin is on record before the first task is in a group; a fault may have cost it."""
        name = self._actor()
        if name.startswith("other") or "/mon_groups/" + OURS not in path or self._is_faulty():
            return
        key = path.rpartition("/" + OURS)[2]
        state = self._read_state(key)
        if state is None and any(it.is_lost for it in self._node.lives if it.key == key):
            return
        group = next((it for it in state["groups"] if it["path"] == path), None) if state else None
        if self._node.options.get("snapshot_ttl") != 0 and (group is None or group["begin"] is None):
            raise Violation(f"{name} put a task into {path} before its initial counters were saved")

    def _look_at_tasks(self) -> None:
        """No live member is out of its group by our doing."""
        for it in self._node.lives:
            if it.is_member and it.is_alive:
                if self._node.is_in_group(it):
                    it.is_out = False
                elif not it.is_out:
                    raise Violation(f"{self._actor()} took {it} out of its group")

    def _look_at_records(self) -> None:
        """Nor out of its record."""
        for it in self._node.lives:
            if it.is_member and it.is_alive:
                state = self._read_state(it.key)
                if state is not None and state["completed_at"] is None and it.is_among(state["members"]):
                    it.is_lost = False
                elif self._is_faulty() and self._actor() == f"poststop of {it.number}":
                    it.is_lost = it.is_out = True  # its namesake's, which could not be told from it
                elif not it.is_lost:
                    raise Violation(f"{self._actor()} took {it} out of the record of {it.key}")

    def _look_at_index(self) -> None:
        """A live member is in the index, by which its poststop finds it."""
        for it in self._node.lives:
            if it.is_member and it.is_alive and it is self._node.find(it.number):
                if self._find(f"{RUN}/members/{it.id}.json") is not None:
                    it.is_unindexed = False
                elif not (it.is_unindexed or it.is_lost):
                    raise Violation(f"{self._actor()} took {it} out of the index")

    def _look_at_views(self) -> None:
        """What is shown leads to groups that are there, unless another tool took them away."""
        views = self._find(f"{RUN}/mon_groups")
        for key, view in views.entries.items() if isinstance(views, FakeDirectory) else ():
            for name, link in view.entries.items() if isinstance(view, FakeDirectory) else ():
                if name.startswith("tasks"):
                    path = (link.byte_contents or b"").decode().removesuffix("/tasks")
                    if path and path not in self._kernel.groups and path not in self._node.taken:
                        raise Violation(f"{self._actor()} left the view of {key} with links to {path}, which is gone")

    def _actor(self) -> str:
        lane = self._node.run.lane
        life = lane.life if lane is not None else None
        return life.what if life is not None else "other tool"

    def _is_faulty(self) -> bool:
        lane = self._node.run.lane
        return lane is not None and lane.life is not None and lane.life.had_fault

    def _read_state(self, key: str) -> Any:  # noqa: ANN401  JSON
        node = self._find(f"{RUN}/groups/{key}.json")
        content = node.byte_contents if node is not None else None
        if content is None:
            return None
        if self._seen.get(key, (None,))[0] != content:
            self._seen[key] = content, read_json(content)
        return self._seen[key][1]

    def _find(self, path: str) -> Any:  # noqa: ANN401  a node of pyfakefs
        at: Any = self._node.run.fs.root_dir
        for name in path.strip("/").split("/"):
            at = at.entries.get(name) if isinstance(at, FakeDirectory) else None
        return at


def read_json(content: bytes | str) -> Any:  # noqa: ANN401  JSON; None: it is none
    try:
        found = json.loads(content)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


class LastOracle:
    """Judges what is left: groups, records, index, failures, views, and files of those that were killed."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self._kernel = node.run.kernel
        self._files = node.run.files()
        self._states = {it: read_json(text) for it, text in self._part("groups") if ".unreadable-" not in it}
        self._failures = {it: read_json(text) for it, text in self._part("unmonitored")}
        self._open = {it: state for it, state in self._states.items() if state and state["completed_at"] is None}

    def judge(self) -> None:
        """Raise Violation if something is left that should not be, or is missing."""
        living = [it for it in self._node.lives if it.is_alive]
        for it in living:
            self._judge_container(it)
        monitored = [it for it in living if self._node.is_in_group(it)]
        for path in self._kernel.mon_groups():
            self._judge_group(path, monitored)
        for key, state in self._states.items():
            self._judge_record(key, state, living)
        members = {name for state in self._open.values() for name in state["members"] if "@" not in name}
        self._expect({name for name, _ in self._part("members")} == members, "the index is", self._part("members"))
        for name in self._failures.keys() - {it for it in self._failures if it.startswith("bad-")}:  # kept for an hour
            self._expect(name in {it.id for it in living}, "a failure is left of", name, self._failures[name])
        self._judge_files()
        self._judge_views()

    def _judge_container(self, it: ContainerLife) -> None:
        """It is monitored, or has a failure for want of RMIDs, or its hook was killed before it recorded anything."""
        state = self._open.get(it.key)
        is_recorded = state is not None and it.is_among(state["members"])
        if self._node.is_in_group(it):
            is_brought_in = it.was_interrupted  # with a namesake in the same cgroup
            self._expect(is_recorded or is_brought_in, it, "is in its group and on no record")
            outside = [pid for pid in it.pids if self._kernel.tasks[pid].groups[pid] != self._node.group_of(it)]
            self._expect(not outside, "of", it, "these are outside its group:", outside)
        elif it.id in self._failures:
            reason = self._failures[it.id]["reason"]
            self._expect(reason in ("no_rmids", "rmids_in_limbo"), it, "is not monitored:", self._failures[it.id])
            self._expect(self._kernel.free() <= 0, it, "found no RMID, and some are free")
        else:
            self._expect(not is_recorded, it, "is on record and not in its group")
            self._expect(not it.is_member, it, "was monitored and is not any more")
            is_counted = f"{RUN}/runs/unrecorded" in self._files  # a second fault has cost its record
            self._expect(it.was_interrupted or is_counted, it, "is not monitored, without a reason")

    def _judge_group(self, path: str, monitored: list[ContainerLife]) -> None:
        name = path.rpartition("/")[2]
        if not name.startswith(OURS):
            return
        state = self._open.get(name[len(OURS) :])
        tasks = self._kernel.tids(path)
        own = {pid for it in monitored if self._node.group_of(it) == path for pid in it.pids}
        ghosts = tasks & self._node.ghosts
        self._expect(tasks - ghosts == own, path, "has the tasks", tasks, "instead of", own)
        is_recorded = state is not None and path in [it["path"] for it in state["groups"]]
        self._expect(is_recorded or ghosts, path, "is on no record")
        is_used = own or ghosts or (state is not None and (state["lingering_since"] is not None or state["members"]))
        self._expect(is_used, path, "is left, and in no use")

    def _judge_record(self, key: str, state: Any, living: list[ContainerLife]) -> None:  # noqa: ANN401  JSON
        self._expect(state is not None, "the record of", key, "is unreadable")
        if state["completed_at"] is not None:
            return
        self._expect(not state["recovering"], "the record of", key, "still lacks members")
        dead = [name for name, it in state["members"].items() if not any(life.is_it(it) for life in living)]
        self._expect(not dead, "these members of", key, "are dead:", dead)
        tasks = {tid for it in state["groups"] for tid in self._kernel.tids(it["path"])}
        is_used = state["members"] or state["lingering_since"] is not None or tasks
        self._expect(is_used, "the record of", key, "is left")

    def _judge_files(self) -> None:
        """No file of a process that was killed is left."""
        for path in self._files:
            part, _, name = path[len(RUN) + 1 :].partition("/")
            is_ours = path.endswith(".tmp") or (part == "building" and name)
            is_free = part == "locks" and name and name not in self._open
            self._expect(not (is_ours or is_free), path, "is left")

    def _judge_views(self) -> None:
        due = {key: state for key, state in self._states.items() if state["generation"]}
        shown = {path[len(RUN) :].split("/")[2] for path in self._files if path.startswith(f"{RUN}/mon_groups/")} - {""}
        self._expect(shown == set(due), "these are shown:", shown, "instead of", set(due))
        for key, state in due.items():
            top = f"{RUN}/mon_groups/{key}"
            wanted = f"{state['created_boottime']:.3f}/{state['generation']}\n".encode()
            found = self._files.get(f"{top}/generation")
            is_unmade = any(it.key == key and it.id in self._failures for it in self._node.lives)
            self._expect(found == wanted or is_unmade, top, "shows", found, "instead of", wanted)
            links = {path: text[3:] for path, text in self._files.items() if path.startswith(top) and text[:3] == "-> "}
            gone = [to for to in links.values() if self._kernel.look(str(to)) is None]
            self._expect(not gone or is_unmade, top, "has links that lead nowhere:", gone[:1])

    def _part(self, part: str) -> list[tuple[str, bytes]]:
        top = f"{RUN}/{part}/"
        found = [(path[len(top) :], text) for path, text in self._files.items() if path.startswith(top)]
        return [
            (name.removesuffix(".json"), text)
            for name, text in found
            if name and name[0] != "." and isinstance(text, bytes)
        ]

    def _expect(self, condition: object, *problem: object) -> None:
        if not condition:
            raise Violation("in the end " + " ".join(map(str, problem)))
