# SPDX-License-Identifier: Apache-2.0
"""A machine whose power is cut while keys run, and which boots again: see power_cut.py."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.kernel.guests import ENVIRONMENT, Guests
from tests.kernel.vm import ROOT, GuestFailed, Vm, run_in_guest
from tests.support.hook import FORM

VM = Vm(smp=1, sockets=1, append="fakerdt.decay_ms=0")
COUNTER = re.compile(r"^resctrl_mon_namespace_core_energy_joules_total\S* (\S+)$", re.MULTILINE)


def boot(share: Path, what: str) -> int:
    words = [sys.executable, "-m", "tests.kernel.power_cut", what]
    return run_in_guest(
        words, VM, share=share, cwd=ROOT, env={**ENVIRONMENT, FORM: os.environ[FORM]}
    )


def test_after_a_power_cut_each_key_has_one_line_with_what_the_last_checkpoint_knew_and_counts_once(
    guests: Guests, tmp_path: Path
) -> None:
    del guests  # they run beside this one
    with pytest.raises(GuestFailed):
        boot(tmp_path, "run")
    used = json.loads((tmp_path / "used").read_text())  # it came that far
    assert boot(tmp_path, "wake") == 0
    woken = json.loads((tmp_path / "woken").read_text())
    assert ["2 runs whose records were lost" in said for said in woken["said"]] == [True, False]
    jobs = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert (
        sorted(job["key"] for job in jobs) == sorted(used) == ["container", "ended", "ends", "job"]
    )
    assert {job["key"]: job["use"]["core_energy"] for job in jobs} == pytest.approx(used, abs=1e-5)
    marked = {job["key"]: job["unknown"] for job in jobs if job["unknown"]}
    assert marked == {
        job["key"]: sorted(job["use"]) for job in jobs if job["key"] in ("container", "job")
    }
    (billed,) = COUNTER.findall(woken["metrics"])
    assert float(billed) == pytest.approx(sum(used.values()), abs=1e-5)
