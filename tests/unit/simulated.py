# SPDX-License-Identifier: Apache-2.0
"""A node on the simulated machine, as unit tests of reconcile and watch use it:
its containers, records and groups.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from hook import store, system
from hook.context import new_context, read_container
from hook.create import create_runtime
from hook.models import Failure, KeyState, Member, Options
from hook.node.models import ReconcileRecord
from hook.poststop import poststop
from hook.reconcile import run
from hook.reconcile.run import Repairs
from hook.reconcile.survey import Scope
from hook.resctrl import Resctrl
from hook.store import RunDir
from tests.simulator.kernel import RESCTRL, KernelTask, above
from tests.simulator.machine import RUN, SimulatedMachine
from tests.simulator.node import QuietRepairs

if TYPE_CHECKING:
    from hook.context import Context

UID = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"
OTHER_UID = "00000000-4084-4186-9c0e-93cf8c32e2ce"
ID, OTHER = "5f3c" * 16, "0123" * 16
GROUP = f"oci-{UID}"


def cgroup_of(name: str = ID, uid: str = UID) -> str:
    """Where the cgroup of a container of a pod is."""
    return f"/kubepods/pod{uid}/crio-{name}.scope"


class Node:
    """Containers are of one pod, and have a cgroup of their own, unless a test says otherwise."""

    def __init__(self, machine: SimulatedMachine) -> None:
        self.machine = machine
        self.kernel = machine.kernel
        self.patch = pytest.MonkeyPatch()  # undone while the machine is there

    # --- What happens on it

    def spawn(
        self, pid: int, cgroup: str = cgroup_of(), group: str = "", born: int = 100
    ) -> KernelTask:
        """A process begins in a cgroup; `group`: below the root of resctrl,
        made if there is none.
        """
        path = f"{RESCTRL}/{group}" if group else RESCTRL
        for needed in (above(path), path):
            if group and needed not in self.kernel.groups:
                self.kernel.mkdir(needed)
        return self.kernel.spawn(pid, f"0::{cgroup}", born=born, group=path)

    def start(
        self,
        name: str = ID,
        pid: int = 7,
        uid: str | None = UID,
        cgroup: str = "",
        **options: Any,  # noqa: ANN401
    ) -> Context:
        """createRuntime of a container that begins now, or runs;
        the options may have `bundle` and `pod`, its name.
        """
        if pid not in self.kernel.tasks:
            self.spawn(pid, cgroup or cgroup_of(name, uid or "none"))
        said = {"io.kubernetes.pod.uid": uid} if uid else {}
        bundle, pod = options.pop("bundle", "/nowhere"), options.pop("pod", None)
        if pod:
            said.update({"io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.name": pod})
        context, container = self.context(**options), read_container(name, pid, bundle, said)
        container.history_file = context.options.history
        create_runtime(context, container)
        return context

    def stop(self, name: str = ID, *pids: int, **options: Any) -> None:  # noqa: ANN401
        """The container's processes end, and poststop comes."""
        for pid in pids:
            self.kernel.die(pid)
        poststop(self.context(**options), name)

    def context(self, **options: Any) -> Context:  # noqa: ANN401
        return new_context(Resctrl(RESCTRL), RunDir(RUN), self.options(**options))

    def options(self, **more: Any) -> Options:  # noqa: ANN401
        return Options(**{"resctrl_root": RESCTRL, "run_dir": RUN, **more})

    def repair(
        self,
        options: dict[str, Any] | None = None,
        repairs: Repairs | None = None,
        **scope: Any,  # noqa: ANN401
    ) -> Repairs:
        """Reconcile."""
        self.machine.caller.calls = 0
        return run.repair(self.options(**options or {}), Scope(**scope), repairs or QuietRepairs())

    def verbs(self, **more: Any) -> list[str]:  # noqa: ANN401
        """What reconcile does, and nothing of it fails."""
        done = self.repair(**more)
        assert not [outcome for outcome in done.outcomes if outcome.problem is not None]
        return [outcome.action.verb for outcome in done.outcomes]

    def assert_settled(self) -> None:
        assert run.plan_repairs(self.options()).outcomes == []

    # --- What there is

    def groups(self) -> dict[str, set[int]]:
        """The mon_groups, as `[ctrl_group/]name`, and the threads in each."""
        paths = self.kernel.mon_groups()
        return {
            path[len(RESCTRL) + 1 :].replace("mon_groups/", ""): self.kernel.tids(path)
            for path in paths
        }

    def make_group(self, name: str) -> str:
        """Another program makes a mon_group; returns its path."""
        path = f"{RESCTRL}/mon_groups/{name}"
        self.kernel.mkdir(path)
        return path

    def remove_groups(self) -> None:
        """Another program removes all mon_groups."""
        for path in self.kernel.mon_groups():
            self.kernel.rmdir(path)

    def state(self, key: str = UID) -> KeyState:
        state = self.find_state(key)
        assert state is not None
        return state

    def find_state(self, key: str = UID) -> KeyState | None:
        return RunDir(RUN).glance(KeyState, key)

    def members(self, key: str = UID) -> dict[str, int]:
        """The pids of a key's members."""
        return {name: member.pid for name, member in self.state(key).members.items()}

    def member(self, name: str = ID) -> Member:
        return self.state().members[name]

    def failures(self) -> dict[str, str]:
        """The reasons of what is not monitored."""
        run_dir = RunDir(RUN)
        failures = {
            name: run_dir.glance(Failure, name) for name in store.list_records(run_dir, Failure)
        }
        return {
            name: failure.reason if failure is not None else "torn"
            for name, failure in failures.items()
        }

    def reconciled(self) -> ReconcileRecord:
        record = RunDir(RUN).glance(ReconcileRecord, "reconcile")
        assert record is not None
        return record

    def files(self) -> set[str]:
        """The records, locks and leftovers in the run directory."""
        parts = ("groups", "members", "locks", "unmonitored", "building", "mon_groups")
        paths = (path[len(RUN) + 1 :] for path in self.machine.files())
        return {path for path in paths if path.startswith(parts) and not path.endswith("/")}

    def put(self, path: str, text: str) -> None:
        """Write a file of the run directory."""
        self.machine.add(f"{RUN}/{path}", text.encode())
        for name in (path, path.rpartition("/")[0]):
            self.machine.fs.get_object(f"{RUN}/{name}").st_ctime = self.kernel.now

    def edit(self, path: str, **fields: Any) -> None:  # noqa: ANN401
        """Change a record."""
        text = self.machine.files()[f"{RUN}/{path}"]
        assert isinstance(text, bytes)
        self.put(path, json.dumps({**json.loads(text), **fields}))

    def remove(self, path: str) -> None:
        """Remove a file or a directory of the run directory, or all of it."""
        self.machine.fs.remove_object(f"{RUN}/{path}".rstrip("/"))


@pytest.fixture
def node() -> Iterator[Node]:
    with SimulatedMachine().installed(system) as machine:
        RunDir(RUN)
        node = Node(machine)
        yield node
        node.patch.undo()


def fails(why: int | BaseException) -> Callable[..., Any]:
    """A function that fails with this errno, or raises this, whatever it is given."""

    def fail(*_arguments: object, **_named: object) -> None:
        raise OSError(why, os.strerror(why)) if isinstance(why, int) else why

    return fail
