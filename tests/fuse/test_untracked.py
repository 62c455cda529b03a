# SPDX-License-Identifier: Apache-2.0
"""Memory traffic on AMD without assigned counters:
what the kernel shows in numbers is charged, as a lower bound.

The hardware tracks fewer RMIDs than there are. Linux 7.2, where it says so:

* arch/x86/kernel/cpu/resctrl/monitor.c, __rmid_read_phys(): `if (msr_val & RMID_VAL_UNAVAIL) return
  -EINVAL;`
* fs/resctrl/ctrlmondata.c, rdtgroup_mondata_show(): `seq_puts(m, "Unavailable\\n")` for -EINVAL.
* fs/resctrl/monitor.c, mon_event_count(), commit 064855a: "newly created monitor groups may report
  -EINVAL/Unavailable if the monitor hasn't seen any traffic".
* arch/x86/kernel/cpu/resctrl/monitor.c, resctrl_arch_rmid_read(), commit 15292f1: `am->prev_msr =
  0;` for -EINVAL, because the hardware counts from 0 once it tracks the RMID again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fuse.test_metrics import listening, scrape
from tests.resctrlfs import Mounted
from tests.support.consumers import read
from tests.support.hook import UID, Hook, Task, created, stopped, task
from tests.support.waiting import wait

GROUP = f"/mon_groups/oci-{UID}"
EVENT, METRIC = "mbm_total_bytes", "resctrl_mon_memory_traffic_bytes_total"
FOUR = pytest.mark.knobs(counters="untracked", l3_domains=4)
SIXTEEN = pytest.mark.knobs(counters="untracked", l3_domains=16)
SEEN = 1536320


def set_counter(resctrl: Mounted, value: object, domain: int = 0, event: str = EVENT) -> None:
    resctrl.control(
        do="set_counter", group=GROUP, domain=f"mon_L3_{domain:02}", event=event, value=str(value)
    )


def read_list(hook: Hook) -> tuple[float | None, int, int]:
    """What `list` says: the value, how many counters lack a part,
    and how many are counted from nothing.
    """
    (key,) = hook.answer("list")["keys"]
    use = key["use"][EVENT]
    assert use["at_least"] is (use["unknown"] > 0)
    return use["value"], use["unknown"], use["from_nothing"]


def exported(text: str) -> tuple[list[float], int]:
    """The samples of the metric, and how many of its uses are marked as unknown."""
    samples = [
        sample for family in text_string_to_metric_families(text) for sample in family.samples
    ]
    marks = [
        sample
        for sample in samples
        if sample.name == "resctrl_mon_use_unknown" and sample.labels["event"] == EVENT
    ]
    return [sample.value for sample in samples if sample.name == METRIC], len(marks)


@pytest.mark.parametrize("domains", [pytest.param(4, marks=FOUR), pytest.param(16, marks=SIXTEEN)])
def test_numbers_of_one_domain_are_charged_while_the_others_are_untracked(
    hook: Hook, resctrl: Mounted, tmp_path: Path, domains: int
) -> None:
    file = tmp_path / "history.jsonl"
    recording = hook.with_options(f"--history={file}")
    with task() as init:
        recording(created("c1", init.pid, pod_uid=UID))
        assert read_list(hook) == (0, domains, 0), "it says nothing in numbers yet"
        set_counter(resctrl, SEEN)
        assert read_list(hook) == (SEEN, domains - 1, 1)
        (group,) = hook.answer("show", UID)["groups"]
        shown = {
            path: counter for path, counter in group["counters"].items() if path.endswith(EVENT)
        }
        assert [(counter["known"], counter["use"]) for counter in shown.values()] == [
            (SEEN, SEEN),
            *[(0, None)] * (domains - 1),
        ]
        assert f"{EVENT} >=1.47Mi* bytes" in [
            " ".join(line.split()) for line in hook.ask("show", UID).stdout.splitlines()
        ]
        assert exported(hook.ask("metrics").stdout) == ([SEEN], domains - 1)
        entry = read(hook.view(UID))
        assert entry is not None
        uses = [use for counter, use in sorted(entry.use().items()) if counter.endswith(EVENT)]
        assert uses == [SEEN, *[None] * (domains - 1)]
    recording(stopped("c1"))
    (line,) = map(json.loads, file.read_text().splitlines())
    assert (line["use"][EVENT], EVENT in line["unknown"]) == (SEEN, True)
    assert ">=1.47Mi" in hook.ask("history", f"--history={file}").stdout
    assert read_list(hook) == (SEEN, domains - 1, 1)


@contextmanager
def exporting(hook: Hook, resctrl: Mounted, way: str) -> Iterator[Callable[[], float | None]]:
    """Takes a sample of the sum over all domains, by the endpoint or by a textfile,
    once what was set is measured.
    """
    numbers = count(1)

    def mark() -> int:
        set_counter(resctrl, number := next(numbers), event="llc_occupancy")
        return number

    if way == "listen":
        with listening(hook) as (_, url):

            def ask() -> float | None:
                at = mark()
                wait(lambda: scrape(url).get("resctrl_mon_llc_occupancy_bytes") == at)
                return scrape(url).get(METRIC)

            yield ask
    else:
        path = hook.run_dir / "x.prom"

        def write() -> float | None:
            mark()
            assert hook.ask("metrics", f"--textfile={path}").status == 0
            values, _ = exported(path.read_text())
            return sum(values) if values else None

        yield write


@FOUR
@pytest.mark.parametrize("way", ["listen", "textfile"])
def test_an_exported_counter_never_dips(hook: Hook, resctrl: Mounted, init: Task, way: str) -> None:
    """Neither when a domain is untracked for a while, nor when it counts from 0 afterwards;
    it is never too high.
    """
    hook(created("c1", init.pid, pod_uid=UID))
    texts = [
        (100, "Unavailable"),
        ("Unavailable", 30),
        (120, 30),
        (120, "Unavailable"),
        (7, 50),
        (130, 60),
    ]
    with exporting(hook, resctrl, way) as ask:
        values = []
        for first, second in texts:
            set_counter(resctrl, first)
            set_counter(resctrl, second, domain=1)
            values.append(ask())
    assert values == [100, 130, 150, 150, 170, 190]


@FOUR
def test_a_domain_that_is_untracked_at_the_end_only_takes_nothing_of_the_others_away(
    hook: Hook, resctrl: Mounted, tmp_path: Path
) -> None:
    file = tmp_path / "history.jsonl"
    recording = hook.with_options(f"--history={file}")
    values = []
    with exporting(hook, resctrl, "textfile") as ask:
        for amount in (1000, 1):
            with task() as init:
                recording(created("c1", init.pid, pod_uid=UID))
                for domain in range(4):
                    set_counter(resctrl, amount, domain=domain)
                values.append(ask())
                set_counter(resctrl, "Unavailable", domain=3)
            recording(stopped("c1"))
            assert read_list(hook)[1] == 1
    assert read_list(hook) == (3003, 1, 3), "of the domain nothing is on record"
    lines = [*map(json.loads, file.read_text().splitlines())]
    assert [(line["use"][EVENT], EVENT in line["unknown"]) for line in lines] == [
        (3000, True),
        (3, True),
    ]
    assert values == [4000, 3004], (
        "three go on; the fourth, of whose use a part is unknown, starts again"
    )
