# SPDX-License-Identifier: Apache-2.0
"""A machine with 31 RMIDs besides the root's, and more pods than that."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

from tests.kernel.inside import make_group
from tests.support.hook import UID, Hook, created, end, stopped, task

RMIDS = 31
PODS = 40


def uid(number: int) -> str:
    return f"{number:08d}{UID[8:]}"


def reconcile(hook: Hook) -> list[str]:
    outcome = hook.ask("reconcile", "--json")
    actions = json.loads(outcome.stdout)["actions"]
    assert (outcome.status <= any(action["problem"] for action in actions), outcome.stderr) == (
        True,
        "",
    )
    return [action["action"] for action in actions if action["problem"] is None]


def test_pods_whose_poststops_never_come_are_all_monitored(hook: Hook) -> None:
    """One after the other. --rmid-wait is what it is by default."""
    for number in range(PODS):
        with task() as init:
            assert hook(created(f"c{number}", init.pid, pod_uid=uid(number))).stderr == "", number
            assert hook.tasks(f"oci-{uid(number)}") == {init.pid}
    assert len(hook.groups()) <= RMIDS
    reconcile(hook)
    hook.assert_clean()


def test_the_32nd_starts_at_once_and_is_monitored_once_another_has_ended(
    hook: Hook, root: Path
) -> None:
    patient = hook.with_options("--rmid-wait=60")  # earlier tests' RMIDs are in limbo
    with task() as init:  # it waits only if it knows of an RMID that was freed
        patient(created("earlier", init.pid, pod_uid=UID))
        patient(stopped("earlier"))
    with ExitStack() as stack:
        inits = [stack.enter_context(task()) for _ in range(RMIDS)]
        for number, init in enumerate(inits):
            assert patient(created(f"c{number}", init.pid, pod_uid=uid(number))).stderr == ""
        late = stack.enter_context(task())
        patient(created("late", late.pid, pod_uid=UID))
        record = hook.failures()["late"]
        assert (record["reason"], record["kernel"]) == ("no_rmids", "Out of RMIDs")
        end(inits[0])
        assert hook(stopped("c0")).stderr == ""
        make_group(root / "mon_groups" / "probe")  # its RMID has come back
        # Without going through limbo again.
        (root / "mon_groups" / "probe").rename(root / "mon_groups" / f"oci-{UID}")
        assert "retry" in reconcile(hook)
        assert hook.tasks(f"oci-{UID}") == {late.pid}
        assert hook.reasons() == {}
