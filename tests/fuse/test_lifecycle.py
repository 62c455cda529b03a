# SPDX-License-Identifier: Apache-2.0
"""createRuntime and poststop of real processes. In every order, and with every state of records: tests.simulator."""

from __future__ import annotations

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
