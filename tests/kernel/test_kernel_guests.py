# SPDX-License-Identifier: Apache-2.0
"""The hook on the kernel's own resctrl: the black-box tests of tests/fuse, and those in guest/,
which need a real one.

Each test here is a guest, which runs pytest on some files.
"""

from __future__ import annotations

import pytest

from tests.bench.attribution import CountingVm
from tests.kernel.guests import GuestKind, Guests
from tests.kernel.vm import Vm

# What is freed comes back at the next look, which the kernel takes once a second.
QUICK = "fakerdt.decay_ms=0"
HERE = "tests/kernel/guest"
STORMS = (
    "rmids=1 limbo=1; c1 | p1 | c5",
    "c1 c2@gold | p1 | p2 | r",
    "c1 c5 c9 | p1 | p5 | p9 | r",
)
"""Those in which the kernel's RMIDs and ctrl_groups decide, and one of many hooks."""
# A boot takes ten seconds, so that a guest runs all that its machine can show. reconcile is in the
# storm and in chains: its tests on the model would take too long here.
MACHINES = [
    GuestKind(
        "one CPU",
        Vm(smp=1, sockets=1, append=QUICK, mount_options="cdp,debug"),
        (
            # These run on the model as well. What is the process's, and not resctrl's,
            # runs on the model alone.
            "tests/fuse/test_lifecycle.py",
            *(
                f"tests/fuse/test_storm.py::test_one_reconcile_puts_it_right[{scenario}]"
                for scenario in STORMS
            ),
            *(f"{HERE}/test_{name}.py" for name in ("exhaustion", "few", "chain")),
        ),
    ),
    GuestKind(
        "containers, and systemd",
        Vm(smp=1, sockets=1, systemd=True, append=QUICK),
        # The last one installs the hook, whose timer then runs.
        tuple(f"{HERE}/test_{name}.py" for name in ("systemd", "containers", "others", "units")),
        has_newest=True,
    ),
    # Monitoring only: there is no ctrl_group but the root
    GuestKind(
        "reused RMIDs", CountingVm(rmids=2, closids=0, append=QUICK), (f"{HERE}/test_lifetime.py",)
    ),
    GuestKind(
        "telemetry only, of two packages",
        Vm(append="rdt=!cmt,!mbmtotal,!mbmlocal"),
        (f"{HERE}/test_packages.py", f"{HERE}/test_hardware.py"),
    ),
]


@pytest.mark.parametrize("kind", MACHINES, ids=str)
def test_in_guest(guests: Guests, kind: GuestKind) -> None:
    outcome = guests.outcome(kind)
    if outcome.status != 0:
        pytest.fail(f"exit status {outcome.status} in the guest\n{outcome.output}", pytrace=False)
    if outcome.skipped:
        pytest.skip(f"in the guest: {outcome.skipped}")
