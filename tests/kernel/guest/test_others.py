# SPDX-License-Identifier: Apache-2.0
"""What others do to resctrl while we use it, and what the kernel does of itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.kernel.guest.conftest import Umount, mount
from tests.support.hook import UID, Hook, Task, created, end, stopped

GROUP = f"oci-{UID}"


def groups_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cpu_resctrl_groups").read_text()


def test_not_mounted(hook: Hook, init: Task, umount: Umount) -> None:
    umount()
    assert groups_of(init.pid) == "res:\nmon:\n"
    assert hook(created("c1", init.pid)).status == 0
    assert hook.reasons() == {"c1": "not_mounted"}
    assert hook.with_options("--strict")(created("c1", init.pid)).status == 1
    subprocess.run(["mount", "-t", "resctrl", "resctrl", hook.resctrl_root], check=True)
    assert hook(created("c1", init.pid)).stderr == ""
    assert groups_of(init.pid) == "res:/\nmon:oci-c1\n"


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
        answer = hook.answer("reconcile")
        assert [action["action"] for action in answer["actions"]] == expected
        assert [line for line in answer["left"] if f"to {theirs}, where it stays" in line]
        assert groups_of(init.pid) == f"res:{ctrl_group or '/'}\nmon:theirs\n"
    (key,) = hook.answer("list")["keys"]
    assert (key["state"], key["taken"]) == ("taken", {"c1": str(theirs)})
    theirs.rmdir()
    answer = hook.answer("reconcile")
    assert [action["action"] for action in answer["actions"]] == [
        "remake" if ctrl_group else "adopt"
    ]
    assert groups_of(init.pid) == f"res:{ctrl_group or '/'}\nmon:{GROUP}\n"
    end(init)
    hook(stopped("c1"))
    hook.assert_clean()


def test_a_group_that_was_made_again_after_a_remount_is_another_one(
    hook: Hook, init: Task, umount: Umount
) -> None:
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
    assert after["mounted"] > before["mounted"], "the root's change time is that of the mount"
    assert "Unavailable" in after["before"].values()
