# SPDX-License-Identifier: Apache-2.0
"""`metrics` of the shipped file: as a server, and what it says of groups that come and go."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.resctrlfs import Mounted
from tests.support.hook import DEADLINE, UID, Hook, Task, created, end
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


def test_the_bill_of_a_namespace_outlives_the_pod_its_records_and_the_endpoint(
    hook: Hook, resctrl: Mounted, init: Task, tmp_path: Path
) -> None:
    """The records go with a power cut; the pod has a line as of the last checkpoint."""
    file, metric = tmp_path / "log/history.jsonl", "resctrl_mon_namespace_core_energy_joules_total"
    file.parent.mkdir()
    billed, option = hook.with_options(f"--history={file}"), f"--history={file}"

    def reconcile() -> None:
        assert hook.ask("reconcile", option).stderr == ""

    def shown() -> float | None:
        with listening(hook, option) as (_, url):
            return scrape(url).get(metric)

    billed(created("c1", init.pid, pod_uid=UID))
    resctrl.control(do="add", group=f"/mon_groups/oci-{UID}", amount="12.5", **ENERGY)
    assert shown() is None, "nothing is added up yet"
    reconcile()
    assert shown() == 0
    sums = json.loads((file.parent / "sums.json").read_text())
    for total in sums["namespaces"].values():  # a minute later
        total["since"] = dict.fromkeys(total["since"], 0.0)
    (file.parent / "sums.json").write_text(json.dumps(sums))
    assert shown() == 12.5
    resctrl.control(do="add", group=f"/mon_groups/oci-{UID}", amount="4.5", **ENERGY)
    assert shown() == 17
    end(init)
    shutil.rmtree(hook.run_dir)
    for _ in range(2):
        assert shown() == 17, "what was shown does not fall"
        reconcile()
    (line,) = map(json.loads, file.read_text().splitlines())
    assert (line["use"]["core_energy"], "core_energy" in line["unknown"]) == (12.5, True)
    assert hook.groups() == set()
