# SPDX-License-Identifier: Apache-2.0
"""What a pod used in a domain that comes online late: its hooks, reconcile and all who read say that it is unknown."""

from __future__ import annotations

import pytest

from tests.resctrlfs import Mounted
from tests.support.consumers import Entry, read
from tests.support.hook import UID, Hook, created, stopped, task

ENERGY = "mon_PERF_PKG_00/core_energy"
GROUP = f"/mon_groups/oci-{UID}"


def shown(hook: Hook) -> Entry:
    entry = read(hook.run_dir / "mon_groups" / UID)
    assert entry is not None
    entry.check()
    return entry


def count(resctrl: Mounted, amount: int, counter: str = ENERGY) -> None:
    domain, _, event = counter.partition("/")
    resctrl.control(do="add", group=GROUP, domain=domain, event=event, amount=str(amount))


LATE = "mon_PERF_PKG_01"


def is_unknown(hook: Hook, value: float = 5) -> bool:
    """Whether `list`, `show` and `metrics` say so of the energy of the domain that came late."""
    (total,) = [key["use"]["core_energy"] for key in hook.answer("list")["keys"]]
    (group,) = hook.answer("show", UID)["groups"]
    counter = group["counters"].get(f"{LATE}/core_energy", {"use": None})
    (family,) = [it for it in hook.answer("metrics")["metrics"] if it["name"] == "resctrl_mon_use_unknown"]
    marked = {(it["labels"]["domain"], it["labels"]["event"]) for it in family["samples"]}
    assert counter["use"] is None
    return total["value"] == value and total["unknown"] == 1 and (LATE, "core_energy") in marked


@pytest.mark.parametrize("is_reconciled", [True, False])
def test_use_in_a_domain_that_comes_online_after_the_begin_is_unknown(
    hook: Hook, resctrl: Mounted, is_reconciled: bool
) -> None:
    resctrl.control(do="offline", domain=LATE)
    with task() as init:
        hook(created("c1", init.pid, pod_uid=UID))
        count(resctrl, 5)
        assert shown(hook).use()[ENERGY] == 5
        resctrl.control(do="online", domain=LATE)
        count(resctrl, 7, counter=f"{LATE}/core_energy")
        assert is_unknown(hook)
        if is_reconciled:
            assert [it["action"] for it in hook.answer("reconcile")["actions"]] == ["show"]
            assert hook.answer("reconcile")["actions"] == []
            assert shown(hook).texts[f"mon_data/{LATE}/core_energy"] == "7.000000"
            assert shown(hook).use()[f"{LATE}/core_energy"] is None
            assert is_unknown(hook)
        count(resctrl, 2, counter=f"{LATE}/core_energy")
    hook(stopped("c1"))
    assert is_unknown(hook, 5 + 2 * is_reconciled)
    assert shown(hook).texts[f"mon_data/{LATE}/core_energy.end"] == "9.000000"
    assert shown(hook).use()[f"{LATE}/core_energy"] is None
    assert shown(hook).use()[ENERGY] == 5
    with task() as init:
        hook(created("c1", init.pid, pod_uid=UID))
    hook(stopped("c1"))
    assert shown(hook).texts[f"mon_data/{LATE}/core_energy.before"] == "Unavailable"
    assert shown(hook).texts[f"mon_data/{LATE}/core_energy.known"] == ("2" if is_reconciled else "0")
