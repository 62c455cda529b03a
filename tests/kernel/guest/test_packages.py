# SPDX-License-Identifier: Apache-2.0
"""A machine with two packages, whose telemetry has data of an RMID only
where a task has run with it.
"""

from __future__ import annotations

from contextlib import closing

from tests.kernel.guest.test_lifetime import Burner
from tests.kernel.inside import pin
from tests.support.consumers import Entry, read
from tests.support.hook import UID, Hook, created, stopped

EVENTS = ("core_energy", "activity")


def live_on(hook: Hook, package: int) -> Entry:
    """A container of the pod comes, works on one package, and goes; what consumers read then."""
    with closing(Burner(0.1)) as burner:
        pin(burner.pid, package)
        assert hook(created("c1", burner.pid, pod_uid=UID)).stderr == ""
        burner.burn()
    assert hook(stopped("c1")).stderr == ""
    entry = read(hook.view(UID))
    assert entry is not None
    entry.check()
    return entry


def test_a_pod_uses_nothing_and_known_on_a_package_where_it_never_ran(hook: Hook) -> None:
    entry = live_on(hook, package=0)
    for event in EVENTS:
        other = f"mon_PERF_PKG_01/{event}"
        assert [entry.texts[f"mon_data/{other}.{part}"] for part in ("begin", "end")] == [
            "Unavailable"
        ] * 2
        assert entry.use()[other] == 0
    (key,) = hook.answer("list")["keys"]
    of_energy = key["use"]["core_energy"]
    assert of_energy["value"] > 0
    assert (of_energy["unknown"], of_energy["at_least"]) == (0, False)
    entry = live_on(hook, package=1)
    for event in EVENTS:
        assert entry.texts[f"mon_data/mon_PERF_PKG_01/{event}.before"] == "0"
        assert all((entry.use()[f"mon_PERF_PKG_0{package}/{event}"] or 0) > 0 for package in (0, 1))
