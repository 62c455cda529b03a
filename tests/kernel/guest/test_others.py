# SPDX-License-Identifier: Apache-2.0
"""What others do to resctrl while we use it, and what the kernel does of itself."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Callable

import pytest

from tests.kernel.guest.conftest import Umount, mount
from tests.support.hook import UID, Hook, Task, created, end, stopped, task

GROUP = f"oci-{UID}"


def groups_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cpu_resctrl_groups").read_text()


def test_not_mounted(hook: Hook, init: Task, umount: Callable[[], None]) -> None:
    umount()
    assert groups_of(init.pid) == "res:\nmon:\n"
    assert hook(created("c1", init.pid)).status == 0
    assert hook.reasons() == {"c1": "not_mounted"}
    assert hook.with_options("--strict")(created("c1", init.pid)).status == 1
    subprocess.run(["mount", "-t", "resctrl", "resctrl", hook.resctrl_root], check=True)
    assert hook(created("c1", init.pid)).stderr == ""
    assert groups_of(init.pid) == "res:/\nmon:oci-c1\n"


def test_a_mount_that_a_container_holds_is_not_the_hosts(hook: Hook, init: Task, umount: Callable[[], None]) -> None:
    """A private mount namespace with a copy of the mount keeps it alive: the host's directory is empty all the same."""
    holder = subprocess.Popen(["unshare", "--mount", "sh", "-c", "echo; read word"], stdin=-1, stdout=-1)
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        umount()
        outcome = hook(created("c1", init.pid))
        assert outcome.status == 0
        assert hook.reasons() == {"c1": "not_mounted"}
        holder.communicate()


