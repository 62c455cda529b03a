# SPDX-License-Identifier: Apache-2.0
"""reconcile and linger, by the shipped file, with real processes.

Records and reclaim: tests/unit, tests/simulator.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.resctrlfs import Mounted
from tests.support.cgroups import Cgroup, container_cgroup, deep_cgroup, enter_cgroup
from tests.support.hook import UID, Hook, Task, created, end, stopped, task
from tests.support.waiting import wait

ID = "5f3c" * 16
OTHER = "00000000-4084-4186-9c0e-93cf8c32e2ce"


@pytest.fixture
def golden(hook: Hook, init: Task, tmp_path: Path) -> dict[str, Any]:
    """The state of a container in ctrl_group gold, of which its bundle tells."""
    gold = hook.resctrl_root / "gold"
    gold.mkdir()
    (gold / "tasks").write_text(str(init.pid))
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "config.json").write_text('{"linux": {"intelRdt": {"closID": "gold"}}}')
    return {**created("c1", init.pid), "bundle": str(bundle)}


def threads(*pids: int) -> set[int]:
    return {int(name) for pid in pids for name in os.listdir(f"/proc/{pid}/task")}


def reconcile(hook: Hook, *arguments: str, refused: Collection[str] = ()) -> list[dict[str, Any]]:
    """What it did; whatever was not done fails the test, but for actions that may be `refused`."""
    outcome = hook.ask("reconcile", "--json", *arguments)
    actions: list[dict[str, Any]] = json.loads(outcome.stdout)["actions"]
    failed = [outcome for outcome in actions if outcome["problem"]]
    assert (outcome.status == 0 or bool(failed), outcome.stderr) == (True, "")
    assert not [outcome for outcome in failed if outcome["action"] not in refused]
    return actions


def verbs(actions: list[dict[str, Any]]) -> list[str]:
    return [action["action"] for action in actions]


def settled(hook: Hook) -> None:
    """Nothing is left to be done."""
    assert reconcile(hook, "--dry-run") == []


# --- What a container can do to hold up others, or not be found

VFORK = """\
import posix, sys
print("ready", flush=True)
action = (posix.POSIX_SPAWN_OPEN, 0, sys.argv[1], posix.O_RDONLY, 0)
posix.posix_spawn("/bin/true", ["true"], {}, file_actions=[action])
"""
"""Its child, which shares its memory, opens a FIFO without a writer before it execs.

It waits for that in state D.
"""


def test_parent_of_vfork_and_its_child_are_brought_in_and_hold_up_no_other(
    hook: Hook, tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with ExitStack() as stack:
        cgroup, victim = create(hook, stack, UID, ID), create(hook, stack, OTHER, "6" * 64)
        parent = stack.enter_context(brought_in(cgroup, sys.executable, "-ISc", VFORK, str(fifo)))
        wait(partial(is_waiting, parent.pid))
        stack.enter_context(brought_in(victim, "sleep", "600"))
        outcome = hook.ask("reconcile", "--json")
        done = json.loads(outcome.stdout)
        assert hook.tasks(f"oci-{OTHER}") == victim.pids()
        assert hook.tasks(f"oci-{UID}") == threads(*cgroup.pids())
        problems = [outcome["problem"] for outcome in done["actions"] if outcome["problem"]]
        assert (done["ended"], outcome.status, problems) == (None, 0, [])
        assert reconcile(hook) == []


def create(hook: Hook, stack: ExitStack, uid: str, name: str) -> Cgroup:
    """A container in its group; returns its cgroup."""
    cgroup = stack.enter_context(container_cgroup(uid, name))
    init = stack.enter_context(task())
    cgroup.add(init.pid)
    assert hook(created(name, init.pid, pod_uid=uid)).stderr == ""
    return cgroup


def is_waiting(pid: int) -> bool:
    """Whether a process waits in the kernel."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "D"


@contextmanager
def brought_in(cgroup: Cgroup, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that exec brings into a container."""
    process = subprocess.Popen([*enter_cgroup(cgroup), *command], stdout=subprocess.DEVNULL)
    try:
        wait(lambda: process.pid in cgroup.pids())
        yield process
    finally:
        cgroup.kill()
        process.wait()


def test_exec_in_a_cgroup_whose_path_is_too_long_for_any_call_is_brought_in(hook: Hook) -> None:
    with ExitStack() as stack:
        cgroup = create(hook, stack, UID, ID)
        process = stack.enter_context(brought_in(cgroup, "sleep", "600"))
        init = cgroup.pids() - {process.pid}
        length = stack.enter_context(deep_cgroup(cgroup, process.pid))
        assert length > 4096
        assert process.pid not in cgroup.pids()
        outcome = hook.ask("reconcile", "--json")
        assert hook.tasks(f"oci-{UID}") == init | {process.pid}
        result = json.loads(outcome.stdout)
        # Some kernels do not show its cgroup in /proc, which is reported.
        assert outcome.status == int(bool(result["left"]))
        assert all("processes in /proc not read" in line for line in result["left"])


# --- Other tools


@pytest.mark.parametrize(
    ("removed", "is_back", "group"),
    [
        ("gold/mon_groups/oci-c1", False, "gold/oci-c1"),
        ("gold", False, "oci-c1"),
        ("gold", True, "oci-c1"),
    ],
)
def test_a_group_that_went_alone_or_with_its_ctrl_group_is_made_where_its_container_is(
    hook: Hook, init: Task, golden: dict[str, Any], removed: str, is_back: bool, group: str
) -> None:
    """Also where the kernel does not show where its container is: in the root one,
    once its own was removed.
    """
    assert hook(golden).stderr == ""
    assert hook.groups() == {"gold/oci-c1"}
    (hook.resctrl_root / removed).rmdir()
    if is_back:
        (hook.resctrl_root / removed).mkdir()
    assert verbs(reconcile(hook))[0] == "remake"
    assert hook.tasks(group) == {init.pid}
    made = hook.resctrl_root.joinpath(*group.split("/")[:-1], "mon_groups/oci-c1")
    assert [of_key["path"] for of_key in hook.key("c1")["groups"]] == [str(made)]
    assert not list(hook.view("c1").glob("*@*"))
    settled(hook)


# --- A list of live keys


def test_an_explicit_list_of_live_keys(hook: Hook, init: Task, tmp_path: Path) -> None:
    with task() as other:
        hook(created("c1", init.pid, pod_uid=UID))
        hook(created("c2", other.pid, pod_uid=OTHER))
        end(init)
        end(other)
        (tmp_path / "live").write_text(f"{UID}\n")
        # A relative path was looked for below /.
        assert verbs(reconcile(hook, f"--live={os.path.relpath(tmp_path / 'live')}")) == ["drop"]
        assert hook.groups() == {f"oci-{UID}"}


# --- Reclaim


def test_hooks_do_not_list_groups_unless_the_kernel_refused_one(
    hook: Hook, resctrl: Mounted, init: Task
) -> None:
    """The first who does gets an error: which is us, after both stages."""
    resctrl.control(do="inject", op="listdir", path="/mon_groups", error="EIO")
    assert hook(created("c1", init.pid)).stderr == ""
    end(init)
    assert hook(stopped("c1")).stderr == ""
    with pytest.raises(OSError, match="Input/output"):
        hook.groups()
