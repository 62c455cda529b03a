# SPDX-License-Identifier: Apache-2.0
"""reconcile and linger, by the shipped file, with real processes. Records and reclaim: tests/unit, tests/simulator."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.resctrlfs import Mounted
from tests.support.cgroups import Cgroup, cgroup, container_cgroup
from tests.support.hook import UID, Hook, Task, created, end, finish, stopped, task
from tests.support.waiting import wait

ID = "5f3c" * 16
OTHER = "00000000-4084-4186-9c0e-93cf8c32e2ce"
FAMILY = """\
import os, sys, threading
for _ in range(3):
    if os.fork() == 0:
        break
else:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    print("ready", flush=True)
sys.stdin.read()
"""
"""An init with three children and two threads; it ends with its stdin."""


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


@pytest.fixture
def own() -> Iterator[Cgroup]:
    """The cgroup of a container of the pod."""
    with container_cgroup(UID, ID) as made:
        yield made


@pytest.fixture
def family(own: Cgroup) -> Iterator[Task]:
    """A container's init in a cgroup of its own, with children and threads."""
    process = subprocess.Popen([sys.executable, "-ISc", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    for pid in [process.pid, *children(process.pid)]:
        own.add(pid)
    try:
        yield process
    finally:
        own.kill()
        process.communicate()


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def threads(*pids: int) -> set[int]:
    return {int(name) for pid in pids for name in os.listdir(f"/proc/{pid}/task")}


def reconcile(hook: Hook, *arguments: str, refused: Collection[str] = ()) -> list[dict[str, Any]]:
    """What it did; whatever was not done fails the test, but for actions that may be `refused`."""
    outcome = hook.ask("reconcile", "--json", *arguments)
    found: list[dict[str, Any]] = json.loads(outcome.stdout)["actions"]
    failed = [it for it in found if it["problem"]]
    assert (outcome.status == 0 or bool(failed), outcome.stderr) == (True, "")
    assert not [it for it in failed if it["action"] not in refused]
    return found


def verbs(actions: list[dict[str, Any]]) -> list[str]:
    return [it["action"] for it in actions]


def settled(hook: Hook) -> None:
    """Nothing is left to be done."""
    assert reconcile(hook, "--dry-run") == []


# --- Members and groups


BUSY = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\nsys.stdin.read()"


@contextmanager
def busy() -> Iterator[Task]:
    """A process that has used at least 0.3 s of CPU time."""
    command = [sys.executable, "-ISc", BUSY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def late_cpu(hook: Hook, key: str) -> tuple[float, float]:
    """The seconds that tasks had used before they were moved in: those of the key, and those of the node."""
    (family,) = [it for it in hook.answer("metrics")["metrics"] if it["name"] == "resctrl_mon_late_cpu_seconds_total"]
    late: float = hook.answer("show", key)["late_cpu_seconds"]
    return late, family["samples"][0]["value"]


def test_what_exec_used_before_it_was_adopted_is_counted_once(hook: Hook, family: Task, own: Cgroup) -> None:
    assert hook(created(ID, family.pid, pod_uid=UID)).stderr == ""
    reconcile(hook)
    before, _ = late_cpu(hook, UID)
    with busy() as process:
        own.add(process.pid)
        assert verbs(reconcile(hook)) == ["adopt"]
        late, of_node = late_cpu(hook, UID)
        assert 0.25 <= late - before < 3
        assert of_node == pytest.approx(late)
        (hook.resctrl_root / "mon_groups" / f"oci-{UID}").rmdir()
        assert verbs(reconcile(hook)) == ["remake"]
        assert late_cpu(hook, UID) == (late, of_node)


@pytest.mark.knobs(rmids=2)
def test_what_a_container_used_before_it_was_monitored_is_counted(hook: Hook) -> None:
    with task() as first, busy() as second:
        hook(created("c1", first.pid))
        hook(created("c2", second.pid))
        assert hook.reasons() == {"c2": "no_rmids"}
        end(first)
        hook(stopped("c1"))
        assert verbs(reconcile(hook)) == ["retry"]
        assert late_cpu(hook, "c2")[0] >= 0.25


def test_a_cgroup_that_is_not_the_containers_own_is_not_swept_up(hook: Hook) -> None:
    """The container shares the cgroup of the process that started it, which may hold all of the machine's tasks."""
    with subprocess.Popen([sys.executable, "-ISc", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert hook(created(ID, process.pid)).stderr == ""
        reconcile(hook)
        assert hook.tasks(f"oci-{ID}") == threads(process.pid, *children(process.pid))
        for child in children(process.pid):
            os.kill(child, signal.SIGKILL)
        process.communicate()


def test_strangers_are_moved_out_once_no_hook_holds_the_lock(hook: Hook, family: Task, own: Cgroup, init: Task) -> None:
    """The hook may be about to record the container that the task belongs to."""
    hook(created(ID, family.pid, pod_uid=UID))
    reconcile(hook)
    (hook.resctrl_root / "mon_groups" / f"oci-{UID}" / "tasks").write_text(str(init.pid))
    with (hook.run_dir / "locks" / UID).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert reconcile(hook) == []
    assert hook.tasks(f"oci-{UID}") == {init.pid, *threads(*own.pids())}
    assert verbs(reconcile(hook)) == ["evict"]
    assert hook.tasks(f"oci-{UID}") == threads(*own.pids())


def test_descendant_in_another_containers_cgroup_stays_with_that_container(hook: Hook, family: Task) -> None:
    """As with `--pid=container:X`, where orphans of one container become children of the other's init."""
    name = f"{OTHER[:8]}{ID[8:]}"
    worker = children(family.pid)[0]
    with cgroup(f"/test-{os.getpid()}-libpod-{name}.scope") as theirs, task() as other:
        assert hook(created(ID, family.pid, pod_uid=UID)).stderr == ""
        theirs.add(other.pid)
        assert hook(created(name, other.pid)).stderr == ""
        theirs.add(worker)
        reconcile(hook)
        assert hook.tasks(f"oci-{name}") == {other.pid, worker}
        assert hook.tasks(f"oci-{UID}") == threads(family.pid, *children(family.pid)) - {worker}
        settled(hook)


def test_nested_container_keeps_its_own_tasks(hook: Hook, family: Task, own: Cgroup) -> None:
    """Its cgroup is below that of the outer container, and its key its own."""
    name = f"{OTHER[:8]}{ID[8:]}"
    inner = children(family.pid)[0]
    with cgroup(f"{own.path}/libpod-{name}") as theirs:
        assert hook(created(ID, family.pid, pod_uid=UID)).stderr == ""
        theirs.add(inner)
        assert hook.with_options("--key=container")(created(name, inner)).stderr == ""
        reconcile(hook)
        assert hook.tasks(f"oci-{name}") == {inner}
        assert hook.tasks(f"oci-{UID}") == threads(*own.pids())
        settled(hook)


# --- Other tools


def move(hook: Hook, ctrl_group: str, pid: int) -> None:
    """Write a task into a ctrl_group, as the createRuntime hook of a CDI device does after ours."""
    (hook.resctrl_root / ctrl_group).mkdir(exist_ok=True)
    (hook.resctrl_root / ctrl_group / "tasks").write_text(str(pid))


def test_container_moved_to_another_ctrl_group_gets_its_group_there(hook: Hook, init: Task) -> None:
    """Also on a kernel without /proc/PID/cpu_resctrl_groups. The old group is removed: it would hold an RMID."""
    assert hook(created("c1", init.pid, pod_uid=UID)).stderr == ""
    move(hook, "gold", init.pid)
    assert set(verbs(reconcile(hook))) <= {"adopt", "remake"}
    assert hook.groups() == {f"gold/oci-{UID}"}
    assert hook.tasks(f"gold/oci-{UID}") == {init.pid}
    assert [group["ctrl_group"] for group in hook.key(UID)["groups"]] == ["gold"]
    view = hook.run_dir / "mon_groups" / UID
    assert not [path for path in view.rglob("*") if path.is_symlink() and not path.exists()]
    settled(hook)
    end(init)
    assert hook(stopped("c1")).stderr == ""
    hook.assert_clean()


@pytest.mark.parametrize(
    ("removed", "is_back", "group"),
    [("gold/mon_groups/oci-c1", False, "gold/oci-c1"), ("gold", False, "oci-c1"), ("gold", True, "oci-c1")],
)
def test_a_group_that_went_alone_or_with_its_ctrl_group_is_made_where_its_container_is(
    hook: Hook, init: Task, golden: dict[str, Any], removed: str, is_back: bool, group: str
) -> None:
    """Also where the kernel does not show where its container is: in the root one, once its own was removed."""
    assert hook(golden).stderr == ""
    assert hook.groups() == {"gold/oci-c1"}
    (hook.resctrl_root / removed).rmdir()
    if is_back:
        (hook.resctrl_root / removed).mkdir()
    assert verbs(reconcile(hook))[0] == "remake"
    assert hook.tasks(group) == {init.pid}
    made = hook.resctrl_root.joinpath(*group.split("/")[:-1], "mon_groups/oci-c1")
    assert [it["path"] for it in hook.key("c1")["groups"]] == [str(made)]
    assert not list((hook.run_dir / "mon_groups" / "c1").glob("*@*"))
    settled(hook)


def test_a_ctrl_group_that_was_made_again_for_a_sibling(hook: Hook, init: Task, golden: dict[str, Any]) -> None:
    """The group on record is there, but the first container cannot be in it any more."""
    gold, pod = hook.resctrl_root / "gold", {"io.kubernetes.pod.uid": UID}
    with task() as sibling:
        assert hook({**golden, "annotations": pod}).stderr == ""
        gold.rmdir()
        gold.mkdir()
        (gold / "tasks").write_text(str(sibling.pid))
        assert hook({**golden, "id": "c2", "pid": sibling.pid, "annotations": pod}).stderr == ""
        reconcile(hook)
        assert hook.tasks(f"oci-{UID}") == {init.pid}
        assert hook.tasks(f"gold/oci-{UID}") == {sibling.pid}
        settled(hook)


def test_a_group_that_another_tool_renamed_is_left_alone(hook: Hook, init: Task) -> None:
    """Where the kernel says that its tasks are in a group of others; else they are moved to a new one."""
    assert hook(created("c1", init.pid)).stderr == ""
    groups = hook.resctrl_root / "mon_groups"
    (groups / "oci-c1").rename(groups / "theirs")
    actions = reconcile(hook, refused=["remake"])
    if Path("/proc/self/cpu_resctrl_groups").exists():
        assert "'theirs' of another tool" in actions[0]["problem"]
        assert hook.tasks("theirs") == {init.pid}
    else:
        assert hook.tasks("oci-c1") == {init.pid}
    end(init)
    assert hook(stopped("c1")).stderr == ""
    assert hook.groups() == {"theirs"}


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


def test_hooks_do_not_list_groups_unless_the_kernel_refused_one(hook: Hook, resctrl: Mounted, init: Task) -> None:
    """The first who does gets an error: which is us, after both stages."""
    resctrl.control(do="inject", op="listdir", path="/mon_groups", error="EIO")
    assert hook(created("c1", init.pid)).stderr == ""
    end(init)
    assert hook(stopped("c1")).stderr == ""
    with pytest.raises(OSError, match="Input/output"):
        hook.groups()


def test_consumers_find_mon_data_before_the_first_hook_has_run(hook: Hook) -> None:
    """Kepler looks for it once, when it starts: on a node without containers it then read nothing for ever."""
    hook.run_dir.mkdir()
    assert reconcile(hook) == []
    assert os.readlink(hook.run_dir / "mon_data") == f"{hook.resctrl_root}/mon_data"
    assert list((hook.run_dir / "mon_groups").iterdir()) == []


# --- What it prints


@pytest.mark.parametrize(("verb", "status"), [("reconcile", 1), ("metrics", 2)])
def test_a_signal_ends_what_waits_for_a_file_system_that_does_not_answer(
    hook: Hook, resctrl: Mounted, verb: str, status: int
) -> None:
    """No exception gets through there."""
    with task() as it:
        assert hook(created("c1", it.pid)).stderr == ""
        resctrl.process.send_signal(signal.SIGSTOP)
        try:
            process = hook.open(verb)
            wait(lambda: "fuse" in Path(f"/proc/{process.pid}/stack").read_text())
            process.send_signal(signal.SIGTERM)
            outcome = finish(process)
        finally:
            resctrl.process.send_signal(signal.SIGCONT)
    assert outcome.status == status
    assert outcome.stderr.startswith(f"resctrl-mon-hook: {verb}: ended by ")


@pytest.mark.knobs(rmids=2, decay_ms=0)
def test_without_rmids_keys_are_looked_through_for_one_container_only(hook: Hook, resctrl: Mounted) -> None:
    """Each mkdir that the kernel refuses leads to a look at all keys, for RMIDs to reclaim."""
    with ExitStack() as stack:
        for number in range(5):
            hook(created(f"c{number}", stack.enter_context(task()).pid))
        before = len(resctrl.events())
        reconcile(hook, refused=["retry"])
        tried = [it for it in resctrl.events()[before:] if it.op == "mkdir"]
        assert len(tried) == 1
        assert set(hook.reasons().values()) == {"no_rmids"}
