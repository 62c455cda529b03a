# SPDX-License-Identifier: Apache-2.0
"""The transitions of a key's life, in any order,
with what else happens to its groups in between.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook import counters, formats, life, life_end, life_turns, line, system
from hook.models import KeyState, Member, MonGroup
from hook.resctrl import is_about
from tests.unit.files import examples

EVENT = "mon_L3_00/mbm_total_bytes"
PATHS = [f"/sys/fs/resctrl/{place}mon_groups/oci-c1" for place in ("", "gold/")]
NAMES = ("c1", "c2", "c3")
FILES = ("/var/log/a", "/var/log/b")


class LifeStep(NamedTuple):
    """What happens: to which container, in which group, how much of it."""

    what: str
    name: str
    path: str
    amount: int


STEPS = (
    "join",
    "use",
    "leave",
    "drop",
    "linger",
    "complete",
    "refuse",
    "wipe",
    "remount",
    "take",
    "retire",
    "fail",
    "forget",
)
OFTEN = (
    "join",
    "use",
    "join",
    "use",
    "join",
    "use",
    "complete",
    "retire",
    "refuse",
    "retire_and_refuse",
    "fail",
)
steps = st.builds(
    LifeStep,
    st.sampled_from(OFTEN + STEPS),
    st.sampled_from(NAMES),
    st.sampled_from(PATHS),
    st.integers(1, 1000),
)


class Directory:
    """A mon_group in the kernel: what Resctrl.identify says of it, and its counter."""

    def __init__(self, mounted: int, inode: int, first: int) -> None:
        self.identity = mounted, inode
        self.value = first


class LifeOfKey:
    """A key, its directories in the kernel, and all that its containers have used in them."""

    def __init__(self) -> None:
        self.state: KeyState | None = None
        self.directories: dict[str, Directory] = {}
        self.used = 0
        self.is_whole = True
        self.lines: list[dict[str, Any]] = []
        self.files: dict[str, str] = {}  # of the history, by the begin of a run
        self.clock = 0.0
        self.inode = self.mounts = 0

    def read(self, path: str) -> dict[str, str]:
        return {EVENT: str(self.directories[path].value)} if path in self.directories else {}

    def finals(self) -> dict[str, dict[str, str]]:
        """What `key.read_finals` reads."""
        groups = self.state.groups if self.state is not None else []
        known = {group.path for group in groups if group.path in self.directories}
        return {
            group.path: self.read(group.path)
            for group in groups
            if group.path in known and is_about(group, self.directories[group.path].identity)
        }

    def known(self, state: KeyState | None) -> int:
        """The part of the key's use that is known, in all of its runs."""
        total = 0
        for group in state.groups if state is not None else ():
            now = group.end if group.end is not None else self.finals().get(group.path, {})
            total += counters.measure(group, now).get(EVENT, (0, True))[0] or 0
        return total

    def settle(self, after: KeyState | None, refused: Collection[str] = ()) -> None:
        """Carry out a transition, as `key.settle` does."""
        before = self.state
        removed = [group.path for group in life_end.list_removed(before, after)]
        open_before = (
            {group.path for group in before.groups}
            if before and before.completed_at is None
            else set()
        )
        open_after = (
            {group.path for group in after.groups}
            if after and after.completed_at is None
            else set()
        )
        assert {*removed} == open_before - open_after, "what leaves the record is what goes"
        if after is not None:
            assert self.known(after) >= self.known(before), "use never falls"
            if self.inode % 2:
                after = self.write(after)
        if after is None and {*removed} & {*refused}:
            return  # its record stays as it was, for reconcile
        if after is not None and {*removed} & {*refused}:
            assert before is not None
            known, after = (
                self.known(after),
                life_turns.reopen(after, before, {*removed} & {*refused}),
            )
            assert {*removed} & {*refused} <= {group.path for group in after.groups}
            self.state = after
            assert self.known(after) >= known
        for path in {*removed} - {*refused}:
            self.directories.pop(path, None)
        self.state = life_end.keep(after, snapshots=True) if after is not None else None

    def write(self, after: KeyState) -> KeyState:
        """Write the lines that a key owes, each to its file."""
        for owed in line.list_owed(after):
            lines = [*map(json.loads, owed.lines)]
            assert {self.files[line["begin"]] for line in lines} == {owed.file}
            self.lines += lines
        return line.set_owed(after, [])

    # --- The steps

    def join(self, step: LifeStep, *, is_readable: bool = True) -> None:
        group = life.find_group(
            self.state,
            MonGroup(path=step.path, ctrl_group="/" if "gold" not in step.path else "gold"),
        )
        container: Any = SimpleNamespace(
            id=step.name, pod=SimpleNamespace(namespace=None, name=None)
        )
        container.job_labels = {}
        container.history_file = self.files[formats.format_utc(self.clock)] = FILES[step.amount % 2]
        member = Member(pid=7, starttime=1, group=group.path)
        attempt = life.begin_attempt(container, ("c1", "container"), None, 0.0, 0.0)
        attempt.now = self.clock, self.clock
        after = life.join(self.state, attempt, member, group, displaces=False)
        group, present = life.get_group(after, group.path), self.directories.get(group.path)
        is_there = present is not None and is_about(group, present.identity)
        if group.begin is not None:
            after = life.resume(after, group) if is_there else life_turns.remake(after, group.path)
        assert self.known(after) >= self.known(self.state)
        if present is None:
            self.inode += 1
            present = self.directories[group.path] = Directory(self.mounts, self.inode, step.amount)
        if not is_readable:
            self.state = after
            return
        group = life.get_group(after, group.path)
        texts = self.read(group.path) if group.begin is None else None
        known = self.known(self.state)
        after = life.begin(after, group, present.identity, texts, is_late=False)
        self.state = after
        assert self.known(after) >= known

    def use(self, step: LifeStep) -> None:
        state = self.state
        places = {member.group for member in state.members.values()} if state is not None else set()
        for path in places & self.finals().keys():
            self.directories[path].value += step.amount
            self.used += step.amount

    def leave(self, step: LifeStep) -> None:
        self._drop([step.name], stops=True)

    def drop(self, step: LifeStep) -> None:
        self._drop([step.name], stops=False)

    def _drop(self, leaving: Sequence[str], *, stops: bool) -> None:
        if self.state is not None and {*leaving} <= self.state.members.keys():
            self.settle(life_end.leave(self.state, leaving, stops=stops))

    def linger(self, step: LifeStep) -> None:
        if self._is_open() and not self.state.members:  # type: ignore[union-attr]
            self.settle(life_end.linger(self.state, self.finals(), self.clock, step.amount))  # type: ignore[arg-type]

    def complete(
        self, _step: LifeStep, refused: Collection[str] = (), held: Collection[str] = ()
    ) -> None:
        """The key ends, with the members that are left."""
        if self.state is not None and self.state.completed_at is None:
            state = life_end.leave(self.state, self.state.members, stops=True)
            self.settle(
                life_end.complete(state, self.finals(), held, (self.clock, self.clock)), refused
            )

    def refuse(self, step: LifeStep) -> None:
        self.complete(step, refused=self.directories.keys() & {step.path})

    def retire(self, step: LifeStep) -> None:
        self.complete(step, held=[step.path])

    def retire_and_refuse(self, step: LifeStep) -> None:
        """A task keeps one group, and the kernel refuses to remove the other."""
        self.complete(step, refused=self.directories.keys() - {step.path}, held=[step.path])

    def remount(self, step: LifeStep) -> None:
        """resctrl is mounted again, and numbers its directories from 1."""
        for path in PATHS:
            self.wipe(step._replace(path=path))
        self.inode, self.mounts = 0, self.mounts + 1

    def wipe(self, step: LifeStep) -> None:
        """Another tool removes a group."""
        if self.directories.pop(step.path, None) is not None and self._is_open():
            self.is_whole = False

    def take(self, _step: LifeStep) -> None:
        if self._is_open():
            gone = [group.path for group in self.state.groups if group.path not in self.directories]  # type: ignore[union-attr]
            self.state = life_turns.take(self.state, gone)  # type: ignore[arg-type]
            self.is_whole = False

    def fail(self, step: LifeStep) -> None:
        """A container comes, and its start fails: the key is as it was."""
        before, name = self.state, "c4"
        if before is not None and name in before.members:
            return
        self.join(step._replace(name=name), is_readable=step.amount % 2 == 0)
        container: Any = SimpleNamespace(id=name, pid=7, is_member=lambda _: False)
        after = life_end.restore(before, self.state, container, step.path, ())
        if before is not None and after is not None:
            assert (after.members, after.completed_at, after.left) == (
                before.members,
                before.completed_at,
                before.left,
            )
        self.settle(
            after, refused=self.directories.keys() & {step.path} if step.amount % 3 == 0 else ()
        )

    def forget(self, _step: LifeStep) -> None:
        if self.state is not None and self.state.completed_at is not None:
            after = life_end.forget(self.state)
            if after is None:
                self.settle(after)
            self.state = after

    def _is_open(self) -> bool:
        return self.state is not None and self.state.completed_at is None


