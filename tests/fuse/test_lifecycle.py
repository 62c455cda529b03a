# SPDX-License-Identifier: Apache-2.0
"""createRuntime and poststop of real processes. In every order, and with every state of records: tests.simulator."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.hook import UID, Hook, Task, created, end, stopped

GROUP = f"oci-{UID}"


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


def test_a_ctrl_group_that_does_not_exist_is_never_made(hook: Hook, init: Task, tmp_path: Path) -> None:
    outcome = hook({**created("c1", init.pid), "bundle": str(bundle_of(tmp_path, "silver"))})
    if outcome.stderr:  # a kernel that says itself where the task is does not ask the bundle
        assert hook.reasons() == {"c1": "no_ctrl_group"}
    assert not (hook.resctrl_root / "silver").exists()


def bundle_of(directory: Path, ctrl_group: str) -> Path:
    """A bundle whose config.json asks for a ctrl_group."""
    bundle = directory / "bundle"
    bundle.mkdir()
    (bundle / "config.json").write_text(json.dumps({"linux": {"intelRdt": {"closID": ctrl_group}}}))
    return bundle
