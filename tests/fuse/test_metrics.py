# SPDX-License-Identifier: Apache-2.0
"""`metrics` of the shipped file: as a server, and what it says of groups that come and go."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.resctrlfs import Mounted
from tests.support.hook import DEADLINE, UID, Hook, Task, created
from tests.support.waiting import wait

ENERGY = {"domain": "mon_PERF_PKG_00", "event": "core_energy"}


@contextmanager
def listening(hook: Hook, *arguments: str) -> Iterator[tuple[Task, str]]:
    """The server, and its URL."""
    process = hook.open("metrics", "--listen=0", *arguments)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert line.startswith("listening on http://127.0.0.1:")
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.communicate()


def scrape(url: str) -> dict[str, float]:
    """The values by metric, summed up over the labels."""
    sums: dict[str, float] = {}
    with urlopen(url, timeout=DEADLINE) as answer:  # noqa: S310  our own
        for family in text_string_to_metric_families(answer.read().decode()):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0) + sample.value
    return sums


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_measures_when_it_is_asked_and_ends_at_a_signal(
    hook: Hook, resctrl: Mounted, init: Task, number: int
) -> None:
    with listening(hook) as (process, url):
        assert scrape(url).get("resctrl_mon_core_energy_joules_total") is None
        hook(created("c1", init.pid, pod_uid=UID))
        resctrl.control(do="add", group=f"/mon_groups/oci-{UID}", amount="12.5", **ENERGY)
        # A second later: until then the first reading is shared.
        wait(lambda: scrape(url).get("resctrl_mon_core_energy_joules_total") == 12.5)
        process.send_signal(number)
        assert process.wait(DEADLINE) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
