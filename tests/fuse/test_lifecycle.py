# SPDX-License-Identifier: Apache-2.0
"""createRuntime and poststop of real processes, and what is left where the kernel says no.

In every order, with every state of records and each errno at each call: tests.simulator.
"""

from __future__ import annotations

import subprocess
from contextlib import ExitStack

from tests.kernel.inside import REAL_ROOT, fill
from tests.support.hook import UID, Hook, Task, created, end, finish, stopped, task

# Where resctrl is real the machine is emulated, and slow
CROWD = 32 if REAL_ROOT is None else 6


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


def all_at_once(started: list[subprocess.Popen[bytes]]) -> None:
    outcomes = [finish(process) for process in started]
    assert {(outcome.status, outcome.stderr) for outcome in outcomes} == {(0, "")}


def test_all_containers_of_one_pod_come_and_go_at_once(hook: Hook) -> None:
    names = [f"c{number}" for number in range(CROWD)]
    with ExitStack() as stack:
        pids = {name: stack.enter_context(task()).pid for name in names}
        all_at_once([hook.start(created(name, pids[name], pod_uid=UID)) for name in names])
        assert hook.groups() == {f"oci-{UID}"}
        assert set(hook.key(UID)["members"]) == set(names)
        assert hook.tasks(f"oci-{UID}") == set(pids.values())
    all_at_once([hook.start(stopped(name, pod_uid=UID)) for name in names])
    hook.assert_clean()


def test_exhaustion_quotes_the_kernel(hook: Hook, init: Task) -> None:
    fill(hook.resctrl_root / "mon_groups")
    hook(created("c1", init.pid))
    assert {name: (it["reason"], it["kernel"]) for name, it in hook.failures().items()} == {
        "c1": ("no_rmids", "Out of RMIDs")
    }
