# SPDX-License-Identifier: Apache-2.0
"""The container starts of the speed benchmark, once each."""

from __future__ import annotations

import pytest

from tests import provision
from tests.bench import speed, speed_runtimes
from tests.support.containers import missing


def test_container_starts_are_measured_with_each_hook() -> None:
    if reason := missing(model=False) or "; ".join(provision.missing(("gcc", "libc6-dev"))):
        pytest.skip(reason)
    (table,) = speed.measure(speed.Plan(tables=["runtimes"], rounds=1))
    assert [it.row for it in table.figures] == [
        f"{start}: {way} / {other}"
        for start in (speed_runtimes.RUNC, speed_runtimes.PODMAN)
        for way, other in speed_runtimes.PAIRS
    ]
    assert min(it.median for it in table.figures) > 0
