# SPDX-License-Identifier: Apache-2.0
"""What must hold after each step, and what must be left when all is quiet
and reconcile has run once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyfakefs.fake_file import FakeDirectory

from tests.simulator.kernel import RESCTRL
from tests.simulator.machine import RUN

if TYPE_CHECKING:
    from tests.simulator.node import ContainerLife, SimulatedNode

OURS = "oci-"
HISTORY = "/var/log/history.jsonl"
ENERGY = "mon_PERF_PKG_00/core_energy"


class Violation(AssertionError):
    """Something is not as it must be."""


def expect(condition: object, *problem: object) -> None:
    if not condition:
        raise Violation(" ".join(map(str, problem)))


class StepOracle:
    """Looks at a node after each change. A violation becomes the run's `problem`, which ends it."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self._kernel = node.kernel
        self._seen: dict[str, tuple[object, Any]] = {}

    def look(self, call: str, path: str) -> None:
        """Look at what this call may have changed."""
        lane = self._node.run.lane
        life = lane.life if lane is not None else self._node.run.life
        actor, is_faulty = (
            (life.what, life.had_fault) if life is not None else ("other tool", False)
        )
        try:
            if path.startswith(RESCTRL):
                if call == "rmdir":
                    self._look_at_removal(path, actor, is_faulty)
                elif "/mon_groups/" + OURS in path:
                    self._look_at_entry(call, path, actor, is_faulty)
                self._look_at_tasks(actor)
            elif path.startswith(f"{RUN}/groups/"):
                self._look_at_records(actor, is_faulty)
            elif path.startswith(f"{RUN}/members/"):
                self._look_at_index(actor)
        except Violation as problem:
            self._node.run.problem = problem

    def _look_at_removal(self, path: str, actor: str, is_faulty: bool) -> None:
        """No group with a live task is removed, but at the end that the last member's own poststop,
        or the release of a job, has begun, and as the hook is taken off.
        """
        fallen = self._kernel.fallen - self._node.strangers - self._node.released
        may = actor.startswith(("poststop", "uninstall")) or self._node.is_over(
            path.rpartition("/" + OURS)[2]
        )
        expect(not fallen or may, actor, "removed", path, "with live tasks", fallen)
        state = self._read_state(path.rpartition("/" + OURS)[2])
        lingers = (
            state is not None
            and state["completed_at"] is None
            and state["lingering_since"] is not None
        )
        is_kept = lingers and self._kernel.now < (state["lingering_until"] or 0.0)
        is_on = is_kept and path in [group["path"] for group in state["groups"]]
        expect(
            not is_on or actor != "reconcile" or is_faulty,
            actor,
            "removed",
            path,
            "whose key lingers",
        )

    def _look_at_entry(self, call: str, path: str, actor: str, is_faulty: bool) -> None:
        """A group is on record before it is made, so that it cannot leak.

        Its begin is before the first task is in it; a fault may have cost it.
        """
        key = path.rpartition("/" + OURS)[2]
        state = self._read_state(key)
        if state is None and any(
            container.is_lost for container in self._node.lives if container.key == key
        ):
            return
        group: Any = (
            next((group for group in state["groups"] if group["path"] == path), None)
            if state
            else None
        )
        expect(group or (is_faulty and call == "put"), actor, call, path, "which is on no record")
        if call == "put" and not is_faulty and self._node.options.get("snapshot_ttl") != 0:
            expect(
                group["begin"],
                actor,
                "put a task into",
                path,
                "before its initial counters were saved",
            )
        if call == "put" and "history" in self._node.options:
            self._node.spend(path)

    def _look_at_tasks(self, actor: str) -> None:
        """No live member is out of its group by our doing."""
        for member in self._list_members():
            in_their_group = (
                [pid for pid in member.taken if pid in self._kernel.tasks]
                if member.taker is not None
                else []
            )
            for pid in in_their_group:
                expect(
                    self._kernel.group_of(pid) == member.taker,
                    actor,
                    "took",
                    pid,
                    "of",
                    member,
                    "away from another tool",
                )
            if self._node.is_in_group(member):
                member.is_out = False
            expect(
                member.is_out or self._node.is_in_group(member),
                actor,
                "took",
                member,
                "out of its group",
            )
        for child in self._node.lives:
            is_kept = (
                not child.is_forked
                or not child.is_alive
                or self._node.is_off
                or self._node.is_in_group(child)
            )
            expect(is_kept, actor, "took", child, "out of the group that its parent had joined")

    def _look_at_records(self, actor: str, is_faulty: bool) -> None:
        """Nor out of its record. And each process is a member of one key."""
        for member in self._node.lives:
            states = map(self._read_state, self._list_keys())
            keys = [
                state["key"]
                for state in states
                if state is not None and member.is_among(state["members"])
            ]
            expect(len(keys) < 2, actor, "made", member, "a member of", *keys)
        for member in self._list_members():
            state = self._read_state(member.key)
            if (
                state is not None
                and state["completed_at"] is None
                and member.is_among(state["members"])
            ):
                member.is_lost = False
            elif is_faulty and actor == f"poststop of {member.number}":
                member.is_lost = member.is_out = True  # its namesake's, which looks the same
            elif actor == f"release of {member.key}":  # which began before this one joined
                self._node.let_go(member)
            else:
                expect(member.is_lost, actor, "took", member, "out of the record of", member.key)
        for member in self._node.lives:
            state = self._read_state(member.key)
            if state is not None and state["members"]:
                self._node.filled.add(member.key)
            elif state is not None and member.key in self._node.filled:
                self._node.filled.discard(member.key)
                if actor not in [
                    f"createRuntime of {of.number}"
                    for of in self._node.lives
                    if of.key == member.key
                ]:
                    # Else it leaves the key as it was before.
                    self._node.emptied_by[member.key] = actor

    def _look_at_index(self, actor: str) -> None:
        """A live member is in the index, by which its poststop finds it."""
        for member in self._list_members():
            if self._find(f"{RUN}/members/{member.id}.json") is not None:
                member.is_unindexed = False
            elif member is self._node.find(member.number):
                expect(
                    member.is_unindexed or member.is_lost, actor, "took", member, "out of the index"
                )

    def _list_members(self) -> list[ContainerLife]:
        return [
            container
            for container in self._node.lives
            if container.is_member and container.is_alive and not self._node.is_off
        ]

    def _list_keys(self) -> list[str]:
        groups = self._find(f"{RUN}/groups")
        files = [*groups.entries] if isinstance(groups, FakeDirectory) else []
        return [file[: -len(".json")] for file in files if file.endswith(".json")]

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
        record = json.loads(content)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


