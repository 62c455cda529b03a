# SPDX-License-Identifier: Apache-2.0
"""The hook on the kernel's own resctrl: the black-box tests of tests/fuse, and those in guest/, which need a real one.

Each test here is a test function there, with all its parameters; what fails is told as the guest's pytest tells it.
"""

from __future__ import annotations

import pytest

from tests.bench.attribution import CountingVm
from tests.kernel.guests import GuestCase, GuestKind, Guests
from tests.kernel.vm import Vm


def black_box(*names: str) -> tuple[str, ...]:
    """Tests that run on the model as well. What is the process's, and not resctrl's, runs on the model alone."""
    return tuple(f"tests/fuse/test_{name}.py" for name in names)


QUICK = "fakerdt.decay_ms=0"  # what is freed comes back at the next look, which the kernel takes once a second
ONE = Vm(rmids=100, smp=1, sockets=1, append=QUICK)
HERE = "tests/kernel/guest"
HARDWARE = (f"{HERE}/test_hardware.py",)
# reconcile is in the storm, in attribution and in exhaustion: its own file, which runs on the model, would take the
# tier beyond five minutes.
MACHINES = [
    GuestKind("black box", ONE, black_box("lifecycle", "refusals", "corpus", "crowd")),
    GuestKind("31 RMIDs", Vm(rmids=31, smp=1, sockets=1, append=QUICK), (f"{HERE}/test_exhaustion.py",)),
    GuestKind("storm", Vm(rmids=12, smp=1, sockets=1, append=QUICK), black_box("storm")),
    GuestKind(
        "containers",
        Vm(smp=1, sockets=1, append=QUICK),
        (f"{HERE}/test_containers.py", f"{HERE}/test_others.py"),
    ),
    GuestKind(
        "watch",
        Vm(smp=1, sockets=1, append=QUICK),
        (*black_box("watch"), f"{HERE}/test_watch.py", f"{HERE}/test_chain.py"),
    ),
    GuestKind("systemd", Vm(smp=1, sockets=1, systemd=True, append=QUICK), (f"{HERE}/test_units.py",)),
    GuestKind("containerd", Vm(smp=1, sockets=1, append=QUICK), (f"{HERE}/test_containerd.py",)),
    GuestKind(
        "few RMIDs",
        Vm(rmids=6, smp=1, sockets=1, append="fakerdt.decay_ms=1500"),
        (f"{HERE}/test_few.py",),
    ),
    GuestKind("reused RMIDs", CountingVm(rmids=2, append=QUICK), (f"{HERE}/test_lifetime.py",)),
    GuestKind("two packages", Vm(append=QUICK), (f"{HERE}/test_packages.py",)),
    GuestKind("monitoring only", Vm(closids=0, smp=1, sockets=1, append="rdt=!energy,!perf"), HARDWARE),
    GuestKind("AET only", Vm(smp=1, sockets=1, append="rdt=!cmt,!mbmtotal,!mbmlocal"), HARDWARE),
    GuestKind("no occupancy", Vm(smp=1, sockets=1, append="rdt=!cmt", mount_options="cdp,debug"), HARDWARE),
]


@pytest.mark.parametrize("case", [case for machine in MACHINES for case in machine.cases()], ids=str)
def test_in_guest(guests: Guests, case: GuestCase) -> None:
    reports = guests.reports_of(case)
    failed = [f"{report.nodeid}\n{report.text}" for report in reports if report.outcome == "failed"]
    if failed:
        pytest.fail("\n\n".join([f"{len(failed)} of {len(reports)} failed in the guest", *failed]), pytrace=False)
    if not reports:
        pytest.fail(f"the guest told nothing of it\n{guests.why(case)}", pytrace=False)
    skipped = [report for report in reports if report.outcome == "skipped"]
    if skipped:
        pytest.skip(f"in the guest: {skipped[0].text}")