@examples(500)
@given(st.lists(steps, min_size=8, max_size=30))
def test_use_never_falls_and_is_in_one_line_and_each_record_has_a_way_out(
    happens: list[LifeStep],
) -> None:
    key = LifeOfKey()
    with pytest.MonkeyPatch.context() as patch:
        # A transition makes no system call, and reads no clock.
        patch.setattr(system, "posix", None)
        patch.setattr(system, "boottime", None)
        patch.setattr(system, "unix_time", None)
        for step in happens:
            key.clock += 1.0
            getattr(key, step.what)(step)
        if key.state is not None and key.state.completed_at is None:
            key.complete(LifeStep("complete", "", "", 1))
        assert key.state is None or key.state.completed_at is not None
        key.state = key.write(key.state) if key.state is not None else None
        key.forget(LifeStep("forget", "", "", 1))
        assert (key.state, key.directories.keys() & {*PATHS}) == (None, set()) or not key.is_whole
    lines = {line["id"]: line for line in key.lines}.values()
    of_lines = sum(line["use"].get("mbm_total_bytes", 0) for line in lines)
    is_marked = any(line["unknown"] for line in lines)
    assert of_lines <= key.used
    assert of_lines == key.used or is_marked
    assert not (key.is_whole and is_marked), "all was measured"
