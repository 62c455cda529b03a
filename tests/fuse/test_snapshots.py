# SPDX-License-Identifier: Apache-2.0
"""What a key used: its counters before and after, carried over restarts, and shown to those who read a resctrl."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from tests.resctrlfs import Mounted, mounted
from tests.support.consumers import Entry, kepler, read
from tests.support.hook import UID, Hook, created, stopped, task

OTHER = "00000000-4084-4186-9c0e-93cf8c32e2ce"
ENERGY, SECOND = "mon_PERF_PKG_00/core_energy", "mon_PERF_PKG_01/core_energy"
GROUP = f"/mon_groups/oci-{UID}"


def shown(hook: Hook, key: str = UID) -> Entry:
    entry = read(hook.run_dir / "mon_groups" / key)
    assert entry is not None
    entry.check()
    return entry


def count(resctrl: Mounted, amount: object, group: str = GROUP, counter: str = ENERGY) -> None:
    domain, _, event = counter.partition("/")
    resctrl.control(do="add", group=group, domain=domain, event=event, amount=str(amount))


def live(hook: Hook, resctrl: Mounted, amount: object, container: str = "c1") -> None:
    """A container of the pod comes, uses so much, and goes."""
    with task() as init:
        assert hook(created(container, init.pid, pod_uid=UID)).stderr == ""
        count(resctrl, amount)
    assert hook(stopped(container)).stderr == ""


def test_a_life(hook: Hook, resctrl: Mounted) -> None:
    with task() as init:
        hook(created("c1", init.pid, pod_uid=UID))
        count(resctrl, "21.8")
        entry = shown(hook)
        assert not entry.completed
        assert entry.links["tasks"] == f"{resctrl.root}{GROUP}/tasks"
        assert entry.links[f"mon_data/{ENERGY}"] == f"{resctrl.root}{GROUP}/mon_data/{ENERGY}"
        assert entry.texts["tasks"] == str(init.pid)
        assert entry.use()[ENERGY] == Decimal("21.8")
        count(resctrl, "0.2")
    hook(stopped("c1"))
    entry = shown(hook)
    assert entry.completed
    assert entry.use()[ENERGY] == 22
    assert not entry.links
    assert f"mon_data/{ENERGY}.before" not in entry.texts
    hook.assert_clean()


def class_of(directory: Path, ctrl_group: str) -> dict[str, str]:
    """The part of a state by which a hook learns of a ctrl_group where the kernel does not say it: the bundle."""
    (directory / "config.json").write_text(json.dumps({"linux": {"intelRdt": {"closID": ctrl_group}}}))
    return {"bundle": str(directory)}


@pytest.mark.usefixtures("resctrl")  # whether it can be had
def test_a_used_rmid_is_not_billed_to_its_next_owner(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    with mounted(place, rmids=2, decay_ms=0) as resctrl, task() as init:
        hook = Hook(resctrl.root, place / "run")
        live(hook, resctrl, 300)
        resctrl.control(do="settle")
        hook(created("d1", init.pid, pod_uid=OTHER))
        count(resctrl, 7, f"/mon_groups/oci-{OTHER}")
        entry = shown(hook, OTHER)
    assert entry.texts[f"mon_data/{ENERGY}.begin"] == "300.000000"
    assert entry.use()[ENERGY] == 7


def test_containers_in_several_ctrl_groups_are_all_seen(hook: Hook, resctrl: Mounted, tmp_path: Path) -> None:
    (resctrl.root / "gold").mkdir()
    with task() as first, task() as second:
        (resctrl.root / "gold" / "tasks").write_text(str(second.pid))
        hook(created("c1", first.pid, pod_uid=UID))
        hook({**created("c2", second.pid, pod_uid=UID), **class_of(tmp_path, "gold")})
        count(resctrl, 2)
        count(resctrl, 40, f"/gold{GROUP}")
        entry = shown(hook)
        assert entry.use()[ENERGY] == 2
        assert entry.use()["mon_PERF_PKG_00@gold/core_energy"] == 40
        assert entry.texts["tasks@gold"] == str(second.pid)
        for group in (GROUP, f"/gold{GROUP}"):
            count(resctrl, 0, group, SECOND)
        assert kepler(hook.run_dir)[UID].joules == 42
    for container in ("c1", "c2"):
        hook(stopped(container))
    live(hook, resctrl, 1)
    assert shown(hook).use()[ENERGY] == 43


def metrics_of(hook: Hook, event: str) -> dict[str, float]:
    """The samples of a metric by domain."""
    families = {it["name"]: it["samples"] for it in hook.answer("metrics")["metrics"]}
    return {it["labels"]["domain"]: it["value"] for it in families.get(f"resctrl_mon_{event}", [])}


def assert_whole(hook: Hook, first: float, second: float) -> None:
    """All that people and monitoring read says that nothing of the pod's use is unknown, nor that there may be more."""
    (key,) = hook.answer("list")["keys"]
    total = key["use"]["core_energy"]
    assert (total["value"], total["unknown"], total["at_least"]) == (first + second, 0, False)
    assert metrics_of(hook, "use_unknown") == {}
    packages = {ENERGY.partition("/")[0]: first, SECOND.partition("/")[0]: second}
    assert metrics_of(hook, "core_energy_joules_total") == packages
    assert {it: shown(hook).use()[it] for it in (ENERGY, SECOND)} == {ENERGY: first, SECOND: second}


def test_a_pod_that_stays_on_one_package_of_two_is_known(hook: Hook, resctrl: Mounted) -> None:
    with task() as init:
        hook(created("c1", init.pid, pod_uid=UID))
        count(resctrl, 5)
        assert shown(hook).links[f"mon_data/{SECOND}"].endswith(SECOND)
        assert shown(hook).texts[f"mon_data/{SECOND}"] == "Unavailable"
        assert_whole(hook, 5, 0)
        assert kepler(hook.run_dir)[UID].joules is None, "docs/consumer-view.md has it"
    hook(stopped("c1"))
    assert [shown(hook).texts[f"mon_data/{SECOND}.{it}"] for it in ("begin", "end")] == ["Unavailable"] * 2
    assert_whole(hook, 5, 0)
    with task() as init:
        hook(created("c1", init.pid, pod_uid=UID))
        assert shown(hook).texts[f"mon_data/{SECOND}.before"] == "0"
        count(resctrl, 4, counter=SECOND)
        assert_whole(hook, 5, 4)


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
    live(hook, resctrl, 0)
    assert shown(hook).texts[f"mon_data/{LATE}/core_energy.before"] == "Unavailable"
    assert shown(hook).texts[f"mon_data/{LATE}/core_energy.known"] == ("2" if is_reconciled else "0")
