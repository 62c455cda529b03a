# SPDX-License-Identifier: Apache-2.0
"""Each way in which the kernel can say no, its reason, its three traces, and that nothing of the attempt is left."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

import pytest

from tests.kernel.inside import fill
from tests.resctrlfs import Mounted
from tests.support.hook import UID, Hook, created, end, stopped, task

Task = subprocess.Popen[bytes]
GROUP = f"oci-{UID}"

REFUSALS = [
    ("mkdir", "ENOSPC", "no_rmids"),
    ("mkdir", "EBUSY", "rmids_in_limbo"),
    ("mkdir", "EACCES", "denied"),
    ("mkdir", "EPERM", "denied"),
    ("mkdir", "EROFS", "denied"),
    ("mkdir", "EIO", "io"),
    ("mkdir", "ENODEV", "io"),
    ("write", "ESRCH", "task_gone"),
    ("write", "EINVAL", "no_ctrl_group"),
    ("write", "EACCES", "denied"),
    ("write", "EIO", "io"),
    ("write", "ENODEV", "io"),
    ("open", "ENOENT", "io"),
    ("write", "EROFS", "denied"),
]


def only(hook: Hook, container: str) -> dict[str, object]:
    failures = hook.failures()
    assert set(failures) == {container}
    found: dict[str, object] = failures[container]
    return found


@pytest.mark.parametrize(("call", "error", "reason"), REFUSALS)
def test_a_refusal_has_its_reason_and_leaves_only_that(
    resctrl: Mounted, hook: Hook, init: Task, call: str, error: str, reason: str
) -> None:
    place = GROUP if call == "mkdir" else f"{GROUP}/tasks"
    resctrl.control(do="inject", op=call, error=error, path=place, times=-1)
    outcome = hook(created("c1", init.pid, pod_uid=UID))
    assert outcome.status == 0
    assert reason in outcome.stderr
    assert error in outcome.stderr
    record = only(hook, "c1")
    assert (record["reason"], record["stage"], record["monitored"]) == (reason, "createRuntime", False)
    assert (record["key"], record["pid"]) == (UID, init.pid)
    assert hook.groups() == set()
    assert hook.leftovers() == {"unmonitored/c1.json"}
    strict = hook.with_options("--strict")
    assert strict(created("c1", init.pid, pod_uid=UID)).status == 1
    resctrl.control(do="clear")
    assert strict(created("c1", init.pid, pod_uid=UID), verb="createRuntime").status == 0
    end(init)
    hook(stopped("c1"))
    assert hook.leftovers() == set()


def test_exhaustion_quotes_the_kernel(hook: Hook, init: Task) -> None:
    fill(hook.resctrl_root / "mon_groups")
    hook(created("c1", init.pid))
    record = only(hook, "c1")
    assert record["reason"] == "no_rmids"
    assert record["kernel"] == "Out of RMIDs"


def test_limbo_is_waited_for_when_a_hook_has_just_freed_something(resctrl: Mounted, hook: Hook, init: Task) -> None:
    patient = hook.with_options("--rmid-wait=30")
    with task() as first:
        patient(created("c0", first.pid))
    patient(stopped("c0"))
    resctrl.control(do="inject", op="mkdir", error="EBUSY", path="oci-c1", times=3)
    outcome = patient(created("c1", init.pid))
    assert (outcome.status, outcome.stderr) == (0, "")
    assert hook.tasks("oci-c1") == {init.pid}


def test_a_group_that_cannot_be_removed_stays_on_record(resctrl: Mounted, hook: Hook, init: Task) -> None:
    hook(created("c1", init.pid, pod_uid=UID))
    resctrl.control(do="inject", op="rmdir", error="EACCES", path=GROUP)
    end(init)
    outcome = hook(stopped("c1"))
    assert outcome.status == 0
    assert hook.reasons() == {"c1": "denied"}
    assert hook.key(UID)["groups"][0]["path"].endswith(GROUP)
    hook(stopped("c1"))
    hook.assert_clean()


def test_not_mounted_is_recorded(resctrl: Mounted, hook: Hook, init: Task) -> None:
    resctrl.control(do="unmount")
    outcome = hook(created("c1", init.pid))
    assert outcome.status == 0
    assert hook.reasons() == {"c1": "not_mounted"}
    assert hook.with_options("--strict")(created("c1", init.pid)).status == 1


def test_missing_resctrl_is_reported_where_nothing_can_be_recorded(hook: Hook, init: Task, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    outcome = Hook(hook.run_dir / "no-such-directory", tmp_path / "file")(created("c1", init.pid))
    assert outcome.status == 0
    assert "nothing is monitored" in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1


def test_missing_resctrl_is_reported_once_and_recorded_nowhere(hook: Hook, init: Task) -> None:
    nowhere = Hook(hook.run_dir / "no-such-directory", hook.run_dir)
    first, second = nowhere(created("c1", init.pid)), nowhere(created("c1", init.pid))
    assert (first.status, second.status) == (0, 0)
    assert "nothing is monitored" in first.stderr
    assert second.stderr == ""
    assert (hook.run_dir / "said-no-resctrl").exists()
    assert hook.leftovers() == set()
    assert nowhere.with_options("--strict")(created("c1", init.pid)).status == 0


def test_a_lock_that_is_held_for_ever(hook: Hook, init: Task) -> None:
    hook(created("c1", init.pid, pod_uid=UID))
    impatient = Hook(hook.resctrl_root, hook.run_dir, options=("--lock-timeout=0.2",))
    with task() as other, (hook.run_dir / "locks" / UID).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        outcome = impatient(created("c2", other.pid, pod_uid=UID))
        assert outcome.status == 0
        assert hook.reasons() == {"c2": "lock_timeout"}
        end(init)
        assert impatient(stopped("c1")).status == 0
        assert hook.reasons() == {"c1": "lock_timeout", "c2": "lock_timeout"}
    hook(stopped("c1"))
    hook(stopped("c2"))
    hook.assert_clean()
