# SPDX-License-Identifier: Apache-2.0
"""The oracle: what must be on a node after one reconcile, whatever hooks, kills and failures came before it.

Records, groups, tasks, index and views are exactly what the living containers make them, and nothing of others was
touched. What else is allowed is said where it is.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from tests.support.storm import OURS, haunted, is_ours

if TYPE_CHECKING:
    from tests.support.hook import Hook
    from tests.support.storm import SimulatedContainer, World

NO_RMID = {"no_rmids", "rmids_in_limbo"}
PARTS = ("groups", "members", "locks", "unmonitored", "building")


class Subject(Protocol):
    """What is judged. `foreign`: the mon_groups of others, and who is in them. `lingers`: whether --linger is given."""

    hook: Hook
    world: World
    containers: list[SimulatedContainer]
    foreign: dict[str, set[int]]
    lingers: bool

    def expect(self, condition: object, *problem: object) -> None:
        """Raise an AssertionError that tells the problem, unless the condition holds."""

    def actions(self, *more: str) -> list[Any]:
        """Run `reconcile --json` with nothing else going on; returns its actions."""


class Verdict:
    """Whether all is as it should be, after a reconcile."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.hook = subject.hook
        self.expect = subject.expect
        paths = (self.hook.run_dir / "groups").glob("[!.]*.json")
        self.states = {path.stem: json.loads(path.read_text()) for path in paths}
        self.open = {key: state for key, state in self.states.items() if not state["completed_at"]}
        self.members = {name: (key, it) for key, state in self.open.items() for name, it in state["members"].items()}
        self.records = self.hook.reasons()
        self.all_groups = subject.world.groups()
        self.groups = {path: tasks for path, tasks in self.all_groups.items() if is_ours(path)}
        self.living = {it.id: it for it in subject.containers if it.init or it.revived in it.pids()}

    def give(self, *, again: bool = True) -> None:
        """`again`: that a further reconcile would find nothing to do, too."""
        self.of_containers()
        self.of_groups()
        self.of_records()
        self.of_views()
        self.of_others()
        left = [it for it in self.subject.actions("--dry-run") if not self.may_be_left(it)] if again else []
        self.expect(not left, "there is something left to do:", left)

    def of_containers(self) -> None:
        """Members are the living that a hook has recorded; who is in no group has a record that says why."""
        for name in {**self.members, **self.records}:
            self.expect(name in self.living, name, "is dead", self.members.get(name), self.records.get(name))
        for name, container in self.living.items():
            key, member = self.members.get(name, ("", {}))
            is_known = container.known or container.revived
            self.expect(bool(member or name in self.records) == bool(is_known), container, "should be known", is_known)
            if member:
                wanted = (container.key, container.init or container.revived, self.path(container.group))
                self.expect((key, member["pid"], member["group"]) == wanted, member, wanted)
            if name in self.records or (member and container.group not in self.groups):
                self.expect(self.records.get(name) in NO_RMID, container, self.records.get(name), "but it could be had")
                self.expect(self.subject.world.scarce and self.subject.world.free() == 0, container, "RMIDs are free")
                self.expect(not member or container.group not in self.groups, container, "has a group, and a record")

    def of_groups(self) -> None:
        """They are there for members, or because their key lingers, and hold all tasks of their members and no more.

        Two exceptions. A key that lives has groups in which nobody is, in other ctrl_groups. And a group of which all
        members are dead stays as long as a process lives in it that outlived its init.
        """
        wanted: dict[str, set[int]] = {}
        for name, (_, member) in self.members.items():
            wanted.setdefault(self.short(member["group"]), set()).update(self.living[name].threads())
        for path, tasks in self.groups.items():
            key = path.rpartition("/")[2][len(OURS) :]
            state = self.open.get(key, {"members": {}, "groups": [], "lingering_since": None})
            is_recorded = self.path(path) in [group["path"] for group in state["groups"]]
            if state["members"]:
                self.expect(is_recorded and tasks == wanted.get(path, set()), path, tasks, wanted.get(path))
            elif tasks:
                self.expect(tasks <= self.ghosts(key), path, tasks, "are none of", self.ghosts(key))
            else:
                self.expect(is_recorded and state["lingering_since"], path, "is not needed")

    def of_records(self) -> None:
        """Nothing is recorded but what lives, lingers or was completed, and nothing is left of hooks that were killed.

        What could not be read is kept under another name for a day.
        """
        for key, state in self.open.items():
            self.expect(not state["recovering"], state)
            self.expect(state["members"] or state["lingering_since"] or self.is_haunted(key), state, "is over")
            self.expect(self.subject.lingers or not state["lingering_since"], state)
        run = self.hook.run_dir
        files = {f"{part}/{it.name}" for part in PARTS for it in run.glob(f"{part}/*") if ".unreadable-" not in it.name}
        files |= {f"{part}/{it.name}" for part in PARTS for it in run.glob(f"{part}/.*")}
        due = {f"groups/{key}.json" for key in self.states} | {f"members/{name}.json" for name in self.members}
        due |= {f"unmonitored/{name}.json" for name in self.records}
        locks = {f"locks/{key}" for key in self.open}
        self.expect(files - locks == due, "files:", sorted((files - locks) ^ due))
        for name, (key, _) in self.members.items():
            self.expect(json.loads((run / f"members/{name}.json").read_text())["key"] == key, name, key)

    def of_views(self) -> None:
        """Consumers see what is recorded, and links lead to what is there, but for a member that found no RMID."""
        top = self.hook.run_dir / "mon_groups"
        shown = {path.name: path for path in top.iterdir()} if top.exists() else {}
        due = {key for key, state in self.states.items() if state["generation"]}
        self.expect(set(shown) == due, "views:", sorted(set(shown) ^ due))
        for key, path in ((key, shown[key]) for key in due):
            state = self.states[key]
            generation = f"{state['created_boottime']:.3f}/{state['generation']}\n"
            self.expect((path / "generation").exists(), "hidden:", path, state)
            self.expect((path / "generation").read_text() == generation, path)
            self.expect((path / "completed_at").exists() == bool(state["completed_at"]), path)
            dangling = [str(it.readlink()) for it in path.rglob("*") if it.is_symlink() and not it.exists()]
            self.expect(not dangling or self.records.keys() & state["members"], "dangling:", dangling, state)

    def of_others(self) -> None:
        others = {path: tasks for path, tasks in self.all_groups.items() if not is_ours(path)}
        self.expect(others == self.subject.foreign, others, self.subject.foreign)

    def may_be_left(self, action: Any) -> bool:  # noqa: ANN401  JSON
        """What found no RMID is tried again each time, and so is a group whose members are dead, if not all in it."""
        verb, container = action["action"], action["container"]
        if verb in ("retry", "remake"):
            return container in self.records
        key = action["key"] or (action["path"] or "").rpartition("/")[2][len(OURS) :]
        return verb in ("end", "rebuild") and self.is_haunted(key) and not self.states[key]["members"]

    def is_haunted(self, key: str) -> bool:
        """Whether somebody who outlived his init is in a group of a key."""
        paths = [path for path in self.groups if path.endswith(f"/{OURS}{key}")]
        return any(self.groups[path] & self.ghosts(key) for path in paths)

    def ghosts(self, key: str) -> set[int]:
        return {tid for it in haunted(self.subject.containers) if it.key == key for tid in it.threads()}

    def path(self, group: str) -> str:
        return f"{self.subject.world.root}/{group}"

    def short(self, path: str) -> str:
        return path[len(f"{self.subject.world.root}/") :]