def test_read_only(hook: Hook, init: Task) -> None:
    subprocess.run(["mount", "--bind", hook.resctrl_root, hook.resctrl_root], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", hook.resctrl_root], check=True)
        hook(created("c1", init.pid))
    finally:
        subprocess.run(["umount", hook.resctrl_root], check=True)
    assert hook.reasons() == {"c1": "denied"}
    assert "EROFS" in hook.failures()["c1"]["tried"]
    assert hook.groups() == set()


def test_without_the_capability(hook: Hook, init: Task) -> None:
    hook(created("c0", init.pid))  # makes the run directory
    drop = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search")
    weak = Hook(hook.resctrl_root, hook.run_dir, wrapper=drop)
    with task() as other:
        weak(created("c1", other.pid))
    assert hook.reasons() == {"c1": "denied"}
    assert hook.groups() == {"oci-c0"}


@pytest.mark.parametrize("parameter", ["unavail", "error"])
def test_counters_that_are_no_numbers(
    hook: Hook, init: Task, fake: Callable[[str, object], None], parameter: str
) -> None:
    fake(parameter, 1)
    assert hook(created("c1", init.pid)).stderr == ""
    counter = "mbm_total_bytes" if parameter == "unavail" else "llc_occupancy"
    text = (hook.resctrl_root / "mon_groups/oci-c1/mon_data/mon_L3_00" / counter).read_text()
    assert text == {"unavail": "Unavailable\n", "error": "Error\n"}[parameter]
    assert hook.tasks("oci-c1") == {init.pid}
    end(init)
    assert hook(stopped("c1")).stderr == ""
    hook.assert_clean()


@pytest.mark.parametrize("ctrl_group", ["", "gold"])
def test_a_task_in_another_tools_group_is_taken(hook: Hook, init: Task, ctrl_group: str) -> None:
    """linux.intelRdt.enableMonitoring: the runtime has put it into <closID>/mon_groups/<container-id> already."""
    parent = hook.resctrl_root / ctrl_group
    parent.mkdir(exist_ok=True)
    theirs = parent / "mon_groups" / "c1"
    theirs.mkdir()
    if ctrl_group:
        (parent / "tasks").write_text(str(init.pid))
    (theirs / "tasks").write_text(str(init.pid))
    hook(created("c1", init.pid))
    assert groups_of(init.pid) == f"res:{ctrl_group or '/'}\nmon:oci-c1\n"
    assert hook.key("c1")["members"]["c1"]["taken_from"] == "c1"
    hook(created("c1", init.pid))
    assert hook.key("c1")["members"]["c1"]["taken_from"] == "c1", "and stays on record"
    end(init)
    hook(stopped("c1"))
    assert theirs.exists()
    assert hook.leftovers() == set()


@pytest.mark.parametrize("ctrl_group", ["", "gold"])
def test_a_container_that_another_tool_takes_later_is_left_there_and_named(
    hook: Hook, init: Task, ctrl_group: str
) -> None:
    """The kernel shows where it is. So do the tasks of the other group, which `list` reads."""
    assert hook(created("c1", init.pid, pod_uid=UID)).stderr == ""
    theirs = hook.resctrl_root / ctrl_group / "mon_groups/theirs"
    theirs.parent.parent.mkdir(exist_ok=True)
    theirs.mkdir()
    if ctrl_group:
        (hook.resctrl_root / ctrl_group / "tasks").write_text(str(init.pid))
    (theirs / "tasks").write_text(str(init.pid))
    for expected in (["note"], []):
        found = hook.answer("reconcile")
        assert [it["action"] for it in found["actions"]] == expected
        assert [line for line in found["left"] if f"to {theirs}, where it stays" in line]
        assert groups_of(init.pid) == f"res:{ctrl_group or '/'}\nmon:theirs\n"
    (key,) = hook.answer("list")["keys"]
    assert (key["state"], key["taken"]) == ("taken", {"c1": str(theirs)})
    theirs.rmdir()
    found = hook.answer("reconcile")
    assert [it["action"] for it in found["actions"]] == ["remake" if ctrl_group else "adopt"]
    assert groups_of(init.pid) == f"res:{ctrl_group or '/'}\nmon:{GROUP}\n"
    end(init)
    hook(stopped("c1"))
    hook.assert_clean()


def test_children_inherit_and_live_on_in_the_root_group(hook: Hook) -> None:
    script = "read word; sleep 1000 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdin=-1, stdout=-1, text=True, bufsize=1) as init:
        assert init.stdin is not None
        assert init.stdout is not None
        hook(created("c1", init.pid))
        init.stdin.write("go\n")
        child = int(init.stdout.readline())
        assert hook.tasks("oci-c1") == {init.pid, child}
        init.kill()
        init.wait()
        hook(stopped("c1"))
        assert groups_of(child) == "res:/\nmon:\n"
        assert hook.groups() == set()
        subprocess.run(["kill", str(child)], check=True)
    assert hook.leftovers() == set()


def test_a_member_stays_where_it_is_when_its_ctrl_group_goes_and_comes_back(hook: Hook, init: Task) -> None:
    """The same name is another group then, and our record still fits."""
    hook = hook.with_options("--snapshot-ttl=0")
    gold = hook.resctrl_root / "gold"
    gold.mkdir()
    (gold / "tasks").write_text(str(init.pid))
    assert hook(created("c1", init.pid, pod_uid=UID)).stderr == ""
    gold.rmdir()
    assert groups_of(init.pid) == "res:/\nmon:\n"
    gold.mkdir()
    with task() as other:
        (gold / "tasks").write_text(str(other.pid))
        assert hook(created("c2", other.pid, pod_uid=UID)).stderr == ""
        assert groups_of(other.pid) == f"res:gold\nmon:{GROUP}\n"
        assert [it["action"] for it in hook.answer("reconcile", "--snapshot-ttl=0")["actions"]] == ["remake"]
        assert groups_of(init.pid) == f"res:/\nmon:{GROUP}\n"
        end(init)
        hook(stopped("c1"))
        assert hook.tasks(f"gold/{GROUP}") == {other.pid}
    hook(stopped("c2"))
    hook.assert_clean()


def test_a_group_that_was_made_again_after_a_remount_is_another_one(hook: Hook, init: Task, umount: Umount) -> None:
    """The kernel gives the directories of each mount the same numbers."""
    umount()
    mount(hook.resctrl_root)
    assert hook(created("c1", init.pid)).stderr == ""
    before = hook.key("c1")["groups"][0]
    umount()
    mount(hook.resctrl_root)
    assert hook(created("c1", init.pid)).stderr == ""
    after = hook.key("c1")["groups"][0]
    assert after["inode"] == before["inode"], "nothing would be proved"
    assert "Unavailable" in after["before"].values()
    assert hook.key("c1")["generation"] == 2
