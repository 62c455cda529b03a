# SPDX-License-Identifier: Apache-2.0
"""createRuntime and poststop of real processes. In every order, and with every state of records: tests.simulator."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.support.hook import UID, Hook, created, end, stopped, task

GROUP = f"oci-{UID}"
Task = subprocess.Popen[bytes]


def test_a_container_is_in_its_group_and_leaves_nothing_behind(hook: Hook, init: Task) -> None:
    outcome = hook(created("c1", init.pid))
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, "", "")
    assert hook.groups() == {"oci-c1"}
    assert hook.tasks("oci-c1") == {init.pid}
    end(init)
    assert hook(stopped("c1")).status == 0
    hook.assert_clean()
    runs = {path.name: path.stat().st_size for path in (hook.run_dir / "runs").iterdir()}
    assert runs == {"createRuntime-monitored": 1, "poststop-done": 1}


def test_containers_of_a_pod_share_a_group_until_the_last_is_gone(hook: Hook, init: Task) -> None:
    with task() as other:
        hook(created("c1", init.pid, pod_uid=UID))
        hook(created("c2", other.pid, pod_uid=UID))
        assert hook.groups() == {GROUP}
        assert hook.tasks(GROUP) == {init.pid, other.pid}
        end(init)
        hook(stopped("c1"))
        assert hook.tasks(GROUP) == {other.pid}
        assert set(hook.key(UID)["members"]) == {"c2"}
    hook(stopped("c2"))
    hook.assert_clean()


def test_a_zombie_is_dead(hook: Hook, init: Task) -> None:
    hook(created("c1", init.pid))
    init.kill()
    subprocess.run(["sh", "-c", f"while ! grep -q ') Z ' /proc/{init.pid}/stat; do :; done"], check=True, timeout=300)
    hook(stopped("c1"))
    assert hook.leftovers() == set()


def test_a_pod_with_containers_in_two_ctrl_groups_has_a_group_in_each(hook: Hook, init: Task, tmp_path: Path) -> None:
    gold = hook.resctrl_root / "gold"
    gold.mkdir()
    with task() as other:
        (gold / "tasks").write_text(str(other.pid))
        hook(created("c1", init.pid, pod_uid=UID))
        hook({**created("c2", other.pid, pod_uid=UID), "bundle": str(bundle_of(tmp_path, "gold"))})
        assert hook.groups() == {GROUP, f"gold/{GROUP}"}
        assert hook.tasks(GROUP) == {init.pid}
        assert hook.tasks(f"gold/{GROUP}") == {other.pid}
        end(init)
        hook(stopped("c1"))
    hook(stopped("c2"))
    hook.assert_clean()


def test_a_ctrl_group_that_is_removed_with_our_group_in_it_is_no_error(hook: Hook, init: Task, tmp_path: Path) -> None:
    """Runtimes remove the ctrl_group that they made before they call poststop."""
    gold = hook.resctrl_root / "gold"
    gold.mkdir()
    (gold / "tasks").write_text(str(init.pid))
    hook({**created("c1", init.pid), "bundle": str(bundle_of(tmp_path, "gold"))})
    assert hook.groups() == {"gold/oci-c1"}
    end(init)
    gold.rmdir()
    outcome = hook(stopped("c1"))
    assert (outcome.status, outcome.stderr) == (0, "")
    assert hook.leftovers() == set()


def test_a_ctrl_group_that_does_not_exist_is_never_made(hook: Hook, init: Task, tmp_path: Path) -> None:
    outcome = hook({**created("c1", init.pid), "bundle": str(bundle_of(tmp_path, "silver"))})
    if outcome.stderr:  # a kernel that says itself where the task is does not ask the bundle
        assert hook.reasons() == {"c1": "no_ctrl_group"}
    assert not (hook.resctrl_root / "silver").exists()


def test_groups_of_others_are_left_alone(hook: Hook, init: Task) -> None:
    (hook.resctrl_root / "mon_groups" / UID).mkdir()
    (hook.resctrl_root / "mon_groups" / "oci-stranger").mkdir()
    hook(created("c1", init.pid, pod_uid=UID))
    end(init)
    hook(stopped("c1"))
    assert hook.groups() == {UID, "oci-stranger"}


def bundle_of(directory: Path, ctrl_group: str) -> Path:
    """A bundle whose config.json asks for a ctrl_group."""
    bundle = directory / "bundle"
    bundle.mkdir()
    (bundle / "config.json").write_text(json.dumps({"linux": {"intelRdt": {"closID": ctrl_group}}}))
    return bundle