class LastOracle:
    """Judges what is left: groups, records, index, failures, views,
    and files of those that were killed.
    """

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self._kernel = node.kernel
        self._files = node.run.files()
        self._states = {
            key: state for key, state in self._read("groups").items() if ".unreadable-" not in key
        }
        self._failures = self._read("unmonitored")
        self._open = {
            key: state
            for key, state in self._states.items()
            if state and state["completed_at"] is None
        }
        self._living = [container for container in node.lives if container.is_alive]

    def judge(self) -> None:
        """Raise Violation if something is left that should not be, or is missing."""
        for container in self._living:
            self._judge_container(container)
        for path in self._kernel.mon_groups():
            self._judge_group(path)
        for key, state in self._states.items():
            self._judge_record(key, state)
        members = {
            name for state in self._open.values() for name in state["members"] if "@" not in name
        }
        index = set(self._read("members"))
        expect(index == members, "the index is", index, "instead of", members)
        left = {failure for failure in self._failures if not failure.startswith("bad-")} - {
            container.id for container in self._living
        }
        expect(not left, "failures are left of", left)
        self._judge_files()
        self._judge_history()

    def _judge_container(self, container: ContainerLife) -> None:
        """It is monitored, or has a failure for want of RMIDs,
        or its hook was killed before it recorded anything.
        """
        state = self._open.get(container.key)
        is_recorded = state is not None and container.is_among(state["members"])
        if (
            state is not None
            and is_recorded
            and state["kind"] == "job"
            and not self._node.is_damaged
        ):
            expect(
                state["job_labels"] == {"job": container.key},
                container,
                "has other labels than its job's:",
                state["job_labels"],
            )
        failure = self._failures.get(container.id)
        # On no record: brought in with a namesake in the same cgroup.
        if self._node.is_in_group(container):
            is_known = is_recorded or container.was_interrupted or self._node.is_off
            expect(is_known, container, "is in its group and on no record")
            outside = [
                pid for pid in container.pids if self._kernel.group_of(pid) != container.group
            ]
            expect(not outside, "of", container, "these are outside its group:", outside)
        elif self._is_of_other_key(container):
            expect(not is_recorded, container, "is on record, and in the group of a job")
        elif failure is not None:
            is_short = (
                failure["reason"] in ("no_rmids", "rmids_in_limbo") and self._kernel.free() <= 0
            )
            expect(is_short, container, "is not monitored:", failure)
        elif container.taker is not None:
            expect(
                state is not None and is_recorded and state["taken"],
                container,
                "is in a group of another tool, and not noted as that",
            )
        else:
            expect(not is_recorded, container, "is on record and not in its group")
            if self._node.is_off:
                return
            expect(not container.is_member, container, "was monitored and is not any more")
            # A second fault has cost its record.
            is_counted = f"{RUN}/runs/unrecorded" in self._files
            expect(
                container.was_interrupted or is_counted,
                container,
                "is not monitored, without a reason",
            )

    def _is_of_other_key(self, container: ContainerLife) -> bool:
        """Whether its process is a member of another key than its own."""
        return any(
            container.is_among(state["members"])
            for key, state in self._open.items()
            if key != container.key
        )

    def _judge_group(self, path: str) -> None:
        name = path.rpartition("/")[2]
        if not name.startswith(OURS):
            return
        state = self._open.get(name[len(OURS) :])
        tasks = self._kernel.tids(path)
        pids = {
            pid
            for container in self._living
            if container.group == path and self._node.is_in_group(container)
            for pid in container.pids
        }
        ghosts = tasks & self._node.ghosts
        expect(tasks - ghosts == pids, path, "has the tasks", tasks, "instead of", pids)
        is_recorded = state is not None and path in [group["path"] for group in state["groups"]]
        expect(is_recorded or ghosts, path, "is on no record")
        are_known = (
            is_recorded
            and state is not None
            and all(member["cgroup"] for member in state["members"].values())
        )
        strangers = tasks & self._node.strangers if are_known else set()
        expect(not strangers, path, "still has tasks of no container", strangers)
        expect(
            pids or ghosts or (state is not None and self._is_used(state)),
            path,
            "is left, and in no use",
        )
        is_due = state is not None and (state["lingering_until"] or 0.0) <= self._kernel.now
        is_held = is_due and not pids and self._node.is_over(name[len(OURS) :])
        expect(not is_held, path, "is held by what outlived its last poststop:", ghosts)

    def _judge_record(self, key: str, state: Any) -> None:  # noqa: ANN401  JSON
        expect(state is not None, "the record of", key, "is unreadable")
        if state["completed_at"] is not None:
            return
        expect(not state["recovering"], "the record of", key, "still lacks members")
        dead = [
            name
            for name, member in state["members"].items()
            if not any(life.is_it(member) for life in self._living)
        ]
        expect(not dead, "these members of", key, "are dead:", dead)
        tasks = {tid for group in state["groups"] for tid in self._kernel.tids(group["path"])}
        expect(tasks or self._is_used(state), "the record of", key, "is left")

    def _is_used(self, state: Any) -> bool:  # noqa: ANN401  JSON
        """Whether a key has members, or lingers, as that of a pod does until its cgroup goes."""
        lingers = state["lingering_since"] is not None
        is_there = (
            state["kind"] != "pod"
            or (state["cgroup"] or "").partition(":")[2] in self._kernel.cgroups
        )
        return bool(state["members"] or (lingers and is_there))

    def _judge_files(self) -> None:
        """No file of a process that was killed is left."""
        for path in self._files:
            part, _, name = path[len(RUN) + 1 :].partition("/")
            is_ours = path.endswith(".tmp")
            is_free = part == "locks" and name and name not in self._open
            expect(not (is_ours or is_free), path, "is left")

    def _judge_history(self) -> None:
        """The lines of a key that has ended add up to what it used;
        of lines with one ID the last counts.
        """
        if "history" not in self._node.options:
            return
        text = self._node.run.files("/var/log").get(HISTORY, b"")
        records = (
            [read_json(line) for line in bytes(text).splitlines()]
            if isinstance(text, bytes)
            else []
        )
        lines = {line["id"]: line for line in records if line is not None}.values()
        owed = {key: state["owed"]["lines"] for key, state in self._states.items() if state["owed"]}
        expect(not owed, "these keys still owe lines of the history:", owed)
        is_disturbed = self._node.is_damaged or f"{RUN}/runs/dropped_lines" in self._files
        for key, truth in self._node.spent.items():
            of_key = [line for line in lines if line["key"] == key]
            known = sum(line["use"].get("core_energy", 0.0) for line in of_key)
            is_whole = not (
                is_disturbed or key in self._open or any(line["unknown"] for line in of_key)
            )
            expect(
                known <= truth, "the history says that", key, "used", known, "J instead of", truth
            )
            expect(
                known == truth or not is_whole,
                "the history has",
                known,
                "J of",
                key,
                "instead of",
                truth,
            )

    def _read(self, part: str) -> dict[str, Any]:
        """The records of a kind, by name."""
        top = f"{RUN}/{part}/"
        files = {
            path[len(top) :]: text for path, text in self._files.items() if path.startswith(top)
        }
        return {
            name.removesuffix(".json"): read_json(text)
            for name, text in files.items()
            if name and name[0] != "."
        }
